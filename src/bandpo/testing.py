"""Check your divergences, trust regions and objectives in a test.

    bandpo.testing.check_divergence(Divergence("mine", f, log_bounds=...))
    bandpo.testing.check_trust_region(MyRegion(0.1))
    bandpo.testing.check_objective(Objective(MyRegion(0.1), surrogate="mask"))

They raise `AssertionError` with the first point at which something does not hold, and return nothing otherwise.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .band.divergences import Divergence
from .band.operator import band_bounds, divergence_at, log_bounds
from .bounds import Bounds
from .losses.nodes import objective as objective_of
from .losses.objective import Objective
from .losses.policy import policy_loss
from .trust_regions.base import Context, Region
from .trust_regions.nodes import trust_region


def check_divergence(divergence: Divergence) -> None:
    """Check a divergence: its generator and its exact forms.

    >>> check_divergence(Divergence("mine", lambda u: (u - 1) ** 2 * (u + 2)))

    - `log_f` is f up to its linear part, with its minimum 0 at u = 1 (`Divergence` itself refuses an f that is not
      convex with f(1) = 0);
    - bounds are within the simplex, bind (g = delta) or are at its limit, and widen with the radius.

    Raises AssertionError with the property and the first point that breaks it.
    """
    if divergence.log_f is not None:
        _check_log_f(divergence.f, divergence.log_f)
    log_p = torch.tensor([1e-6, 0.01, 0.2, 0.5, 0.9, 0.999], dtype=torch.float64).log()
    # `band_bounds` would cut what leaves the simplex, so the exact form is looked at as it is.
    intervals = {delta: log_bounds(divergence, log_p, delta) for delta in (1e-3, 0.05, 1.0)}
    for delta, (log_low, log_high) in intervals.items():
        facts = {"p": log_p.exp(), "r_low": log_low.exp(), "r_high": log_high.exp()}
        about = f"for delta = {delta}"
        _all(log_low <= 0, f"r_low must be at most 1 {about}", facts)
        _all(
            (log_high >= 0) & (log_high <= -log_p * (1 + 1e-12)),
            f"r_high must be in [1, 1/p] {about}",
            facts,
        )
        # Within rounding of 0 or 1/p, where g of the edge itself may be anything.
        top = band_bounds(log_p, divergence, delta).log_high
        for name, edge, ends in (
            ("r_low", log_low, log_low <= -700),
            ("r_high", top, top >= -log_p * (1 - 1e-9)),
        ):
            g, inner = (divergence_at(x, log_p, divergence) for x in (edge, edge * (1 - 1e-6)))
            holds = (inner <= delta * (1 + 1e-6)) & (ends | ((g - delta).abs() <= 1e-6 * delta))
            facts = {"p": log_p.exp(), name: edge.exp(), "g": g}
            _all(holds, f"at {name} either g = delta or the simplex ends, {about}", facts)
    for (low, high), (wider_low, wider_high) in itertools.pairwise(intervals.values()):
        facts = {"p": log_p.exp(), "log r_low": wider_low, "log r_high": wider_high}
        _all((wider_low <= low) & (wider_high >= high), "the interval must widen with the radius", facts)


def _check_log_f(f_of: Callable[[Tensor], Tensor], log_f: Callable[[Tensor], Tensor]) -> None:
    x = torch.cat(
        [
            -torch.logspace(1, -2, 200, dtype=torch.float64),
            torch.logspace(-2, 1, 200, dtype=torch.float64),
        ]
    )
    got, f = log_f(x), f_of(torch.exp(x))
    slope = f_of(torch.tensor([1 - 1e-5, 1 + 1e-5], dtype=torch.float64)).diff() / 2e-5
    facts = {"u": torch.exp(x), "log_f": got, "f": f - slope * torch.expm1(x)}
    near = (got - facts["f"]).abs() <= 1e-6 * facts["f"].abs() + 1e-8 * (1 + f.abs() + torch.exp(x))
    _all(near, "log_f(log u) must be f(u) - f'(1) (u - 1)", facts)
    _all(got >= 0, "log_f must not be negative", facts)
    far = torch.tensor([-torch.inf, -700, -50, 50, 700], dtype=torch.float64)
    facts = {"log u": far, "log_f": log_f(far)}
    _all(~facts["log_f"].isnan(), "log_f must be a number or inf for log u from -inf to 700", facts)


def check_trust_region(region: Region, context: Context | None = None) -> None:
    """Check a trust region: its signature and its bounds.

    >>> import bandpo
    >>> check_trust_region(bandpo.Capped(bandpo.Band("kl", 0.05), 10.0))

    - bounds have the shape of `old_logps` and at least float32, no gradient, log_low <= 0 <= log_high (up to rounding),
      for log p from -inf to 1e-6 in every float dtype;
    - NaN gives NaN in both bounds;
    - a token's bounds do not depend on the other tokens of the batch;
    - equal rules are equal, have equal hashes, and survive the way to their config node and back.

    `context` is what the rule needs beside log p, for a batch of shape (1, 64); tokens are then not taken out of their
    batch. Raises AssertionError with the property and the first point that breaks it.
    """
    signature = inspect.signature(region.bounds)
    try:
        for arguments in ((None,), (None, None)):
            signature.bind(*arguments)
    except TypeError:
        raise AssertionError(
            f"bounds must take (self, old_logps, context=None), got {signature}"
        ) from None
    edges = [-math.inf, -1e5, -745.0, -300.0, -80.0, -1e-7, -1e-20, 0.0, 1e-7, 1e-6]
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        log_p = (
            torch.cat([torch.tensor(edges), torch.linspace(-12, -1e-3, 54)])[None]
            .to(dtype)
            .requires_grad_()
        )
        both = _both(region.bounds(log_p, context))
        for name, bound in both.items():
            assert bound.shape == log_p.shape, (
                f"{name} must be {tuple(log_p.shape)}, got {tuple(bound.shape)}"
            )
            is_precise = torch.promote_types(bound.dtype, torch.float32) == bound.dtype
            assert is_precise, (
                f"{name} must be at least float32 for log-probabilities in {dtype}, got {bound.dtype}"
            )
            assert not bound.requires_grad, f"{name} must be detached"
        inside = (both["log_low"] <= 1e-6) & (both["log_high"] >= -1e-6)
        _all(inside, f"log_low <= 0 <= log_high in {dtype}", {"log p": log_p, **both})
    log_p = torch.linspace(-12, -1e-3, 64, dtype=torch.float64)[None]
    nan = torch.arange(64)[None] == 7
    broken = torch.where(nan, torch.nan, log_p)
    for name, bound in _both(region.bounds(broken, context)).items():
        _all(
            bound.isnan() == nan,
            f"{name} must be NaN exactly where log p is",
            {"log p": broken, name: bound},
        )
    both = _both(region.bounds(log_p, context))
    if context is None:
        high, alone = (
            both["log_high"],
            torch.cat([region.bounds(log_p[:, i : i + 1]).log_high for i in range(64)], 1),
        )
        same = (alone == high) | ((alone - high).abs() <= 1e-12 * alone.abs())
        _all(
            same,
            "a token's bounds must not depend on the other tokens",
            {"log p": log_p, **both, "alone": alone},
        )
    if region.kind:
        _check_node(region, trust_region(region.to_config()))


def _both(bounds: Bounds) -> dict[str, Tensor]:
    return {"log_low": bounds.log_low, "log_high": bounds.log_high}


def _check_node(thing: Region | Objective, again: Region | Objective) -> None:
    assert again == thing, f"the config node {thing.to_config()} must give {thing}, got {again}"
    assert hash(again) == hash(thing), f"equal ones must have equal hashes: {thing}"


def check_objective(
    objective: Objective, *, sees_batch: bool = False, extra: Mapping[str, Any] | None = None
) -> None:
    """Check an objective and its rule by the loss of a batch.

    >>> import bandpo
    >>> check_objective(bandpo.Objective(bandpo.Clip(0.2, 0.28), surrogate="mask"))

    - the objective survives the way to its config node and back, with an equal hash;
    - a second call gives the bits of the first;
    - what stands in padding, NaN included, reaches neither value nor gradient;
    - the gradient of a response alone is that in a batch, up to one factor, which is the average's;
    - two micro-batches with one `normalizer` add up to the whole, in value and gradient;
    - value and gradient are finite for every log-probability from -inf to 0, old and new.

    Args:
        objective: the one to check.
        sees_batch: whether its rule looks at the whole batch on purpose, such as at a quantile of it: then its
            responses are not asked to be independent, nor its micro-batches to add up.
        extra: what the rule needs beside the four tensors, such as `{"step": 0}`; of a tensor 6 rows, for a batch of
            shape (6, 8).

    Raises:
        AssertionError: with the property and the first point that breaks it.
    """
    _check_node(objective, objective_of(objective.to_config()))
    rng = torch.Generator().manual_seed(0)
    old = (0.98 * torch.rand(6, 8, generator=rng, dtype=torch.float64) + 0.01).log()
    if objective.ratio in ("sequence", "sequence-mean"):  # likely responses, of which some are inside
        old = old * 0.05
    new = (old + old.abs().clamp(max=1) * torch.randn(6, 8, generator=rng, dtype=torch.float64)).clamp(
        max=-1e-3
    )
    mask = torch.arange(8) < torch.tensor([[8], [8], [5], [5], [1], [8]])
    batch = _Batch(objective, new, old, mask, extra or {})
    _same(batch.terms(), batch.terms(), "the {} must be the same in a second call")
    _check_padding(batch)
    if not sees_batch:
        _check_parts(batch)
    ends = torch.tensor([-torch.inf, -1e5, -300.0, -80.0, -1.0, -1e-6, -1e-12, 0.0], dtype=torch.float64)
    for at in ends:
        at_the_end = replace(batch, new=ends.expand(6, 8).contiguous(), old=at.expand(6, 8).contiguous())
        for what, x in at_the_end.terms().items():
            _all(x.isfinite(), f"the {what} must be finite at an old log p of {at:g}", {what: x})


@dataclass
class _Batch:
    """Hold six responses of at most eight tokens for an objective's loss."""

    objective: Objective
    new: Tensor
    old: Tensor
    mask: Tensor
    extra: Mapping[str, Any]

    def terms(self, rows: slice = slice(None), normalizer: float | None = None) -> dict[str, Tensor]:
        """Compute the loss of some rows and its gradient."""
        leaf, old = self.new[rows].detach().requires_grad_(), self.old[rows]
        advantages = torch.tensor([1.0, -1.0, 0.5, -2.0, 3.0, -0.3], dtype=torch.float64)[rows]
        loss, _ = policy_loss(
            leaf,
            old,
            advantages,
            self.mask[rows],
            self.objective,
            ref_logps=old if self.objective.beta else None,
            normalizer=normalizer,
            metrics="all",
            extra={
                name: x[rows] if isinstance(x, Tensor) and x.dim() else x
                for name, x in self.extra.items()
            },
        )
        return {"value": loss.detach(), "gradient": torch.autograd.grad(loss.sum(), leaf)[0]}


def _check_padding(batch: _Batch) -> None:
    def spoiled(x: Tensor) -> Tensor:
        return torch.where(batch.mask, x, math.nan) if x.shape == batch.mask.shape else x

    extra = {name: spoiled(x) if isinstance(x, Tensor) else x for name, x in batch.extra.items()}
    padded = replace(batch, new=spoiled(batch.new), old=spoiled(batch.old), extra=extra).terms()
    plain = {what: torch.where(batch.mask, x, 0.0) if x.dim() else x for what, x in batch.terms().items()}
    _same(plain, padded, "what stands in padding must not reach the {}")


def _check_parts(batch: _Batch) -> None:
    on_purpose = (
        "; of a rule that looks at the whole batch on purpose this is not asked with sees_batch=True"
    )
    whole = batch.terms()["gradient"]
    for row in range(6):
        alone, together = batch.terms(slice(row, row + 1))["gradient"], whole[row : row + 1]
        scaled = {"gradient": together * alone.abs().sum()}, {"gradient": alone * together.abs().sum()}
        what = f"a response's {{}} must not depend on the other responses, up to one factor{on_purpose}"
        _same(*scaled, what, 1e-9 * (alone.abs().sum() * together.abs().sum()))
    normalizer = None if batch.objective.aggregation == "none" else 7.0
    whole, one, two = (batch.terms(rows, normalizer) for rows in (slice(6), slice(2), slice(2, 6)))
    whole["value"], summed = whole["value"].sum(), one["value"].sum() + two["value"].sum()
    parts = {"value": summed, "gradient": torch.cat([one["gradient"], two["gradient"]])}
    what = f"the {{}} of two micro-batches with one normalizer must be that of the whole{on_purpose}"
    _same(whole, parts, what, 1e-9 * whole["gradient"].abs().max())


def _same(
    one: dict[str, Tensor], other: dict[str, Tensor], what: str, tolerance: float | Tensor = 0.0
) -> None:
    for name, x in one.items():
        _all((x - other[name]).abs() <= tolerance, what.format(name), {name: x, "again": other[name]})


def _all(holds: Tensor, what: str, facts: dict[str, Tensor]) -> None:
    if bool(holds.all()):
        return
    first = int((~holds).flatten().nonzero()[0])
    where = ", ".join(
        f"{name} = {value.detach().expand_as(holds).flatten()[first]:.6g}"
        for name, value in facts.items()
    )
    raise AssertionError(f"{what}; not so at {where}")
