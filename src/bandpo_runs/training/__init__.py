"""A recipe becomes a run: on TRL here, on verl as a command; several runs side by side; a doctor for a setup."""

from ..faces import lazily

__getattr__ = lazily(
    __name__, {"examine": "doctor", "plan": "side_by_side", "run": "on_trl", "run_all": "side_by_side"}
)
