"""A rule in words and numbers: what it allows a token, and what stops the token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from bandpo.explain.gradient import gradient_of, sides
from bandpo.trust_regions.base import Region, parts_of

from ..band.divergences import divergence
from ..losses.nodes import objective
from ..losses.notation import allowed, in_words, label_of_objective, short_node
from ..losses.objective import Method, Objective
from ..losses.surrogates import Apply
from ..numerics import expm1

DEFAULT_P = (0.001, 0.01, 0.08, 0.2, 0.5, 0.9, 0.99)
Rule = Region | Objective | Method
_PAPER_P = 0.08  # the tail token of sec:bottlenecks

# What can stop a token, and what that means.
_MEANING = {
    "clip": "the fixed epsilon",
    "DCPO": "DCPO's formula",
    "divergence": "the divergence from the old policy reaches delta",
    "cap": "the cap of the ratio",
    "simplex": "the new probability reaches 0 or 1 before the rule stops it",
    "rule": "the rule itself",
}


class Case(NamedTuple):
    """A rule that needs no more than p to have bounds."""

    label: str
    region: Region
    stops: bool  # tokens outside: their gradient is 0, not held at a bound


_RATIO = {
    "token": "that of each token",
    "sequence": "that of the whole response, one action with one probability p",
    "sequence-mean": "that of the whole response, the geometric mean of its tokens' ratios",
    "mean-of-clipped": "that of each token; the loss has the geometric mean of a response's clipped ratios",
}


def explain(value: Rule, p: Sequence[float] = (), other: Rule | None = None, width: int = 100) -> str:
    """Explain which moves a rule, an objective or a method allows tokens of old probability `p`.

    The text is a table and words; with `other` also the differences. The table is at most `width` wide; words are one
    line for each paragraph.

    Raises ValueError for a rule that needs more than p to have bounds and is not made of rules that do not.
    """
    values = [value] if other is None else [value, other]
    objectives = [objective_of(each) for each in values]
    log_p = torch.tensor(p or DEFAULT_P, dtype=torch.float64).log()
    cases = [
        cases_of(each.trust_region, label(given), sides(each)) for given, each in zip(values, objectives, strict=True)
    ]
    lines: list[str] = []
    for found, given, of in zip(objectives, values, cases, strict=True):
        doubt = found.trust_region.doubt()
        lines += [*([in_words(found)] if allowed(found) else []), *([f"  {doubt}"] if doubt else []), *_head(given, of)]
    # A geometric mean of ratios has no p.
    shown = [c for of, each in zip(cases, objectives, strict=True) if each.ratio != "sequence-mean" for c in of]
    if shown:
        lines += ["", *_table(shown, log_p, width), ""]
        lines += [_sentence(case, q) for q in p or [_PAPER_P] for case in shown]
        reasons = dict.fromkeys(reason for case in shown for pair in stops(case.region, log_p) for reason in pair)
        what = "What stops a token:" if all(case.stops for case in shown) else "What ends an interval:"
        lines += ["", what, *(f"  {reason}: {_MEANING[reason.split()[-1]]}" for reason in reasons)]
    for of, each in zip(cases, objectives, strict=True):
        if each.ratio == "sequence-mean":
            lines += ["", *map(_of_every_p, of)]
    if other is not None:
        lines += ["", *_compared(objectives, cases)]
    return "\n".join(lines)


def objective_of(value: Rule) -> Objective:
    return value.objective if isinstance(value, Method) else objective(value)


def label(value: Rule) -> str:
    return value.title if isinstance(value, Method) else label_of_objective(objective(value))


def cases_of(region: Region, label: str, apply: tuple[Apply, Apply]) -> list[Case]:
    """Return the rule's cases for one sign of A, at the first and last step, or by its inputs; else the rule."""
    parts = region.cases()
    if not parts:
        try:
            region.bounds(torch.zeros(1))
        except ValueError as error:
            raise ValueError(
                f"{region.label} needs more than p to have bounds; give the rules that it is made of ({error})"
            ) from None
        return [Case(label, region, all(each in ("clip", "mask", "mask_two_sided") for each in apply))]
    found: list[Case] = []
    for when, part, sign in parts:
        of_sign = apply if sign is None else (apply[sign], apply[sign])
        found += [case._replace(label=f"{case.label} ({when})") for case in cases_of(part, part.label, of_sign)]
    return found


def stops(region: Region, log_p: Tensor) -> list[tuple[str, str]]:
    """Name the limit of a token of each p (N,), below and above: the rule, a part of it, its cap, or the simplex."""
    return [(_stop(region, each, up=False), _stop(region, each, up=True)) for each in log_p]


def _stop(region: Region, log_p: Tensor, *, up: bool) -> str:
    bounds, parts = region.bounds(log_p), parts_of(region)
    end = bounds.log_high if up else bounds.log_low
    if end >= -log_p if up else end == -torch.inf:  # whatever the rule would do
        return "simplex"
    for place, part in parts:  # the first one that ends there
        theirs = part.bounds(log_p)
        if end == (theirs.log_high if up else theirs.log_low):
            return _stop(part, log_p, up=up) if len(parts) == 1 else f"{place} {_stop(part, log_p, up=up)}"
    return "cap" if up and bounds.capped is not None and bounds.capped else region.stopped_by


def _legend(region: Region) -> list[str]:
    """Explain the names of `stops`, a line each."""
    parts = parts_of(region)
    if len(parts) == 1:
        return _legend(parts[0][1])
    kind = getattr(region, "divergence", None)
    return [f"{place}: {part.label}" for place, part in parts] or ([str(divergence(kind))] if kind else [])


def _head(value: Rule, cases: Sequence[Case]) -> list[str]:
    """Name the value, in words and in nodes."""
    found = objective_of(value)
    parts = list(dict.fromkeys(f"  {line}" for case in cases for line in _legend(case.region)))
    node = short_node(found)
    if not isinstance(value, Method) and not found.changed():
        return [f"{label(value)}: {_node(node)}", *parts]
    if isinstance(value, Method):
        paper = "" if value.arxiv is None else f" (arXiv {value.arxiv})"
        unchecked = f"; not checked: {value.unchecked}" if value.unchecked else ""
        lines = [f"{value.title}{paper}: {value.formula}", f"  method {value.name}: {_node(node)}"]
        lines += [f"  formula and values from: {value.source}{unchecked}"]
        if value.arguments:
            lines += [f"  policy_loss is given, beside the objective: {value.arguments}"]
    else:
        lines = [f"{label(value)}: {_node(node)}"]
    outside = gradient_of(found)
    return [*lines, f"  r: {_RATIO[found.ratio]}", *outside, *parts]


def _of_every_p(case: Case) -> str:
    low, high, *_ = interval(case.region, torch.zeros((), dtype=torch.float64))
    return (
        f"{case.label}: the interval of r is 1 - {_show(-expm1(low))} to 1 + {_show(expm1(high))} (log r {_show(low)} "
        f"to {_show(high)}), whatever the probabilities are."
    )


def _compared(objectives: Sequence[Objective], cases: Sequence[Sequence[Case]]) -> list[str]:
    a, b = objectives
    if a.ratio != b.ratio:
        return [f"Not compared: the ratios are of different things, {a.ratio} and {b.ratio}."]
    if len(cases[0]) != len(cases[1]):
        return ["Not compared: one of them is several rules."]
    pairs = zip(*cases, strict=True)
    return [line for x, y in pairs for line in _differences(x, y)]


def _node(node: Any) -> str:
    if isinstance(node, dict):
        return f"{{{', '.join(f'{key}: {_node(value)}' for key, value in cast('dict[str, Any]', node).items())}}}"
    return f"[{', '.join(map(_node, cast('list[Any]', node)))}]" if isinstance(node, list) else str(node)


def _table(cases: Sequence[Case], log_p: Tensor, width: int) -> list[str]:
    """Write a row for each p and rule; if that is too wide, a table for each rule."""
    rows = [["p", "", "new probability r p", "ratio r", "stopped by"]]
    stopped = [stops(case.region, log_p) for case in cases]
    for i, s in enumerate(log_p):
        for j, case in enumerate(cases):
            low, high, new_low, new_high = interval(case.region, s)
            below, above = stopped[j][i]
            rows.append([
                _show(s.exp()) if j == 0 else "", case.label if len(cases) > 1 else "",
                f"{_show(new_low)} to {_show(new_high)}", f"{_show(low.exp())} to {_show(high.exp())}",
                below if below == above else f"{below} / {above}",
            ])  # fmt: skip
    shown = [column for column in zip(*rows, strict=True) if any(column)]
    widths = [max(map(len, column)) for column in shown]
    if len(cases) > 1 and sum(widths) + 2 * len(widths) - 2 > width:
        return [line for case in cases for line in (f"{case.label}:", *_table([case], log_p, width))]
    padded = [[cell.rjust(width) for cell in column] for column, width in zip(shown[:-1], widths, strict=False)]
    return ["  ".join(row) for row in zip(*padded, shown[-1], strict=True)]


def interval(region: Region, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the bounds of the log-ratio and of the new probability.

    The probability ends at 1 whatever the rule says.
    """
    bounds = region.bounds(log_p)
    return bounds.log_low, bounds.log_high, (bounds.log_low + log_p).exp(), (bounds.log_high + log_p).clamp(max=0).exp()


def _sentence(case: Case, p: float) -> str:
    low, high, new_low, new_high = interval(case.region, torch.tensor(p, dtype=torch.float64).log())
    if not case.stops:
        return (
            f"{case.label}: at p = {_show(p)} the interval of r is {_show(low.exp())} to {_show(high.exp())}; a token "
            "outside goes on moving, with the gradient said above."
        )
    eps_low, eps_high = -expm1(low), expm1(high)
    return (
        f"{case.label}: a token of p = {_show(p)} may fall to {_show(new_low)} (by {_show(p * eps_low)}) and rise to "
        f"{_show(new_high)} (by {_show((p * eps_high).clamp(max=1 - p))}); the epsilons at this p are {_show(eps_low)} "
        f"below and {_show(eps_high)} above."
    )


def differences(case: Case, other: Case) -> dict[str, list[tuple[float, float, int]]]:
    """Compare the room of two rules, up and down: more (1), less (-1) or the same (0), as `stretches`."""

    def up(log_p: Tensor) -> Tensor:
        a, b = (torch.minimum(each.region.bounds(log_p).log_high, -log_p) for each in (case, other))
        return _sign(a - b)

    def down(log_p: Tensor) -> Tensor:
        a, b = (each.region.bounds(log_p).log_low.exp() for each in (case, other))
        return _sign(b - a)

    return {"up": stretches(up), "down": stretches(down)}


def _differences(case: Case, other: Case) -> list[str]:
    words = {1: "leaves more room", -1: "is tighter", 0: "allows the same (to 1e-12)"}
    lines = []
    for direction, parts in differences(case, other).items():
        found: dict[int, list[str]] = {}
        for start, end, value in parts:
            found.setdefault(value, []).append(_where(start, end))
        said = ", ".join(f"{words[value]} {' and '.join(where)}" for value, where in found.items())
        lines.append(f"{direction.capitalize()}, against {other.label}: {case.label} {said}.")
    return lines


def _sign(gap: Tensor) -> Tensor:
    return torch.where(gap.abs() <= 1e-12, 0, gap.sign()).int()


def stretches(state: Callable[[Tensor], Tensor]) -> list[tuple[float, float, int]]:
    """List (from, to, value) of each stretch of p in (0, 1) with a constant function of log p.

    The function returns integers.

    Changes are looked for between e^-30 and 1 - 1e-6 in steps of 0.011 in log(p / (1 - p)), then bisected to full
    precision.
    """
    logit = torch.linspace(-30.0, 13.8, 4001, dtype=torch.float64)

    def at(x: Tensor) -> Tensor:
        return state(torch.nn.functional.logsigmoid(x))

    values = at(logit)
    changes = (values[1:] != values[:-1]).nonzero()[:, 0]
    low, high, first = logit[changes], logit[changes + 1], values[changes]
    for _ in range(60):
        middle = 0.5 * (low + high)
        same = at(middle) == first
        low, high = torch.where(same, middle, low), torch.where(same, high, middle)
    edges = [0.0, *torch.sigmoid(high).tolist(), 1.0]
    kept = [int(values[0]), *values[changes + 1].tolist()]
    return list(zip(edges[:-1], edges[1:], kept, strict=True))


def _where(start: float, end: float) -> str:
    if start == 0.0:
        return "for every p" if end == 1.0 else f"for p < {_show(end)}"
    return f"for p > {_show(start)}" if end == 1.0 else f"for {_show(start)} < p < {_show(end)}"


def _show(value: float | Tensor) -> str:
    value = float(value) + 0.0  # not -0
    return f"1 - {1 - value:.3g}" if 0.99995 <= value < 1 else f"{value:.4g}"
