"""Read settings, scripts and logs for `bandpo doctor`. The checks are those of `bandpo.doctor`."""

import ast
import contextlib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bandpo.clipping import clip_in_words
from bandpo.doctor import Finding, not_loaded, own_type
from bandpo.doctor.hosts import FACTS, host_of, host_settings
from bandpo.doctor.installed import installation, plug_in, version_of
from bandpo.doctor.on_trl import JUDGED, is_of_trl, trl_settings
from bandpo.errors import UserError, counted
from bandpo.files import shortened
from bandpo.integrations import verl_in_float32
from bandpo.losses.nodes import method
from bandpo.losses.objective import Objective
from bandpo.losses.surrogates import SurrogateWeight
from bandpo.trust_regions.base import Region
from bandpo.trust_regions.nodes import trust_region

from ..config.recipe import merge, put, setting
from ..config.run_folder import read_info
from ..files.logs import (
    CLIP_RATES,
    Followed,
    files_of,
    is_tracked,
    logs_at,
    lost_in,
    name_of,
    read,
    unscored_in,
)
from ..files.reading import content_of, read_yaml
from ..statistics.curves import Curves, by_step
from .shell import SUFFIXES, not_beside, of_shell, script_text

_CONFIGS = ("GRPOConfig", "BandPOConfig")  # classes that a script gives its settings to
_IMAGES = r"(?m)^[^#\n]*(\bAuto(Processor|ModelForImageTextToText)\b|-VL-)"  # of a model that reads them
# Settings that no other trainer's configuration has.
_GRPO = {
    "num_generations",
    "num_iterations",
    "steps_per_generation",
    "epsilon_high",
    "importance_sampling_level",
}
# What starts TRL's GRPO, and flags that no other program has, but for ms-swift's on Megatron, which counts otherwise.
_OF_TRL = (
    r"(?s)\A(?!.*\bmegatron\s+rlhf\b).*"
    r"(\btrl\s+grpo\b|\b\w*grpo\w*\.py\b|--(num[-_](iterations|generations)|steps[-_]per[-_]generation)\b)"
)
_GROUPS = (
    "actor",
    "algorithm",
    "data",
    "rollout",
)  # folders of Hydra, whose files are what stands below that name
_CHANGES = ("update", "setdefault", "pop", "popitem", "clear")  # a dict in place


def examine(arguments: Sequence[str], *, ray: bool = True, trust: bool = False) -> Iterator[Finding]:
    """Examine the installation without arguments.

    Arguments name logs (as `logs_at` finds them), scripts (.py, .sh) and settings, which files and overrides add up to
    (YAML, JSON, TOML). No script is run. With `trust`, the module of a user's rule is imported.

    Raises:
        UserError: a file that is none of them, or cannot be read.
    """
    if not arguments:
        yield from installation()
        yield from plug_in(ray)
        return
    paths = {text: Path(text) for text in arguments}
    logs = [
        text
        for text, path in paths.items()
        if text.endswith((".jsonl", "trainer_state.json")) or path.is_dir()
    ]
    logs += [
        text for text, path in paths.items() if is_tracked(path) and ("=" not in text or files_of(path))
    ]
    runs = {key: log for text in logs for key, log in logs_at(paths[text]).items()}
    for key, log in runs.items():
        for finding in _logged(log):
            yield replace(finding, what=f"{name_of(key)}: {finding.what}") if len(runs) > 1 else finding
    rest = [text for text in arguments if text not in logs]
    files = {text: _text(text) for text in rest if Path(text).exists() or "=" not in text}
    for text, content in files.items():
        if "\0" in content and content[:2] != 2 * "\ufffd":  # UTF-16
            raise UserError(
                f"{text} is a binary file; expected settings (.yaml, .json, .toml), a script or a log"
            )
    calls = not_beside("\n".join(files[text] for text in files if text.endswith(SUFFIXES)))
    missing = ", ".join(sorted(calls - {Path(text).name for text in files}))
    if missing:
        yield Finding(
            "note",
            f"{missing}: called in a script, and not beside it; what that sets is not given here",
            f"give it too, first: bandpo doctor {missing} {' '.join(arguments)}",
        )
    whole, scripts = "\n".join((*rest, *files.values())), [text for text in files if text.endswith(".py")]
    host = host_of(whole)
    if scripts and (host is None or re.search(rf"\b({'|'.join(_CONFIGS)})\(", whole)):
        settings = _settings([text for text in rest if text not in scripts])
        values, unknown, findings = _of_script([Path(text) for text in scripts], settings.keys())
        yield from findings
        host = "unsloth" if re.search(r"(?m)^[^#\n]*\bunsloth\b", whole) else "TRL"
        values |= {"images": True} if re.search(_IMAGES, whole) else {}
        yield from trl_settings({**values, **settings}, unknown, host=host, trust=trust)
    elif host is not None:
        yield from host_settings(host, _settings(rest), whole, trust=trust)
    elif rest:
        yield from _of_trl(rest, files, whole, trust)


def _of_trl(rest: Sequence[str], files: Mapping[str, str], whole: str, trust: bool) -> Iterator[Finding]:
    """Judge settings of TRL, or say that they are no trainer's."""
    settings = _settings(rest, flags=re.search(_OF_TRL, whole) is not None)
    inner = [name for name, value in settings.items() if isinstance(value, dict) and value.keys() & _GRPO]
    if len(inner) == 1 and not settings.keys() & _GRPO:
        yield Finding("note", f"what stands below {inner[0]} is read as TRL's settings")
        settings |= settings[inner[0]]
    if not is_of_trl(settings):
        what = f"unknown settings: none is of TRL's GRPOConfig, {', '.join(FACTS)}"
        yield Finding(
            "warning", what, "give the trainer's configuration, its launch script, or its overrides"
        )
    elif "--config" in settings and all(text.endswith(SUFFIXES) for text in files):
        what = f"--config {settings['--config']} is not read"
        yield Finding(
            "warning", what, f"give that file too, first: bandpo doctor CONFIG.yaml {' '.join(files)}"
        )
    else:
        unknown = frozenset(
            name for name, value in settings.items() if isinstance(value, str) and "$" in value
        )
        plain = {name: settings[name] for name in settings.keys() - unknown}
        yield from trl_settings(plain, unknown, trust=trust, whole=bool(files) and "$@" not in whole)


def _text(path: str) -> str:
    return (
        script_text(Path(path))
        if path.endswith(SUFFIXES)
        else content_of(Path(path)).decode(errors="replace")
    )


def _settings(arguments: Sequence[str], *, flags: bool = False) -> dict[str, Any]:
    """Read nested settings from files and `key=value` overrides. A leading + or ++ is Hydra's; later ones win.

    With `flags`, a script's are settings of TRL, but for --config.
    """
    config: dict[str, Any] = {}
    for text in arguments:
        path, node = Path(text), None
        if "=" in text and not path.exists():
            put(config, *setting(text.lstrip("+")))
        elif path.suffix in SUFFIXES:
            node = of_shell(_text(text))
            if flags:
                names = {name: name.lstrip("-").replace("-", "_") for name in node if name != "--config"}
                node = {names.get(name, name): value for name, value in node.items()}
        elif path.suffix == ".py":
            node = _of_code(path)
        elif path.suffix == ".toml":
            try:
                node = tomllib.loads(_text(text))
            except tomllib.TOMLDecodeError as error:
                raise UserError(f"{path} is not TOML: {error}") from None
        else:
            node = read_yaml(path)
            # Hydra's overrides.yaml.
            if isinstance(node, list) and all(re.match(r"~|.+=", str(x)) for x in node):
                node = _settings([str(x) for x in node if str(x)[0] != "~"])
            elif not isinstance(node, dict | None):
                raise UserError(
                    f"{text} must hold settings by name, or Hydra's list of key=value, got {shortened(node)}"
                )
            elif path.absolute().parent.name in _GROUPS and "defaults" in (node or {}):
                node = {path.absolute().parent.name: node}
        config = merge(config, node or {})
    return config


def _of_code(path: Path) -> dict[str, Any]:
    """Read the arguments of a script's calls, each below what is called. Its strings may hold flags."""
    values: dict[str, Any] = {}
    calls, texts = _calls(path)
    for key, value in (
        (f"{name}.{word}", value) for name, words in calls for word, value in words.items()
    ):
        values[key] = value if values.setdefault(key, value) == value else ...
    config = of_shell("\n".join(texts))
    for key, value in values.items():
        with contextlib.suppress(UserError):  # a path below a plain value
            put(config, key, value)
    return config


def _calls(path: Path) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """Read a Python script's calls, names and arguments by keyword, and its strings. The script is not run.

    A value that is not plain is `...`; a name has the value that the script gives it, if nothing changes it later.
    """
    try:
        nodes = list(ast.walk(ast.parse(content_of(path))))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not Python: {error}") from None
    assigned: dict[str, ast.expr] = {}
    names: dict[int, list[str]] = {}  # that a value was assigned to
    later: dict[str, dict[str, Any]] = {}  # attributes that are set, by what they are of
    inner = [
        each.target for each in nodes if isinstance(each, ast.comprehension)
    ]  # names that end with their loop
    inner += [each.target for each in nodes if isinstance(each, ast.AnnAssign) and each.value is None]
    local = {id(each) for target in inner for each in ast.walk(target)}
    changed: list[str] = []  # each name once for each time
    for node in (node for node in nodes if id(node) not in local):
        match node:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    assigned[_name(target) or "?"] = value
                    names.setdefault(id(value), []).append(_name(target))
            case ast.Attribute(value=owner, ctx=ast.Store()):
                changed.append(node.attr)
                if isinstance(owner, ast.Name) or _name(owner) == "args":  # or trainer.args
                    later.setdefault(_name(owner), {})[node.attr] = ...
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del())
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.alias(asname=str(name))
                | ast.alias(name=name)
            ):
                changed.append(name.partition(".")[0])
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if attr in _CHANGES:
                changed.append(name)
    assigned = {name: value for name, value in assigned.items() if changed.count(name) < 2}
    calls: list[tuple[str, dict[str, Any]]] = []
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        name, words = ast.unparse(call.func), dict[str, Any]()
        is_ours = name.endswith("bandpo_loss")  # takes its rule first
        for word in [
            *call.keywords,
            *(ast.keyword("trust_region", code) for code in call.args[:1] if is_ours),
        ]:
            try:
                value = _plain_value(assigned.get(_name(word.value)) or word.value)
            except (ValueError, TypeError, RecursionError):
                value = ...
            if word.arg is None and isinstance(value, dict):
                words |= value
            else:
                words[word.arg or f"**{ast.unparse(word.value)}"] = value
        is_config = name.rpartition(".")[2] in _CONFIGS
        for each in [*names.get(id(call), ()), *(["args"] if is_config else [])]:
            words |= later.get(each, {})
        calls.append((name, words))
    return calls, [
        node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def _of_script(
    paths: Sequence[Path], overridden: Set[str]
) -> tuple[dict[str, Any], frozenset[str], list[Finding]]:
    """Read scripts' values for GRPOConfig or BandPOConfig.

    Returns the settings by name, with the trust region of BandPOTrainer; those whose values cannot be read, but for the
    `overridden` ones; and findings about the reading. Raises UserError if it is not Python, or calls neither config, or
    more than one.
    """
    calls = [(name.rpartition(".")[2], words) for path in paths for name, words in _calls(path)[0]]
    configs = [call for call in calls if call[0] in _CONFIGS]
    if len(configs) != 1:
        what = f"calls {' or '.join(_CONFIGS)} {len(configs)} times; one call is expected"
        raise UserError(
            f"{' and '.join(map(str, paths))} {what}; settings can be given as key=value, too"
        )
    ((called, values),) = configs
    for words in (words for name, words in calls if name == "BandPOTrainer"):
        values["trust_region"] = words.get(
            "trust_region", ... if any("**" in word for word in words) else None
        )
    findings: list[Finding] = []
    unread = {name for name, value in values.items() if value is ...}
    for code in [name[2:] for name in values if name[:2] == "**"]:
        what = f"{called}(**{code}): {code} cannot be read, for the script is not run; plain values in it can"
        cure = (
            f"give what is in it too: bandpo doctor {paths[0].name} epsilon_high=0.28 loss_type=dapo ..."
        )
        findings.append(Finding("warning", what, cure))
    # After such a warning it may hold any setting.
    hidden = JUDGED.keys() - values.keys() if findings else set[str]()
    shown = sorted(unread & ({*JUDGED, "trust_region"} - overridden))
    if shown:
        what = f"{', '.join(shown)}: not a plain value in the script; what depends on it is not judged"
        findings.append(
            Finding("note", what, f"give it too: bandpo doctor {paths[0].name} {shown[0]}=...")
        )
    plain = {name: values[name] for name in values.keys() - unread}
    return plain, frozenset((unread | hidden) - overridden), findings


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _plain_value(code: ast.expr) -> Any:
    """Make the value of code of plain values and calls of rules. Nothing else is run.

    Raises ValueError where there is more in it, and TypeError for arguments that a rule does not take.
    """
    classes = (*Region.kinds.values(), *SurrogateWeight.kinds.values())
    makers: dict[str, Any] = {each.__name__: each for each in classes}
    makers |= {
        "Objective": Objective,
        "method": method,
        "trust_region": trust_region,
        "float": float,
        "dict": dict,
    }
    called = code.func if isinstance(code, ast.Call) else code
    name = ast.unparse(called).rpartition(".")[2] if isinstance(called, ast.Name | ast.Attribute) else ""
    make = makers.get(name)
    if isinstance(code, ast.Call) and make is not None and all(keyword.arg for keyword in code.keywords):
        values = [_plain_value(each) for each in code.args]
        named = {str(keyword.arg): _plain_value(keyword.value) for keyword in code.keywords}
        own = own_type([*values, *named.values()]) if make is trust_region else None
        if own is not None:
            raise ValueError(not_loaded(own))
        return make(*values, **named)
    if isinstance(code, ast.Tuple):
        return tuple(map(_plain_value, code.elts))
    if not isinstance(code, ast.Call) and (make is not None or name == "inf"):
        return math.inf if make is None else make
    try:
        return ast.literal_eval(code)
    except ValueError:
        raise ValueError(
            f"{ast.unparse(code)} is more than plain values and rules, and code is not run"
        ) from None


def _logged(path: Path) -> Iterator[Finding]:
    """Check in a log whether the run broke, and whether the rule acted."""
    log, why = read(path), None
    rows = log.rows
    with contextlib.suppress(UserError):  # not a folder of ours
        why = read_info(path.parent).get("stopped") if path.name == "metrics.jsonl" else None
    if why:
        yield Finding("problem", f"the run was stopped: {why}")
    if not rows and why:  # before its first row
        return
    if not rows:
        raise UserError(
            f"{path} must be a log of a training, such as JSON lines with 'step'; docs/run.md lists them"
        )
    names = {name for row in rows for name in row}
    for note in log.notes[: len(log.remarks) + bool(log.damaged)]:
        yield Finding("note", f"{path}: {note}")
    if any(row.get("half_precision") for row in rows):
        yield Finding(
            "problem",
            "log-probabilities reached the loss in half precision: ratios are wrong by percents",
            verl_in_float32(version_of("verl") or ""),
        )
    if "training/global_step" in names and not names & {"tokens", "half_precision"}:  # of verl alone
        yield Finding("note", "no metric actor/bandpo/...: another loss")
    lost = lost_in(rows)
    if lost:
        yield Finding(
            "problem",
            f"{path}: {lost}",
            "go on from a checkpoint before that, with a smaller learning rate, gradient clipping, or bf16 for fp16; "
            "where grad_norm alone is named, a loss scaler or verl may have skipped these steps, which does no harm",
        )
    unscored = unscored_in(rows)
    if unscored:
        yield Finding("warning", f"{path}: {unscored}", "look at ten graded answers")
    yield clip_finding(path, log)


def clip_finding(path: Path, log: Followed) -> Finding:
    """Say what share of the tokens the rule clips, and what that means. If none, say whether it could clip any."""
    run = Curves(**by_step(log.rows))
    outside = run.share("clip/fraction", ("clip/count", "tokens"))
    cut = not np.isfinite(outside).any()  # only those that lose their gradient are counted
    shares = run.share("cut/fraction") if cut else outside
    there = np.isfinite(shares)
    percents = 100 * abs(shares[there])
    if not len(percents):
        what = f"no clip rate is in {path}, under a name of bandpo or of a trainer, so nothing can be said of the clip"
        return Finding("note", what, "docs/run.md has the names, and what logs them")
    names = {name for row in log.rows for name in row}
    of = "cut/fraction" if cut else "clip/fraction"
    name = next((theirs for theirs, ours in CLIP_RATES.items() if theirs in names and ours == of), of)
    ratios = [row.get(key) for row in log.rows for key in ("log_ratio/max", "log_ratio/min")]
    ratios = [abs(ratio) for ratio in ratios if isinstance(ratio, int | float)]  # verl's log has none
    tokens = run.total("tokens")[there]
    mean = np.average(percents, weights=tokens if np.isfinite(tokens).all() and tokens.any() else None)
    seen = f"in {counted(len(percents), 'row')}"
    if mean:
        seen += f" (median {np.median(percents):.2g} %, {percents.min():.2g} to {percents.max():.2g} %)"
    level, what, cure = clip_in_words(
        float(mean), seen, max(ratios, default=None), cut=cut, decimals=log.decimals
    )
    return Finding(level, f"{name}: {what}", cure)
