"""The KL penalty to a reference policy, estimated from sampled tokens."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from ..numerics import LOWEST, expm1, output_dtype

KLPenalty = Literal["k1", "k2", "k3", "abs", "kl", "mse", "low_var_kl"]
# e^20 = 5e8 still sums in float32, and so do squares of 1e6.
_MOST_OF_EXP, _MOST = 20.0, 1e6
_VERL_MOST_OF_K3 = 10.0


def kl_penalty(logps: Tensor, ref_logps: Tensor, kind: KLPenalty = "k3") -> Tensor:
    """Estimate the KL penalty to a reference per token, from samples (Schulman, 2020).

    With d = log pi_ref - log pi:

    | kind | value | |
    |---|---|---|
    | k1, kl | -d | verl's `kl` |
    | k2, mse | d^2 / 2 | verl's `mse` |
    | abs | abs(d) | verl's `abs` |
    | k3 | e^d - 1 - d, d clamped to +-20 | |
    | low_var_kl | the same, at most 10 | verl's `low_var_kl`, and what verl calls `k3` too |

    What is clamped has no gradient. So `low_var_kl` no longer pulls a token back whose probability fell below 0.073 of
    the reference's (d > 2.61), where its value reaches 10; `k3` does up to d = 20. In the others d counts as at most
    1e6, so that a probability of 0 has a finite penalty.

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
        case "k1" | "kl":
            return -d
        case "k2" | "mse":
            return 0.5 * d * d
        case "abs":
            return d.abs()
        case "k3" | "low_var_kl":
            d = d.clamp(-_MOST_OF_EXP, _MOST_OF_EXP)
            k3 = expm1(d) - d
            return k3.clamp(max=_VERL_MOST_OF_K3) if kind == "low_var_kl" else k3
        case _:
            raise ValueError(f"kl_penalty must be one of {list(get_args(KLPenalty))}, got {kind!r}")
