"""Results read back: what one checkpoint did, from what was sampled and graded, and the log of the run that made it.

A result is an evaluation folder (`bandpo eval`), or a file of answers that another program wrote (`dumps`). Its label
is what comes before an = in front of the path, or the label of the evaluation; "MODEL / METHOD" puts METHOD under the
heading MODEL. Results with the same label are runs of one method with other seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bandpo.errors import UserError

from ..files.logs import read_rows
from ..statistics.collapse import Collapse, Log, collapse_of, log_of
from ..statistics.estimators import Graded
from .folder import read_facts, read_graded

Columns = Mapping[str, str | None]  # names of columns by what they hold


@dataclass(frozen=True, eq=False)
class Result:
    """Results of one checkpoint: its graded samples, data set by data set, the collapse in its run's log, if any, and
    notes: what of a file was left out, or under which name it was compared."""

    label: str
    source: Path
    graded: list[Graded]
    scorer: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    collapse: Collapse | None = None
    notes: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        return self.label.rpartition(" / ")[0]

    @property
    def method(self) -> str:
        return self.label.rpartition(" / ")[2]


# -------------------------------------------------------------------------------------------------------------- reading


def split_label(text: str) -> tuple[str | None, Path]:
    """Split "LABEL=PATH" or "PATH"; an existing path is a path, = or not."""
    label, equals, path = text.partition("=")
    if equals and not Path(text).exists():
        return label, Path(path)
    return None, Path(text)


def read_logs(texts: Iterable[str]) -> dict[str, Path]:
    """Read logs of runs by label, from LABEL=PATH.

    Raises:
        ValueError: a text without a label.
    """
    pairs = [text.partition("=") for text in texts]
    for label, _, path in pairs:
        if not (label and path):
            raise UserError(f"--log must be LABEL=PATH, got {label!r}")
    return {label: Path(path) for label, _, path in pairs}


def read_results(
    texts: Sequence[str],
    scorer: str | None = None,
    logs: Iterable[str] = (),
    columns: Columns | None = None,
    drop_incomplete: bool = False,
) -> list[Result]:
    """Read each result by `read_result`, with `logs` as for `read_logs`.

    Raises:
        ValueError: see there, or a log of a label that no result has.
    """
    of_label = read_logs(logs)
    results = [read_result(text, scorer, of_label, columns, drop_incomplete) for text in texts]
    labels = dict.fromkeys(result.label for result in results)
    if unused := [label for label in of_label if label not in labels]:
        raise UserError(f"--log: no result has the label {unused[0]!r}; the labels are {', '.join(map(repr, labels))}")
    return results


def read_result(
    text: str,
    scorer: str | None = None,
    logs: Mapping[str, Path] | None = None,
    columns: Columns | None = None,
    drop_incomplete: bool = False,
) -> Result:
    """Read "PATH" or "LABEL=PATH". `logs` are logs of runs by label, besides those next to the model; the
    others as for `read_answers`.

    Raises:
        ValueError: nothing there, not finished, not graded, or damaged; the message names the file.
    """
    result = read_answers(text, scorer, columns, drop_incomplete)
    path = logs.get(result.label) if logs else None
    if path is None and result.source.is_dir():
        path = _log_of(read_facts(result.source).get("model"))
    return result if path is None else replace(result, collapse=collapse_of(read_log(path)))


def read_answers(
    text: str, scorer: str | None = None, columns: Columns | None = None, drop_incomplete: bool = False
) -> Result:
    """Read "PATH" or "LABEL=PATH" without a log: an evaluation folder with the grades of `scorer`, or a file with
    columns that `columns` names; for `drop_incomplete` see `dumps.read_dump`.

    Raises:
        ValueError: as of `read_result`.
    """
    label, path = split_label(text)
    if path.is_file():
        from .dumps import read_dump  # with what reads Parquet and what grades, which a folder does not need

        left_out: list[str] = []
        graded, by = read_dump(path, columns, scorer, drop_incomplete=drop_incomplete, say=left_out.append)
        return Result(label or path.stem, path, graded, by, notes=tuple(left_out))
    if not path.is_dir():
        raise UserError(f"{path}: no such file or folder; expected a folder of bandpo eval, or a file of answers")
    facts = read_facts(path)
    graded = read_graded(path, scorer)
    label = label or facts.get("label") or path.name
    sampling = {name: value for name, value in facts["sampling"].items() if name not in facts.get("omit", ())}
    return Result(label, path, graded, scorer or facts["scorer"], sampling)


def _log_of(model: Any) -> Path | None:
    """Find the log of the run that made a model: metrics.jsonl in its folder or up to two above."""
    if not isinstance(model, str) or not Path(model).is_dir():
        return None
    folder = Path(model).resolve()
    logs = (place / "metrics.jsonl" for place in (folder, *list(folder.parents)[:2]))
    return next((log for log in logs if log.is_file()), None)


def read_log(path: Path) -> Log:
    """Read the log of a run: its folder, our metrics.jsonl, verl's file logger, or TRL's trainer_state.json.

    Raises:
        ValueError: no such log, or one without a reward.
    """
    path = Path(path)
    file = path / "metrics.jsonl" if path.is_dir() else path
    if not file.exists():
        raise UserError(f"{file}: No such file or directory; expected the log of a run")
    return log_of(read_rows(file), str(file))


def share(results: Iterable[Result], name: Literal["truncated", "parsed"]) -> float | None:
    """Return the share over all samples of all results; None if it was not recorded."""
    arrays = [getattr(graded, name) for result in results for graded in result.graded]
    known = [np.asarray(array, float).ravel() for array in arrays if array is not None]
    return float(np.concatenate(known).mean()) if known else None


def unparsed(results: Iterable[Result]) -> float | None:
    parsed = share(results, "parsed")
    return None if parsed is None else 1 - parsed
