"""Samples from transformers on this machine, by `generate` in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from bandpo.errors import UserError
from bandpo.numerics import not_finite

from ...config.trust import check_attention
from ...data.questions import Content
from ..samples import Sampling
from .base import Drawn, Request, cannot_load, opens_thinking, token_ids


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
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.path = model if isinstance(model, str) else "the model"
        if isinstance(model, str):
            device = "cuda" if torch.cuda.is_available() else "cpu"
            dtype = torch.float32 if device == "cpu" else "auto"  # half precision is slower there
            try:
                check_attention(AutoConfig.from_pretrained(model, trust_remote_code=False))
                tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
                loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, trust_remote_code=False)
                model = loaded.to(device)
            except Exception as error:  # a damaged folder fails in many ways
                raise cannot_load(self.path, error) from error
        if names := not_finite(model.named_parameters()):
            raise UserError(
                f"{self.path} has weights that are not finite ({len(names)}, first {names[0]}): a training broke, and "
                "a score would mean nothing"
            )
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

    def opens_thinking(self, content: Content) -> bool:
        return opens_thinking(content, self.tokenizer)

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
    """Return the logits processors of a batch, which make the drawn token the most probable."""
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
    """Return `count` independent standard exponentials for each 64-bit state.

    They are float32 [states, count]: the outputs of
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
