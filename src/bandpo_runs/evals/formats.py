"""Read files of verl and of evaluation harnesses as rows by role."""

from __future__ import annotations

import contextlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bandpo.errors import UserError, nearest
from bandpo.files import json_line

from ..data.golds import HASHES, read_gold
from ..data.readers import file_rows
from ..files.reading import read_json

Row = Mapping[str, Any]


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
    return list(file_rows(path, str(path), ".eval"))


def _zipped(path: Path) -> list[Row]:
    with contextlib.suppress(ImportError):
        # It comes with inspect_ai, which compresses so, and teaches zipfile to read it.
        import zipfile_zstd  # noqa: F401  # pyright: ignore[reportMissingImports]
    try:
        with zipfile.ZipFile(path) as archive:
            task = json_line(archive.read("header.json"), f"{path}, header.json")["eval"]["task"]
            samples = sorted(name for name in archive.namelist() if re.fullmatch(r"samples/.*\.json", name))
            return [{"task": task, **json_line(archive.read(name), f"{path}, {name}")} for name in samples]
    except (OSError, KeyError, TypeError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise UserError(
            f"{path} cannot be read as a log of inspect_ai ({type(error).__name__}: {error}); those of newer releases "
            "need pip install 'bandpo[inspect]', or `inspect log convert --to json`"
        ) from None


def known(
    path: Path, rows: Sequence[Row], score: str | None, scorer: str | None
) -> tuple[list[dict[str, Any]], str] | None:
    """Return the rows of a known form by role (`prompt`, ...), and what graded them. None for another file.

    `score` is the name of the metric that says what is right; a `scorer` needs none, as it grades the responses anew.

    Raises:
        UserError: several metrics and no name of one, or a row that is not of the form.
    """
    form = next((form for form, (keys, _) in _FORMS.items() if keys <= rows[0].keys()), None)
    if form is None:
        return None
    try:
        if scorer:  # of several filters of lm-eval one: the answers are the same
            rows = [row for row in rows if row.get("filter") == rows[0].get("filter")]
        made = list(_FORMS[form][1](path, rows))
        metric = None if scorer else _metric(path, next((list(m) for row in made if (m := row["metrics"])), []), score)
        for row in made:
            value, read = row.pop("metrics").get(metric, (None, None))
            row["score"] = _of_share(metric, value, len(row["response"])) if metric and form == "lighteval" else value
            row["extracted"] = read
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not as {form} writes it ({type(error).__name__}: {error})") from None
    for row in made if not any(isinstance(row["extracted"], str) for row in made) else ():  # such as likelihoods
        del row["extracted"]
    return made, f"{form}'s {metric}"


_OF_VERL = "reward function"  # its acc, or else its score
_SUM = "sum of rewards"  # by their weights


def _metric(path: Path, metrics: list[str], given: str | None) -> str:
    """Choose the metric of being right: the one that is named, or the only one."""
    if not metrics:
        raise UserError(f"{path}: its samples have no scores; --scorer math grades the responses")
    if given is not None and given not in metrics:
        near = nearest(given, metrics)
        raise UserError(f"{path} has no metric {given!r} (--column score={given}){near}; it has {metrics}")
    averages = [name for name in metrics if name.startswith("avg@n") or name in (_OF_VERL, _SUM)]
    likely = averages or [name for name in metrics if _SHARE.match(name)] or metrics
    if given is None and len(likely) != 1:
        raise UserError(f"{path} has the metrics {metrics}; --column score=NAME says which of them is being right")
    return given or likely[0]


def _verl(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read verl's `trainer.validation_data_dir`. Rewards are any numbers, and right is what is above 0.

    Each number of a row can be chosen. Its questions are told apart by the right answer as well.
    """

    for row in rows:
        numbers = {name: _is_right(x) for name, x in row.items() if isinstance(x, int | float) and name != "step"}
        right = _is_right(row.get("score") if row.get("acc") is None else row["acc"])
        yield {
            "prompt": row["input"],
            "problem": [row["input"], row["gts"]],
            "answer": row["gts"],
            "response": row.get("output"),
            "data": row.get("dataset") or row.get("data_source") or "validation",
            "metrics": {name: (x, row.get("pred")) for name, x in {_OF_VERL: right, **numbers}.items()},
        }


def _is_right(reward: Any) -> Any:
    return float(reward > 0) if isinstance(reward, int | float) and abs(reward) < float("inf") else reward


def _skyrl(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read SkyRL's `trainer.dump_eval_results`. A reward is a number, or one for each token; right is above 0."""
    for row in rows:
        extras = row["env_extras"]
        gold = (extras.get("reward_spec") or extras.get("reward_model") or {}).get("ground_truth")
        yield {
            "prompt": row["input_prompt"],
            "problem": [row["input_prompt"], gold],
            "answer": gold,
            "response": row["output_response"],
            "data": row["data_source"],
            "metrics": {_OF_VERL: (_is_right(sum(x) if isinstance(x := row["score"], list) else x), None)},
        }


def _verifiers(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read the episodes of verifiers 0.4, which prime-rl keeps too. A trace of a trained agent is an answer."""
    for row in rows:
        asked = row["task"]["data"]
        for trace in [trace for trace in row["traces"] if trace["agent"]["trainable"]] or [{}]:  # it failed
            rewards = {name: each for name, each in trace.get("rewards", {}).items() if each}
            total = sum(each["score"] * each["weight"] for each in rewards.values()) if rewards else None
            yield {
                "prompt": asked.get("prompt"),
                "problem": asked,
                "answer": asked.get("answer"),
                "response": [node["message"] for node in trace.get("nodes", []) if node["sampled"]][-1:] or None,
                "data": row["env"].get("name") or row["env"]["id"],
                "metrics": {_SUM: (total, None), **{name: (each["score"], None) for name, each in rewards.items()}},
            }


def _inspect(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read the samples of an inspect_ai log. match.strict is the number `strict` of the scorer `match`."""
    for row in rows:
        metrics = {}
        for name, found in (row.get("scores") or {}).items():
            value = found["value"]
            for key, number in value.items() if isinstance(value, dict) else [("", value)]:
                metrics[f"{name}.{key}".removesuffix(".")] = number, found.get("answer")
        choices = (row["output"] or {}).get("choices") or []
        asked = row["input"]
        if isinstance(asked, list):  # messages, which have other ids in every epoch
            asked = [{"role": message["role"], "content": message["content"]} for message in asked]
        yield {
            "prompt": asked,
            "problem": [row["id"], asked],
            "answer": row["target"],
            "response": choices[0]["message"] if choices else None,
            "data": row.get("task"),
            "metrics": metrics,
        }


_OWN = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}  # of lm-eval


def _lm_eval(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read lm-eval's `samples_TASK_TIME.jsonl`. It has a row for each document and filter, with metrics by their names.

    Each filter is another grading of the same answers, and hence a data set.
    """
    several = len({row.get("filter") for row in rows}) > 1
    by_name = re.fullmatch(r"samples_(.+)_\d{4}-\d\d-\d\dT.*", path.stem)
    task = by_name[1] if by_name else "answers"
    numbers = [key for key, each in rows[0].items() if key not in _OWN and isinstance(each, int | float)]
    for row in rows:
        target, kind = row["target"], row.get("filter", "none")
        if isinstance(target, str) and HASHES in target:  # GSM8K's solutions
            target = read_gold(target, HASHES)[0]
        likelihoods = any(not isinstance(text, str) for texts in row["resps"] for text in texts)
        read = (row.get("filtered_resps") or [None])[0] if kind != "none" else None  # else it is the whole text
        yield {
            "prompt": row["doc"],
            "problem": [row["doc_id"], row["doc"]],
            "answer": target,
            "response": None if likelihoods else row["resps"][0] if len(row["resps"]) == 1 else row["resps"],
            "data": f"{task} {kind}" if several else task,
            "metrics": {name: (row.get(name), read) for name in row.get("metrics") or numbers},
        }


# lighteval's metric is a number for each problem. Of these it is the share of right responses, which is all that the
# statistics ask of them; of others only where there is one response.
_SHARE = re.compile(r"avg@n(:|$)|(gpqa_)?pass@k:(.*&)?k=1(&|$)")


def _lighteval(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read details of lighteval 0.10 and later. `doc` was asked, `model_response` came, `metric` has the scores."""
    for row in rows:
        doc = row["doc"]
        gold = doc["gold_index"] if isinstance(doc["gold_index"], list) else [doc["gold_index"]]
        yield {
            "prompt": doc["query"],
            "answer": [doc["choices"][i] for i in gold] or None,
            "response": row["model_response"]["text"],
            "data": doc["task_name"],
            "metrics": {name: (value, None) for name, value in row["metric"].items()},
        }


def _of_share(metric: str, value: Any, count: int) -> Any:
    """Return as many scores as a share of right responses stands for. A text for another number of several."""
    if not isinstance(value, int | float) or value != value:
        return None if value is None or value != value else str(value)
    count = int(found[1]) if (found := re.search(r"[:&]n=(\d+)", metric)) else count or 1
    right = round(value * count)
    if abs(value * count - right) > 1e-6 * count or not 0 <= right <= count or (count > 1 and not _SHARE.match(metric)):
        return f"{value} for {count} responses"
    return [1] * right + [0] * (count - right)


_FORMS: dict[str, tuple[set[str], Callable[[Path, Sequence[Row]], Iterator[dict[str, Any]]]]] = {
    "verl": ({"input", "gts"}, _verl),
    "lighteval": ({"doc", "model_response", "metric"}, _lighteval),
    "lm-eval": ({"doc_id", "doc", "resps", "target"}, _lm_eval),
    "SkyRL": ({"input_prompt", "output_response", "score", "env_extras"}, _skyrl),
    "verifiers": ({"env", "task", "traces"}, _verifiers),
    "inspect_ai": ({"id", "epoch", "input", "target", "output"}, _inspect),
}
