"""Which releases of axolotl the plug-in works with: its tests under each, in an environment of that release's own.

    python -m research.measurements.axolotl_versions [0.19.0] [--keep FOLDER] [--write]

An environment is laid over the one that runs this command: axolotl is installed without what it names, then what a GRPO
training on a CPU imports, in axolotl's own versions; the rest (torch, pytest, ...) is seen through. In it run the tests
of tests/hosts/test_axolotl.py, which train a tiny model through axolotl's own `load_cfg` and `train`.
`--write` replaces the rows of these releases in axolotl_versions.csv; the exit code is the worst row's.
"""

import argparse
import datetime
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement

from bandpo_runs.provenance import source_commit
from research.csv_rows import replace_rows
from research.measurements.trl_versions import overlay, pinned, test

RELEASES = ("0.19.0",)
# With what they need, and alone.
WANTED = ["trl", "transformers", "peft", "accelerate", "datasets", "huggingface_hub", "tokenizers", "pydantic", "typer"]
WANTED += ["typing-extensions", "addict", "colorama", "fire", "requests", "posthog", "evaluate", "wandb", "fastcore"]
ALONE = ["triton", "bitsandbytes", "axolotl-contribs-lgpl", "axolotl-contribs-mit"]
ROWS = {
    "Clip trains axolotl's own weights, bit for bit (grpo, gdpo)": "test_clip",
    "Band's loss and gradient are policy_loss's; other weights": "test_band",
    "refusals": "refused",
    "what the plug-in leans on": "not test_clip and not test_band and not refused",
}
COLUMNS = ["axolotl", "what", "result", "trl", "transformers", "torch", "date", "commit"]


def environment(folder: Path, axolotl: str) -> Path:
    """A virtual environment over the running one, with this axolotl; returns its Python."""
    python = overlay(folder, "axolotl", "--no-deps", f"axolotl=={axolotl}")
    (own,) = folder.glob("lib/python*/site-packages")
    if [*own.glob("axolotl_contribs_mit-*")]:
        return python
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    versions = {}
    for line in Distribution.at(*own.glob("axolotl-*.dist-info")).requires or ():
        versions.setdefault((each := Requirement(line)).name, f"{each.name}{each.specifier}")
    for names, more in (WANTED, [f"torch=={pinned('torch')}"]), (ALONE, ["--no-deps"]):
        subprocess.run(
            [*pip, *more, *(versions.get(name, name) for name in names)], check=True, stdout=subprocess.DEVNULL
        )
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="releases of axolotl; by default all known")
    parser.add_argument("--keep", type=Path, help="where to keep environments, and to take them from if they are there")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows = []
    for axolotl in args.versions or RELEASES:
        with tempfile.TemporaryDirectory() as folder:
            python = environment((args.keep or Path(folder)) / axolotl, axolotl)
            names = ["axolotl", "trl", "transformers", "torch"]
            ask = f"from importlib.metadata import version; print(*map(version, {names}))"
            installed = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.split()
            about = dict(zip(names, installed, strict=True))
            about |= {"date": str(datetime.date.today()), "commit": source_commit()}
            for what, chosen in ROWS.items():
                counts, bad = test(python, ["tests/hosts/test_axolotl.py", "-k", chosen])
                whole = counts["passed"] and not counts["failed"] and not counts["skipped"]
                result = f"passed {counts['passed']}" if whole else f"failed: {', '.join(bad) or counts}"
                rows.append(about | {"what": what, "result": result})
                print(rows[-1], flush=True)
    if args.write:
        replace_rows(Path(__file__).with_suffix(".csv"), rows, ["axolotl"], COLUMNS)
    raise SystemExit(any(not row["result"].startswith("passed") for row in rows))


if __name__ == "__main__":
    main()
