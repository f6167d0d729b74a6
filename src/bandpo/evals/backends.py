"""Where samples come from: transformers on this machine, vLLM on this machine, or a server that speaks OpenAI's
protocol. One function each: `draw(requests)` yields (request, drawn) in the order in which they come.

What a seed fixes (measured in docs/evaluation.md): with transformers and vLLM in this process the random numbers of a
sample depend on its seed alone, not on who shares its batch. What is left is rounding: a matrix product of another
shape may round differently, and where two tokens are within that of each other the answer goes another way. A server
is sent the seed of each sample; whether it heeds it is the server's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NotRequired, Protocol

import torch
from annotated_types import Interval, Len
from torch import Tensor
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from ..data.questions import Content
from ..errors import UserError, without_password
from ..files import json_line, shortened
from .folder import Sampling


@dataclass(frozen=True)
class Request:
    """One sample to draw. `key` is the caller's."""

    key: Any
    content: Content
    seed: int


@dataclass(frozen=True)
class Drawn:
    """An answer: its text, how many tokens with the end token, and whether it ended ("stop"), was cut ("length") or
    was taken away by the filter of a server ("content_filter")."""

    text: str
    tokens: int
    finish: str


class Backend(Protocol):
    """`dtype`: the precision of the model, where that is known."""

    @property
    def dtype(self) -> str | None: ...

    def draw(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[tuple[Request, Drawn]]:
        """An answer to each request, in any order. Leaving the iterator stops the work."""
        ...


def choose(name: str, base_url: str | None) -> str:
    """The back end that `auto` means: a server if one is named, else vLLM if it is installed, else transformers."""
    if name == "auto":
        name = "openai" if base_url else "vllm" if find_spec("vllm") else "transformers"
    if (name == "openai") != (base_url is not None):
        raise UserError(
            "backend openai needs the server's address: --base-url http://localhost:8000/v1"
            if base_url is None
            else f"--base-url is for backend openai, got backend {name!r}"
        )
    package = {"openai": "openai", "vllm": "vllm", "transformers": "transformers"}[name]
    if not find_spec(package):
        hint = {"openai": "pip install 'bandpo[eval]'", "vllm": "see docs.vllm.ai for your hardware"}
        raise UserError(f"backend {name} needs the package {package}, which is not installed: "
                        f"{hint.get(name, 'pip install transformers')}")  # fmt: skip
    return name


def weights_of(model: str) -> str | None:
    """What tells the weights of a model from others of the same name: the revision on the hub or, of a folder, a hash
    of its settings and of the ends of its weight files (training changes every tensor)."""
    folder = Path(model)
    if not folder.is_dir():
        from transformers import AutoConfig

        try:
            return getattr(AutoConfig.from_pretrained(model, trust_remote_code=False), "_commit_hash", None)
        except Exception as error:
            raise _cannot_load(model, error) from error
    digest = hashlib.sha256()
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("config.json")])
    for path in files:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 2**20))
            digest.update(f"{path.name} {size} ".encode() + file.read())
    return digest.hexdigest()[:16] if files else None


def _cannot_load(model: str, error: Exception) -> UserError:
    folder = "" if Path(model).is_dir() else " (there is no such folder here)"
    return UserError(f"model {model!r}{folder} cannot be loaded: {' '.join(str(error).split())}")


def token_ids(tokenizer: Any, content: Content, model: str) -> list[int]:
    """A prompt as tokens: messages through the model's chat template, text as it is (as TRL does in training)."""
    if isinstance(content, str):
        ids = tokenizer(content)["input_ids"]
        if not ids:
            raise UserError(f"the tokenizer of {model!r} finds no token in {content!r}; are its files there?")
        return list(ids)
    if tokenizer.chat_template is None:
        raise UserError(
            f"the prompts are chat messages, but the tokenizer of {model!r} has no chat template; --no-chat sends "
            "their text as it is"
        )
    return list(tokenizer.apply_chat_template(content, add_generation_prompt=True, return_dict=True)["input_ids"])


# --------------------------------------------------------------------------------------------------------- transformers
class Transformers:
    """`generate` in batches, with noise that depends on the sample and the place of the token alone (`SeededChoice`).

    Args:
        model: a folder, a hub id, or a model that is loaded already (then with its `tokenizer`).
        batch: samples at once; halved for good where they do not fit into memory.
        say: called with notices.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        batch: int | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.path = model if isinstance(model, str) else "the model"
        if isinstance(model, str):
            device = "cuda" if torch.cuda.is_available() else "cpu"
            dtype = torch.float32 if device == "cpu" else "auto"  # half precision is slower there
            try:
                tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
                loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, trust_remote_code=False)
                model = loaded.to(device)
            except Exception as error:  # a damaged folder fails in many ways
                raise _cannot_load(self.path, error) from error
        self.model, self.tokenizer, self.say = model.eval(), tokenizer, say
        self.device = next(model.parameters()).device
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.batch = batch or (64 if self.device.type == "cuda" else 32)
        ends = model.generation_config.eos_token_id
        ends = tokenizer.eos_token_id if ends is None else ends
        self.ends: list[int] = [] if ends is None else ends if isinstance(ends, list) else [ends]
        pad = tokenizer.pad_token_id
        self.pad: int = pad if pad is not None else self.ends[0] if self.ends else 0
        # Whole, because what is not set here would be taken from the model's own, which has top_p and penalties.
        self._config = GenerationConfig(eos_token_id=self.ends or None, pad_token_id=self.pad, do_sample=False)

    def draw(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[tuple[Request, Drawn]]:
        waiting = iter(requests)
        while chosen := list(islice(waiting, self.batch)):
            while chosen:
                now = chosen[: self.batch]
                try:
                    drawn = self._generate(now, sampling)
                except torch.OutOfMemoryError:
                    if len(now) == 1:
                        raise UserError(
                            f"one answer of {sampling.max_tokens} tokens does not fit into the memory of {self.device}"
                        ) from None
                    self.batch = len(now) // 2
                    self.say(f"out of memory with {len(now)} samples at once: going on with {self.batch}")
                    torch.cuda.empty_cache()
                    continue
                yield from zip(now, drawn, strict=True)
                chosen = chosen[len(now) :]

    @torch.no_grad()
    def _generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Drawn]:
        prompts = [token_ids(self.tokenizer, request.content, self.path) for request in requests]
        longest = max(map(len, prompts))
        ids = torch.tensor([[self.pad] * (longest - len(p)) + p for p in prompts], device=self.device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        config = self._config.__class__(**{**self._config.to_diff_dict(), "max_new_tokens": sampling.max_tokens})
        kept, self.model.generation_config = self.model.generation_config, config
        try:
            choice = choice_of([request.seed for request in requests], sampling, longest)
            out = self.model.generate(input_ids=ids, attention_mask=mask, logits_processor=choice)
        finally:
            self.model.generation_config = kept
        return [self._drawn(row, sampling) for row in out[:, longest:].tolist()]

    def _drawn(self, row: list[int], sampling: Sampling) -> Drawn:
        end = next((i + 1 for i, token in enumerate(row) if token in self.ends), None)
        finish = "length" if end is None else "stop"
        row = row[: sampling.max_tokens if end is None else end]
        return Drawn(self.tokenizer.decode(row, skip_special_tokens=True), len(row), finish)


def choice_of(seeds: Sequence[int], sampling: Sampling, start: int) -> list[Any]:
    """The logits processors of a batch, which make the most probable token the drawn one."""
    from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    steps: list[Any] = []
    if sampling.temperature > 0:
        if sampling.temperature != 1:
            steps.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_k != -1:
            steps.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            steps.append(TopPLogitsWarper(sampling.top_p))
        steps.append(SeededChoice(seeds, start))
    return LogitsProcessorList(steps)


class SeededChoice:
    """Adds Gumbel noise to the logits, so that the greatest of them is a draw from their softmax.

    The noise is a function of (seed of the row, place of the token, token): no state, no generator, and the same on
    every device. Adding noise rather than inverting a cumulative sum keeps a draw from changing with the last bits:
    another token wins only if it was within rounding of the winner.
    """

    def __init__(self, seeds: Sequence[int], start: int) -> None:
        self.seeds, self.start = seeds, start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        place = input_ids.shape[1] - self.start
        states = [_mixed((seed << 32) + place) for seed in self.seeds]
        return scores.float() - exponential(states, scores.shape[-1], scores.device).log()


_MASK = 2**64 - 1
# SplitMix64 (Steele, Lea and Flood, 2014, doi 10.1145/2660193.2660195): a counter times the golden ratio, then two
# rounds of shift and multiply.
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mixed(number: int) -> int:
    z = (number + 1) * _GOLDEN & _MASK
    z = (z ^ z >> 30) * _FIRST & _MASK
    z = (z ^ z >> 27) * _SECOND & _MASK
    return z ^ z >> 31


def exponential(states: Sequence[int], count: int, device: torch.device | str = "cpu") -> Tensor:
    """`count` independent standard exponentials for each of the 64-bit states, float32 [states, count]: the outputs of
    SplitMix64 started there."""

    def signed(value: int) -> int:
        return value - 2**64 if value >= 2**63 else value

    steps = torch.arange(1, count + 1, device=device) * signed(_GOLDEN)
    out = torch.empty(len(states), count, device=device)
    for row, state in zip(out, states, strict=True):  # one by one: a row stays in the processor's cache
        z = steps + signed(state)
        for shift, factor in ((30, _FIRST), (27, _SECOND)):
            z ^= (z >> shift) & (2 ** (64 - shift) - 1)  # the shift of torch copies the sign
            z *= signed(factor)
        z ^= (z >> 31) & (2**33 - 1)
        row.copy_((z >> 11) & (2**53 - 1))
    # 53 bits, and half of the last: never 0, and as fine near 0, where rare tokens win, as float32 is. One
    # in 2^25 rounds to 1 in float32, and its exponential would be infinite: a token of probability 1 would lose too.
    return out.add_(0.5).mul_(2.0**-53).clamp_(max=1 - 2.0**-24).neg_().log1p_().neg_()


# ----------------------------------------------------------------------------------------------------------------- vLLM
class VLLM:
    """vLLM's engine in this process, with a seed for each request. It batches as it likes."""

    def __init__(self, model: str, *, say: Callable[[str], None] = lambda text: None, **options: Any) -> None:
        from vllm import LLM  # pyright: ignore[reportMissingImports]
        from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

        self.path, self.say = model, say
        if current_platform.is_cpu():
            # vLLM 0.28 takes back a seeded generator's last step when a prompt is cut in two, which one of the CPU
            # cannot do ("CPU Generator does not use offset").
            options = {"enable_chunked_prefill": False, **options}
        try:
            self.engine = LLM(model=model, **options)
        except Exception as error:
            raise _cannot_load(model, error) from error
        self.dtype = str(self.engine.llm_engine.model_config.dtype).removeprefix("torch.")

    def draw(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[tuple[Request, Drawn]]:
        from vllm import SamplingParams, TokensPrompt  # pyright: ignore[reportMissingImports]

        engine, tokenizer = self.engine.llm_engine, self.engine.get_tokenizer()
        context = engine.model_config.max_model_len
        if sampling.max_tokens >= context:
            self.say(f"the model's context is {context} tokens: answers are cut there, before --max-tokens")
        waiting, running = iter(requests), {}
        try:
            while True:
                # Enough to fill every batch, so that answers are written as they come and the rest is not in memory.
                for request in islice(waiting, 1024 - len(running)):
                    ids = token_ids(tokenizer, request.content, self.path)
                    params = SamplingParams(
                        temperature=sampling.temperature,
                        top_p=sampling.top_p,
                        top_k=sampling.top_k,
                        max_tokens=sampling.max_tokens,
                        seed=request.seed,
                    )
                    if len(ids) >= context:
                        raise UserError(
                            f"prompt {request.key} has {len(ids)} tokens, the model's context only {context}"
                        )
                    name = str(request.key)
                    engine.add_request(name, TokensPrompt(prompt_token_ids=ids), params)
                    running[name] = request
                if not running:
                    return
                for result in engine.step():
                    if result.finished:
                        (answer,) = result.outputs
                        finish = "length" if answer.finish_reason == "length" else "stop"
                        request = running.pop(result.request_id)
                        yield request, Drawn(answer.text, len(answer.token_ids), finish)
        finally:
            if running:
                engine.abort_request(list(running))


# -------------------------------------------------------------------------------------------------------------- servers
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
