"""Describe each trainer, and fit objectives to it. Each module here imports one framework, this file none.

An objective that sets what a trainer does itself, or that needs what it cannot do, is refused by name.
"""

import copy
import dataclasses
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from ..bounds import Bounds
from ..losses.aggregation import Aggregation
from ..losses.metrics import Metrics
from ..losses.nodes import method_or_objective
from ..losses.objective import Method, Objective
from ..losses.policy import policy_loss
from ..notation import describe
from ..numerics import without_looking
from ..trust_regions.base import Context, Region

RULE = logging.getLogger("bandpo.rule")
# What makes verl's log-probabilities float32.
VERL_IN_FLOAT32 = (
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32 (verl 0.7: fsdp_config.dtype=float32 "
    "with the older workers), or flash-attn's cross-entropy, which computes them in float32"
)
# Of `Metrics.compute`. Trainers log the mean over their calls: a share of all tokens is the ratio of two of these.
COUNTS = (
    "tokens",
    "sequences",
    "clip/count",
    "clip/tail_high_count",
    "clip/good_tail_tokens",
    "cut/good_tail_count",
)
# What every trainer takes, see `objective_for`.
Rule = Mapping[str, Any] | str | Region | Method | Objective
Anchor = Literal["old", "sampler"]
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Describe what a trainer does itself, and what it shows a rule (docs/hosts.md).

    >>> mine = Trainer(penalty="kl_coef", average="the mean over tokens", clamps=True)
    >>> mine.refused("mine")["dual_clip"]
    'mine clamps the ratio of each token, and can do nothing else'

    Args:
        penalty: its KL penalty, which it does not take from an objective.
        average: its average over tokens, or the setting of it.
        averages: the values of that setting, with their names here; of two with one name the first is suggested.
        sampler: the setting under which the ratio is to the sampler's policy; "" if it always is, None if never.
        clamps: it keeps its own loss, and clamps the ratio of each token between two bounds.
        lacks: what it cannot give a rule of the response mask and the advantages, all that a trainer gives.
        dual_clip: its setting of a dual clip, if it clamps and has one.
    """

    penalty: str
    average: str
    averages: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    sampler: str | None = None
    clamps: bool = False
    lacks: tuple[str, ...] = ()
    dual_clip: str = ""

    def refused(self, name: str) -> dict[str, str]:
        """Return the refused fields of an objective, with the reasons."""
        own = {"beta": f"the KL penalty is {name}'s own, {self.penalty}"}
        own["aggregation"] = f"the average is {name}'s own, {self.average}"
        beyond = (
            ("surrogate", "ratio", "dual_clip", "max_log_ratio", "positive_weight") if self.clamps else ()
        )
        own |= dict.fromkeys(beyond, f"{name} clamps the ratio of each token, and can do nothing else")
        return own | (
            {"dual_clip": f"the dual clip is {name}'s own, {self.dual_clip}"} if self.dual_clip else {}
        )

    def provides(self, name: str) -> bool:
        """Check that a rule may require this of `Context`."""
        return name in ("response_mask", "advantages") and name not in self.lacks


_TOKEN, _SEQUENCE, _NORM = "token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")  # of TRL and Liger: those that clamp each token's ratio
_TYPES = {
    "grpo": _SEQUENCE,
    "dapo": _TOKEN,
    "bnpo": _TOKEN,
    "cispo": _TOKEN,
    "dr_grpo": _NORM,
    "luspo": "seq-mean-token-sum",
}
_MODES = {name: name for name in get_args(Aggregation)[:-1]}
_TORCHRL = {"token_mean": _TOKEN, "prompt_mean": _SEQUENCE, "none": "none"}
_SKYRL = {"token_mean": _TOKEN, "sequence_mean": _SEQUENCE, "seq_mean_token_sum_norm": _NORM}
_TOKENS = "the mean over tokens"
_MEAN, _RLINF = {_TOKENS: _TOKEN}, {name: name for name in (_TOKEN, _SEQUENCE, "seq-mean-token-sum")}
_Clamp = partial(Trainer, clamps=True)
_SLIME = _Clamp(
    "--kl-loss-coef",
    "calculate_per_token_loss",
    {"False": _SEQUENCE, "True": _TOKEN},
    "--use-rollout-logprobs",
    lacks=("response_mask",),  # ranks may share a response
    dual_clip="--eps-clip-c",
)
TRAINERS = {
    "TRL": Trainer("beta of GRPOConfig", "loss_type", _TYPES, "anchor='sampler' of BandPOConfig"),
    "axolotl": Trainer("trl.beta", "trl.loss_type", _TYPES, "anchor: sampler in its YAML"),
    "unsloth": _Clamp("beta", "loss_type", _TYPES, lacks=("response_mask",), dual_clip="delta"),
    "Liger": _Clamp("beta", "loss_type", _TYPES),
    "torchrl": Trainer("kl_to_ref_coeff", "aggregation", _TORCHRL, sampler="", clamps=True),
    "verl": Trainer(
        "actor.use_kl_loss and kl_loss_coef",
        "actor.loss_agg_mode",
        _MODES,
        "actor.policy_loss.anchor=sampler",
    ),
    "SkyRL": Trainer(
        "trainer.algorithm.use_kl_loss and kl_loss_coef",
        "trainer.algorithm.loss_reduction",
        _SKYRL,
        sampler="anchor='rollout' of register_bandpo_loss",
    ),
    "tinker": Trainer(
        "made beside the loss, which is given no reference policy", "the sum over tokens", sampler=""
    ),
    "prime-rl": Trainer("kl_tau", _TOKENS, _MEAN, sampler=""),
    "rLLM": Trainer(
        "which its losses leave out",
        "algorithm.loss_agg_mode",
        _RLINF,
        sampler="algorithm.loss_params.anchor=sampler",
    ),
    "Trinity-RFT": _Clamp("kl_loss_fn", "loss_agg_mode", _MODES, sampler="", dual_clip="clip_ratio_c"),
    "xtuner": _Clamp("kl_loss_coef", _TOKENS, _MEAN, dual_clip="clip_ratio_c"),
    "RLinf": _Clamp("kl_beta", "algorithm.loss_agg_func", _RLINF, dual_clip="algorithm.clip_ratio_c"),
    "miles": _SLIME,
    "slime": _SLIME,
    "torchtitan": _Clamp("which its losses leave out", _TOKENS, _MEAN, sampler=""),
    "AsyncGRPO": _Clamp("which its loss leaves out", _TOKENS, _MEAN, sampler=""),
}


def trainers_that_run(node: Rule, *, anchor: Anchor = "old") -> dict[str, str]:
    """Return the reason why each trainer cannot do the objective, "" where it can."""
    reasons = dict.fromkeys(TRAINERS, "")
    for host in TRAINERS:
        try:
            objective_for(host, node, anchor=anchor)
        except ValueError as error:
            reasons[host] = str(error)
    return reasons


def objective_for(
    host: str, node: Rule | None, *, anchor: Anchor = "old", average: str | None = None
) -> Objective:
    """Return the objective of a node or a method's name, for one trainer.

    >>> objective_for("verl", "gspo").ratio
    'sequence-mean'

    Args:
        host: the trainer.
        node: as for `bandpo.objective`; None is the paper's.
        anchor: what the trainer was told to take the ratio against, where that can be chosen (`Trainer.sampler`).
        average: the value of the trainer's own setting (`Trainer.averages`), where it is known. The objective that is
            returned has none: a method's is left out (see `say_average`), and one that was written must be that.

    Raises ValueError, with the reason, for what the trainer cannot do.
    """
    its, whose = TRAINERS[host], ""
    value = method_or_objective(Objective() if node is None else node)
    if isinstance(value, Method):
        whose = f"method {value.name!r}: "
        if value.from_sampler and (its.sampler is None or (its.sampler and anchor != "sampler")):
            how = (
                f"; set {its.sampler}"
                if its.sampler
                else f", which {host} does not have; call policy_loss in your own loop, with {value.arguments}"
            )
            raise ValueError(f"{whose}its ratio is to the sampler's policy{how}")
        value = value.without_average
    elif value.aggregation == its.averages.get(average or its.average, ""):
        value = dataclasses.replace(value, aggregation=None)
    changed, refused = value.changed(), its.refused(host)
    for name in [each for each in refused if each in changed]:
        setting = _setting_of(its, changed[name]) if name == "aggregation" else ""
        reason = refused[name] + (setting and f", of which {setting} is that average")
        allowed = getattr(Objective, name)
        raise ValueError(
            f"{whose}{name} must be {allowed!r} through {host}, got {changed[name]!r}: {reason}"
        )
    for name, rule in value.trust_region.all_required().items():
        if not its.provides(name):
            hosts = " or ".join(each for each in TRAINERS if TRAINERS[each].provides(name))
            instead = f"train with {hosts}" if hosts else "call policy_loss in your own loop"
            raise ValueError(
                f"{whose}{rule} needs {name}, which {host} does not give a rule; take another rule, or {instead}"
            )
    return value


def prepare_objective(
    host: str, node: Rule | None, *, anchor: Anchor = "old", average: str | None = None
) -> Objective:
    """Return `objective_for` a trainer without its average, and say what it allows."""
    objective = log_rule(objective_for(host, node, anchor=anchor, average=average))
    say_average(host, node, average)
    return dataclasses.replace(objective, aggregation="none")


def bounds_of(region: Region, old: Tensor, advantages: Tensor, mask: Tensor) -> Bounds:
    """Compute the bounds of a batch (B, T) for a trainer with a clamp."""
    with without_looking():
        return region.bounds(torch.where(mask, old.detach(), -1.0), Context(mask, advantages))


class Limits:
    """Put the bounds of each token where a trainer's loss has two numbers.

    They are named `low` and `high`. The rest is as for `objective_for`, which refuses what the trainer cannot do.
    """

    def __init__(
        self,
        host: str,
        node: Rule | None,
        low: str,
        high: str,
        *,
        anchor: Anchor = "old",
        average: str | None = None,
    ) -> None:
        self.region = prepare_objective(host, node, anchor=anchor, average=average).trust_region
        self.low, self.high = low, high

    def __call__(self, owner: T, old: Tensor, advantages: Tensor, mask: Tensor | None = None) -> T:
        """Return a copy of the dict or object that has the numbers, with bounds."""
        counts = ~old.isnan() if mask is None else mask.bool() & ~old.isnan()
        bounds = bounds_of(self.region, old, advantages, counts)
        owner = copy.copy(owner)
        named = owner if isinstance(owner, dict) else vars(owner)
        named.update({self.low: bounds.eps_low, self.high: bounds.eps_high})
        return owner


def refuse_replaced(host: str, settings: Iterable[str], limits: Iterable[str]) -> None:
    """Raise ValueError for limits of a trainer among its settings. The trust region replaces them."""
    replaced = sorted({*settings} & {*limits})
    if replaced:
        raise ValueError(
            f"{host}: trust_region replaces {replaced}; remove them. A plain clip is bandpo.Clip"
        )


def slime_loss(
    host: str,
    theirs: Callable[..., Any],
    without_clip: tuple[str, ...],
    args: Any,
    batch: Any,
    logits: Tensor,
    reduce: Any,
) -> Any:
    """Compute the loss of slime, or of miles, with a trust region per token. ValueError for what it cannot do.

    It is `theirs`, which clamps by two numbers of `args`, but under the estimators `without_clip`.
    """
    if args.advantage_estimator in without_clip:
        raise ValueError(
            f"{host}: --advantage-estimator {args.advantage_estimator} has no clip per token; take grpo"
        )
    average = None if args.custom_pg_loss_reducer_function_path else str(args.calculate_per_token_loss)
    anchor, old = ("sampler", "rollout_log_probs") if args.use_rollout_logprobs else ("old", "log_probs")
    limits = Limits(
        host,
        getattr(args, "trust_region", None),
        "eps_clip",
        "eps_clip_high",
        anchor=anchor,
        average=average,
    )
    args = limits(args, torch.cat(batch[old]), torch.cat(batch["advantages"]))
    return theirs(args, batch, logits, reduce)


def loss_per_token(
    host: str, node: Rule | None, *, anchor: Anchor = "old"
) -> Callable[..., tuple[Tensor, Metrics]]:
    """Return `policy_loss` of an objective, for a trainer that averages itself.

    Log-ratios are clamped to +-20, as trainers do, unless the objective has a `max_log_ratio`.
    """
    objective = prepare_objective(host, node, anchor=anchor)
    objective = dataclasses.replace(objective, max_log_ratio=objective.max_log_ratio or 20.0)
    return partial(policy_loss, objective=objective, metrics="all")


def log_rule(value: Objective, more: str = "") -> Objective:
    """Say what the rule allows; warn if an epsilon looks like a bound."""
    once(RULE.warning, f"{describe(value)}{more}")  # of a lower level nothing is shown unless asked for
    suspicion = value.trust_region.suspicion()
    if suspicion:
        once(warnings.warn, suspicion)
    return value


def say_average(
    host: str, node: Any, average: str | None, say: Callable[[str], None] = RULE.warning
) -> None:
    """Say which average a trainer takes for a method, and whether it is its paper's.

    `average` is the value of the trainer's own setting (`Trainer.averages`), or None. A rule or an objective has none.
    """
    named, its = None if node is None else method_or_objective(node), TRAINERS[host]
    if isinstance(named, Method):
        wanted, actual = named.objective.aggregation, its.averages.get(average or its.average)
        by = its.average if average in (None, its.average) else f"{its.average}={average!r}"
        told = "as its paper does" if wanted else "it names a rule and no average"
        if wanted not in (None, actual):
            setting = _setting_of(its, wanted)
            told = f"its paper takes {wanted!r}{setting and f', which is {setting}'}"
        once(say, f"{named.name}: {host} averages by {by}{f' ({actual})' if actual else ''}; {told}")


def _setting_of(its: Trainer, average: str) -> str:
    """Return the setting of a trainer for an average, or ""."""
    settings = (value for value, of in its.averages.items() if of == average and value != its.average)
    return next((f"{its.average}={value!r}" for value in settings), "")


_SAID: set[Any] = set()


def once(say: Callable[[str], Any], words: str) -> None:
    """Say something once in a run, by its first process."""
    if os.environ.get("RANK", "0") == "0" and (say, words) not in _SAID:
        say(words)
        _SAID.add((say, words))
