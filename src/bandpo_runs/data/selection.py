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
from .readers import Rows, file_hash, file_rows, value_at
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
_CONTRADICTION = "same problem with different answers"


@dataclass(frozen=True)
class Before:
    """Rows that a training file is compared with: evaluation sets, and the training files before it.

    `hashes` say whether it is the same as when a file was made; `earlier` has the answer and the file of each problem.
    """

    leaks: Leaks = field(default_factory=lambda: Leaks([]))
    hashes: tuple[str, ...] = ()
    earlier: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def and_then(self, source: Source, path: Path) -> Before:
        """Return these facts with those of a finished training file."""
        own = {
            same_text(text_asked(row["prompt"], row["extra_info"]["problem"])): (row["answer"], source.name)
            for row in file_rows(path)
        }
        return Before(self.leaks, (*self.hashes, file_hash(path)), {**own, **self.earlier})


def collect(
    source: Source, rows: Rows, before: Before, *, as_published: bool
) -> tuple[int, int, list[Problem], Findings]:
    """Select rows in one pass: how many were read, how many of them have the right level, those to keep, and why the
    others are not. `as_published`: answers, duplicates and leaks stay, and are counted all the same."""
    findings = Findings()
    stays = source.use == "evaluation" or as_published
    counts = findings.kept_though if stays else findings.dropped
    first: dict[str, Problem | str] = {}  # by text: its first problem, or why none of them is kept
    kept: dict[int, Problem] = {}
    index, of_level = -1, 0
    for index, row in enumerate(_counted(rows, source.name)):
        problem = problem_of(source, row, index)
        if source.levels is not None and not source.levels[0] <= (problem.level or 0) <= source.levels[1]:
            findings.dropped[f"level outside {source.levels[0]} to {source.levels[1]}"] += 1
            continue
        of_level += 1
        if fault := problem.fault if problem.text.strip() else "no problem":
            usable = problem.answer and fault != "no problem"
            shown = {"answer": str(value_at(row, source.answer))[:SHOWN]} if fault != "no problem" else {}
            findings.note(counts if usable else findings.dropped, fault, index, problem.text, **shown)
            if not (usable and stays):
                continue
        problem = _corrected(source, problem, findings, as_published)
        asked = text_asked(problem.messages, problem.text)
        text = same_text(asked)
        what, more = _objection(problem, asked, before, first.get(text))
        if what is not None:
            findings.note(counts, what, index, problem.text, **more)
        if stays or what is None:
            kept[index] = problem
            first.setdefault(text, problem)
            continue
        other = first.get(text)
        if what == _CONTRADICTION and isinstance(other, Problem):  # nobody here can say which answer is right
            findings.note(counts, what, other.index, other.text, answer=other.answer)
            del kept[other.index]
        if what != "duplicate":
            first[text] = what
    return index + 1, of_level, list(kept.values()), findings


def _corrected(source: Source, problem: Problem, findings: Findings, as_published: bool) -> Problem:
    """Return a problem with its answer as it is usually written, and note what was changed in its row."""
    for change, was in problem.changes:
        findings.note(findings.corrected, change, problem.index, problem.text, **was)
    if source.instructed and problem.messages is None:
        findings.note(findings.corrected, "instructions added", problem.index, problem.text)
    if not source.integers:
        return problem
    answer, changes = corrected(problem.answer, padded=as_published)
    for change in changes:
        findings.note(findings.corrected, change, problem.index, problem.text, was=problem.answer, now=answer)
    if not is_integer(answer):
        findings.note(findings.kept_though, "answer is not an integer", problem.index, problem.text, answer=answer)
    return dataclasses.replace(problem, answer=answer)


def _objection(
    problem: Problem, asked: str, before: Before, same: Problem | str | None
) -> tuple[str | None, dict[str, Any]]:
    """Say what speaks against a row, with an example for the report; `same` is known of rows with the same text."""
    shown: dict[str, Any] = {"answer": problem.answer}
    if earlier := before.earlier.get(same_text(asked)):
        differs = without_looks(earlier[0]) != without_looks(problem.answer)
        what = f"same problem as in {earlier[1]}" + (", with another answer" if differs else "")
        return what, shown | {"there": earlier[0]}
    if isinstance(same, str):
        return same, shown
    if same is not None and without_looks(same.answer) != without_looks(problem.answer):
        return _CONTRADICTION, shown | {"of_row": same.index}
    if same is not None:
        return "duplicate", {"of_row": same.index}
    leak = before.leaks.find(problem.text) or (before.leaks.find(asked) if asked != problem.text else None)
    if leak is None:
        return None, {}
    found = {"evaluation_row": leak.row, "share": round(leak.share, 2), "holds": leak.problem[:SHOWN]}
    return f"holds a problem of {leak.name}", found


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
) -> list[dict[str, Any]]:
    """Keep rows whose prompts have at most `most` tokens, of an evaluation set all; without a tokenizer too."""
    if tokenizer is None:
        return rows
    count, kept, stays = token_counter(tokenizer), [], source.use == "evaluation"
    for start in _counted(range(0, len(rows), 500), source.name, "prompts measured", 500):
        part = rows[start : start + 500]
        for row, length in zip(part, count([row["prompt"] for row in part]), strict=True):
            if length > most:
                counts, info = findings.kept_though if stays else findings.dropped, row["extra_info"]
                what = f"prompt longer than {most} tokens"
                findings.note(counts, what, info["index"], info["problem"], tokens=length)
            if length <= most or stays:
                kept.append(row)
    return kept
