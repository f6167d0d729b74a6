"""Callback that keeps the state of a `Controlled` rule while TRL's trainer trains."""

from __future__ import annotations

from typing import Any, cast

from transformers import TrainerCallback

from ..losses.metrics import Metrics
from ..trust_regions.base import Region
from ..trust_regions.control import Controlled, State, controlled_of

NAME = "bandpo_controlled"  # of its state in trainer_state.json


class RadiusController(TrainerCallback):
    """Moves the number of a `Controlled` rule after every optimizer step, by what was measured in that step.

    The trainer adds the metrics of each micro-batch, summed over all processes, so that every process keeps the same
    state. It stands in the checkpoint's trainer_state.json; a run that is resumed goes on with it, and one whose
    checkpoint has none ends with a ValueError.

    Attributes:
        state: of the rule.
        row: what is logged of the last optimizer step: the value in it, and the rest of the state after it.
    """

    def __init__(self, rule: Controlled) -> None:
        self.rule, self.state = rule, rule.start()
        self.row: dict[str, float] = {}
        self._metrics: Metrics | None = None

    @classmethod
    def of(cls, region: Region) -> RadiusController | None:
        """Return the controller that a rule needs, or None."""
        rule = controlled_of(region)
        return None if rule is None else cls(rule)

    @property
    def value(self) -> float:
        """Return the number in force."""
        return self.rule.value(self.state)

    def add(self, metrics: Metrics) -> None:
        """Take the metrics of a micro-batch of the step that runs."""
        self._metrics = metrics if self._metrics is None else self._metrics.merge(metrics)

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Begin, or go on where the checkpoint was."""
        kept: State | None = cast(Any, state.stateful_callbacks).get(NAME)  # a dict, whatever its type says
        if kept is None and state.global_step > 0:
            raise ValueError(
                f"the checkpoint of step {state.global_step} has no state of a controlled rule; it was made by another "
                "trainer or another rule, and cannot go on exactly"
            )
        self.state, self.row, self._metrics = kept or self.rule.start(), {}, None
        _ = self.value  # ValueError if it cannot be of this rule

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Move the number; TRL logs and saves after this."""
        in_force, found = self.value, {} if self._metrics is None else self._metrics.compute()
        _, self.state = self.rule.radius(self.state, found)
        self._metrics = None
        # Sorted, as a state is that comes from a checkpoint: else the rows of a resumed run would have another order.
        logged = {**self.state, "value": in_force}
        self.row = {f"bandpo/controlled/{name}": logged[name] for name in sorted(logged)}
        cast(Any, state.stateful_callbacks)[NAME] = self.state
