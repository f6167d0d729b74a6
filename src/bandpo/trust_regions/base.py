"""What a trust region is: a rule that makes `Bounds` of the log-ratio from the old log-probabilities.

A rule answers for itself: its label, what it needs to see, its free number, its cases.

A rule is a frozen dataclass of plain data, so that it is also its node in a config file: `Band("kl", 0.05)` is
`{type: band, divergence: kl, delta: 0.05}`. `bandpo.trust_region(node)` and `region.to_config()` go there and back. The
type of a rule of one's own is `module:Class`: the module is imported.
"""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import ast
import dataclasses
import importlib
import math
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypedDict, TypeVar, cast

import torch
from torch import Tensor

from ..bounds import Bounds
from ..errors import nearest, unknown
from ..numerics import LOWEST, listed


@dataclass(frozen=True, eq=False)
class Context:
    """What a rule may know of a batch beside the old log-probabilities; the loss and each integration fill what they
    have.

    Attributes (all optional; (B, T) unless said otherwise):
        response_mask: True at the tokens of the response.
        entropies: entropy of the current policy at each token, in nats, from the logits.
        advantages: (B, T) or (B, 1).
        positions: index of each token in its response.
        step: optimizer step, an int.
        staleness: updates between the sampling policy and the current one, an int or a tensor, (B, T) or (B, 1).
        logps: log pi of the current policy, detached; see `log_ratio`.
        old_entropies: entropy of the old policy at each token, in nats.
        divergences: the divergence of the current policy from the old one over all tokens that might have stood there,
            see `full_divergence`.
        group_mean: (B, 1), the mean of the rewards in the group that the response belongs to: of rewards that are 0 or
            1 the share of right answers.
        group_std: (B, 1), their standard deviation, divided by the size of the group.
        mean_weight: what an `Adaptive` radius is divided by, where the loss sees a part of the batch only.
        controlled: the number that the controller of a `Controlled` rule has set.
    """

    response_mask: Tensor | None = None
    entropies: Tensor | None = None
    advantages: Tensor | None = None
    positions: Tensor | None = None
    step: int | None = None
    staleness: int | Tensor | None = None
    logps: Tensor | None = None
    old_entropies: Tensor | None = None
    divergences: Tensor | None = None
    group_mean: Tensor | None = None
    group_std: Tensor | None = None
    mean_weight: float | Tensor | None = None
    controlled: float | None = None

    def log_ratio(self, old_logps: Tensor, region: Region) -> Tensor:
        """log(pi / pi_old) as it is now, 0 in padding; ValueError if `logps` was not filled."""
        moved = self.require("logps", region).to(old_logps.dtype).clamp(min=LOWEST) - old_logps.clamp(min=LOWEST)
        return moved if self.response_mask is None else torch.where(self.response_mask, moved, 0.0)

    def require(self, field: str, region: Region | Law) -> Any:
        """The named field; ValueError, naming field and rule, if it was not filled or is not in the rule's `needs`."""
        if field not in region.needs:
            raise ValueError(
                f"{type(region).__name__} asks for context.{field}, which its needs do not name; write "
                f"needs: ClassVar[tuple[str, ...]] = ({field!r},)"
            )
        value = getattr(self, field)
        if value is None:
            raise ValueError(
                f"{type(region).__name__} needs context.{field}, which was not given; pass {field} to policy_loss, "
                f"or a Context({field}=...)"
            )
        return value


class Known(TypedDict, total=False):
    """The fields of `Context` that a loss cannot make of its own tensors."""

    entropies: Tensor | None
    old_entropies: Tensor | None
    divergences: Tensor | None
    group_mean: Tensor | None
    group_std: Tensor | None
    step: int | None
    staleness: int | Tensor | None
    mean_weight: float | Tensor | None
    controlled: float | None


class Node:
    """What can be written as a config node: a frozen dataclass with a `kind`, its `type` in a config file.

    Defining it makes the kind known. Where it has not been defined yet, in another process, `module:Class` is its type,
    and what `to_config` writes. Without a `kind` it has no node.

    Attributes:
        needs: the fields of `Context` that it asks for.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[str] = ""
    family: ClassVar[str]
    kinds: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, *, family: str = "") -> None:
        if family:
            cls.family, cls.kinds = family, {}
        if ABC in cls.__bases__:  # a family, or what stands between it and its kinds
            return
        if not cls.kind:
            return
        taken = cls.kinds.get(cls.kind)
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"kind {cls.kind!r} of {cls.__qualname__} is taken by {taken.__qualname__}")
        cls.kinds[cls.kind] = cls

    def to_config(self) -> dict[str, Any]:
        """The YAML node: `type` and the fields. Raises ValueError for a divergence or a rule without a name in YAML."""
        cls = type(self)
        if not cls.kind:
            raise ValueError(f"{cls.__name__} has no config node; give it a kind: ClassVar[str] = ...")
        is_found = not cls.__module__.startswith(("bandpo.", "__main__")) and "." not in cls.__qualname__
        return node_of(self, f"{cls.__module__}:{cls.__qualname__}" if is_found else self.kind)


class Part(NamedTuple):
    """A rule that another one is in some case."""

    when: str
    region: Region
    sign: int | None = None  # of advantages A >= 0 alone: 0; of A < 0: 1

    def of_sign(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        """Of a pair for the two signs the one for its sign, twice."""
        return pair if self.sign is None else (pair[self.sign], pair[self.sign])


class Region(Node, ABC, family="trust region"):
    """A trust region: derive from it and write `bounds`; a frozen dataclass with a `kind` has a config node too.

    Attributes:
        is_of_single_tokens: True for a rule that gives the tokens of a response bounds of their own by more than their
            probability, and so is not for ratios of whole responses.
        sees_probability: False for a rule whose bounds are the same for every old probability, but for what the rules
            in it do; see `depends_on_probability`.
        stopped_by: what stops a token, in one word.
        is_phrase: True where the label of the rule stands in brackets within another one.
    """

    is_of_single_tokens: ClassVar[bool] = False
    sees_probability: ClassVar[bool] = True
    stopped_by: ClassVar[str] = "rule"
    is_phrase: ClassVar[bool] = False

    @abstractmethod
    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Make the interval of the log-ratio for each token: detached, like `old_logps`, in at least float32."""

    def contains(self, log_ratio: Tensor, old_logps: Tensor, context: Context | None = None) -> Tensor:
        """Say where the log-ratio is inside `bounds`; for gradients this is all that matters."""
        return self.bounds(old_logps, context).contains(log_ratio)

    @property
    def label(self) -> str:
        """The name in tables and legends, e.g. `Band-KL 0.05`; the same however the rule was written."""
        return " ".join([type(self).__name__, *(str(getattr(self, name)) for name in _names(self))])

    @property
    def part_label(self) -> str:
        """The label within that of another rule."""
        return f"({self.label})" if self.is_phrase else self.label

    @property
    def parts(self) -> list[Region]:
        """The rules that it is made of, each in a field or in a tuple there."""
        values = [value for name in _names(self) for value in listed(getattr(self, name))]
        return [value for value in values if isinstance(value, Region)]

    def needed(self) -> dict[str, str]:
        """List the fields of `Context` that it and its parts ask for, each with the name of the rule that does."""
        found = {name: of for part in self.parts for name, of in part.needed().items()}
        return found | dict.fromkeys(self.needs, type(self).__name__)

    @property
    def free(self) -> tuple[str, ...]:
        """The fields that are one number, which is found where no other is named; () where that is not clear.

        Of a rule in a rule the first one's, as `region.delta`, or `regions.0.delta` in a tuple.
        """
        for name in _names(self):
            value = getattr(self, name)
            for i, inner in enumerate(listed(value)):
                if isinstance(inner, Region):
                    place = f"{name}.{i}" if isinstance(value, tuple) else name
                    return tuple(f"{place}.{each}" for each in inner.free)
        numbers = [name for name in _names(self) if isinstance(getattr(self, name), float)]
        return (numbers[0],) if len(numbers) == 1 else ()

    def critical(self, names: Sequence[str], log_ratio: Tensor, old_logps: Tensor) -> Tensor | None:
        """Find the number from which on each token is inside, in these fields; None where there is no formula."""
        return None

    def cases(self) -> list[Part]:
        """List the rules that it is in each case; none where it is one rule that asks for p alone."""
        return []

    def stops(self, log_p: Tensor) -> list[tuple[str, str]]:
        """Name what stops a token of each p (N,), below and above: the rule, a part of it, its cap, or the simplex."""
        bounds, out = self.bounds(log_p), list[tuple[str, str]]()
        capped = torch.zeros_like(log_p, dtype=torch.bool) if bounds.capped is None else bounds.capped
        for i, (below, above) in enumerate(self._own_stops(log_p)):
            if capped[i] and not above.endswith("cap"):  # else it is the cap of a part, and has its name
                above = "cap"
            # At 0 and at 1/p the simplex stops the token, whatever the rule would do.
            below = "simplex" if bounds.log_low[i] == -math.inf else below
            above = "simplex" if bounds.log_high[i] >= -log_p[i] else above
            out.append((below, above))
        return out

    def _own_stops(self, log_p: Tensor) -> list[tuple[str, str]]:
        """Name what would stop a token without cap and simplex."""
        return [(self.stopped_by, self.stopped_by)] * len(log_p)

    def legend(self) -> list[str]:
        """Explain the names of `stops`, a line each."""
        return []

    def doubt(self) -> str:
        """Say where its numbers look like others that were meant; else nothing."""
        return next((doubt for part in self.parts if (doubt := part.doubt())), "")


def _names(thing: object) -> list[str]:
    """The fields of a dataclass that are given to it."""
    return [field.name for field in dataclasses.fields(thing) if field.init] if dataclasses.is_dataclass(thing) else []


class Moving(Region, ABC):
    """A rule that is another one at each step, of which a number moves: `Decaying`, `Controlled`."""

    is_phrase: ClassVar[bool] = True
    region: Region

    @abstractmethod
    def in_force(self, context: Context) -> Region:
        """The rule that it is now."""

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        """Those of the rule in force."""
        return self.in_force(context or Context()).bounds(old_logps, context)

    def contains(self, log_ratio: Tensor, old_logps: Tensor, context: Context | None = None) -> Tensor:
        """What the rule in force says."""
        return self.in_force(context or Context()).contains(log_ratio, old_logps, context)


class Law(Node, ABC, family="law"):
    """How a number of a rule changes: see `TokenLaw`, from token to token, and `ControlLaw`, from step to step."""

    @property
    def label(self) -> str:
        """Its name, and those of its numbers that are not the usual ones."""
        fields = dataclasses.fields(cast(Any, self))
        changed = [(field.name, value) for field in fields if (value := getattr(self, field.name)) != field.default]
        return ", ".join([type(self).__name__, *(f"{name} {value}" for name, value in changed)])


def kinds() -> list[str]:
    """What the `type` of a rule's node may be."""
    return sorted(Region.kinds)


EXAMPLE = "; a rule is written Band('kl', 0.05), as text band:kl:0.05"


def trust_region(node: Mapping[str, Any] | Region | str) -> Region:
    """Make the rule of a config node, e.g. `{"type": "band", "divergence": "kl", "delta": 0.05}`, or of a short word,
    such as "band:kl:0.05": a kind and its fields in their order.

    The type may be `module:Class`, a `Region` of one's own: the module is imported, which runs what is in it.

    Raises ValueError naming the key and the nearest known one, or what a module lacks; of anything else what to write
    in its place.

    >>> import bandpo
    >>> region = bandpo.trust_region({"type": "capped", "region": {"type": "band", "delta": 0.05}, "max_ratio": 10})
    >>> region == bandpo.Capped(bandpo.Band("kl", 0.05), 10.0) and bandpo.trust_region(region.to_config()) == region
    True
    """
    if isinstance(node, str) and not instead(node):
        node = node_of_word(node)
    if isinstance(node, Mapping):
        return cast(Region, read_node(node, Region))
    if isinstance(node, Region):
        return node
    shown = node.__name__ if isinstance(node, type) else repr(node)
    raise ValueError(f"{shown} is not a trust region{instead(node) or EXAMPLE}")


def instead(value: Any) -> str:
    """What to write in the place of a class, or of numbers, which do not say of which rule they are; else nothing."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return ""
    if isinstance(value, type) and issubclass(value, Region) and dataclasses.is_dataclass(value):
        fields = [field for field in dataclasses.fields(value) if field.init and field.default is not None]
        given = [field.name if field.default is dataclasses.MISSING else repr(field.default) for field in fields]
        return f", but a class; write {value.__name__}({', '.join(given)})"
    match cast(Any, value):
        case int() | float() as radius if not isinstance(radius, bool):
            radius = radius if 0 < radius < math.inf else 0.05
            return f"; a radius is written Band('kl', {radius}), as text band:kl:{radius}"
        case ((int() | float() as low), (int() | float() as high)):
            if 0.5 <= low < 1 < high <= 2:  # the bounds
                low, high = round(1 - low, 6), round(high - 1, 6)
            low, high = (low, high) if 0 <= low <= 1 and 0 <= high < math.inf else (0.2, 0.28)
            return f"; a clip is written Clip({low}, {high}), as text clip:{low}:{high}"
        case _:
            return ""


def node_of_word(text: str) -> dict[str, Any]:
    """Make the node that a short word stands for: a kind and its fields in their order, `kind:field:field`.

    The last fields may be left out. A rule in a rule stands in the place of the field, with all of its own:
    `capped:band:kl:0.05:10`. Raises ValueError naming what is too much, missing, or not known.
    """
    words = text.split(":")
    node = _take(words)
    if words:
        raise ValueError(f"{':'.join(words)!r} is too much; {usage(node['type'])}")
    return node


def _take(words: list[str], family: type[Node] = Region) -> dict[str, Any]:
    """The node of the rule, or the law, at the beginning of `words`, which loses what it takes."""
    kind, known = words.pop(0), sorted(family.kinds)
    if kind.lower() not in known:
        raise ValueError(unknown(f"{family.family} type", kind, known, most=8 if family is Region else len(known)))
    node: dict[str, Any] = {"type": (kind := kind.lower())}
    for field in _fields(kind, family):
        if words and field.name == "law":
            node[field.name] = _take(words, Law)
        elif words:
            node[field.name] = _take(words) if words[0].lower() in Region.kinds else words.pop(0)
        elif field.default is dataclasses.MISSING:
            raise ValueError(f"{field.name} is missing; {usage(kind, family)}")
    return node


def _fields(kind: str, family: type[Node]) -> list[dataclasses.Field[Any]]:
    """What a short word gives; options that are None unless set are for YAML nodes."""
    return [field for field in dataclasses.fields(family.kinds[kind]) if field.init and field.default is not None]


def usage(kind: str, family: type[Node] = Region) -> str:
    """How a short word of that kind is written."""
    words = ":".join([kind, *(field.name for field in _fields(kind, family))])
    return f"a {'law' if family is Law else 'rule'} of type {kind} is written {words}"


OWN = r"[\w.]+:\w+"  # the type of a rule of one's own, module:Class


def read_node(node: Mapping[str, Any], base: type[Node]) -> Any:
    """What a node describes, of a family."""
    values = {str(key): value for key, value in node.items()}
    kind, known = values.pop("type", None), sorted(base.kinds)
    if isinstance(kind, str) and re.fullmatch(OWN, kind):
        return made_of(_own(kind, base), values, f"{base.family} {kind!r}", _field)
    if kind is None:
        example = "band, delta: 0.05" if base is Region else known[0]
        raise ValueError(f"the type of a {base.family} is missing, as in {{type: {example}}}")
    if kind not in known and str(kind).lower() in known:
        kind = str(kind).lower()
    if kind not in known:
        raise ValueError(unknown(f"{base.family} type", kind, known, most=8 if base is Region else len(known)))
    return made_of(base.kinds[kind], values, f"{base.family} {kind!r}", _field)


def _own(kind: str, base: type[Node]) -> type[Node]:
    """The class `module:Class`."""
    name, _, of_class = kind.partition(":")
    what_type = f"{base.family} type {kind!r}"
    try:
        module = importlib.import_module(name)
    except Exception as error:  # whatever the module does when it is imported
        # But for `bandpo train` not looked for there by ourselves: the working directory may be a stranger's folder.
        hint = f"; with PYTHONPATH=. before the command {name!r} is looked for in the working directory too"
        hint = "" if os.getcwd() in sys.path else hint  # noqa: PTH109
        raise ValueError(
            f"{what_type}: {name!r} cannot be imported: {type(error).__name__}: {error}"
            f"{hint if isinstance(error, ModuleNotFoundError) else ''}"
        ) from error
    found = getattr(module, of_class, None)
    if not isinstance(found, type) or not issubclass(found, base) or found is base:
        there = [key for key, each in vars(module).items() if isinstance(each, type) and issubclass(each, base)]
        what = (
            f"there is no {of_class!r} in {name!r}"
            if found is None
            else f"{of_class!r} is not a bandpo.{base.__name__}"
        )
        raise ValueError(f"{what_type}: {what}{nearest(of_class, there)}")
    if not dataclasses.is_dataclass(found):
        raise ValueError(f"{what_type}: {of_class!r} must be a frozen dataclass: @dataclass(frozen=True)")
    return found


def _field(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return read_node(cast("Mapping[str, Any]", value), Law if name == "law" else Region)
    if any(isinstance(each, Mapping) for each in listed(value)):  # rules in a tuple
        return tuple(_field(name, each) for each in listed(value))
    return value


Found = TypeVar("Found", bound=Region)


def find_one(region: Region, kind: type[Found]) -> Found | None:
    """The rule of a class among those that a rule is made of, itself included, or None; ValueError for two, because the
    context has one number for it."""
    found = [region] if isinstance(region, kind) else []
    for part in region.parts:
        inner = find_one(part, kind)
        if inner is not None:
            found.append(inner)
    if len(found) > 1:
        raise ValueError(f"a rule may have one {kind.__name__} in it, got {found}")
    return found[0] if found else None


def node_of(thing: Any, kind: str) -> dict[str, Any]:
    """The YAML node of a dataclass: its `type`, and its fields unless they are None."""
    node: dict[str, Any] = {"type": kind}
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name) if field.init else None
        if value is not None:
            node[field.name] = _plain(value, field.name)
    return node


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, tuple):
        return [_plain(each, name) for each in cast("tuple[Any, ...]", value)]  # YAML has no tuples
    if hasattr(value, "to_config"):
        return value.to_config()
    return value


def made_of(cls: type[Any], values: Mapping[str, Any], what: str, read: Callable[[str, Any], Any]) -> Any:
    """A dataclass of the values of its node, each as `read` makes it of its name and what the node has.

    Raises ValueError for a key that the class has not, with the nearest one that it has, and for one that is missing.
    """
    known = [field.name for field in dataclasses.fields(cls) if field.init]
    for key in values:
        if key not in known:
            raise ValueError(f"unknown key {key!r} in {what}{nearest(key, known)}; it has {known}")
    empty = dataclasses.MISSING
    needed = [
        each.name for each in dataclasses.fields(cls) if each.init and each.default is each.default_factory is empty
    ]
    if missing := [name for name in needed if name not in values]:
        raise ValueError(f"{what} lacks {', '.join(missing)}; it has {known}")
    return cls(**{key: read(key, value) for key, value in values.items()})


def check_number(
    thing: object, name: str, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> None:
    """Check a numeric field and store it as a float, so that equal nodes are equal.

    A number in a string counts as one: "1e-3" is a number in YAML 1.2 and a string in PyYAML.
    """
    value = getattr(thing, name)
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: a tensor of many numbers
        number = math.nan
    inside = (low < number if open_low else low <= number) and (number < high if open_high else number <= high)
    if not inside:
        interval = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}"
        raise ValueError(f"{name} of {type(thing).__name__} must be a number in {interval}, got {value!r}")
    object.__setattr__(thing, name, number)


def check_integer(thing: object, name: str, low: int) -> None:
    """Check a field that counts something, from `low` on, and store it as an int."""
    check_number(thing, name, low, math.inf, open_high=True)
    if (value := getattr(thing, name)) != int(value):
        raise ValueError(f"{name} of {type(thing).__name__} must be an integer, got {value!r}")
    object.__setattr__(thing, name, int(value))


def check_numbers(thing: object, name: str, region: object) -> dict[str, float]:
    """Check a field that names a number of a rule, or several, and store one as text, several as a tuple; returns them
    with their values."""
    names = listed(getattr(thing, name)) or [""]
    object.__setattr__(thing, name, names[0] if len(names) == 1 else tuple(names))
    known = [field.name for field in dataclasses.fields(region)] if dataclasses.is_dataclass(region) else []
    numbers: dict[str, float] = {}
    for each in names:
        value = getattr(region, each) if each in known else None
        if not isinstance(value, float) or not math.isfinite(value):
            there = [field for field in known if isinstance(getattr(region, field), float)]
            raise ValueError(
                f"{name} of {type(thing).__name__} must name a finite number of {type(region).__name__}, of {there}, "
                f"got {each!r}"
            )
        numbers[each] = value
    return numbers


def check_law(thing: object, of: type[Law]) -> None:
    value = getattr(thing, "law")  # noqa: B009
    if not isinstance(value, of):
        known = [kind for kind, each in sorted(Law.kinds.items()) if issubclass(each, of)]
        raise ValueError(f"law of {type(thing).__name__} must be a bandpo.{of.__name__}, of {known}, got {value!r}")


def check_region(thing: object, name: str) -> None:
    value = getattr(thing, name)
    if not isinstance(value, Region):
        is_rule = isinstance(value, Mapping) or str(value).partition(":")[0] in kinds()
        hint = instead(value) or (f"; bandpo.trust_region({value!r}) makes one" if is_rule else EXAMPLE)
        raise ValueError(f"{name} of {type(thing).__name__} must be a trust region, got {value!r}{hint}")
