"""Which releases of verl the loss works with: its tests under each, in an environment of that release's own.

    python -m research.measurements.verl_versions [0.8.0 ...] [--keep FOLDER] [--write]

Run it where the tests of tests/cluster run (`verl` in .ci/stages): an environment is laid over that one, verl alone is
installed anew, without what it names, and the rest (torch for CPUs, transformers, Ray, ...) is seen through. So the
rows say nothing about the packages of that release's time. In it run the tests of tests/cluster that need no Ray: the
three settings and the refusals through verl's configuration classes, loss and gradient against verl's own losses, and
verl's own worker (FSDP 2, gloo, one and two processes, four updates).
`--write` replaces the rows of these releases in verl_versions.csv; the exit code is that of the worst row.
"""

import argparse
import datetime
import subprocess
import tempfile
from pathlib import Path

from packaging.version import Version

from bandpo_runs.provenance import source_commit
from research.csv_rows import replace_rows
from research.measurements.trl_versions import ROOT, overlay, test

RELEASES = ("0.7.1", "0.8.0", "0.9.1")
# The tests, and which of them a release cannot run. Before 0.9 verl checks its settings after Ray has begun, and has no
# loss `dro`.
SETTINGS = ("settings and refusals", "test_verl_config.py", "")
LOSS = ("loss and gradient are verl's, bit for bit", "test_verl_loss.py", "")
SUITES = {
    "0.7.1": [
        (*SETTINGS[:2], "not before_ray"),
        (*LOSS[:2], "not dro"),
        (
            "newer workers in bfloat16; older actor in float32, weights bit for bit; refused at start",
            "test_verl_07.py",
            "",
        ),
    ],
    "0.8.0": [(*SETTINGS[:2], "not before_ray"), (*LOSS[:2], "not dro")],
    "0.9.1": [SETTINGS, LOSS],
}
WORKER = ("worker, 1 and 2 processes: weights are verl's, bit for bit", "test_verl_worker.py", "")
COLUMNS = ["verl", "what", "result", "torch", "transformers", "date", "commit"]


def result(python: Path, file: str, chosen: str) -> str:
    """Run the tests of a file; "passed 12", or what failed."""
    counts, failed = test(python, [f"tests/cluster/{file}", "-k", chosen], ROOT / "tests" / "cluster")
    right = counts["passed"] and not counts["failed"]
    return f"passed {counts['passed']}" if right else f"failed: {', '.join(failed)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="releases of verl; by default all")
    parser.add_argument("--keep", type=Path, help="where to keep environments, and to take them from if they are there")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if unknown := sorted(set(args.versions) - set(RELEASES)):
        parser.error(f"unknown release of verl: {', '.join(unknown)}; this command knows {', '.join(RELEASES)}")
    worst, commit = False, source_commit()  # before rows are written
    for verl in args.versions or RELEASES:
        with tempfile.TemporaryDirectory() as folder:
            python = overlay((args.keep or Path(folder)) / verl, "verl", "--no-deps", f"verl=={verl}")
            ask = "from importlib.metadata import version; print(*map(version, ['verl', 'torch', 'transformers']))"
            installed = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.split()
            if installed[0] != verl:
                raise SystemExit(f"the environment must have verl {verl}, got {installed[0]}")
            about = dict(zip(COLUMNS[3:], (*installed[1:], str(datetime.date.today()), commit), strict=True))
            rows = []
            for what, file, chosen in SUITES[verl] + ([] if verl == "0.7.1" else [WORKER]):
                rows.append({"verl": verl, "what": what, "result": result(python, file, chosen)} | about)
                print(*rows[-1].values(), sep=", ", flush=True)
        worst = worst or any(not row["result"].startswith("passed") for row in rows)
        if args.write:
            replace_rows(
                Path(__file__).with_suffix(".csv"), rows, ["verl"], COLUMNS, order=lambda row: Version(row["verl"])
            )
    raise SystemExit(worst)


if __name__ == "__main__":
    main()
