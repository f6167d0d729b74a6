"""A rule in words, in a table and as plain data: what it allows a token, and what stops the token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..band.divergences import divergence
from ..losses.nodes import objective
from ..losses.notation import allowed, in_words, label_of_objective, short_node
from ..losses.objective import Method, Objective
from ..losses.surrogates import Apply, by_sign
from ..numerics import expm1
from ..trust_regions.base import Region, parts_of
from .gradient import gradient_of

DEFAULT_P = (0.001, 0.01, 0.08, 0.2, 0.5, 0.9, 0.99)
_PAPER_P = 0.08  # the tail token of sec:bottlenecks
Rule = Region | Objective | Method

_MEANING = {  # of the words for what stops a token
    "clip": "the fixed epsilon",
    "DCPO": "DCPO's formula",
    "divergence": "the divergence from the old policy reaches delta",
    "cap": "the cap of the ratio",
    "simplex": "the new probability reaches 0 or 1 before the rule stops it",
    "rule": "the rule itself",
}
_RATIO = {
    "token": "that of each token",
    "sequence": "that of the whole response, one action with one probability p",
    "sequence-mean": "that of the whole response, the geometric mean of its tokens' ratios",
    "mean-of-clipped": "that of each token; the loss has the geometric mean of a response's clipped ratios",
}


class Case(NamedTuple):
    """A rule that needs no more than p to have bounds."""

    label: str
    region: Region
    stops: bool  # tokens outside: their gradient is 0, not held at a bound


class _Read(NamedTuple):
    """What is explained, and the cases of its rule."""

    value: Rule
    objective: Objective
    label: str
    cases: list[Case]

    @property
    def has_p(self) -> bool:
        """Return False for a geometric mean of ratios, which is not a ratio of probabilities."""
        return self.objective.ratio != "sequence-mean"


def _read(value: Rule) -> _Read:
    found = value.objective if isinstance(value, Method) else objective(value)
    label = value.title if isinstance(value, Method) else label_of_objective(found)
    return _Read(value, found, label, _cases(found.trust_region, label, by_sign(found.apply, found.dual_clip)))


def _cases(region: Region, label: str, apply: tuple[Apply, Apply]) -> list[Case]:
    """List a rule's cases for one sign of A, at the first and last step, or by its inputs; else the rule."""
    found: list[Case] = []
    for when, part, sign in region.cases():
        of_sign = apply if sign is None else (apply[sign], apply[sign])
        found += [case._replace(label=f"{case.label} ({when})") for case in _cases(part, part.label, of_sign)]
    if found:
        return found
    try:
        region.bounds(torch.zeros(1))
    except ValueError as error:
        what = f"{region.label} needs more than p to have bounds; give the rules that it is made of ({error})"
        raise ValueError(what) from None
    return [Case(label, region, all(each in ("clip", "mask", "mask_two_sided") for each in apply))]


def explain(value: Rule, p: Sequence[float] = (), other: Rule | None = None, width: int = 100) -> str:
    """Explain which moves a rule, an objective or a method allows tokens of old probability `p`.

    The text is a table and words; with `other` also the differences. The table is at most `width` wide; words are one
    line for each paragraph.

    Raises ValueError for a rule that needs more than p to have bounds and is not made of rules that do not.
    """
    read = [_read(each) for each in ([value] if other is None else [value, other])]
    log_p = torch.tensor(p or DEFAULT_P, dtype=torch.float64).log()
    lines = [line for each in read for line in _head(each)]
    shown = [case for each in read if each.has_p for case in each.cases]
    if shown:
        lines += ["", *_table(shown, log_p, width), ""]
        lines += [_sentence(case, q) for q in p or [_PAPER_P] for case in shown]
        reasons = dict.fromkeys(reason for case in shown for pair in stops(case.region, log_p) for reason in pair)
        what = "What stops a token:" if all(case.stops for case in shown) else "What ends an interval:"
        lines += ["", what, *(f"  {reason}: {_MEANING[reason.split()[-1]]}" for reason in reasons)]
    for each in read:
        lines += [] if each.has_p else ["", *map(_of_every_p, each.cases)]
    if other is not None:
        lines += ["", *(_apart(*read) or _differences_in_words(*read))]
    return "\n".join(lines)


def explanation_data(value: Rule, p: Sequence[float] = (), other: Rule | None = None) -> dict[str, Any]:
    """Return the content of `explain` as plain data; an infinite number is None. Raises ValueError as there."""
    read = [_read(each) for each in ([value] if other is None else [value, other])]
    rules: list[dict[str, Any]] = []
    for each in read:
        cases = [case._asdict() | {"tokens": _tokens(case, p or DEFAULT_P, each.has_p)} for case in each.cases]
        node = short_node(each.objective)
        rules.append({"label": each.label, "node": node, "ratio": each.objective.ratio, "cases": cases})
        for case in cases:
            del case["region"]
    differing: list[dict[str, Any]] = []
    if other is not None and not _apart(*read):
        for case, of in zip(read[0].cases, read[1].cases, strict=True):
            parts = {
                way: [{"from": start, "to": end, "room": _ROOM[room]} for start, end, room in found]
                for way, found in differences(case, of).items()
            }
            differing.append({"rule": case.label, "against": of.label, **parts})
    return {"rules": rules, "differences": differing}


_ROOM = {1: "more", 0: "same", -1: "less"}


def _tokens(case: Case, p: Sequence[float], has_p: bool) -> list[dict[str, Any]]:
    log_p = torch.tensor(p if has_p else [1.0], dtype=torch.float64).log()
    rows: list[dict[str, Any]] = []
    for q, s, (below, above) in zip(p, log_p, stops(case.region, log_p), strict=False):
        low, high, new_low, new_high = (float(x) if math.isfinite(x) else None for x in interval(case.region, s))
        row = {"p": q, "log_r_low": low, "log_r_high": high, "new_p_low": new_low, "new_p_high": new_high}
        row |= {"stopped_below": below, "stopped_above": above}
        rows.append(row if has_p else {name: row[name] for name in ("log_r_low", "log_r_high")})
    return rows


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
    return region.stopped_by


def interval(region: Region, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the bounds of the log-ratio and of the new probability, which is at most 1 whatever the rule says."""
    bounds = region.bounds(log_p)
    return bounds.log_low, bounds.log_high, (bounds.log_low + log_p).exp(), (bounds.log_high + log_p).clamp(max=0).exp()


def _head(read: _Read) -> list[str]:
    """Name the value, in words and as a node."""
    value, found = read.value, read.objective
    doubt, node = found.trust_region.doubt(), _node(short_node(found))
    lines = ([in_words(found)] if allowed(found) else []) + ([f"  {doubt}"] if doubt else [])
    if isinstance(value, Method):
        paper = "" if value.arxiv is None else f" (arXiv {value.arxiv})"
        unchecked = f"; not checked: {value.unchecked}" if value.unchecked else ""
        lines += [f"{value.title}{paper}: {value.formula}", f"  method {value.name}: {node}"]
        lines += [f"  formula and values from: {value.source}{unchecked}"]
        lines += [f"  policy_loss also takes: {value.arguments}"] if value.arguments else []
    else:
        lines.append(f"{read.label}: {node}")
    if isinstance(value, Method) or found.changed():
        lines += [f"  r: {_RATIO[found.ratio]}", *gradient_of(found)]
    return [*lines, *dict.fromkeys(f"  {line}" for case in read.cases for line in _legend(case.region))]


def _legend(region: Region) -> list[str]:
    """Explain the names of `stops`, a line each."""
    parts = parts_of(region)
    if len(parts) == 1:
        return _legend(parts[0][1])
    kind = getattr(region, "divergence", None)
    return [f"{place}: {part.label}" for place, part in parts] or ([str(divergence(kind))] if kind else [])


def _node(node: Any) -> str:
    if isinstance(node, dict):
        return f"{{{', '.join(f'{key}: {_node(value)}' for key, value in cast('dict[str, Any]', node).items())}}}"
    return f"[{', '.join(map(_node, cast('list[Any]', node)))}]" if isinstance(node, list) else str(node)


def _table(cases: Sequence[Case], log_p: Tensor, width: int) -> list[str]:
    """Write a row for each p and rule; if that is too wide, a table for each rule."""
    rows = [["p", "", "new probability r p", "ratio r", "stopped by"]]
    for s in log_p:
        for case in cases:
            low, high, new_low, new_high = interval(case.region, s)
            ((below, above),) = stops(case.region, s[None])
            rows.append([
                _show(s.exp()) if case is cases[0] else "", case.label if len(cases) > 1 else "",
                f"{_show(new_low)} to {_show(new_high)}", f"{_show(low.exp())} to {_show(high.exp())}",
                below if below == above else f"{below} / {above}",
            ])  # fmt: skip
    shown = [column for column in zip(*rows, strict=True) if any(column)]
    widths = [max(map(len, column)) for column in shown]
    if len(cases) > 1 and sum(widths) + 2 * len(widths) - 2 > width:
        return [line for case in cases for line in (f"{case.label}:", *_table([case], log_p, width))]
    padded = [[cell.rjust(width) for cell in column] for column, width in zip(shown[:-1], widths, strict=False)]
    return ["  ".join(row) for row in zip(*padded, shown[-1], strict=True)]


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


def _of_every_p(case: Case) -> str:
    low, high, *_ = interval(case.region, torch.zeros((), dtype=torch.float64))
    return (
        f"{case.label}: the interval of r is 1 - {_show(-expm1(low))} to 1 + {_show(expm1(high))} (log r {_show(low)} "
        f"to {_show(high)}), whatever the probabilities are."
    )


def _apart(one: _Read, other: _Read) -> list[str]:
    """Say why two rules are not compared; [] if they are."""
    if one.objective.ratio != other.objective.ratio:
        ratios = f"{one.objective.ratio} and {other.objective.ratio}"
        return [f"Not compared: the ratios are of different things, {ratios}."]
    return [] if len(one.cases) == len(other.cases) else ["Not compared: one of them is several rules."]


def differences(case: Case, other: Case) -> dict[str, list[tuple[float, float, int]]]:
    """Compare the room of two rules, up and down: more (1), less (-1) or the same (0), as `stretches`."""

    def room(way: str, log_p: Tensor) -> Tensor:
        one, two = (each.region.bounds(log_p) for each in (case, other))
        if way == "up":
            gap = torch.minimum(one.log_high, -log_p) - torch.minimum(two.log_high, -log_p)
        else:
            gap = two.log_low.exp() - one.log_low.exp()
        return torch.where(gap.abs() <= 1e-12, 0, gap.sign()).int()

    return {way: stretches(partial(room, way)) for way in ("up", "down")}


def _differences_in_words(one: _Read, other: _Read) -> list[str]:
    lines: list[str] = []
    words = {1: "leaves more room", -1: "is tighter", 0: "allows the same (to 1e-12)"}
    for case, against in zip(one.cases, other.cases, strict=True):
        for direction, parts in differences(case, against).items():
            found: dict[int, list[str]] = {}
            for start, end, value in parts:
                found.setdefault(value, []).append(_where(start, end))
            said = ", ".join(f"{words[value]} {' and '.join(where)}" for value, where in found.items())
            lines.append(f"{direction.capitalize()}, against {against.label}: {case.label} {said}.")
    return lines


def stretches(state: Callable[[Tensor], Tensor]) -> list[tuple[float, float, int]]:
    """List (from, to, value) of each stretch of p in (0, 1) with a constant integer function of log p.

    Changes are looked for between e^-30 and 1 - 1e-6 in steps of 0.011 in log(p / (1 - p)), then bisected to full
    precision.
    """

    def at(x: Tensor) -> Tensor:
        return state(torch.nn.functional.logsigmoid(x))

    logit = torch.linspace(-30.0, 13.8, 4001, dtype=torch.float64)
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
