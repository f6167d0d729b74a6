"""Share a budget of divergence among the tokens of a response, where it buys most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from bandpo.band.divergences import divergence
from bandpo.bounds import Bounds
from bandpo.numerics import LOG_P_MIN, expm1, output_dtype, working_copy
from bandpo.trust_regions.base import Context, Region, check_number
from bandpo.trust_regions.rules import Band

from .batch import moves


@dataclass(frozen=True)
class Budget(Region):
    """The tokens of a response may spend delta each on average, and what some do not use goes where it buys most.

    Of all ratios r~ between 1 and r, the current one, with sum g_f(p, r~) <= delta T over a response of T tokens, those
    with the largest sum |r~ - 1| are r clipped to the interval |dg_f/dr| <= m, with one m for the response
    (README.md has the proof). These intervals are the bounds, m the largest that keeps within the budget; a
    response that is within it anyway is not limited at all. A likely token pays more for the same ratio, so it is
    clipped first. By TV, whose slope is p on either side, the rarest tokens are free, the likeliest pinned to r = 1,
    and tokens of the one p where the budget ends move by the same share of |r - 1|.

    The rule does not ask for signs. Needs extra["logps"]; a token's bounds depend on all tokens of its response, and on
    no other response. A response of one token is clipped as by `Band(divergence, delta)`. The budget is never exceeded
    in float64. By KL in float32 a few steps of Newton's method find m: now and then they stop early and leave a part of
    the budget unused (by chi2 only for responses that were made for it), and a token whose probability rounds to 1 may
    cost more than its bounds can tell.

    Args:
        divergence: kl, chi2 or tv.
        delta: the budget per token, positive and finite.
    """

    kind: ClassVar[str] = "budget"
    required: ClassVar[tuple[str, ...]] = ("logps",)
    divergence: str = "kl"
    delta: float = 0.05

    def __post_init__(self) -> None:
        if self.divergence not in _COST:
            raise ValueError(f"divergence of Budget must be one of {list(_COST)}, got {self.divergence!r}")
        check_number(self, "delta", "(0, inf)")

    @torch.no_grad()
    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """The intervals of equal slope."""
        dtype, device = output_dtype(old_logps), old_logps.device
        log_low, log_high = self._ends(*moves(old_logps, context, self), dtype)
        # Below e^-300 what was computed is that of e^-300: the same new probability.
        beyond = working_copy(old_logps.detach()).clamp(max=LOG_P_MIN) - LOG_P_MIN
        return Bounds((log_low + beyond).to(device, dtype), (log_high - beyond).to(device, dtype))

    @property
    def label(self) -> str:
        """The divergence and the radius."""
        return f"Budget-{divergence(self.divergence).title} {self.delta}"

    def branches(self) -> dict[str, Region]:
        """The band of a single token."""
        return {"a response of one token": Band(self.divergence, self.delta)}

    def _ends(self, log_p: Tensor, log_ratio: Tensor, mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        p, move = log_p.exp(), expm1(log_ratio).abs()
        side = torch.where(log_ratio < 0, -1.0, 1.0).to(p)
        cost = _COST[self.divergence](move, p, -expm1(log_p), side)
        budget = (log_p.new_zeros(()) + self.delta) * mask.sum(-1, keepdim=True)
        if self.divergence == "tv":
            log_low, log_high = _by_rarity(log_p, move, cost, budget)
        elif self.divergence == "chi2":
            log_low, log_high = _by_squares(p, -expm1(log_p), cost, budget)
        else:
            log_low, log_high = _by_slope(log_p, side, move, cost, budget, dtype)
        within = cost.sum(-1, keepdim=True) <= budget
        log_low, log_high = torch.where(within, -torch.inf, log_low), torch.where(within, torch.inf, log_high)
        return log_low.clamp(max=0), torch.minimum(log_high.clamp(min=0), -log_p)


# ---- what a move costs, of w = |r - 1| and its side, 1 or -1


def _kl_cost(w: Tensor, p: Tensor, rest: Tensor, side: Tensor) -> Tensor:
    """g(p, r) = -p log r - (1 - p) log c. A pi that rounds to 1, where it is infinite, counts as a little less."""
    moved, least = side * w, torch.finfo(p.dtype).eps - 1
    others = (moved * p / rest).neg_().clamp_(min=least).log1p_()
    return torch.addcmul(rest * others, p, moved.clamp_(min=least).log1p_()).neg_()


def _chi2_cost(w: Tensor, p: Tensor, rest: Tensor, side: Tensor) -> Tensor:
    return p * w * (w / rest)


def _tv_cost(w: Tensor, p: Tensor, rest: Tensor, side: Tensor) -> Tensor:
    return p * w


_COST = {"kl": _kl_cost, "chi2": _chi2_cost, "tv": _tv_cost}


# ---- chi2: a parabola for each token


def _by_squares(p: Tensor, rest: Tensor, cost: Tensor, budget: Tensor) -> tuple[Tensor, Tensor]:
    """|dg/dr| = 2 p w / (1 - p) is m at w = m reach, reach = (1 - p) / (2 p), where m^2 reach / 2 has been spent.

    What all tokens spend is concave in m^2, of straight pieces. Newton's steps from below rise to the m^2 that spends
    the budget, one piece or more at a time, and not beyond it.
    """
    reach = 0.5 * rest / p
    square = torch.zeros_like(budget)
    for _ in range(14):
        limited = 0.5 * reach * square < cost
        left = budget - torch.where(limited, 0.0, cost).sum(-1, keepdim=True)
        # By a rounding there may be less than nothing left, and no token to limit: -inf.
        square = torch.maximum(square, left / torch.where(limited, 0.5 * reach, 0.0).sum(-1, keepdim=True))
    w = square.sqrt() * reach
    return torch.log1p(-w.clamp(max=1)), torch.log1p(w)


# ---- KL


class _KL:
    """|dg/dr| = p w / (r (1 - r p)), on one side."""

    def __init__(self, p: Tensor, rest: Tensor, side: Tensor | float) -> None:
        self.p, self.lean, self.four = p, side * (p - rest), 4 * p * rest
        self.twice, self.half = 2 * rest, 0.5 / p

    def reach(self, multiplier: Tensor) -> tuple[Tensor, Tensor]:
        """w where the slope is m = 1 / multiplier, at most the simplex's; and dg / d log m there.

        It is the root of p w^2 + b w - (1 - p) = 0 with b = p / m +- (2 p - 1), without cancellation.
        """
        b = torch.addcmul(self.lean, multiplier, self.p)
        root = torch.addcmul(self.four, b, b).sqrt_()
        wide = root + b.abs()
        w = torch.where(b > 0, self.twice / wide, self.half * wide)
        return w, (w * self.p).div_(root)

    @staticmethod
    def lowest(multiplier: Tensor, p: Tensor) -> Tensor:
        """1 - w below, without cancellation."""
        k = multiplier * p
        return 2 * k / (k + 1 + torch.sqrt((k + 1) ** 2 - 4 * k * p))


# log m at most: 1 - pi of a token of that slope is below what float64 can add to 1.
_STEEPEST = 37.0


def _by_slope(
    log_p: Tensor,
    side: Tensor,
    move: Tensor,
    cost: Tensor,
    budget: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The two ends of |dg/dr| <= m for the m that spends the budget."""
    p, rest = log_p.exp(), -expm1(log_p)
    multiplier = torch.exp(-_log_slope(p, rest, side, move, cost, budget, dtype))
    up, down = (_KL(p, rest, sign).reach(multiplier)[0] for sign in (1.0, -1.0))
    w = torch.where(side < 0, down, up)
    limited = w < move
    spent = (_kl_cost(w, p, rest, side) * limited).sum(-1, keepdim=True)
    # Where the rounding of m has spent too much: moves shorter by a factor cost less by at least that factor.
    share = ((budget - (cost * ~limited).sum(-1, keepdim=True)) / spent).clamp(0, 1)
    share = torch.where(spent > 0, share, 1.0)  # over the budget by a rounding, with nothing that could be shorter
    low = 1 - share + share * _KL.lowest(multiplier, p)
    return torch.where(down < 0.5, torch.log1p(-share * down), torch.log(low)), torch.log1p(share * up)


def _log_slope(
    p: Tensor,
    rest: Tensor,
    side: Tensor,
    move: Tensor,
    cost: Tensor,
    budget: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """log m, (B, 1): Newton's steps on the logarithm of what is spent, bisection where they leave the bracket or are
    slow. What float32 is too coarse for is left to the caller."""
    # Spent is at most m times the sum of all |r - 1|: g is convex, and 0 at r = 1.
    low = torch.log(budget / move.sum(-1, keepdim=True)).clamp(max=_STEEPEST)
    # p and 1 - p, which are at least e^-300, at least as large as float32 can be.
    positive = (x.clamp(min=torch.finfo(dtype).tiny) for x in (p, rest))
    p, rest, side, move, cost, budget, low = (x.to(dtype) for x in (*positive, side, move, cost, budget, low))
    high, at = torch.full_like(low, _STEEPEST), _KL(p, rest, side)
    x = 0.5 * (low + low.clamp(min=2.0))
    best, closest, last = low, torch.full_like(x, torch.inf), torch.full_like(x, torch.inf)
    for step in range(20 if dtype == torch.float64 else 12):
        w, rise = at.reach(torch.exp(-x))
        spent = torch.minimum(_kl_cost(w, p, rest, side), cost).sum(-1, keepdim=True)
        y = torch.log(spent / budget)
        newton = x - y * spent / (rise * (w < move)).sum(-1, keepdim=True)
        off = torch.where(y > 1e-4, torch.inf, y.abs())  # the caller can take back a little, not much
        best, closest = torch.where(off < closest, x, best), torch.minimum(off, closest)
        low, high = torch.where(y <= 0, x, low), torch.where(y > 0, x, high)
        usable = (newton >= low) & (newton <= high)
        if step % 3:
            usable = usable & (y.abs() < 0.5 * last)
        x, last = torch.where(usable, newton, 0.5 * (low + high)), y.abs()
    return best.to(torch.float64)


# ---- total variation: a line on either side, so that tokens are filled in the order of p


def _by_rarity(log_p: Tensor, move: Tensor, cost: Tensor, budget: Tensor) -> tuple[Tensor, Tensor]:
    """No limit below the p where the budget ends, r = 1 above it; at it what is left, by the same share for each."""
    rising, order = log_p.sort(-1)
    spent = cost.gather(-1, order).cumsum(-1)
    beyond = torch.where(spent > budget, rising, torch.inf)
    end = pad(beyond, (0, 1), value=torch.inf).amin(-1, keepdim=True)  # there may be no token at all
    free, last = log_p < end, log_p == end
    before, there = ((cost * where).sum(-1, keepdim=True) for where in (free, last))
    width = ((budget - before) / there).clamp(0, 1) * move * last
    log_low = torch.where(free, -torch.inf, torch.log1p(-width.clamp(max=1)))
    return log_low, torch.where(free, torch.inf, torch.log1p(width))
