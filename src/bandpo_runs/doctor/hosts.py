"""Check settings of any trainer by the facts of `hosts.yaml`."""

import contextlib
import functools
import math
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bandpo.files import parse_yaml
from bandpo.integrations import TRAINERS, VERL_IN_FLOAT32, Trainer, objective_for
from bandpo.integrations.trl_settings import NEUTRAL
from bandpo.losses.objective import Objective
from bandpo.notation import describe
from bandpo.numerics import listed
from bandpo.trust_regions.nodes import OWN, node_of_text
from bandpo.trust_regions.rules import Clip

from ..provenance import version_of
from . import (
    Finding,
    Level,
    absent,
    in_half,
    not_judged,
    of_sequences,
    split,
    spread,
)

FACTS: dict[str, dict[str, Any]] = parse_yaml(
    Path(__file__).with_name("hosts.yaml").read_bytes(), "hosts.yaml"
)

_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"
_ROLLOUT = "algorithm.rollout_correction"
_WORKERS = "trainer.use_legacy_worker_impl"  # of verl 0.7


def host_of(text: str) -> str | None:
    """Find the trainer of a configuration by its text, comments aside."""
    text = re.sub(r"(?m)(^|\s)#.*$", "", text)
    return next((name for name, facts in FACTS.items() if re.search(facts["marks"], text)), None)


def host_settings(
    host: str, config: Mapping[str, Any], text: str = "", *, trust: bool = False
) -> Iterator[Finding]:
    """Find settings that disable a rule, or that its loss refuses or ignores.

    The text is that of the configuration. With `trust`, the module of a user's rule is imported, which runs it.
    """
    facts, trainer = FACTS[host], TRAINERS.get(host, Trainer("", ""))
    get = functools.partial(_get, dict(_flat(config)))

    def other(names: Mapping[str, Any], sign: str = "=") -> str:
        """Name the settings that have none of these values."""
        values = {name: get(name) for name in names}
        return ", ".join(
            f"{name}{sign}{x}" for name, x in values.items() if x not in (*listed(names[name]), None, ...)
        )

    names, value, *default = facts.get("anchor", ("?", True))
    default = value if default or trainer.sampler == "" else None
    at_sampler = [get(name, default) == value for name in listed(names)]
    anchor = "sampler" if (any(at_sampler) if value else all(at_sampler)) else "old"
    loss: dict[str, str] = facts.get("loss", {})
    chosen, objective = [get(name) == x for name, x in loss.items()], None
    node = get(
        "policy_loss.trust_region", get("trust_region")
    )  # verl's recipes have others, to choose from
    imported = re.search(r"(?im)^[^#\n]*bandpo(_?loss|trainer|\.integrations\.)", text) is not None
    ours = host in TRAINERS and (all(chosen) if loss else imported)
    recipe = f"docs/hosts.md{'; no setting shows whether that is in place' * (host not in TRAINERS)}"
    write = " ".join(f"{name}{' ' if name[0] == '-' else '='}{x}" for name, x in loss.items()) or recipe
    if ours:
        objective = yield from of_rule(host, node, anchor, get(trainer.average.split(".")[-1]), trust)
    elif any(chosen) or node is not None:
        settings = " and ".join(f"{_short(name)} is {get(name) or 'not set'}" for name in loss)
        whose = "Band KL 0.05" if host == "verl" and chosen[0] else f"{host}'s own"
        what = f"the loss is {whose}, and no trust_region is read: {settings or 'bandpo is not named'}"
        yield Finding("problem", what, write)
    else:
        # Without the dual clip.
        own = {name: get(name) for name in facts.get("clip", {}) if not name.endswith("_c")}
        limits = ", ".join(f"{_short(name)} {x}" for name, x in own.items() if x not in (None, ...))
        level, what = "note", facts.get("clip_is", "distances from 1, as in Clip")
        if any(get(name) == x for name, x in facts.get("gspo", {}).items()):
            level, what = of_sequences(own.values())
            limits = limits or absent(*next((_short(name), x) for name, x in facts["clip"].items()), host)
        what = f", and its limits ({limits}) are {what}" * bool(limits)
        yield Finding(level, f"the loss is {host}'s own{what}", f"for bandpo's: {write}")
    if host == "verl":
        yield from _of_verl(get, objective, ours)
    clip = "{type: clip, eps_low: ..., eps_high: ...}"
    clip = clip if trainer.clamps else f"{{type: objective, trust_region: {clip}, dual_clip: ...}}"
    replaced, takes = other(facts.get("clip", {})), facts.get("takes", {})
    wrong = {name: values for name, values in takes.items() if other({name: values})}
    allowed = "; ".join(
        f"{name}: one of {', '.join(map(str, values))}" if any(listed(values)) else f"remove {name}"
        for name, values in wrong.items()
    )
    exact, cure = facts.get("float32", (None, ""))
    half = host if exact == {} else other(exact or {})
    neutral = NEUTRAL | ({"temperature": (1,)} if "warm" in facts else {})
    changed = other(
        {each + name: neutral[name] for each in listed(facts.get("samples", "?")) for name in neutral},
        " = ",
    )
    findings = [
        (
            ours and replaced,
            Finding(
                "problem",
                f"Remove {replaced}: your trust_region replaces it",
                f"a clip is trust_region={clip}",
            ),
        ),
        (ours and wrong, Finding("problem", f"{other(wrong)}: bandpo's loss refuses it", allowed)),
        (half, in_half(half, cure)),
        (True, _steps(host, facts, get, anchor)),
        (
            changed,
            Finding(
                "warning" if ours else "note",
                f"{changed}: tokens are not sampled from the probabilities that bounds are computed from",
            ),
        ),
    ]
    yield from (finding for holds, finding in findings if holds)


def _of_verl(get: Callable[..., Any], objective: Objective | None, ours: bool) -> Iterator[Finding]:
    """Check what only verl's settings have. Some do nothing, or something else than they say."""
    version = version_of("verl") or ""
    older = version.startswith("0.7.") and get(_WORKERS, "auto") != "disable"
    engine = get(f"{_ACTOR}.strategy") or get("model_engine") or get("--config-name")
    # On Megatron log-probabilities are float32, whatever its dtype is (read in its code, not run).
    megatron = "megatron" in str(engine) or get(f"{_ACTOR}.megatron") is not None
    key = f"{_ACTOR}.fsdp_config.{'dtype' if older else 'mixed_precision.param_dtype'}"
    precision = "bf16" if version.startswith("0.7.") and not older else get(key, "bf16 by default")
    # Without verl here, it runs elsewhere.
    half: Level = "note" if version_of("flash-attn") else "problem" if version and ours else "warning"
    anchor = get(f"{_LOSS}.anchor")
    batch, mini = get("data.train_batch_size"), get(f"{_ACTOR}.ppo_mini_batch_size")
    findings = [
        (  # a check that verl leaves out with use_dynamic_bsz
            isinstance(batch, int)
            and isinstance(mini, int)
            and 0 < batch < mini
            and not get(f"{_ACTOR}.use_dynamic_bsz"),
            "problem",
            f"ppo_mini_batch_size {mini} is larger than train_batch_size {batch}: verl stops at the start",
            f"ppo_mini_batch_size={batch} or smaller",
        ),
        (
            anchor not in ("old", "sampler", None, ...),
            "problem",
            f"policy_loss.anchor must be 'old' or 'sampler', got {anchor!r}",
            "correct it",
        ),
        (
            older and ours and (anchor == "sampler" or get(f"{_LOSS}.tokens_path") is not None),
            "problem",
            "anchor=sampler and tokens_path need more than the older workers of verl 0.7 give, its default",
            f"{_WORKERS}=disable",
        ),
        (
            objective is not None and objective.surrogate == "clip" and objective.dual_clip is None,
            "note",
            "the loss has no dual clip; verl's own has one of 3 (clip_ratio_c, which bandpo does not read)",
            "to change the rule alone: {type: objective, trust_region: ..., dual_clip: 3} as the trust_region",
        ),
        (
            get(f"{_ROLLOUT}.bypass_mode"),
            "warning",
            "rollout_correction.bypass_mode=true: the old policy is what the sampler reported. verl's older trainer "
            f"(not the V1 one) calls its own loss in place of {get(f'{_LOSS}.loss_mode', 'vanilla')!r}",
            f"{_ROLLOUT}.bypass_mode=false",
        ),
        (
            not megatron and str(precision).lower() not in ("fp32", "float32"),
            half,
            f"the actor computes in {precision}: without flash-attn log-probabilities reach the loss as bfloat16, and "
            "ratios are off by several percent",
            f"{VERL_IN_FLOAT32}; actor/bandpo/half_precision in the log is 1 if it happens",
        ),
    ]
    yield from (Finding(level, what, cure) for holds, level, what, cure in findings if holds)


def own_type(node: Any) -> str | None:
    """Find the first `module:Class` that is a type in a node, at any depth. None without one.

    `trust_region` and all that call it would import that module, which runs what is in it. Who reads what a stranger
    wrote looks here first.
    """
    with contextlib.suppress(ValueError):
        node = node_of_text(node) if isinstance(node, str) else node
    items = enumerate(node) if isinstance(node, list | tuple) else ()
    inner: Mapping[Any, Any] = node if isinstance(node, Mapping) else dict(items)
    kind = inner.get("type")
    if isinstance(kind, str) and re.fullmatch(OWN, kind):
        return kind
    return next(filter(None, map(own_type, inner.values())), None)


def of_rule(
    host: str, node: Any, anchor: Any, average: Any, trust: bool
) -> Generator[Finding, None, Objective | None]:
    """Name the loss of a node, or what is wrong with it. Returns the objective."""
    own = None if trust or node is ... else own_type(node)
    if node is ... or own is not None:
        why = (
            "not a plain value here" if node is ... else f"the rule {own} is not loaded; --trust loads it"
        )
        cure = "add trust_region={type: ...}; of a recipe of verl, read what --cfg job --resolve prints"
        yield Finding("note", f"trust_region: {why}", cure if node is ... else "")
        return None
    try:
        objective = objective_for(
            host, node, anchor=anchor, average=average if isinstance(average, str) else None
        )
    except ValueError as error:
        yield split("problem", f"trust_region: {error}", "correct the node")
        return None
    what = f"{'no trust_region is given here, so ' * (node is None)}the loss of {host} is {describe(objective)}"
    cure = "add the file that has it, or trust_region={type: ...}"
    yield Finding("note", what, cure) if node is None else Finding("ok", what)
    region, old = objective.trust_region, torch.tensor([1e-4, 0.01, 0.5, 0.9]).log()
    bounds, suspicion = None if region.all_required() else region.bounds(old), region.suspicion()
    if bounds is not None and (bounds.log_high >= -old).all() and (bounds.log_low < -20).all():
        suspicion = "no token can be outside its bounds: the region is too wide; bandpo calibrate finds a narrower one"
    if suspicion:
        yield split("warning", suspicion)
    if objective.ratio == "sequence-mean" and isinstance(region, Clip):
        level, what = of_sequences((region.eps_low, region.eps_high))
        if level == "warning":
            yield Finding(level, f"{region!r}: its limits are {what}")
    return objective


def _steps(host: str, facts: Mapping[str, Any], get: Any, anchor: str) -> Finding:
    """Count the epochs over a batch, and its optimizer steps. What is not given counts only if it is 1."""
    ways, again, (unless, because) = (
        facts.get("steps", []),
        facts.get("again", "?"),
        facts.get("unless", ("?", "")),
    )
    why = facts.get("up_to", f"with {host} they are up to your own loop")
    if get(unless) not in (None, False):
        ways, why = [], f"under {unless} {because}"
    for way in ways:
        sizes = {name: get(name, get(own) if isinstance(own, str) else None) for name, own in way.items()}
        defaults = [name for name, own in way.items() if sizes[name] is None and own == 1]
        sizes |= dict.fromkeys(defaults, 1)
        lacks = [(name, size) for name, size in sizes.items() if not isinstance(size, int) or size <= 0]
        if not lacks:
            steps = round(
                math.prod(1 / size if name[0] == "/" else size for name, size in sizes.items()), 9
            )
            text = ", ".join(
                f"{_short(name)} {size}{' by default' * (name in defaults)}"
                for name, size in sizes.items()
            )
            finding = spread(
                get(again, 1),
                steps if steps > 1 else None,
                text or f"as {host} always does",
                facts.get("more", ""),
                anchor,
            )
            if way and len(defaults) == len(way):  # none of them is given
                return replace(finding, level="note" if finding.level == "ok" else "warning")
            return finding
        why = "; ".join(
            absent(_short(name), way[name], host)
            if size is None
            else f"{_short(name)} is {'not a plain number here' if size is ... else repr(size)}"
            for name, size in lacks
        )
    cure = "" if anchor == "sampler" else "with one optimizer step per batch clipping has no effect"
    return not_judged(why, get(again), cure)


def _flat(node: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting with its path. What a shell or Hydra fills in is `...`, not known."""
    for key, value in node.items():
        name = f"{before}.{_plain(str(key))}"
        yield name, ... if isinstance(value, str) and "$" in value else value
        if isinstance(value, Mapping) and key != "trust_region":
            yield from _flat(value, name)


def _get(flat: Mapping[str, Any], name: str, own: Any = None) -> Any:
    """Return the setting whose path ends so. It is `...` if several have different values."""
    values = [value for path, value in flat.items() if path.endswith(f".{_plain(name)}")]
    if not values:
        return own
    return values[0] if all(value == values[0] for value in values) else ...


def _plain(name: str) -> str:
    return name.lstrip("-/").replace("-", "_")


def _short(name: str) -> str:
    name = name.lstrip("/")
    return name if name[0] == "-" else name.split(".")[-1]
