"""Contests: methods that were all searched for equally long, compared on seeds that nothing was chosen by.

`contest.py` says what is to be compared, `reading.py` reads and checks it, `cells.py` makes single pieces of work of
it, in worlds or, by `labs.py`, in the lab, `running.py` runs and keeps them, and `choosing.py` picks a setting of each
family, with `widening.py` at the edges of its grid, and compares them.
"""

from importlib import import_module
from typing import Any

import research.rules  # noqa: F401  (contests name them by their kinds)

_HOMES = {"Contest": "contest", "Results": "choosing", "hold": "running", "read_contest": "reading"}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: its file is slow to import."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
