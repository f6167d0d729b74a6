"""Grade an evaluation folder from its samples, and remark on failures."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bandpo.errors import UserError, counted, nearest
from bandpo.rewards.functions import exact, last_number, read_number
from bandpo.rewards.grading import SCORERS, Grade, grade

from .. import signals, toy
from ..data.questions import Content, Question
from ..files.writing import Appender
from .folder import GradeRow, grades_path, read_metadata, read_questions, read_samples
from .samples import Sample

GRADERS = (*SCORERS, "exact", "last-number", "lab")
THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
CHUNK = 512  # samples graded between two appends


def check_scorer(scorer: str) -> str:
    """Return the scorer if there is one of this name. Raises UserError otherwise."""
    if scorer not in GRADERS:
        raise UserError(
            f"scorer must be one of {', '.join(GRADERS)}, got {scorer!r}{nearest(scorer, list(GRADERS))}"
        )
    return scorer


def grade_folder(folder: Path, scorer: str | None = None) -> str:
    """Grade the samples that have no grade yet, and return the scorer. Grades are appended to grades-SCORER.jsonl.

    `scorer` is one of `GRADERS`; None: the evaluation's own.
    """
    metadata = read_metadata(folder)
    scorer = check_scorer(scorer or metadata["scorer"])
    questions = {
        (question.data, question.prompt): question for question in read_questions(folder, metadata)
    }
    with Appender(grades_path(folder, scorer), GradeRow) as file:
        graded = {(row["data"], row["prompt"], row["sample"]) for row in file.rows}
        samples = [
            sample for sample in read_samples(folder, metadata) if sample.finish != "error"
        ]  # may come yet
        thinking = thinking_in(metadata, samples)
        waiting = [sample for sample in samples if sample.key not in graded]
        for data in dict.fromkeys(sample.data for sample in waiting):
            grader = grader_of(scorer, thinking)
            own = [sample for sample in waiting if sample.data == data]
            for first in range(0, len(own), CHUNK):
                signals.check()
                chunk = own[first : first + CHUNK]
                grades = zip(
                    chunk, grader(chunk, [questions[sample.key[:2]] for sample in chunk]), strict=True
                )
                file.add(
                    *(
                        {"data": s.data, "prompt": s.prompt, "sample": s.sample} | vars(g)
                        for s, g in grades
                    )
                )
    return scorer


def opens_thinking(content: Content, tokenizer: Any) -> Literal["opened"] | None:
    """Check that a prompt ends with an open thinking block, as the model sees it. None without a chat template."""
    if not isinstance(content, str):
        if tokenizer is None or tokenizer.chat_template is None:
            return None
        content = str(tokenizer.apply_chat_template(content, tokenize=False, add_generation_prompt=True))
    return "opened" if content.rstrip().endswith(tuple(begin for begin, _ in THINKING)) else None


def thinking_in(metadata: Mapping[str, Any], samples: Sequence[Sample]) -> Literal["opened"] | None:
    """Check that the prompts opened the thinking.

    A model here has it recorded. Of a server it is likely where most whole answers end a block that they do not begin.
    """
    if metadata.get("backend") != "openai" or metadata.get("thinking"):
        return metadata.get("thinking")
    ended = [s.text for s in samples if s.finish == "stop"]
    opened = sum(any(end in text and begin not in text for begin, end in THINKING) for text in ended)
    return "opened" if 2 * opened > len(ended) else None


def grader_of(
    scorer: str, thinking: Literal["opened"] | None = None
) -> Callable[[Sequence[Sample], Sequence[Question]], list[Grade]]:
    """Return the grader of samples; `thinking` as for `rewards.grade`."""
    if scorer not in SCORERS:
        return {"exact": _exact, "last-number": _last_numbers, "lab": _lab}[scorer]
    return lambda samples, questions: grade(
        [sample.text for sample in samples],
        [question.answer for question in questions],
        scorer,
        thinking=thinking,
    )


def _exact(samples: Sequence[Sample], questions: Sequence[Question]) -> list[Grade]:
    texts = [sample.text for sample in samples]
    return list(map(Grade, exact(texts, answer=[q.answer for q in questions]), map(str.strip, texts)))


def _last_numbers(samples: Sequence[Sample], questions: Sequence[Question]) -> list[Grade]:
    scores = last_number([s.text for s in samples], answer=[q.answer for q in questions])
    read = [(score, read_number(s.text)) for s, score in zip(samples, scores, strict=True)]
    # 7, 7.0 and 7.00 are one answer.
    return [
        Grade(s, format(n.normalize(), "f")) if n is not None else Grade(0.0, None, "unparsed")
        for s, n in read
    ]


def _lab(samples: Sequence[Sample], questions: Sequence[Question]) -> list[Grade]:
    """Grade with the lab's reward. It asks for tokens: the letters of a text, and its end."""
    ids = [
        [toy.SYMBOLS.index(letter) for letter in s.text if not letter.isspace()]
        + [toy.END] * (s.finish == "stop")
        for s in samples
    ]
    scores = toy.reward([s.text for s in samples], ids, [q.answer for q in questions])
    parts = [
        (score, *s.text.partition(toy.SYMBOLS[toy.ANSWER])[1:])
        for s, score in zip(samples, scores, strict=True)
    ]
    return [
        Grade(score, after.strip()) if mark else Grade(0.0, None, "unparsed")
        for score, mark, after in parts
    ]


# ------------------------------------------------------------------------------------------------- remarks on a folder
WHY = {
    "content_filter": "cut by the server's content filter",
    "refused": "refused by the server",
    "error": "no answer from the server; the same bandpo eval tries them again",
}


def unanswered(samples: Sequence[Sample]) -> Iterator[str]:
    """Say how many samples are without a whole answer. It says in which way, and what the server said, for example."""
    for kind, why in WHY.items():
        failed = [sample for sample in samples if sample.finish == kind]
        if failed:
            example = next((f". For example: {sample.error}" for sample in failed if sample.error), "")
            yield f"{kind}: {counted(len(failed), 'sample')}, {why}{example}"


def nothing_right(samples: Sequence[Sample], scorer: str) -> str:
    """Say why no sample is right. All answers are empty, or the scorer reads another form than the model writes."""
    answers = [sample for sample in samples if sample.error is None]
    if any(sample.text.strip() for sample in answers):
        return (
            f"0 of {len(answers):,} right by {scorer}: look at some (--wrong 5), or take another --scorer"
        )
    cut, thought = sum(s.finish == "length" for s in answers), sum(bool(s.reasoning) for s in answers)
    why = f"{cut:,} were cut at --max-tokens, and {thought:,} have reasoning, which is not graded"
    return f"all {len(answers):,} answers are empty; {why}" if answers else ""
