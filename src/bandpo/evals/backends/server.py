"""Samples from a server that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from itertools import islice
from typing import Annotated, Any, NotRequired

from annotated_types import Interval, Len
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from ...errors import UserError, without_password
from ...files.checks import shortened
from ...files.reading import json_line
from ..samples import Sampling
from .base import Drawn, Request


class _Usage(TypedDict):
    completion_tokens: Annotated[int, Interval(ge=0, le=10**9)]


class _Message(TypedDict):
    content: NotRequired[str | None]


class _Choice(TypedDict):
    finish_reason: NotRequired[str | None]


class _Completion(_Choice):
    text: str


class _ChatCompletion(_Choice):
    message: _Message


class _Answer(TypedDict):
    """What is read of an answer; a server may send more."""

    usage: _Usage


class _ToText(_Answer):
    choices: Annotated[list[_Completion], Len(1, 1)]


class _ToMessages(_Answer):
    choices: Annotated[list[_ChatCompletion], Len(1, 1)]


class Server:
    """A server that speaks OpenAI's protocol: vLLM's, SGLang's, llama.cpp's, `transformers serve`, or OpenAI's own.

    Text prompts go to /completions, messages to /chat/completions. The key, if it asks for one, is $OPENAI_API_KEY; it
    is blanked out in whatever the server sends back. Lost connections and the answers 408, 409, 429 and 5xx are tried
    again, ever more slowly.

    Args:
        model: as the server calls it.
        base_url: with the /v1.
        concurrency: requests at once.
        timeout: seconds that one answer may take, with all tries.
        retries: of one request, before the evaluation stops.
        say: called with notices.
    """

    dtype = None

    def __init__(
        self,
        model: str,
        base_url: str,
        *,
        concurrency: int = 32,
        timeout: float = 3600.0,
        retries: int = 8,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.model, self.base_url, self.say = model, base_url, say
        self.where = f"the server at {without_password(base_url)}"
        self.key = os.environ.get("OPENAI_API_KEY") or "none"  # a local server asks for none
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        self._more: dict[str, Any] | None = None  # what this server takes beside OpenAI's own fields

    def draw(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[tuple[Request, Drawn]]:
        # An event loop of our own, turned by whoever iterates: leaving the iterator, by Ctrl-C too, ends all requests.
        loop = asyncio.new_event_loop()
        answers = self._draw(iter(requests), sampling)
        try:
            while True:
                try:
                    yield loop.run_until_complete(anext(answers))
                except StopAsyncIteration:
                    return
        finally:
            loop.run_until_complete(_cancel_all())
            loop.run_until_complete(answers.aclose())
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _draw(
        self, waiting: Iterator[Request], sampling: Sampling
    ) -> AsyncGenerator[tuple[Request, Drawn], None]:
        import openai

        client = openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=self.key,
            max_retries=self.retries,
            timeout=openai.Timeout(self.timeout, connect=10.0),
        )
        running: dict[asyncio.Task[Drawn], Request] = {}
        try:
            if self._more is None and (first := next(waiting, None)) is not None:
                yield first, await self._first(client, first, sampling)
            while True:
                for request in islice(waiting, self.concurrency - len(running)):
                    running[asyncio.create_task(self._ask(client, request, sampling))] = request
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield running.pop(task), task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await client.close()

    async def _first(self, client: Any, request: Request, sampling: Sampling) -> Drawn:
        """The first answer, which shows whether the server is there and which fields it takes.

        What a request leaves open a server takes from the model's own settings (top_k 20, penalties, even greedy), so
        all of it is said, in the first way that the server does not refuse.
        """
        import openai

        whole = {
            "max_new_tokens": sampling.max_tokens,
            "do_sample": sampling.temperature > 0,
            "repetition_penalty": 1.0,
        }
        whole |= {"top_k": max(sampling.top_k, 0), "top_p": sampling.top_p}
        whole |= {"temperature": sampling.temperature} if sampling.temperature > 0 else {}
        ways = [
            {"top_k": sampling.top_k, "min_p": 0.0, "repetition_penalty": 1.0},  # vLLM, SGLang, llama.cpp
            {"generation_config": json.dumps(whole)},  # transformers serve
            {},
        ]
        quick = client.with_options(max_retries=min(2, self.retries))
        for more in ways:
            self._more = more
            try:
                drawn = await self._ask(quick, request, sampling, first=True)
            except openai.APIStatusError as error:
                if error.status_code in (400, 422) and any(name in error.response.text for name in more):
                    continue
                raise self._explained(error) from error
            if not more:
                self.say("the server takes no top_k, min_p or repetition_penalty: if the model's settings have them, "
                         "they hold")  # fmt: skip
                if sampling.top_k != -1:
                    raise UserError(f"{self.where} takes no top_k, got {sampling.top_k}")
            return drawn
        raise AssertionError  # the last way has no field to refuse

    async def _ask(self, client: Any, request: Request, sampling: Sampling, first: bool = False) -> Drawn:
        import openai

        fields: dict[str, Any] = {
            "model": self.model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": request.seed,
            "extra_body": self._more,
        }
        if isinstance(request.content, str):
            create, fields["prompt"], schema = client.completions, request.content, _ToText
        else:
            create, fields["messages"], schema = client.chat.completions, request.content, _ToMessages
        try:
            async with asyncio.timeout(self.timeout):
                content = (await create.with_raw_response.create(**fields)).http_response.content
        except openai.APIStatusError as error:
            if first:
                raise
            raise self._explained(error) from error
        except TimeoutError as error:
            raise UserError(f"{self.where} did not answer within {self.timeout:g} s; see --timeout") from error
        except (openai.OpenAIError, ValueError) as error:
            raise self._explained(error) from error
        # What a server sends is as foreign as a file: checked before it is believed.
        most = 2**20 + 1024 * sampling.max_tokens
        if len(content) > most:
            raise UserError(f"{self.where} sent {len(content):,} bytes as an answer of {sampling.max_tokens} tokens; "
                            f"more than {most:,} are not believed")  # fmt: skip
        try:
            answer = json_line(self._blanked(content), self.where, schema)
        except UserError as error:
            raise UserError(f"{error}; an answer in OpenAI's protocol was asked for, is the address right?") from None
        (choice,) = answer["choices"]
        text = choice["text"] if schema is _ToText else choice["message"].get("content")
        ended = choice.get("finish_reason")
        finish = ended if ended in ("length", "content_filter") else "stop"
        return Drawn(self._blanked(text or ""), answer["usage"]["completion_tokens"], finish)

    def _explained(self, error: Exception) -> UserError:
        """One line: what went wrong, and what to do."""
        import openai

        where = self.where
        said = error.response.text if isinstance(error, openai.APIStatusError) else str(error)
        reason = self._blanked(f"{getattr(error, 'status_code', '')} {' '.join(said.split())}".strip())[:500]
        match error:
            case openai.APITimeoutError():
                return UserError(f"{where} did not answer within {self.timeout:g} s; see --timeout")
            case openai.APIConnectionError():
                cause = f" ({self._blanked(str(error.__cause__))})" if str(error.__cause__ or "") else ""
                return UserError(f"{where} cannot be reached{cause}; is it running, and is the address right?")
            case openai.AuthenticationError():
                return UserError(f"{where} asks for another key; set OPENAI_API_KEY ({reason})")
            case openai.RateLimitError() if wait := error.response.headers.get("retry-after"):
                return UserError(f"{where} takes no more requests for now, and says to come back later (Retry-After: "
                                 f"{shortened(wait)}); the same command goes on then ({reason})")  # fmt: skip
            case openai.NotFoundError():
                return UserError(f"{where} knows no model {self.model!r}, or its address lacks /v1 ({reason})")
            case openai.APIStatusError():
                return UserError(f"{where} refused the request for model {self.model!r}: {reason}")
            case _:
                return UserError(f"{where} sent no answer that can be read ({type(error).__name__}: {reason})")

    def _blanked(self, said: Any) -> Any:
        """Text or bytes without the key, which some servers repeat. What is shorter is no key ("none", "EMPTY")."""
        if len(self.key) < 8:
            return said
        return said.replace(self.key, "[key]") if isinstance(said, str) else said.replace(self.key.encode(), b"[key]")


async def _cancel_all() -> None:
    """After Ctrl-C the step that it interrupted still hangs in the loop, and holds the generator."""
    hanging = asyncio.all_tasks() - {asyncio.current_task()}
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
