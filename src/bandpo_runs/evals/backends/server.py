"""Generate samples on a server of OpenAI's protocol, through OpenAI's client."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import openai

from bandpo.errors import UserError, without_password
from bandpo.files import json_line

from ..samples import Sampling, content_of
from .base import Completion, Keep, Request

IN_A_ROW = 5  # questions that fail one after the other, after which a server is not asked any more
PROBES = 3  # shortest questions of which one must be answered before the others are asked
# Bytes that are read of a reply: these, more for each token of max_tokens, and at most so many that the sample's line
# can be read again, where each may have become three.
REPLY, PER_TOKEN, LONGEST_REPLY = 2**20, 2**10, 10 * 2**20
SETTINGS = ("temperature", "top_p", "max_tokens", "seed", "top_k")  # fields that have options
REFUSED = ("400", "413", "422")  # of a request that will not be answered, such as one beyond the context


@dataclass
class Server:
    """Generate on a server that speaks OpenAI's protocol. OpenAI, vLLM, SGLang, llama.cpp, `transformers serve` do.

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
    dtype = tokenizer = None  # which only the server knows

    def __post_init__(self) -> None:
        for name in SETTINGS:
            if self.body.get(name) is not None:
                raise UserError(
                    f"--body cannot set {name}, got {self.body[name]!r}; --{name.replace('_', '-')} does, null leaves "
                    "it out"
                )
        self.where = f"the server at {without_password(self.base_url)}"
        self.key = os.environ.get("OPENAI_API_KEY") or "none"  # a local server needs none

    def generate(self, requests: Sequence[Request], sampling: Sampling, keep: Keep) -> None:
        asyncio.run(self._generate(requests, sampling, keep))

    async def _generate(self, requests: Sequence[Request], sampling: Sampling, keep: Keep) -> None:
        base_url, _, query = self.base_url.partition("?")
        client = openai.AsyncOpenAI(
            api_key=self.key,
            base_url=base_url,
            default_query=dict(parse_qsl(query)),
            max_retries=self.retries,
            timeout=openai.Timeout(self.timeout, connect=10.0),
            http_client=BoundedClient(min(REPLY + PER_TOKEN * sampling.max_tokens, LONGEST_REPLY)),
        )
        async with client:
            one_each = {str(request.content): request for request in reversed(requests)}
            probes = [one_each[text] for text in sorted(one_each, key=len)[:PROBES]]
            answers = await asyncio.gather(*(self._ask(client, probe, sampling) for probe in probes))
            if all(completion.error is not None for completion in answers):
                completion = answers[-1]  # the settings may be wrong: nothing is written
                sent = ", ".join(f"{name}={value}" for name, value in self._fields(sampling, 0).items())
                hint = f"sent with the prompt: {sent}. --body NAME=null leaves a field out"
                if completion.finish == "error":
                    hint = (
                        f"is it running with the model {self.model!r}, does its address end in /v1, "
                        "is OPENAI_API_KEY its key?"
                    )
                raise UserError(f"{self.where}: {completion.error}; {hint}")
            for probe, completion in zip(probes, answers, strict=True):
                keep(probe, completion)
            waiting = iter([request for request in requests if request not in probes])
            failed: dict[str, str] = {}  # all samples of a question that never passes are one failure

            async def work() -> None:
                for request in waiting:
                    completion = await self._ask(client, request, sampling)
                    keep(request, completion)
                    if completion.finish == "error":
                        failed[str(request.content)] = str(completion.error)
                    elif len(failed) < IN_A_ROW:
                        failed.clear()
                    if len(failed) >= IN_A_ROW:
                        return

            workers = [asyncio.ensure_future(work()) for _ in range(self.concurrency)]
            try:
                await asyncio.gather(*workers)
            finally:  # a request that is cut off by the client's end would be kept as an error
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
            if len(failed) >= IN_A_ROW:  # what was on its way is there now
                *_, error = failed.values()
                raise UserError(
                    f"{self.where}: {error}; {IN_A_ROW} questions failed in a row; the same command goes on"
                )

    async def _ask(self, client: Any, request: Request, sampling: Sampling) -> Completion:
        """Return the outcome of a request. An error begins with the server's status, if there is one."""
        chat = not isinstance(request.content, str)
        create = (client.chat.completions if chat else client.completions).with_raw_response.create
        prompt = {"messages" if chat else "prompt": request.content}
        try:
            async with asyncio.timeout(self.timeout):  # the client's own is for each piece of a reply
                reply = await create(
                    model=self.model, **prompt, extra_body=self._fields(sampling, request.seed)
                )
            return read_reply(reply.http_response.content)
        except UserError as error:
            message = str(error)
        except openai.APIStatusError as error:
            text = error.response.text or error.response.reason_phrase
            if error.response.has_redirect_location:  # its address may hold a key
                text = "a redirect, which is not followed"
            message = f"{error.status_code} {text}"
        except (TimeoutError, openai.APITimeoutError):
            message = f"no answer within {self.timeout:g} s; see --timeout"
        except openai.OpenAIError as error:
            message = f"{error} ({error.__cause__})"
        message = " ".join(message.split())
        if len(self.key) > 5:
            message = message.replace(self.key, "[key]")  # which some servers repeat
        return Completion(
            "", 0, "refused" if message.startswith(REFUSED) else "error", error=message[:500]
        )

    def _fields(self, sampling: Sampling, seed: int) -> dict[str, Any]:
        fields = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": seed,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            **self.body,
        }
        return {name: value for name, value in fields.items() if value is not None}


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """Read at most `limit` bytes of a reply, and follow no redirect. They are counted as they are decoded.

    Raises:
        UserError: a longer reply. The openai client does not try it again.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(follow_redirects=False)
        self.limit = limit

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request. Returns the reply with its whole content."""
        response = await super().send(request, **{**options, "stream": True})
        content = bytearray()
        try:
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > self.limit:
                    raise UserError(f"a reply of more than {self.limit:,} bytes; the rest was not read")
        finally:
            await response.aclose()
        coded = ("content-encoding", "content-length", "transfer-encoding")  # it is decoded here
        return type(response)(
            response.status_code,
            headers=[each for each in response.headers.multi_items() if each[0] not in coded],
            content=bytes(content),
            request=request,
        )


def read_reply(content: bytes) -> Completion:
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
        return Completion(
            content_of(choice["text"] if message is None else message.get("content"), "the reply"),
            tokens if type(tokens) is int and 0 <= tokens < 2**31 else None,
            end if end in ("length", "content_filter") else "stop",
            next((thought for thought in thoughts if thought and isinstance(thought, str)), None),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"the reply holds no answer: {content.decode(errors='replace')}") from None
