"""Read results back: what one checkpoint did, and the log of the run that made it.

The label of a result is what comes before an = in front of its path, or that of the evaluation; "MODEL / METHOD" puts
METHOD under the heading MODEL. Results with the same label are runs of one method with other seeds.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bandpo.errors import UserError

from ..files.logs import VALIDATED, files_of, is_log, logs_at, name_of, read, repetition
from ..files.reading import check_different
from ..statistics.collapse import Collapse, Curves, by_step
from ..statistics.estimators import Graded
from .folder import read_graded, read_metadata

Columns = Mapping[str, str]  # names of columns by what they hold
# The columns of the paper's Table 1 in its order, by our names of the data sets and by those in verl's files.
_PAPER = {
    "amc23": "AMC2023",
    "aime24": "AIME2024",
    "aime25": "AIME2025",
    "aime_amc2023": "AMC2023",
    "aime_2024": "AIME2024",
    "aime_2025": "AIME2025",
}


def in_paper(data: str) -> str:
    """Return the paper's name of a data set; of another one its own."""
    return _PAPER.get(data, data)


def papers_order(names: Iterable[str]) -> list[str]:
    """Put names of data sets in the paper's order, others last. Each is returned once."""
    order = ["AMC2023", "AIME2024", "AIME2025"]
    return sorted(dict.fromkeys(names), key=lambda name: [*order, in_paper(name)].index(in_paper(name)))


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
    def method(self) -> str:
        return self.label.rpartition(" / ")[2]


def split_label(text: str) -> tuple[str | None, Path]:
    """Split "LABEL=PATH" or "PATH". An existing path or run of a chart is a path, = or not."""
    label, equals, path = text.partition("=")
    if equals and not Path(text).exists() and not files_of(Path(text)):
        if not path:
            raise UserError(f"{text!r} has no path behind its =; is a variable of the shell not set?")
        return label, Path(path)
    return None, Path(text)


def read_results(
    texts: Sequence[str],
    scorer: str | None = None,
    columns: Columns | None = None,
    drop_incomplete: bool = False,
    step: int | None = None,
) -> list[Result]:
    """Read results by `read_result`, with the logs that lie next to their models.

    Raises:
        UserError: nothing there, there twice, not finished, not graded, or damaged.
    """
    results = [read_result(text, scorer, columns, drop_incomplete, step) for text in texts]
    check_different(result.source for result in results)
    if step is not None and all(result.step is None for result in results):
        raise UserError(f"--step is for logs and dumps of verl, got only {', '.join(texts)}")
    unnamed = [
        result
        for result, text in zip(results, texts, strict=True)
        if split_label(text)[0] is None and (result.step is not None or result.source.is_dir())
        if not is_ours(result.source)
    ]
    # Models with the same methods.
    if len({(r.label, _home(r)) for r in unnamed}) > len({r.label for r in unnamed}):
        results = [replace(r, label=f"{_home(r)} / {r.label}") if r in unnamed else r for r in results]
    logs = [(result, _log_of(result.source)) for result in results]
    return [
        replace(result, collapse=Curves(**by_step(read(log).rows)).collapse) if log else result
        for result, log in logs
    ]


def read_result(
    text: str,
    scorer: str | None = None,
    columns: Columns | None = None,
    drop_incomplete: bool = False,
    step: int | None = None,
) -> Result:
    """Read "PATH" or "LABEL=PATH". It is an evaluation folder, a file of answers, a folder of such, or a log.

    `scorer` is whose grades of the folder are read, or grades the answers of a file anew; `columns` and
    `drop_incomplete` are for files, as for `dumps.read_dump`. `step` is of a log or of dumps; None: the last one.

    Raises:
        UserError: nothing there, not finished, not graded, or damaged; the message names the file.
    """
    label, path = split_label(text)
    files = files_at(path, step)
    if files and is_log(files[0]):
        if scorer:
            raise UserError(f"{files[0]}: a log has no answers that --scorer {scorer} could grade")
        return _of_log(files[0], label or repetition(name_of(files[0]))[0], step)
    if files:
        return _of_files(path, files, label, scorer, columns, drop_incomplete)
    if not path.is_dir():
        raise UserError(
            f"{path}: no such file or folder; expected a folder of bandpo eval, or a file of answers"
        )
    metadata = read_metadata(path)
    sampling = {**metadata["sampling"], **metadata.get("body", {})}
    sampling = {name: value for name, value in sampling.items() if value is not None}  # None was not sent
    label = label or repetition(metadata["label"] or path.name)[0]
    return Result(label, path, read_graded(path, scorer), scorer or metadata["scorer"], sampling)


def _of_files(
    path: Path,
    files: Sequence[Path],
    label: str | None,
    scorer: str | None,
    columns: Columns | None,
    drop: bool,
) -> Result:
    """Read one file of answers, or a folder of them.

    There a file that does not name its data set is one.
    """
    from .dumps import read_dump  # with what reads Parquet and what grades, which a folder does not need

    sets: dict[str, list[Path]] = {}
    is_folder_each = len({file.parent for file in files}) == len(files)
    for file in files:
        at = (
            str((file.parent if is_folder_each else file.with_suffix("")).relative_to(path))
            if len(files) > 1
            else ""
        )
        # NeMo-Skills' output-rs0, ...: more samples.
        sets.setdefault(re.sub(r"-rs\d+$", "", at), []).append(file)
    notes, graded = list[str](), list[Graded]()
    for name, same in sets.items():
        own, _ = read_dump(same, columns, scorer, drop_incomplete=drop, say=notes.append)
        graded += [replace(each, data=name) if name and each.data == "answers" else each for each in own]
    counts = Counter((one.data, one.scorer) for one in graded)
    if max(counts.values()) > 1:
        raise UserError(
            f"{path}: several files in it have answers of {max(counts, key=counts.__getitem__)[0]!r}"
        )
    by = " and ".join(dict.fromkeys(each.scorer for each in graded))
    is_step = files[0].stem.isdecimal() and (path.is_dir() or by.startswith("verl's"))
    if is_step and [each.data for each in graded] == ["validation"]:
        notes.append("its dump names no data sets, so all problems are one column")
    source = files[0] if is_step else path
    name = _run_of(source).name if is_step else path.resolve().name if path.is_dir() else path.stem
    return Result(
        label or repetition(name)[0],
        source,
        graded,
        by,
        notes=tuple(dict.fromkeys(notes)),
        step=int(source.stem) if is_step else None,
    )


def apart(results: Sequence[Result]) -> list[list[Result]]:
    """Part results by who graded them, where one has several grades.

    Grades of the same answers are no more answers. Data sets that nobody else graded are in every part.
    """
    of: dict[str, set[str]] = {}  # by grader of the same answers: data sets
    for graded in (result.graded for result in results):
        if len({each.data for each in graded}) < len(graded):
            for each in graded:
                of.setdefault(each.scorer, set()).add(each.data)
    others = set[str]().union(*of.values())
    parts: list[list[Result]] = []
    for scorer, data in of.items():
        part = list[Result]()
        for result in results:
            graded = [
                each
                for each in result.graded
                if each.scorer == scorer or (each.scorer not in of and each.data not in others - data)
            ]
            if graded or result.logged:
                by = " and ".join(dict.fromkeys(each.scorer for each in graded))
                part.append(replace(result, graded=graded, scorer=by or result.scorer))
        parts.append(part)
    return parts or [list(results)]


def is_ours(source: Path) -> bool:
    """Tell a folder of bandpo eval."""
    return (source / "eval.json").is_file()


def _home(result: Result) -> Path:
    """Return the folder of verl's logs, or of its folders of dumps."""
    if result.source.stem.isdecimal():
        return _run_of(result.source).parent
    return result.source.parent.parent if result.source.name == "metrics.jsonl" else result.source.parent


def _run_of(dump: Path) -> Path:
    """Return the folder that has a run's name. Our recipes have its dumps in `validation` below it."""
    folder = dump.resolve().parent
    return folder.parent if folder.name == "validation" else folder


# What lm-eval, lighteval and inspect_ai write into a folder of one model's; then what others do.
_OF_ONE_MODEL = ("samples_*.jsonl", "details_*.parquet", "*.eval")
_WRITTEN = (*_OF_ONE_MODEL, "*.jsonl", "*.parquet", "*.csv", "*.json")
_RUN = re.compile(r"\d{4}-\d\d-\d\dT[\d.:+-]+|_\w{22}(?=\.eval$)")  # its time, and inspect_ai's id of it


def _model_of(file: Path) -> str:
    """Return what tells the results of a model from those of another. inspect_ai writes all into one folder."""
    if file.suffix != ".eval":
        return _RUN.sub("", str(file.parent))
    from .formats import inspect_log

    return str(inspect_log(file, "")["eval"].get("model"))


def files_at(path: Path, step: int | None = None) -> list[Path]:
    """List the files to read at a path.

    It is a file, verl's folder of dumps, of which one step is read, a run with its log, or a folder of answers. Of each
    task that a harness ran several times it is the last run. None for an evaluation folder, or if there is nothing.

    Raises:
        UserError: no dump of this step in the folder, or results of several models.
    """
    if not path.is_dir():
        return [path] if files_of(path) else []
    if is_ours(path):
        return []
    dumps: dict[float, Path] = {
        int(file.stem): file for file in path.glob("*.jsonl") if file.stem.isdecimal()
    }
    if dumps:
        return [dumps[_chosen(path, dumps, step)]]
    logs = [log for log in logs_at(path).values() if files_of(log) and is_log(log)]
    if logs:
        return logs if len(logs) == 1 else []
    below = {file.parent for file in path.rglob("*.jsonl") if file.stem.isdecimal()}
    if len(below) == 1:
        return files_at(below.pop(), step)
    for kind in _WRITTEN:
        files = [file for file in path.rglob(kind) if not (file.parent / "eval.json").exists()]
        files.sort(key=lambda file: (_RUN.findall(str(file)), file))
        models = sorted(set(map(_model_of, files))) if kind in _OF_ONE_MODEL else []
        if len(models) > 1:
            raise UserError(
                f"{path} holds the results of several models, {', '.join(models)}; one is expected"
            )
        if files:
            return sorted({_RUN.sub("", str(file)): file for file in files}.values())
    return []


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
    rows = {
        at: [m for m in map(VALIDATED.fullmatch, row) if m and row[m[0]] is not None]
        for at, row in log.at.items()
    }
    rows = {at: matches for at, matches in rows.items() if any(match[2] == "mean" for match in matches)}
    if not rows:
        raise UserError(
            f"{path}: no validation in it; expected numbers such as val-core/aime_2024/acc/mean@32, which verl logs "
            "where trainer.test_freq is set and the reward function returns acc; of a run of bandpo train, bandpo eval "
            "RUN makes a result"
        )
    at = _chosen(path, rows, step)
    sets: dict[str, dict[str, dict[int, float]]] = {}
    for name, data, kind, n in ((m[0], *m.groups()) for m in rows[at]):
        value = log.at[at][name]
        if not 0 <= value <= 1:
            raise UserError(
                f"{path}, step {at}: {name} is {value:g}; a share of right answers, 0 to 1, is expected"
            )
        sets.setdefault(data, {"mean": {}, "best": {}, "worst": {}})[kind][int(n)] = value
    return Result(
        label,
        path,
        [],
        "the run's reward function",
        collapse=Curves(**by_step(log.rows)).collapse,
        notes=tuple(log.notes),
        logged=tuple(
            Logged(data, n, x, of["best"]) for data, of in sets.items() for n, x in of["mean"].items()
        ),
        step=at,
    )


def _log_of(source: Path) -> Path | None:
    """Find the log of the run that made a folder's model. It lies with the model or up to two folders above."""
    model = Path(read_metadata(source)["model"]) if is_ours(source) else None
    folders = (model.resolve(), *model.resolve().parents[:2]) if model and model.is_dir() else ()
    return next(
        (folder / "metrics.jsonl" for folder in folders if (folder / "metrics.jsonl").is_file()), None
    )


def share(results: Iterable[Result], name: Literal["truncated", "parsed"]) -> float | None:
    """Return the share over all samples of all results; None if it was not recorded."""
    arrays = [getattr(graded, name) for result in results for graded in result.graded]
    recorded = [np.asarray(array, float).ravel() for array in arrays if array is not None]
    return float(np.concatenate(recorded).mean()) if recorded else None


def unparsed(results: Iterable[Result]) -> float | None:
    parsed = share(results, "parsed")
    return None if parsed is None else 1 - parsed
