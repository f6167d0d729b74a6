"""One row of a source becomes a problem: its text without instructions, its answer as it is usually written, and the
messages that ask for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from bandpo.errors import UserError, counted

from .golds import gold_fault, read_gold, unpack
from .readers import value_at
from .sources import SOURCES, Source

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

SHOWN = 300  # characters of a text in the report


def template_text(template: str | None, source: Source) -> str:
    """Return the text of a template.

    It is given by name, or as the text itself; without one, that of the paper for a known data set.

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


@dataclass(frozen=True)
class Problem:
    """A row as it was read: the problem without instructions, its answer, and the messages where it came as such.

    `fault` says what speaks against its answer, which is "" where none could be read; `changes` what was done to the
    row, each with what the report shows of it.
    """

    index: int
    text: str
    answer: str
    identity: str | None
    messages: list[dict[str, str]] | None
    level: int | None
    fault: str | None = None
    changes: tuple[tuple[str, dict[str, str]], ...] = ()


def problem_of(source: Source, row: Mapping[str, Any], index: int) -> Problem:
    """Read the problem of a row, from the columns that a source names.

    Raises UserError for a row that will not do.
    """
    where = f"{source.name}: row {index + 1}"
    for what, path in (("prompt", source.problem), ("answer", source.answer)):
        if path not in row and path.split(".")[0] not in row:
            raise UserError(f"{source.name}: column {path!r} (--{what}) is not there; row {index + 1} has {list(row)}")
    value, messages = value_at(row, source.problem), None
    changes: list[tuple[str, dict[str, str]]] = []
    if isinstance(value, str) and _are_messages(found := unpack(value)):  # a cell of CSV
        value = found
        changes.append(("messages read out of text", {}))
    if _are_messages(value):
        messages = [{key: each[key] for key in ("role", "content")} for each in value]
        asked = max((i for i, each in enumerate(messages, 1) if each["role"] == "user"), default=0)
        if behind := messages[asked:] if asked else []:
            began = {"began": behind[0]["content"][:SHOWN]}
            changes.append(("messages behind the last user message taken off", began))
            messages = messages[:asked]
        value = messages[-1]["content"] if asked else ""
        if source.instructed and _bare(value) == value:
            messages = None  # it does not carry the instructions that the others do
    elif not isinstance(value, str | None):
        raise UserError(f"{where}: {source.problem!r} must be text or messages, got {value!r:.60}")
    text, gold = _bare(value or ""), value_at(row, source.answer)
    if source.kind == "reasoning-gym":  # whose task reads its own answers, of whatever form
        answer, fault = "" if gold is None else str(gold).strip(), None
    else:
        try:
            answer, done = read_gold(gold, source.after)
            changes += [(change, {"was": str(gold)[:SHOWN], "now": answer[:SHOWN]}) for change in done]
            fault = gold_fault(answer)
        except ValueError as error:
            answer, fault = "", str(error)
    try:
        "".join([text, answer, *(each["content"] for each in messages or ())]).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise UserError(f"{where}: {half!r} is half a character (a lone surrogate), which no file can hold") from None
    level = row.get("level") if source.levels else None
    if source.levels and not isinstance(level, int):
        raise UserError(f"{where}: 'level' must be a whole number, got {level!r}")
    identity = value_at(row, source.identity) if source.identity else None
    identity = None if identity is None else str(identity)
    fault = fault or (None if answer else "no answer")
    return Problem(index, text, answer, identity, messages, level, fault, tuple(changes))


def text_asked(messages: Sequence[Mapping[str, str]] | None, problem: str) -> str:
    """Return the text that makes two rows the same.

    This is the problem, or all that the user says where that is several messages.
    """
    said = [each["content"] for each in messages or () if each["role"] == "user"]
    return problem if len(said) < 2 else "\n".join(said)


def _are_messages(thing: Any) -> TypeGuard[list[dict[str, str]]]:
    return isinstance(thing, list) and all(
        isinstance(each, Mapping) and all(isinstance(each.get(key), str) for key in ("role", "content"))
        for each in thing
    )


def _bare(text: str) -> str:
    """Remove the instructions of the template `paper`."""
    if text.startswith(_BEFORE) and text.endswith(_BEHIND):
        return text[len(_BEFORE) : -len(_BEHIND)].strip()
    return text


def messages_of(source: Source, problem: Problem, template: str) -> list[dict[str, str]]:
    """Return the messages that ask for a problem, in a template's text; existing messages stay."""
    if problem.messages is not None:
        if template == TEMPLATES["paper" if source.instructed else "plain"]:
            return problem.messages
        if not source.instructed:
            raise UserError(f"{source.name}: its problems are chat messages already, so a template has no place")
    return [{"role": "user", "content": template.replace("{prompt}", problem.text)}]


def is_integer(answer: str) -> bool:
    """Check that a scorer reads the answer as an integer."""
    return re.fullmatch(r"[-+]?[0-9]+", answer) is not None


def corrected(answer: str, *, padded: bool) -> tuple[str, list[str]]:
    """Return an integer as it is usually written, and the change that was made. `padded`: zeros before it stay."""
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


def without_looks(answer: str) -> str:
    """Remove marks that do not change an answer: white space, dollar signs, the size of brackets and fractions."""
    return re.sub(r"\s|\$|\\left|\\right|\\[,;! ]", "", re.sub(r"\\[dt]frac", r"\\frac", answer))


def fault_warnings(name: str, counts: Mapping[str, int]) -> list[str]:
    """Write sentences about rows with an unusable problem or answer; none for other counts."""
    return [
        f"{name}: {counted(count, 'row')}: {what}"
        for what, count in counts.items()
        if what.startswith(("answer", "no "))
    ]
