"""Checks of a setup: what is installed (`installed`), and which settings of a trainer do nothing (a module each)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the report: `what` is the case, and `cure` is what to do about it."""

    level: Level
    what: str
    cure: str = ""
