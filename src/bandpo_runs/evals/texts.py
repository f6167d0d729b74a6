"""The texts of a model's answers, in what a file holds them: text, chat messages, their parts, or lists of these."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from bandpo.errors import UserError
from bandpo.files import shortened

from ..data.golds import unpack

_EXPECTED = "text, chat messages with one of the assistant, or a list of such is expected"
# Messages that became text: a list or a mapping, and somewhere in it a role.
_WRITTEN = re.compile(
    r"(?:array\()?[\[\s]*\{\s*['\"](?:.*['\"])?role['\"]\s*:\s*['\"](?:assistant|user|tool|model)['\"]", re.DOTALL
)


def texts_of(value: Any, where: str) -> list[str]:
    """Read the text of each answer in a cell.

    Messages are one conversation, hence one answer: the text of the last one of the assistant ("" where it only calls
    tools). A list of anything else has an answer in each element, lists of lists too. A reply of a server that speaks
    OpenAI's protocol has one in each of its choices.

    Raises:
        UserError: no answer can be made out; the message begins with `where` and has what was found.
    """
    if value is None or value != value:  # NaN is how some tables say nothing
        return [""]
    if isinstance(value, str):
        if not _WRITTEN.match(value.lstrip()):
            return [value]
        unpacked = unpack(value)
        if not isinstance(unpacked, list | Mapping):
            raise UserError(f"{where} is {shortened(value)}: messages that became text and cannot be read; {_EXPECTED}")
        return texts_of(unpacked, where)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [str(value)]
    if isinstance(value, Mapping):
        return _of_mapping(cast(Mapping[str, Any], value), where)
    if isinstance(value, list):
        each = cast(list[Any], value)
        if each and all(isinstance(part, Mapping) for part in each):
            if all("role" in part for part in each):
                return [_last(each, where)]
            if all("type" in part for part in each):
                return [_content(each, where)]
        elif any(isinstance(part, Mapping) for part in each):
            raise UserError(f"{where} is {shortened(each)}; {_EXPECTED}")
        return [text for part in each for text in texts_of(part, where)]
    raise UserError(f"{where} is {shortened(value)}; {_EXPECTED}")


def _of_mapping(value: Mapping[str, Any], where: str) -> list[str]:
    if "role" in value:
        return [_last([value], where)]
    if (choices := value.get("choices")) and isinstance(choices, list):  # each is one answer, as `message` or as `text`
        return [text for choice in cast(list[Any], choices) for text in texts_of(choice, where)]
    for key in ("body", "message", "messages", "text"):
        if value.get(key) is not None:
            return texts_of(value[key], where)
    if "content" in value:
        return [_content(value["content"], where)]
    raise UserError(f"{where} is {shortened(value)}; {_EXPECTED}")


def _last(messages: list[Any], where: str) -> str:
    """Return the text of the last message of the assistant."""
    for message in reversed(messages):
        if message["role"] in ("assistant", "model"):
            return _content(message.get("content"), where)
    raise UserError(f"{where} has no message of the assistant, but {shortened(messages)}; {_EXPECTED}")


def _content(content: Any, where: str) -> str:
    """Return the text of a message: as such, or in parts, of which thoughts and calls of tools are left out."""
    if content is None or isinstance(content, str):
        return content or ""
    parts: list[str] = []
    for part in cast(list[Any], content) if isinstance(content, list) else [content]:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts.append(part["text"] if part.get("type", "text") in ("text", "output_text", None) else "")
        elif not (isinstance(part, Mapping) and isinstance(part.get("type"), str) and part["type"] != "text"):
            raise UserError(f"{where} has a message with the part {shortened(part)}; text is expected")
    return "".join(parts)
