"""Samples from a server that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from bandpo.errors import UserError, without_password
from bandpo.files import shortened

from ..samples import Sampling
from .base import Drawn, Request, opens_thinking

if TYPE_CHECKING:
    from .replies import Answer, Failure

# Failures one after the other, of as many questions or about the server itself, after which it is not asked any more.
IN_A_ROW = 5
OMISSIBLE = ("temperature", "top_p", "max_tokens", "seed")


class Server:
    """A server that speaks OpenAI's protocol: vLLM's, SGLang's, llama.cpp's, `transformers serve`, or OpenAI's own.

    Text prompts go to /completions, messages to /chat/completions. The key, if it asks for one, is $OPENAI_API_KEY; it,
    and what the address holds beside the place, are blanked out in whatever the server sends back. Lost connections,
    the answers 408, 409, 429 and 5xx, and a 200 without an answer are tried again, ever more slowly.

    Until the first answer requests go one by one, those of the shortest questions first, and what is wrong with the
    server itself stops at once. Later a failure is the outcome of its sample, until `IN_A_ROW` follow one another.

    Args:
        model: as the server calls it.
        base_url: with the /v1.
        concurrency: requests at once.
        timeout: seconds that one answer may take, with all tries.
        retries: of one request.
        omit: of `OMISSIBLE`, the fields that are not sent.
        limit: the field in which max_tokens is sent, `max_tokens` or `max_completion_tokens`.
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
        omit: Collection[str] = (),
        limit: str = "max_tokens",
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        if unknown := [name for name in omit if name not in OMISSIBLE]:
            raise UserError(f"--omit must be of {', '.join(OMISSIBLE)}, got {unknown[0]!r}")
        self.model, self.omit, self.limit, self.say = model, omit, limit, say
        self.base_url, _, query = base_url.partition("?")
        self.query = dict(parse_qsl(query, keep_blank_values=True))
        self.where = f"the server at {without_password(base_url)}"
        self.key = os.environ.get("OPENAI_API_KEY") or "none"  # a local server asks for none
        # What is shorter is no secret ("none", "EMPTY"), and would be blanked out of ordinary words.
        values = [pair.partition("=")[2] for pair in query.split("&") if not pair.startswith("api-version=")]
        try:
            password = urlsplit(base_url).password or ""
        except ValueError as error:
            raise UserError(f"--base-url must be an address, got {without_password(base_url)!r} ({error})") from None
        written = [self.key, *values, password]
        self.secrets = {form for text in written for form in (text, unquote(text)) if len(form) >= 8}
        self.concurrency, self.timeout, self.retries = concurrency, timeout, retries
        # What this server takes beside OpenAI's own fields; known with the first answer.
        self._more: dict[str, Any] | None = None

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

        from .replies import Answer, Client

        client = openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key=self.key,
            default_query=self.query,
            max_retries=self.retries,
            timeout=openai.Timeout(self.timeout, connect=10.0),
            http_client=Client(2**20 + 1024 * sampling.max_tokens, self._blanked),
        )
        # Where the shortest questions are too long, all are.
        shortest = sorted({str(r.content): r for r in reversed(requests)}.items(), key=lambda pair: len(pair[0]))
        first = [] if self._answered else [request for _, request in shortest[:IN_A_ROW]]
        chosen = {request.key for request in first}
        waiting = iter([*first, *(request for request in requests if request.key not in chosen)])
        running: dict[asyncio.Task[Answer | Failure], Request] = {}
        failed, stopped = set(), None
        held: list[tuple[Request, Drawn]] = []  # without any answer the settings may be wrong: nothing is given back
        try:
            while True:
                free = (self.concurrency if self._answered else 1) - len(running)
                for request in islice(waiting, 0 if stopped else free):
                    running[asyncio.create_task(self._ask(client, request, sampling))] = request
                if not running:
                    break
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    request, reply = running.pop(task), task.result()
                    if isinstance(reply, Answer):
                        failed.clear()
                        for each in held:
                            yield each
                        held.clear()
                        yield request, Drawn(reply.text, reply.tokens, reply.finish, reply.reasoning)
                        continue
                    if not self._answered or reply.kind == "error":
                        failed.add(request.key if reply.everyone else str(request.content))
                        most = IN_A_ROW if self._answered else min(IN_A_ROW, len(shortest))
                        hopeless = not self._answered and reply.everyone and reply.status != 429
                        stopped = stopped or (reply if hopeless or len(failed) >= most else None)
                    held.append((request, Drawn("", 0, reply.kind, error=reply.said)))
                    if self._answered:
                        yield held.pop()
            if stopped:  # what was on its way is there now
                raise self._explained(stopped, sampling)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await client.close()

    @property
    def _answered(self) -> bool:
        return self._more is not None

    async def _ask(self, client: Any, request: Request, sampling: Sampling) -> Answer | Failure:
        """Ask for the reply to a request. The first answer shows which fields the server takes.

        What a request leaves open a server takes from the model's own settings (top_k 20, penalties, even greedy), so
        all of it is said, in the first way that the server does not refuse.
        """
        from .replies import Answer

        if self._more is not None:
            return await self._reply(client, request, sampling, self._more)
        whole = {
            "max_new_tokens": sampling.max_tokens,
            "do_sample": sampling.temperature > 0,
            "repetition_penalty": 1.0,
            "top_k": max(sampling.top_k, 0),
            "top_p": sampling.top_p,
        }
        whole |= {"temperature": sampling.temperature} if sampling.temperature > 0 else {}
        whole = {name: value for name, value in whole.items() if name.replace("new_", "") not in self.omit}
        ways = [
            {"top_k": sampling.top_k, "min_p": 0.0, "repetition_penalty": 1.0},  # vLLM, SGLang, llama.cpp
            {"generation_config": json.dumps(whole)},  # transformers serve
            {},
        ]
        quick = client.with_options(max_retries=min(2, self.retries))
        for more in ways:
            reply = await self._reply(quick, request, sampling, more)
            if isinstance(reply, Answer):
                self._more = more
                if not more:
                    self.say("the server takes no top_k, min_p or repetition_penalty: if the model's settings have "
                             "them, they hold")  # fmt: skip
                    if sampling.top_k != -1:
                        raise UserError(f"{self.where} takes no top_k, got {sampling.top_k}")
                break
            if reply.kind != "error" or reply.status not in (400, 422):
                break
        return reply

    def _fields(self, sampling: Sampling, seed: int) -> dict[str, Any]:
        fields = {"temperature": sampling.temperature, "top_p": sampling.top_p, self.limit: sampling.max_tokens}
        return {name: value for name, value in {**fields, "seed": seed}.items() if name not in self.omit}

    async def _reply(self, client: Any, request: Request, sampling: Sampling, more: dict[str, Any]) -> Answer | Failure:
        import openai

        from .replies import Failure, TooLong

        chat = not isinstance(request.content, str)
        create = client.chat.completions if chat else client.completions
        prompt = {"model": self.model, "messages" if chat else "prompt": request.content}
        fields = self._fields(sampling, request.seed) | more
        try:
            async with asyncio.timeout(self.timeout):
                answer = await create.with_raw_response.create(**prompt, extra_body=fields)
            return answer.http_response.extensions["reply"]
        except openai.APIStatusError as error:
            reply: Failure = error.response.extensions["reply"]
            wait = error.response.headers.get("retry-after") if error.status_code == 429 else None
            return reply if wait is None else replace(reply, said=f"{reply.said} (Retry-After: {shortened(wait)})")
        except (TimeoutError, openai.APITimeoutError):
            return Failure("error", f"no answer within {self.timeout:g} s; see --timeout", None, True)
        except TooLong as error:
            return Failure("error", f"more than {error.args[0]:,} bytes as an answer of {sampling.max_tokens} "
                           "tokens; the rest was not read")  # fmt: skip
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            gone = type(cause).__name__ in ("ConnectError", "ConnectTimeout", "ProxyError", "UnsupportedProtocol")
            what = "cannot be reached" if gone else "the connection broke"
            return Failure("error", f"{what} ({self._said(cause)})", None, gone)
        except (openai.OpenAIError, ValueError) as error:
            return Failure("error", f"no answer that can be read ({self._said(error)})")

    def _explained(self, failure: Failure, sampling: Sampling) -> UserError:
        """Explain in one line: why the server is not asked any more, and what to do."""
        where, said, status = self.where, failure.said, failure.status
        if failure.kind == "context_length":
            line = f"{where} has no room even for the shortest question and --max-tokens {sampling.max_tokens} ({said})"
        elif status == 401:
            line = f"{where} asks for another key; set OPENAI_API_KEY ({said})"
        elif status == 404:
            line = f"{where} knows no model {self.model!r}, or its address lacks /v1 ({said})"
        elif status == 429:
            line = f"{where} takes no more requests for now; the same command goes on later ({said})"
        elif status is not None and 400 <= status < 500:
            sent = self._fields(sampling, 0)
            names = [name for name in OMISSIBLE if name in sent]
            line = (
                f"{where} refused the request for model {self.model!r}: {said}. Sent, beside the prompt: "
                f"{', '.join(f'{name}={value}' for name, value in sent.items())}"
            )
            if names:
                line += f"; --omit leaves out any of {', '.join(names)}"
            if "max_tokens" in sent:
                line += f"; --max-completion-tokens {sampling.max_tokens} sends the limit under that name"
        else:
            line = f"{where}: {said}"
        if self._answered:
            return UserError(f"{line}. {IN_A_ROW} failed one after the other; the same command goes on")
        return UserError(f"{line}; is it running, and is the address right?" if status in (None, 502) else line)

    def _said(self, error: BaseException) -> str:
        return self._blanked(" ".join(f"{type(error).__name__}: {error}".split()).encode()).decode()[:500]

    def _blanked(self, said: bytes) -> bytes:
        """Remove the secrets, which some servers repeat."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            said = said.replace(secret.encode(), b"[key]")
        return said
