"""BandPO in TRL: `BandPOTrainer` is `GRPOTrainer` with a trust region instead of two epsilons.

TRL clamps the ratio at 1 - self.epsilon_low and 1 + self.epsilon_high. For the length of one loss these two attributes
hold the bounds of each token; everything else, the loss included, is TRL's own. Metrics go to TRL's log under
`bandpo/`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from ..losses import MAX_LOG_RATIO
from ..metrics import Metrics
from ..rules import Band, Clip
from ..trust_regions import Context, TrustRegion
from ..trust_regions import trust_region as as_trust_region

logger = logging.getLogger(__name__)

# The losses that clamp the ratio of each token between the two epsilons.
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")


@dataclass
class BandPOConfig(GRPOConfig):
    """`GRPOConfig` with a trust region as a config node; for code, pass a region to `BandPOTrainer` instead.

    Args:
        trust_region: a node such as `{"type": "band", "divergence": "kl", "delta": 0.05}`, or its JSON text. Not to be
            confused with `delta`, which in TRL is the upper clip of the two-sided GRPO loss (arXiv 2505.07291) and
            keeps that meaning.
    """

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*GRPOConfig._VALID_DICT_FIELDS, "trust_region"]

    trust_region: dict | str | None = field(
        default=None,
        metadata={"help": "Node of the trust region, e.g. {'type': 'band', 'divergence': 'kl', 'delta': 0.05}."},
    )


class BandPOTrainer(GRPOTrainer):
    """GRPO with a trust region per token (eq:bandpo_full), for the loss types grpo, bnpo, dr_grpo and dapo.

    A rule acts only where a batch is used for several optimizer steps: set `steps_per_generation` (or `num_iterations`)
    so that their product exceeds `gradient_accumulation_steps`; the paper takes 4 steps a batch. With TRL's defaults
    there is one step, the ratio is 1, and no rule does anything: the trainer says so at start.

    Args:
        model: as for `GRPOTrainer`, like everything not named here.
        reward_funcs: see TRL.
        args: a `GRPOConfig` or `BandPOConfig`; `epsilon` and `epsilon_high` must keep their defaults.
        trust_region: the rule, or its config node; by default that of `BandPOConfig`, else `Band("kl", 0.05)`.

    Raises:
        ValueError: the rule is given twice, or the settings leave no bounds per token: sequence-level importance
            sampling, a loss without a hard clip (cispo, sapo, vespo, luspo), Liger kernels; or the sampler's
            temperature is not that of the log-probabilities.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *positional: Any,
        trust_region: TrustRegion | Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        node = getattr(args, "trust_region", None)
        if node is not None and trust_region is not None:
            raise ValueError("trust_region is given twice: to BandPOTrainer and in BandPOConfig; keep one")
        given = node if trust_region is None else trust_region
        self.trust_region: TrustRegion = Band() if given is None else as_trust_region(given)
        self._clip_metrics: dict[str, Metrics] = {}
        self._loss_inputs: dict[str, Any] | None = None
        if args is not None:
            check_config(args, self.trust_region)
        super().__init__(model, reward_funcs, args, *positional, **named)
        if args is None:
            check_config(cast(GRPOConfig, self.args), self.trust_region)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        epsilons = self.epsilon_low, self.epsilon_high
        self._loss_inputs = inputs
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._loss_inputs = None
            self.epsilon_low, self.epsilon_high = epsilons

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        out = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._loss_inputs is not None:  # asked for by the loss, which reads the epsilons next
            # (log-probabilities, entropies); TRL 1.7 appended a third item.
            self._set_bounds(self._loss_inputs, out[0].detach(), out[1])
        return out

    @torch.no_grad()
    def _set_bounds(self, inputs: dict[str, Any], logps: Tensor, entropies: Tensor | None) -> None:
        mask = inputs["completion_mask"].bool()
        if "tool_mask" in inputs:
            mask = mask & inputs["tool_mask"].bool()
        # Without stored log-probabilities the batch is on policy: TRL takes the current ones, and so do we.
        stored = inputs.get("old_per_token_logps")
        old_logps = torch.where(mask, (logps if stored is None else stored).float(), -1.0)
        advantages = inputs["advantages"]
        advantages = (advantages[:, None] if advantages.dim() == 1 else advantages).expand_as(old_logps)
        context = Context(
            response_mask=mask,
            entropies=None if entropies is None else entropies.detach(),
            advantages=advantages,
            positions=mask.cumsum(-1) - 1,
            step=self.state.global_step,
        )
        bounds = self.trust_region.bounds(old_logps, context)
        self.epsilon_low, self.epsilon_high = bounds.eps_low, bounds.eps_high

        log_ratio = torch.where(mask, logps.float() - old_logps, 0.0)
        sums = {"saturated": (log_ratio.abs() > MAX_LOG_RATIO).sum()}
        if entropies is not None:
            sums |= {"entropy": torch.where(mask, entropies.float(), 0.0).sum(), "entropy_tokens": mask.sum()}
        if bounds.capped is not None:
            sums["capped"] = (bounds.capped & mask).sum()
        log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        metrics = Metrics.of(log_ratio, bounds.clamp(log_ratio), old_logps, advantages, mask, sums)
        mode = self._mode()
        known = self._clip_metrics.get(mode)
        self._clip_metrics[mode] = metrics if known is None else known.merge(metrics)

    def _mode(self) -> str:
        return "train" if cast(torch.nn.Module, self.model).training else "eval"

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add our metrics, summed over all micro-batches and ranks since the last log, under `bandpo/`.

        With several processes all of them must call it, as the trainer does: the sums are reduced here.
        """
        mode = self._mode()
        metrics = self._clip_metrics.pop(mode, None)
        if metrics is not None:
            if torch.distributed.is_initialized():
                metrics = metrics.all_reduce()
            prefix = "bandpo/" if mode == "train" else "eval_bandpo/"
            # Undefined values (a share of nothing) are left out: trackers warn about NaN.
            logs |= {prefix + name: value for name, value in metrics.compute().items() if value == value}
        super().log(logs, start_time)


def check_config(args: GRPOConfig, region: TrustRegion) -> None:
    """Raise ValueError for settings under which the region cannot act as written, warn where it cannot act at all."""
    if args.epsilon != 0.2 or args.epsilon_high is not None:
        raise ValueError(
            f"epsilon = {args.epsilon} and epsilon_high = {args.epsilon_high} beside a trust region are two rules; "
            "leave them at their defaults (0.2, None) and pass bandpo.Clip(eps_low, eps_high) as the trust region"
        )
    if args.loss_type not in LOSS_TYPES:
        raise ValueError(
            f"loss_type must be one of {list(LOSS_TYPES)} for a trust region per token, got {args.loss_type!r}"
        )
    if args.importance_sampling_level != "token":
        raise ValueError(
            "importance_sampling_level must be 'token' for a trust region per token, got "
            f"{args.importance_sampling_level!r}: one ratio per sequence has no token probability to take bounds from"
        )
    for name in ("use_liger_kernel", "use_liger_loss"):  # the latter until TRL 0.27
        if getattr(args, name, False):
            raise ValueError(f"{name} must be False beside a trust region (deprecated in TRL, and not tested here)")
    sampler = cast(dict[str, Any], args.generation_kwargs or {}).get("temperature", args.temperature)
    if not args.temperature > 0 or sampler != args.temperature:
        raise ValueError(
            f"temperature must be positive and the sampler's own: log-probabilities are taken at temperature "
            f"{args.temperature}, tokens sampled at {sampler}; a band depends on the probability sampled from"
        )
    if args.top_p != 1 or args.top_k not in (0, -1, None) or args.min_p or args.repetition_penalty != 1:
        warnings.warn(
            f"top_p = {args.top_p}, top_k = {args.top_k}, min_p = {args.min_p}, repetition_penalty = "
            f"{args.repetition_penalty}: tokens are not sampled from the probabilities that bounds are computed from",
            stacklevel=4,
        )
    if args.delta is not None:
        logger.warning(
            "delta = %s is TRL's two-sided clip (for negative advantages the ratio counts as at most that), no radius",
            args.delta,
        )
    steps = (args.steps_per_generation or 1) * args.num_iterations / args.gradient_accumulation_steps
    if steps <= 1 and region != Clip(1.0, float("inf")):
        warnings.warn(
            "no rule acts: each batch is used for one optimizer step (steps_per_generation "
            f"{args.steps_per_generation} x num_iterations {args.num_iterations} / gradient_accumulation_steps "
            f"{args.gradient_accumulation_steps}), so the ratio is 1 and nothing is clipped; set "
            "steps_per_generation to 4 x gradient_accumulation_steps for 4 steps",
            stacklevel=4,
        )
