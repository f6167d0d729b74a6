"""Check a setup. `installed` looks at packages, a module each at the settings of a trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """Hold one line of the report: the case (`what`) and its `cure`."""

    level: Level
    what: str
    cure: str = ""
