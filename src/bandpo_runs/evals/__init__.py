"""Generate, keep, grade and read back samples of a model."""

from ..faces import lazily

__getattr__ = lazily(__name__, {"Sampling": "samples", "evaluate": "generate", "grade_folder": "grades"})
