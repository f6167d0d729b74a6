"""The KL penalty to a reference policy, estimated from sampled tokens."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from .numerics import expm1, output_dtype

KLPenalty = Literal["k1", "k2", "k3", "abs", "kl", "mse", "low_var_kl"]
_VERL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
_MAX_KL_RATIO = 20.0
# What -inf counts as: -inf minus -inf is 0 then, not NaN.
LOWEST = torch.finfo(torch.float32).min


def kl_penalty(logps: Tensor, ref_logps: Tensor, kind: KLPenalty = "k3") -> Tensor:
    """Per-token estimate of the divergence between the policy and the reference, from sampled tokens (Schulman, 2020).

    With d = log pi_ref - log pi: k1 (verl: kl) = -d, k2 (mse) = d^2 / 2, k3 (low_var_kl) = e^d - d - 1, abs = |d|.

    Which direction? The paper writes KL(pi || pi_ref) in eq:token_objective and KL(pi_ref || pi) in
    eq:bandpo_token_loss. If the tokens were sampled from pi itself (the first step of a round), then in expectation
    - the *values* of k1 and k3 are KL(pi || pi_ref) exactly, k2 to second order in d;
    - the *gradients* are those of: nothing (k1), KL(pi || pi_ref) (k2), KL(pi_ref || pi) (k3), each exactly.
    Later in the round the samples are from pi_old and all of this holds to first order in the step. abs is no
    divergence's estimate.

    d is cut to +-20, as in verl. Same shapes for both; computed in at least float32; the gradient flows to `logps`.
    """
    if kind not in get_args(KLPenalty):
        raise ValueError(f"kl_penalty must be one of {list(get_args(KLPenalty))}, got {kind!r}")
    logps, ref_logps = (x.to(output_dtype(x)).clamp(min=LOWEST) for x in (logps, ref_logps))
    d = (ref_logps - logps).clamp(-_MAX_KL_RATIO, _MAX_KL_RATIO)
    match _VERL_NAMES.get(kind, kind):
        case "k1":
            return -d
        case "k2":
            return 0.5 * d * d
        case "k3":
            return expm1(d) - d
        case _:
            return d.abs()
