"""Write an objective in words: its label, how far it lets a token go, its Python."""

import dataclasses
import math
import re
from typing import Any, cast

import torch

from .losses.nodes import methods
from .losses.objective import Objective
from .losses.surrogates import as_pair
from .numerics import listed
from .trust_regions.base import Context, depends_on_probability


def label_of_objective(value: Objective) -> str:
    """Return the name in tables and legends. It is the rule's label, or the method's title where there is more than a
    rule.

    Where no method has these fields, they follow the rule's label.
    """
    bare = dataclasses.replace(value, aggregation=None)
    named = [
        each.title
        for each in methods()
        if not each.from_sampler
        and value.aggregation in (None, each.objective.aggregation)
        and each.without_average == bare
    ]
    if not bare.changed() and (value.aggregation is None or named):
        return value.trust_region.label
    fields = (f"{name} {' / '.join(map(str, listed(x)))}" for name, x in value.changed().items())
    return named[0] if named else ", ".join([value.trust_region.label, *fields])


def as_python(value: Any) -> str:
    """Write a rule or an objective in Python. A rule's field names and an objective's defaults are left out.

    >>> from bandpo import Clip, Objective
    >>> as_python(Objective(Clip(0.2, 0.28), dual_clip=3))
    'Objective(Clip(0.2, 0.28), dual_clip=3)'
    """
    if isinstance(value, Objective):
        fields = [f"{name}={as_python(each)}" for name, each in value.changed().items()]
        region = as_python(value.trust_region)
        return f"Objective({', '.join([region, *fields])})" if fields else region
    if dataclasses.is_dataclass(value):
        values = [getattr(value, each.name) for each in dataclasses.fields(value) if each.init]
        return (
            f"{type(value).__name__}({', '.join(as_python(each) for each in values if each is not None)})"
        )
    if isinstance(value, tuple):
        return f"({', '.join(map(as_python, cast('tuple[Any, ...]', value)))})"
    return f'"{value}"' if isinstance(value, str) else repr(value).removesuffix(".0")


def short_node(value: Objective) -> dict[str, Any]:
    """Return the node of an objective, or of its rule where that is all of it."""
    return value.to_config() if value.changed() else value.trust_region.to_config()


def describe(value: Objective) -> str:
    """Say in one line how far a rule lets a token go. The line has its ratio, or two tokens where the probability
    matters.

    >>> from bandpo import Clip, Objective
    >>> describe(Objective(Clip(0.2, 0.28)))
    "Clip(0.2, 0.28): a token's ratio may go from 0.8 to 1.28"
    >>> describe(Objective())
    'Band("kl", 0.05): a token of probability 0.5 may go from 0.3458 to 0.6542, one of 0.001 up to 0.05355'
    """
    interval = describe_interval(value)
    if not interval:
        return f"{value.trust_region.label}: how far a token may go depends on more than its probability"
    bare = dataclasses.replace(value, aggregation=None)
    return re.sub(r"\d\.\d{6,}", lambda long: f"{float(long[0]):.4g}", as_python(bare)) + f": {interval}"


def describe_interval(value: Objective) -> str:
    """Return the second half of `describe`. It is empty where a rule sees more than the probability."""
    log_p = torch.tensor([[0.5, 0.001]], dtype=torch.float64, device="cpu").log()
    try:
        bounds = value.trust_region.bounds(log_p, Context())
    except Exception:  # a user's rule may raise anything
        return ""
    (low, _), (high, of_rare) = (
        cast(Any, x.exp()[0]).tolist() for x in (bounds.log_low, bounds.log_high)
    )
    what = "a token" if value.is_per_token else "a response"
    mean = " mean" if value.ratio == "sequence-mean" else ""
    if depends_on_probability(value.trust_region):
        top, rare = min(0.5 * high, 1.0), min(0.001 * of_rare, 1.0)
        text = f"{what} of probability 0.5 may go from {0.5 * low:.4g} to {top:.4g}, one of 0.001 up to {rare:.4g}"
    elif (low, high) == (0.0, math.inf):
        text = f"no bound on {what}'s ratio"
    else:
        text = f"{what}'s{mean} ratio may go from {low:.5g} to {high:.5g}"
    # A soft one.
    if not {*as_pair(value.surrogate, value.dual_clip)} <= {
        "clip",
        "mask",
        "mask_two_sided",
    }:
        soft = "" if text.startswith("no bound") else "; outside it the gradient does not stop"
        text = (
            f"{text.replace('may go', 'has the interval')}{soft} (surrogate {as_python(value.surrogate)})"
        )
    return text if value.dual_clip is None else f"{text}; dual clip {value.dual_clip:g}"
