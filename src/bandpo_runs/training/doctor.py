"""Read settings, scripts and logs for `bandpo doctor`. The checks are those of `bandpo.doctor`."""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from bandpo.doctor import EIGHT, ONCE, Finding
from bandpo.doctor.installed import installation, plug_in, version_of
from bandpo.doctor.on_trl import JUDGED, is_of_trl, trl_settings
from bandpo.doctor.on_verl import verl_settings
from bandpo.errors import UserError
from bandpo.integrations import verl_in_float32
from bandpo.losses.nodes import method
from bandpo.losses.objective import Objective
from bandpo.losses.surrogates import Application
from bandpo.trust_regions.base import Law, Region
from bandpo.trust_regions.nodes import not_loaded, own_type, trust_region

from ..config.recipe import merge
from ..config.run_folder import read_info
from ..files.logs import Followed, lost_in, read_rows
from ..files.reading import checked, content_of, read_yaml
from ..statistics.curves import Curves, by_step
from .on_verl import put, setting

_CONFIGS = ("GRPOConfig", "BandPOConfig")  # classes that a script gives its settings to
_ROUNDING = 1e-4  # a log-ratio of which kernels and precisions make that much
# The clip rates of TRL and verl, which count tokens that lose their gradient. Ours counts all that are outside.
_THEIRS = ("clip_ratio/region_mean", "clip_ratio", "actor/pg_clipfrac")
# By ours and by theirs, in percent: the share that ONCE tells of, and what is called few. That limit is ours.
_AT_ONE_USE = {True: (0.16, 0.2), False: (0.09, 0.1)}
_MORE_STEPS = (
    "more optimizer steps per batch: steps_per_generation or num_iterations (TRL), a smaller ppo_mini_batch_size or "
    "more ppo_epochs (verl)"
)


def examine(arguments: Sequence[str], *, ray: bool = True, trust: bool = False) -> Iterator[Finding]:
    """Examine the installation without arguments.

    Arguments name logs (.jsonl, trainer_state.json), a script or settings. A script is .py; settings are what files and
    overrides add up to, of verl or of TRL. With `trust`, the module of a user's rule is imported.

    Raises:
        UserError: a file that is none of them, or cannot be read.
    """
    if not arguments:
        yield from installation()
        yield from plug_in(ray)
        return
    logs = [text for text in arguments if text.endswith((".jsonl", "trainer_state.json"))]
    for text in logs:
        yield from _logged(Path(text))
    scripts = [text for text in arguments if text.endswith(".py")]
    if len(scripts) > 1:
        raise UserError(f"one script at a time, got {', '.join(scripts)}")
    given = _settings([text for text in arguments if text not in (*logs, *scripts)])
    if scripts:
        known, unknown, said = _of_script(Path(scripts[0]), given.keys())
        yield from said
        yield from trl_settings({**known, **given}, unknown, trust=trust)
    elif "actor_rollout_ref" not in given and is_of_trl(given):
        yield from trl_settings(given, trust=trust)
    elif len(logs) < len(arguments):
        yield from verl_settings(given, trust=trust)


def _settings(arguments: Sequence[str]) -> dict[str, Any]:
    """Read nested settings from YAML files and `key=value` overrides. A leading + or ++ is Hydra's; later ones win."""
    config: dict[str, Any] = {}
    for text in arguments:
        if "=" in text and not Path(text).exists():
            put(config, *setting(text.lstrip("+")))
        else:
            config = merge(config, checked(read_yaml(Path(text)), dict[str, Any], text))
    return config


def _of_script(path: Path, given: Set[str]) -> tuple[dict[str, Any], frozenset[str], list[Finding]]:
    """Read a Python script's values for GRPOConfig or BandPOConfig. The script is not run.

    Args:
        path: the script.
        given: names that are known without it.

    Returns:
        The settings by name, with the trust region that BandPOTrainer is given, None without one; the names of
        arguments that are not plain values; and what is to be said of the reading.

    Raises:
        UserError: it is not Python, or calls neither config, or more than one.
    """
    try:
        tree = ast.parse(content_of(path))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not Python: {error}") from None
    calls = [(_name(node.func), node.keywords) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    configs = [call for call in calls if call[0] in _CONFIGS]
    if len(configs) != 1:
        what = f"calls {' or '.join(_CONFIGS)} {len(configs)} times; one call is expected"
        raise UserError(f"{path} {what}; settings can be given as key=value, too")
    ((called, keywords),) = configs
    found: dict[str, Any] = {}
    for words in (words for name, words in calls if name == "BandPOTrainer"):
        found["trust_region"] = None
        rules = [word for word in words if word.arg in ("trust_region", None)]
        keywords += [ast.keyword("trust_region", word.value if word.arg else ast.Name("any")) for word in rules]
    unread: set[str] = set()
    hidden: set[str] = set()
    said: list[Finding] = []
    for word in keywords:
        try:
            value = _plain_value(word.value)
            found |= value if word.arg is None else {word.arg: value}  # of **{...}, too
        except (ValueError, TypeError, RecursionError):
            if word.arg is not None:
                unread.add(word.arg)
                continue
            code = ast.unparse(word.value)
            what = f"{called}(**{code}): {code} cannot be read, for the script is not run; plain values in it can"
            cure = f"give what is in it too: bandpo doctor {path.name} epsilon_high=0.28 loss_type=dapo ..."
            said.append(Finding("warning", what, cure))
            hidden = JUDGED.keys() - found.keys()  # it may hold any
    if shown := sorted((unread & {*JUDGED, "trust_region"}) - given):
        what = f"{', '.join(shown)}: not a plain value in the script; what depends on it is not judged"
        said.append(Finding("note", what))
    return found, frozenset((unread | hidden) - given), said


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _plain_value(code: ast.expr) -> Any:
    """Make the value of code of plain values and calls of rules. Nothing else is run.

    Raises ValueError where there is more in it, and TypeError for arguments that a rule does not take.
    """
    classes = (*Region.kinds.values(), *Law.kinds.values(), *Application.kinds.values())
    makers: dict[str, Any] = {each.__name__: each for each in classes}
    makers |= {"Objective": Objective, "method": method, "trust_region": trust_region, "float": float}
    called = code.func if isinstance(code, ast.Call) else code
    name = ast.unparse(called).rpartition(".")[2] if isinstance(called, ast.Name | ast.Attribute) else ""
    make = makers.get(name)
    if isinstance(code, ast.Call) and make is not None and all(keyword.arg for keyword in code.keywords):
        given = [_plain_value(each) for each in code.args]
        named = {str(keyword.arg): _plain_value(keyword.value) for keyword in code.keywords}
        if make is trust_region and (own := own_type([*given, *named.values()])) is not None:
            raise ValueError(not_loaded(own))
        return make(*given, **named)
    if isinstance(code, ast.Tuple):
        return tuple(map(_plain_value, code.elts))
    if not isinstance(code, ast.Call) and (make is not None or name == "inf"):
        return math.inf if make is None else make
    try:
        return ast.literal_eval(code)
    except ValueError:
        more = "is more than plain values and rules, and code is not run"
        raise ValueError(f"{ast.unparse(code)} {more}") from None


def _logged(path: Path) -> Iterator[Finding]:
    """Check in a log whether the run broke, and whether the rule acted. It is ours, TRL's or verl's."""
    rows, why = read_rows(path), None
    with contextlib.suppress(UserError):  # not a folder of ours
        why = read_info(path.parent).get("stopped") if path.name == "metrics.jsonl" else None
    if why:
        yield Finding("problem", f"the run was stopped: {why}")
    if not rows and why:  # before its first row
        return
    if not rows:
        raise UserError(f"{path} must be a log of bandpo, TRL or verl, one JSON object a line")
    names = {name for row in rows for name in row}
    if any(row.get("actor/bandpo/half_precision") for row in rows):
        what = "log-probabilities reached the loss in half precision: ratios are wrong by percents"
        yield Finding("problem", what, verl_in_float32(version_of("verl") or ""))
    if any(name.startswith("actor/") for name in names) and not any(name.startswith("actor/bandpo/") for name in names):
        yield Finding("note", "no metric actor/bandpo/...: another loss")
    if lost := lost_in(rows):
        cure = (
            "go on from a checkpoint before that, with a smaller learning rate, gradient clipping, or bf16 for fp16; "
            "where grad_norm alone is named, a loss scaler or verl may have skipped these steps, which does no harm"
        )
        yield Finding("problem", f"{path}: {lost}", cure)
    yield _clip(path)


def _clip(path: Path) -> Finding:
    """Say what share of the tokens the rule stops, and what that means. If none, say whether it could stop any."""
    log = Followed(path)
    log.poll()
    run = Curves(**by_step(log.rows, str(path)))
    outside = run.share("clip/fraction", ("clip/count", "tokens"))
    ours = bool(np.isfinite(outside).any())
    shares = outside if ours else run.share("cut/fraction")
    known = 100 * abs(shares[np.isfinite(shares)])
    if not len(known):
        what = f"no clip rate is in {path}, under bandpo's names, TRL's or verl's, so nothing can be said of the clip"
        return Finding("note", what, "docs/run.md has the names, and what logs them")
    there = {name for row in log.rows for name in row}
    name = "clip/fraction" if ours else next((name for name in _THEIRS if name in there), "cut/fraction")
    if known.any():
        said = f"{known.mean():.2g} % of the tokens {'are outside' if ours else 'are clipped'}"
        spread = f"mean of {len(known)} rows; median {np.median(known):.2g} %, {known.min():.2g} to {known.max():.2g} %"
        word, cure = _meant(known.mean(), *_AT_ONE_USE[ours])
        return Finding("ok", f"{name}: {said} ({spread}), so {word}", cure)
    ratios = [
        abs(row[key])
        for row in log.rows
        for key in ("log_ratio/max", "log_ratio/min")
        if isinstance(row.get(key), (int, float))
    ]
    if not ratios:  # verl's log has none
        what = f"{name} is 0 in all {len(known)} rows: the ratio is 1 by design (one optimizer step per batch)"
        return Finding("warning", f"{what}, or the clip is wider than every ratio", _MORE_STEPS)
    if max(ratios) <= _ROUNDING:
        what = "the ratio is 1 by design: each batch is used for one optimizer step, and no rule acts; no log-ratio"
        return Finding("problem", f"{what} in {path} is farther from 0 than {max(ratios):.2g}", _MORE_STEPS)
    what = f"dead clip: no token in {path} was outside, though log-ratios go as far as {max(ratios):.3g}"
    return Finding("warning", what, "bandpo calibrate finds the number at which a rule acts; docs/choose.md")


def _meant(percent: float, seen: float, few: float) -> tuple[str, str]:
    """Say what a share means, and what was seen at such a one."""
    if percent <= few:
        so = f"this run is one without a clip, but for {percent:.2g} % of the tokens: the rule can hardly matter"
        cure = f"tune the learning rate first. {ONCE.format(seen)}; half the best rate cost 0.065. Where something rare"
        return so, f"{cure} may die out, an entropy bonus of 0.01 or good answers x 0.85 can: docs/choose.md"
    so = "the rule acts on few tokens, and may matter a little" if percent < 1 else "the rule can matter"
    return so, f"train without a clip, too, with its own learning rate. {ONCE.format(seen)}; {EIGHT}. docs/choose.md"
