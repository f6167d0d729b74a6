"""Contests: methods that were all searched for equally long, compared on seeds that nothing was chosen by.

`contest.py` reads what is to be compared, `cells.py` makes single pieces of work of it, `running.py` runs and keeps
them, and `choosing.py` picks a setting of each family and compares them.
"""

from ..faces import lazily

__getattr__ = lazily(
    __name__, {"Contest": "contest", "Results": "choosing", "hold": "running", "read_contest": "contest"}
)
