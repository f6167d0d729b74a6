"""Files of verl and of evaluation harnesses as rows with our names: lm-evaluation-harness, inspect_ai and lighteval."""

from __future__ import annotations

import contextlib
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bandpo.errors import UserError, nearest
from bandpo.files import json_line, read_json, shortened

from ..data.golds import HASHES, read_gold
from ..data.readers import file_rows

Row = Mapping[str, Any]
Rows = tuple[list[Row], str]  # and what graded them


def rows_of(path: Path) -> list[Row]:
    """Read the rows of a file of answers.

    A log of inspect_ai (.eval, .json) gives its samples, with the name of their task.

    Raises:
        UserError: no such file, another ending, or a file that cannot be read.
    """
    if path.suffix == ".eval":
        return _zipped(path)
    if path.suffix == ".json":
        with contextlib.suppress(UserError):  # no object: an array, or lines, or what the readers of these have to say
            log = read_json(path, shown=False)
            if isinstance(log.get("samples"), list) and isinstance(log.get("eval"), dict):
                return [{"task": log["eval"].get("task"), **sample} for sample in log["samples"]]
    return list(file_rows(path, str(path)))


def _zipped(path: Path) -> list[Row]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            header = next((name for name in ("header.json", "_journal/start.json") if name in names), "header.json")
            task = json_line(archive.read(header), f"{path}, {header}")["eval"]["task"]
            samples = sorted(name for name in names if re.fullmatch(r"samples/.*\.json", name))
            return [{"task": task, **json_line(archive.read(name), f"{path}, {name}")} for name in samples]
    except (OSError, KeyError, TypeError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise UserError(
            f"{path} cannot be read as a log of inspect_ai ({type(error).__name__}: {error}); `inspect log convert "
            "--to json` makes a .json of it"
        ) from None


def known(path: Path, rows: Sequence[Row], score: str | None, scorer: str | None) -> Rows | None:
    """Add `prompt`, `answer`, `response` and so on to rows of a known form; None for a file of another form.

    Args:
        path: the file.
        rows: what is in it.
        score: the name of the metric that says what is right.
        scorer: grades the responses anew, so that no metric is needed.

    Raises:
        UserError: several metrics and no name of one, or a row that is not of the form.
    """
    forms: dict[str, tuple[set[str], Callable[..., Rows]]] = {
        "verl": ({"input", "gts"}, _verl),
        "lighteval": ({"doc", "model_response", "metric"}, _lighteval),
        "lm-eval": ({"doc_id", "doc", "resps", "target"}, _lm_eval),
        "inspect_ai": ({"id", "epoch", "input", "target", "output"}, _inspect),
    }
    for name, (keys, read) in forms.items():
        if keys <= rows[0].keys():
            try:
                return read(path, rows, score, scorer)
            except (KeyError, IndexError, TypeError, AttributeError) as error:
                raise UserError(f"{path}: not as {name} writes it ({type(error).__name__}: {error})") from None
    return None


def _metric(path: Path, metrics: list[str], given: str | None) -> str:
    """Choose the metric of being right: the one that is named, or the only one."""
    if given is not None and given not in metrics:
        near = nearest(given, metrics)
        raise UserError(f"{path} has no metric {given!r} (--column score={given}){near}; it has {metrics}")
    if given is None and len(metrics) != 1:
        raise UserError(f"{path} has the metrics {metrics}; --column score=NAME says which of them is being right")
    return given or metrics[0]


def _verl(path: Path, rows: Sequence[Row], score: str | None, scorer: str | None) -> Rows:
    """Read verl's `trainer.validation_data_dir`: rewards are any numbers, and right is what is above 0.

    Its questions are told apart by the right answer as well.
    """

    def row_of(row: Row) -> Row:
        right = row.get(score or "acc")
        right = row.get("score") if right is None else right
        right = float(right > 0) if isinstance(right, int | float) and abs(right) < float("inf") else right
        plain = {"prompt": row["input"], "problem": [row["input"], row["gts"]], "answer": row["gts"], "score": right}
        plain |= {"data": row.get("data_source") or "validation", "response": row.get("output")}
        return {**row, **plain, **({"extracted": row["pred"]} if "pred" in row else {})}

    return [row_of(row) for row in rows], "verl's reward function"


def _with_votes(rows: list[Row], kind: Any) -> list[Row]:
    """Return the rows, without the extracted answers if these are missing or no text."""
    read = [row.get("extracted") for row in rows]
    if any(read) and all(isinstance(each, kind) for each in read):
        return rows
    return [{key: value for key, value in row.items() if key != "extracted"} for row in rows]


def _inspect(path: Path, rows: Sequence[Row], score: str | None, scorer: str | None) -> Rows:
    """Read the samples of an inspect_ai log.

    `scores` has a value for each scorer; `epoch` tells the samples of one problem apart.
    """
    scores = next((row["scores"] for row in rows if row.get("scores")), {})
    if scorer is None and not scores:
        raise UserError(f"{path}: its samples have no scores; --scorer math grades the responses")
    # A scorer may give several numbers: match.strict is the number `strict` of the scorer `match`.
    places = {
        f"{name}.{key}" if key else name: (name, key)
        for name, found in scores.items()
        for key in (found["value"] if isinstance(found["value"], dict) else [None])
    }
    metric = None if scorer else _metric(path, list(places), score)

    def row_of(row: Row) -> Row:
        choices = (row["output"] or {}).get("choices") or []
        asked = row["input"]
        if isinstance(asked, list):  # messages, which have other ids in every epoch
            asked = [{"role": message["role"], "content": message["content"]} for message in asked]
        plain = {"prompt": asked, "problem": [row["id"], asked], "answer": row["target"], "data": row.get("task")}
        plain["response"] = choices[0]["message"] if choices else None
        if metric is not None:
            name, key = places[metric]
            found = (row.get("scores") or {}).get(name) or {"value": None}
            value = found["value"]
            plain |= {"score": value.get(key) if isinstance(value, dict) else value, "extracted": found.get("answer")}
        return {**row, **plain}

    return _with_votes([row_of(row) for row in rows], str | None), f"inspect_ai's {metric}"


_OWN = {
    "doc_id",
    "doc",
    "target",
    "arguments",
    "resps",
    "filtered_resps",
    "filter",
    "metrics",
}  # of lm-eval, and hashes


def _lm_eval(path: Path, rows: Sequence[Row], score: str | None, scorer: str | None) -> Rows:
    """Read lm-eval's `samples_TASK_TIME.jsonl`: a row for each document and filter, with the metrics by their names.

    Each filter is another grading of the same answers, and hence a data set; METRIC,FILTER names one of them, as
    lm-eval's own results do. Answers that are graded here are taken from one of the filters.
    """
    filters = list(dict.fromkeys(str(row.get("filter", "none")) for row in rows))
    metric, named = None, filters[0] if scorer else None
    if scorer is None:
        if score is not None and score.rpartition(",")[2] in filters:
            score, _, named = score.rpartition(",")
        numbers = [key for key, each in rows[0].items() if key not in _OWN and isinstance(each, int | float)]
        metric = _metric(path, list(rows[0].get("metrics") or numbers), score)
    by_name = re.fullmatch(r"samples_(.+)_\d{4}-\d\d-\d\dT.*", path.stem)
    task = by_name[1] if by_name else "answers"
    made = []
    for number, row in enumerate(rows, 1):
        kind = str(row.get("filter", "none"))
        if named not in (None, kind):
            continue
        texts = row["resps"][0] if len(row["resps"]) == 1 else None
        if scorer and not (isinstance(texts, list) and all(isinstance(text, str) for text in texts)):
            said = f"{path}, row {number}: 'resps' is {shortened(row['resps'])}, likelihoods and no texts to grade"
            raise UserError(f"{said}; without --scorer the scores in the file hold")
        target = row["target"]
        if isinstance(target, str) and HASHES in target:  # GSM8K's solutions
            target = read_gold(target, HASHES)[0]
        plain = {"prompt": row["doc"], "problem": [row["doc_id"], row["doc"]], "answer": target, "response": texts}
        plain["data"] = f"{task} {kind}" if len(filters) > 1 and not scorer else task
        if metric is not None:
            read = (row.get("filtered_resps") or [None])[0]  # without a filter it is the whole text
            plain |= {"score": row.get(metric), "extracted": read if kind != "none" else None}
        made.append({**row, **plain})
    return _with_votes(made, str), f"lm-eval's {metric}" + (f",{named}" if named else "")


# lighteval's metric is a number for each problem. Of these it is the share of right responses, which is all that the
# statistics ask of them; of others only where there is one response.
_SHARES = re.compile(r"avg@n(:|$)|(gpqa_)?pass@k:(.*&)?k=1(&|$)")


def _lighteval(path: Path, rows: Sequence[Row], score: str | None, scorer: str | None) -> Rows:
    """Read the details of lighteval 0.10 and later: `doc`, what was asked; `model_response`, what came; `metric`."""
    metric = None
    if scorer is None:
        metrics = list(rows[0]["metric"])
        averages = [name for name in metrics if name.startswith("avg@n")]
        usable = averages or [name for name in metrics if _SHARES.match(name)] or metrics
        metric = _metric(path, usable if score is None else metrics, score)
    made = []
    for number, row in enumerate(rows, 1):
        doc, texts = row["doc"], row["model_response"]["text"]
        gold = doc["gold_index"] if isinstance(doc["gold_index"], list) else [doc["gold_index"]]
        plain = {"prompt": doc["query"], "data": doc["task_name"], "response": texts}
        plain["answer"] = [doc["choices"][i] for i in gold] or None
        if metric is not None:
            count = int(found[1]) if (found := re.search(r"[:&]n=(\d+)", metric)) else len(texts) or 1
            right = row["metric"][metric] * count
            whole = abs(right - round(right)) < 1e-6 * count and 0 <= round(right) <= count
            if not whole or (count > 1 and not _SHARES.match(metric)):
                raise UserError(
                    f"{path}, row {number}: {metric} is {row['metric'][metric]} for {count} responses, which does not "
                    "say how many of them are right; --column score=NAME names another metric, such as avg@n, or "
                    "--scorer math grades the responses"
                )
            plain["score"] = [1] * round(right) + [0] * (count - round(right))
        made.append({**row, **plain})
    return made, f"lighteval's {metric}"
