"""Where a chosen setting lies at the edge of its grid, and what is tried beyond it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from .contest import LEARNING_RATE, Value, grid_of

Point = dict[str, Value]
Axes = Mapping[str, Sequence[Value]]


class Wider(NamedTuple):
    """A grid that was made wider around a point.

    Attributes:
        axes: the longer ones among them.
        points: what is to be tried, some of which may have been.
        told: what was done, in words.
    """

    axes: dict[str, tuple[Value, ...]]
    points: list[Point]
    told: list[str]


def widened(axes: Axes, chosen: Point, allowed: Callable[[Point], bool]) -> Wider:
    """A grid that is a third longer where the choice is at an edge; no points where it cannot be.

    New are those beyond the edge, with every learning rate, and with the chosen values of what is not at an edge: a
    whole grid with several longer axes would be several times the search that the others had.
    """
    wider = {name: tuple(values) for name, values in axes.items()}
    around: dict[str, tuple[Value, ...]] = {name: (value,) for name, value in chosen.items()}
    told = []
    for name, up in _at_edge(axes, chosen).items():
        beyond = [value for value in _beyond(_numeric(axes[name]), up) if allowed({**chosen, name: value})]
        if beyond:
            wider[name] = tuple(sorted((*axes[name], *beyond), key=float))
            around[name] = (chosen[name], *beyond)
            way = f"{'up' if up else 'down'} to {beyond[-1]:g}"
            told.append(f"{_shown(name)} was at the edge of its grid, which was widened {way}")
        else:
            told.append(f"{_shown(name)} can go no further than its grid")
    around[LEARNING_RATE] = wider[LEARNING_RATE]
    longer = any(len(wider[name]) > len(axes[name]) for name in axes)
    return Wider(wider, [point for point in grid_of(around) if allowed(point)] if longer else [], told)


def edges_told(axes: Axes, chosen: Point, before: Sequence[str]) -> list[str]:
    """What is left to say of the setting that was chosen in the end, after what was said when it was widened."""
    return [
        f"{_shown(name)} is at the {'upper' if up else 'lower'} edge of its grid"
        for name, up in _at_edge(axes, chosen).items()
        if not any(text.startswith(f"{_shown(name)} can go") for text in before)
    ]


def _numeric(values: Sequence[Value]) -> list[float]:
    """The finite values in their order, if all are numbers."""
    if any(isinstance(value, str) for value in values):
        return []
    return sorted(float(value) for value in values if math.isfinite(float(value)))


def _at_edge(axes: Axes, chosen: Point) -> dict[str, bool]:
    """Of each parameter whose chosen value is at an end of its grid: whether that is the upper one. An infinite value
    is not an edge: nothing lies beyond it."""
    edges = {}
    for name, values in axes.items():
        finite, value = _numeric(values), chosen[name]
        if len(finite) > 1 and (value == finite[0] or (value == finite[-1] and len(finite) == len(values))):
            edges[name] = value != finite[0]
    return edges


def _beyond(values: Sequence[float], up: bool) -> list[float]:
    """A third as many values more, with the ratio of the last two, or their difference where one is not above 0."""
    count = max(1, len(values) // 3)
    end, before = (values[-1], values[-2]) if up else (values[0], values[1])
    steps = range(1, count + 1)
    more = [end * (end / before) ** i for i in steps] if min(end, before) > 0 else [
        end + i * (end - before) for i in steps
    ]  # fmt: skip
    return [float(f"{x:.3g}") for x in more]


def _shown(name: str) -> str:
    return "the learning rate" if name == LEARNING_RATE else name
