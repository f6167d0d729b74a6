"""Statistics of runs: a model from its samples, two checkpoints compared, a rule's number, collapse of a run."""
