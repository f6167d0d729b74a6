"""The texts of a model's answers, in what a file holds them: text, chat messages, their parts, or lists of these."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
    found: Any = value
    if isinstance(value, str) and _WRITTEN.match(value.lstrip()):
        found = unpack(value)
        if not isinstance(found, list | Mapping):
            raise UserError(f"{where} is {shortened(value)}: messages that became text and cannot be read; {_EXPECTED}")
    if found is None or found != found:  # NaN is how some tables say nothing
        return [""]
    if isinstance(found, str | int | float) and not isinstance(found, bool):
        return [str(found)]
    if isinstance(found, Mapping):
        if "role" in found:
            return [_last([found], where)]
        for key in ("choices", "body", "message", "messages", "text"):  # of servers, of batches, and of vLLM
            if found.get(key) is not None and (key != "choices" or isinstance(found[key], list)):
                return texts_of(found[key], where)
        if "content" in found:
            return [content_of(found["content"], where)]
    elif isinstance(found, list):
        parts: list[Any] = found
        if parts and all(isinstance(part, Mapping) and "role" in part for part in parts):
            return [_last(parts, where)]
        if parts and all(isinstance(part, Mapping) and "type" in part for part in parts):
            return [content_of(parts, where)]
        if len({isinstance(part, Mapping) for part in parts}) < 2:
            return [text for part in parts for text in texts_of(part, where)]
    raise UserError(f"{where} is {shortened(found)}; {_EXPECTED}")


def _last(messages: list[Any], where: str) -> str:
    """Return the text of the last message of the assistant."""
    for message in reversed(messages):
        if message["role"] in ("assistant", "model"):
            return content_of(message.get("content"), where)
    raise UserError(f"{where} has no message of the assistant, but {shortened(messages)}; {_EXPECTED}")


def content_of(content: Any, where: str) -> str:
    """Return the text of a message: as such, or in parts, of which thoughts and calls of tools are left out."""
    parts = content if isinstance(content, list) else [content or ""]
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else part
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if isinstance(text, str):
            texts.append(text if kind in ("text", "output_text", None) else "")
        elif kind == "text" or not isinstance(kind, str):
            raise UserError(f"{where} has a message with the part {shortened(part)}; text is expected")
    return "".join(texts)
