"""Generate samples on this machine, with transformers or vLLM."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from bandpo.errors import UserError
from bandpo.numerics import not_finite

from ...config.trust import check_attention
from ...data.questions import Content
from ..models import cannot_load
from ..samples import Request, Sample, Sampling

# Requests of vLLM at once: some full batches, and no more samples than that are lost by a kill.
CHUNK = 1024


def token_ids(tokenizer: Any, content: Content, model: str) -> list[int]:
    """Return a prompt as tokens. Messages go through the model's chat template, text as it is (as TRL in training)."""
    if isinstance(content, str):
        ids = tokenizer(content)["input_ids"]
    elif tokenizer.chat_template is not None:
        ids = tokenizer.apply_chat_template(content, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
    else:
        raise UserError(
            f"the tokenizer of {model!r} has no chat template; --no-chat sends the messages' text as it is"
        )
    if not ids:
        raise UserError(f"the tokenizer of {model!r} makes no token of {content!r}; are its files there?")
    return list(ids)


class Transformers:
    """Generate in batches. The noise depends on the sample's seed alone (`SeededChoice`).

    `model` is a folder or a hub id.
    """

    def __init__(self, model: str) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.path = model
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.batch = 64 if self.device == "cuda" else 32
        dtype = torch.float32 if self.device == "cpu" else "auto"  # half precision is slower there
        try:
            check_attention(AutoConfig.from_pretrained(model, trust_remote_code=False))
            self.tokenizer: Any = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                model, dtype=dtype, trust_remote_code=False
            )
            broken = not_finite(loaded.named_parameters())
            if broken:
                raise ValueError(
                    f"its weights are not finite (NaN or infinite), first those of {broken[0]}"
                )
        except Exception as error:  # a damaged folder fails in many ways
            raise cannot_load(model, error) from error
        self.model = loaded.to(self.device).eval()
        self.dtype = str(loaded.dtype).removeprefix("torch.")
        tokens = loaded.generation_config.eos_token_id, self.tokenizer.eos_token_id
        ends = next((each for each in tokens if each is not None), [])
        self.ends: list[int] = [ends] if isinstance(ends, int) else ends
        # In place of the model's own, whose top_p and penalties would be taken where nothing else is set.
        self.model.generation_config = GenerationConfig(
            eos_token_id=self.ends or None,
            pad_token_id=0,
            do_sample=False,  # which the mask hides
        )

    @torch.no_grad()
    def generate(
        self, requests: Sequence[Request], sampling: Sampling, keep: Callable[[Sample], None]
    ) -> None:
        for first in range(0, len(requests), self.batch):
            batch = requests[first : first + self.batch]
            prompts = [token_ids(self.tokenizer, request.content, self.path) for request in batch]
            longest = max(map(len, prompts))
            ids = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
            mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
            rows = self.model.generate(
                input_ids=torch.tensor(ids, device=self.device),
                attention_mask=torch.tensor(mask, device=self.device),
                logits_processor=choice_of([request.seed for request in batch], sampling, self.device),
                max_new_tokens=sampling.max_tokens,
            )
            for request, row in zip(batch, rows[:, longest:].tolist(), strict=True):
                end = next((i + 1 for i, token in enumerate(row) if token in self.ends), None)
                keep(
                    Sample(
                        *request.key,
                        request.seed,
                        self.tokenizer.decode(row[:end], skip_special_tokens=True),
                        tokens=len(row[:end]),
                        finish="length" if end is None else "stop",
                    )
                )


def choice_of(seeds: Sequence[int], sampling: Sampling, device: str) -> list[Any]:
    """Return the logits processors of a batch. They make the sampled token the most probable."""
    from transformers import (
        LogitsProcessorList,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    if sampling.temperature == 0:
        return LogitsProcessorList()
    steps = LogitsProcessorList([TemperatureLogitsWarper(float(sampling.temperature))])
    if sampling.top_k != -1:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(TopPLogitsWarper(sampling.top_p))
    return LogitsProcessorList([*steps, SeededChoice(seeds, device)])


class SeededChoice:
    """Add Gumbel noise to the logits. The greatest of them is then a sample of their softmax.

    The noise of a row depends on its seed alone, and another token wins only if it was within rounding of the winner.
    """

    def __init__(self, seeds: Iterable[int], device: str = "cpu") -> None:
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # In float64: float32 would be too coarse near 0, where rare tokens win.
        noise = torch.empty_like(scores, dtype=torch.float64)
        for row, generator in zip(noise, self.generators, strict=True):
            row.exponential_(generator=generator)
        return scores.float() - noise.log().float()


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

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, keep: Callable[[Sample], None]
    ) -> None:
        from vllm import SamplingParams, TokensPrompt  # pyright: ignore[reportMissingImports]

        context = self.engine.llm_engine.model_config.max_model_len
        for first in range(0, len(requests), CHUNK):
            chunk = requests[first : first + CHUNK]
            prompts = [token_ids(self.tokenizer, request.content, self.path) for request in chunk]
            if max(map(len, prompts)) >= context:
                raise UserError(
                    f"a prompt has {max(map(len, prompts))} tokens, the model's context only {context}"
                )
            results = self.engine.generate(
                [TokensPrompt(prompt_token_ids=ids) for ids in prompts],
                [SamplingParams(**{**vars(sampling), "n": 1, "seed": request.seed}) for request in chunk],
                use_tqdm=False,
            )
            for request, result in zip(chunk, results, strict=True):
                (answer,) = result.outputs
                keep(
                    Sample(
                        *request.key,
                        request.seed,
                        answer.text,
                        tokens=len(answer.token_ids),
                        finish="length" if answer.finish_reason == "length" else "stop",
                    )
                )
