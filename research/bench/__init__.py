"""Contests: methods that were all searched for equally long, compared on seeds that nothing was chosen by.

`contest.py` says what is to be compared, `reading.py` reads and checks it, `cells.py` makes single pieces of work of
it, in worlds or, by `labs.py`, in the lab, `running.py` runs and keeps them, and `choosing.py` picks a setting of each
family, with `widening.py` at the edges of its grid, and compares them.
"""

import research.rules  # noqa: F401  (contests name them by their kinds)
from bandpo_runs.faces import lazily

__getattr__ = lazily(
    __name__, {"Contest": "contest", "Results": "choosing", "hold": "running", "read_contest": "reading"}
)
