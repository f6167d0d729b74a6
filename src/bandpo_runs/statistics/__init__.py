"""Statistics of runs: estimators of a model from its samples, comparison of two checkpoints, collapse of a run."""

from .collapse import Collapse, find_collapse
from .comparison import Comparison, compare
from .estimators import Graded, best_at_k_bootstrap, best_at_k_expected, maj_at_k_bootstrap, mean_at_k, pass_at_k
from .intervals import Interval, Spread, clustered_error, sampling_error, training_runs
from .summary import summarize

__all__ = [
    "Collapse", "Comparison", "Graded", "Interval", "Spread", "best_at_k_bootstrap", "best_at_k_expected",
    "clustered_error", "compare", "find_collapse", "maj_at_k_bootstrap", "mean_at_k", "pass_at_k",
    "sampling_error", "summarize", "training_runs",
]  # fmt: skip
