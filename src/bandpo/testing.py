"""Checks for a user's divergences, trust regions and objectives; run them in a test.

    bandpo.testing.check_divergence(Divergence("mine", f, log_bounds=...))
    bandpo.testing.check_trust_region(MyRegion(0.1))
    bandpo.testing.check_objective(Objective(MyRegion(0.1), apply="mask"))

They raise `AssertionError` with the first point at which something does not hold, and return nothing otherwise.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from .band.divergences import Divergence
from .band.operator import band_bounds, complement, divergence_at, log_bounds
from .bounds import Bounds
from .losses.nodes import objective as objective_of
from .losses.objective import Objective
from .losses.policy import policy_loss
from .losses.surrogates import by_sign, has_bounds
from .trust_regions.base import Context, Region
from .trust_regions.nodes import trust_region
from .trust_regions.rules import Clip

_RADII = (1e-3, 0.05, 1.0)


def check_divergence(divergence: Divergence) -> None:
    """Check a divergence: what it promises, what its own exact forms add, and the lemma that everything rests on.

    - f is convex with f(1) = 0 (`Divergence` itself refuses others), and `log_f` is f up to its linear part, with its
      minimum 0 at u = 1;
    - g(p, r) = g(1 - p, c): a token and all others together cost the same;
    - no policy over four tokens that gives the first one r p is closer to the old policy than the one that rescales
      the others by one factor (lem:complement_rescaling), in 2000 random draws each;
    - bounds are within the simplex, bind (g = delta) or are at its limit, and widen with the radius.

    Args:
        divergence: the one to check.

    Raises:
        AssertionError: with the property and the first point that breaks it.
    """
    _check_log_f(divergence)
    log_p = torch.tensor([1e-6, 0.01, 0.2, 0.5, 0.9, 0.999], dtype=torch.float64).log()
    shares = torch.tensor([0.1, 0.5, 0.9, 0.999], dtype=torch.float64)
    at = log_p.repeat_interleave(2 * len(shares))
    log_ratio = torch.cat([shares.log().expand(len(log_p), -1), -log_p[:, None] * shares], 1).flatten()
    cost = divergence_at(log_ratio, at, divergence)
    others = divergence_at(complement(log_ratio, at), torch.log(-torch.expm1(at)), divergence)
    _all(
        (cost - others).abs() <= 1e-6 * cost.abs() + 1e-12,
        "g(p, r) must be g(1 - p, c)",
        {"p": at.exp(), "r": log_ratio.exp(), "g(p, r)": cost, "g(1 - p, c)": others},
    )
    _check_rescaling(divergence)
    narrower: tuple[Tensor, Tensor] | None = None
    for delta in _RADII:
        found = band_bounds(log_p, divergence, delta)
        # `band_bounds` would cut what leaves the simplex, so the exact form is looked at as it is.
        log_low, log_high = log_bounds(divergence, log_p, delta)
        facts = {"p": log_p.exp(), "r_low": log_low.exp(), "r_high": log_high.exp()}
        about = f"for delta = {delta}"
        _all(log_low <= 0, f"r_low must be at most 1 {about}", facts)
        _all((log_high >= 0) & (log_high <= -log_p * (1 + 1e-12)), f"r_high must be in [1, 1/p] {about}", facts)
        for name, edge in (("r_low", log_low), ("r_high", found.log_high)):
            g, inner = (divergence_at(x, log_p, divergence) for x in (edge, edge * (1 - 1e-6)))
            # Within rounding of 0 or 1/p, where g of the edge itself may be anything.
            ends = edge <= -700 if name == "r_low" else edge >= -log_p * (1 - 1e-9)
            _all(
                (inner <= delta * (1 + 1e-6)) & (ends | ((g - delta).abs() <= 1e-6 * delta)),
                f"at {name} either g = delta or the simplex ends, {about}",
                {"p": log_p.exp(), name: edge.exp(), "g": g},
            )
        if narrower is not None:
            wider = (log_low <= narrower[0]) & (log_high >= narrower[1])
            _all(wider, f"the interval must widen with the radius, {about}", facts)
        narrower = log_low, log_high


def _check_log_f(divergence: Divergence) -> None:
    if divergence.log_f is None:
        return
    x = torch.cat([-torch.logspace(1, -2, 200, dtype=torch.float64), torch.logspace(-2, 1, 200, dtype=torch.float64)])
    got, f = divergence.log_f(x), divergence.f(torch.exp(x))
    near = torch.tensor([-1e-5, 1e-5], dtype=torch.float64)
    slope = divergence.f(1 + near).diff() / 2e-5
    normalised = f - slope * torch.expm1(x)
    tolerance = 1e-6 * normalised.abs() + 1e-8 * (1 + f.abs() + torch.exp(x))
    _all(
        (got - normalised).abs() <= tolerance,
        "log_f(log u) must be f(u) - f'(1) (u - 1)",
        {"u": torch.exp(x), "log_f": got, "f": normalised},
    )
    _all(got >= 0, "log_f must not be negative", {"u": torch.exp(x), "log_f": got})


def _check_rescaling(divergence: Divergence) -> None:
    rng = torch.Generator().manual_seed(0)
    for old in ([0.02, 0.28, 0.3, 0.4], [0.6, 0.1, 0.2, 0.1]):
        p = torch.tensor(old, dtype=torch.float64)
        for q in (0.005, 0.3, 0.9):
            shares = torch.rand(2000, 3, generator=rng, dtype=torch.float64).log().neg()  # uniform over the simplex
            shares = shares / shares.sum(-1, keepdim=True) * (1 - q)
            new = torch.cat([torch.full((2000, 1), q, dtype=torch.float64), shares], 1)
            total = (p * divergence.generator(torch.log(new / p))).sum(-1)
            log_p = p[:1].log()
            least = divergence_at(math.log(q) - log_p, log_p, divergence)
            _all(
                total >= least * (1 - 1e-9) - 1e-12,
                f"no policy with pi = {q} may be closer to {old} than the one that rescales the others",
                {"divergence": total, "g": least.expand_as(total)},
            )


def check_trust_region(region: Region, context: Context | None = None) -> None:
    """Check a trust region: its bounds for every log-probability, and that `contains` agrees with them.

    - bounds have the shape of `old_logps` and at least float32, no gradient, log_low <= 0 <= log_high (up to rounding),
      for log p from -inf to 1e-6 in every float dtype;
    - NaN gives NaN in both bounds;
    - a token's bounds do not depend on the other tokens of the batch;
    - `contains` is True inside and False outside, also close to a bound;
    - equal rules are equal, have equal hashes, and survive the way to their config node and back.

    Args:
        region: the one to check.
        context: what it needs beside log p, for a batch of shape (1, 64); tokens are then not taken out of their batch.

    Raises:
        AssertionError: with the property and the first point that breaks it.
    """
    edges = [-math.inf, -1e5, -745.0, -300.0, -80.0, -1e-7, -1e-20, 0.0, 1e-7, 1e-6]
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        log_p = torch.cat([torch.tensor(edges), torch.linspace(-12, -1e-3, 54)])[None].to(dtype).requires_grad_()
        bounds = region.bounds(log_p, context)
        for name, bound in {"log_low": bounds.log_low, "log_high": bounds.log_high}.items():
            assert bound.shape == log_p.shape, f"{name} must be {tuple(log_p.shape)}, got {tuple(bound.shape)}"
            assert torch.promote_types(bound.dtype, torch.float32) == bound.dtype, f"{name} is {bound.dtype}"
            assert not bound.requires_grad, f"{name} must be detached"
        facts = {"log p": log_p, "log_low": bounds.log_low, "log_high": bounds.log_high}
        _all((bounds.log_low <= 1e-6) & (bounds.log_high >= -1e-6), f"log_low <= 0 <= log_high in {dtype}", facts)
    log_p = torch.linspace(-12, -1e-3, 64, dtype=torch.float64)[None]
    bounds = region.bounds(log_p, context)
    facts = {"log p": log_p, "log_low": bounds.log_low, "log_high": bounds.log_high}
    nan = torch.arange(64)[None] == 7
    given = torch.where(nan, torch.nan, log_p)
    broken = region.bounds(given, context)
    for name, bound in {"log_low": broken.log_low, "log_high": broken.log_high}.items():
        _all(bound.isnan() == nan, f"{name} must be NaN exactly where log p is", {"log p": given, name: bound})
    if context is None:
        alone = torch.cat([region.bounds(log_p[:, i : i + 1]).log_high for i in range(64)], 1)
        _all(
            (alone == bounds.log_high) | ((alone - bounds.log_high).abs() <= 1e-12 * alone.abs()),
            "a token's bounds must not depend on the other tokens",
            {**facts, "alone": alone},
        )
    for name, bound in {"log_low": bounds.log_low, "log_high": bounds.log_high}.items():
        for share, inside in ((1 - 1e-6, True), (0.5, True), (1 + 1e-6, False), (2.0, False)):
            moved = bound * share
            told = region.contains(moved, log_p, context)
            clear = torch.isfinite(bound) & (bound.abs() > 1e-9)
            _all((told == inside) | ~clear, f"contains must be {inside} at {share:g} {name}", {**facts, "moved": moved})
    if region.kind:
        again = trust_region(region.to_config())
        assert again == region, f"the config node {region.to_config()} must give {region}, got {again}"
        assert hash(again) == hash(region), f"equal rules must have equal hashes: {region}"


# Where the value's derivative is the gradient; in the other applications gradients are stopped on purpose.
_DERIVED = ("clip", "mask", "mask_two_sided", "quadratic")
_WHOLE = "; of a rule that looks at the whole batch on purpose this is not asked with sees_batch=True"


def check_objective(
    objective: Objective, *, sees_batch: bool = False, compile: bool = False, **of_the_batch: Any
) -> None:
    """Check an objective, and through it the rule that it is made of, by what `policy_loss` makes of a batch.

    - value and gradient are finite for every log-probability from -inf to 0, old and new;
    - what stands in padding, NaN included, reaches neither;
    - a second call gives the bits of the first;
    - the gradient of a response alone is that in a batch, but for one factor, which is the average's;
    - two micro-batches with one `normalizer` add up to the whole, in value and gradient;
    - where tokens outside are clipped or masked, and under "quadratic" and `Sapo`, the gradient is the derivative of
      the value at fixed bounds, by central differences (but for tokens at a bound); in the other applications gradients
      are stopped on purpose;
    - the objective survives the way to its config node and back, with an equal hash;
    - with `compile`, in one compiled graph: a second call gives the bits of the first, which are the eager numbers up
      to rounding.

    Args:
        objective: the one to check.
        sees_batch: whether its rule looks at the whole batch on purpose, such as at a quantile of it: then its
            responses are not asked to be independent, nor its micro-batches to add up.
        compile: compile it too, which takes some seconds.
        of_the_batch: what the rule needs of `policy_loss` beside the four tensors, e.g. `step=0`; of a tensor 6 rows,
            for a batch of shape (6, 8).

    Raises:
        AssertionError: with the property and the first point that breaks it.
    """
    again = objective_of(objective.to_config())
    assert again == objective, f"the config node {objective.to_config()} must give {objective}, got {again}"
    assert hash(again) == hash(objective), f"equal objectives must have equal hashes: {objective}"
    rng = torch.Generator().manual_seed(0)
    old = (0.98 * torch.rand(6, 8, generator=rng, dtype=torch.float64) + 0.01).log()
    if objective.ratio in ("sequence", "sequence-mean"):  # likely responses, of which some are inside
        old = old * 0.05
    new = (old + old.abs().clamp(max=1) * torch.randn(6, 8, generator=rng, dtype=torch.float64)).clamp(max=-1e-3)
    advantages = torch.tensor([1.0, -1.0, 0.5, -2.0, 3.0, -0.3], dtype=torch.float64)
    mask = torch.arange(8) < torch.tensor([[8], [8], [5], [5], [1], [8]])

    def terms(
        new: Tensor,
        old: Tensor,
        rows: slice = slice(None),
        function: Callable[..., Any] = policy_loss,
        objective: Objective = objective,
        **more: Any,
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss and its gradient."""
        leaf = new[rows].detach().requires_grad_()
        more |= {name: x[rows] if isinstance(x, Tensor) and x.dim() else x for name, x in of_the_batch.items()}
        more |= {"ref_logps": old[rows]} if objective.beta else {}
        loss, _ = function(leaf, old[rows], advantages[rows], mask[rows], objective, **more)
        return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]

    value, gradient = terms(new, old)
    for what, first, second in zip(("value", "gradient"), (value, gradient), terms(new, old), strict=True):
        _all(first == second, f"the {what} must be the same in a second call", {what: first, "second call": second})
    plain, nan = of_the_batch, torch.tensor(torch.nan, dtype=torch.float64)
    of_the_batch = {
        name: torch.where(mask, x, nan) if isinstance(x, Tensor) and x.shape == mask.shape else x
        for name, x in plain.items()
    }
    padded = terms(torch.where(mask, new, nan), torch.where(mask, old, nan))
    of_the_batch = plain
    facts = {"gradient": gradient, "with NaN in padding": padded[1]}
    _all(padded[1] == torch.where(mask, gradient, 0.0), "padding must reach no gradient", facts)
    _all(padded[0] == value, "padding must not reach the value", {"value": value, "with NaN in padding": padded[0]})
    for row in range(0 if sees_batch else 6):
        alone, together = terms(new, old, slice(row, row + 1))[1], gradient[row : row + 1]
        sizes = alone.abs().sum(), together.abs().sum()
        _all(
            (together * sizes[0] - alone * sizes[1]).abs() <= 1e-9 * sizes[0] * sizes[1],
            f"a response's gradient must not depend on the other responses, but for one factor{_WHOLE}",
            {"alone": alone, "in the batch": together},
        )
    if not sees_batch:
        common: dict[str, Any] = {} if objective.aggregation == "none" else {"normalizer": 7.0}
        whole, one, two = (terms(new, old, rows, **common) for rows in (slice(6), slice(2), slice(2, 6)))
        for what, at_once, parts in (
            ("value", whole[0].sum(), one[0].sum() + two[0].sum()),
            ("gradient", whole[1], torch.cat([one[1], two[1]])),
        ):
            _all(
                (at_once - parts).abs() <= 1e-9 * (at_once.abs() + parts.abs()) + 1e-15,
                f"the {what} of two micro-batches with one normalizer must be that of the whole{_WHOLE}",
                {what: at_once, "of the two": parts},
            )
    if compile:
        compiled = cast(Any, torch).compile(policy_loss, fullgraph=True)
        first, second = (terms(new, old, function=compiled) for _ in range(2))
        for what, eager, one, two in zip(("value", "gradient"), (value, gradient), first, second, strict=True):
            facts = {what: one, "second call": two, "eager": eager}
            _all(one == two, f"the {what} must be the same in a second compiled call", facts)
            close = (one - eager).abs() <= 1e-9 * eager.abs().max()
            _all(close, f"the compiled {what} must be the eager one", facts)
    ends = torch.tensor([-torch.inf, -1e5, -300.0, -80.0, -1.0, -1e-6, -1e-12, 0.0], dtype=torch.float64)
    for at in ends:
        found = terms(ends.expand(6, 8).contiguous(), at.expand(6, 8).contiguous())
        _all(found[0].isfinite(), f"the value must be finite at an old log p of {at:g}", {"value": found[0]})
        facts = {"log p": ends.expand(6, 8), "gradient": found[1]}
        _all(found[1].isfinite(), f"the gradient must be finite at an old log p of {at:g}", facts)
    pair = by_sign(objective.apply, objective.dual_clip)
    if not all(each in _DERIVED or not has_bounds(each) for each in pair):
        return
    held = objective
    if objective.trust_region != Clip(1.0, math.inf):  # bounds may go by the current log-probabilities, detached
        held = dataclasses.replace(objective, trust_region=_Held(objective.trust_region))
        terms(new, old, objective=held)
    step = 1e-5
    for row, column in [(i, j) for i in range(6) for j in range(8) if mask[i, j]]:
        moved = torch.zeros_like(new)
        moved[row, column] = step
        (up, above), (down, below) = (terms(new + x, old, objective=held) for x in (moved, -moved))
        slope = (up - down).sum() / (2 * step)
        own = gradient[row, column]
        jump = (above - below).abs().max() > 1e-2 * (above.abs() + below.abs()).max()  # a bound is in between
        assert jump or (slope - own).abs() <= 1e-5 * (1 + own.abs()), (
            f"the gradient must be the derivative of the value; at p = {old[row, column].exp():.6g}, r = "
            f"{(new - old)[row, column].exp():.6g}, A = {advantages[row]:g} it is {own:.6g}, the derivative {slope:.6g}"
        )


class _Held(Region):
    """A rule whose bounds stay what they were when first asked for."""

    sees_probability: ClassVar[bool] = False  # so that it may stand wherever the rule may

    def __init__(self, region: Region) -> None:
        self.region, self.first = region, None

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        if self.first is None:
            self.first = self.region.bounds(old_logps, context)
        return self.first


def _all(holds: Tensor, what: str, facts: dict[str, Tensor]) -> None:
    if bool(holds.all()):
        return
    first = int((~holds).flatten().nonzero()[0])
    where = ", ".join(
        f"{name} = {value.detach().expand_as(holds).flatten()[first]:.6g}" for name, value in facts.items()
    )
    raise AssertionError(f"{what}; not so at {where}")
