"""Read files of verl and of evaluation harnesses as rows by role."""

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
from ..data.readers import file_rows, rows_in, whole_json
from .columns import Row, column_of, is_clear

Say = Callable[[str], None]


def rows_of(path: Path, say: Say) -> Sequence[Row]:
    """Read the rows of a file of answers, and `say` where in an object they are.

    A log of inspect_ai (.eval, .json) gives its samples, with the name of their task.

    Raises:
        UserError: no such file, another ending, or a file that cannot be read.
    """
    whole = inspect_log(path) if path.suffix == ".eval" else None
    if path.suffix in (".json", ".jsonl") and path.is_file():
        whole = whole_json(path)
    if whole is None:
        return list(file_rows(path, str(path), ".eval"))
    try:
        if isinstance(whole, list):
            return rows_in(whole)[1]
        if isinstance(whole.get("samples"), list) and isinstance(whole.get("eval"), dict):
            return [{"task": whole["eval"].get("task"), **sample} for sample in whole["samples"]]
        name, rows = rows_in(whole)
        while not any(
            column_of(rows[0], role, depth=1) for role in ("prompt", "response")
        ):  # lists of data sets
            parts = [(row.get("name"), *rows_in(row)) for row in rows]
            name = f"{name}.{parts[0][1]}"
            rows = [{"dataset": data, **each} for data, _, part in parts for each in part]
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    say(f"read: the {len(rows):,} objects in {name or path.name!r}")
    return rows


def inspect_log(path: Path, samples: str = r"samples/.*\.json") -> dict[str, Any]:
    """Read a log of inspect_ai that is an archive, as its JSON form has it. `samples` is a pattern of their names."""
    with contextlib.suppress(ImportError):
        # It comes with inspect_ai, which compresses so, and teaches zipfile to read it.
        import zipfile_zstd  # noqa: F401  # pyright: ignore[reportMissingImports]
    try:
        with zipfile.ZipFile(path) as archive:
            names = [
                "header.json",
                *sorted(name for name in archive.namelist() if re.fullmatch(samples, name)),
            ]
            header, *rows = [json_line(archive.read(name), f"{path}, {name}") for name in names]
            return {"eval": header["eval"], "samples": rows}
    except (OSError, KeyError, TypeError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise UserError(
            f"{path} cannot be read as a log of inspect_ai ({type(error).__name__}: {error}); those of newer releases "
            "need pip install 'bandpo[inspect]', or `inspect log convert --to json`"
        ) from None


def of_form(
    path: Path, rows: Sequence[Row], columns: Mapping[str, str]
) -> tuple[str, dict[str, str], list[dict[str, Any]]] | None:
    """Return the rows of a file of verl or a harness by role. None for another file.

    First come what precedes a metric's name, and the columns of roles, none. A row's `metrics` are (score, what was
    read) by their names. They grade the same answers.

    Raises:
        UserError: a row that is not of the form, or a column given by its role.
    """
    form = next((form for form, (keys, _) in _FORMS.items() if keys <= rows[0].keys()), None)
    if form is None:
        return None
    others = [role for role in columns if role != "score"]
    if others:
        raise UserError(
            f"{path} has the known columns of {form}; --column {others[0]} is for other files"
        )
    try:
        made = list(_FORMS[form][1](path, rows))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not as {form} writes it ({type(error).__name__}: {error})") from None
    return f"{form}'s ", {}, made


_OF_VERL = "reward function"  # its acc, or else its score
_SUM = "sum of rewards"  # by their weights


def chosen(path: Path, rows: Sequence[Row], score: str | None, say: Say) -> list[str]:
    """Choose the `metrics` in rows that say what is right.

    They are the one that `score` names, the total, or all with only right and wrong. None if the rows have none.

    Raises:
        UserError: no such metric, or several of which none is right or wrong.
    """
    metrics = dict.fromkeys(metric for row in rows for metric in row["metrics"])
    of = {metric: [row["metrics"].get(metric, [None])[0] for row in rows] for metric in metrics}
    if not of:
        say(f"graded by math: {path.name} has no scores")
    named = [name for name in of if score in (name, name.partition(",")[0])]  # with or without a filter
    if score is not None and not named:
        raise UserError(
            f"{path} has no metric {score!r} (--column score={score}){nearest(score, list(of))}; it has {[*of]}"
        )
    named = named or [name for name in of if name in (_OF_VERL, _SUM)]
    if named:
        return named
    clear = [name for name, scores in of.items() if is_clear(scores)]
    if not clear and len(of) > 1:
        raise UserError(
            f"{path} has the metrics {[*of]}; --column score=NAME says which of them is being right"
        )
    others = [name for name in of if clear and name not in clear]
    if others:
        say(f"not shown, as not all values are 0 or 1: {', '.join(others)}")
    return clear or list(of)


def _verl(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read verl's `trainer.validation_data_dir`. Rewards are any numbers, and right is what is above 0.

    Each number of a row can be chosen. Its questions are told apart by the right answer as well.
    """
    for row in rows:
        numbers = {
            name: _is_right(x) for name, x in row.items() if isinstance(x, int | float) and name != "step"
        }
        yield {
            "prompt": row["input"],
            "problem": [row["input"], row["gts"]],
            "answer": row["gts"],
            "response": row.get("output"),
            "data": row.get("dataset") or row.get("data_source") or "validation",
            "metrics": {
                _OF_VERL: (
                    _is_right(row.get("score") if row.get("acc") is None else row["acc"]),
                    row.get("pred"),
                ),
                **{name: (right, row.get("pred")) for name, right in numbers.items()},
            },
        }


def _is_right(reward: Any) -> Any:
    return float(reward > 0) if isinstance(reward, int | float) and abs(reward) < float("inf") else reward


def _skyrl(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read SkyRL's `trainer.dump_eval_results`. A reward is a number, or one for each token; right is above 0."""
    for row in rows:
        extras, score = row["env_extras"], row["score"]
        gold = (extras.get("reward_spec") or extras.get("reward_model") or {}).get("ground_truth")
        yield {
            "prompt": row["input_prompt"],
            "problem": [row["input_prompt"], gold],
            "answer": gold,
            "response": row["output_response"],
            "data": row["data_source"],
            "metrics": {_OF_VERL: (_is_right(sum(score) if isinstance(score, list) else score), None)},
        }


def _verifiers(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read the episodes of verifiers 0.4, which prime-rl keeps too. A trace of a trained agent is an answer."""
    for row in rows:
        task = row["task"]["data"]
        # It failed.
        for trace in [trace for trace in row["traces"] if trace["agent"]["trainable"]] or [{}]:
            rewards = {name: each for name, each in trace.get("rewards", {}).items() if each}
            total = sum(each["score"] * each["weight"] for each in rewards.values()) if rewards else None
            yield {
                "prompt": task.get("prompt"),
                "problem": task,
                "answer": task.get("answer"),
                "response": [node["message"] for node in trace.get("nodes", []) if node["sampled"]][-1:]
                or None,
                "data": row["env"].get("name") or row["env"]["id"],
                "metrics": {
                    _SUM: (total, None),
                    **{name: (each["score"], None) for name, each in rewards.items()},
                },
            }


def _inspect(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read the samples of an inspect_ai log. match.strict is the number `strict` of the scorer `match`."""
    for row in rows:
        metrics = {}
        for name, score in (row.get("scores") or {}).items():
            value = score["value"]
            for key, number in value.items() if isinstance(value, dict) else [("", value)]:
                metrics[f"{name}.{key}".removesuffix(".")] = number, score.get("answer")
        choices = (row["output"] or {}).get("choices") or []
        question = row["input"]
        if isinstance(question, list):  # messages, which have other ids in every epoch
            question = [{"role": message["role"], "content": message["content"]} for message in question]
        yield {
            "prompt": question,
            "problem": [row["id"], question],
            "answer": row["target"],
            "response": choices[0]["message"] if choices else None,
            "data": row.get("task"),
            "metrics": metrics,
        }


_OWN = {
    "doc_id",
    "doc",
    "target",
    "arguments",
    "resps",
    "filtered_resps",
    "filter",
    "metrics",
}  # of lm-eval


def _lm_eval(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read lm-eval's `samples_TASK_TIME.jsonl`. It has a row for each document and filter, with metrics by their names.

    Each filter is another grader of the same answers.
    """
    by_name = re.fullmatch(r"samples_(.+)_\d{4}-\d\d-\d\dT.*", path.stem)
    numbers = [key for key, each in rows[0].items() if key not in _OWN and isinstance(each, int | float)]
    filters = {row.get("filter", "none") for row in rows}
    answers: dict[tuple[Any, str], dict[str, Any]] = {}
    for row in rows:
        target, kind = row["target"], row.get("filter", "none")
        if isinstance(target, str) and HASHES in target:  # GSM8K's solutions
            target = read_gold(target, HASHES)[0]
        likelihoods = any(not isinstance(text, str) for texts in row["resps"] for text in texts)
        is_read = kind != "none" and not likelihoods  # else it is the whole text
        read = (row.get("filtered_resps") or [None])[0] if is_read else None
        answer = {
            "prompt": row["doc"],
            "problem": [row["doc_id"], row["doc"]],
            "answer": target,
            "response": None
            if likelihoods
            else row["resps"][0]
            if len(row["resps"]) == 1
            else row["resps"],
            "data": by_name[1] if by_name else "answers",
            "metrics": {},
        }
        answer = answers.setdefault((row["doc_id"], str(row["resps"])), answer)
        answer["metrics"] |= {
            # A list is not a score, but what lm-eval's f1 and mcc are computed from: the right choice and the model's.
            name if filters == {"none"} else f"{name},{kind}": (
                str(x) if isinstance(x, list) else x,
                read,
            )
            for name, x in ((name, row.get(name)) for name in row.get("metrics") or numbers)
        }
    yield from answers.values()


# lighteval's metric is a number for each problem. Of these it is the share of right responses, which is all that the
# statistics ask of them; of others only where there is one response.
_SHARE = re.compile(r"avg@n(:|$)|(gpqa_)?pass@k:(.*&)?k=1(&|$)")


def _lighteval(path: Path, rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Read details of lighteval 0.10 and later. `doc` was asked, `model_response` came, `metric` has the scores."""
    for row in rows:
        doc, texts = row["doc"], row["model_response"]["text"]
        gold = doc["gold_index"] if isinstance(doc["gold_index"], list) else [doc["gold_index"]]
        yield {
            "prompt": doc["query"],
            "answer": [doc["choices"][i] for i in gold] or None,
            "response": texts,
            "data": doc["task_name"],
            "metrics": {
                name: (_of_share(name, value, len(texts)), None) for name, value in row["metric"].items()
            },
        }


def _of_share(metric: str, value: Any, count: int) -> Any:
    """Return as many scores as a share of right responses stands for. A text for another number of several."""
    if not isinstance(value, int | float) or value != value:
        return None if value is None or value != value else str(value)
    of_name = re.search(r"[:&]n=(\d+)", metric)
    count = int(of_name[1]) if of_name else count or 1
    right = round(value * count)
    if (
        abs(value * count - right) > 1e-6 * count
        or not 0 <= right <= count
        or (count > 1 and not _SHARE.match(metric))
    ):
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
