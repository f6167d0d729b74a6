"""Read a row of a source as a problem. It has the text without instructions, the answer, and the messages to send."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from bandpo.errors import UserError

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


def template_text(template: str | None, is_listed: bool) -> str:
    """Return the text of a template. It is given by name or as the text; a listed data set has the paper's by default.

    Raises:
        UserError: neither a known name nor a text with {prompt} in it.
    """
    template = template or ("paper" if is_listed else "plain")
    if template not in TEMPLATES and "{prompt}" not in template:
        raise UserError(
            f"template must be one of {sorted(TEMPLATES)} or a text with {{prompt}} in it, got {template!r}"
        )
    return TEMPLATES.get(template, template)


def quoted(value: Any) -> str:
    """Quote a value for the report, at most 300 characters of it."""
    return f"`{' '.join(str(value)[:300].replace('`', ' ').split())}`"


Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Problem:
    """Hold a row as it was read: problem, answer, and messages where it came as such.

    `fault` says what speaks against its answer, which is "" where none could be read; `changes` what was done to the
    row, each with what the report shows of it.
    """

    index: int
    text: str
    answer: str
    messages: Messages | None
    fault: str | None = None
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def usable(self) -> bool:
        """Check that it can be asked and graded, whatever else is wrong with its answer."""
        return self.answer != "" and self.text.strip() != ""

    @property
    def full_text(self) -> str:
        """Return the problem, or all that the user says where that is several messages."""
        texts = [each["content"] for each in self.messages or () if each["role"] == "user"]
        return self.text if len(texts) < 2 else "\n".join(texts)


def problem_of(source: Source, row: Mapping[str, Any], index: int, *, padded: bool = False) -> Problem:
    """Read the problem of a row, from the columns that a source names.

    Integers are written as usual; with `padded` the zeros before them stay.

    Raises:
        UserError: no such column, or a problem that is neither text nor messages.
    """
    for what, path in (("prompt", source.problem), ("answer", source.answer)):
        if path not in row and path.split(".")[0] not in row:
            raise UserError(
                f"{source.name} needs the columns {source.problem!r} and {source.answer!r}, and has no {path!r}; row "
                f"{index + 1} has {', '.join(row)}"
                + (
                    ""
                    if source.name in SOURCES
                    else f"; bandpo data prepare {source.name} --{what} COLUMN names it"
                )
            )
    value, messages = value_at(row, source.problem), None
    changes: list[tuple[str, str]] = []
    unpacked = unpack(value) if isinstance(value, str) else None
    if are_messages(unpacked):  # in a cell of CSV
        value = unpacked
        changes.append(("messages read out of text", ""))
    if are_messages(value):
        messages = [{key: each[key] for key in ("role", "content")} for each in value]
        length = max((i for i, each in enumerate(messages, 1) if each["role"] == "user"), default=0)
        if 0 < length < len(messages):
            changes.append(
                ("messages behind the last user message taken off", quoted(messages[length]["content"]))
            )
            messages = messages[:length]
        value = messages[-1]["content"] if length else ""
    elif not isinstance(value, str | None):
        raise UserError(
            f"{source.name}: row {index + 1}: {source.problem!r} must be text or messages, got {value!r:.60}"
        )
    text, gold = bare(value or ""), value_at(row, source.answer)
    try:
        answer, done = read_gold(gold, source.after)
        fault = gold_fault(answer) or (None if answer else "no answer")
        if source.integers:
            answer, more = corrected(answer, padded=padded)
            done = [*done, *more]
        changes += [(change, f"was {quoted(gold)}, now {quoted(answer)}") for change in done]
    except ValueError as error:
        answer, fault = "", str(error)
    return Problem(index, text, answer, messages, fault if text.strip() else "no problem", tuple(changes))


def are_messages(thing: Any) -> TypeGuard[Messages]:
    """Check that a value is chat messages, at least one, each with a role and text."""
    return (
        isinstance(thing, list)
        and bool(thing)
        and all(
            isinstance(each, Mapping)
            and all(isinstance(each.get(key), str) for key in ("role", "content"))
            for each in thing
        )
    )


def bare(text: str) -> str:
    """Remove the instructions of the template `paper`."""
    if text.startswith(_BEFORE) and text.endswith(_BEHIND):
        return text[len(_BEFORE) : -len(_BEHIND)].strip()
    return text


def messages_of(source: Source, problem: Problem, template: str) -> Messages:
    """Return the messages that ask for a problem. They are in a template's text; existing messages stay."""
    if problem.messages is not None:
        if template == TEMPLATES["paper" if source.instructed else "plain"]:
            return problem.messages
        if not source.instructed:
            raise UserError(
                f"{source.name}: its problems are chat messages already, so a template has no place"
            )
    return [{"role": "user", "content": template.replace("{prompt}", problem.text)}]


# How an integer may look, what is taken out of it, and what that is called.
_UNUSUAL = (
    (r"[-+]?\d{1,3}(,\d{3})+(\.0*)?", ",", "commas taken out"),
    (r"[-+]?\d+\.0*", r"\..*", "decimals of an integer taken off"),
    (r"[-+]?0\d+", r"(?<!\d)0+(?=\d)", "zeros before an integer taken off"),
)


def corrected(answer: str, *, padded: bool) -> tuple[str, list[str]]:
    """Return an integer as it is usually written, and the changes. With `padded` the zeros before it stay."""
    changes = []
    for form, part, change in _UNUSUAL[:2] if padded else _UNUSUAL:
        if re.fullmatch(form, answer):
            answer = re.sub(part, "", answer)
            changes.append(change)
    return answer, changes


def without_looks(answer: str) -> str:
    """Remove marks that do not change an answer. They are white space, dollar signs, sizes of brackets."""
    return re.sub(r"\s|\$|\\left|\\right|\\[,;! ]", "", re.sub(r"\\[dt]frac", r"\\frac", answer))
