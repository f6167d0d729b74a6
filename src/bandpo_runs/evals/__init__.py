"""Samples of a model: drawn, kept, graded, read back."""

from ..faces import lazily

__getattr__ = lazily(__name__, {"Sampling": "samples", "evaluate": "draw", "grade_folder": "grades"})
