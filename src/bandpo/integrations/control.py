"""The state of a `Controlled` rule between optimizer steps, for every trainer that keeps one."""

from __future__ import annotations

from typing import Any

from ..losses.metrics import Metrics
from ..trust_regions.control import Controlled, State

NAME = "bandpo_controlled"  # of the state in a checkpoint


class RadiusController:
    """Moves the number of a `Controlled` rule after every step, by what was measured in all of it.

    Args:
        rule: its number is moved.
        kept: the state in the checkpoint that the run goes on from.
        step: the step of that checkpoint, 0 at the beginning.

    Raises:
        ValueError: a checkpoint without the state, or with the state of another rule.
    """

    def __init__(self, rule: Controlled, kept: dict[str, Any] | None = None, step: int = 0) -> None:
        self.rule = rule
        self.begin(kept, step)

    def begin(self, kept: dict[str, Any] | None, step: int) -> None:
        """Begin, or go on where the checkpoint was."""
        if step != (0 if kept is None else kept["step"]):
            raise ValueError(
                f"the checkpoint of step {step} has no state of a controlled rule; that step was made without one, and "
                "a run cannot go on from there exactly"
            )
        if kept is not None and kept["rule"] != repr(self.rule):
            raise ValueError(
                f"the checkpoint has the state of another controlled rule, {kept['rule']}, and cannot go on exactly "
                f"under {self.rule!r}"
            )
        self.state: State = self.rule.start() if kept is None else kept["state"]
        self._metrics: Metrics | None = None
        _ = self.value  # ValueError if the state cannot be of this rule

    @property
    def value(self) -> float:
        """Return the number in force."""
        return self.rule.value(self.state)

    def add(self, metrics: Metrics) -> None:
        """Take the metrics of a micro-batch of the step that runs."""
        self._metrics = metrics if self._metrics is None else self._metrics.merge(metrics)

    def finish(self, step: int, *, over_ranks: bool = False) -> dict[str, Any]:
        """Move the number after a step, and return what a checkpoint must keep.

        Args:
            step: the number of steps that are done now.
            over_ranks: sum what was measured over all ranks; else each rank has that already.
        """
        found, self._metrics = self._metrics, None
        if found is not None and over_ranks:
            found = found.all_reduce()
        _, self.state = self.rule.radius(self.state, {} if found is None else found.compute())
        return {"rule": repr(self.rule), "state": self.state, "step": step}
