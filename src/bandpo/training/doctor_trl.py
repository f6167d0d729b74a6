"""The doctor of settings of TRL's GRPOConfig: from a file, or as far as a Python script says them in plain values."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from ..errors import UserError
from ..files.reading import content_of, decoded
from ..trust_regions.notation import not_loaded, own_type
from .findings import Finding, Level


@dataclass(frozen=True)
class Facts:
    """What the doctor knows of a trainer; another trainer is another row of `TRAINERS`.

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


def is_of_trl(config: Mapping[str, Any]) -> bool:
    return not config.keys().isdisjoint({*TRL.judged, *TRL.others})


def trl_settings(
    config: Mapping[str, Any], unknown: frozenset[str] = frozenset(), rule: Any = NO_RULE, *, trust: bool = False
) -> Iterator[Finding]:
    """Settings of a GRPOConfig that leave a rule without effect, or that BandPOTrainer refuses; TRL's own defaults hold
    for what is not given.

    Args:
        config: the settings by name.
        unknown: names whose values are not known; what depends on one of them is not judged.
        rule: what `BandPOTrainer` is given; None: nothing.
        trust: import the module of a rule of one's own, which runs what is in it.
    """
    found = {**TRL.judged, **config}
    yield from _reuse(found, unknown)
    if rule is not NO_RULE or found["trust_region"] is not None:
        given = found["trust_region"] if rule in (NO_RULE, None) else rule
        yield from _beside_rule(found, unknown, given, trust)
    elif unknown.isdisjoint({"loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "trust_region"}):
        yield from _own_rule(found, config)


def _beside_rule(found: Mapping[str, Any], unknown: frozenset[str], rule: Any, trust: bool) -> Iterator[Finding]:
    """What the trainer refuses and warns of. A setting that is not known counts as TRL's own, and passes."""
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
    """What TRL's own losses do not read."""
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


UNREADABLE: Any = object()


def script_settings(path: Path, given: Set[str]) -> tuple[dict[str, Any], frozenset[str], Any, list[Finding]]:
    """Read what a Python script gives to GRPOConfig or BandPOConfig in plain values; it is not run.

    Args:
        path: the script.
        given: names that are known without it.

    Returns:
        The settings by name; the names of arguments that are not plain values; the trust region that BandPOTrainer is
        given, None without one, `NO_RULE` without such a trainer, `UNREADABLE`; and what is to be said of the reading.

    Raises:
        UserError: it is not Python, or calls neither config, or more than one.
    """
    from ..losses.nodes import read_python

    try:
        tree = ast.parse(decoded(content_of(path), str(path)))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not Python: {error}") from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    configs, trainers = ([call for call in calls if _name(call.func) in names] for names in (TRL.configs, TRL.trainers))
    if len(configs) != 1:
        count = f"{len(configs)} times" if configs else "not once"
        raise UserError(
            f"{path} calls {' or '.join(TRL.configs)} {count}; one call is expected; settings can be given as "
            "key=value, too"
        )
    once = _set_once(tree)

    def read(code: ast.expr) -> Any:
        return read_python(once.get(code.id, code) if isinstance(code, ast.Name) else code)

    known: dict[str, Any] = {}
    unknown: set[str] = set()
    hides: Set[str] = set()
    said: list[Finding] = []
    for keyword in configs[0].keywords:
        try:
            known[keyword.arg or ""] = read(keyword.value) if keyword.arg else ast.literal_eval(keyword.value)
        except (ValueError, TypeError, RecursionError):
            if keyword.arg:
                unknown.add(keyword.arg)
                continue
            call, hidden = _name(configs[0].func), ast.unparse(keyword.value)
            what = f"{call}(**{hidden}): {hidden} cannot be read, for the script is not run; plain values in it can"
            cure = f"give what is in it too: bandpo doctor {path.name} epsilon_high=0.28 loss_type=dapo ..."
            said.append(Finding("warning", what, cure))
            hides = TRL.judged.keys() - known.keys()  # it may hold any
    if isinstance(more := known.pop("", None), dict):  # **{...}
        known |= more
    rules = [keyword.value for call in trainers for keyword in call.keywords if keyword.arg == "trust_region"]
    rule: Any = None if trainers else NO_RULE
    if len(trainers) > 1 or any(keyword.arg is None for call in trainers for keyword in call.keywords):
        rule = UNREADABLE
    elif rules:
        try:
            rule = read(rules[0])
        except (ValueError, TypeError, RecursionError):
            rule = UNREADABLE
    if plain := sorted((unknown & TRL.judged.keys()) - given):
        what = f"{', '.join(plain)}: no plain value in the script; what depends on it is not judged"
        said.append(Finding("note", what))
    return known, frozenset((unknown | hides) - known.keys() - given), rule, said


def _set_once(tree: ast.AST) -> dict[str, ast.expr]:
    """The values of names that are set once in a script, and by a plain assignment."""
    stored = Counter(name for each in ast.walk(tree) for name in _set_by(each))
    return {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and stored[node.targets[0].id] == 1
        and not isinstance(node.value, ast.Dict | ast.List)  # which may be added to
    }


def _set_by(node: ast.AST) -> list[str]:
    """The names that a piece of code gives a value: by assignment, import or definition, as parameters, in a match."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.alias(name=name, asname=known):
            return [known or name.partition(".")[0]]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler():
            return [node.name or ""]
        case ast.MatchAs() | ast.MatchStar():
            return [node.name or ""]
        case _:
            return []


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
