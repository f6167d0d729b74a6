"""Rewards with TRL's signature: `reward(completions, answer=[...], **columns) -> list[float]`."""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from .config import UserError

Reward = Callable[..., list[float | None]]


class RewardError(UserError):
    """A reward function raised; the message names it, the place and the reason."""


def text_of(completion: str | list[dict[str, Any]]) -> str:
    """The text of a completion, which TRL gives as a string or, for chat prompts, as messages."""
    return (
        completion
        if isinstance(completion, str)
        else "".join(str(message.get("content") or "") for message in completion)
    )


def exact(completions: list[Any], answer: list[Any], **columns: Any) -> list[float]:
    """1 where the completion is the answer, up to white space at the ends."""
    return [float(text_of(c).strip() == str(a).strip()) for c, a in zip(completions, answer, strict=True)]


_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def last_number(completions: list[Any], answer: list[Any], **columns: Any) -> list[float]:
    """1 where the last number in the completion equals the answer in value: 7, 7.0 and 007 are the same.

    A minus sign counts only where no digit or letter stands before it: "3-5" ends with 5.
    """
    return [
        float(_last_number(text_of(c)) == Decimal(str(a).replace(",", "")))
        for c, a in zip(completions, answer, strict=True)
    ]


def _last_number(text: str) -> Decimal | None:
    last = None
    for last in _NUMBER.finditer(text):
        pass
    if last is None:
        return None
    digits = last.group().replace(",", "")
    if digits.startswith("-") and last.start() and text[last.start() - 1].isalnum():
        digits = digits[1:]
    return Decimal(digits)


def resolve(name: str) -> Reward:
    """The reward function of that name (`exact`, `last-number`) or import path (`module:function`), guarded.

    Modules are looked for in the working directory too. Raises UserError if there is no such function.
    """
    if name in (known := {"exact": exact, "last-number": last_number}):
        return guarded(known[name], name)
    module, colon, function = name.partition(":")
    if not colon:
        raise UserError(f"reward must be 'exact', 'last-number', 'reasoning-gym' or 'module:function', got {name!r}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"reward {name!r} cannot be imported: {error}") from None
    if not callable(found):
        raise UserError(f"reward {name!r} must be a function, got {type(found).__name__}")
    return guarded(found, name)


def guarded(reward: Reward, name: str) -> Reward:
    """The same reward; what it raises, or a result of the wrong length, becomes one line that names it."""

    @functools.wraps(reward)
    def call(*args: Any, **columns: Any) -> list[float | None]:
        try:
            values = reward(*args, **columns)
        except Exception as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            place = f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""
            raise RewardError(f"reward {name!r} raised {type(error).__name__}: {error}{place}") from error
        expected = len(columns["completions"])
        if not isinstance(values, list) or len(values) != expected:
            got = len(values) if hasattr(values, "__len__") else type(values).__name__
            raise RewardError(
                f"reward {name!r} must return a list of {expected} numbers, one per completion, got {got}"
            )
        return values

    return call
