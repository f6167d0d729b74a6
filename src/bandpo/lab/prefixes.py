"""The lab's model as plain operations on a tree of prefixes.

The responses of a batch share most of their beginnings: the prompt, the same guess, the same working. The state of a
causal transformer at a token depends on the prefix that ends there alone, so each prefix that occurs is computed once,
whichever responses it begins, and there is no padding. It is the same function as transformers' model, whose names the
weights keep, and has the same gradient.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .task import END, LENGTH, MAX_COMPLETION, PAD, SYMBOLS

# What `fresh_model` leaves at Qwen2's defaults, and its number of heads; a test holds both models together.
_HEADS, _NORM_EPS, _ROPE_BASE = 4, 1e-6, 10_000.0
_PROMPT = LENGTH + 1  # with the `=`

Weights = dict[str, Tensor]


class Prefixes(NamedTuple):
    """The distinct prefixes of some responses, N of them, and where each token of a response is predicted.

    Attributes:
        tokens: the last token of each, (N,).
        depth: how many tokens are before that one, (N,).
        ancestors: the prefixes of each, itself included, by depth, (N, L).
        seen: which of these there are, (N, L).
        at: the prefix before each token of the completions, (B, T); 0 where there is none.
    """

    tokens: Tensor
    depth: Tensor
    ancestors: Tensor
    seen: Tensor
    at: Tensor


def load_weights(folder: Path) -> Weights:
    """The weights of a warm start, to be trained."""
    from safetensors.torch import load_file

    return {name: weight.requires_grad_() for name, weight in load_file(folder / "model.safetensors").items()}


def prefixes(prompts: Tensor, completions: Tensor, mask: Tensor) -> Prefixes:
    """The tree of what precedes each token of the completions.

    Args:
        prompts: (B, 5).
        completions: (B, T), T >= 1; what is in the last column is not read.
        mask: (B, T), False behind the end of a completion.
    """
    tokens = torch.cat([prompts, completions[:, :-1]], 1)
    # A token is read where another one follows it.
    read = torch.cat([mask.new_ones(len(prompts), _PROMPT), mask[:, 1:]], 1)
    length = tokens.shape[1]
    # Each prefix as one number: digits from 1, so that lengths differ too. 21 ** 10 is far below 2 ** 63.
    code, codes = torch.zeros_like(tokens[:, 0]), torch.empty_like(tokens)
    for i in range(length):
        code = code * (len(SYMBOLS) + 1) + tokens[:, i] + 1
        codes[:, i] = code
    kept, inverse = torch.unique(codes[read], return_inverse=True)
    nodes = torch.zeros_like(tokens)
    nodes[read] = inverse
    example = torch.empty_like(kept)  # any response that begins so
    example[inverse] = torch.arange(tokens.numel()).view_as(tokens)[read]
    row, depth = example // length, example % length
    seen = torch.arange(length) <= depth[:, None]
    return Prefixes(tokens.flatten()[example], depth, nodes[row], seen, nodes[:, _PROMPT - 1 :])


def log_probs(weights: Weights, tree: Prefixes) -> Tensor:
    """Log-probabilities of the token that follows each prefix, (N, vocabulary)."""
    count, width = tree.ancestors.shape
    hidden = weights["model.norm.weight"].numel()
    rotation = _rotation(tree.depth, hidden // _HEADS)
    unseen = torch.where(tree.seen, 0.0, -torch.inf)[..., None]
    flat = tree.ancestors.flatten()

    def normed(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (hidden,), weights[f"{name}.weight"], _NORM_EPS)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    x = F.embedding(tree.tokens, weights["model.embed_tokens.weight"], PAD)
    layer = 0
    while f"model.layers.{layer}.input_layernorm.weight" in weights:
        name = f"model.layers.{layer}"
        h = normed(x, f"{name}.input_layernorm")
        query, key, value = (linear(h, f"{name}.self_attn.{part}_proj").view(count, _HEADS, -1) for part in "qkv")
        query, key = (_rotated(y, *rotation) for y in (query, key))
        keys, values = (y.flatten(1).index_select(0, flat).view(count, width, _HEADS, -1) for y in (key, value))
        # Products and sums: einsum makes thousands of tiny matrix products of them, and takes twice as long.
        scores = (query[:, None] * keys).sum(-1) / (hidden / _HEADS) ** 0.5
        mixed = ((scores + unseen).softmax(1)[..., None] * values).sum(1)
        x = x + linear(mixed.flatten(1), f"{name}.self_attn.o_proj")
        h = normed(x, f"{name}.post_attention_layernorm")
        h = F.silu(linear(h, f"{name}.mlp.gate_proj")) * linear(h, f"{name}.mlp.up_proj")
        x = x + linear(h, f"{name}.mlp.down_proj")
        layer += 1
    return linear(normed(x, "model.norm"), "lm_head").log_softmax(-1)


def _rotation(depth: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of rotary positions, (N, 1, size)."""
    angles = depth[:, None] / _ROPE_BASE ** (torch.arange(0, size, 2) / size)
    angles = torch.cat([angles, angles], -1)[:, None]
    return angles.cos(), angles.sin()


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class Completions(NamedTuple):
    """Sampled completions, all (B, T): tokens (PAD behind the end), mask, log-probabilities, and the entropies of the
    distributions that they were drawn from."""

    tokens: Tensor
    mask: Tensor
    logps: Tensor
    entropies: Tensor


@torch.no_grad()
def sample(weights: Weights, prompts: Tensor, rng: torch.Generator) -> Completions:
    """A completion of each prompt (B, 5), at temperature 1, ended by END or after `MAX_COMPLETION` tokens."""
    shape = (len(prompts), MAX_COMPLETION)
    tokens, mask = torch.full(shape, PAD), torch.zeros(shape, dtype=torch.bool)
    logps, entropies = torch.zeros(shape), torch.zeros(shape)
    alive = torch.arange(len(prompts))
    for i in range(MAX_COMPLETION):
        mask[alive, i] = True
        tree = prefixes(prompts[alive], tokens[alive, : i + 1], mask[alive, : i + 1])
        choices = log_probs(weights, tree)
        here = choices[tree.at[:, i]]
        drawn = torch.multinomial(here.exp(), 1, generator=rng)
        tokens[alive, i] = drawn[:, 0]
        logps[alive, i] = here.gather(1, drawn)[:, 0]
        entropies[alive, i] = -(here.exp() * here).sum(1)
        alive = alive[drawn[:, 0] != END]
        if not len(alive):
            break
    return Completions(tokens, mask, logps, entropies)
