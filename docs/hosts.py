"""Write the table of docs/hosts.md from docs/hosts.csv, a row for each trainer and what was run of it.

    python docs/hosts.py

`run` is "trained" (by its own trainer, a tiny model), "real function" (of an installed package), "from its source" (its
own file, with stand-ins for what that imports), "its formula" (written again in the test), "its configuration"
(composed with our settings) or "read". The last two have no result. A row without a module is a recipe of
docs/recipes.md.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from bandpo.integrations import HOSTS

ROWS, PAGE = Path(__file__).with_name("hosts.csv"), Path(__file__).with_name("hosts.md")
WITHOUT = ("its configuration", "read")  # a result
RUN = ("trained", "real function", "from its source", "its formula", *WITHOUT)
COLUMNS = ("host", "version", "module", "hook", "takes", "anchor", "average", "run", "`Clip`", "`Band`")


def table() -> str:
    """Write the table. Raises ValueError for a row that says nothing, or more than was run."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    with ROWS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["run"] not in RUN or any((row[name] == "") != (row["run"] in WITHOUT) for name in ("clip", "band")):
                raise ValueError(
                    f"{row['host']}: run must be one of {RUN}, with results unless it is one of {WITHOUT}, got {row}"
                )
            module = f"`{row['module']}`" if row["module"] else "[recipe](recipes.md)"
            takes = "bounds" if not row["module"] or HOSTS[row["host"].partition(",")[0]].clamps else "gate"
            version = row["version"] or f"commit {row['commit']}"
            results = (row["clip"], row["band"]) if row["run"] not in WITHOUT else ("not run", "not run")
            cells = (row["host"], version, module, row["hook"], takes, row["anchor"], row["average"])
            lines.append(f"| {' | '.join((*cells, row['run'], *results))} |")
    return "\n".join(lines)


def page() -> str:
    """Write the page as it should be."""
    found = PAGE.read_text(encoding="utf-8")
    return re.sub(r"\| host \| version .*?\n\n", lambda _: f"{table()}\n\n", found, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
