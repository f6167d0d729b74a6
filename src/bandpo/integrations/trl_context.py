"""Steer a rule's number in TRL, and stop at NaN."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import TrainerCallback

from ..control import Controller
from ..errors import UserError
from ..numerics import not_finite
from ..trust_regions.base import Region

_OURS = "bandpo/"
_NAME = "bandpo_controller"  # of its state in a checkpoint
_SMALLER = "Try a smaller learning_rate or max_grad_norm, bf16 or float32 instead of fp16, or rewards of a smaller size"


class NotFiniteError(UserError):
    """Report that numbers of a training are not finite."""


class FiniteGuard(TrainerCallback):
    """End a training at weights or rewards that are not finite.

        trainer.add_callback(FiniteGuard(trainer.accelerator, stops=True))      # BandPOTrainer has one already

    Trained weights are checked after every optimizer step: a loss or a gradient that is not finite makes them so in the
    same step, unless a loss scaler skips it. Each process checks its own, or its shard, and all of them end together.

    Without `stops` there is a warning only. `sound`: all weights were finite when last looked at. `skipped`: steps that
    a loss scaler has skipped since the last row. `last_whole` finds the checkpoint to go on from.
    """

    def __init__(self, accelerator: Any, stops: bool) -> None:
        self.accelerator, self.stops, self.sound, self.skipped = accelerator, stops, True, 0
        self.last_whole: Callable[[Any, Any], Path | None] = _last_whole
        self._scale = 0.0
        self._warned: set[str] = set()

    def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
        self._scale = self._scale_now()
        change = (
            _SMALLER if state.global_step else "Take a model whose weights are finite, or fix this one"
        )
        self._look(args, state, _shards(model, every=True), change)

    def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
        """Check the step before TRL logs and saves."""
        before, self._scale = self._scale, self._scale_now()
        # A fused optimizer skips by itself, unseen by accelerate; the scale falls then, and only then.
        self.skipped += self.accelerator.optimizer_step_was_skipped or self._scale < before
        self._look(args, state, _shards(model), _SMALLER)

    def _scale_now(self) -> float:
        """Return the factor by which the loss scaler multiplies losses; 0 without one."""
        return 0.0 if self.accelerator.scaler is None else self.accelerator.scaler.get_scale()

    def _look(self, args: Any, state: Any, shards: Iterator[tuple[str, Tensor]], change: str) -> None:
        names = not_finite(shards)
        count = torch.tensor(float(len(names)), device=self.accelerator.device)
        self.sound = not self.accelerator.reduce(count, reduction="sum").item()
        if not self.sound:
            what = f"weights ({len(names)}, first {names[0]})" if names else "weights of another process"
            if not self.stops:
                args.save_total_limit = None  # TRL would delete good checkpoints for those that come
            self.stop(args, state, state.global_step, f"{what} are not finite", change)

    def stop(self, args: Any, state: Any, step: int, what: str, change: str) -> None:
        """End the training by a NotFiniteError, or warn once that it goes on."""
        when = f"step {step}" if step else "before the first step"
        if self.stops:
            last = self.last_whole(args, state)
            where = (
                "the folder has no whole checkpoint"
                if last is None
                else f"the last whole checkpoint is {last}"
            )
            raise NotFiniteError(
                f"{when}: {what}; {where}. {change}; stop_if_not_finite=False continues nevertheless"
            )
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(f"{when}: {what}; stop_if_not_finite is False", stacklevel=2)


def _shards(model: Any, every: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Return this process's shard of each trained weight, or of every weight."""
    for name, parameter in model.named_parameters():
        if every or parameter.requires_grad:
            shard = getattr(parameter, "ds_tensor", parameter)  # ZeRO-3
            yield name, getattr(shard, "to_local", lambda shard=shard: shard)()  # FSDP2


def _last_whole(args: Any, state: Any) -> Path | None:
    """Return TRL's newest whole checkpoint. TRL writes the trainer's state last."""
    paths = [path.parent for path in Path(args.output_dir).glob("checkpoint-*/trainer_state.json")]
    by_step = {int(path.name[11:]): path for path in paths if path.name[11:].isdigit()}
    return by_step.get(max((step for step in by_step if step <= state.global_step), default=-1))


class ControlCallback(TrainerCallback):
    """Steer a number of a trainer's rule by a number of its log, after each step.

        trainer = BandPOTrainer(..., trust_region=Clip(0.2, 0.28))
        trainer.add_callback(ControlCallback(trainer, Controller("eps_high", "entropy", 0.3, low=0.1, high=1.0)))

    The measure is any number of TRL's rows, such as "entropy", or of `Metrics.compute`, such as "clip/fraction". The
    number in force and the smoothed measure are logged as `bandpo/controlled/`. The state is in every checkpoint, and a
    run goes on exactly.

    Raises ValueError, when training begins, unless `logging_steps` is 1, and for a checkpoint without the state or
    with that of another controller.
    """

    def __init__(self, trainer: Any, controller: Controller) -> None:
        self.trainer, self.controller = trainer, controller
        self._first = controller.state_dict(), trainer.trust_region

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Begin at step 0, or go on where the checkpoint of a step was."""
        if args.logging_strategy != "steps" or state.logging_steps != 1:
            raise ValueError(f"logging_steps must be 1 for a Controller, got {args.logging_steps!r}")
        saved = cast(Any, state.stateful_callbacks).get(_NAME)
        if state.global_step != (0 if saved is None else saved["step"]):
            raise ValueError(
                f"the checkpoint of step {state.global_step} has no Controller's state: begin a new run"
            )
        if saved is not None and saved["controller"] != repr(self.controller):
            raise ValueError(f"the checkpoint has the state of another Controller, {saved['controller']}")
        first, rule = self._first
        self.controller.load_state_dict(first if saved is None else saved["state"])
        self._use(self.controller.begin(rule))

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        """Move the number by the row of a step; TRL saves after this."""
        row = logs or {}
        if "loss" not in row:  # an evaluation's, or that of the end
            return
        ours = self.trainer.last_metrics  # with NaN for a share of nothing, which a row leaves out
        numbers = ours | {f"{_OURS}{name}": x for name, x in ours.items()} | row
        self._use(self.controller.step(self.trainer.trust_region, numbers))
        cast(Any, state.stateful_callbacks)[_NAME] = {
            "controller": repr(self.controller),
            "state": self.controller.state_dict(),
            "step": state.global_step,
        }

    def _use(self, rule: Region) -> None:
        self.trainer.replace_rule(rule)
        self.trainer.row_of_rule = {
            f"{_OURS}controlled/{name}": x for name, x in self.controller.state_dict().items()
        }
