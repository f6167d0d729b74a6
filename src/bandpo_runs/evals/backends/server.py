"""Samples from a server that speaks OpenAI's protocol, through OpenAI's client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, NotRequired
from urllib.parse import parse_qsl

from annotated_types import Len
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from bandpo.errors import UserError, without_password
from bandpo.files import json_line

from ..samples import Sampling
from ..texts import content_of
from .base import Drawn, Request, opens_thinking

IN_A_ROW = 5  # failures one after the other, after which a server is not asked any more
PROBES = 3  # shortest questions of which one must be answered before the others are asked
SETTINGS = ("temperature", "top_p", "max_tokens", "seed", "top_k")  # fields that have options
REFUSED = (400, 413, 422)  # statuses of a request that will not be answered, such as one longer than the context
# Besides OpenAI's own reasons of an end: those of Anthropic, Z.ai, Gemini, and of servers that broke off.
CUT = ("length", "max_tokens", "model_context_window_exceeded")
FILTERED = ("content_filter", "sensitive", "refusal")
BROKEN = ("error", "abort", "network_error", "insufficient_system_resource")


@dataclass
class Server:
    """A server that speaks OpenAI's protocol: vLLM's, SGLang's, llama.cpp's, `transformers serve`, or OpenAI's own.

    Text prompts go to /completions, messages to /chat/completions, and each sample is a request with its own seed.
    A request also has top_k, min_p and repetition_penalty as vLLM calls them, because what it leaves open a server
    takes from the model's own settings. `body` changes that for other servers.

    The client tries lost connections and the answers 408, 409, 429 and 5xx again, ever more slowly. Until one question
    is answered a failure is an error. Later it is the outcome of its sample, until `IN_A_ROW` follow one another.

    Attributes:
        model: as the server calls it.
        base_url: with the /v1.
        concurrency: requests at once.
        timeout: seconds that one answer may take, with all tries.
        body: more fields of a request; None leaves a field out.
        retries: of one request.

    Raises:
        UserError: `body` sets a field that has an option.
    """

    model: str
    base_url: str
    concurrency: int = 32
    timeout: float = 3600.0
    body: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 8
    dtype = None  # which is not known

    def __post_init__(self) -> None:
        if name := next((name for name in SETTINGS if self.body.get(name) is not None), None):
            option = f"--{name.replace('_', '-')}"
            raise UserError(f"--body cannot set {name}, got {self.body[name]!r}; {option} does, and null leaves it out")
        self.where = f"the server at {without_password(self.base_url)}"
        self.key = os.environ.get("OPENAI_API_KEY") or "none"  # a local server asks for none
        self._answered = False

    def opens_thinking(self, content: Any) -> bool:
        """Check that a text prompt opens the thinking; the server's template for messages is not known here."""
        return opens_thinking(content, None)

    def draw(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[tuple[Request, Drawn]]:
        # An event loop of our own, turned by whoever iterates: leaving the iterator, by Ctrl-C too, ends all requests.
        answers = self._draw(list(requests), sampling)

        async def one() -> tuple[Request, Drawn] | None:
            return await anext(answers, None)

        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            while found := runner.get_loop().run_until_complete(one()):
                yield found

    async def _draw(self, requests: list[Request], sampling: Sampling) -> AsyncGenerator[tuple[Request, Drawn], None]:
        import openai

        base_url, _, query = self.base_url.partition("?")
        client = openai.AsyncOpenAI(
            api_key=self.key,
            base_url=base_url,
            default_query=dict(parse_qsl(query)),
            max_retries=self.retries,
            timeout=openai.Timeout(self.timeout, connect=10.0),
        )
        running: dict[asyncio.Task[tuple[Drawn, int | None]], Request] = {}
        try:
            if not self._answered:
                first, drawn = await self._probe(client, requests, sampling)
                requests = [request for request in requests if request is not first]
                yield first, drawn
            waiting, failed, last = iter(requests), set[Any](), ""
            while True:
                free = self.concurrency - len(running) if len(failed) < IN_A_ROW else 0
                for request in islice(waiting, free):
                    running[asyncio.create_task(self._ask(client, request, sampling))] = request
                if not running:
                    break
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    request, (drawn, status) = running.pop(task), task.result()
                    if drawn.finish == "error":
                        # All samples of a question that never passes are one failure, each lost connection is one.
                        failed.add(request.key if status is None else str(request.content))
                        last = drawn.error
                    elif len(failed) < IN_A_ROW:
                        failed.clear()
                    yield request, drawn
            if len(failed) >= IN_A_ROW:  # what was on its way is there now
                raise UserError(
                    f"{self.where}: {last}; {IN_A_ROW} failed one after the other; the same command goes on"
                )
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await client.close()

    async def _probe(self, client: Any, requests: list[Request], sampling: Sampling) -> tuple[Request, Drawn]:
        """Return the first answer; raises UserError if there is none, as the settings may be wrong."""
        questions = {str(request.content): request for request in reversed(requests)}
        status, said = None, None
        for text in sorted(questions, key=len)[:PROBES]:
            request = questions[text]
            drawn, status = await self._ask(client, request, sampling)
            if drawn.error is None:
                self._answered = True
                return request, drawn
            said = drawn.error
            if status in (None, 401, 403, 404, 429):  # as it would be for any question
                break
        sent = ", ".join(f"{name}={value}" for name, value in self._fields(sampling, 0).items())
        hints = {
            401: "set OPENAI_API_KEY to its key",
            404: f"does it know the model {self.model!r}, and does its address end in /v1?",
            429: "it takes no more requests for now; the same command goes on later",
        } | dict.fromkeys(REFUSED, f"sent with the prompt: {sent}. --body NAME=null leaves a field out")
        raise UserError(f"{self.where}: {said}; {hints.get(status or 0, 'is it running, and is the address right?')}")

    async def _ask(self, client: Any, request: Request, sampling: Sampling) -> tuple[Drawn, int | None]:
        """Return the outcome of a request, and the status; None without a reply."""
        import openai

        chat = not isinstance(request.content, str)
        create = (client.chat.completions if chat else client.completions).with_raw_response.create
        prompt = {"messages" if chat else "prompt": request.content}
        status, content = None, b""
        try:
            async with asyncio.timeout(self.timeout):  # the client's own is for each piece of a reply
                reply = await create(model=self.model, **prompt, extra_body=self._fields(sampling, request.seed))
            status, content = 200, reply.http_response.content
            return read_reply(content), status
        except UserError as error:
            said = f"{error}: {content.decode(errors='replace')}"
        except openai.APIStatusError as error:
            status, said = error.status_code, f"{error.status_code} {error.response.text}"
        except (TimeoutError, openai.APITimeoutError):
            said = f"no answer within {self.timeout:g} s; see --timeout"
        except openai.OpenAIError as error:
            said = f"{error} ({error.__cause__})"
        said = " ".join(said.split())
        said = said.replace(self.key, "[key]") if len(self.key) > 5 else said  # which some servers repeat
        return Drawn("", 0, "refused" if status in REFUSED else "error", error=said[:500]), status

    def _fields(self, sampling: Sampling, seed: int) -> dict[str, Any]:
        fields = {"temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens}
        fields |= {"seed": seed, "top_k": sampling.top_k, "min_p": 0.0, "repetition_penalty": 1.0, **self.body}
        return {name: value for name, value in fields.items() if value is not None}


class _Choice(TypedDict):
    finish_reason: NotRequired[str | None]
    text: NotRequired[str | None]
    message: NotRequired[dict[str, Any] | None]


class _Reply(TypedDict):
    choices: Annotated[list[_Choice], Len(1, 1)]
    usage: NotRequired[Any]


def read_reply(content: bytes) -> Drawn:
    """Read an answer in OpenAI's protocol, of a chat or of a completion.

    Raises:
        UserError: the reply holds no answer.
    """
    body = json_line(content, "the reply", _Reply)
    choice = body["choices"][0]
    message, finish = choice.get("message"), choice.get("finish_reason") or "stop"
    said = choice.get("text") if message is None else message.get("content")
    if finish in BROKEN or (message is None and said is None):
        raise UserError(f"the reply holds no answer (finish_reason {finish!r})")
    # vLLM, OpenRouter and Ollama call it reasoning, DeepSeek, SGLang and llama.cpp reasoning_content.
    thoughts = [message.get(name) for name in ("reasoning", "reasoning_content")] if message else []
    tokens = body["usage"].get("completion_tokens") if isinstance(body.get("usage"), dict) else None
    return Drawn(
        content_of(said, "the reply"),
        tokens if type(tokens) is int and 0 <= tokens < 2**31 else None,
        "length" if finish in CUT else "content_filter" if finish.startswith(FILTERED) else "stop",
        next((thought for thought in thoughts if thought and isinstance(thought, str)), None),
    )
