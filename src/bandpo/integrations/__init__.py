"""One module per trainer; each imports exactly one framework.

This file says without the trainers what each of them does itself, cannot do, or does not show a rule. An objective that
sets such a thing is refused by name, never followed by half.
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
# What every trainer takes as the rule: see `objective_for`.
Rule = Mapping[str, Any] | str | Region | Method | Objective


def _refused(host: str, beta: str, aggregation: str, *, clamps: bool = False) -> dict[str, str]:
    """Return the fields that a trainer refuses, with the reasons; more if it keeps its own loss and clamps ratios."""
    more = {
        "apply": f"{host} clamps the ratio, which stops gradients outside the bounds and can do nothing else",
        "ratio": f"{host} clamps the ratio of each token",
        "dual_clip": f"{host}'s clamp has the two bounds and no third",
        "max_log_ratio": f"{host} takes log-ratios as they are",
        "positive_weight": f"{host} multiplies the ratio by the advantages alone; weigh those before it is given them",
    }
    return {"beta": beta, "aggregation": aggregation} | (more if clamps else {})


_PENALTY, _MEAN = "the KL penalty is the trainer's own, ", "the average is the trainer's own, "
# Of each trainer the fields that it does not take, and why.
REFUSED: dict[str, dict[str, str]] = {
    "TRL": _refused("TRL", f"{_PENALTY}beta of GRPOConfig", f"{_MEAN}loss_type of GRPOConfig"),
    "Liger": _refused("Liger", f"{_PENALTY}its argument beta", f"{_MEAN}its argument loss_type", clamps=True),
    "torchrl": _refused(
        "torchrl", f"{_PENALTY}its argument kl_to_ref_coeff", f"{_MEAN}its argument aggregation", clamps=True
    ),
    "verl": _refused("verl", f"{_PENALTY}actor.use_kl_loss and kl_loss_coef", f"{_MEAN}actor.loss_agg_mode"),
    "SkyRL": _refused(
        "SkyRL",
        f"{_PENALTY}trainer.algorithm.use_kl_loss and kl_loss_coef",
        f"{_MEAN}trainer.algorithm.loss_reduction",
    ),
    "tinker": _refused(
        "tinker",
        "tinker gives a loss no log-probabilities of a reference policy",
        "tinker's losses are sums over tokens; divide the advantages for a mean",
    ),
    "prime-rl": _refused(
        "prime-rl",
        "prime-rl's penalty is to the sampler's policy, the argument kl_tau",
        "prime-rl divides by the tokens of the whole batch",
    ),
}

# Of each trainer the setting by which it averages over tokens, and the names of its values here. Of values with one
# name the first is the one to take.
_LOSS_TYPES = {"grpo": "seq-mean-token-mean", "dapo": "token-mean", "bnpo": "token-mean", "cispo": "token-mean"}
_LOSS_TYPES |= {"dr_grpo": "seq-mean-token-sum-norm"}
_REDUCTIONS = {"token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}
_REDUCTIONS |= {"seq_mean_token_sum_norm": "seq-mean-token-sum-norm"}
AVERAGES: dict[str, tuple[str, dict[str, str]]] = {
    "TRL": ("loss_type", _LOSS_TYPES),
    "Liger": ("loss_type", _LOSS_TYPES),
    "torchrl": ("aggregation", {"token_mean": "token-mean", "prompt_mean": "seq-mean-token-mean", "none": "none"}),
    "verl": ("actor.loss_agg_mode", {name: name for name in get_args(Aggregation)[:-1]}),
    "SkyRL": ("trainer.algorithm.loss_reduction", _REDUCTIONS),
    "prime-rl": ("", {"the mean over tokens": "token-mean"}),
    "tinker": ("", {}),
}

# The fields of `Context` that each trainer shows a rule besides the mask, the advantages and the positions;
# docs/hosts.md has how, and at what cost.
_BATCH = "entropies old_entropies group_mean group_std step staleness mean_weight controlled"
SHOWN: dict[str, tuple[str, ...]] = {
    "TRL": ("logps", *_BATCH.split()),
    "Liger": (),  # its log-probabilities are made, a block of the vocabulary at a time, after the bounds are asked for
    "torchrl": ("logps",),
    "verl": ("logps", *_BATCH.split()),
    "SkyRL": ("logps",),
    "tinker": ("logps",),
    "prime-rl": ("logps",),
}
# The trainers whose ratio can be to the sampler's policy: always, or where a setting says so.
AT_SAMPLER = {"torchrl": "", "tinker": "", "prime-rl": "", "TRL": "anchor='sampler' of BandPOConfig"}
AT_SAMPLER |= {"SkyRL": "anchor='rollout' of register_bandpo_loss", "verl": "policy_loss.anchor=sampler"}


def trainers_that_run(node: Rule, *, anchor: Literal["old", "sampler"] = "old") -> dict[str, str]:
    """Return "" for each trainer that takes the objective, else why not; `anchor` as for `objective_for`."""
    reasons = dict.fromkeys(REFUSED, "")
    for host in REFUSED:
        try:
            objective_for(host, node, anchor=anchor)
        except ValueError as error:
            reasons[host] = str(error)
    return reasons


def objective_for(
    host: str, node: Rule | None, *, anchor: Literal["old", "sampler"] = "old", average: str | None = None
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
    whose, (setting, names) = "", AVERAGES.get(host, ("", {}))
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
    elif found.aggregation == names.get(average or "", ""):
        found = dataclasses.replace(found, aggregation=None)
    changed = found.changed()
    for name, reason in REFUSED[host].items():
        if name in changed:
            if name == "aggregation" and (its := _named(setting, names, changed[name])):
                reason += f", of which {its} is that average"
            raise ValueError(
                f"{whose}{name} must be {getattr(Objective, name)!r} through {host}, got {changed[name]!r}: {reason}"
            )
    shown = {*SHOWN.get(host, ()), "response_mask", "advantages", "positions"}
    for name, rule in found.trust_region.needed().items():
        if name not in shown:
            hosts = [each for each, fields in SHOWN.items() if name in fields]
            instead = f"train with {' or '.join(hosts)}" if hosts else "call policy_loss in a loop of your own"
            raise ValueError(
                f"{whose}{rule} needs context.{name}, which {host} does not show a rule; take another rule, or "
                f"{instead}"
            )
    return found


def take(
    host: str, node: Rule | None, *, anchor: Literal["old", "sampler"] = "old", average: str | None = None
) -> Objective:
    """Return `objective_for` a trainer, after saying what the rule allows and which average it gets."""
    objective = tell(objective_for(host, node, anchor=anchor, average=average))
    say_average(host, node, average)
    return objective


def tell(value: Objective, more: str = "") -> Objective:
    """Say once in a run, by its first process, what the rule allows; warn where an epsilon looks like a bound.

    Args:
        value: what is trained with; it is returned.
        more: said behind it, such as the steps a batch.
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
    setting, names = AVERAGES[host]
    wanted, given = method(name).objective.aggregation, names.get(average or "")
    is_set = f"{setting}={average!r}" if setting and average else average or setting or "the sum over tokens"
    if wanted is None:
        told = "it names a rule and no average"
    elif wanted == given:
        told = "as its paper does"
    else:
        its = _named(setting, names, wanted)
        told = f"its paper takes {wanted!r}{its and f', which is {its}'}"
    tell(f"{name}: {host} averages by {f'{is_set} ({given})' if given else is_set}; {told}")


def _named(setting: str, names: Mapping[str, str], average: str) -> str:
    """Return the setting of a trainer under which it takes an average; "" if there is none."""
    return next((f"{setting}={value!r}" for value, of in names.items() if setting and of == average), "")


def asked_for(value: Objective, shown: Iterable[str]) -> frozenset[str]:
    """Return the fields that the rule needs, for values that are made only if needed."""
    return frozenset(shown) & value.trust_region.needed().keys() - {"logps"}
