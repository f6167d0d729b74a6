"""Show rules the context in TRL, move their numbers, and stop at NaN.

What is known when responses have been scored goes among TRL's outputs under the prefix `bandpo/`, so that TRL shuffles
it and splits it with the responses.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from ..errors import UserError
from ..losses.objective import Objective
from ..numerics import not_finite
from ..trust_regions.adaptive import Adaptive
from ..trust_regions.base import Context, find_one
from .run_state import NAME, RadiusController

PREFIX = "bandpo/"
_SMALLER = "Try a smaller learning_rate or max_grad_norm, bf16 or float32 instead of fp16, or rewards of a smaller size"


class NotFiniteError(UserError):
    """Report that numbers of a training are not finite."""


class FiniteGuard(TrainerCallback):
    """End a training at weights or rewards that are not finite.

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
        change = _SMALLER if state.global_step else "Take a model whose weights are finite, or mend this one"
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
            where = "the folder has no whole checkpoint" if last is None else f"the last whole checkpoint is {last}"
            raise NotFiniteError(f"{when}: {what}; {where}. {change}; stop_if_not_finite=False goes on all the same")
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
    found = {int(path.name[11:]): path for path in paths if path.name[11:].isdigit()}
    return found.get(max((step for step in found if step <= state.global_step), default=-1))


class Controller(RadiusController, TrainerCallback):
    """Keep the state of a `Controlled` rule in TRL's trainer_state.json."""

    row: dict[str, float]  # what is logged of the last step

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.begin(cast(Any, state.stateful_callbacks).get(NAME), state.global_step)
        self.row = {}

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Move the number; TRL logs and saves after this."""
        in_force = self.value
        cast(Any, state.stateful_callbacks)[NAME] = self.finish(state.global_step)
        # Sorted, as a state is that comes from a checkpoint: else the rows of a resumed run would have another order.
        logged = {**self.state, "value": in_force}
        self.row = {f"bandpo/controlled/{name}": logged[name] for name in sorted(logged)}


class ContextTrainer(GRPOTrainer):
    """Keep for a rule what TRL knows of each generation; stop at broken rewards."""

    args: Any  # with the settings of `BandPOConfig`
    objective: Objective
    finite_guard: FiniteGuard
    _needs_old: bool  # entropies of the old policy, which are made only then
    _old_pass: Any  # while responses are scored: what the first pass gave, () before it; else None

    def _calculate_rewards(self, *args: Any, **named: Any) -> Tensor:
        rewards = cast(Tensor, super()._calculate_rewards(*args, **named))  # of all processes
        missing, names = bool(rewards.isnan().all()), self.reward_func_names
        # Beyond 1e19 squares overflow: all advantages would be 0, and nothing learned in silence.
        sizes = rewards if self.args.scale_rewards == "none" else rewards.square()
        bad = [name for name, x in zip(names, sizes.T, strict=True) if missing or x.isinf().any()]
        if bad and cast(torch.nn.Module, self.model).training:
            size = "infinite" if rewards.isinf().any() else "so large that their deviation is infinite"
            what = "None or NaN for all completions" if missing else f"{size} in float32"
            what = f"rewards of {', '.join(bad)} are {what}"
            step, change = self.state.global_step + 1, "Mend the reward function, or scale it near 1"
            self.finite_guard.stop(self.args, self.state, step, what, change)
        return rewards

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **named: Any) -> Any:
        is_first = self._old_pass == () and model is self.model
        if is_first and self._needs_old:
            named["compute_entropy"] = True
        out = super()._get_per_token_logps_and_entropies(model, *args, **named)
        if is_first:
            self._old_pass = out
        return out

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._old_pass = ()
        try:
            outputs = super()._generate_and_score_completions(inputs)
            return outputs | {PREFIX + name: value for name, value in self._of_generation(outputs).items()}
        finally:
            self._old_pass = None

    @torch.no_grad()
    def _of_generation(self, outputs: dict[str, Any]) -> dict[str, Tensor]:
        """Return the context's fields for this process's responses of a generation."""
        known = {"generated_at": torch.tensor(self.state.global_step)}
        if self._needs_old and "old_per_token_logps" in outputs:
            if not self._old_pass or self._old_pass[0] is not outputs["old_per_token_logps"]:
                raise RuntimeError("TRL makes its old log-probabilities in another way: the old entropies are unknown")
            known["old_entropies"] = self._old_pass[1]
        return known | self._mean_weight(outputs, known)

    def _mean_weight(self, outputs: dict[str, Any], known: dict[str, Any]) -> dict[str, Tensor]:
        """Return the divisor of an `Adaptive` radius, over all processes.

        It is missing where TRL makes no pass for what the weights are made of, as on policy, where ratios are 1.
        """
        rule = find_one(self.objective.trust_region, Adaptive)
        if rule is None or (self._needs_old and "old_entropies" not in known):
            return {}
        if (old := self._anchored(outputs).get("old_per_token_logps")) is None:
            return {}
        old, mask = old.float(), self._response_mask(outputs)
        places, entropies = mask.cumsum(-1) - 1, known.get("old_entropies")
        context = Context(mask, positions=places, step=self.state.global_step, old_entropies=entropies)
        sums = rule.sums(torch.where(mask, old, -1.0), context)
        total, count = cast(Tensor, self.accelerator.reduce(sums, reduction="sum")).tolist()
        return {"mean_weight": torch.tensor(total / max(count, 1))}

    def _response_mask(self, inputs: dict[str, Any]) -> Tensor:
        """Return True at the tokens of the policy, not at those of tools."""
        mask = inputs["completion_mask"].bool()
        return mask & inputs["tool_mask"].bool() if "tool_mask" in inputs else mask

    def _known(self, inputs: dict[str, Any], entropies: Tensor | None) -> dict[str, Any]:
        """Return the context's fields for the responses of a loss."""
        known = {name.removeprefix(PREFIX): x for name, x in inputs.items() if name.startswith(PREFIX)}
        known.pop("generated_at", None)
        if self._needs_old and entropies is not None:
            known.setdefault("old_entropies", entropies.detach())  # without its own pass the batch is on policy
        return known | {"entropies": entropies, "step": self.state.global_step}

    def _anchored(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of a loss, with the ratio's anchor as the old policy."""
        if self.args.anchor == "old":
            return inputs
        old, sampled = inputs.get("old_per_token_logps"), inputs.get("sampling_per_token_logps")
        if sampled is None:
            raise ValueError(
                "anchor = 'sampler' needs the sampler's log-probabilities, which TRL (0.27 and later) has of vLLM "
                "(use_vllm=True) and of a rollout_func that returns logprobs"
            )
        # vLLM gives NaN where it has none, which TRL counts as no difference.
        sampled = sampled if old is None else torch.where(sampled.isnan(), old, sampled)
        inputs = inputs | {"old_per_token_logps": sampled}
        if "importance_sampling_ratio" in inputs:  # pi_old over the sampler's policy: it is in the ratio already
            inputs["importance_sampling_ratio"] = torch.ones_like(inputs["importance_sampling_ratio"])
        return inputs
