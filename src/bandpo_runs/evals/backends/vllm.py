"""Generate samples with vLLM on this machine."""

from collections.abc import Sequence
from typing import Any

from bandpo.errors import UserError

from ..samples import Sampling
from .base import Completion, Keep, Request, cannot_load, token_ids

# Requests at once: some full batches of vLLM, and no more samples than that are lost by a kill.
CHUNK = 1024


class VLLM:
    """Generate with vLLM in this process, with a seed for each request. It batches as it likes."""

    def __init__(self, model: str, **options: Any) -> None:
        from vllm import LLM  # pyright: ignore[reportMissingImports]

        self.path = model
        try:
            self.engine = LLM(model=model, **options)
        except Exception as error:
            raise cannot_load(model, error) from error
        self.dtype = str(self.engine.llm_engine.model_config.dtype).removeprefix("torch.")
        self.tokenizer: Any = self.engine.get_tokenizer()

    def generate(self, requests: Sequence[Request], sampling: Sampling, keep: Keep) -> None:
        from vllm import SamplingParams, TokensPrompt  # pyright: ignore[reportMissingImports]

        context = self.engine.llm_engine.model_config.max_model_len
        for first in range(0, len(requests), CHUNK):
            chunk = requests[first : first + CHUNK]
            prompts = [token_ids(self.tokenizer, request.content, self.path) for request in chunk]
            longest = max(map(len, prompts))
            if longest >= context:
                raise UserError(f"a prompt has {longest} tokens, the model's context only {context}")
            results = self.engine.generate(
                [TokensPrompt(prompt_token_ids=ids) for ids in prompts],
                [SamplingParams(**{**vars(sampling), "n": 1, "seed": request.seed}) for request in chunk],
                use_tqdm=False,
            )
            for request, result in zip(chunk, results, strict=True):
                (answer,) = result.outputs
                finish = "length" if answer.finish_reason == "length" else "stop"
                keep(request, Completion(answer.text, len(answer.token_ids), finish))
