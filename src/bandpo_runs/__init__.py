"""What a run is made of and what is made of it: recipes, data, trainers, evaluation, reports and the command line.

It is the second package of the wheel. It builds on `bandpo`, the library, which knows nothing of it.
"""
