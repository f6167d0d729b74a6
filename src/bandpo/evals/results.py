"""Results read back: what one checkpoint did, from what was sampled and graded, and the log of the run that made it.

A result is an evaluation folder (`bandpo eval`), or a file that verl wrote to `trainer.validation_data_dir`. Its label
is what comes before an = in front of the path, or the label of the evaluation; "MODEL / METHOD" puts METHOD under the
heading MODEL. Results with the same label are runs of one method with other seeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
import pydantic
from typing_extensions import TypedDict

from ..errors import UserError
from ..files.checks import check_text, shortened
from ..files.reading import read_json, read_json_lines
from ..statistics.collapse import Collapse, Log, collapse_of, log_of
from ..statistics.estimators import Graded
from .folder import read_facts, read_graded


@dataclass(frozen=True, eq=False)
class Result:
    """What one checkpoint did: its graded samples, data set by data set, and the collapse in its run's log, if any."""

    label: str
    source: Path
    graded: list[Graded]
    scorer: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    collapse: Collapse | None = None

    @property
    def heading(self) -> str:
        return self.label.rpartition(" / ")[0]

    @property
    def method(self) -> str:
        return self.label.rpartition(" / ")[2]


# -------------------------------------------------------------------------------------------------------------- reading


def split_label(text: str) -> tuple[str | None, Path]:
    """ "LABEL=PATH" or "PATH"; a path that is there is a path, = or not."""
    label, equals, path = text.partition("=")
    if equals and not Path(text).exists():
        return label, Path(path)
    return None, Path(text)


def read_logs(texts: Iterable[str]) -> dict[str, Path]:
    """Logs of runs by label, from LABEL=PATH.

    Raises:
        ValueError: a text without a label.
    """
    pairs = [text.partition("=") for text in texts]
    for label, _, path in pairs:
        if not (label and path):
            raise UserError(f"--log must be LABEL=PATH, got {label!r}")
    return {label: Path(path) for label, _, path in pairs}


def read_results(texts: Sequence[str], scorer: str | None = None, logs: Iterable[str] = ()) -> list[Result]:
    """`read_result` of each, with `logs` as for `read_logs`.

    Raises:
        ValueError: see there, or a log of a label that no result has.
    """
    of_label = read_logs(logs)
    results = [read_result(text, scorer, of_label) for text in texts]
    labels = dict.fromkeys(result.label for result in results)
    if unused := [label for label in of_label if label not in labels]:
        raise UserError(f"--log: no result has the label {unused[0]!r}; the labels are {', '.join(map(repr, labels))}")
    return results


def read_result(text: str, scorer: str | None = None, logs: Mapping[str, Path] | None = None) -> Result:
    """Read "PATH" or "LABEL=PATH". `logs` are logs of runs by label, besides those that lie beside the model.

    Raises:
        ValueError: nothing there, not finished, not graded, or damaged; the message names the file.
    """
    label, path = split_label(text)
    if path.is_file():
        graded, scorer, sampling, model = read_validation(path), "verl's reward function", {}, None
        label = label or path.stem
    elif path.is_dir():
        facts = read_facts(path)
        graded = read_graded(path, scorer)
        scorer = scorer or facts.get("scorer") or "math"
        sampling, model = facts["sampling"], facts.get("model")
        label = label or facts.get("label") or path.name
    else:
        raise UserError(f"{path}: no such file or folder; expected an evaluation folder or a file of verl's "
                         "trainer.validation_data_dir")  # fmt: skip
    log = (logs or {}).get(label) or _log_of(model)
    collapse = None if log is None else collapse_of(read_log(log))
    return Result(label, path, graded, str(scorer), sampling, collapse)


def _log_of(model: Any) -> Path | None:
    """The log of the run that made a model: metrics.jsonl in its folder or up to two above."""
    if not isinstance(model, str) or not Path(model).is_dir():
        return None
    folder = Path(model).resolve()
    logs = (place / "metrics.jsonl" for place in (folder, *list(folder.parents)[:2]))
    return next((log for log in logs if log.is_file()), None)


def read_log(path: Path) -> Log:
    """The log of a run: its folder, our metrics.jsonl, verl's file logger, or TRL's trainer_state.json.

    Raises:
        ValueError: no such log, or one without a reward.
    """
    path = Path(path)
    file = path / "metrics.jsonl" if path.is_dir() else path
    if not file.exists():
        raise UserError(f"{file}: No such file or directory; expected the log of a run")
    if file.name == "trainer_state.json":
        rows = read_json(file).get("log_history", [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UserError(f"{file}: 'log_history' is {shortened(rows)}; a list of rows is expected")
    else:
        rows = [_row_of(row) for row in read_json_lines(file).rows]  # the end of its process may have cut off the last
    return log_of(rows, str(file))


def _row_of(row: dict[str, Any]) -> Mapping[str, Any]:
    inner = row.get("data")
    return {**inner, "step": row.get("step")} if isinstance(inner, dict) else row


class _Validation(TypedDict):
    """A line of a file of verl's trainer.validation_data_dir."""

    __pydantic_config__ = pydantic.ConfigDict(extra="allow", allow_inf_nan=False)  # pyright: ignore[reportGeneralTypeIssues]
    input: Any
    gts: Any
    score: NotRequired[float | bool | None]
    acc: NotRequired[float | bool | None]
    data_source: NotRequired[Annotated[str, pydantic.AfterValidator(lambda text: check_text(text, "the name"))]]


def read_validation(path: Path) -> list[Graded]:
    """A file of verl's trainer.validation_data_dir: a sample a line, with input, output, gts, score and what the reward
    function returned. `acc` says what is right, or else a `score` above 0; `pred` is the answer. Lines with the same
    input are samples of one prompt; verl does not write the data source, so all are one data set unless lines have it.

    Raises:
        ValueError: lines that are not such, or prompts with different numbers of samples.
    """
    rows: dict[str, dict[str, list[Any]]] = {}
    for number, row in enumerate(read_json_lines(path, _Validation).rows, 1):
        if _verdict(row) is None:
            raise UserError(f"{path}, line {number}: 'score' is missing; verl writes input, gts and score")
        prompt = hashlib.sha256(json.dumps([row["input"], row["gts"]]).encode()).hexdigest()[:16]
        rows.setdefault(str(row.get("data_source", "validation")), {}).setdefault(prompt, []).append(row)
    if not rows:
        raise UserError(f"{path}: empty; expected a sample a line")
    return [_graded_of_verl(path, data, prompts) for data, prompts in rows.items()]


def _verdict(row: Mapping[str, Any]) -> float | None:
    return row["acc"] if row.get("acc") is not None else row.get("score")


def _graded_of_verl(path: Path, data: str, prompts: Mapping[str, list[dict[str, Any]]]) -> Graded:
    counts = sorted({len(samples) for samples in prompts.values()})
    if len(counts) > 1:
        raise UserError(f"{path}: prompts of {data!r} have from {counts[0]} to {counts[-1]} samples; expected as many "
                         "for each (a prompt that is twice in the data has twice as many)")  # fmt: skip
    table = list(prompts.values())
    answers = np.full((len(table), counts[0]), None, dtype=object)
    for i, samples in enumerate(table):
        for j, row in enumerate(samples):
            pred = row.get("pred")
            answers[i, j] = None if pred in (None, "", "[INVALID]") else str(pred)
    known = any("pred" in row for samples in table for row in samples)
    return Graded(
        data=data,
        score=np.array([[float((_verdict(row) or 0) > 0) for row in samples] for samples in table]),
        answers=answers if known else None,
        tokens=None,
        truncated=None,
        parsed=answers != np.array(None) if known else None,
        prompt_ids=list(prompts),
    )


def share(results: Iterable[Result], name: Literal["truncated", "parsed"]) -> float | None:
    """Over all samples of all results; None where it was not recorded."""
    arrays = [getattr(graded, name) for result in results for graded in result.graded]
    known = [np.asarray(array, float).ravel() for array in arrays if array is not None]
    return float(np.concatenate(known).mean()) if known else None


def unparsed(results: Iterable[Result]) -> float | None:
    parsed = share(results, "parsed")
    return None if parsed is None else 1 - parsed
