"""Draw samples with vLLM on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from bandpo.errors import UserError

from ..samples import Sampling
from .base import Drawn, Request, cannot_load, token_ids


class VLLM:
    """Draw with vLLM's engine in this process, with a seed for each request. It batches as it likes."""

    def __init__(self, model: str, *, say: Callable[[str], None] = lambda text: None, **options: Any) -> None:
        from vllm import LLM  # pyright: ignore[reportMissingImports]

        self.path, self.say = model, say
        try:
            self.engine = LLM(model=model, **options)
        except Exception as error:
            raise cannot_load(model, error) from error
        self.dtype = str(self.engine.llm_engine.model_config.dtype).removeprefix("torch.")
        self.tokenizer: Any = self.engine.get_tokenizer()

    def draw(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[tuple[Request, Drawn]]:
        from vllm import SamplingParams, TokensPrompt  # pyright: ignore[reportMissingImports]

        engine = self.engine.llm_engine
        context = engine.model_config.max_model_len
        if sampling.max_tokens >= context:
            self.say(f"the model's context is {context} tokens: answers are cut there, before --max-tokens")
        waiting, running = iter(requests), {}
        try:
            while True:
                # Enough to fill every batch, so that answers are written as they come and the rest is not in memory.
                for request in islice(waiting, 1024 - len(running)):
                    ids = token_ids(self.tokenizer, request.content, self.path)
                    if len(ids) >= context:
                        raise UserError(
                            f"prompt {request.key} has {len(ids)} tokens, the model's context only {context}"
                        )
                    engine.add_request(
                        str(request.key),
                        TokensPrompt(prompt_token_ids=ids),
                        SamplingParams(**{**vars(sampling), "n": 1, "seed": request.seed}),  # its own names
                    )
                    running[str(request.key)] = request
                if not running:
                    return
                for result in engine.step():
                    if result.finished:
                        (answer,) = result.outputs
                        finish = "length" if answer.finish_reason == "length" else "stop"
                        yield running.pop(result.request_id), Drawn(answer.text, len(answer.token_ids), finish)
        finally:
            if running:
                engine.abort_request(list(running))
