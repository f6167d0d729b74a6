"""What numbers say: estimators of a model from its samples, two checkpoints compared, methods in a contest, and
whether a run collapsed."""

from .collapse import Collapse, collapse_of, find_collapse
from .comparison import Comparison, compare
from .contest import (
    Estimate,
    SigmoidFit,
    bootstrap,
    extinction_rate,
    holm,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
    sigmoid_fit,
    swap_test,
)
from .estimators import (
    Graded,
    best_at_k_bootstrap,
    best_at_k_expected,
    maj_at_k,
    maj_at_k_bootstrap,
    mean_at_k,
    pass_at_k,
)
from .intervals import Interval, Spread, clustered_error, sampling_error, training_runs
from .summary import summarize

__all__ = [
    "Collapse",
    "Comparison",
    "Estimate",
    "Graded",
    "Interval",
    "SigmoidFit",
    "Spread",
    "best_at_k_bootstrap",
    "best_at_k_expected",
    "bootstrap",
    "clustered_error",
    "collapse_of",
    "compare",
    "extinction_rate",
    "find_collapse",
    "holm",
    "interquartile_mean",
    "maj_at_k",
    "maj_at_k_bootstrap",
    "mean_at_k",
    "pass_at_k",
    "performance_profile",
    "probability_of_improvement",
    "sampling_error",
    "sigmoid_fit",
    "summarize",
    "swap_test",
    "training_runs",
]
