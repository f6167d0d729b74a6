"""`bandpo data prepare`: from a data set as it is published to a file to train on, with a report of every change.

A file is made in one pass (`_collect`: what is read, corrected, and dropped for which reason), cut to the longest
prompt, written beside its place and put there in one step; then `report.json` gets its entry. A file whose entry has
the same settings and the right hash is not made again, so a run that was killed goes on with the file it was at.

One schema serves both trainers: verl reads `data_source`, `prompt`, `ability`, `reward_model` and `extra_info`; TRL
reads `prompt` and `answer`, and gives the other columns to the reward.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from .config import UserError
from .divergences import nearest
from .sources import GROUPS, SOURCES, Rows, Source, copied_files, file_rows, hub_rows, reasoning_gym_items, value_at

# The text that the public DAPO rows stand in. The paper's other data stands in it with a space on each side.
_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
_BEHIND = '\n\nRemember to put your answer on its own line after "Answer:".'
TEMPLATES = {
    "paper": f"{_BEFORE} {{prompt}} {_BEHIND}",
    "plain": "{prompt}",
    "boxed": "{prompt}\nPlease reason step by step, and put your final answer within \\boxed{}.",
}

SCHEMA = pyarrow.schema(
    {
        "data_source": pyarrow.string(),
        "prompt": pyarrow.list_(pyarrow.struct({"role": pyarrow.string(), "content": pyarrow.string()})),
        "ability": pyarrow.string(),
        "reward_model": pyarrow.struct({"style": pyarrow.string(), "ground_truth": pyarrow.string()}),
        "extra_info": pyarrow.struct(
            {
                "split": pyarrow.string(),
                "index": pyarrow.int64(),  # the row's number in its source, from 0
                "id": pyarrow.string(),  # its name there
                "problem": pyarrow.string(),  # without instructions
                "source": pyarrow.string(),
            }
        ),
        "answer": pyarrow.string(),
    }
)


# ---------------------------------------------------------------------------------------------------------------- names
def find(
    name: str,
    *,
    prompt: str | None = None,
    answer: str | None = None,
    config: str | None = None,
    split: str | None = None,
    data_source: str | None = None,
    options: Mapping[str, Any] | None = None,
    size: int | None = None,
    integers: bool = False,
    evaluation: bool = False,
) -> list[Source]:
    """The data sets that a name stands for: a known one, a group, `reasoning-gym:TASK`, a file, or a name on the hub.

    The arguments say how an unknown one is read; of a known one only `size` and `data_source` can be chosen.

    Raises:
        UserError: there is no such data set, or an argument that has no place.
    """
    own = {
        "--prompt": prompt,
        "--answer": answer,
        "--config": config,
        "--split": split,
        "--integers": integers,
        "--evaluation": evaluation,
    }
    task = name.removeprefix("reasoning-gym:") if name.startswith("reasoning-gym:") else None
    known = GROUPS[name].names if name in GROUPS else (name,) if name in SOURCES else ()
    for key, value in own.items():
        if value and (known or (task and key in ("--prompt", "--answer", "--config"))):
            raise UserError(f"{key} has no place with {name}, whose columns are known")
    if options and not task:
        raise UserError(f"--option has no place with {name}; it goes with reasoning-gym:TASK")
    given: dict[str, Any] = {"size": size} | ({"data_source": data_source} if data_source else {})
    if known:
        return [dataclasses.replace(SOURCES[each], **given) for each in known]
    use = "evaluation" if evaluation else "train"
    common = {**given, "split": split or "train", "use": use, "integers": integers}
    if task is not None:
        common["size"] = size or 1000
        return [Source(name, task, "reasoning-gym", "question", file=task, options=options or {}, **common)]
    columns = {"problem": prompt or "prompt", "answer": answer or "answer"}
    if Path(name).is_file() or name.endswith((".jsonl", ".json", ".csv", ".parquet")):
        return [Source(name, name, "file", file=Path(name).stem, **columns, **common)]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return [Source(name, name, file=name.split("/")[1], config=config, stream=True, **columns, **common)]
    close = nearest(name, [*GROUPS, *SOURCES])
    raise UserError(
        f"no data set {name!r}{close}; known are {', '.join([*GROUPS, *SOURCES])} (`bandpo data list`), and "
        "reasoning-gym:TASK, a .jsonl, .json, .csv or .parquet file, or ORG/NAME of the hub will do"
    )


def _open(source: Source, copies: Path | None) -> tuple[Rows, dict[str, Any]]:
    """The rows of a source, and where they come from."""
    if source.kind == "reasoning-gym":
        items, _ = reasoning_gym_items(source.hub, source.size or 0, source.options)
        return iter(items), {"task": source.hub, "options": {"seed": 0, **source.options}, "items": source.size}
    if source.kind == "file" or copies is not None:
        files = [Path(source.hub)] if source.kind == "file" else copied_files(source, copies or Path())
        missing = next((path for path in files if not path.is_file()), None)
        if missing is not None:
            raise UserError(f"{str(missing)!r} is no file")
        hashes = {str(path): file_hash(path) for path in files}
        return (row for path in files for row in file_rows(path)), {"files": hashes}
    rows, commit = hub_rows(source.hub, source.config, source.split, stream=source.stream)
    return rows, {"hub": source.hub, "config": source.config, "split": source.split, "commit": commit}


def file_hash(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ------------------------------------------------------------------------------------------------------------ one row
@dataclass(frozen=True)
class Problem:
    """A row as it was read: the problem without instructions, its answer, and the messages where it came as such."""

    index: int
    text: str
    answer: str
    identity: str | None
    messages: list[dict[str, str]] | None
    level: int | None


def _problem(source: Source, row: Mapping[str, Any], index: int) -> Problem:
    for what, path in (("prompt", source.problem), ("answer", source.answer)):
        if path not in row and path.split(".")[0] not in row:
            raise UserError(f"{source.name}: column {path!r} (--{what}) is not there; row {index + 1} has {list(row)}")
    where = f"{source.name}: row {index + 1}"
    value = value_at(row, source.problem)
    messages = None
    if isinstance(value, list):
        messages = [{key: str((each or {}).get(key) or "") for key in ("role", "content")} for each in value]
        value = next((each["content"] for each in reversed(messages) if each["role"] == "user"), "")
        text = _bare(value)
        if source.instructed and text == value:
            messages = None  # it does not carry the instructions that the others do
    elif value is None or isinstance(value, str):
        text = _bare(value or "")
    else:
        raise UserError(
            f"{source.name}: row {index + 1}: {source.problem!r} must be text or messages, got {value!r:.60}"
        )
    answer = value_at(row, source.answer)
    if not (answer is None or isinstance(answer, str | int | float)):
        raise UserError(
            f"{source.name}: row {index + 1}: {source.answer!r} must be text or a number, got {answer!r:.60}"
        )
    answer = "" if answer is None else str(answer)
    if source.after is not None:
        answer = answer.rpartition(source.after)[2] if source.after in answer else ""
    level = None
    if source.levels is not None:
        level = row.get("level")
        if not isinstance(level, int):
            raise UserError(f"{where}: 'level' must be a whole number, got {level!r}")
    identity = value_at(row, source.identity) if source.identity else None
    return Problem(index, text, answer.strip(), None if identity is None else str(identity), messages, level)


def _bare(text: str) -> str:
    """Without the instructions of the template `paper`."""
    if text.startswith(_BEFORE) and text.endswith(_BEHIND):
        return text[len(_BEFORE) : -len(_BEHIND)].strip()
    return text


def _messages(source: Source, problem: Problem, template: str) -> list[dict[str, str]]:
    if problem.messages is not None and (not source.instructed or template == TEMPLATES["paper"]):
        return problem.messages
    return [{"role": "user", "content": template.replace("{prompt}", problem.text)}]


_INTEGER = re.compile(r"[-+]?\d+")


def _corrected(answer: str, *, padded: bool) -> tuple[str, list[str]]:
    """An integer as it is usually written, and what was changed. `padded`: zeros before it stay."""
    changes = []
    if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+(\.0*)?", answer):
        answer = answer.replace(",", "")
        changes.append("commas taken out")
    if re.fullmatch(r"[-+]?\d+\.0*", answer):
        answer = answer.partition(".")[0]
        changes.append("decimals of an integer taken off")
    if not padded and re.fullmatch(r"[-+]?0\d+", answer):
        answer = re.sub(r"0+(?=\d)", "", answer, count=1)
        changes.append("zeros before an integer taken off")
    return answer, changes


def _prepared(source: Source, problem: Problem, template: str) -> dict[str, Any]:
    return {
        "data_source": source.data_source,
        "prompt": _messages(source, problem, template),
        "ability": "MATH",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            "split": source.split,
            "index": problem.index,
            "id": problem.identity,
            "problem": problem.text,
            "source": source.name if source.kind == "file" else source.hub,
        },
        "answer": problem.answer,
    }


def template_text(template: str | None, source: Source) -> str:
    """The text of a template: by name, or the text itself; without one, that of the paper for a known data set.

    Raises:
        UserError: neither a known name nor a text with {prompt} in it.
    """
    if template is None:
        template = "paper" if source.name in SOURCES else "plain"
    if template in TEMPLATES:
        return TEMPLATES[template]
    if "{prompt}" not in template:
        raise UserError(
            f"template must be one of {sorted(TEMPLATES)} or a text with {{prompt}} in it, got {template!r}"
        )
    return template


# ------------------------------------------------------------------------------------------------------ evaluation sets
@dataclass(frozen=True)
class EvaluationSet:
    """Problems to evaluate on.

    Attributes:
        name: of the data set, or of its file.
        rows: one for each problem: `messages`, `answer`, `problem` (without instructions), `id`, `data_source`.
        sha256: of the rows.
        source: where they come from.
        warnings: what is not as recorded, in sentences.
    """

    name: str
    rows: list[dict[str, Any]]
    sha256: str
    source: dict[str, Any]
    warnings: list[str]


def evaluation_set(
    name: str,
    *,
    template: str | None = None,
    copies: Path | None = None,
    prompt: str | None = None,
    answer: str | None = None,
    config: str | None = None,
    split: str | None = None,
    size: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> EvaluationSet:
    """A data set to evaluate on, by its name or from a file.

    Args:
        name: a known set (`aime24`, `aime25`, `amc23`, `gsm8k-test`; `gsm8k` is its test), `reasoning-gym:TASK`, a file
            that `bandpo data prepare` wrote, any other file, or a name on the hub.
        template: the text around a problem, by name (`paper`, `plain`, `boxed`) or as a text with {prompt} in it. By
            default `paper` for a known set and `plain` for others; problems that are messages stay as they are.
        copies: a copy of the hub's data set on disk (a file or a folder), to be read instead of the hub.
        prompt: the column of an unknown set with the problem.
        answer: its column with the answer.
        config: of an unknown set of the hub.
        split: of it.
        size: take the first so many rows.
        options: of a reasoning_gym task.

    Returns:
        The set. Integers are written as usual (033 is 33), nothing is dropped.

    Raises:
        UserError: it cannot be found or read, or has a row without a problem or an answer.
    """
    found = find(
        name, prompt=prompt, answer=answer, config=config, split=split, size=size, options=options, evaluation=False
    )
    found = [source for source in found if source.use == "evaluation"] if len(found) > 1 else found
    if len(found) != 1:
        raise UserError(f"{name} is {len(found)} evaluation sets ({', '.join(each.name for each in found)}); name one")
    source = found[0]
    text = template_text(template, source)
    read, where = _open(source, copies)
    rows = []
    for index, row in enumerate(_first(read, source)):
        problem = _problem(source, row, index)
        if not problem.text.strip() or not problem.answer:
            what = "answer" if problem.text.strip() else "problem"
            raise UserError(f"{name}: row {index + 1} has no {what}")
        if source.integers:
            problem = dataclasses.replace(problem, answer=_corrected(problem.answer, padded=False)[0])
        prepared = value_at(row, "extra_info.problem")  # of a file that `prepare` wrote
        rows.append(
            {
                "messages": _messages(source, problem, text),
                "answer": problem.answer,
                "problem": prepared if isinstance(prepared, str) else problem.text,
                "id": value_at(row, "extra_info.id") or problem.identity,
                "data_source": row.get("data_source") or source.data_source,
            }
        )
    if not rows:
        raise UserError(f"{name} has no rows")
    return EvaluationSet(_label(source), rows, rows_hash(rows), where, _count_warnings(source, len(rows), None))


def _label(source: Source) -> str:
    return source.file if source.kind == "file" else source.name


def _first(rows: Rows, source: Source) -> Rows:
    for index, row in enumerate(rows):
        if source.size is not None and index >= source.size:
            return
        yield row


def rows_hash(rows: Iterable[Mapping[str, Any]]) -> str:
    """The SHA-256 of rows as JSON lines: the same whatever wrote the file that they are in."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def _count_warnings(source: Source, read: int, kept: int | None) -> list[str]:
    """Where the counts are not the recorded ones."""
    out = []
    for what, count, expected in (("rows", read, source.rows), (f"rows of levels {source.levels}", kept, source.kept)):
        if count is None or expected is None or source.size is not None:
            continue
        low, high = expected if isinstance(expected, tuple) else (expected, expected)
        if not low <= count <= high:
            wanted = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            out.append(f"{source.name}: {count:,} {what}, expected {wanted} ({source.counted})")
    return out
