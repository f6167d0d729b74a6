"""Callback that ends TRL's training at the first optimizer step after which a loss or a weight is not finite."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from ..errors import UserError
from ..numerics import not_finite

_SMALLER = "Try a smaller learning_rate or max_grad_norm, bf16 or float32 instead of fp16, or rewards of a smaller size"


class NotFiniteError(UserError):
    """Numbers of a training are not finite; the message has the step, the last whole checkpoint, and what to change."""


class FiniteGuard(TrainerCallback):
    """Looks at every trained weight and loss after each optimizer step, and at all weights before the first.

    The weights, and not the gradients: a gradient that is not finite makes a weight so in the same step unless a loss
    scaler skips it, and a step may do it without one. It costs one pass over the weights and two waits for the device
    in a step. Each process looks at its own weights, or its shard of them, and all of them end together.

    Attributes:
        stops: an error ends the training; else there is a warning, and it goes on.
        sound: all weights were finite when last looked at.
        skipped: steps that a loss scaler has skipped since the last row.
        last_whole: finds the checkpoint to go on from.
    """

    def __init__(self, accelerator: Any, stops: bool) -> None:
        self.accelerator, self.stops, self.sound, self.skipped = accelerator, stops, True, 0
        self.last_whole: Callable[[Any, Any], Path | None] = _last_whole
        self._fine: Tensor | None = None
        self._scale = 0.0
        self._warned: set[str] = set()

    def add(self, loss: Tensor) -> None:
        """Take the loss of a micro-batch; nothing waits for the device here."""
        fine = loss.detach().isfinite().all()
        self._fine = fine if self._fine is None else self._fine & fine

    def on_train_begin(self, args, state, control, model=None, **kwargs) -> None:
        self._fine, self._scale = None, self._scale_now()
        change = _SMALLER if state.global_step else "Take a model whose weights are finite, or mend this one"
        self._look(args, state, _shards(model, every=True), change)

    def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
        """Check the step before TRL logs and saves."""
        before, self._scale = self._scale, self._scale_now()
        # A fused optimizer skips by itself, unseen by accelerate; the scale falls then, and only then.
        if self.accelerator.optimizer_step_was_skipped or self._scale < before:
            self.skipped, self._fine = self.skipped + 1, None
        self._look(args, state, _shards(model), _SMALLER)

    def _scale_now(self) -> float:
        """Return the factor by which the loss scaler multiplies losses; 0 without one."""
        return 0.0 if self.accelerator.scaler is None else self.accelerator.scaler.get_scale()

    def _look(self, args: Any, state: Any, shards: Iterator[tuple[str, Tensor]], change: str) -> None:
        names = not_finite(shards)
        flags = torch.zeros(2, device=self.accelerator.device)
        flags[0] = len(names)
        if self._fine is not None:
            flags[1], self._fine = ~self._fine, None
        weights, lost = self.accelerator.reduce(flags, reduction="sum").tolist()
        what = ["the loss"] if lost else []
        self.sound = not weights
        if weights:
            what.append(f"weights ({len(names)}, first {names[0]})" if names else "weights of another process")
            if not self.stops:
                args.save_total_limit = None  # TRL would delete good checkpoints for those that come
        if what:
            self.stop(args, state, f"{' and '.join(what)} {'are' if weights else 'is'} not finite", change)

    def stop(
        self, args: Any, state: Any, what: str, change: str = _SMALLER, *, step: int | None = None, must: bool = False
    ) -> None:
        """End the training by a NotFiniteError; or warn once that it goes on, unless it `must` end."""
        step = state.global_step if step is None else step
        when = f"step {step}" if step else "before the first step"
        if not self.stops and not must:
            if what not in self._warned:
                warnings.warn(f"{when}: {what}; stop_if_not_finite is False", stacklevel=2)
            self._warned.add(what)
            return
        last = self.last_whole(args, state)
        where = "the folder has no whole checkpoint" if last is None else f"the last whole checkpoint is {last}"
        go_on = "" if must else "; stop_if_not_finite=False goes on all the same"
        raise NotFiniteError(f"{when}: {what}; {where}. {change}{go_on}")

    def check_rewards(self, args: Any, state: Any, rewards: Mapping[str, Tensor], scores: Tensor, size: int) -> None:
        """Check that advantages can be computed from the rewards of a generation, of all processes.

        Args:
            args: of the trainer.
            state: of the trainer.
            rewards: of each function by its name, (B,); NaN: it gave none.
            scores: what they add up to, (B,); NaN: no function gave one.
            size: of a group.
        """
        groups = torch.stack([*rewards.values(), scores])
        groups = groups.view(len(groups), -1, size if args.scale_rewards == "group" else len(scores))
        spread = (groups - groups.nanmean(-1, keepdim=True)).square().nansum(-1)
        if bad := [name for name, values in rewards.items() if values.isinf().any()]:
            what = f"a reward of {bad[0]!r} is infinite, or larger than float32 can hold (3.4e38)"
        elif scores.isnan().all():
            names = " and ".join(map(repr, rewards))
            what = f"no completion of the batch has a reward: {names} gave None or NaN for all"
        elif not spread.isfinite().all():
            what = f"the deviation of a group's rewards overflows float32: they are up to {scores.abs().max():.2g}"
        else:
            return
        self.stop(args, state, what, "Mend the reward function, or scale it near 1", step=state.global_step + 1)


def _shards(model: Any, every: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Return this process's shard of each trained weight, or of every weight."""
    for name, parameter in model.named_parameters():
        if every or parameter.requires_grad:
            shard = getattr(parameter, "ds_tensor", parameter)  # ZeRO-3
            yield name, getattr(shard, "to_local", lambda shard=shard: shard)()  # FSDP2


def _last_whole(args: Any, state: Any) -> Path | None:
    """Return TRL's newest whole checkpoint; TRL writes the state of the trainer last."""
    found = {
        int(path.parent.name[11:]): path.parent
        for path in Path(args.output_dir).glob("checkpoint-*/trainer_state.json")
        if path.parent.name[11:].isdigit()
    }
    return found.get(max((step for step in found if step <= state.global_step), default=-1))
