"""The doctor of settings of TRL's GRPOConfig: from a file, or as far as a Python script says them in plain values."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files.reading import content_of, decoded
from ..trust_regions.base import not_loaded, own_type
from .findings import Finding

# What is judged, and TRL's values where nothing is set. A file with one of these names is one of TRL.
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
}
OTHERS = {"num_generations", "max_completion_length", "per_device_train_batch_size", "scale_rewards", "use_vllm"}
CONFIGS = ("GRPOConfig", "BandPOConfig")


def is_of_trl(config: Mapping[str, Any]) -> bool:
    return not config.keys().isdisjoint({*JUDGED, *OTHERS})


def trl_settings(
    config: Mapping[str, Any], unknown: frozenset[str] = frozenset(), *, trust: bool = False
) -> Iterator[Finding]:
    """Settings of a GRPOConfig that leave a rule without effect; TRL's own defaults hold for what is not given.

    Args:
        config: the settings by name.
        unknown: names whose values are not known; what depends on one of them is not judged.
        trust: import the module of a rule of one's own, which runs what is in it.
    """
    found = {**JUDGED, **config}
    if hidden := sorted(unknown & JUDGED.keys()):
        yield Finding("note", f"{', '.join(hidden)}: no plain value in the script; what depends on it is not judged")
    yield from _reuse(found, unknown)
    if unknown.isdisjoint({"loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "trust_region"}):
        yield from _rule(found, config, trust)


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


def _rule(found: Mapping[str, Any], given: Mapping[str, Any], trust: bool) -> Iterator[Finding]:
    if (node := found["trust_region"]) is not None:
        if not trust and (own := own_type(node)) is not None:
            yield Finding("note", f"trust_region: {not_loaded(own)}")
            return
        from ..integrations import objective_for

        try:
            yield Finding("ok", f"the loss of BandPOTrainer is {objective_for('TRL', node)!r}")
        except ValueError as error:
            yield Finding("problem", f"trust_region: {error}", "correct the node")
        return
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


def script_settings(path: Path) -> tuple[dict[str, Any], frozenset[str]]:
    """What a Python script gives to GRPOConfig or BandPOConfig in plain values, and the names of other arguments. The
    script is read and not run.

    Raises:
        UserError: it is no Python, or calls neither, or more than once.
    """
    try:
        tree = ast.parse(decoded(content_of(path), str(path)))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no Python: {error}") from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) in CONFIGS]
    if len(calls) != 1:
        raise UserError(f"{path} calls {' or '.join(CONFIGS)} {len(calls) or 'not once'}{' times' if calls else ''}; "
                        "one call is expected; settings can be given as key=value, too")  # fmt: skip
    known: dict[str, Any] = {}
    unknown: set[str] = set()
    for keyword in calls[0].keywords:
        try:
            known[keyword.arg or ""] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, RecursionError):
            unknown |= {keyword.arg} if keyword.arg else JUDGED.keys() - known.keys()  # **settings may hold any
    if isinstance(more := known.pop("", None), dict):  # **{...}
        known |= more
    return known, frozenset(unknown - known.keys())


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
