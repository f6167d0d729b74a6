"""Replies of a server to one request: checked as they are read, and judged."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired

import openai
from annotated_types import Len
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from bandpo.errors import UserError, without_password
from bandpo.files import checked, json_line

Kind = Literal["error", "content_filter", "context_length"]


@dataclass(frozen=True)
class Answer:
    """`tokens` is None where the server does not count them."""

    text: str
    reasoning: str | None
    tokens: int | None
    finish: Literal["stop", "length", "content_filter"]


@dataclass(frozen=True)
class Failure:
    """No answer: why, what was said, and the status that it was, or stands for. An `error` may pass."""

    kind: Kind
    said: str
    status: int | None = None
    everyone: bool = False  # about the server, the model or the key rather than about this request


class TooLong(Exception):
    """A reply of more bytes than are believed."""


class Client(openai.DefaultAsyncHttpxClient):
    """An HTTP client that reads at most `most` bytes of a reply, counted as they are decoded, and follows no redirect.

    A 200 that holds no answer gets the status of the error that it is, so that the openai client tries again, or not,
    as it does for any other error. What was read is in the response's `extensions["reply"]`.

    Args:
        most: bytes.
        blanked: takes secrets out of what was sent.
    """

    def __init__(self, most: int, blanked: Callable[[bytes], bytes]) -> None:
        super().__init__(follow_redirects=False)
        self.most, self.blanked = most, blanked

    async def send(self, request: Any, **options: Any) -> Any:
        response = await super().send(request, **{**options, "stream": True})
        content = bytearray()
        try:
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > self.most:
                    raise TooLong(self.most)
        finally:
            await response.aclose()
        if response.has_redirect_location:
            to = self.blanked(without_password(response.headers["location"]).encode()).decode()
            said = f"{response.status_code}, a redirect to {to}, which is not followed; give --base-url that address"
            reply = Failure("error", said, response.status_code, True)
        else:
            reply = read_reply(response.status_code, self.blanked(bytes(content)))
        status = reply.status or response.status_code if isinstance(reply, Failure) else 200
        kept = ["retry-after", "retry-after-ms", *(["x-should-retry"] if status != 400 else [])]
        headers = {name: response.headers[name] for name in kept if name in response.headers}
        return type(response)(status, headers=headers, content=b"", request=request, extensions={"reply": reply})


# -------------------------------------------------------------------------------------------------------- what it holds
class _Part(TypedDict):
    type: NotRequired[str]
    text: NotRequired[str]
    thinking: NotRequired[list[_Part] | str]


class _Message(TypedDict):
    content: NotRequired[str | list[_Part] | None]
    reasoning: NotRequired[Any]  # a text: vLLM since 0.12, OpenRouter, Ollama
    reasoning_content: NotRequired[Any]  # a text: DeepSeek, SGLang, llama.cpp, older vLLM


class _Choice(TypedDict):
    finish_reason: NotRequired[str | None]
    text: NotRequired[str]
    message: NotRequired[_Message | None]


class _Reply(TypedDict):
    choices: Annotated[list[_Choice], Len(1, 1)]


# Beside "length": Anthropic's and Z.ai's. The filter's: Gemini's "content_filter: SAFETY", Z.ai's, Vertex's.
_CUT = ("length", "max_tokens", "model_context_window_exceeded")
_FILTER = re.compile(r"(?i)content_?filter|sensitive|safety|prohibited_content|refusal")
# A gateway's, SGLang's, Z.ai's and DeepSeek's: it broke off.
_BROKEN = ("error", "abort", "network_error", "insufficient_system_resource")

_TOO_LONG = re.compile(
    r"(?i)context[ _-]?(length|size|window)|maximum (model|context) length|prompt is too long"
    r"|input token count|inputs?`? tokens \+"
)
_FILTERED = re.compile(
    r"(?i)content[ _-]?filter|content management policy|ResponsibleAIPolicy|content[ _]?policy[ _]?violation"
    r"|usage polic|\bflagged\b|Content Exists Risk|data_inspection_failed|inappropriate content|prohibited_content"
)


def read_reply(status: int, content: bytes) -> Answer | Failure:
    """Read an answer in OpenAI's protocol, or the reason that it is none."""
    shown = content.decode(errors="replace")
    try:
        body = json_line(content, "the reply")
    except UserError as error:
        return Failure("error", str(error), 502) if status < 300 else _failure(status, shown, shown)
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    error, finish = body.get("error") or first.get("error"), first.get("finish_reason")
    if status >= 300 or error or finish in _BROKEN:
        return _failure(status, shown, body if status >= 300 else error)
    filtered = isinstance(finish, str) and _FILTER.match(finish)
    if filtered and first.get("message", first.get("text")) is None:
        return Failure("content_filter", f"finish_reason {finish!r}, and no message", 400)
    try:
        (choice,) = checked(body, _Reply, "the reply")["choices"]
        if (message := choice.get("message")) is None and "text" not in choice:
            raise UserError("the reply: 'choices.0.message' is missing or null")
    except UserError as error:
        return Failure("error", str(error), 502)
    text, reasoning = (choice.get("text"), None) if message is None else _taken_apart(message)
    usage = body.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    tokens = tokens if type(tokens) is int and 0 <= tokens < 2**31 else None
    return Answer(
        text or "", reasoning, tokens, "content_filter" if filtered else "length" if finish in _CUT else "stop"
    )


def _taken_apart(message: _Message) -> tuple[str | None, str | None]:
    """Split a message into text and reasoning; Mistral sends both as parts."""
    content = message.get("content")
    found = message.get("reasoning") or message.get("reasoning_content")
    reasoning = found if isinstance(found, str) else ""
    if isinstance(content, list):
        thoughts = [part["thinking"] for part in content if "thinking" in part]
        reasoning += "".join(
            thought if isinstance(thought, str) else "".join(part.get("text", "") for part in thought)
            for thought in thoughts
        )
        content = "".join(part.get("text", "") for part in content)
    return content, reasoning or None


def _failure(status: int, shown: str, error: Any) -> Failure:
    """Classify a failure by its error, as the same one comes with different statuses, also with 200."""
    said = f"{status} {' '.join(shown.split())}"[:500]
    if status < 300:
        code = str(error.get("code")) if isinstance(error, dict) else ""
        status = int(code) if re.fullmatch("[45][0-9][0-9]", code) else 502
    message = _message(error)
    # Of llama.cpp a 500 may say this of a request that is short: others fill the cache.
    refused = status < 500 and status not in (401, 404, 429)
    if "exceed_context_size" in message or (refused and _TOO_LONG.search(message)):
        return Failure("context_length", said, 400)
    if refused and _FILTERED.search(message):
        return Failure("content_filter", said, 400)
    return Failure("error", said, status, status in (401, 402, 403, 404, 405, 429))


def _message(value: Any) -> str:
    """Return the text of an error, without repeated parts of the request."""
    if isinstance(value, dict):
        return " ".join(_message(part) for name, part in value.items() if name not in ("input", "flagged_input"))
    return " ".join(map(_message, value)) if isinstance(value, list) else str(value)
