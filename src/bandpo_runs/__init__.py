"""Make runs and judge them: recipes, training, evaluation, reports, commands.

It is the second package of the wheel. It builds on `bandpo`, the library, which knows nothing of it.
"""
