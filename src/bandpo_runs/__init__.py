"""Parts and products of a run: recipes, data, trainers, evaluation, reports and the command line.

It is the second package of the wheel. It builds on `bandpo`, the library, which knows nothing of it.
"""
