"""YAML of plain values, from a file or a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import UserError
from .checks import DEPTH, TOO_DEEP, check_value, shortened
from .reading import content_of, decoded

NODES = 1_000_000  # of a YAML file, after its aliases


def read_yaml(path: Path) -> Any:
    """Read a YAML file; see `parse_yaml`."""
    return parse_yaml(decoded(content_of(path), str(path)), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML of plain values.

    Nothing in it is executed; a key that is there twice is an error, not the last one's win.

    Args:
        text: the YAML.
        where: what to call it in errors.

    Raises:
        UserError: no YAML, a key twice in one mapping, nested too deep, aliases that grow without bound, or a number
            or text that nothing can hold.
    """
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # Before anything recurses: the events come one by one.
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH:
                raise UserError(f"{where}, line {event.start_mark.line + 1}: {TOO_DEEP}")
        node = yaml.compose(text, Loader=loader)
        if node is not None:
            _check_nodes(node, where)
        value = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    except UserError:
        raise
    except (
        ValueError,
        OverflowError,
        RecursionError,
        AttributeError,
        LookupError,
    ) as error:  # of a date, of an integer with 5,000 digits
        raise UserError(f"{where}: a value in it cannot be read: {' '.join(str(error).split())}") from None
    check_value(value, where, shown=True)
    return value


def _check_nodes(root: Any, where: str) -> None:
    """Refuse a key that is twice in one mapping, and aliases that contain themselves or grow without bound."""
    import yaml

    known: dict[int, tuple[int, int] | None] = {}  # of each node: how many there are in it, and how deep

    def measure(node: Any) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            return 1, 0
        line = node.start_mark.line + 1
        if id(node) in known:
            if (size := known[id(node)]) is None:
                raise UserError(f"{where}, line {line}: an alias stands within what it is an alias of")
            return size
        known[id(node)] = None
        children = node.value
        if isinstance(node, yaml.MappingNode):
            seen: dict[tuple[str, str], int] = {}
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    at, name = key.start_mark.line + 1, (key.tag, key.value)
                    if name in seen:
                        both = f"in lines {seen[name]} and {at}"
                        raise UserError(f"{where}: key {shortened(key.value)} is there twice, {both}")
                    seen[name] = at
            children = [each for pair in node.value for each in pair]
        sizes = [measure(child) for child in children]
        count, depth = 1 + sum(c for c, _ in sizes), 1 + max((d for _, d in sizes), default=0)
        if count > NODES:
            raise UserError(f"{where}, line {line}: its aliases grow into more than {NODES:,} values")
        if depth > DEPTH:
            raise UserError(f"{where}, line {line}: {TOO_DEEP}")
        known[id(node)] = count, depth
        return count, depth

    measure(root)
