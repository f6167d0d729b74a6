"""Score answers, with the signatures of TRL's and verl's rewards. It loads no torch."""

from .functions import (
    Reward,
    RewardError,
    compute_score,
    compute_score_dapo,
    compute_score_dapo_strict,
    dapo,
    dapo_strict,
    exact,
    last_number,
    math_reward,
    resolve,
)
from .grading import SCORERS, Grade, grade

__all__ = [
    "SCORERS",
    "Grade",
    "Reward",
    "RewardError",
    "compute_score",
    "compute_score_dapo",
    "compute_score_dapo_strict",
    "dapo",
    "dapo_strict",
    "exact",
    "grade",
    "last_number",
    "math_reward",
    "resolve",
]
