"""Hooks that keep the state of a `Controlled` rule while verl trains."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from ..losses.metrics import Metrics
from ..trust_regions.control import Controlled, State

NAME = "bandpo_controlled"  # of its state among the attributes of verl's learning-rate scheduler


class RadiusController:
    """Moves the number of a `Controlled` rule after an update of the actor, by what was measured in all of it.

    One is made for each update. The state is kept on the learning-rate scheduler of the engine: what a scheduler of
    torch has as attributes is in its `state_dict`, and that is in verl's checkpoints, of each rank.

    Args:
        rule: its number is moved.
        engine: verl's, in each process.

    Raises:
        ValueError: verl's checkpoints would not have the state; or the one that the run goes on from has none, or that
            of another rule.
    """

    def __init__(self, rule: Controlled, engine: Any) -> None:
        scheduler, manager = getattr(engine, "lr_scheduler", None), getattr(engine, "checkpoint_manager", None)
        if not isinstance(scheduler, LRScheduler) or getattr(manager, "lr_scheduler", None) is not scheduler:
            raise ValueError(
                "a controlled rule needs verl's FSDP engine, whose checkpoints have its state; those of "
                f"{type(engine).__name__} would not"
            )
        for name in ("save_contents", "load_contents"):
            contents = getattr(manager, f"checkpoint_{name}")
            if "extra" not in contents:
                raise ValueError(
                    f"actor_rollout_ref.actor.checkpoint.{name} must have 'extra', where verl keeps the state of a "
                    f"controlled rule, got {list(contents)}"
                )
        kept = getattr(scheduler, NAME, None)
        if scheduler.last_epoch != (0 if kept is None else kept["update"]):  # verl steps it once in an update
            raise ValueError(
                f"the checkpoint of update {scheduler.last_epoch} has no state of a controlled rule; that update was "
                "made without one, and a run cannot go on from there exactly"
            )
        if kept is not None and kept["rule"] != rule.to_config():
            raise ValueError(
                f"the checkpoint has the state of another controlled rule, {kept['rule']}, and cannot go on "
                f"exactly under {rule.to_config()}"
            )
        self.rule, self._scheduler = rule, scheduler
        self.state: State = rule.start() if kept is None else kept["state"]
        self.value = rule.value(self.state)
        self._metrics: Metrics | None = None

    def add(self, metrics: Metrics) -> None:
        """Take the metrics of a micro-batch of the update that runs."""
        self._metrics = metrics if self._metrics is None else self._metrics.merge(metrics)

    def finish(self) -> None:
        """Keep the state after the update.

        What was measured is summed over all ranks. Those of a Ulysses group have the same tokens, which are counted as
        often then; that changes no share and no mean.
        """
        found = {} if self._metrics is None else self._metrics.all_reduce().compute()  # {}: distillation alone
        _, after = self.rule.radius(self.state, found)
        kept = {"rule": self.rule.to_config(), "state": after, "update": self._scheduler.last_epoch}
        setattr(self._scheduler, NAME, kept)
