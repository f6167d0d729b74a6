"""`bandpo data prepare`: from a data set as it is published to a file to train on, with a report of every change.

A file is made in one pass (`_collect`: what is read, corrected, and dropped for which reason), cut to the longest
prompt, written beside its place and put there in one step; then `report.json` gets its entry. A file whose entry has
the same settings and the right hash is not made again, so a run that was killed goes on with the file it was at.

One schema serves both trainers: verl reads `data_source`, `prompt`, `ability`, `reward_model` and `extra_info`; TRL
reads `prompt` and `answer`, and gives the other columns to the reward.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypeVar

import pyarrow
import pyarrow.parquet
import pydantic
from typing_extensions import TypedDict

from .. import __version__
from ..errors import UserError, nearest
from ..files import locked, read_json, write_atomically
from ..progress import Progress, lines
from .leaks import Leaks, same_text
from .sources import GROUPS, SOURCES, Rows, Source, copied_files, file_rows, hub_rows, reasoning_gym_items, value_at

T = TypeVar("T")
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


@dataclass(frozen=True)
class Copies:
    """Copies of the hub's data sets on disk: `path` is a file or a folder, which are one data set's if `alone`."""

    path: Path
    alone: bool = True

    def files(self, source: Source) -> list[Path]:
        return copied_files(source, self.path, alone=self.alone)


def _open(source: Source, copies: Copies | None) -> tuple[Rows, dict[str, Any]]:
    """The rows of a source, and where they come from."""
    if source.kind == "reasoning-gym":
        items, _ = reasoning_gym_items(source.hub, source.size or 0, source.options)
        return iter(items), {"task": source.hub, "options": {"seed": 0, **source.options}, "items": source.size}
    if source.kind == "file" or copies is not None:
        files = [Path(source.hub)] if source.kind == "file" or copies is None else copies.files(source)
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
    if isinstance(value, list) and all(_is_message(each) for each in value):
        messages = [{key: each[key] for key in ("role", "content")} for each in value]
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
    answer = "" if answer is None or answer != answer else str(answer)  # NaN is how some tables say nothing
    try:
        "".join([text, answer, *(each["content"] for each in messages or ())]).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise UserError(f"{where}: {half!r} is half a character (a lone surrogate), which no file can hold") from None
    if source.after is not None:
        answer = answer.rpartition(source.after)[2] if source.after in answer else ""
    level = None
    if source.levels is not None:
        level = row.get("level")
        if not isinstance(level, int):
            raise UserError(f"{where}: 'level' must be a whole number, got {level!r}")
    identity = value_at(row, source.identity) if source.identity else None
    return Problem(index, text, answer.strip(), None if identity is None else str(identity), messages, level)


def _asked(messages: Sequence[Mapping[str, str]] | None, problem: str) -> str:
    """What makes two rows the same: the problem, or all that the user says where that is several messages."""
    said = [each["content"] for each in messages or () if each["role"] == "user"]
    return problem if len(said) < 2 else "\n".join(said)


def _is_message(thing: Any) -> bool:
    return isinstance(thing, Mapping) and all(isinstance(thing.get(key), str) for key in ("role", "content"))


def _bare(text: str) -> str:
    """Without the instructions of the template `paper`."""
    if text.startswith(_BEFORE) and text.endswith(_BEHIND):
        return text[len(_BEFORE) : -len(_BEHIND)].strip()
    return text


def _messages(source: Source, problem: Problem, template: str) -> list[dict[str, str]]:
    if problem.messages is not None:
        if template == TEMPLATES["paper" if source.instructed else "plain"]:
            return problem.messages
        if not source.instructed:
            raise UserError(f"{source.name}: its problems are chat messages already, so a template has no place")
    return [{"role": "user", "content": template.replace("{prompt}", problem.text)}]


_INTEGER = re.compile(r"[-+]?[0-9]+")


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


def _plain(answer: str) -> str:
    """Without what does not change an answer: white space, dollar signs, the size of brackets and fractions."""
    return re.sub(r"\s|\$|\\left|\\right|\\[,;! ]", "", re.sub(r"\\[dt]frac", r"\\frac", answer))


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
    copies: Path | Copies | None = None,
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
        copies: a copy of the hub's data set on disk (a file or a folder), or of several (a folder with one ORG/NAME
            for each), to be read instead of the hub.
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
    read, where = _open(source, Copies(copies) if isinstance(copies, Path) else copies)
    rows = []
    for index, row in enumerate(_first(read, source)):
        problem = _problem(source, row, index)
        if not problem.text.strip() or not problem.answer:
            what = "answer" if problem.text.strip() else "problem"
            raise UserError(f"{name}: row {index + 1} has no {what}")
        if source.integers:
            problem = dataclasses.replace(problem, answer=_corrected(problem.answer, padded=False)[0])
        prepared = value_at(row, "extra_info.problem")  # of a file that `prepare` wrote
        if isinstance(prepared, str):
            messages = problem.messages if template is None else None
            problem = dataclasses.replace(problem, text=prepared, messages=messages)
        rows.append(
            {
                "messages": _messages(source, problem, text),
                "answer": problem.answer,
                "problem": problem.text,
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


def _levels(source: Source) -> str:
    low, high = source.levels or (0, 0)
    return f"rows of levels {low} to {high}"


def _count_warnings(source: Source, read: int, kept: int | None) -> list[str]:
    """Where the counts are not the recorded ones."""
    out = []
    for what, count, expected in (("rows", read, source.rows), (_levels(source), kept, source.kept)):
        if count is None or expected is None or source.size is not None:
            continue
        low, high = expected if isinstance(expected, tuple) else (expected, expected)
        if not low <= count <= high:
            wanted = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            out.append(f"{source.name}: {count:,} {what}, expected {wanted} ({source.counted})")
    return out


# -------------------------------------------------------------------------------------------------------------- a file
@dataclass(frozen=True)
class Settings:
    """How files are prepared.

    Attributes:
        template: the text around a problem: by name, or a text with {prompt} in it; None: see `template_text`.
        tokenizer: a model's name or folder; its chat template counts the tokens of a prompt. None: no limit.
        max_prompt_tokens: training rows with longer prompts are dropped.
        against: evaluation sets that training rows must not hold: names, or files.
        as_published: answers, duplicates and leaks stay as they are published; they are counted all the same.
        copies: a copy of the hub's data sets on disk, to be read instead of the hub.
        strict: counts that are not the recorded ones end the run.
        force: make finished files again.
    """

    template: str | None = None
    tokenizer: str | None = None
    max_prompt_tokens: int = 1024
    against: tuple[str, ...] = ()
    as_published: bool = False
    copies: Path | None = None
    strict: bool = False
    force: bool = False


class _Findings:
    """What happened to the rows of a file: counts, and the first few examples of each kind."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.kept_though: Counter[str] = Counter()
        self.corrected: Counter[str] = Counter()
        self.examples: dict[str, list[dict[str, Any]]] = {}

    def note(self, counts: Counter[str], what: str, index: int, text: str, **more: Any) -> None:
        counts[what] += 1
        examples = self.examples.setdefault(what, [])
        if len(examples) < _EXAMPLES:
            examples.append({"row": index, "problem": text[:_SHOWN], **more})


_EXAMPLES = 3
_SHOWN = 300


def _collect(
    source: Source, rows: Rows, settings: Settings, before: _Before
) -> tuple[int, int, list[Problem], _Findings]:
    """One pass over the rows: how many were read, how many of them have the right level, those to keep, and why the
    others are not."""
    findings = _Findings()
    stays = source.use == "evaluation" or settings.as_published
    first: dict[str, int] = {}  # where a text stands in `kept`
    fates: dict[str, str] = {}  # of texts whose place there is empty
    kept: list[Problem | None] = []
    read = of_level = 0
    for index, row in enumerate(_counted(_first(rows, source), source.name)):
        read += 1
        problem = _problem(source, row, index)
        if source.levels is not None and not source.levels[0] <= (problem.level or 0) <= source.levels[1]:
            findings.dropped[f"level outside {source.levels[0]} to {source.levels[1]}"] += 1
            continue
        of_level += 1
        if not problem.text.strip() or not problem.answer:
            what = "no answer" if problem.text.strip() else "no problem"
            findings.note(findings.dropped, what, index, problem.text)
            continue
        if source.integers:
            answer, changes = _corrected(problem.answer, padded=settings.as_published)
            for change in changes:
                findings.note(findings.corrected, change, index, problem.text, was=problem.answer, now=answer)
            problem = dataclasses.replace(problem, answer=answer)
            if not _INTEGER.fullmatch(answer):
                findings.note(findings.kept_though, "answer is no integer", index, problem.text, answer=answer)
        if source.instructed and problem.messages is None:
            findings.note(findings.corrected, "instructions added", index, problem.text)
        counts = findings.kept_though if stays else findings.dropped
        asked = _asked(problem.messages, problem.text)
        text = same_text(asked)
        if text in before.earlier:
            answer, name = before.earlier[text]
            what = f"same problem as in {name}" + (
                "" if _plain(answer) == _plain(problem.answer) else ", with another answer"
            )
            findings.note(counts, what, index, problem.text, answer=problem.answer, there=answer)
            if not stays:
                continue
        if text in first:
            same = kept[first[text]]
            if same is None:
                findings.note(counts, fates[text], index, problem.text, answer=problem.answer)
            elif _plain(same.answer) == _plain(problem.answer):
                findings.note(counts, "duplicate", index, problem.text, of_row=same.index)
            else:
                fates[text] = "same problem with different answers"
                findings.note(counts, fates[text], index, problem.text, answer=problem.answer, of_row=same.index)
                if not stays:  # nobody here can say which answer is right, so none of them is trained on
                    findings.note(counts, fates[text], same.index, same.text, answer=same.answer)
                    kept[first[text]] = None
            if not stays:
                continue
        first.setdefault(text, len(kept))
        leak = before.leaks.find(problem.text)
        if leak is None and asked != problem.text:
            leak = before.leaks.find(asked)
        if leak is not None:
            fates[text] = f"holds a problem of {leak.name}"
            found = {"evaluation_row": leak.row, "share": round(leak.share, 2), "holds": leak.problem[:_SHOWN]}
            findings.note(counts, fates[text], index, problem.text, **found)
        kept.append(problem if leak is None or stays else None)
    return read, of_level, [problem for problem in kept if problem is not None], findings


def _counted(things: Iterable[T], title: str, unit: str = "rows", step: int = 1) -> Iterator[T]:
    """The same; how many are done, `step` to each, is told on stderr."""
    with Progress(unit, title=title, pause=10.0, console=lines(stderr=True)) as progress:
        for count, thing in enumerate(things):
            progress.update(step * count)
            yield thing


@functools.lru_cache(1)
def _token_counter(name: str) -> Callable[[list[list[dict[str, str]]]], list[int]]:
    """Prompt tokens, as verl and TRL count them: through the chat template, with what opens the answer."""
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name)
    except Exception as error:
        raise UserError(f"--tokenizer {name} cannot be loaded: {' '.join(str(error).split())}") from error
    if not tokenizer.chat_template:
        raise UserError(f"--tokenizer {name} has no chat template, so prompts have no length; name the model to train")

    def count(prompts: list[list[dict[str, str]]]) -> list[int]:
        texts = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=False)
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]

    return count


def _measured(
    source: Source, rows: list[dict[str, Any]], settings: Settings, findings: _Findings
) -> tuple[list[dict[str, Any]], list[int]]:
    """The rows whose prompts are not too long (of an evaluation set: all), and the lengths of theirs."""
    if settings.tokenizer is None:
        return rows, []
    count = _token_counter(settings.tokenizer)
    kept, lengths = [], []
    for start in _counted(range(0, len(rows), 500), source.name, "prompts measured", 500):
        part = rows[start : start + 500]
        for row, length in zip(part, count([row["prompt"] for row in part]), strict=True):
            if length > settings.max_prompt_tokens:
                counts = findings.kept_though if source.use == "evaluation" else findings.dropped
                what = f"prompt longer than {settings.max_prompt_tokens} tokens"
                info = row["extra_info"]
                findings.note(counts, what, info["index"], info["problem"], tokens=length)
                if source.use != "evaluation":
                    continue
            kept.append(row)
            lengths.append(length)
    return kept, lengths


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    """The file is there whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=SCHEMA), part)
    _put(part, path)


def _put(part: Path, path: Path) -> None:
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.replace(path)


# ----------------------------------------------------------------------------------------------------------- a folder
@dataclass(frozen=True)
class Outcome:
    """What `prepare` did.

    Attributes:
        files: the entries of the report for the files asked for, by name.
        warnings: about the files together; each file has its own.
        report: the report for reading.
    """

    files: dict[str, dict[str, Any]]
    warnings: list[str]
    report: Path


def prepare(
    sources: Sequence[Source],
    output: Path,
    settings: Settings | None = None,
    *,
    group: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Make the files of some data sets, with report.json and report.md beside them.

    Evaluation sets come first. Training rows are held against those of the same call, and against `settings.against`;
    a training file also does not repeat the problems of the ones before it.

    Args:
        sources: what to prepare, as `find` gives it.
        output: the folder; made if it is not there.
        settings: see `Settings`.
        group: the name in `GROUPS` that they are, so that their count together is checked.
        say: is told what happens, in lines.

    Raises:
        UserError: data that cannot be reached or read, or does not have the columns, in one line; with
            `settings.strict` also counts that are not the recorded ones. Another process writes to the folder.
    """
    settings = settings or Settings()
    names = [source.file for source in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            f"two of the data sets would be written to {twice}.parquet; prepare them into different folders"
        )
    if settings.max_prompt_tokens < 1:
        raise UserError(f"--max-prompt-tokens must be at least 1, got {settings.max_prompt_tokens}")
    with locked(output / ".lock"):
        return _prepare(sources, output, settings, group, say)


def _prepare(
    sources: Sequence[Source], output: Path, settings: Settings, group: str | None, say: Callable[[str], None]
) -> Outcome:
    report = _read_report(output)
    evaluation = [source for source in sources if source.use == "evaluation"]
    training = [source for source in sources if source.use == "train"]
    against = {source.name: output / f"{source.file}.parquet" for source in evaluation}
    if training:
        against |= {name: _finished(name, output, report) for name in settings.against if name not in against}
    copies = None
    if settings.copies is not None:
        hub = [source.name for source in sources if source.kind == "hub"]
        hub += [name for name, path in against.items() if path is None and name in SOURCES]
        if settings.copies.is_file() and len(hub) > 1:
            needed = " and ".join(hub)
            raise UserError(f"--from {settings.copies} is one file, but {needed} are to be read; give a folder")
        copies = Copies(settings.copies, alone=len(hub) == 1)
    folder = _Folder(output, settings, copies, report, say)
    done = {source.file: _file(folder, source, _Before()) for source in evaluation}
    if training:
        before = _held_against(folder, against)
        for source in training:
            done[source.file] = _file(folder, source, before)
            before = before.and_then(source, done[source.file], output / f"{source.file}.parquet")

    warnings = []
    if group is not None and GROUPS[group].training_rows and not any(source.size for source in sources):
        low, high = GROUPS[group].training_rows or (0, 0)
        total = sum(done[source.file]["rows"] for source in training)
        if not low <= total <= high:
            expected = f"expected {low:,} to {high:,} ({GROUPS[group].counted})"
            warnings.append(f"{group}: {total:,} rows to train on, {expected}")
        report["groups"][group] = {"training_rows": total, "warnings": warnings}
        _write_report(report, output)
    for warning in warnings:
        if settings.strict:
            raise UserError(f"{warning}; --strict takes this for an error")
        say(f"warning: {warning}")
    return Outcome(done, warnings, output / "report.md")


@dataclass(frozen=True)
class _Folder:
    path: Path
    settings: Settings
    copies: Copies | None
    report: dict[str, Any]
    say: Callable[[str], None]


@dataclass(frozen=True)
class _Before:
    """What the rows of a training file are held against: evaluation sets, and the training files before it.

    `hashes` say whether it is the same as when a file was made; `earlier` has the answer and the file of each problem.
    """

    leaks: Leaks = field(default_factory=lambda: Leaks([]))
    hashes: tuple[str, ...] = ()
    earlier: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def and_then(self, source: Source, entry: Mapping[str, Any], path: Path) -> _Before:
        """With a training file that is finished."""
        rows = file_rows(path)
        own = {
            same_text(_asked(row["prompt"], row["extra_info"]["problem"])): (row["answer"], source.name) for row in rows
        }
        return _Before(self.leaks, (*self.hashes, entry["rows_sha256"]), {**own, **self.earlier})


def _held_against(folder: _Folder, against: Mapping[str, Path | None]) -> _Before:
    """The evaluation sets of these names; from prepared files, where there is a path."""
    sets, hashes = [], []
    for name, path in against.items():
        found = evaluation_set(str(path) if path else name, copies=None if path else folder.copies)
        for warning in found.warnings:
            folder.say(f"warning: {warning}")
        sets.append((name, [row["problem"] for row in found.rows]))
        hashes.append(rows_hash({"problem": row["problem"]} for row in found.rows))
    if not sets:
        folder.say("training rows are not held against evaluation sets; --against aime24,aime25,amc23 does that")
    return _Before(Leaks(sets), tuple(hashes))


def _finished(name: str, output: Path, report: Mapping[str, Any]) -> Path | None:
    """The prepared file of a whole evaluation set in the same folder, which saves a download."""
    entry = report["files"].get(SOURCES[name].file) if name in SOURCES else None
    if entry is None or (entry["settings"].get("source") or {}).get("size") is not None:
        return None
    path = output / entry["file"]
    return path if path.is_file() and file_hash(path) == entry["sha256"] else None


def _file(folder: _Folder, source: Source, before: _Before) -> dict[str, Any]:
    """Make one file, or find it finished; returns its entry, which is in the report then."""
    settings, report, say = folder.settings, folder.report, folder.say
    path = folder.path / f"{source.file}.parquet"
    if source.kind == "file" and Path(source.hub).resolve() == path.resolve():
        raise UserError(f"{path} would be written over itself; choose another folder with -o")
    wanted = _wanted(folder, source, before)
    entry = report["files"].get(source.file)
    again = settings.force or not entry or entry["settings"] != wanted or (settings.strict and entry["warnings"])
    if not again and path.is_file() and file_hash(path) == entry["sha256"]:
        say(f"{source.name}: {path} is finished, {entry['rows']:,} rows")
        for warning in entry["warnings"]:
            say(f"warning: {warning}")
        return entry
    if settings.tokenizer is not None:
        _token_counter(settings.tokenizer)  # before anything is read: it may not be there
    say(f"{source.name}: reading {source.hub}")
    rows, where = _open(source, folder.copies)
    read, of_level, problems, findings = _collect(source, rows, settings, before)
    if not read:
        raise UserError(f"{source.name} has no rows")
    prepared = [_prepared(source, problem, wanted["template"]) for problem in problems]
    prepared, lengths = _measured(source, prepared, settings, findings)
    if not prepared:
        raise UserError(f"{source.name}: of {read:,} rows none is left ({_listed(findings.dropped)})")
    warnings = _count_warnings(source, read, of_level if source.levels else None)
    for what, count in (findings.kept_though + findings.dropped).items():
        if what in ("answer is no integer", "no answer", "no problem"):
            warnings.append(f"{source.name}: {count:,} rows: {what}")
    for what, count in findings.kept_though.items():
        if what.startswith("prompt longer"):
            warnings.append(f"{source.name}: {count:,} rows: {what}; verl will leave them out")
    if settings.strict and warnings:
        raise UserError(f"{warnings[0]}; --strict takes this for an error, and {path} is not written")
    _write(prepared, path)
    entry = {
        "file": path.name,
        "rows": len(prepared),
        "sha256": file_hash(path),
        "rows_sha256": rows_hash(prepared),
        "read": read,
        "dropped": dict(findings.dropped.most_common()),
        "kept_though": dict(findings.kept_though.most_common()),
        "corrected": dict(findings.corrected.most_common()),
        "warnings": warnings,
        "examples": findings.examples,
        "from": where,
        "prompt_tokens": {"median": statistics.median(lengths), "longest": max(lengths)} if lengths else None,
        "versions": {"bandpo": __version__, "pyarrow": pyarrow.__version__},
        "settings": wanted,
    }
    report["files"][source.file] = entry
    _write_report(report, folder.path)
    say(f"{source.name}: {path}, {len(prepared):,} rows of {read:,}")
    for kind, key in (("dropped", "dropped"), ("found and kept", "kept_though"), ("put right", "corrected")):
        if entry[key]:
            say(f"  {kind}: {_listed(entry[key])}")
    for warning in warnings:
        say(f"warning: {warning}")
    return entry


def _wanted(folder: _Folder, source: Source, before: _Before) -> dict[str, Any]:
    """All that a file depends on, by which a finished one is known. What the hub has now is not asked."""
    settings, node = folder.settings, json.loads(json.dumps(dataclasses.asdict(source)))
    wanted = {
        "format": _FORMAT,
        "source": {key: value for key, value in node.items() if key not in _RECORDED},
        "template": template_text(settings.template, source),
        "tokenizer": settings.tokenizer,
        "max_prompt_tokens": settings.max_prompt_tokens if settings.tokenizer else None,
        "as_published": settings.as_published,
        "held_against": list(before.hashes),
    }
    if source.kind == "file" or (folder.copies is not None and source.kind == "hub"):
        copied = [Path(source.hub)] if source.kind == "file" or folder.copies is None else folder.copies.files(source)
        wanted["copied"] = [file_hash(path) for path in copied if path.is_file()]
    return wanted


_FORMAT = 1  # of a file and of its entry; another one is made again
_RECORDED = {"rows", "kept", "counted", "licence"}  # what is known of a source; the file does not depend on it


def _listed(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} {what}" for what, count in counts.items())


# What report.json says, as far as it is read again; "from" is a word of Python, so not as classes.
_more = pydantic.with_config(pydantic.ConfigDict(extra="allow"))
_From = _more(TypedDict("_From", {"files": NotRequired[dict[str, str]]}))


class _Lengths(TypedDict):
    median: float
    longest: int


_Counts = dict[str, int]
_Entry = _more(
    TypedDict(
        "_Entry",
        {
            "file": str, "rows": int, "read": int, "sha256": str, "rows_sha256": str, "from": _From,
            "dropped": _Counts, "kept_though": _Counts, "corrected": _Counts, "warnings": list[str],
            "examples": dict[str, list[dict[str, Any]]], "prompt_tokens": _Lengths | None, "settings": dict[str, Any],
        },
    )
)  # fmt: skip
_Group = _more(TypedDict("_Group", {"warnings": list[str]}))
_Report = _more(TypedDict("_Report", {"files": dict[str, _Entry], "groups": dict[str, _Group]}))


def _read_report(output: Path) -> dict[str, Any]:
    path = output / "report.json"
    if not path.exists():
        return {"files": {}, "groups": {}}
    try:
        return read_json(path, _Report)
    except UserError as error:
        raise UserError(
            f"{error}: it is not a report of bandpo data prepare; remove it, or choose another folder"
        ) from None


def _write_report(report: Mapping[str, Any], output: Path) -> None:
    for name, text in (("report.md", report_text(report)), ("report.json", json.dumps(report, indent=1) + "\n")):
        write_atomically(output / name, text.encode())


def report_text(report: Mapping[str, Any]) -> str:
    """The report for reading, in Markdown."""
    lines = [
        "# Prepared data",
        "",
        "| file | read | rows | dropped | put right | SHA-256 |",
        "|---|---|---|---|---|---|",
    ]
    for entry in report["files"].values():
        numbers = [entry["read"], entry["rows"], sum(entry["dropped"].values()), sum(entry["corrected"].values())]
        cells = [f"{number:,}" for number in numbers]
        lines.append(f"| {entry['file']} | {' | '.join(cells)} | `{entry['sha256']}` |")
    for group in report["groups"].values():
        lines += [line for warning in group["warnings"] for line in ("", f"**Warning**: {warning}.")]
    for entry in report["files"].values():
        lines += ["", f"## {entry['file']}", "", f"From {_from(entry['from'])}."]
        if entry["prompt_tokens"]:
            tokens = entry["prompt_tokens"]
            lines.append(f"Prompts have {tokens['median']:g} tokens (median), {tokens['longest']:,} at most.")
        lines += [line for warning in entry["warnings"] for line in ("", f"**Warning**: {warning}.")]
        for title, key in (("Dropped", "dropped"), ("Found and kept", "kept_though"), ("Put right", "corrected")):
            if entry[key]:
                lines += ["", f"{title}:", ""]
            for what, count in entry[key].items():
                lines.append(f"- {count:,} x {what}")
                lines += [f"    - {_example(example)}" for example in entry["examples"].get(what, ())]
    return "\n".join(lines) + "\n"


def _from(where: Mapping[str, Any]) -> str:
    if "files" in where:
        return ", ".join(f"`{path}` ({digest[:12]})" for path, digest in where["files"].items())
    return ", ".join(f"{key} {value}" for key, value in where.items() if value is not None)


def _example(example: Mapping[str, Any]) -> str:
    def quoted(value: Any) -> str:
        return f"`{' '.join(str(value).replace('`', ' ').split())}`"

    return ", ".join(f"{key.replace('_', ' ')} {quoted(value)}" for key, value in example.items())


def listing() -> str:
    """The known data sets, for a terminal."""
    out = []
    for source in SOURCES.values():
        config = f", {source.config}" if source.config else ""
        levels = f", levels {source.levels[0]} to {source.levels[1]}" if source.levels else ""
        out += [
            f"{source.name:18} {source.use}: {source.hub}{config}, {source.split}{levels}",
            f"{'':18} {_expected(source)}; licence: {source.licence}",
        ]
    out += [f"{name:18} {' '.join(group.names)}" for name, group in GROUPS.items()]
    return "\n".join(out)


def _expected(source: Source) -> str:
    def text(count: int | tuple[int, int]) -> str:
        return f"{count[0]:,} to {count[1]:,}" if isinstance(count, tuple) else f"{count:,}"

    kept = f", {text(source.kept)} kept" if source.kept else ""
    return f"{text(source.rows or 0)} rows{kept} ({source.counted})"
