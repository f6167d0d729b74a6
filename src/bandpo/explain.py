"""Explain a rule, an objective or a method: moves, what stops them, gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from .band.divergences import divergence
from .losses.nodes import objective
from .losses.notation import allowed, in_words, label_of_objective, short_node
from .losses.objective import Method, Objective
from .losses.surrogates import Apply, Sapo, Vespo, by_sign, has_bounds
from .trust_regions.base import Region, parts_of

__all__ = ["explain"]

DEFAULT_P = (0.001, 0.01, 0.08, 0.2, 0.5, 0.9, 0.99)  # 0.08 is the tail token of sec:bottlenecks
Rule = Region | Objective | Method

_MEANING = {  # of the words for what stops a token
    "clip": "the fixed epsilon",
    "dcpo": "DCPO's formula, or its max_ratio",
    "band": "the divergence from the old policy reaches delta",
    "capped": "the cap of the ratio",
    "simplex": "the new probability reaches 0 or 1 before the rule stops it",
}
_RATIO = {
    "token": "that of each token",
    "sequence": "that of the whole response, one action with one probability p",
    "sequence-mean": "that of the whole response, the geometric mean of its tokens' ratios",
    "mean-of-clipped": "that of each token; the loss has the geometric mean of a response's clipped ratios",
}
# What `apply` does with tokens outside, on the side to which A drives them, and on the other.
_OUTSIDE = {
    "clip": ("none (value {bound} A)", "as inside"),
    "mask": ("none (value 0)", "as inside"),
    "mask_two_sided": ("none (value 0)", "none (value 0)"),
    "weight": ("{bound} A", "{bound} A"),
    "preserve": ("{kept:g} {bound} A", "as inside"),
    "decay": ("({quotient})^{kept:g} r A", "as inside"),
}


class Case(NamedTuple):
    """Hold a rule with bounds by p alone, and its label."""

    label: str
    region: Region


def explain(value: Rule, p: Sequence[float] = (), other: Rule | None = None, width: int = 100) -> str:
    """Explain the moves that a rule, an objective or a method allows tokens.

    The text is words and a table, at most `width` wide; with `other` its rows stand beside.

    Raises ValueError for a rule that needs more than p to have bounds and is not made of rules that do not.
    """
    rules = [value] if other is None else [value, other]
    found = [each.objective if isinstance(each, Method) else objective(each) for each in rules]
    labels = [_name(*each) for each in zip(rules, found, strict=True)]
    cases = [_cases(each.trust_region, label) for each, label in zip(found, labels, strict=True)]
    lines = [line for each in zip(rules, found, cases, strict=True) for line in _head(*each)]
    log_p = torch.tensor(p or DEFAULT_P, dtype=torch.float64).log()
    # A geometric mean of ratios is not a ratio of probabilities: the first line has its interval.
    shown = [case for each, own in zip(found, cases, strict=True) if each.ratio != "sequence-mean" for case in own]
    if shown:
        lines += ["", *_table(shown, log_p, width)]
        reasons = dict.fromkeys(reason for case in shown for pair in stops(case.region, log_p) for reason in pair)
        meant = {reason: _MEANING.get(reason.split()[-1], "the rule itself") for reason in reasons}
        lines += ["", "What ends an interval:", *(f"  {reason}: {meaning}" for reason, meaning in meant.items())]
    return "\n".join(lines)


def _cases(region: Region, label: str) -> list[Case]:
    """List a rule's cases by the sign of A, the step or its inputs. Without any it is the rule itself."""
    found: list[Case] = []
    for when, part in region.cases().items():
        found += [case._replace(label=f"{case.label} ({when})") for case in _cases(part, part.label)]
    if found:
        return found
    try:
        region.bounds(torch.zeros(1, 1))
    except ValueError as error:
        what = f"{region.label} needs more than p to have bounds; give the rules that it is made of ({error})"
        raise ValueError(what) from None
    return [Case(label, region)]


def _name(value: Rule, found: Objective) -> str:
    return value.title if isinstance(value, Method) else label_of_objective(found)


def _head(value: Rule, found: Objective, cases: Sequence[Case]) -> list[str]:
    """Name the value, in words and as a node."""
    doubt, node = found.trust_region.doubt(), _node(short_node(found))
    lines = ([in_words(found)] if allowed(found) else []) + ([f"  {doubt}"] if doubt else [])
    if isinstance(value, Method):
        paper = "" if value.arxiv is None else f" (arXiv {value.arxiv})"
        unchecked = f"; not checked: {value.unchecked}" if value.unchecked else ""
        lines += [f"{value.title}{paper}: {value.formula}", f"  method {value.name}: {node}"]
        lines += [f"  formula and values from: {value.source}{unchecked}"]
        lines += [f"  policy_loss also takes: {value.arguments}"] if value.arguments else []
    else:
        lines.append(f"{_name(value, found)}: {node}")
    if isinstance(value, Method) or found.changed():
        lines += [f"  r: {_RATIO[found.ratio]}", *_gradient(found)]
    return [*lines, *dict.fromkeys(f"  {line}" for case in cases for line in _legend(case.region))]


def _node(node: Any) -> str:
    if isinstance(node, dict):
        return f"{{{', '.join(f'{key}: {_node(value)}' for key, value in cast('dict[str, Any]', node).items())}}}"
    return f"[{', '.join(map(_node, cast('list[Any]', node)))}]" if isinstance(node, list) else str(node)


def _legend(region: Region) -> list[str]:
    """Explain the names of `stops`, a line each."""
    parts = parts_of(region)
    if len(parts) == 1:
        return _legend(parts[0][1])
    kind = getattr(region, "divergence", None)
    return [f"{place}: {part.label}" for place, part in parts] or ([str(divergence(kind))] if kind else [])


def _gradient(found: Objective) -> Iterator[str]:
    """Describe the gradient of a token, inside its interval and outside."""
    start, pair = "  gradient of the surrogate in log pi:", by_sign(found.apply, found.dual_clip)
    if found.ratio == "mean-of-clipped":
        mean = "G A / T inside, G the geometric mean of a response's T clipped ratios"
        yield f"{start} {mean}; none outside, where A drives r further out"
    else:
        inside = [] if all(each == "quadratic" or not has_bounds(each) for each in pair) else ["r A inside"]
        of_all = "for each of the tokens" + (" 1 / T of it" if found.ratio == "sequence-mean" else "")
        yield f"{start} {', '.join(inside if found.ratio == 'token' else [*inside, of_all])}".rstrip()
        yield from (
            f"    where A {sign} 0: {_outside(each, sign)}" for sign, each in zip((">=", "<"), pair, strict=True)
        )
    if found.dual_clip is not None:
        yield f"    where A < 0 and r > {found.dual_clip:g} (dual clip): none (value {found.dual_clip:g} A)"
    if found.positive_weight != 1:
        yield f"    where A > 0: all of it times {found.positive_weight:g} (positive_weight)"


def _outside(apply: Apply, sign: str) -> str:
    up = sign == ">="
    if isinstance(apply, Sapo):
        return f"4 s (1 - s) r A at every r, s = sigmoid({apply.tau_positive if up else apply.tau_negative:g} (r - 1))"
    if isinstance(apply, Vespo):
        k, rate = (apply.k_positive, apply.lambda_positive) if up else (apply.k_negative, apply.lambda_negative)
        return f"r^{k:g} e^({rate:g} (1 - r)) A at every r"
    if apply == "quadratic":
        side, other = ("r_high", "r_low") if up else ("r_low", "r_high")
        near = f"r A (1 - (r - 1) / ({side} - 1)) on the side of {side}, beyond it too"
        return f"{near}, and r A (1 + (r - 1) / ({other} - 1)) on the other"
    weight = f"the weight of {getattr(apply, 'label', '')}"  # of an application of one's own
    if not has_bounds(apply):
        return f"A times the slope in log r of {weight}, at every r"
    kind = apply if isinstance(apply, str) else apply.kind
    far, near = _OUTSIDE.get(kind, ("{weight}, times r A", "as inside"))
    kept = getattr(apply, "high" if up else "low", 0)
    above = (far if up else near).format(bound="r_high", quotient="r_high / r", kept=kept, weight=weight)
    below = (near if up else far).format(bound="r_low", quotient="r / r_low", kept=kept, weight=weight)
    return f"{above} above the interval, {below} below it"


def stops(region: Region, log_p: Tensor) -> list[tuple[str, str]]:
    """Name the limit of a token of each p (N,), below and above. It is the rule, a part, its cap or the simplex."""
    each_alone = log_p[:, None, None]  # (1, 1) each: a rule may read the shape
    return [(_stop(region, each, up=False), _stop(region, each, up=True)) for each in each_alone]


def _stop(region: Region, log_p: Tensor, *, up: bool) -> str:
    bounds, parts = region.bounds(log_p), parts_of(region)
    end = bounds.log_high if up else bounds.log_low
    if end >= -log_p if up else end == -torch.inf:  # whatever the rule would do
        return "simplex"
    for place, part in parts:  # the first one that ends there
        theirs = part.bounds(log_p)
        if end == (theirs.log_high if up else theirs.log_low):
            return _stop(part, log_p, up=up) if len(parts) == 1 else f"{place} {_stop(part, log_p, up=up)}"
    return region.kind


def _interval(region: Region, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the bounds of the log-ratio and of the new probability. That is at most 1, whatever the rule says."""
    bounds = region.bounds(log_p)
    low, high = bounds.log_low, bounds.log_high
    return low, high, (low + log_p).exp(), (high + log_p).clamp(max=0).exp()


def _table(cases: Sequence[Case], log_p: Tensor, width: int) -> list[str]:
    """Write a row for each p and rule. If that is too wide, write a table for each rule."""
    rows = [["p", "", "new probability r p", "ratio r", "stopped by"]]
    for s in log_p.split(1):
        for case in cases:
            low, high, new_low, new_high = _interval(case.region, s[None])
            ((below, above),) = stops(case.region, s)
            rows.append([
                _show(s.exp()) if case is cases[0] else "", case.label if len(cases) > 1 else "",
                f"{_show(new_low)} to {_show(new_high)}", f"{_show(low.exp())} to {_show(high.exp())}",
                below if below == above else f"{below} / {above}",
            ])  # fmt: skip
    shown = [column for column in zip(*rows, strict=True) if any(column)]
    widths = [max(map(len, column)) for column in shown]
    if len(cases) > 1 and sum(widths) + 2 * len(widths) - 2 > width:
        return [line for case in cases for line in _table([case], log_p, width)]
    padded = [[cell.rjust(width) for cell in column] for column, width in zip(shown[:-1], widths, strict=False)]
    title = [f"{cases[0].label}:"] if len(cases) == 1 else []
    return title + ["  ".join(row) for row in zip(*padded, shown[-1], strict=True)]


def _show(value: float | Tensor) -> str:
    value = float(value) + 0.0  # not -0
    return f"1 - {1 - value:.3g}" if 0.99995 <= value < 1 else f"{value:.4g}"
