"""Fit TRL's settings to an objective, and refuse the others. The doctor calls this without TRL."""

import inspect
import json
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from torch import Tensor

from ..losses.objective import Objective
from ..notation import as_python
from ..trust_regions.base import Region
from ..trust_regions.rules import Clip
from . import LOSS_TYPES, Rule, objective_for, say_average

# What the losses need that are TRL's own way to an objective.
_OTHER_LOSSES = {
    "cispo": "needs trust_region='cispo'",
    "luspo": "needs trust_region='luspo' and importance_sampling_level='sequence'",
}
# The settings that an objective was checked with and that are read at each loss.
SETTLED = (
    "loss_type",
    "importance_sampling_level",
    "temperature",
    "off_policy_mask_threshold",
    "delta",
    "anchor",
)
# The settings of the samplers that change what is sampled, and their values that do not, besides None.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("top_p", "typical_p", "repetition_penalty", "num_beams", "guidance_scale"), (1,)),
    **{"top_k": (0, -1, 1_000_000), "do_sample": (True,), "no_repeat_ngram_size": (0,)},
    **dict.fromkeys(
        ("min_p", "epsilon_cutoff", "eta_cutoff", "presence_penalty", "frequency_penalty"), (0,)
    ),
    **dict.fromkeys(
        ("logit_bias", "sequence_bias", "bad_words", "suppress_tokens", "allowed_token_ids"), ()
    ),
    **dict.fromkeys(("structured_outputs", "vllm_structured_outputs_regex"), ()),
}


class UnusedEpsilon(str):
    """Stand for `epsilon` under a trust region. Arithmetic with it raises an error."""

    def __rsub__(self, other: object) -> Any:
        raise TypeError(
            f"the trust region would be ignored: epsilon is {self}. BandPOConfig is for "
            "bandpo.integrations.trl.BandPOTrainer; train with that, or give this trainer a GRPOConfig"
        )

    __radd__ = __rsub__


class BoundAsEpsilon(NamedTuple):
    """Stand for the epsilon of a bound. TRL's 1 + epsilon gives the bound, without rounding."""

    bound: Tensor

    def __radd__(self, one: object) -> Tensor:
        return self.bound

    __rsub__ = __radd__


def check_losses(trainer: type, theirs: type) -> None:
    """Refuse a loss in front of TRL's own that does not call it by super."""
    for each in trainer.__mro__[: trainer.__mro__.index(theirs)]:
        for name in {"_compute_loss", "compute_loss"} & vars(each).keys():
            code = getattr(inspect.unwrap(vars(each)[name]), "__code__", None)  # a partial has none
            if code is None or not {"super", name} <= {*code.co_names}:
                raise ValueError(
                    f"{each.__name__}.{name} is not known to clamp the ratio between 1 - epsilon_low and "
                    f"1 + epsilon_high: it must call super().{name} for that, in a plain method; "
                    "its decorators need functools.wraps"
                )


def settle(args: Any, node: Rule | None) -> Objective:
    """Return the objective, and write its node into TRL's settings, if they fit."""
    objective = objective_for("TRL", node, anchor=getattr(args, "anchor", "old"), average=args.loss_type)
    for message in refusals(args, objective):
        raise ValueError(message)
    say_average("TRL", node, args.loss_type)
    args.trust_region = node_of(objective)
    args.epsilon = UnusedEpsilon(f"replaced by the trust region {args.trust_region}")
    return objective


def node_of(objective: Objective) -> dict[str, Any] | str:
    """Return the config node, for a rule alone the rule's, or else its repr."""
    value = objective if objective.changed() else objective.trust_region
    try:
        return json.loads(json.dumps(cast(Any, value).to_config()))
    except (AttributeError, TypeError, ValueError):
        return repr(value)


def is_trls_own(args: Any, objective: Objective) -> bool:
    """Check that TRL's own loss under these settings is the objective."""
    clip, changed, level = objective.trust_region, objective.changed(), args.importance_sampling_level
    if not isinstance(clip, Clip):
        return False
    if args.loss_type == "cispo":
        return changed == {"surrogate": "weight"} and clip.eps_low == 1 and level == "token"
    return (
        changed == {"ratio": "sequence-mean"}
        and level == "sequence"
        and args.loss_type in (*LOSS_TYPES, "luspo")
    )


def refusals(args: Any, objective: Objective | None, *, host: str = "TRL") -> Iterator[str]:
    """Yield a message for each refused setting. The objective may be unknown. The host is TRL or unsloth."""
    if not isinstance(args.generation_kwargs, Mapping | None) or not isinstance(args.loss_type, str):
        yield (
            f"loss_type must be text and generation_kwargs a mapping, got {args.loss_type!r} and "
            f"{args.generation_kwargs!r}"
        )
        return
    rule = "trust_region" if objective is None else as_python(objective)
    replaced = {"epsilon": (args.epsilon, 0.2), "epsilon_high": (args.epsilon_high, None)}
    for name, (value, own) in replaced.items():
        if value != own and not isinstance(value, UnusedEpsilon):
            yield f"Remove {name} = {value}: your {rule} replaces it; a clip is trust_region=bandpo.Clip(low, high)"
    for name in ("use_liger_kernel", "use_liger_loss"):  # the latter until TRL 0.27
        if getattr(args, name, False):
            yield f"{name} must be False with a trust region; Liger's loss takes one by bandpo.integrations.liger"
    at, delta = args.temperature, args.delta
    sampled_at = cast(dict[str, Any], args.generation_kwargs or {}).get("temperature", at)
    is_ratio = isinstance(delta, int | float) and delta <= 1
    radius = delta if isinstance(delta, int | float) and 0 < delta <= 1 else 0.05
    refused = {
        f"temperature must be positive and the sampler's own: log-probabilities are taken at temperature {at}, tokens "
        f"sampled at {sampled_at}": not (isinstance(at, int | float) and at > 0) or sampled_at != at,
        f"delta = {delta} is TRL's two-sided clip of the ratio, and clips every token above {delta}; did you mean "
        f"trust_region=Band('kl', {radius})?": is_ratio,
        f"delta must not be set with {rule}, got {delta}: it clips tokens that no metric counts; write "
        f"dual_clip={delta} in an Objective, such as Objective(Band('kl', 0.05), dual_clip={delta})":
            delta is not None and not is_ratio and host == "TRL",  # unsloth's is its dual clip
    }  # fmt: skip
    if objective is not None and not is_trls_own(args, objective):
        level, loss = args.importance_sampling_level, args.loss_type
        why = (_OTHER_LOSSES if host == "TRL" else {}).get(loss, "has no clip for a rule to replace")
        more = ", and trust_region='sapo' for SAPO's loss" if loss == "sapo" else ""
        masks = getattr(args, "off_policy_mask_threshold", None) is not None
        refused |= {
            f"importance_sampling_level must be 'token' with {rule}, got {level!r}: write ratio='sequence-mean' in the "
            "objective (TRL's setting goes with that and a Clip only)": level != "token",
            f"loss_type {loss!r} {why}; with {rule} set loss_type to 'grpo', 'bnpo', 'dr_grpo' or 'dapo'{more}":
                loss not in LOSS_TYPES,
            f"off_policy_mask_threshold must not be set with {rule}: it goes by TRL's advantages, which the objective "
            "replaces; take a mask as the objective's surrogate": masks and bool(objective.changed()),
        }  # fmt: skip
    yield from [message for message, holds in refused.items() if holds]


def suspicions(args: Any) -> Iterator[str]:
    """Yield a message for sampling from other probabilities than those of the bounds."""
    more = args.generation_kwargs
    chosen = vars(args) | (dict(more) if isinstance(more, Mapping) else {})
    changed = [
        f"{name} = {chosen[name]}" for name in NEUTRAL if chosen.get(name) not in (*NEUTRAL[name], None)
    ]
    if changed:
        yield f"{', '.join(changed)}: tokens are not sampled from the probabilities that bounds are computed from"


def warn_of(args: Any, region: Region) -> float:
    """Warn if settings leave the region without effect. Returns the optimizer steps per batch."""
    for suspicion in suspicions(args):
        warnings.warn(suspicion, stacklevel=3)
    reuse, accumulation = (
        (args.steps_per_generation or 1) * args.num_iterations,
        args.gradient_accumulation_steps,
    )
    if (
        accumulation % reuse == 0
        and region != Clip(1.0, float("inf"))
        and getattr(args, "anchor", "old") == "old"
    ):
        warnings.warn(
            "Clipping has no effect: each batch gets one optimizer step (steps_per_generation x num_iterations is "
            f"{reuse}, gradient_accumulation_steps {accumulation}). Set steps_per_generation to 4 x "
            f"gradient_accumulation_steps ({4 * accumulation}).",
            stacklevel=3,
        )
    return max(1.0, reuse / accumulation)
