"""Findings of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the report: `what` is the case, `cure` is what to do about it."""

    level: Level
    what: str
    cure: str = ""
