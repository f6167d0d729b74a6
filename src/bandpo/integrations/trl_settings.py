"""TRL settings that fit an objective, and the messages about the others."""

from __future__ import annotations

import dataclasses
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
# What of TRL's settings reads the advantages or sets the cap, in whose place the loss of an objective stands.
REPLACED = {
    "delta": "it caps TRL's ratio; write dual_clip in the objective",
    "off_policy_mask_threshold": "it goes by TRL's advantages; take a mask as the objective's apply",
}
# The settings of the samplers that change what is sampled, and their values that do not, beside None.
NEUTRAL = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "do_sample": (True,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "guidance_scale": (1,),
    "suppress_tokens": (),
    "sequence_bias": (),
    "logit_bias": (),
    "bad_words": (),
    "allowed_token_ids": (),
    "structured_outputs": (),
    "vllm_structured_outputs_regex": (),
}
NO_SAMPLER = (
    "anchor = 'sampler' needs the sampler's log-probabilities, which TRL (0.27 and later) has of vLLM (use_vllm=True) "
    "and of a rollout_func that returns logprobs; "
)


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


def is_trls_own(args: GRPOConfig, objective: Objective) -> bool:
    """Check that TRL's settings name this objective's loss, with two numbers for bounds."""
    clip, changed = objective.trust_region, objective.changed()
    if args.loss_type == "cispo":
        own = changed == {"apply": "weight"} and isinstance(clip, Clip) and clip.eps_low == 1
        return own and args.importance_sampling_level == "token"
    of_responses = args.importance_sampling_level == "sequence" and args.loss_type in (*LOSS_TYPES, "luspo")
    return of_responses and changed == {"ratio": "sequence-mean"} and isinstance(clip, Clip)


def check_config(args: GRPOConfig, objective: Objective) -> None:
    """Raise ValueError for settings under which the objective cannot act as written."""
    for message in refusals(args, objective):
        raise ValueError(message)


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
    if objective is not None and not is_trls_own(args, objective):
        given = args.importance_sampling_level
        if given != "token":
            yield (
                f"importance_sampling_level must be 'token' beside {objective!r}, got {given!r}: TRL's one ratio per "
                "response has no token probability to take bounds from; write the ratio in the objective (TRL's "
                "setting may stand beside Objective(Clip(...), ratio='sequence-mean') only)"
            )
        if args.loss_type not in LOSS_TYPES:
            reason = OTHER_LOSSES.get(args.loss_type, "it has another form, without bounds")
            yield (
                f"loss_type must be one of {list(LOSS_TYPES)} beside {objective!r}, got {args.loss_type!r}: {reason}"
            )
        for name, reason in REPLACED.items():
            if objective.changed() and getattr(args, name, None) is not None:
                yield f"{name} must not be set beside {objective!r}: {reason}"
    elif objective is not None and args.loss_type == "cispo" and args.delta is not None:
        yield f"delta must be None for loss_type 'cispo', which does not read it, got {args.delta}"
    for name in ("use_liger_kernel", "use_liger_loss"):  # the latter until TRL 0.27
        if getattr(args, name, False):
            yield f"{name} must be False beside a trust region (deprecated in TRL, and not tested here)"
    sampler = cast(dict[str, Any], args.generation_kwargs or {}).get("temperature", args.temperature)
    if not (isinstance(args.temperature, int | float) and args.temperature > 0) or sampler != args.temperature:
        yield (
            f"temperature must be positive and the sampler's own: log-probabilities are taken at temperature "
            f"{args.temperature}, tokens sampled at {sampler}; a band depends on the probability sampled from"
        )
    if objective is not None:
        yield from _of_rule(args, objective.trust_region)


def _of_rule(args: GRPOConfig, region: Region) -> Iterator[str]:
    """Name the faults of a law that cannot tell tokens apart here, and of groups of another size."""
    groups = find_one(region, GroupClip)
    if groups is not None and groups.group_size != args.num_generations:
        yield f"group_size of GroupClip must be num_generations, {args.num_generations}, got {groups.group_size}"
    rule = find_one(region, Adaptive)
    if rule is not None and rule.law.needs == ("staleness",):
        yield (
            f"law of Adaptive must not go by staleness through TRL, got {rule.law!r}: all responses of a batch are of "
            "one age there, so that every token would have the mean radius"
        )


def check_anchor(args: GRPOConfig, rollout_func: Any) -> None:
    """Raise ValueError where no sampler could give its log-probabilities."""
    if getattr(args, "anchor", "old") == "sampler" and not args.use_vllm and rollout_func is None:
        raise ValueError(f"{NO_SAMPLER}use_vllm is False, and there is no rollout_func")


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


# What may be changed in a trainer that is made: what is printed; and what TRL itself moves.
_FREE = {"all_metrics", "log_completions", "log_multimodal", "log_unique_prompts", "num_completions_to_print"}
_FREE |= {"log_completions_hub_repo", "entropy_coef"}


def read_once(trainer: Any) -> dict[str, Any]:
    """Collect the settings of GRPO that are read when a trainer is made, of its `args` and its own copies of them."""
    base = next(each for each in type(trainer.args).__mro__ if each.__name__ == "TrainingArguments")
    general = {field.name for field in dataclasses.fields(cast(Any, base))}
    names = {field.name for field in dataclasses.fields(trainer.args)} - general - _FREE
    names |= {"gradient_accumulation_steps", "per_device_train_batch_size"}
    found = {f"args.{name}": getattr(trainer.args, name, None) for name in names}
    found = {name: value.copy() if isinstance(value, dict | list) else value for name, value in found.items()}
    own = {name: getattr(trainer, name) for name in {*names, "epsilon_low", "objective"} if hasattr(trainer, name)}
    return found | {name: x for name, x in own.items() if isinstance(x, int | float | str | Objective | None)}


def check_unchanged(trainer: Any, before: dict[str, Any]) -> None:
    """Raise ValueError for a setting that is another one than when the trainer was made."""
    for name, value in sorted(read_once(trainer).items()):
        if value != before.get(name):
            raise ValueError(
                f"{name} was {before.get(name)!r} when the trainer was made, and is {value!r} now: it is read once, by "
                "the trust region or by TRL, so a change would be followed by half; make a new trainer"
            )


def node_of(objective: Objective) -> dict[str, Any] | str:
    """Return the config node, for a rule alone the rule's; its repr if JSON cannot hold the node."""
    value = objective if objective.changed() else objective.trust_region
    try:
        return json.loads(json.dumps(cast(Any, value).to_config()))
    except (AttributeError, TypeError, ValueError):
        return repr(value)


def write_rule(args: Any, objective: Objective) -> dict[str, Any] | str:
    """Write the rule into TRL's epsilon settings, and return its node."""
    args.trust_region = node = node_of(objective)
    args.epsilon = Replaced(f"replaced by the trust region {node}")
    return node
