"""Samples of a model: drawn, kept, graded, read back."""

from ..faces import lazily

__getattr__ = lazily(__name__, {"Sampling": "folder", "evaluate": "draw", "grade_folder": "grades"})
