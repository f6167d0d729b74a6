"""Sample and score answers on a CPU as TRL does, without computing anything twice.

A prompt is read once for all its answers, what all prompts begin with once for all prompts, and answers that are the
same so far once for all of them. Old log-probabilities are the sampler's, which has the same weights. An answer without
an advantage has no gradient, so it is not read again.
"""

import inspect
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from trl.trainer.grpo_trainer import GRPOTrainer

from bandpo.integrations.trl import BandPOTrainer
from bandpo.integrations.trl_settings import NEUTRAL

_CALLED_WITH = ("self", "prompt_ids", "images", "multimodal_fields", "num_generations")
_DRAWN = ("drawn_logps", "drawn_entropies")  # among TRL's outputs of a generation


def why_not(args: Any, model: Any) -> str:
    """Say why `SharedPrompts` would not train as TRL does; "" if it would."""
    changed = [name for name in NEUTRAL if getattr(args, name, None) not in (*NEUTRAL[name], None)]
    settings = {
        "generation_kwargs is set": bool(args.generation_kwargs),
        f"{', '.join(changed)} changes the sampling": bool(changed),
        "beta adds a penalty": args.beta != 0,
        "it computes in half precision": args.bf16 or args.fp16,
        "activation_checkpointing reads answers again": getattr(args, "activation_checkpointing", False)
        or getattr(args, "gradient_checkpointing", False),
        "vLLM samples": args.use_vllm,
        "an entropy term or mask needs entropies of all answers": getattr(args, "entropy_coef", 0) != 0
        or getattr(args, "use_adaptive_entropy", False)
        or getattr(args, "top_entropy_quantile", 1.0) < 1,
        "pad_to_multiple_of or mask_truncated_completions lays answers out anew": bool(
            getattr(args, "pad_to_multiple_of", None) or args.mask_truncated_completions
        ),
        "experts are balanced by a loss of their own": getattr(
            model.config, "output_router_logits", False
        ),
        "several processes train": args.world_size > 1,
        "this release of TRL samples in another way": tuple(
            inspect.signature(GRPOTrainer._generate_single_turn).parameters
        )[:5]
        != _CALLED_WITH,
        "its layers are not all plain attention": set(
            getattr(model.config, "layer_types", None) or ["full_attention"]
        )
        != {"full_attention"},
    }
    reason = next((reason for reason, holds in settings.items() if holds), None)
    otherwise = "its layers and its head, called one by one, do not give its logits"
    return reason or ("" if _same_logits(model) else otherwise)


@torch.no_grad()
def _same_logits(model: Any) -> bool:
    """Compare the model's own logits with ours, on two short texts that begin alike."""
    ids = (
        torch.tensor([[1, 2, 3, 4], [1, 2, 4, 3]], device=model.device)
        % model.config.get_text_config().vocab_size
    )
    try:
        ours = model.get_output_embeddings()(_hidden(model, ids, 3))
    except Exception:  # whatever an architecture of another kind raises
        return False
    theirs = model(ids).logits[:, 2:]
    return bool((ours - theirs).abs().max() < 1e-3 * theirs.abs().max())


class _Shared(GRPOTrainer):
    """Replace TRL's sampling and its pass for log-probabilities."""

    _loss_inputs: dict[str, Any] | None  # of BandPOTrainer, while it computes a loss
    _drawn: tuple[Tensor, Tensor]  # log-probabilities and entropies of the last answers

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, *others, **named):
        """Return an answer to each prompt."""
        longest = cast(int, self.max_completion_length)
        answers, *drawn = sample(
            self._plain_model, prompt_ids, self.eos_token_ids, longest, self.temperature
        )
        self._drawn = pad_sequence(drawn[0], batch_first=True), pad_sequence(drawn[1], batch_first=True)
        return answers, None

    def _generate_and_score_completions(self, inputs):
        """Send the sampler's numbers along with the answers, which TRL shuffles."""
        return super()._generate_and_score_completions(inputs) | dict(
            zip(_DRAWN, self._drawn, strict=True)
        )

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, *others, **named
    ):
        """Return log-probabilities and entropies. Those without a gradient are old."""
        if not torch.is_grad_enabled():  # of the answers that were just sampled
            return *self._drawn, None
        assert self._loss_inputs is not None
        logps, entropies = (self._loss_inputs[name][:, :logits_to_keep] for name in _DRAWN)
        moves = self._loss_inputs["advantages"] != 0
        moves[0] |= ~moves.any()  # a loss must have a graph
        size = input_ids.shape[1] - logits_to_keep
        answers, lengths = input_ids[:, size:], attention_mask[:, size:].sum(1)
        self._metrics["train"]["with_advantage"].append(float(lengths[moves].sum() / lengths.sum()))
        model, prompts = self._plain_model, attention_mask[:, :size].sum(1)
        for length in prompts[moves].unique().tolist():
            rows = (moves & (prompts == length)).nonzero()[:, 0]
            longest = int(lengths[rows].max())
            hidden = _hidden(model, input_ids[rows, size - length : size + longest - 1], length)
            row, column = (torch.arange(longest, device=rows.device) < lengths[rows, None]).nonzero(
                as_tuple=True
            )
            every = _log_softmax(model, hidden[row, column], self.temperature)
            place = (rows[row], column)
            logps = logps.index_put(place, every.gather(-1, answers[place][:, None])[:, 0])
            entropies = entropies.index_put(place, _entropy(every.detach()))
        return logps, entropies, None

    @property
    def _plain_model(self) -> Any:
        """Return the model with its own layers; those of LoRA are in them."""
        return getattr(self.model, "get_base_model", lambda: self.model)()


class SharedPrompts(BandPOTrainer, _Shared):
    """Train as `BandPOTrainer` does, to rounding, in less time on a CPU.

    Use it where `why_not` has no reason against it. Tokens of answers without an advantage count as not clipped;
    `with_advantage` is the share of the tokens that have one.
    """


def _log_softmax(model: Any, hidden: Tensor, temperature: float) -> Tensor:
    return (model.get_output_embeddings()(hidden).float() / temperature).log_softmax(-1)


def _entropy(logps: Tensor) -> Tensor:
    return -(logps.exp() * logps).nansum(-1)


def _hidden(model: Any, ids: Tensor, prompt: int) -> Tensor:
    """Return the hidden states from a prompt's last token on. Prompts have this length."""
    cache, last, of = _prefill(model, ids[:, :prompt])
    if ids.shape[1] == prompt:
        return last[of, None]
    answers = model.get_decoder()(ids[:, prompt:], past_key_values=_select(cache, of)).last_hidden_state
    return torch.cat((last[of, None], answers), 1)


def _prefill(model: Any, prompts: Tensor) -> tuple[DynamicCache, Tensor, Tensor]:
    """Read each distinct prompt once.

    Returns its cache, its last hidden state, and which of them each prompt is.
    """
    distinct, of = prompts.unique(dim=0, return_inverse=True)
    common = min(int((distinct == distinct[0]).all(0).cumprod(0).sum()), distinct.shape[1] - 1)
    cache = DynamicCache()
    if common:
        model.get_decoder()(distinct[:1, :common], past_key_values=cache)
        cache = _select(cache, of.new_zeros(len(distinct)))
    return (
        cache,
        model.get_decoder()(distinct[:, common:], past_key_values=cache).last_hidden_state[:, -1],
        of,
    )


def _select(cache: DynamicCache, rows: Tensor) -> DynamicCache:
    """Return a cache of these rows."""
    new = DynamicCache()
    layers: list[Any] = cache.layers
    for i, layer in enumerate(layers):
        new.update(layer.keys[rows], layer.values[rows], i)
    return new


@torch.no_grad()
def sample(
    model: Any,
    prompts: list[list[int]],
    ends: list[int],
    longest: int,
    temperature: float = 1.0,
) -> tuple[list[list[int]], list[Tensor], list[Tensor]]:
    """Sample an answer to each prompt.

    Returns:
        The tokens of each answer, at most `longest`, the last of `ends` included; their log-probabilities; and the
        entropies of the distributions that they were drawn from.
    """
    answers: list[list[int]] = [[] for _ in prompts]
    numbers: list[list[tuple[float, float]]] = [[] for _ in prompts]
    lengths = [len(ids) for ids in prompts]
    for length in sorted({*lengths}):
        rows = [row for row, each in enumerate(lengths) if each == length]
        ids = torch.tensor([prompts[row] for row in rows], device=model.device)
        for at, token, logp, entropy in _drawn(model, ids, ends, longest, temperature):
            answers[rows[at]].append(token)
            numbers[rows[at]].append((logp, entropy))
    pairs = [torch.tensor(each, device=model.device) for each in numbers]
    return answers, [pair[:, 0] for pair in pairs], [pair[:, 1] for pair in pairs]


def _drawn(
    model: Any,
    prompts: Tensor,
    ends: list[int],
    longest: int,
    temperature: float,
) -> Iterator[tuple[int, int, float, float]]:
    """Yield each drawn token as (prompt's number, token, log-probability, entropy)."""
    cache, hidden, of = _prefill(model, prompts)
    running = torch.arange(len(prompts), device=prompts.device)
    for _ in range(longest):
        every = _log_softmax(model, hidden, temperature)
        sums = every.exp().double().cumsum(-1)[of]  # torch.multinomial takes six times as long
        drawn = torch.rand(len(running), 1, dtype=sums.dtype, device=sums.device) * sums[:, -1:]
        tokens = torch.searchsorted(sums, drawn, right=True)[:, 0]
        columns = running, tokens, every[of, tokens], _entropy(every)[of]
        yield from zip(*(column.tolist() for column in columns), strict=True)
        goes = (~torch.isin(tokens, torch.tensor(ends, device=tokens.device))).nonzero()[:, 0]
        if len(goes) == 0:
            return
        running = running[goes]
        (rows, read), of = torch.stack((of[goes], tokens[goes])).unique(dim=1, return_inverse=True)
        cache = _select(cache, rows)
        hidden = model.get_decoder()(read[:, None], past_key_values=cache).last_hidden_state[:, -1]
