"""Generate samples with transformers on this machine, in batches."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from bandpo.numerics import not_finite

from ...config.trust import check_attention
from ..samples import Sampling
from .base import Completion, Keep, Request, cannot_load, token_ids


class Transformers:
    """Generate in batches. The noise depends on the sample's seed alone (`SeededChoice`).

    `model` is a folder or a hub id, `batch` how many samples are drawn at once.
    """

    def __init__(self, model: str, batch: int | None = None) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.path = model
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.batch = batch or (64 if self.device == "cuda" else 32)
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
        ends = loaded.generation_config.eos_token_id
        if ends is None:
            ends = self.tokenizer.eos_token_id
        self.ends: list[int] = [ends] if isinstance(ends, int) else ends or []
        # In place of the model's own, whose top_p and penalties would be taken where nothing else is set.
        self.model.generation_config = GenerationConfig(
            eos_token_id=self.ends or None,
            pad_token_id=0,
            do_sample=False,  # which the mask hides
        )

    @torch.no_grad()
    def generate(self, requests: Sequence[Request], sampling: Sampling, keep: Keep) -> None:
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
                text = self.tokenizer.decode(row[:end], skip_special_tokens=True)
                keep(request, Completion(text, len(row[:end]), "length" if end is None else "stop"))


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
