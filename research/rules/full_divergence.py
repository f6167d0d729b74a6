"""The divergence of two policies over all tokens that might have stood there, or over the likely ones and the rest.

What a rule knows of one token is a lower bound of it: by the data processing inequality merging tokens costs nothing,
and the two coins of a sampled token (`divergence_at`) are the coarsest merger. The tokens x vocabulary of both policies
are never held: they are made, or read, for a few tokens at a time.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bandpo.band.divergences import Divergence
from bandpo.band.divergences import divergence as lookup
from bandpo.numerics import LOG_P_MIN, log1mexp, output_dtype, working_copy


@torch.no_grad()
def full_divergence(
    states: Tensor,
    old_states: Tensor,
    divergence: str | Divergence = "kl",
    *,
    weight: Tensor | None = None,
    old_weight: Tensor | None = None,
    chunk: int = 64,
) -> Tensor:
    """D_f(pi || pi_old) = sum_y pi_old(y) f(pi(y) / pi_old(y)) over the vocabulary, for each token.

    For a rule that asks for `divergences`, such as `Exact`. It is at least `divergence_at` of the token that was drawn,
    which is what a band bounds, and `top_k_divergence` is between the two.
    Computed in float64 and detached. Tokens that neither policy allows (logits of -inf) add nothing; below e^-300 the
    old probability counts as that.

    Args:
        states: logits (..., V); or, with `weight`, the last hidden states (..., H) before each token, see
            `token_logps`. Log-probabilities are logits too.
        old_states: the same of the old policy.
        divergence: a registered name or a `Divergence`.
        weight: (V, H), the output matrix; None if the states are logits.
        old_weight: that of the old policy; None if it is the same.
        chunk: tokens at a time. The peak is about eight float64 tensors of (chunk, V).

    Returns:
        The divergence at each token, of the shape of the states without their last dimension, in at least float32.

    Of three words the one that was drawn kept its probability, and the other two changed places:

    >>> import torch, bandpo
    >>> from research.rules.full_divergence import full_divergence
    >>> new, old = torch.tensor([0.5, 0.1, 0.4]).log(), torch.tensor([0.5, 0.4, 0.1]).log()
    >>> one_token = bandpo.band.divergence_at(new[0] - old[0], old[0], "tv")
    >>> print(f"{one_token:.1f} {full_divergence(new, old, 'tv'):.1f}")
    0.0 0.3
    """
    old_weight = weight if old_weight is None else old_weight
    kind = lookup(divergence)

    def of_part(new: Tensor, old: Tensor) -> Tensor:
        return _divergence(_log_probs(new, weight), _log_probs(old, old_weight), kind)

    return _by_parts(of_part, [states, old_states], chunk)


@torch.no_grad()
def top_k_divergence(
    states: Tensor,
    tokens: Tensor,
    old_logps: Tensor,
    divergence: str | Divergence = "kl",
    *,
    weight: Tensor | None = None,
    chunk: int = 64,
) -> Tensor:
    """D_f(pi || pi_old) over k tokens and the rest of the vocabulary as one more token, at each token.

    A sampler can hand over its k likeliest tokens at each place (DPPO, arXiv 2602.04879, by total variation). With the
    token that was drawn among them it is at least `divergence_at` of that one, and at most `full_divergence`. What the
    old policy gives the rest is 1 minus the sum of the k, so known to the rounding of `old_logps` only: where the k are
    nearly all, a divergence that divides by it, such as chi2, is not to be had from float32.

    Args:
        states: logits (..., V) of the current policy; or, with `weight`, its hidden states (..., H).
        tokens: (..., k), integers in [0, V); one that is named twice counts once, so that the token that was drawn may
            be appended to the likeliest.
        old_logps: (..., k), log pi_old of these tokens.
        divergence: a registered name or a `Divergence`.
        weight: (V, H), the output matrix; None if the states are logits.
        chunk: tokens at a time.

    Returns:
        The divergence at each token, of the shape of the states without their last dimension, in at least float32.
    """
    kind = lookup(divergence)

    def of_part(rows: Tensor, some: Tensor, old: Tensor) -> Tensor:
        all_of_q, log_p = _log_probs(rows, weight), working_copy(old)
        again = (some[..., None] == some[..., None, :]).tril(-1).any(-1)
        rest = all_of_q.scatter(-1, some, -torch.inf).logsumexp(-1, keepdim=True)
        log_p, log_q = (torch.where(again, -torch.inf, x) for x in (log_p, all_of_q.gather(-1, some)))
        old_rest = log1mexp(log_p.logsumexp(-1, keepdim=True).clamp(max=0))
        is_all = (~again).sum(-1, keepdim=True) == all_of_q.shape[-1]  # else rounding would leave the old policy a rest
        old_rest = torch.where(is_all, -torch.inf, old_rest)
        return _divergence(torch.cat([log_q, rest], -1), torch.cat([log_p, old_rest], -1), kind)

    return _by_parts(of_part, [states, tokens, old_logps], chunk)


def _by_parts(of_part: Callable[..., Tensor], tensors: list[Tensor], chunk: int) -> Tensor:
    """What `of_part` makes of the tensors' rows, some at a time."""
    parts = zip(*(x.reshape(-1, x.shape[-1]).split(chunk) for x in tensors), strict=True)
    return torch.cat([of_part(*part) for part in parts]).to(output_dtype(tensors[0])).view(tensors[0].shape[:-1])


def _log_probs(rows: Tensor, weight: Tensor | None) -> Tensor:
    logits = rows if weight is None else rows @ weight.T
    return working_copy(logits).log_softmax(-1)


def _divergence(log_q: Tensor, log_p: Tensor, kind: Divergence) -> Tensor:
    """sum p f(q / p) over the last dimension; p = 0 is the limit, and 0 where q is 0 too."""
    held = log_p.clamp(min=LOG_P_MIN)
    log_q = torch.where(log_p < LOG_P_MIN, log_q.clamp(min=LOG_P_MIN), log_q)
    return (held.exp() * kind.generator(log_q - held)).sum(-1)
