"""One module per trainer; each imports exactly one framework.

What of an objective each trainer does itself, or cannot do, stands here, for those who must know it without the
trainer: what is set to something else than its default is refused by name, never ignored.
"""

import dataclasses
import functools
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, get_args

from ..losses.aggregation import Aggregation
from ..losses.nodes import method, method_or_objective
from ..losses.notation import in_words
from ..losses.objective import Method, Objective
from ..trust_regions.base import Region

RULE = logging.getLogger("bandpo.rule")


def _clamps(host: str) -> dict[str, str]:
    """Return the refusals of a trainer that keeps its own loss and clamps each ratio by the bounds."""
    return {
        "apply": f"{host} clamps the ratio, which stops gradients outside the bounds and can do nothing else",
        "ratio": f"{host} clamps the ratio of each token",
        "dual_clip": f"{host}'s clamp has the two bounds and no third",
        "max_log_ratio": f"{host} takes log-ratios as they are",
        "positive_weight": f"{host} multiplies the ratio by the advantages alone; weigh those before it is given them",
    }


# Of each trainer the fields that it does not take, and why.
REFUSED: dict[str, dict[str, str]] = {
    "TRL": {
        "beta": "the KL penalty is TRL's own, beta of GRPOConfig",
        "aggregation": "the average is TRL's own, loss_type of GRPOConfig",
    },
    "Liger": _clamps("Liger")
    | {
        "beta": "the KL penalty is Liger's own, its argument beta",
        "aggregation": "the average is Liger's own, its argument loss_type",
    },
    "torchrl": _clamps("torchrl")
    | {
        "beta": "the KL penalty is torchrl's own, its argument kl_to_ref_coeff",
        "aggregation": "the average is torchrl's own, its argument aggregation",
    },
    "verl": {
        "beta": "the KL penalty is verl's own, actor.use_kl_loss and kl_loss_coef",
        "aggregation": "the average is verl's own, actor.loss_agg_mode",
    },
    "SkyRL": {
        "beta": "the KL penalty is SkyRL's own, trainer.algorithm.use_kl_loss and kl_loss_coef",
        "aggregation": "the average is SkyRL's own, trainer.algorithm.loss_reduction",
    },
    "tinker": {
        "beta": "tinker gives a loss no log-probabilities of a reference policy",
        "aggregation": "tinker's losses are sums over tokens; divide the advantages for a mean",
    },
    "prime-rl": {
        "beta": "prime-rl's penalty is to the sampler's policy, the argument kl_tau",
        "aggregation": "prime-rl divides by the tokens of the whole batch",
    },
}

# Of each trainer the setting by which it averages over tokens, and what its values are called here. Of those with one
# name the first is the one to take.
_LOSS_TYPES = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "bnpo": "token-mean", "cispo": "token-mean"}
_LOSS_TYPES |= {"dr_grpo": "seq-mean-token-sum-norm"}
AVERAGES: dict[str, tuple[str, dict[str, str]]] = {
    "TRL": ("loss_type", _LOSS_TYPES),
    "Liger": ("loss_type", _LOSS_TYPES),
    "torchrl": ("aggregation", {"token_mean": "token-mean", "prompt_mean": "seq-mean-token-mean", "none": "none"}),
    "verl": ("actor.loss_agg_mode", {name: name for name in get_args(Aggregation)[:-1]}),
    "SkyRL": (
        "trainer.algorithm.loss_reduction",
        {
            "token_mean": "token-mean",
            "sequence_mean": "seq-mean-token-mean",
            "seq_mean_token_sum_norm": "seq-mean-token-sum-norm",
        },
    ),
    "prime-rl": ("", {"the mean over tokens": "token-mean"}),
    "tinker": ("", {}),
}

NO_AVERAGE: tuple[str, dict[str, str]] = "", {}  # of a trainer that is not named there

# What of `Context` each trainer shows a rule beside what all of them do;
# how and at what cost is in docs/hosts.md.
SHOWN: dict[str, tuple[str, ...]] = {
    "TRL": (
        "logps",
        "entropies",
        "old_entropies",
        "group_mean",
        "group_std",
        "step",
        "staleness",
        "mean_weight",
        "controlled",
    ),
    "Liger": (),  # its log-probabilities are made, a block of the vocabulary at a time, after the bounds are asked for
    "torchrl": ("logps",),
    "verl": (
        "logps",
        "entropies",
        "old_entropies",
        "group_mean",
        "group_std",
        "step",
        "staleness",
        "mean_weight",
        "controlled",
    ),
    "SkyRL": ("logps",),
    "tinker": ("logps",),
    "prime-rl": ("logps",),
}
ALWAYS = ("response_mask", "advantages", "positions")
# The policy that ratio and bounds are taken against is the sampler: always there, or where a setting says so.
AT_SAMPLER = {"torchrl": "", "tinker": "", "prime-rl": "", "TRL": "anchor='sampler' of BandPOConfig"}
AT_SAMPLER |= {"SkyRL": "anchor='rollout' of register_bandpo_loss", "verl": "policy_loss.anchor=sampler"}


def trainers_that_run(
    node: Mapping[str, Any] | str | Region | Method | Objective, *, anchor: Literal["old", "sampler"] = "old"
) -> dict[str, str]:
    """Return "" for each trainer that takes the objective, else why not; `anchor` as for `objective_for`."""
    reasons: dict[str, str] = {}
    for host in REFUSED:
        try:
            objective_for(host, node, anchor=anchor)
            reasons[host] = ""
        except ValueError as error:
            reasons[host] = str(error)
    return reasons


def objective_for(
    host: str,
    node: Mapping[str, Any] | str | Region | Method | Objective | None,
    *,
    anchor: Literal["old", "sampler"] = "old",
    average: str | None = None,
) -> Objective:
    """Return the objective of a node or of a method's name, if the trainer can do it; None is the paper's.

    Args:
        host: the trainer.
        node: as for `bandpo.objective`.
        anchor: what the trainer was told to take the ratio against, where that can be chosen (`AT_SAMPLER`).
        average: the value of the trainer's own setting (`AVERAGES`), where it is known. The objective that is returned
            has none: of a method the paper's is left out (see `say_average`), and one that was written must be that.

    Raises ValueError for a node that is none; for a field that the trainer does not take, with the reason; for a rule
    that must see what the trainer does not show it (`SHOWN`); for a method whose ratio is to the sampler, where the
    trainer's is not.
    """
    found = method_or_objective(Objective() if node is None else node)
    whose = ""
    if isinstance(found, Method):
        whose = f"method {found.name!r}: "
        if found.from_sampler and host not in AT_SAMPLER:
            raise ValueError(
                f"{whose}its ratio is to the sampler's policy, which {host} does not have; call policy_loss in a loop "
                f"of your own, with {found.arguments} and bandpo.losses.method({found.name!r}).objective"
            )
        if found.from_sampler and anchor != "sampler" and AT_SAMPLER[host]:
            raise ValueError(f"{whose}its ratio is to the sampler's policy; set {AT_SAMPLER[host]}")
        found = found.without_average
    elif found.aggregation == AVERAGES.get(host, NO_AVERAGE)[1].get(average or "", ""):
        found = dataclasses.replace(found, aggregation=None)
    for name, reason in REFUSED[host].items():
        if name in (changed := found.changed()):
            default = getattr(Objective, name)
            if name == "aggregation":
                setting, names = AVERAGES.get(host, NO_AVERAGE)
                its = [f"{setting}={value!r}" for value, of in names.items() if setting and of == changed[name]]
                reason += f", of which {its[0]} is that average" if its else ""
            raise ValueError(f"{whose}{name} must be {default!r} through {host}, got {changed[name]!r}: {reason}")
    shown = {*SHOWN.get(host, ()), *ALWAYS}
    for name, rule in found.trust_region.needed().items():
        if name not in shown:
            hosts = [each for each, fields in SHOWN.items() if name in fields]
            instead = f"train with {' or '.join(hosts)}" if hosts else "call policy_loss in a loop of your own"
            raise ValueError(
                f"{whose}{rule} needs context.{name}, which {host} does not show a rule; take another rule, or "
                f"{instead}"
            )
    return found


def tell(value: Objective, more: str = "") -> Objective:
    """Say once in a run, by its first process, what the rule allows; warn where an epsilon looks like a bound.

    Args:
        value: what is trained with.
        more: said behind it, such as the steps a batch.

    Returns:
        The objective.
    """
    if os.environ.get("RANK", "0") == "0":
        _tell(f"{in_words(value)}{more}", value.trust_region.doubt())
    return value


@functools.cache
def _tell(words: str, doubt: str) -> None:
    RULE.warning("%s", words)  # of a lower level than this nothing is shown unless asked for
    if doubt:
        warnings.warn(doubt, stacklevel=4)


def say_average(host: str, node: Any, average: str | None, tell: Callable[[str], None] | None = None) -> None:
    """Say once in a run, by its first process, which average a trainer takes for a method; is it its paper's?

    Args:
        host: the trainer.
        node: the method, its name or its node; of anything else nothing is said.
        average: the value of the trainer's own setting (`AVERAGES`); None where it is not known yet.
        tell: what says it; by default the logger.
    """
    named = None if node is None else method_or_objective(node)
    if isinstance(named, Method) and os.environ.get("RANK", "0") == "0":
        _say_average(host, named.name, average, tell or RULE.warning)


@functools.cache
def _say_average(host: str, name: str, average: str | None, tell: Callable[[str], None]) -> None:
    setting, names = AVERAGES.get(host, NO_AVERAGE)
    wanted, given = method(name).objective.aggregation, names.get(average or "")
    is_set = f"{setting}={average!r}" if setting and average else average or setting or "the sum over tokens"
    if wanted is None:
        told = "it names a rule and no average"
    elif wanted == given:
        told = "as its paper does"
    else:
        instead = next(
            (f", which is {setting}={value!r}" for value, of in names.items() if setting and of == wanted), ""
        )
        told = f"its paper takes {wanted!r}{instead}"
    tell(f"{name}: {host} averages by {f'{is_set} ({given})' if given else is_set}; {told}")


def asked_for(value: Objective, shown: Iterable[str]) -> frozenset[str]:
    """Return the fields that the rule needs, for values that are made only if needed."""
    return frozenset(shown) & value.trust_region.needed().keys() - {"logps"}
