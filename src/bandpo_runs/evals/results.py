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

from ..files.logs import Followed
from ..statistics.collapse import Collapse
from ..statistics.curves import Curves, by_step
from ..statistics.estimators import Graded
from .folder import read_facts, read_graded

Columns = Mapping[str, str]  # names of columns by what they hold


@dataclass(frozen=True, eq=False)
class Result:
    """Hold the result of one checkpoint. It has samples of each data set, and the collapse in its run's log, if any.

    `notes` say what of a file was left out, or under which name it was compared.
    """

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


def split_label(text: str) -> tuple[str | None, Path]:
    """Split "LABEL=PATH" or "PATH"; an existing path is a path, = or not."""
    label, equals, path = text.partition("=")
    if equals and not Path(text).exists():
        return label, Path(path)
    return None, Path(text)


def read_results(
    texts: Sequence[str],
    scorer: str | None = None,
    logs: Iterable[str] = (),
    columns: Columns | None = None,
    drop_incomplete: bool = False,
) -> list[Result]:
    """Read results by `read_result`, with the logs of the runs that made their models.

    `logs` are LABEL=PATH, the log of a run; without it the log next to the model is read, if there is one.

    Raises:
        UserError: nothing there, not finished, not graded, or damaged; or a log of a label that no result has.
    """
    of_label: dict[str, str] = {}
    for label, _, path in (text.partition("=") for text in logs):
        if not (label and path):
            raise UserError(f"--log must be LABEL=PATH, got {label!r}")
        of_label[label] = path
    results = [read_result(text, scorer, columns, drop_incomplete) for text in texts]
    labels = dict.fromkeys(result.label for result in results)
    if unused := [label for label in of_label if label not in labels]:
        raise UserError(f"--log: no result has the label {unused[0]!r}; the labels are {', '.join(map(repr, labels))}")
    found = [of_label.get(result.label) or _log_of(result.source) for result in results]
    return [
        r if log is None else replace(r, collapse=read_log(Path(log)).collapse)
        for r, log in zip(results, found, strict=True)
    ]


def read_result(
    text: str, scorer: str | None = None, columns: Columns | None = None, drop_incomplete: bool = False
) -> Result:
    """Read "PATH" or "LABEL=PATH", without a log. It is an evaluation folder or a file of answers.

    `scorer` is whose grades of the folder are read, or grades the answers of a file anew; `columns` and
    `drop_incomplete` are for a file, as for `dumps.read_dump`.

    Raises:
        UserError: nothing there, not finished, not graded, or damaged; the message names the file.
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
    sampling = {**facts["sampling"], **facts.get("body", {})}
    sampling = {name: value for name, value in sampling.items() if value is not None}  # None was not sent
    label = label or facts["label"] or path.name
    return Result(label, path, read_graded(path, scorer), scorer or facts["scorer"], sampling)


def _log_of(source: Path) -> Path | None:
    """Find the log of the run that made a folder's model. It lies with the model or up to two folders above."""
    model = Path(read_facts(source)["model"]) if source.is_dir() else source
    folders = (model.resolve(), *model.resolve().parents[:2]) if model.is_dir() else ()
    return next((log for folder in folders if (log := folder / "metrics.jsonl").is_file()), None)


def read_log(path: Path) -> Curves:
    """Read the log of a run. It is a folder, our metrics.jsonl, verl's file logger, or TRL's trainer_state.json.

    Raises:
        UserError: no such log, or one without a reward.
    """
    path = Path(path)
    file = path / "metrics.jsonl" if path.is_dir() else path
    log = Followed(file)
    log.poll()
    if log.fault:
        raise UserError(log.fault)
    curves = Curves(**by_step(log.rows, str(file)))
    if not curves.points:
        raise UserError(f"{file}: no reward in it; expected one of reward, critic/score/mean, critic/rewards/mean")
    return curves


def share(results: Iterable[Result], name: Literal["truncated", "parsed"]) -> float | None:
    """Return the share over all samples of all results; None if it was not recorded."""
    arrays = [getattr(graded, name) for result in results for graded in result.graded]
    known = [np.asarray(array, float).ravel() for array in arrays if array is not None]
    return float(np.concatenate(known).mean()) if known else None


def unparsed(results: Iterable[Result]) -> float | None:
    parsed = share(results, "parsed")
    return None if parsed is None else 1 - parsed
