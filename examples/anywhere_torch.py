"""BandPO in one function of PyTorch. Copy it.

Apache-2.0; please cite Li et al., BandPO, ICML 2026, arXiv 2603.04918.
"""

import math
from decimal import Decimal

import torch


def band_loss(logps, old_logps, advantages, mask, divergence="kl", delta=0.05):
    """Return the mean over tokens of -min(r A, clip(r) A), and the bounds of log r to which it clips r = pi / pi_old.

    The bounds are the smallest and the largest r among all policies within `delta` of the old one, by KL(old || new),
    total variation ("tv") or "chi2". `mask` is bool; `advantages` broadcast against it.
    """
    with torch.no_grad():
        log_p = old_logps.double().clamp(-69.0, -1e-30)  # neither p nor 1 - p is 0
        p, rest = log_p.exp(), -torch.expm1(log_p)
        if divergence == "kl":  # the farthest policies tilt the token's odds by e^t: log(1 + p (e^t - 1)) - p t = delta
            mu = torch.minimum(p, rest)  # the rarer side of the coin: token or not
            t = torch.stack([(delta - mu.log()) / (1 - mu), (torch.log1p(-mu) - delta) / mu])  # beyond both roots
            for _ in range(16):  # Newton comes down a convex curve
                x = mu * torch.expm1(t)
                t = t + (delta - (torch.log1p(x) - mu * t)) * (1 + x) / (x * (1 - mu))
            log_c = -torch.log1p(mu * torch.expm1(t))  # of the other side
            log_r = t + log_c
            low, high = torch.where(p < rest, log_r[1], log_c[0]), torch.where(p < rest, log_r[0], log_c[1])
        elif divergence in ("tv", "chi2"):  # r = 1 - s and 1 + s, within 0 and 1 / p
            s = delta / p if divergence == "tv" else (delta * rest / p).sqrt()
            point = Decimal(delta) if divergence == "tv" else 1 / (1 + 1 / Decimal(delta))  # r_low is 0 up to this p
            head = math.log(point)
            left = -torch.expm1(head - log_p) - float(point.ln() - Decimal(head)) * (head - log_p).exp()
            r_low = left.clamp(min=0) * (1 if divergence == "tv" else (1 + delta) / (1 + s))
            low, high = r_low.log(), torch.minimum(torch.log1p(s), -log_p)
        else:
            raise ValueError(f"divergence must be 'kl', 'tv' or 'chi2', got {divergence!r}")
        low, high = low.to(logps.dtype), high.to(logps.dtype)
    log_r = torch.where(mask, logps - old_logps, 0)
    r, clipped = log_r.exp(), torch.clamp(log_r, low, high).exp()
    token = torch.minimum(r * advantages, clipped * advantages)
    return -torch.where(mask, token, 0).sum() / mask.sum(), low, high
