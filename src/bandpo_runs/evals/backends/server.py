"""Generate samples on a server of OpenAI's protocol, through OpenAI's client."""

import asyncio
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import openai

from bandpo.errors import UserError, without_password
from bandpo.files import json_line

from ..samples import Request, Sample, Sampling, content_of

IN_A_ROW = 5  # questions that fail one after the other, after which a server is asked no more
# Bytes that are read of a reply: these, more for each token of max_tokens, and at most so many that the sample's line
# can be read again, where each may have become three.
REPLY, PER_TOKEN, LONGEST_REPLY = 2**20, 2**10, 10 * 2**20
SETTINGS = ("temperature", "top_p", "max_tokens", "seed", "top_k")  # fields that have options
CODED = (
    "content-encoding",
    "content-length",
    "transfer-encoding",
)  # headers that do not hold once it is decoded
REFUSED = ("400", "413", "422")  # of a request that will not be answered, such as one beyond the context


@dataclass
class Server:
    """Generate on a server that speaks OpenAI's protocol. OpenAI, vLLM, SGLang, llama.cpp, `transformers serve` do.

    Text prompts go to /completions, messages to /chat/completions, and each sample is a request with its own seed.
    A request also has top_k, min_p and repetition_penalty as vLLM calls them, because what it leaves open a server
    takes from the model's own settings. `body` changes that for other servers.

    The client repeats lost connections and the statuses 408, 409, 429 and 5xx, `retries` times, ever more slowly.
    A failure is the outcome of its sample, until `IN_A_ROW` questions fail one after the other. Before the first answer
    that may be the settings: each sample counts, and what the server refuses too. Nothing is kept if no answer comes.
    `timeout` is in seconds, for one answer with all tries. Of a reply 1 MiB and 1 KiB for each token of `max_tokens`
    are read, decoded, at most 10 MiB; a longer one is a failure, and so is a redirect.

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
        self.key = os.environ.get("OPENAI_API_KEY") or "none"  # a local server needs none

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, keep: Callable[[Sample], None]
    ) -> None:
        asyncio.run(self._generate(requests, sampling, keep))

    async def _generate(
        self, requests: Sequence[Request], sampling: Sampling, keep: Callable[[Sample], None]
    ) -> None:
        base_url, _, query = self.base_url.partition("?")
        waiting, pending, unkept = iter(requests), set[asyncio.Task[Sample]](), list[Sample]()
        failed: dict[tuple[Any, ...], Sample] = {}
        answered = False
        async with openai.AsyncOpenAI(
            api_key=self.key,
            base_url=base_url,
            default_query=dict(parse_qsl(query)),
            max_retries=self.retries,
            timeout=openai.Timeout(self.timeout, connect=10.0),
            http_client=BoundedClient(min(REPLY + PER_TOKEN * sampling.max_tokens, LONGEST_REPLY)),
        ) as client:
            try:
                while True:
                    # The first alone: a server may load its model for it.
                    at_once = self.concurrency if answered or unkept else 1
                    room = at_once - len(pending) if len(failed) < IN_A_ROW else 0
                    for request in itertools.islice(waiting, room):
                        pending.add(asyncio.create_task(self._ask(client, request, sampling)))
                    if not pending:
                        break
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for sample in [task.result() for task in done]:
                        unkept.append(sample)
                        answered |= sample.error is None
                        if sample.finish != "error" and answered:
                            failed.clear()
                        else:  # all samples of a question that never passes are one failure, once there is an answer
                            failed[sample.key[: 2 if answered else 3]] = sample
                    while answered and unkept:
                        keep(unkept.pop(0))
            finally:
                for task in pending:
                    task.cancel()
                await asyncio.gather(*pending, return_exceptions=True)
        if failed and (len(failed) >= IN_A_ROW or not answered):
            _, sample = failed.popitem()
            if sample.finish == "refused":
                sent = (f"{name}={value}" for name, value in self._fields(sampling, 0).items())
                hint = f"sent with the prompt: {', '.join(sent)}. --body NAME=null leaves a field out"
            elif answered:
                hint = f"{IN_A_ROW} questions failed in a row; the same command goes on"
            else:
                hint = (
                    f"is it running with the model {self.model!r}, does its address end in /v1, is OPENAI_API_KEY its "
                    "key?"
                )
            raise UserError(f"the server at {without_password(self.base_url)}: {sample.error}; {hint}")

    async def _ask(self, client: Any, request: Request, sampling: Sampling) -> Sample:
        """Return the outcome of a request. An error begins with the server's status, if there is one."""
        chat = not isinstance(request.content, str)
        create = (client.chat.completions if chat else client.completions).with_raw_response.create
        prompt = {"messages" if chat else "prompt": request.content}
        try:
            async with asyncio.timeout(self.timeout):  # the client's own is for each piece of a reply
                reply = await create(
                    model=self.model, **prompt, extra_body=self._fields(sampling, request.seed)
                )
            return read_reply(reply.http_response.content, request)
        except UserError as error:
            message = str(error)
        except openai.APIStatusError as error:
            text = (
                "a redirect, which is not followed"  # its address may hold a key
                if error.response.has_redirect_location
                else error.response.text or error.response.reason_phrase
            )
            message = f"{error.status_code} {text}"
        except (TimeoutError, openai.APITimeoutError):
            message = f"no answer within {self.timeout:g} s; see --timeout"
        except openai.OpenAIError as error:
            message = f"{error} ({error.__cause__})"
        message = " ".join(message.split())
        if len(self.key) > 5:
            message = message.replace(self.key, "[key]")  # which some servers repeat
        finish = "refused" if message.startswith(REFUSED) else "error"
        return Sample(*request.key, request.seed, "", tokens=0, finish=finish, error=message[:500])

    def _fields(self, sampling: Sampling, seed: int) -> dict[str, Any]:
        fields: dict[str, Any] = {
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
        return type(response)(
            response.status_code,
            headers=[each for each in response.headers.multi_items() if each[0] not in CODED],
            content=bytes(content),
            request=request,
        )


def read_reply(content: bytes, request: Request) -> Sample:
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
        return Sample(
            *request.key,
            request.seed,
            content_of(choice["text"] if message is None else message.get("content"), "the reply"),
            tokens if type(tokens) is int and 0 <= tokens < 2**31 else None,
            end if end in ("length", "content_filter") else "stop",
            next((thought for thought in thoughts if thought and isinstance(thought, str)), None),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(f"the reply holds no answer: {content.decode(errors='replace')}") from None
