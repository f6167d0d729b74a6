"""Write the table of docs/hosts.md: each trainer, how it takes a rule, and what was run of it.

    python docs/hosts.py

What it takes is in docs/hosts.csv; a recipe is a file of examples/trainers. What was run, and how it ended, is in the
rows that hosts.py, host_installs.py and verl_versions.py of research/measurements write. `run` is
"trained" (by its own trainer, a tiny model), "real function" (of an installed package), "from its source" (its own
file, with stand-ins for what that imports), "its formula" (written again in the test) or "its configuration" (composed
with our settings); "read" is what no script has run.
"""

import re
import sys
from pathlib import Path

from bandpo.integrations import TRAINERS

ROWS, PAGE = Path(__file__).with_name("hosts.csv"), Path(__file__).with_name("hosts.md")
ROOT = Path(__file__).parent.parent
RUNS = ROOT / "research" / "measurements"
sys.path.append(str(ROOT))
from research.csv_rows import read_rows  # noqa: E402

COLUMNS = ("trainer", "module", "run", "agrees", "takes", "version or commit")

AGREES = {"bit for bit, equal": "yes", "equal": "to rounding"}


def results() -> dict[str, list[dict[str, str]]]:
    """Return what was run, by trainer."""
    found: dict[str, list[dict[str, str]]] = {}
    cells = {"run": "real function", "clip": "bit for bit", "band": "equal"}
    failed = {"clip": "failed", "band": "failed"}
    for row in read_rows(RUNS / "host_installs.csv"):  # on several Pythons: one of those that can import it counts
        passed = row["imports"] == "yes" and re.fullmatch(r"\d+ passed(, \d+ (deselected|warnings?))*", row["tests"])
        if passed or row["host"] not in found:
            one = row | cells | {"version": row["installed"].partition("==")[2]} | ({} if passed else failed)
            found[row["host"]] = [one]
    found |= {row["host"]: [row] for row in read_rows(RUNS / "hosts.csv")}
    releases: dict[str, dict[str, str]] = {}
    for row in read_rows(RUNS / "verl_versions.csv"):
        last = releases.get(row["verl"], row | cells | {"run": "trained", "version": row["verl"]})
        releases[row["verl"]] = last | ({} if row["result"].startswith("passed") else failed)
    found["verl"] = sorted(releases.values(), key=lambda row: [*map(int, row["verl"].split("."))], reverse=True)
    return found


def table() -> str:
    """Write the table."""
    lines, ran = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"], results()
    for row in read_rows(ROWS):
        recipe = f"[recipe](../examples/trainers/{row['recipe']}.py)"
        module = recipe if row["recipe"] else f"`{row['module']}`"
        clamps = not row["module"] or TRAINERS[row["host"].partition(",")[0]].clamps
        takes = row["takes"] or ("bounds" if clamps else "gate")
        for one in ran.get(row["host"]) or [{"version": row["read"], "run": "read"}]:
            ended = ", ".join(dict.fromkeys(one.get(name) or "not run" for name in ("clip", "band")))
            version = one["version"].removeprefix("commit ")
            cells = (row["host"], module, one["run"], AGREES.get(ended, ended), takes, version)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    """Write the page as it should be."""
    found = PAGE.read_text(encoding="utf-8")
    return re.sub(r"\| trainer \| module .*?\n\n", lambda _: f"{table()}\n\n", found, count=1, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
