"""Make runs and judge them: recipes, data, training, evaluation, reports, commands.

It is the second package of the wheel. It builds on `bandpo`, the library, which knows nothing of it.
"""
