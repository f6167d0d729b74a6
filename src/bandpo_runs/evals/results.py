"""Read results back: what one checkpoint did, and the log of the run that made it.

The label of a result is what comes before an = in front of its path, or that of the evaluation; "MODEL / METHOD" puts
METHOD under the heading MODEL. Results with the same label are runs of one method with other seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bandpo.errors import UserError

from ..files.logs import REWARDS, VALIDATED, files_of, is_log, logs_at, name_of, read, repetition
from ..statistics.collapse import Collapse
from ..statistics.curves import Curves, by_step
from ..statistics.estimators import Graded
from .folder import read_facts, read_graded

Columns = Mapping[str, str]  # names of columns by what they hold
# The columns of the paper's Table 1 in its order, by our names of the data sets and by those in verl's files.
_PAPER = {"amc23": "AMC2023", "aime24": "AIME2024", "aime25": "AIME2025"}
_PAPER |= {"aime_amc2023": "AMC2023", "aime_2024": "AIME2024", "aime_2025": "AIME2025"}


def in_paper(data: str) -> str:
    """Return the paper's name of a data set; of another one its own."""
    return _PAPER.get(data, data)


def papers_order(names: Iterable[str]) -> list[str]:
    """Put names of data sets in the paper's order, others last. Each is returned once."""
    order = ["AMC2023", "AIME2024", "AIME2025"]
    return sorted(dict.fromkeys(names), key=lambda name: order.index(x) if (x := in_paper(name)) in order else 3)


@dataclass(frozen=True)
class Logged:
    """Hold what a log says of one data set. It is mean@n and, by k, verl's best@k/mean."""

    data: str
    samples: int
    mean: float
    best: Mapping[int, float]


@dataclass(frozen=True, eq=False)
class Result:
    """Hold the result of one checkpoint. It has samples of each data set, and the collapse in its run's log, if any.

    `notes` say what of a file was left out, or under which name it was compared. Of a log there is `logged` in place
    of `graded`. `step` is that of the validation which a log or a dump of verl is of.
    """

    label: str
    source: Path
    graded: list[Graded]
    scorer: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    collapse: Collapse | None = None
    notes: tuple[str, ...] = ()
    logged: tuple[Logged, ...] = ()
    step: float | None = None

    @property
    def heading(self) -> str:
        return self.label.rpartition(" / ")[0]

    @property
    def method(self) -> str:
        return self.label.rpartition(" / ")[2]


def split_label(text: str) -> tuple[str | None, Path]:
    """Split "LABEL=PATH" or "PATH". An existing path or run of a chart is a path, = or not."""
    label, equals, path = text.partition("=")
    if equals and not Path(text).exists() and not files_of(Path(text)):
        return label, Path(path)
    return None, Path(text)


def read_results(
    texts: Sequence[str],
    scorer: str | None = None,
    logs: Iterable[str] = (),
    columns: Columns | None = None,
    drop_incomplete: bool = False,
    step: int | None = None,
) -> list[Result]:
    """Read results by `read_result`, with the logs of the runs that made their models.

    `logs` are LABEL=PATH, the log of a run; without it the log next to the model is read, if there is one.

    Raises:
        UserError: nothing there, not finished, not graded, or damaged; or a log of a label that no result has.
    """
    of_label: dict[str, str] = {}
    for text in logs:
        label, _, path = text.partition("=")
        if not (label and path):
            raise UserError(f"--log must be LABEL=PATH, got {text!r}")
        of_label[label] = path
    results = [read_result(text, scorer, columns, drop_incomplete, step) for text in texts]
    if step is not None and all(result.step is None for result in results):
        raise UserError(f"--step is for logs and dumps of verl, got only {', '.join(texts)}")
    unnamed = [r for r, text in zip(results, texts, strict=True) if r.step is not None and split_label(text)[0] is None]
    if len({(r.label, _home(r)) for r in unnamed}) > len({r.label for r in unnamed}):  # models with the same methods
        results = [replace(r, label=f"{_home(r)} / {r.label}") if r in unnamed else r for r in results]
    labels = dict.fromkeys(result.label for result in results)
    if unused := [label for label in of_label if label not in labels]:
        raise UserError(f"--log: no result has the label {unused[0]!r}; the labels are {', '.join(map(repr, labels))}")
    found = [of_label.get(result.label) or _log_of(result.source) for result in results]
    return [
        r if log is None else replace(r, collapse=read_log(Path(log)).collapse)
        for r, log in zip(results, found, strict=True)
    ]


def read_result(
    text: str, scorer: str | None = None, columns: Columns | None = None, drop_incomplete: bool = False,
    step: int | None = None,
) -> Result:  # fmt: skip
    """Read "PATH" or "LABEL=PATH". It is an evaluation folder, a file of answers, verl's folder of dumps, or a log.

    `scorer` is whose grades of the folder are read, or grades the answers of a file anew; `columns` and
    `drop_incomplete` are for a file, as for `dumps.read_dump`. `step` is of a log or of dumps; None: the last one.

    Raises:
        UserError: nothing there, not finished, not graded, or damaged; the message names the file.
    """
    label, path = split_label(text)
    file = file_at(path, step)
    if file is not None and is_log(file):
        if scorer:
            raise UserError(f"{file}: a log has no answers that --scorer {scorer} could grade")
        return _of_log(file, label or repetition(name_of(file))[0], step)
    if file is not None:
        from .dumps import read_dump  # with what reads Parquet and what grades, which a folder does not need

        notes: list[str] = []
        graded, by = read_dump(file, columns, scorer, drop_incomplete=drop_incomplete, say=notes.append)
        is_step = file.stem.isdecimal() and by.startswith("verl's")
        if is_step and [each.data for each in graded] == ["validation"]:
            notes.append("its dump names no data sets, so all problems are one column")
        return Result(
            label or repetition(_run_of(file).name if is_step else file.stem)[0], file, graded, by,
            notes=tuple(notes), step=int(file.stem) if is_step else None,
        )  # fmt: skip
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder; expected a folder of bandpo eval, or a file of answers")
    facts = read_facts(path)
    sampling = {**facts["sampling"], **facts.get("body", {})}
    sampling = {name: value for name, value in sampling.items() if value is not None}  # None was not sent
    label = label or repetition(facts["label"] or path.name)[0]
    return Result(label, path, read_graded(path, scorer), scorer or facts["scorer"], sampling)


def _home(result: Result) -> Path:
    """Return the folder of verl's logs, or of its folders of dumps."""
    if result.source.stem.isdecimal():
        return _run_of(result.source).parent
    return result.source.parent.parent if result.source.name == "metrics.jsonl" else result.source.parent


def _run_of(dump: Path) -> Path:
    """Return the folder that has a run's name. Our recipes have its dumps in `validation` below it."""
    folder = dump.resolve().parent
    return folder.parent if folder.name == "validation" else folder


def file_at(path: Path, step: int | None = None) -> Path | None:
    """Find the file to read at a path. It is a file, verl's dump of a step, or the log of a run.

    None for an evaluation folder, or if there is nothing.

    Raises:
        UserError: no dump of this step in the folder.
    """
    if not path.is_dir():
        return path if files_of(path) else None
    if (path / "eval.json").exists():
        return None
    dumps: dict[float, Path] = {int(file.stem): file for file in path.glob("*.jsonl") if file.stem.isdecimal()}
    if dumps:
        return dumps[_chosen(path, dumps, step)]
    logs = [log for log in logs_at(path).values() if files_of(log) and is_log(log)]
    return logs[0] if len(logs) == 1 else None


def _chosen(path: Path, steps: Iterable[float], step: int | None) -> float:
    nearest = max(steps) if step is None else min(steps, key=lambda each: abs(each - step))
    if step not in (nearest, None):
        raise UserError(f"{path}: no validation of step {step}; the nearest is of {nearest:.15g}")
    return nearest


def answered(result: Result) -> Result:
    """Return a result that has answers. Raises UserError for that of a log."""
    if not result.graded:
        raise UserError(
            f"{result.source}: a log has no answers, but their means, which bandpo table shows; verl writes answers "
            "with trainer.validation_data_dir, SkyRL with trainer.dump_eval_results, and prime-rl to traces.jsonl"
        )
    return result


def _of_log(path: Path, label: str, step: int | None) -> Result:
    """Read the validation of a step from a log, by default the last one."""
    log = read(path)
    rows = {at: [m for m in map(VALIDATED.fullmatch, row) if m and row[m[0]] is not None] for at, row in log.at.items()}
    rows = {at: found for at, found in rows.items() if any(match[2] == "mean" for match in found)}
    if not rows:
        raise UserError(
            f"{path}: no validation in it; expected numbers such as val-core/aime_2024/acc/mean@32, which verl logs "
            "where trainer.test_freq is set and the reward function returns acc"
        )
    at = _chosen(path, rows, step)
    sets: dict[str, dict[str, dict[int, float]]] = {}
    for name, data, kind, n in ((m[0], *m.groups()) for m in rows[at]):
        if not 0 <= (value := log.at[at][name]) <= 1:
            raise UserError(f"{path}, step {at}: {name} is {value:g}; a share of right answers, 0 to 1, is expected")
        sets.setdefault(data, {"mean": {}, "best": {}, "worst": {}})[kind][int(n)] = value
    logged = tuple(Logged(data, n, x, of["best"]) for data, of in sets.items() for n, x in of["mean"].items())
    collapse = Curves(**by_step(log.rows)).collapse
    scorer = "the run's reward function"
    return Result(label, path, [], scorer, collapse=collapse, notes=tuple(log.notes), logged=logged, step=at)


def _log_of(source: Path) -> Path | None:
    """Find the log of the run that made a folder's model. It lies with the model or up to two folders above."""
    model = Path(read_facts(source)["model"]) if source.is_dir() else source
    folders = (model.resolve(), *model.resolve().parents[:2]) if model.is_dir() else ()
    return next((log for folder in folders if (log := folder / "metrics.jsonl").is_file()), None)


def read_log(path: Path) -> Curves:
    """Read the log of a run, as `logs_at` finds it.

    Raises:
        UserError: no such log, or one without a reward.
    """
    file = next(iter(logs_at(Path(path)).values()))
    curves = Curves(**by_step(read(file).rows))
    if not curves.points:
        raise UserError(f"{file}: no reward in it; expected one of {', '.join(REWARDS)}")
    return curves


def share(results: Iterable[Result], name: Literal["truncated", "parsed"]) -> float | None:
    """Return the share over all samples of all results; None if it was not recorded."""
    arrays = [getattr(graded, name) for result in results for graded in result.graded]
    known = [np.asarray(array, float).ravel() for array in arrays if array is not None]
    return float(np.concatenate(known).mean()) if known else None


def unparsed(results: Iterable[Result]) -> float | None:
    parsed = share(results, "parsed")
    return None if parsed is None else 1 - parsed
