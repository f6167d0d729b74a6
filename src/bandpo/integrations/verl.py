"""BandPO in verl 0.9: the policy loss `bandpo`. Three settings, here on a command line:

    actor_rollout_ref.actor.policy_loss._target_=bandpo.integrations.verl.BandPOLossConfig
    actor_rollout_ref.actor.policy_loss.loss_mode=bandpo
    '+actor_rollout_ref.actor.policy_loss.trust_region={type: band, divergence: kl, delta: 0.05}'

The entry point of group `verl.plugins` makes the loss known wherever verl is imported; but of a plug-in that does not
load verl tells at debug level only. `_target_` does not depend on it: Hydra imports this module by its name, in the
driver before Ray starts and in every worker, and a failing import ends the run there. The node is checked there too.

The average over tokens, its normalisation over micro-batches and ranks, and the KL and entropy terms are verl's own; an
objective that has others is refused. Log-ratios are clamped to +-20, as in verl's own losses, unless it has a
`max_log_ratio`. verl's `clip_ratio`, `clip_ratio_low`, `clip_ratio_high` and `clip_ratio_c` are not read.

verl hands a policy loss no entropies, no step and no outcomes, but they are in the batch of an update. Only where a
rule asks for more than the current log-probabilities, or the ratio is to the sampler's policy, `TrainingWorker`'s
`train_mini_batch` is wrapped, in each worker, for the length of an update of the actor; see `_watch`. After it the
number of a `Controlled` rule moves; see `verl_context.Controller`.
"""

# verl is not installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import warnings
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.workers.config import ActorConfig, PolicyLossConfig

from ..losses.metrics import Metrics
from ..losses.policy import policy_loss
from ..trust_regions.adaptive import Adaptive
from ..trust_regions.base import find_one
from ..trust_regions.control import Controlled
from . import SHOWN, asked_for, objective_for, say_average, tell
from .control import RadiusController
from .tokens import SHARE, TokenWriter, check_tokens
from .verl_context import HERE, Controller, add_columns, add_mean_weight, known_of

# What verl's own losses clamp log-ratios to.
MAX_LOG_RATIO = 20.0
# What the loss of a micro-batch is shown, beside the tensors that verl hands it.
_KNOWN: ContextVar[dict[str, Any]] = ContextVar("_KNOWN")


# What is logged, and its name in `Metrics.numbers`.
_COUNTS = {
    "tokens": "tokens",
    "sequences": "sequences",
    "clip/high_count": "high",
    "clip/low_count": "low",
    "clip/tail_high_count": "tail_high",
    "clip/good_tail_tokens": "good_tail",
    "cut/high_count": "cut_high",
    "cut/low_count": "cut_low",
    "cut/good_tail_count": "good_tail_high",
    "not_finite/count": "not_finite",
    "dual_clip/count": "dual_clipped",
    "log_ratio/saturated_count": "saturated",
    "kl_old/k1_nats": "kl_old_k1",
    "kl_old/k3_nats": "kl_old_k3",
}


@dataclass
class BandPOLossConfig(PolicyLossConfig):
    """`actor_rollout_ref.actor.policy_loss` with a trust region.

    Args:
        trust_region: the node of a rule or of an `Objective`, or the name of a method such as "gspo"; None is the
            paper's, `{"type": "band", "divergence": "kl", "delta": 0.05}`. (In the place of verl's `clip_ratio_c` an
            objective has a `dual_clip`.)
        diagnostics: log counts under `actor/bandpo/`, which waits for the device once per micro-batch.
        diagnostics_by_probability: the counts of tokens outside once more for each fifth of the old probability.
        anchor: what ratio and bounds are taken against: "old", verl's old log-probabilities, or "sampler", the
            rollout's, which DIS is meant for; with `rollout.calculate_log_probs=true`, and without weights of
            `algorithm.rollout_correction`.
        tokens_path: a folder, the same on all nodes, to write tokens to for `bandpo calibrate`: the old and the
            current log-probability of each, in `tokens-RANK.jsonl`. None: nothing is written.
        tokens_share: of the responses so many are written, each in all mini-batches that it is in.

    Raises:
        ValueError: a node that is none, with the key; a share outside (0, 1]; an objective with an average or a penalty
            of its own; a rule that needs what verl does not have; in the first update a `Controlled` rule whose state
            verl's checkpoints would not keep; a `loss_mode` other than "bandpo", so that these options would do
            nothing.
        RuntimeError: a verl whose updates cannot be watched, where the rule or the anchor needs that.
    """

    trust_region: Any = None
    diagnostics: bool = True
    diagnostics_by_probability: bool = False
    anchor: str = "old"
    tokens_path: str | None = None
    tokens_share: float = SHARE

    def __post_init__(self) -> None:
        if self.loss_mode != "bandpo":
            raise ValueError(
                f"{HERE}.loss_mode must be 'bandpo' beside _target_ {type(self).__name__}, got {self.loss_mode!r}: "
                "that loss reads none of its options"
            )
        for name in ("diagnostics", "diagnostics_by_probability"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{HERE}.{name} must be true or false, got {getattr(self, name)!r}")
        if self.anchor not in ("old", "sampler"):
            raise ValueError(f"{HERE}.anchor must be 'old' or 'sampler', got {self.anchor!r}")
        try:
            check_tokens(self.tokens_path, self.tokens_share)
        except ValueError as error:
            raise ValueError(f"{HERE}.{error}") from None
        try:  # errors show now and not in the first update
            objective = tell(objective_for("verl", self.trust_region, anchor=cast(Any, self.anchor)))
        except ValueError as error:
            raise ValueError(f"{HERE}.trust_region: {error}") from error
        limit = objective.max_log_ratio or MAX_LOG_RATIO
        self.objective = dataclasses.replace(objective, aggregation="none", max_log_ratio=limit)
        self.controlled = find_one(objective.trust_region, Controlled)
        more = {
            "anchor": self.anchor == "sampler",
            "mean_weight": find_one(objective.trust_region, Adaptive) is not None,
            "entropies": self.controlled is not None and self.controlled.measure == "entropy",
            "step": self.tokens_path is not None,
        }
        asked = asked_for(objective, {*SHOWN["verl"]} - {"mean_weight"})
        self.asked = asked | {name for name, is_so in more.items() if is_so}
        if self.asked:
            _watch()

    def surrogate(
        self,
        log_prob: Tensor,
        old_log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        rollout_is_weights: Tensor | None,
    ) -> tuple[Tensor, Metrics]:
        """Compute the loss of each token, (B, T), and the metrics of the batch."""
        known = dict(_KNOWN.get({}))
        if missing := self.asked - known.keys():
            raise RuntimeError(
                f"{HERE}: {sorted(missing)} must be known, but verl called the loss outside of an update by "
                "TrainingWorker.train_mini_batch, where they are"
            )
        if self.anchor == "sampler":
            if rollout_is_weights is not None:
                raise ValueError(
                    f"{HERE}.anchor = 'sampler' and the weights of algorithm.rollout_correction count the same ratio "
                    "twice; set algorithm.rollout_correction.rollout_is=null"
                )
            old_log_prob = known.pop("anchor")
        controller: RadiusController | None = known.pop("controller", None)
        if known.pop("writes", False):
            writer = _writer(cast(str, self.tokens_path), self.tokens_share)
            step = max(known["step"], writer.step or 0)  # a batch of stragglers is not a resumed run
            writer.write(step, old_log_prob, log_prob, advantages, response_mask, batch=step)
        loss, metrics = policy_loss(
            log_prob,
            old_log_prob,
            advantages,
            response_mask,
            self.objective,
            rollout_is_weights=rollout_is_weights,
            metrics="all" if self.diagnostics or controller is not None else None,
            **known,
        )
        if controller is not None:
            controller.add(metrics)
        return loss, metrics


@register_policy_loss("bandpo")
def bandpo_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: ActorConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Compute the loss as verl calls it, and what it logs; see `logged` for the names.

    Args:
        old_log_prob: (B, T), like all tensors here; float32, or what the actor's autocast leaves of it.
        log_prob: the only one with a gradient.
        advantages: of each token.
        response_mask: bool.
        loss_agg_mode: `actor.loss_agg_mode`.
        config: its `policy_loss` holds the options (without a `BandPOLossConfig`: the defaults), and its
            `global_batch_info` the numbers that the average over micro-batches and ranks needs.
        rollout_is_weights: from verl's rollout correction.
    """
    if config is None:
        raise ValueError("config must be verl's ActorConfig, got None")
    options = config.policy_loss if isinstance(config.policy_loss, BandPOLossConfig) else _defaults()
    say_average("verl", options.trust_region, loss_agg_mode, print)  # Ray's workers show no warnings of loggers
    per_token, metrics = options.surrogate(log_prob, old_log_prob, advantages, response_mask, rollout_is_weights)
    loss = agg_loss(
        loss_mat=per_token, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info
    )
    half = [x.dtype for x in (log_prob, old_log_prob) if torch.finfo(x.dtype).bits < 32]
    if half:
        _warn_of_half_precision(half[0])
    out = {"actor/bandpo/half_precision": float(bool(half))}
    if (value := _KNOWN.get({}).get("controlled")) is not None:
        out["actor/bandpo/controlled"] = value  # the same in all micro-batches, of which verl takes the mean
    if options.diagnostics:
        out |= logged(metrics, by_probability=options.diagnostics_by_probability)
    return loss, out


def logged(metrics: Metrics, *, by_probability: bool = False) -> dict[str, float]:
    """Return counts and sums under `actor/bandpo/`, and three fractions under verl's own names.

    verl logs the mean of a number over micro-batches, ranks and mini-batches, each with the same weight however many
    tokens it has; a loss can ask for no sum. So a fraction of all tokens is the ratio of two logged numbers, e.g.
    `clip/count` / `tokens`. That is exact if all mini-batches of a step have equally many micro-batches; else (dynamic
    batch sizes) a mini-batch counts inversely to their number. Names hold no "max", "min", "sum" or "total": verl would
    reduce those in another way. docs/run.md says what each is; by probability there is `.../p0.2` and so on, by the
    upper edge. `actor/pg_clipfrac` (cut tokens), `actor/pg_clipfrac_lower` (dual clip) and `actor/ppo_kl` (k1) are
    fractions within a micro-batch, as verl's losses log them; 0 without tokens.
    """
    x = metrics.numbers()
    out = {name: x.get(number, 0.0) for name, number in _COUNTS.items()} | {"clip/count": x["high"] + x["low"]}
    for name, counts in metrics.by_probability().items() if by_probability else ():
        out |= {f"{what if what == 'tokens' else f'{what}_count'}/{name}": n for what, n in counts.items()}
    tokens = max(x["tokens"], 1)
    ours = {f"actor/bandpo/{name}": value for name, value in out.items()}
    return ours | {
        "actor/pg_clipfrac": (x["cut_high"] + x["cut_low"]) / tokens,
        "actor/pg_clipfrac_lower": out["dual_clip/count"] / tokens,
        "actor/ppo_kl": x["kl_old_k1"] / tokens,
    }


def _watch() -> None:
    """Show rules the contents of verl's batches from now on; once in a process.

    An update of the actor is one call of `TrainingWorker.train_mini_batch` with all of a rank's responses, and the
    worker's own `loss_fn` is called with each micro-batch and what the model gave. Where no worker has been loaded, as
    in verl's driver, there is nothing to do.
    """
    worker: Any = getattr(sys.modules.get("verl.workers.engine_workers"), "TrainingWorker", None)
    if worker is None or hasattr(inner := worker.train_mini_batch, "shows_rules_the_batch"):
        return
    if list(inspect.signature(inner).parameters) != ["self", "data"]:
        raise RuntimeError(
            f"{HERE}: this verl's TrainingWorker.train_mini_batch{inspect.signature(inner)} is not the one that is "
            "known here; without it a rule can be shown the current log-probabilities only, and the anchor be old only"
        )

    @functools.wraps(inner)  # with the attributes by which verl dispatches it
    def train_mini_batch(self: Any, data: Any) -> Any:
        loss = self.loss_fn
        config = getattr(loss, "keywords", {}).get("config")
        options = getattr(config, "policy_loss", None)
        if not isinstance(options, BandPOLossConfig) or not options.asked:
            return inner(self, data)
        group = self.engine.get_data_parallel_group()
        controller = None if options.controlled is None else Controller(options.controlled, self.engine)
        step = add_columns(data, options.asked, group)
        if "mean_weight" in options.asked:
            add_mean_weight(data, options.objective.trust_region, options.asked, step, group)

        def watched(**named: Any) -> Any:
            if "model_output" not in named:  # distillation's, of logits
                return loss(**named)
            known = known_of(options.asked, named["model_output"], named["data"], step)
            if controller is not None:
                known |= {"controlled": controller.value, "controller": controller}
            if options.tokens_path is not None:  # ranks that share responses have the same ones: one of them writes
                known["writes"] = self.engine.is_mp_src_rank_with_outputs()
            token = _KNOWN.set(known)
            try:
                return loss(**named)
            finally:
                _KNOWN.reset(token)

        self.loss_fn = watched
        try:
            out = inner(self, data)
        finally:
            self.loss_fn = loss
        if controller is not None:
            controller.keep()
        return out

    cast(Any, train_mini_batch).shows_rules_the_batch = True
    worker.train_mini_batch = train_mini_batch


@functools.cache
def _defaults() -> BandPOLossConfig:
    return BandPOLossConfig(loss_mode="bandpo")


@functools.cache
def _writer(folder: str, share: float) -> TokenWriter:
    """Return this process's writer."""
    return TokenWriter(folder, share, torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)


@functools.cache
def _warn_of_half_precision(dtype: torch.dtype) -> None:
    """Warn of half precision, once in each process. No logger: in Ray's workers the root logger shows errors only."""
    warnings.warn(
        f"log-probabilities reach the loss as {dtype}, of two or three digits: ratios are wrong by percents, and so is "
        "what is clipped. Set +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32, or let "
        "flash-attn's cross-entropy compute them in float32 (actor/bandpo/half_precision is 1 while they come so)",
        stacklevel=2,
    )
