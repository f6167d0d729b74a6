"""Draw samples from a server of OpenAI's protocol, through OpenAI's client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl

from bandpo.errors import UserError, without_password
from bandpo.files import json_line

from ..samples import Sampling, content_of
from .base import Drawn, Request

IN_A_ROW = 5  # questions that fail one after the other, after which a server is not asked any more
PROBES = 3  # shortest questions of which one must be answered before the others are asked
# Bytes that are read of a reply: these, more for each token of max_tokens, and at most so many that the sample's line
# can be read again, where each may have become three.
REPLY, PER_TOKEN, LONGEST_REPLY = 2**20, 2**10, 10 * 2**20
SETTINGS = ("temperature", "top_p", "max_tokens", "seed", "top_k")  # fields that have options
REFUSED = ("400", "413", "422")  # statuses of a request that will not be answered, such as one beyond the context


@dataclass
class Server:
    """Draw from a server that speaks OpenAI's protocol. OpenAI, vLLM, SGLang, llama.cpp, `transformers serve` do.

    Text prompts go to /completions, messages to /chat/completions, and each sample is a request with its own seed.
    A request also has top_k, min_p and repetition_penalty as vLLM calls them, because what it leaves open a server
    takes from the model's own settings. `body` changes that for other servers.

    The client repeats lost connections and the statuses 408, 409, 429 and 5xx, `retries` times, ever more slowly.
    Until one question is answered a failure is an error. Later it is the outcome of its sample, until `IN_A_ROW` follow
    one another. `timeout` is in seconds, for one answer with all tries. Of a reply 1 MiB and 1 KiB for each token of
    `max_tokens` are read, decoded, at most 10 MiB; a longer one is a failure, and so is a redirect.

    Raises:
        UserError: `body` sets a field that has an option.
    """

    model: str
    base_url: str
    concurrency: int = 32
    timeout: float = 3600.0
    body: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 8
    dtype = tokenizer = None  # which are not known

    def __post_init__(self) -> None:
        if name := next((name for name in SETTINGS if self.body.get(name) is not None), None):
            raise UserError(
                f"--body cannot set {name}, got {self.body[name]!r}; --{name.replace('_', '-')} does, and null leaves "
                "it out"
            )
        self.where = f"the server at {without_password(self.base_url)}"
        self.key = os.environ.get("OPENAI_API_KEY") or "none"  # a local server asks for none
        self._answered = False

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

        from .replies import BoundedClient  # which loads openai

        base_url, _, query = self.base_url.partition("?")
        client = openai.AsyncOpenAI(
            api_key=self.key,
            base_url=base_url,
            default_query=dict(parse_qsl(query)),
            max_retries=self.retries,
            timeout=openai.Timeout(self.timeout, connect=10.0),
            http_client=BoundedClient(min(REPLY + PER_TOKEN * sampling.max_tokens, LONGEST_REPLY)),
        )
        first = {str(request.content): request for request in reversed(requests)}
        probes = [first[text] for text in sorted(first, key=len)[:PROBES]]
        waiting = iter([*probes, *(request for request in requests if request not in probes)])
        running: dict[asyncio.Task[Drawn], Request] = {}
        held, failed, last = list[tuple[Request, Drawn]](), set[str](), None
        try:
            while True:
                free = (self.concurrency if self._answered else PROBES - len(held)) - len(running)
                for request in islice(waiting, max(free, 0) if len(failed) < IN_A_ROW else 0):
                    running[asyncio.create_task(self._ask(client, request, sampling))] = request
                if not running:
                    break
                for task in (await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))[0]:
                    request, drawn = running.pop(task), task.result()
                    held.append((request, drawn))
                    self._answered = self._answered or drawn.error is None
                    last = drawn.error or last
                    if drawn.finish == "error":
                        failed.add(str(request.content))  # all samples of a question that never passes are one failure
                    elif len(failed) < IN_A_ROW:
                        failed.clear()
                while self._answered and held:
                    yield held.pop(0)
            if held:  # the settings may be wrong: nothing is written
                raise UserError(f"{self.where}: {last}; {self._hint(str(last)[:3], sampling)}")
            if len(failed) >= IN_A_ROW:  # what was on its way is there now
                raise UserError(f"{self.where}: {last}; {IN_A_ROW} questions failed in a row; the same command goes on")
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await client.close()

    def _hint(self, status: str, sampling: Sampling) -> str:
        sent = ", ".join(f"{name}={value}" for name, value in self._fields(sampling, 0).items())
        hints = {
            "401": "set OPENAI_API_KEY to its key",
            "404": f"does it know the model {self.model!r}, and does its address end in /v1?",
            "429": "it takes no more requests for now; the same command goes on later",
        } | dict.fromkeys(REFUSED, f"sent with the prompt: {sent}. --body NAME=null leaves a field out")
        return hints.get(status, "is it running, and is the address right?")

    async def _ask(self, client: Any, request: Request, sampling: Sampling) -> Drawn:
        """Return the outcome of a request. An error begins with the server's status, if there is one."""
        import openai

        chat = not isinstance(request.content, str)
        create = (client.chat.completions if chat else client.completions).with_raw_response.create
        prompt = {"messages" if chat else "prompt": request.content}
        try:
            async with asyncio.timeout(self.timeout):  # the client's own is for each piece of a reply
                reply = await create(model=self.model, **prompt, extra_body=self._fields(sampling, request.seed))
            return read_reply(reply.http_response.content)
        except UserError as error:
            said = str(error)
        except openai.APIStatusError as error:
            said = f"{error.status_code} {error.response.text}"
        except (TimeoutError, openai.APITimeoutError):
            said = f"no answer within {self.timeout:g} s; see --timeout"
        except openai.OpenAIError as error:
            said = f"{error} ({error.__cause__})"
        said = " ".join(said.split())
        said = said.replace(self.key, "[key]") if len(self.key) > 5 else said  # which some servers repeat
        return Drawn("", 0, "refused" if said.startswith(REFUSED) else "error", error=said[:500])

    def _fields(self, sampling: Sampling, seed: int) -> dict[str, Any]:
        fields = {"temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens}
        fields |= {"seed": seed, "top_k": sampling.top_k, "min_p": 0.0, "repetition_penalty": 1.0, **self.body}
        return {name: value for name, value in fields.items() if value is not None}


def read_reply(content: bytes) -> Drawn:
    """Read an answer in OpenAI's protocol, of a chat or of a completion.

    Raises:
        UserError: the reply holds no answer.
    """
    body = json_line(content, "the reply")
    try:
        (choice,) = body["choices"]
        message, end = choice.get("message"), choice.get("finish_reason")
        if end in ("error", "abort"):  # of a server that broke off
            raise ValueError(end)
        # vLLM, OpenRouter and Ollama call it reasoning, DeepSeek, SGLang and llama.cpp reasoning_content.
        thoughts = [message.get(name) for name in ("reasoning", "reasoning_content")] if message else []
        tokens = (body.get("usage") or {}).get("completion_tokens")
        return Drawn(
            content_of(choice["text"] if message is None else message.get("content"), "the reply"),
            tokens if type(tokens) is int and 0 <= tokens < 2**31 else None,
            end if end in ("length", "content_filter") else "stop",
            next((thought for thought in thoughts if thought and isinstance(thought, str)), None),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"the reply holds no answer: {content.decode(errors='replace')}") from None
