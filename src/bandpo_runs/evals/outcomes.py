"""Remarks on an evaluation next to its numbers: samples without an answer, and reasons why nothing is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from bandpo.errors import UserError, counted

from ..data.questions import Question
from .folder import read_facts, read_questions
from .grades import grader_of, thinking_in
from .samples import Sample

OTHERS = ("math", "dapo-strict", "last-number", "exact")
MOST = 2048  # samples that the other scorers grade

_WHY = {
    "content_filter": "cut or refused by the server's content filter",
    "context_length": "refused, as the question and --max-tokens are longer than the context",
    "error": "no answer from the server; the same bandpo eval tries them again",
}


def without_answer(samples: Iterable[Sample]) -> list[Sample]:
    """Choose the samples that a server gave no answer to, or took part of it away."""
    return [sample for sample in samples if sample.finish in _WHY]


def told(failed: Sequence[Sample]) -> Iterator[str]:
    """Say how many samples are without an answer in which way, and what the server said, for example."""
    for kind, count in Counter(sample.finish for sample in failed).items():
        said = next((f". For example: {s.error}" for s in failed if s.finish == kind and s.error), "")
        yield f"{kind}: {counted(count, 'sample')}, {_WHY[kind]}{said}"


def nothing_right(folder: Path, samples: Iterable[Sample], scorer: str) -> str | None:
    """Say why no sample is right by `scorer`: all answers are empty, or what other scorers find in them, by grading."""
    answers = [sample for sample in samples if sample.error is None]
    if not answers:
        return None
    if not any(sample.text.strip() for sample in answers):
        return _empty(answers)
    facts = read_facts(folder)
    questions = {(q.data, q.prompt): q for q in read_questions(folder, facts)}
    pairs = [(sample, questions[sample.data, sample.prompt]) for sample in answers]
    command = f"bandpo score {folder} --scorer"
    return right_by_others(pairs, scorer, command, folder / "samples.jsonl", thinking_in(facts, answers))


def right_by_others(
    pairs: Sequence[tuple[Sample, Question]],
    scorer: str,
    command: str,
    path: Path,
    thinking: Literal["opened"] | None = None,
) -> str:
    """Say how many answers the other scorers find right, with the `command` that takes one of these, or where to look.

    At most `MOST` answers are graded, evenly spread.
    """
    samples, questions = zip(*pairs[:: -(-len(pairs) // MOST)], strict=True)
    found = {other: _right(other, samples, questions, thinking) for other in OTHERS if other != scorer}
    best = max(found, key=found.__getitem__)
    counts = ", ".join(f"{count:,} by {name}" for name, count in found.items())
    hint = f"{command} {best}?" if found[best] else f"look at some in {path}"
    return f"0 of {len(samples):,} right by {scorer}, {counts}: {hint}"


def _empty(answers: Sequence[Sample]) -> str:
    thought, cut = sum(bool(s.reasoning) for s in answers), sum(s.finish == "length" for s in answers)
    line = f"all {len(answers):,} answers are empty; {thought:,} have reasoning, {cut:,} were cut at --max-tokens"
    if cut:
        return f"{line}: raise --max-tokens, or have the model think less"
    parser = ": the server took all of it for reasoning; start it without its reasoning parser, or with another"
    return line + (parser if thought else "")


def _right(
    scorer: str, samples: Sequence[Sample], questions: Sequence[Question], thinking: Literal["opened"] | None
) -> int:
    """Count the right samples; 0 if a scorer cannot grade these.

    Such are last-number without numbers, and math without math-verify.
    """
    try:
        return sum(grade.score == 1 for grade in grader_of(scorer, {}, "", thinking)(samples, questions))
    except (UserError, ValueError):
        return 0
