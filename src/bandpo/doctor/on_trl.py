"""The doctor of settings of TRL's GRPOConfig: which leave a rule without effect, or are refused by the trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from ..trust_regions.nodes import not_loaded, own_type
from . import Finding, Level

CONFIGS = ("GRPOConfig", "BandPOConfig")  # classes that a script gives its settings to
TRAINERS = ("BandPOTrainer",)  # classes that follow a trust region, their argument `trust_region`
# The settings that are judged, with TRL's own values.
JUDGED: dict[str, Any] = {
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
}
_OTHERS = {"max_completion_length", "per_device_train_batch_size", "scale_rewards", "use_vllm"}
NO_RULE: Any = object()  # nobody follows a trust region here
UNREADABLE: Any = object()  # one that is not a plain value of a script


def is_of_trl(config: Mapping[str, Any]) -> bool:
    """Return whether settings have a name of GRPOConfig."""
    return not config.keys().isdisjoint({*JUDGED, *_OTHERS})


def trl_settings(
    config: Mapping[str, Any], unknown: frozenset[str] = frozenset(), rule: Any = NO_RULE, *, trust: bool = False
) -> Iterator[Finding]:
    """Find settings of a GRPOConfig that disable a rule or that BandPOTrainer refuses.

    Args:
        config: the settings by name; TRL's own values hold for others.
        unknown: names whose values are not known; what depends on one of them is not judged.
        rule: what `BandPOTrainer` is given; None: nothing.
        trust: import the module of a user's rule, which runs what is in it.
    """
    found = {**JUDGED, **config}
    if unknown.isdisjoint(_REUSE):
        yield from _reuse(found)
    if rule is not NO_RULE or found["trust_region"] is not None:
        given = found["trust_region"] if rule in (NO_RULE, None) else rule
        is_hidden = given is UNREADABLE or (given is None and "trust_region" in unknown)
        yield from _with_rule(found, UNREADABLE if is_hidden else given, trust)
    elif unknown.isdisjoint({"loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "trust_region"}):
        yield from _own_rule(found, config)


def _with_rule(found: Mapping[str, Any], rule: Any, trust: bool) -> Iterator[Finding]:
    """Find what the trainer refuses and warns of; an unknown setting counts as TRL's own."""
    from ..integrations import objective_for
    from ..integrations.trl_settings import doubts, refusals
    from ..losses.notation import in_words

    objective, said, args = None, [], SimpleNamespace(**found)
    if rule is UNREADABLE:
        yield Finding("note", "the trust region is not a plain value in the script; what depends on it is not judged")
    elif not trust and (own := own_type(rule)) is not None:
        yield Finding("note", f"trust_region: {not_loaded(own)}")
    else:
        try:
            objective = objective_for("TRL", rule, anchor=found["anchor"], average=found["loss_type"])
            yield Finding("ok", f"the loss of BandPOTrainer is {in_words(objective)}")
            said = [doubt] if (doubt := objective.trust_region.doubt()) else []
        except ValueError as error:
            yield Finding("problem", f"trust_region: {error}", "correct the node")
    levels: list[tuple[Level, list[str]]] = [
        ("warning", said), ("problem", [*refusals(args, objective)]), ("warning", [*doubts(args)])  # type: ignore[arg-type]
    ]  # fmt: skip
    for level, messages in levels:
        for message in messages:
            what, _, cure = message.partition("; ")
            yield Finding(level, what, cure)


_REUSE = ("gradient_accumulation_steps", "steps_per_generation", "generation_batch_size", "num_iterations")


def _reuse(found: Mapping[str, Any]) -> Iterator[Finding]:
    accumulation, steps, generated, iterations = (found[name] for name in _REUSE)
    if steps is None and generated is not None:
        what = "generation_batch_size: how many steps it is used for depends on the number of processes; not judged"
        yield Finding("note", what, "steps_per_generation says it alone")
        return
    steps = accumulation if steps is None else steps
    said = f"steps_per_generation {steps} x num_iterations {iterations}, gradient_accumulation_steps {accumulation}"
    if not all(isinstance(value, int) and value > 0 for value in (accumulation, steps, iterations)):
        yield Finding("problem", f"not all of these are positive numbers: {said}", "correct them")
    elif accumulation % (steps * iterations) == 0:
        what = f"the ratio is 1 by design: each batch is used for one optimizer step ({said}), and no rule acts"
        cure = f"steps_per_generation={4 * accumulation} for 4 optimizer steps per batch, or num_iterations=2 or more"
        yield Finding("problem", what, cure)
    else:
        yield Finding("ok", f"each batch is used for {steps * iterations / accumulation:g} optimizer steps ({said})")


def _own_rule(found: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[Finding]:
    """Find settings that TRL's own losses do not read."""
    loss, low = found["loss_type"], found["epsilon"]
    high = low if found["epsilon_high"] is None else found["epsilon_high"]
    dead = [name for name in ("epsilon", "epsilon_high") if name in given]
    are_numbers = isinstance(low, int | float) and isinstance(high, int | float)
    if loss in ("sapo", "vespo") and dead:
        yield Finding("warning", f"{', '.join(dead)}: loss_type {loss} reads no epsilon", "leave it out")
    elif loss == "cispo" and are_numbers and high < 1:
        what = f"loss_type cispo caps the ratio at epsilon_high itself, not at 1 + epsilon_high, and it is {high:g}"
        yield Finding("warning", f"{what}: no token's weight is above that, even at ratio 1", "epsilon_high=5")
    elif found["importance_sampling_level"] == "sequence" and are_numbers and min(low, high) >= 0.05:
        what = f"dead clip: epsilon {low:g} and {high:g} for the mean ratio of a whole response, which stays close to 1"
        yield Finding("warning", what, "epsilon=3e-4 epsilon_high=4e-4, as the paper of GSPO")
