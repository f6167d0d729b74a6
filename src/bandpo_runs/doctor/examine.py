"""Read the settings, scripts and logs that `bandpo doctor` checks."""

import contextlib
import csv
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bandpo.clipping import clip_in_words
from bandpo.errors import UserError, counted
from bandpo.files import shortened
from bandpo.integrations import VERL_IN_FLOAT32

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
from ..files.reading import read_yaml
from ..statistics.collapse import Curves, by_step
from . import Finding, Level
from .hosts import FACTS, host_of, host_settings
from .installed import installation
from .on_trl import NAMES, trl_settings
from .scripts import CONFIGS, SUFFIXES, called, of_code, of_grpo, of_shell, text_of

# Settings that no other trainer's configuration has.
_GRPO = {
    "num_generations",
    "num_iterations",
    "steps_per_generation",
    "epsilon_high",
    "importance_sampling_level",
}
# What starts TRL's GRPO, and flags that no other program has. ms-swift has them on Megatron, and counts otherwise.
_OF_TRL = (
    r"(?s)\A(?!.*\bmegatron\s+rlhf\b).*"
    r"(\btrl\s+grpo\b|\b\w*grpo\w*\.py\b|--(num[-_](iterations|generations)|steps[-_]per[-_]generation)\b)"
)

# Written by `python -m research.report`. Of each point: what a rule moved, and the percentage of tokens it clipped.
POINTS = Path(__file__).with_name("points.csv")
# Settings behind the arguments of a script's caller.
_BEHIND = r"\$(?:[@*]|\{[@*][^}]*\})[\"']?(?:[ \t]|\\\n)+[\"']?(?:--[a-z]|[+\w-][\w.+-]*=)"
# What a verdict is where settings are missing.
_OF_A_PART: dict[Level, Level] = {"ok": "note", "problem": "warning"}


def examine(arguments: Sequence[str], *, trust: bool = False) -> Iterator[Finding]:
    """Examine the installation without arguments.

    Arguments name logs (as `logs_at` finds them), scripts (.py, .sh) and settings, which files and overrides add up to
    (YAML, JSON, TOML). No script is run. With `trust`, the module of a user's rule is imported.

    Raises:
        UserError: a file of another kind, or one that cannot be read.
    """
    if not arguments:
        yield from installation()
        return
    logs = list(filter(_is_log, arguments))
    runs = {key: log for text in logs for key, log in logs_at(Path(text)).items()}
    for key, log in runs.items():
        for finding in _logged(log):
            yield replace(finding, what=f"{name_of(key)}: {finding.what}") if len(runs) > 1 else finding
    rest = [text for text in arguments if text not in logs]
    files = {text: text_of(text) for text in rest if Path(text).exists() or "=" not in text}
    shells = {path: text for path, text in files.items() if path.endswith(SUFFIXES)}
    calls = {
        Path(name).name: next(
            filter(Path.is_file, (Path(path).parent / name, Path(path).parent / Path(name).name)),
            Path(Path(name).name),
        )
        for path, text in shells.items()
        for name in called(text)
    }
    # A script that is called stands before its caller, whose arguments are its last.
    shell = "\n".join(
        shells[path] for path in sorted(shells, key=lambda path: Path(path).name not in calls)
    )
    missing = [str(calls[name]) for name in sorted(calls.keys() - {Path(path).name for path in files})]
    if missing:
        yield Finding(
            "note",
            f"{', '.join(missing)} is called in the script and not read, so its settings are unknown",
            f"add it: bandpo doctor {' '.join((*missing, *arguments))}",
        )
    whole, scripts = "\n".join((*rest, *files.values())), [text for text in files if text.endswith(".py")]
    host = host_of(whole)
    if host is not None and not (scripts and re.search(rf"\b({'|'.join(CONFIGS)})\(", whole)):
        findings = host_settings(host, _settings(rest, shell), whole, trust=trust)
    else:
        all_here = bool(files) and not missing and "$@" not in whole
        findings = _of_trl(rest, files, shell, trust, all_here) if rest else iter(())
    # What a called script sets behind its caller's arguments wins over them.
    is_part = missing or any(
        re.search(_BEHIND, text) for path, text in shells.items() if Path(path).name in calls
    )
    for finding in findings:
        yield replace(
            finding, level=_OF_A_PART.get(finding.level, finding.level) if is_part else finding.level
        )


def _is_log(text: str) -> bool:
    path = Path(text)
    is_tracker = is_tracked(path) and ("=" not in text or bool(files_of(path)))
    return is_tracker or path.is_dir() or text.endswith((".jsonl", "trainer_state.json"))


def _of_trl(
    rest: Sequence[str], files: Mapping[str, str], shell: str, trust: bool, all_here: bool
) -> Iterator[Finding]:
    """Judge settings of TRL, or say that they belong to another program."""
    scripts, whole = [text for text in files if text.endswith(".py")], "\n".join((*rest, *files.values()))
    settings = of_grpo([Path(text) for text in scripts]) if scripts else {}
    others = [text for text in rest if text not in scripts]
    settings |= _settings(others, shell, flags=re.search(_OF_TRL, whole) is not None)
    inner = [name for name, value in settings.items() if isinstance(value, dict) and value.keys() & _GRPO]
    if len(inner) == 1 and not settings.keys() & _GRPO:
        yield Finding("note", f"the settings below {inner[0]} are read as TRL's")
        settings |= settings[inner[0]]
    if not scripts and NAMES.isdisjoint(settings):
        yield Finding(
            "warning",
            f"unknown settings: none is of TRL's GRPOConfig, {', '.join(FACTS)}",
            "give the trainer's configuration, its launch script, or its overrides",
        )
    elif "--config" in settings and all(text.endswith(SUFFIXES) for text in files):
        yield Finding(
            "warning",
            f"--config {settings['--config']} is not read",
            f"add that file: bandpo doctor CONFIG.yaml {' '.join(files)}",
        )
    else:
        settings = {name: ... if "$" in str(value) else value for name, value in settings.items()}
        host = "unsloth" if scripts and re.search(r"(?m)^[^#\n]*\bunsloth\b", whole) else "TRL"
        yield from trl_settings(settings, host=host, trust=trust, whole=all_here)


def _settings(arguments: Sequence[str], shell: str, *, flags: bool = False) -> dict[str, Any]:
    """Read nested settings from files and `key=value` overrides. A leading + or ++ is Hydra's; later ones win.

    With `flags`, those of scripts, whose text is `shell`, are settings of TRL, except for --config.
    """
    config: dict[str, Any] = {}
    for text in arguments:
        path = Path(text)
        if "=" in text and not path.exists():
            put(config, *setting(text.lstrip("+")))
        elif text.endswith(SUFFIXES):
            plain = {
                name.lstrip("-").replace("-", "_") if flags and name != "--config" else name: value
                for name, value in of_shell(shell).items()
            }
            config, shell = merge(config, plain), ""  # all scripts stand where the first one does
        else:
            config = merge(config, of_code(path) if path.suffix == ".py" else _settings_in(path))
    return config


def _settings_in(path: Path) -> dict[str, Any]:
    """Read the settings of a file other than a script."""
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text_of(str(path)))
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path} is not TOML: {error}") from None
    node = read_yaml(path)
    if not isinstance(node, dict | None):
        raise UserError(
            f"{path} must hold settings by name, got {shortened(node)}; give key=value as they are"
        )
    return node or {}


def _logged(path: Path) -> Iterator[Finding]:
    """Check in a log whether the run broke, and whether the rule had an effect."""
    log, why = read(path), None
    with contextlib.suppress(UserError):  # not a folder of ours
        why = read_info(path.parent).get("stopped") if path.name == "metrics.jsonl" else None
    if why:
        yield Finding("problem", f"the run was stopped: {why}")
    if not log.rows and not why:  # it may be stopped before its first row
        raise UserError(
            f"{path} must be a log of a training, such as JSON lines with 'step'; docs/run.md lists them"
        )
    names = {name for row in log.rows for name in row}
    for note in log.notes[: len(log.remarks) + bool(log.damaged)]:
        yield Finding("note", f"{path}: {note}")
    of_verl = "training/global_step" in names and not names & {"tokens", "half_precision"}
    lost, unscored = lost_in(log.rows), unscored_in(log.rows)
    findings: list[tuple[Any, Level, str, str]] = [
        (
            any(row.get("half_precision") for row in log.rows),
            "problem",
            "log-probabilities reached the loss in half precision, so ratios are off by several percent",
            VERL_IN_FLOAT32,
        ),
        (of_verl, "note", "the loss was not bandpo's: the log has no metric actor/bandpo/...", ""),
        (
            lost,
            "problem",
            f"{path}: {lost}",
            "resume from a checkpoint before that, with a smaller learning rate, gradient clipping, or bf16 for fp16; "
            "where grad_norm alone is named, a loss scaler or verl may have skipped these steps, which is harmless",
        ),
        (unscored, "warning", f"{path}: {unscored}", "look at ten graded answers"),
    ]
    yield from (Finding(level, what, cure) for holds, level, what, cure in findings if holds)
    if log.rows:
        yield from clip_findings(path, log)


def clip_findings(path: Path, log: Followed) -> Iterator[Finding]:
    """Say what share of the tokens the rule clips, and what that means.

    If it clips none, say whether it could clip any. Else say what such a share moved in other runs.
    """
    run = Curves(**by_step(log.rows))
    of, shares = "clip/fraction", run.share("clip/fraction", ("clip/count", "tokens"))
    if not np.isfinite(shares).any():  # only those that lose their gradient are counted
        of, shares = "cut/fraction", run.share("cut/fraction")
    there = np.isfinite(shares)
    percents = 100 * abs(shares[there])
    if not len(percents):
        yield Finding(
            "note",
            f"no clip fraction is in {path}, under a name of bandpo or of a trainer",
            "docs/run.md has the names, and what logs them",
        )
        return
    names = {name for row in log.rows for name in row}
    name = next((theirs for theirs, ours in CLIP_RATES.items() if theirs in names and ours == of), of)
    ratios = [row.get(key) for row in log.rows for key in ("log_ratio/max", "log_ratio/min")]
    # verl's log has none
    farthest = max((abs(x) for x in ratios if isinstance(x, int | float)), default=None)
    tokens = run.total("tokens")[there]
    weights = tokens if np.isfinite(tokens).all() and tokens.any() else None
    mean = float(np.average(percents, weights=weights))
    several = f" (on average; median {np.median(percents):.2g} %, {percents.min():.2g} to {percents.max():.2g} %)"
    seen = f"in {counted(len(percents), 'row')}{several if mean else ''}"
    level, what, cure = clip_in_words(
        mean, seen, farthest, cut=of == "cut/fraction", decimals=log.decimals
    )
    yield Finding(level, f"{name}: {what}", cure)
    if mean:
        yield nearest(mean)


def nearest(percent: float) -> Finding:
    """Name the runs that clipped about this percentage of tokens. Shares of whole responses are left out.

    >>> nearest(2.0).level
    'note'
    """
    near: list[tuple[float, str]] = []
    for row in csv.DictReader(POINTS.read_text(encoding="utf-8").splitlines()):
        if (
            row["clipped"]
            and row["counted"] != "sequences"
            and row["kind"] in ("public run", "SmolLM2-135M")
        ):
            half = f" ± {float(row['pass1_half_width']):.2g}" if row["pass1_half_width"] else ""
            moved = f"{float(row['pass1']):+.2g}{half} from {row['against']}" if row["pass1"] else ""
            facts = [", ".join(filter(None, (moved, row["note"]))), row["source"]]
            text = f"{row['rule']} in {row['run']} ({'; '.join(filter(None, facts))})"
            near.append((abs(math.log(float(row["clipped"]) / percent)), text))
    # Two of those whose rules clip a third to three times as many tokens.
    named = [text for distance, text in sorted(near) if distance < math.log(3)][:2]
    what = f"runs that clipped about as many tokens: {'; '.join(named) or 'none of docs/report/index.md'}"
    return Finding("note", what, "docs/report/index.md says when a clip matters")
