"""Keep files of the working directory from being imported. They may be a stranger's.

Only `python -P -m bandpo` keeps out one that has the name of a module of Python's own as well.
"""
# ruff: noqa: PTH100, PTH118, PTH119, PTH120  (pathlib would be looked for in that directory)

import os
import sys
from functools import cache


@cache  # of two that call it, the second would take another place from the path
def leave_out_the_working_directory() -> None:
    """Take the working directory from the path of modules. `python -m bandpo` or an empty entry put it there.

    `export PYTHONPATH=$PYTHONPATH:/x` leaves an empty entry, which means it. An entry that names it, as `PYTHONPATH=.`,
    stays. What the command starts has the same path.
    """
    is_module = sys.argv[0] == os.path.join(os.path.dirname(__file__), "__main__.py")
    if not is_module and os.path.basename(sys.argv[0]) != "bandpo":
        return  # a program that calls `bandpo_runs.cli.main` has a path of its own
    if is_module and not sys.flags.safe_path:
        del sys.path[0]
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    named = [place for place in places if place]
    if len(places) == 1 or named == places:
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(named)
    here = os.path.abspath(os.curdir)
    if here not in map(os.path.abspath, named):
        sys.path[:] = [place for place in sys.path if place not in ("", here)]
