"""The KL penalty to a reference policy, estimated from sampled tokens."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from ..numerics import LOWEST, expm1, output_dtype

KLPenalty = Literal["k1", "k2", "k3", "abs"]
# e^20 = 5e8 still sums in float32, and so do squares of 1e6.
_MOST_OF_EXP, _MOST = 20.0, 1e6


def kl_penalty(logps: Tensor, ref_logps: Tensor, kind: KLPenalty = "k3") -> Tensor:
    """Estimate the KL penalty to a reference per token, from samples (Schulman, 2020).

    >>> import torch, bandpo
    >>> logps, ref_logps = torch.tensor([0.2]).log(), torch.tensor([0.4]).log()
    >>> for kind in ("k1", "k2", "k3", "abs"):
    ...     print(kind, f"{bandpo.losses.kl_penalty(logps, ref_logps, kind).item():.3f}")
    k1 -0.693
    k2 0.240
    k3 0.307
    abs 0.693

    With d = log pi_ref - log pi:

    | kind | value | verl's name |
    |---|---|---|
    | k1 | -d | kl |
    | k2 | d^2 / 2 | mse |
    | abs | abs(d) | abs |
    | k3 | e^d - 1 - d, d clamped to +-20 | low_var_kl, which is at most 10 |

    What is clamped has no gradient. In the others d counts as at most 1e6, so that a probability of 0 has a finite
    penalty.

    Of tokens sampled from pi, the mean values of k1 and k3 are KL(pi || pi_ref) (eq:token_objective), k2's to second
    order in d; the mean gradients are those of nothing (k1), KL(pi || pi_ref) (k2), KL(pi_ref || pi) (k3,
    eq:bandpo_token_loss).

    Same shapes for both; computed in at least float32; the gradient flows to `logps`.

    Raises:
        ValueError: an unknown kind.
    """
    logps, ref_logps = (x.to(output_dtype(x)).clamp(min=LOWEST) for x in (logps, ref_logps))
    d = (ref_logps - logps).clamp(-_MOST, _MOST)
    match kind:
        case "k1":
            return -d
        case "k2":
            return 0.5 * d * d
        case "abs":
            return d.abs()
        case "k3":
            d = d.clamp(-_MOST_OF_EXP, _MOST_OF_EXP)
            return expm1(d) - d
        case _:
            raise ValueError(f"kl_penalty must be one of {list(get_args(KLPenalty))}, got {kind!r}")
