"""Explain a rule, an objective or a method: moves, what bounds them, gradients."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from .band.divergences import divergence
from .losses.nodes import objective
from .losses.objective import Method, Objective
from .losses.surrogates import as_pair
from .notation import describe, describe_interval, label_of_objective, short_node
from .trust_regions.base import Region, parts_of

DEFAULT_P = (0.001, 0.01, 0.08, 0.2, 0.5, 0.9, 0.99)  # 0.08 is the tail token of sec:bottlenecks
Rule = Region | Objective | Method
Case = tuple[str, Region]  # a label, and a rule with bounds by p alone

_MEANING = {  # of the words for what bounds a token
    "clip": "the fixed epsilon",
    "dcpo": "DCPO's formula, or its max_ratio",
    "band": "the divergence from the old policy reaches delta",
    "capped": "the cap of the ratio",
    "simplex": "the new probability reaches 0 or 1 first",
}
# The gradients in log pi of those without numbers.
_GRADIENTS = {
    "clip": ("r A, none above r_high (value r_high A)", "r A, none below r_low (value r_low A)"),
    "mask": ("r A, none above r_high (value 0)", "r A, none below r_low (value 0)"),
    "mask_two_sided": ("r A, none outside the interval (value 0)",) * 2,
    "weight": ("clip(r, r_low, r_high) A",) * 2,
    "quadratic": ("r A - |A| r (r - 1) / e, e the distance from 1 to the bound on the side of r",) * 2,
}
_RATIO = {
    "token": "that of each token",
    "sequence": "that of the whole response, one action with one probability p",
    "sequence-mean": "that of the whole response, the geometric mean of its tokens' ratios",
    "mean-of-clipped": "that of each token; the loss has the geometric mean of a response's clipped ratios",
}


def explain(value: Rule, p: Sequence[float] = (), other: Rule | None = None, width: int = 100) -> str:
    """Explain the moves that a rule, an objective or a method allows tokens.

    The text is words and a table, at most `width` wide; with `other` its rows stand beside.

    Raises ValueError for a rule that needs more than p to have bounds and is not made of rules that do not.
    """
    lines: list[str] = []
    shown: list[Case] = []
    for rule in [value] if other is None else [value, other]:
        its = rule.objective if isinstance(rule, Method) else objective(rule)
        name = rule.title if isinstance(rule, Method) else label_of_objective(its)
        cases = _cases(its.trust_region, name)
        lines += _head(rule, its, name, cases)
        # A geometric mean of ratios is not a ratio of probabilities: the first line has its interval.
        if its.ratio != "sequence-mean":
            shown += cases
    log_p = torch.tensor(p or DEFAULT_P, dtype=torch.float64).log()
    if shown:
        lines += ["", *_table(shown, log_p, width)]
        reasons = dict.fromkeys(
            reason for _, rule in shown for pair in stops(rule, log_p) for reason in pair
        )
        meant = {reason: _MEANING.get(reason.split()[-1], "the rule itself") for reason in reasons}
        lines += [
            "",
            "What sets a bound:",
            *(f"  {reason}: {meaning}" for reason, meaning in meant.items()),
        ]
    return "\n".join(lines)


def _cases(region: Region, label: str) -> list[Case]:
    """List a rule's cases by the sign of A, the step or its inputs. Without any it is the rule itself."""
    cases: list[Case] = []
    for when, part in region.branches().items():
        cases += [(f"{name} ({when})", rule) for name, rule in _cases(part, part.label)]
    if cases:
        return cases
    try:
        region.bounds(torch.zeros(1, 1))
    except ValueError as error:
        raise ValueError(
            f"{region.label} needs more than p to have bounds; give the rules that it is made of ({error})"
        ) from None
    return [(label, region)]


def _head(value: Rule, its: Objective, name: str, cases: Sequence[Case]) -> list[str]:
    """Name the value, in words and as a node."""
    suspicion = its.trust_region.suspicion()
    node = node_text(short_node(its))
    lines = [describe(its)] if describe_interval(its) else []
    if suspicion:
        lines.append(f"  {suspicion}")
    if isinstance(value, Method):
        paper = "" if value.arxiv is None else f" (arXiv {value.arxiv})"
        unchecked = f"; not checked: {value.unchecked}" if value.unchecked else ""
        lines += [f"{value.title}{paper}: {value.formula}", f"  method {value.name}: {node}"]
        lines += [f"  formula and values from: {value.source}{unchecked}"]
        lines += [f"  policy_loss also takes: {value.arguments}"] if value.arguments else []
    else:
        lines.append(f"{name}: {node}")
    if isinstance(value, Method) or its.changed():
        lines += [f"  r: {_RATIO[its.ratio]}", *_gradient(its)]
    return [*lines, *dict.fromkeys(f"  {line}" for _, rule in cases for line in _legend(rule))]


def node_text(node: Any) -> str:
    """Write a node in one line of YAML."""
    if isinstance(node, dict):
        return f"{{{', '.join(f'{key}: {node_text(value)}' for key, value in cast('dict[str, Any]', node).items())}}}"
    return (
        f"[{', '.join(map(node_text, cast('list[Any]', node)))}]" if isinstance(node, list) else str(node)
    )


def _legend(region: Region) -> list[str]:
    """Explain the names of `stops`, a line each."""
    parts = parts_of(region)
    if len(parts) == 1:
        return _legend(parts[0][1])
    kind = getattr(region, "divergence", None)
    return [f"{place}: {part.label}" for place, part in parts] or (
        [str(divergence(kind))] if kind else []
    )


def _gradient(its: Objective) -> Iterator[str]:
    """Describe the gradient of a token in log pi."""
    mean = "G A / T instead of r A, G the geometric mean of a response's T clipped ratios"
    whole = {
        "token": "",
        "sequence": "for each of the tokens",
        "sequence-mean": "for each of the tokens 1 / T of it",
    }
    yield f"  gradient of the surrogate in log pi: {whole.get(its.ratio, mean)}".rstrip(" ")
    for side, surrogate in enumerate(as_pair(its.surrogate, its.dual_clip)):
        if isinstance(surrogate, str):
            words = _GRADIENTS[surrogate][side]
        elif surrogate.gradient:
            words = surrogate.gradient[side].format(**vars(surrogate))
        else:
            words = f"of a surrogate of your own, with the weight {surrogate.label}"
        yield f"    where A {('>=', '<')[side]} 0: {words}"
    if its.dual_clip is not None:
        yield f"    where A < 0 and r > {its.dual_clip:g} (dual clip): none (value {its.dual_clip:g} A)"
    if its.positive_weight != 1:
        yield f"    where A > 0: all of it times {its.positive_weight:g} (positive_weight)"


def stops(region: Region, log_p: Tensor) -> list[tuple[str, str]]:
    """Name the limit of a token of each p (N,), below and above. It is the rule, a part, its cap or the simplex."""
    each_alone = log_p[:, None, None]  # (1, 1) each: a rule may read the shape
    return [(_stop(region, each, above=False), _stop(region, each, above=True)) for each in each_alone]


def _stop(region: Region, log_p: Tensor, *, above: bool) -> str:
    bounds, parts = region.bounds(log_p), parts_of(region)
    end = bounds.log_high if above else bounds.log_low
    if end >= -log_p if above else end == -torch.inf:  # whatever the rule would do
        return "simplex"
    for place, part in parts:  # the first one that ends there
        theirs = part.bounds(log_p)
        if end == (theirs.log_high if above else theirs.log_low):
            return (
                _stop(part, log_p, above=above)
                if len(parts) == 1
                else f"{place} {_stop(part, log_p, above=above)}"
            )
    return region.kind


def _table(cases: Sequence[Case], log_p: Tensor, width: int) -> list[str]:
    """Write a row for each p and rule. If that is too wide, write a table for each rule."""
    rows = [["p", "", "new probability r p", "ratio r", "bounded by"]]
    for s in log_p.split(1):
        for label, rule in cases:
            bounds = rule.bounds(s[None])
            low, high = bounds.log_low, bounds.log_high
            most = (high + s).clamp(max=0)  # a probability is at most 1, whatever the rule says
            ((below, above),) = stops(rule, s)
            rows.append([
                _show(s.exp()) if label == cases[0][0] else "", label if len(cases) > 1 else "",
                f"{_show((low + s).exp())} to {_show(most.exp())}", f"{_show(low.exp())} to {_show(high.exp())}",
                below if below == above else f"{below} / {above}",
            ])  # fmt: skip
    shown = [column for column in zip(*rows, strict=True) if any(column)]
    widths = [max(map(len, column)) for column in shown]
    if len(cases) > 1 and sum(widths) + 2 * len(widths) - 2 > width:
        return [line for case in cases for line in _table([case], log_p, width)]
    padded = [
        [cell.rjust(width) for cell in column] for column, width in zip(shown[:-1], widths, strict=False)
    ]
    title = [f"{cases[0][0]}:"] if len(cases) == 1 else []
    return title + ["  ".join(row) for row in zip(*padded, shown[-1], strict=True)]


def _show(value: float | Tensor) -> str:
    value = float(value) + 0.0  # not -0
    return f"1 - {1 - value:.3g}" if 0.99995 <= value < 1 else f"{value:.4g}"
