"""Generate, keep, grade and read back samples of a model."""
