"""Selection of a source's rows for a file: corrections, dropped rows, and the reasons."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bandpo.errors import UserError

from ..progress import Progress, lines
from .leaks import Leaks, same_text
from .problems import SHOWN, Problem, corrected, is_integer, problem_of, text_asked, without_looks
from .readers import Rows, file_rows, value_at
from .sources import Source

T = TypeVar("T")


class Findings:
    """Record of the changes to a file's rows: counts, and the first few examples of each kind."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.kept_though: Counter[str] = Counter()
        self.corrected: Counter[str] = Counter()
        self.examples: dict[str, list[dict[str, Any]]] = {}

    def note(self, counts: Counter[str], what: str, index: int, text: str, **more: Any) -> None:
        counts[what] += 1
        examples = self.examples.setdefault(what, [])
        if len(examples) < _EXAMPLES:
            examples.append({"row": index, "problem": text[:SHOWN], **more})


_EXAMPLES = 3


@dataclass(frozen=True)
class Before:
    """Rows that a training file is compared with: evaluation sets, and the training files before it.

    `hashes` say whether it is the same as when a file was made; `earlier` has the answer and the file of each problem.
    """

    leaks: Leaks = field(default_factory=lambda: Leaks([]))
    hashes: tuple[str, ...] = ()
    earlier: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def and_then(self, source: Source, entry: Mapping[str, Any], path: Path) -> Before:
        """Return these facts with those of a finished training file."""
        rows = file_rows(path)
        own = {
            same_text(text_asked(row["prompt"], row["extra_info"]["problem"])): (row["answer"], source.name)
            for row in rows
        }
        return Before(self.leaks, (*self.hashes, entry["rows_sha256"]), {**own, **self.earlier})


def collect(
    source: Source, rows: Rows, before: Before, *, as_published: bool
) -> tuple[int, int, list[Problem], Findings]:
    """Select rows in one pass: how many were read, how many of them have the right level, those to keep, and why the
    others are not. `as_published`: answers, duplicates and leaks stay, and are counted all the same."""
    findings = Findings()
    stays = source.use == "evaluation" or as_published
    first: dict[str, int] = {}  # where a text stands in `kept`
    fates: dict[str, str] = {}  # of texts whose place there is empty
    kept: list[Problem | None] = []
    read = of_level = 0
    for index, row in enumerate(_counted(rows, source.name)):
        read += 1
        problem = problem_of(source, row, index)
        if source.levels is not None and not source.levels[0] <= (problem.level or 0) <= source.levels[1]:
            findings.dropped[f"level outside {source.levels[0]} to {source.levels[1]}"] += 1
            continue
        of_level += 1
        counts = findings.kept_though if stays else findings.dropped
        if not problem.text.strip():
            findings.note(findings.dropped, "no problem", index, problem.text)
            continue
        if problem.fault is not None:
            where = counts if problem.answer else findings.dropped
            gold = str(value_at(row, source.answer))
            findings.note(where, problem.fault, index, problem.text, answer=gold[:SHOWN])
            if where is findings.dropped:
                continue
        for change, was in problem.changes:
            findings.note(findings.corrected, change, index, problem.text, **was)
        if source.integers:
            answer, changes = corrected(problem.answer, padded=as_published)
            for change in changes:
                findings.note(findings.corrected, change, index, problem.text, was=problem.answer, now=answer)
            problem = dataclasses.replace(problem, answer=answer)
            if not is_integer(answer):
                findings.note(findings.kept_though, "answer is not an integer", index, problem.text, answer=answer)
        if source.instructed and problem.messages is None:
            findings.note(findings.corrected, "instructions added", index, problem.text)
        asked = text_asked(problem.messages, problem.text)
        text = same_text(asked)
        if text in before.earlier:
            answer, name = before.earlier[text]
            what = f"same problem as in {name}" + (
                "" if without_looks(answer) == without_looks(problem.answer) else ", with another answer"
            )
            findings.note(counts, what, index, problem.text, answer=problem.answer, there=answer)
            if not stays:
                continue
        if text in first:
            same = kept[first[text]]
            if same is None:
                findings.note(counts, fates[text], index, problem.text, answer=problem.answer)
            elif without_looks(same.answer) == without_looks(problem.answer):
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
            found = {"evaluation_row": leak.row, "share": round(leak.share, 2), "holds": leak.problem[:SHOWN]}
            findings.note(counts, fates[text], index, problem.text, **found)
        kept.append(problem if leak is None or stays else None)
    return read, of_level, [problem for problem in kept if problem is not None], findings


def _counted(things: Iterable[T], title: str, unit: str = "rows", step: int = 1) -> Iterator[T]:
    """Yield the same things, and count them on stderr, `step` to each."""
    with Progress(unit, title=title, pause=10.0, console=lines(stderr=True)) as progress:
        for count, thing in enumerate(things):
            progress.update(step * count)
            yield thing


@functools.lru_cache(1)
def token_counter(name: str) -> Callable[[list[list[dict[str, str]]]], list[int]]:
    """Return a counter of prompt tokens, as verl and TRL count them.

    It counts through the chat template, with the opening of the answer.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:
        raise UserError(f"--tokenizer {name} cannot be loaded: {' '.join(str(error).split())}") from error
    if not tokenizer.chat_template:
        raise UserError(f"--tokenizer {name} has no chat template, so prompts have no length; name the model to train")

    def count(prompts: list[list[dict[str, str]]]) -> list[int]:
        texts = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=False)
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]

    return count


def measured(
    source: Source, rows: list[dict[str, Any]], findings: Findings, tokenizer: str | None, most: int
) -> tuple[list[dict[str, Any]], list[int]]:
    """Keep rows whose prompts have at most `most` tokens (of an evaluation set: all), and the lengths of theirs.
    Without a tokenizer nothing is measured."""
    if tokenizer is None:
        return rows, []
    count = token_counter(tokenizer)
    kept, lengths = [], []
    for start in _counted(range(0, len(rows), 500), source.name, "prompts measured", 500):
        part = rows[start : start + 500]
        for row, length in zip(part, count([row["prompt"] for row in part]), strict=True):
            if length > most:
                counts = findings.kept_though if source.use == "evaluation" else findings.dropped
                what = f"prompt longer than {most} tokens"
                info = row["extra_info"]
                findings.note(counts, what, info["index"], info["problem"], tokens=length)
                if source.use != "evaluation":
                    continue
            kept.append(row)
            lengths.append(length)
    return kept, lengths
