"""TRL settings that fit an objective, and the messages about the others.

Two objects here stand where TRL expects a number. `Replaced` is the value of `epsilon` in the settings: TRL's trainer
computes epsilon bounds once, so that arithmetic with it raises. `Instead` is an epsilon of the loss: TRL's
`torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)` takes the tensor that it holds for the sum.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from ..losses.objective import Objective
from ..trust_regions.adaptive import Adaptive
from ..trust_regions.base import Region, find_one
from ..trust_regions.batch import GroupClip
from ..trust_regions.rules import Clip
from . import Rule, objective_for, say_average

if TYPE_CHECKING:  # the doctor asks without TRL
    from trl.trainer.grpo_config import GRPOConfig

logger = logging.getLogger(__name__)

# The losses that clamp the ratio of each token between the two epsilons: averages of what is set there.
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo")
# Losses that TRL has itself, and the one objective that each of them is.
OTHER_LOSSES = {
    "cispo": "TRL's cispo has an upper bound only, so it may stand beside Objective(Clip(1, ...), apply='weight') "
    "only; 'dapo' has the same average",
    "luspo": "TRL's luspo has one ratio per response, so it may stand beside Objective(Clip(...), "
    "ratio='sequence-mean') and importance_sampling_level = 'sequence' only",
}
# The settings of TRL that read what an objective replaces, the advantages or the cap.
REPLACED = {
    "delta": "it caps TRL's ratio; write dual_clip in the objective",
    "off_policy_mask_threshold": "it goes by TRL's advantages; take a mask as the objective's apply",
}
# The settings of the samplers that change what is sampled, and their values that do not, beside None.
NEUTRAL = {
    **dict.fromkeys(("top_p", "typical_p", "repetition_penalty", "num_beams", "guidance_scale"), (1,)),
    **dict.fromkeys(("min_p", "epsilon_cutoff", "eta_cutoff", "presence_penalty", "frequency_penalty"), (0,)),
    **dict.fromkeys(("suppress_tokens", "sequence_bias", "logit_bias", "bad_words", "allowed_token_ids"), ()),
    **dict.fromkeys(("structured_outputs", "vllm_structured_outputs_regex"), ()),
    "no_repeat_ngram_size": (0,),
    "top_k": (0, -1),
    "do_sample": (True,),
}
# Settings of a trainer that are read once, by the rule or by TRL; a change would be followed by half.
READ_ONCE = (
    "epsilon", "epsilon_high", "epsilon_low", "delta", "loss_type", "beta", "num_generations", "scale_rewards",
    "anchor", "objective", "trust_region", "importance_sampling_level", "temperature", "top_k", "top_p", "min_p",
    "generation_kwargs", "num_iterations", "steps_per_generation", "gradient_accumulation_steps",
    "off_policy_mask_threshold", "top_entropy_quantile",
)  # fmt: skip


class Replaced(str):
    """Value of `epsilon` under a trust region: arithmetic with it would ignore the region, and raises an error."""

    def __rsub__(self, other: object) -> Any:
        raise TypeError(
            f"the trust region would be ignored: epsilon is {self}. BandPOConfig is for "
            "bandpo.integrations.trl.BandPOTrainer, which alone follows it; train with that, or give this trainer a "
            "GRPOConfig"
        )

    __radd__ = __rsub__


class Instead:
    """A bound of TRL's clamp: what 1 + epsilon is, without the rounding of that sum."""

    def __init__(self, bound: Tensor) -> None:
        self.bound = bound

    def __radd__(self, one: object) -> Tensor:
        return self.bound

    __rsub__ = __radd__


def settle(args: Any, given: Rule | None) -> Objective:
    """Return the objective that is given, and write its node into TRL's settings.

    Raises ValueError for an objective that TRL cannot do, or settings under which it cannot act as written.
    """
    objective = objective_for("TRL", given, anchor=getattr(args, "anchor", "old"), average=args.loss_type)
    for message in refusals(args, objective):
        raise ValueError(message)
    say_average("TRL", given, args.loss_type)
    args.trust_region = node_of(objective)
    args.epsilon = Replaced(f"replaced by the trust region {args.trust_region}")
    return objective


def node_of(objective: Objective) -> dict[str, Any] | str:
    """Return the config node, for a rule alone the rule's; its repr if JSON cannot hold the node."""
    value = objective if objective.changed() else objective.trust_region
    try:
        return json.loads(json.dumps(cast(Any, value).to_config()))
    except (AttributeError, TypeError, ValueError):
        return repr(value)


def is_trls_own(args: GRPOConfig, objective: Objective) -> bool:
    """Check that TRL's settings name this objective's loss, with two numbers for bounds."""
    clip, changed = objective.trust_region, objective.changed()
    if args.loss_type == "cispo":
        own = changed == {"apply": "weight"} and isinstance(clip, Clip) and clip.eps_low == 1
        return own and args.importance_sampling_level == "token"
    of_responses = args.importance_sampling_level == "sequence" and args.loss_type in (*LOSS_TYPES, "luspo")
    return of_responses and changed == {"ratio": "sequence-mean"} and isinstance(clip, Clip)


def refusals(args: GRPOConfig, objective: Objective | None) -> Iterator[str]:
    """Yield what the trainer refuses of its settings beside an objective; None: one that is not known."""
    if not (args.epsilon == 0.2 or isinstance(args.epsilon, Replaced)) or args.epsilon_high is not None:
        yield (
            f"epsilon = {args.epsilon} and epsilon_high = {args.epsilon_high} beside a trust region are two rules; "
            "leave them at their defaults (0.2, None) and pass bandpo.Clip(eps_low, eps_high) as the trust region"
        )
    if not isinstance(args.generation_kwargs, Mapping | None) or not isinstance(args.loss_type, str):
        yield (
            f"loss_type must be text and generation_kwargs a mapping, got {args.loss_type!r} and "
            f"{args.generation_kwargs!r}"
        )
        return
    if objective is not None:
        yield from _of_objective(args, objective)
    for name in ("use_liger_kernel", "use_liger_loss"):  # the latter until TRL 0.27
        if getattr(args, name, False):
            yield f"{name} must be False beside a trust region (deprecated in TRL, and not tested here)"
    sampler = cast(dict[str, Any], args.generation_kwargs or {}).get("temperature", args.temperature)
    if not (isinstance(args.temperature, int | float) and args.temperature > 0) or sampler != args.temperature:
        yield (
            f"temperature must be positive and the sampler's own: log-probabilities are taken at temperature "
            f"{args.temperature}, tokens sampled at {sampler}; a band depends on the probability sampled from"
        )


def _of_objective(args: GRPOConfig, objective: Objective) -> Iterator[str]:
    """Yield what does not go with this objective."""
    level, loss, own = args.importance_sampling_level, args.loss_type, is_trls_own(args, objective)
    if level != "token" and not own:
        yield (
            f"importance_sampling_level must be 'token' beside {objective!r}, got {level!r}: TRL's one ratio per "
            "response has no token probability to take bounds from; write the ratio in the objective (TRL's setting "
            "may stand beside Objective(Clip(...), ratio='sequence-mean') only)"
        )
    if loss not in LOSS_TYPES and not own:
        reason = OTHER_LOSSES.get(loss, "it has another form, without bounds")
        yield f"loss_type must be one of {list(LOSS_TYPES)} beside {objective!r}, got {loss!r}: {reason}"
    for name, reason in REPLACED.items():
        if objective.changed() and not own and getattr(args, name, None) is not None:
            yield f"{name} must not be set beside {objective!r}: {reason}"
    if own and loss == "cispo" and args.delta is not None:
        yield f"delta must be None for loss_type 'cispo', which does not read it, got {args.delta}"
    groups = find_one(objective.trust_region, GroupClip)
    if groups is not None and groups.group_size != args.num_generations:
        yield f"group_size of GroupClip must be num_generations, {args.num_generations}, got {groups.group_size}"
    rule = find_one(objective.trust_region, Adaptive)
    if rule is not None and rule.law.needs == ("staleness",):
        yield (
            f"law of Adaptive must not go by staleness through TRL, got {rule.law!r}: all responses of a batch are of "
            "one age there, so that every token would have the mean radius"
        )


def doubts(args: GRPOConfig) -> Iterator[str]:
    """Yield settings under which a rule acts on other tokens than it should."""
    chosen = vars(args) | cast(dict[str, Any], args.generation_kwargs or {})
    if changed := [f"{name} = {chosen[name]}" for name in NEUTRAL if chosen.get(name) not in (*NEUTRAL[name], None)]:
        yield f"{', '.join(changed)}: tokens are not sampled from the probabilities that bounds are computed from"
    if args.delta is not None:
        yield (
            f"delta = {args.delta} is TRL's two-sided clip, no radius: the ratio counts as at most that, and so it "
            "also stops tokens of positive advantage where their bound is wider"
        )


def warn_of(args: GRPOConfig, region: Region) -> None:
    """Warn of settings under which the region acts on other tokens than it should, or not at all."""
    for doubt in doubts(args):
        logger.warning("%s", doubt) if doubt.startswith("delta") else warnings.warn(doubt, stacklevel=3)
    reuse, accumulation = (args.steps_per_generation or 1) * args.num_iterations, args.gradient_accumulation_steps
    if accumulation % reuse == 0 and region != Clip(1.0, float("inf")) and getattr(args, "anchor", "old") == "old":
        warnings.warn(
            "no rule acts: each batch is used for one optimizer step (gradient_accumulation_steps "
            f"{accumulation} is a multiple of steps_per_generation {args.steps_per_generation} x num_iterations "
            f"{args.num_iterations}), so the ratio is 1 and nothing is clipped; set steps_per_generation to "
            "4 x gradient_accumulation_steps for 4 steps",
            stacklevel=3,
        )


def steps_a_batch(args: Any) -> float:
    """Return the number of optimizer steps for a generated batch."""
    return max(1.0, (args.steps_per_generation or 1) * args.num_iterations / args.gradient_accumulation_steps)


def read_once(trainer: Any) -> dict[str, str]:
    """Collect the settings that are read when a trainer is made, of its `args` and its own copies of them."""
    places = {"args.": trainer.args, "": trainer}
    return {
        f"{place}{name}": repr(getattr(thing, name))
        for place, thing in places.items()
        for name in READ_ONCE
        if hasattr(thing, name)
    }


def check_unchanged(trainer: Any, before: dict[str, str]) -> None:
    """Raise ValueError for a setting that is another one than when the trainer was made."""
    for name, value in sorted(read_once(trainer).items()):
        if value != before.get(name):
            raise ValueError(
                f"{name} was {before.get(name)} when the trainer was made, and is {value} now: it is read once, by the "
                "trust region or by TRL, so a change would be followed by half; make a new trainer"
            )
