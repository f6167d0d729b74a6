"""Make a run of a recipe: on TRL here, on verl as a command. Several run side by side; a doctor checks a setup."""

from ..faces import lazily

__getattr__ = lazily(
    __name__, {"examine": "doctor", "plan": "side_by_side", "run": "on_trl", "run_all": "side_by_side"}
)
