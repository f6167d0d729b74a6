"""The doctor of settings of TRL's GRPOConfig: which leave a rule without effect, or are refused by the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from ..trust_regions.notation import not_loaded, own_type
from .findings import Finding, Level


@dataclass(frozen=True)
class Facts:
    """Facts about a trainer for the doctor; another trainer is another row of `TRAINERS`.

    Attributes:
        configs: classes that a script gives its settings to.
        trainers: classes that follow a trust region, their argument `trust_region`.
        judged: the settings that are judged, with the trainer's values where nothing is set.
        others: further names by which a file is known to be of this trainer.
        refused: what the trainer refuses beside an objective, which is None where it is not known.
        doubted: what it warns of.
    """

    configs: tuple[str, ...]
    trainers: tuple[str, ...]
    judged: Mapping[str, Any]
    others: frozenset[str]
    refused: Callable[[Any, Any], Iterable[str]]
    doubted: Callable[[Any], Iterable[str]]


def _refused_by_trl(args: Any, objective: Any) -> Iterable[str]:
    from ..integrations.trl_settings import refusals

    return refusals(args, objective)


def _doubted_by_trl(args: Any) -> Iterable[str]:
    from ..integrations.trl_settings import doubts

    return doubts(args)


TRAINERS = {
    "TRL": Facts(
        configs=("GRPOConfig", "BandPOConfig"),
        trainers=("BandPOTrainer",),
        judged={
            "gradient_accumulation_steps": 1,
            "steps_per_generation": None,
            "generation_batch_size": None,
            "num_iterations": 1,
            "loss_type": "dapo",
            "importance_sampling_level": "token",
            "epsilon": 0.2,
            "epsilon_high": None,
            "trust_region": None,
            "anchor": "old",
            "delta": None,
            "off_policy_mask_threshold": None,
            "num_generations": 8,
            "use_liger_kernel": False,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": None,
            "repetition_penalty": 1.0,
            "generation_kwargs": None,
            "vllm_structured_outputs_regex": None,
        },
        others=frozenset({"max_completion_length", "per_device_train_batch_size", "scale_rewards", "use_vllm"}),
        refused=_refused_by_trl,
        doubted=_doubted_by_trl,
    )
}
TRL = TRAINERS["TRL"]
NO_RULE: Any = object()  # nobody follows a trust region here
UNREADABLE: Any = object()  # one that is not a plain value of a script


def is_of_trl(config: Mapping[str, Any]) -> bool:
    return not config.keys().isdisjoint({*TRL.judged, *TRL.others})


def trl_settings(
    config: Mapping[str, Any], unknown: frozenset[str] = frozenset(), rule: Any = NO_RULE, *, trust: bool = False
) -> Iterator[Finding]:
    """Find settings of a GRPOConfig that disable a rule or that BandPOTrainer refuses.

    TRL's own defaults hold for what is not given.

    Args:
        config: the settings by name.
        unknown: names whose values are not known; what depends on one of them is not judged.
        rule: what `BandPOTrainer` is given; None: nothing.
        trust: import the module of a user's rule, which runs what is in it.
    """
    found = {**TRL.judged, **config}
    yield from _reuse(found, unknown)
    if rule is not NO_RULE or found["trust_region"] is not None:
        given = found["trust_region"] if rule in (NO_RULE, None) else rule
        yield from _beside_rule(found, unknown, given, trust)
    elif unknown.isdisjoint({"loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "trust_region"}):
        yield from _own_rule(found, config)


def _beside_rule(found: Mapping[str, Any], unknown: frozenset[str], rule: Any, trust: bool) -> Iterator[Finding]:
    """Find what the trainer refuses and warns of. A setting that is not known counts as TRL's own, and passes."""
    from ..integrations import objective_for
    from ..losses.notation import in_words

    objective = None
    if rule is UNREADABLE or (rule is None and "trust_region" in unknown):
        yield Finding("note", "the trust region is not a plain value in the script; what depends on it is not judged")
    elif not trust and (own := own_type(rule)) is not None:
        yield Finding("note", f"trust_region: {not_loaded(own)}")
    else:
        try:
            objective = objective_for("TRL", rule, anchor=found["anchor"], average=found["loss_type"])
            yield Finding("ok", f"the loss of BandPOTrainer is {in_words(objective)}")
            if doubt := objective.trust_region.doubt():
                yield Finding("warning", *_cured(doubt))
        except ValueError as error:
            yield Finding("problem", f"trust_region: {error}", "correct the node")
    args = SimpleNamespace(**found)
    for level, messages in ("problem", TRL.refused(args, objective)), ("warning", TRL.doubted(args)):
        for message in messages:
            yield Finding(cast(Level, level), *_cured(message))


def _cured(message: str) -> tuple[str, str]:
    what, _, cure = message.partition("; ")
    return what, cure


def _reuse(found: Mapping[str, Any], unknown: frozenset[str]) -> Iterator[Finding]:
    names = ("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size", "num_iterations")
    if not unknown.isdisjoint(names):
        return
    if found["generation_batch_size"] is not None and found["steps_per_generation"] is None:
        what = "generation_batch_size: how many steps it is used for depends on the number of processes; not judged"
        yield Finding("note", what, "steps_per_generation says it alone")
        return
    accumulation, iterations = found["gradient_accumulation_steps"], found["num_iterations"]
    steps = accumulation if found["steps_per_generation"] is None else found["steps_per_generation"]
    for name, value in (("gradient_accumulation_steps", accumulation), ("steps_per_generation", steps),
                        ("num_iterations", iterations)):  # fmt: skip
        if not isinstance(value, int) or value < 1:
            yield Finding("problem", f"{name} is {value!r}", "a positive number")
            return
    said = f"steps_per_generation {steps} x num_iterations {iterations}, gradient_accumulation_steps {accumulation}"
    if accumulation % (steps * iterations) == 0:
        what = f"the ratio is 1 by design: each batch is used for one optimizer step ({said}), and no rule acts"
        cure = f"steps_per_generation={4 * accumulation} for 4 optimizer steps per batch, or num_iterations=2 or more"
        yield Finding("problem", what, cure)
    else:
        yield Finding("ok", f"each batch is used for {steps * iterations / accumulation:g} optimizer steps ({said})")


def _own_rule(found: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    """Find settings that TRL's own losses do not read."""
    loss, low = found["loss_type"], found["epsilon"]
    high = low if found["epsilon_high"] is None else found["epsilon_high"]
    if loss in ("sapo", "vespo"):
        if dead := [name for name in ("epsilon", "epsilon_high") if name in given]:
            yield Finding("warning", f"{', '.join(dead)}: loss_type {loss} reads no epsilon", "leave it out")
    elif loss == "cispo":
        if isinstance(high, int | float) and high < 1:
            what = f"loss_type cispo caps the ratio at epsilon_high itself, not at 1 + epsilon_high, and it is {high:g}"
            yield Finding("warning", f"{what}: no token's weight is above that, even at ratio 1", "epsilon_high=5")
    elif found["importance_sampling_level"] == "sequence" and all(
        isinstance(each, int | float) and each >= 0.05 for each in (low, high)
    ):
        what = f"dead clip: epsilon {low:g} and {high:g} for the mean ratio of a whole response, which stays close to 1"
        yield Finding("warning", what, "epsilon=3e-4 epsilon_high=4e-4, as the paper of GSPO")
