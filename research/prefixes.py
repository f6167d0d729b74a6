"""The lab's model as plain operations on a tree of prefixes.

The responses of a batch share most of their beginnings: the prompt, the same guess, the same working. The state of a
causal transformer at a token depends on the prefix that ends there alone, so each prefix that occurs is computed once,
whichever responses it begins. It is the same function as transformers' model, whose names the weights keep, and has the
same gradient.

Several models are computed side by side, each on the responses of its own run: the model is so small that most of the
time goes to starting operations, which they share.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bandpo_runs.toy import END, LENGTH, MAX_COMPLETION, PAD, SYMBOLS

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


def load_weights(folders: Sequence[Path]) -> Weights:
    """The weights of some warm starts, one for each run, to be trained: (runs, ...) under transformers' names."""
    from safetensors.torch import load_file

    return stack_weights([load_file(folder / "model.safetensors") for folder in folders])


def stack_weights(models: Sequence[Weights]) -> Weights:
    """Those of several models as leaves with the runs as their first axis."""
    return {name: torch.stack([model[name] for model in models]).requires_grad_() for name in models[0]}


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
    unique, inverse = torch.unique(codes[read], return_inverse=True)
    nodes = torch.zeros_like(tokens)
    nodes[read] = inverse
    example = torch.empty_like(unique)  # any response that begins so
    example[inverse] = torch.arange(tokens.numel()).view_as(tokens)[read]
    row, depth = example // length, example % length
    width = int(depth.max()) + 1 if len(depth) else 1  # a run of which nothing is left
    seen = torch.arange(width) <= depth[:, None]
    return Prefixes(tokens.flatten()[example], depth, nodes[row, :width], seen, nodes[:, _PROMPT - 1 :])


def side_by_side(trees: Sequence[Prefixes]) -> Prefixes:
    """The trees of some runs as one, for `log_probs`: each run has as many prefixes as the one that has most, and the
    indices of a run count on from those of the run before."""
    count, width = (max(tree.ancestors.shape[i] for tree in trees) for i in (0, 1))

    def padded(x: Tensor) -> Tensor:
        return F.pad(x, (0, width - x.shape[1], 0, count - len(x)) if x.dim() == 2 else (0, count - len(x)))

    tokens, depth, seen = (torch.cat([padded(getattr(x, name)) for x in trees]) for name in ("tokens", "depth", "seen"))
    seen[:, 0] = True  # what is padding sees something, and nobody reads it
    ancestors = torch.cat([padded(tree.ancestors) + i * count for i, tree in enumerate(trees)])
    return Prefixes(tokens, depth, ancestors, seen, torch.cat([tree.at + i * count for i, tree in enumerate(trees)]))


def log_probs(weights: Weights, tree: Prefixes) -> Tensor:
    """Log-probabilities of the token that follows each prefix, (N, vocabulary), by the weights of its own run."""
    runs, vocabulary, hidden = weights["model.embed_tokens.weight"].shape
    count, width = tree.ancestors.shape
    rotation = _rotation(tree.depth, hidden // _HEADS)
    unseen = torch.where(tree.seen, 0.0, -torch.inf)[..., None]
    flat = tree.ancestors.flatten()

    def normed(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (hidden,), None, _NORM_EPS) * weights[f"{name}.weight"][:, None]

    def linear(x: Tensor, name: str) -> Tensor:
        weight, bias = weights[f"{name}.weight"].mT, weights.get(f"{name}.bias")
        return x @ weight if bias is None else torch.baddbmm(bias[:, None], x, weight)

    of_run = tree.tokens.view(runs, -1) + vocabulary * torch.arange(runs)[:, None]
    x = F.embedding(of_run, weights["model.embed_tokens.weight"].flatten(0, 1))
    x = torch.where((tree.tokens == PAD).view(runs, -1, 1), x.detach(), x)  # whose embedding is not trained
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
        x = x + linear(mixed.view(runs, -1, hidden), f"{name}.self_attn.o_proj")
        h = normed(x, f"{name}.post_attention_layernorm")
        h = F.silu(linear(h, f"{name}.mlp.gate_proj")) * linear(h, f"{name}.mlp.up_proj")
        x = x + linear(h, f"{name}.mlp.down_proj")
        layer += 1
    return linear(normed(x, "model.norm"), "lm_head").flatten(0, 1).log_softmax(-1)


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
def sample(weights: Weights, prompts: Sequence[Tensor], rngs: Sequence[torch.Generator]) -> list[Completions]:
    """A completion of each prompt (B, 5) of each run, at temperature 1, ended by END or after `MAX_COMPLETION` tokens;
    each run draws from its own generator."""
    out, alive = [], []
    for mine in prompts:
        shape = (len(mine), MAX_COMPLETION)
        mask = torch.zeros(shape, dtype=torch.bool)
        out.append(Completions(torch.full(shape, PAD), mask, torch.zeros(shape), torch.zeros(shape)))
        alive.append(torch.arange(len(mine)))
    for i in range(MAX_COMPLETION):
        trees = []
        for mine, rows, run in zip(prompts, alive, out, strict=True):
            run.mask[rows, i] = True
            trees.append(prefixes(mine[rows], run.tokens[rows, : i + 1], run.mask[rows, : i + 1]))
        tree = side_by_side(trees)
        here = log_probs(weights, tree)[tree.at[:, i]]
        of_run = here.split([len(rows) for rows in alive])
        for j, (run, rows, choices, rng) in enumerate(zip(out, alive, of_run, rngs, strict=True)):
            if len(rows):
                drawn = torch.multinomial(choices.exp(), 1, generator=rng)
                run.tokens[rows, i] = drawn[:, 0]
                run.logps[rows, i] = choices.gather(1, drawn)[:, 0]
                run.entropies[rows, i] = -(choices.exp() * choices).sum(1)
                alive[j] = rows[drawn[:, 0] != END]
        if not any(map(len, alive)):
            break
    return out
