"""Which releases of TRL the trainer works with: its tests under each, in an environment of that release's own.

    python -m research.measurements.trl_versions [1.9.2 ...] [--of-its-time] [--keep FOLDER] [--write]

Each release is tried with the transformers of its time and with the newest one, which pip takes where only TRL is
pinned. An environment is laid over the one that runs this command: TRL, transformers, and what these two want otherwise
are installed anew, the rest (torch, datasets, accelerate, pytest, ...) is seen through. In it run the contract with
TRL (tests/integrations/test_trl.py and test_trl_objectives.py) and, from TRL 1.0 on, `bandpo train`
(tests/training/test_on_trl.py); warnings of old releases do not count. Beside them each subclass of GRPOTrainer that
the release has (test_trl_subclasses.py): it has its own weights under `Clip`, bit for bit, or is refused by name.
`--write` replaces the rows of these releases in trl_versions.csv; the exit code is that of the worst row.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from packaging.version import Version

from bandpo_runs.provenance import source_commit
from research.csv_rows import replace_rows

ROOT = Path(__file__).parents[2]
# The last patch of every minor, and a transformers from the days of its release.
RELEASES = {
    "0.24.0": "4.57.1",
    "0.25.1": "4.57.1",
    "0.26.2": "4.57.3",
    "0.27.2": "5.0.0",
    "0.28.0": "5.1.0",
    "0.29.1": "5.3.0",
    "1.0.0": "5.4.0",
    "1.1.0": "5.5.3",
    "1.2.0": "5.5.4",
    "1.3.0": "5.6.2",
    "1.4.0": "5.8.0",
    "1.5.1": "5.9.0",
    "1.6.0": "5.11.0",
    "1.7.1": "5.12.1",
    "1.8.0": "5.12.1",
    "1.9.2": "5.14.1",
    "1.10.0": "5.14.1",
    "1.11.0": "5.15.1",
    "1.12.0": "5.15.1",
    "1.13.0": "5.17.0",
    "1.14.2": "5.19.0",
    "1.15.0": "5.19.0",
    "1.16.0": "5.19.0",
}
SUITES = {
    "contract": ["tests/integrations/test_trl.py", "tests/integrations/test_trl_objectives.py"],
    "train": ["tests/training/test_on_trl.py", "-k", "not killed"],
}
SUBCLASSES = ["tests/integrations/test_trl_subclasses.py", "-k", "each_subclass"]
# Before it TRL has no `log_metric`, by which rewards report, and before 0.26 no `num_generations_eval`.
TRAIN_FROM = Version("1.0")
# It computes the loss by Triton kernels alone, so without a GPU nothing trains but in Triton's interpreter, which takes
# minutes for what takes seconds elsewhere: there are fewer tests of it.
INTERPRETED = {"1.15.0": ["-k", "clip_equals or uneven or refused or delta_keeps"]}
COLUMNS = [
    *("trl", "transformers", "python", "torch", "huggingface_hub", "datasets"),
    *(f"{suite}_{count}" for suite in SUITES for count in ("passed", "failed", "skipped")),
    *("subclasses", "result", "commit"),
]


def pinned(name: str) -> str:
    """The version in constraints/base.txt."""
    lines = (ROOT / "constraints/base.txt").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}==")]
    return line.partition("==")[2]


def overlay(folder: Path, package: str, *install: str) -> Path:
    """A virtual environment over the running one, made by pip unless this package is in it; returns its Python."""
    python = folder / "bin" / "python"
    if [*folder.glob(f"lib/python*/site-packages/{package}-*")]:
        return python.absolute()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    below = [sysconfig.get_path(kind) for kind in ("purelib", "platlib")]
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "below.pth").write_text("\n".join(dict.fromkeys(below)) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, *install], check=True, stdout=subprocess.DEVNULL)
    return python.absolute()


def environment(folder: Path, trl: str, transformers: str) -> Path:
    """An environment with these two; torch stays what it is."""
    # TRL 0.28 to 1.13 imports requests without naming it; datasets 5.2 no longer brings it.
    wanted = [f"trl=={trl}", f"transformers=={transformers}", f"torch=={pinned('torch')}"]
    wanted += ["accelerate", "datasets", "requests", *(["triton"] if trl in INTERPRETED else [])]
    return overlay(folder, "trl", *wanted)


def cases(python: Path | str, suite: list[str], *paths: Path | str) -> tuple[list[ElementTree.Element], str]:
    """The tests of a run of pytest as its report has them, none where it made no report, and what it printed."""
    own = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", *paths)))}
    own |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1", "VERL_PLATFORM": "cpu"}
    command = [python, "-m", "pytest", "-q", "-n", "0", "-m", "", "-W", "default", "-p", "no:cacheprovider"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [*command, f"--junitxml={report}", *suite],
            cwd=ROOT,
            env=os.environ | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return [*ElementTree.parse(report).iter("testcase")] if report.exists() else [], done.stdout


def test(python: Path, suite: list[str], *paths: Path | str) -> tuple[dict[str, int], list[str]]:
    """How many tests passed, failed and were skipped, and the names of those that failed, or why."""
    outcomes, printed = cases(python, suite, *paths)
    if not outcomes:
        return {"passed": 0, "failed": 1, "skipped": 0}, printed.strip().splitlines()[-1:]
    bad = []
    for case in outcomes:
        if case.find("failure") is not None:
            bad.append(case.get("name", "?"))
        elif (error := case.find("error")) is not None:  # in an import: the last line says which
            bad.append((re.findall(r"^E +(.*)", error.text or "", re.MULTILINE) or ["?"])[-1])
    skipped = sum(case.find("skipped") is not None for case in outcomes)
    if bad:
        print(printed)
    return {"passed": len(outcomes) - len(bad) - skipped, "failed": len(bad), "skipped": skipped}, bad


def subclasses(python: Path) -> tuple[str, list[str]]:
    """What became of each subclass, as its test says, and the names of those that failed."""
    outcomes, printed = cases(python, SUBCLASSES)
    told, bad = [], [] if outcomes else printed.strip().splitlines()[-1:]
    for case in outcomes:
        name = case.get("name", "?").rpartition("-")[2].rstrip("]")
        values = [each.get("value", "") for each in case.iter("property")]
        told.append(f"{name} {values[0] if values else 'failed'}")
        bad += [] if values and case.find("failure") is None else [name]
    return "; ".join(told), bad


def row(folder: Path, trl: str, transformers: str, commit: str | None) -> dict[str, object]:
    out: dict[str, object] = {"trl": trl, "transformers": transformers, "python": platform.python_version()}
    try:
        python = environment(folder, trl, transformers)
    except subprocess.CalledProcessError as error:
        return {**out, "result": f"no environment: pip ended with {error.returncode}"}
    ask = "from importlib.metadata import version; print(*map(version, ['torch', 'huggingface_hub', 'datasets']))"
    installed = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.split()
    out |= zip(("torch", "huggingface_hub", "datasets"), installed, strict=True)
    failed = []
    for name, suite in SUITES.items():
        if name == "train" and (failed or Version(trl) < TRAIN_FROM or trl in INTERPRETED):
            continue
        counts, failed = test(python, suite + INTERPRETED.get(trl, []))
        out |= {f"{name}_{key}": value for key, value in counts.items()}
    if not failed and trl not in INTERPRETED:
        out["subclasses"], failed = subclasses(python)
    return {**out, "result": "failed: " + ", ".join(failed) if failed else "passed", "commit": commit}


def in_order(row: dict[str, str]) -> list[Version]:
    return [Version(row["trl"]), Version(row["transformers"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="releases of TRL; by default all")
    parser.add_argument("--of-its-time", action="store_true", help="only with the transformers of each release's time")
    parser.add_argument("--keep", type=Path, help="where to keep environments, and to take them from if they are there")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    unknown = sorted(set(args.versions) - set(RELEASES))
    if unknown:
        parser.error(f"unknown release of TRL: {', '.join(unknown)}; this command knows {', '.join(RELEASES)}")
    worst, commit = False, source_commit()  # before rows are written
    for trl in args.versions or RELEASES:
        for transformers in dict.fromkeys([RELEASES[trl], *([] if args.of_its_time else [pinned("transformers")])]):
            with tempfile.TemporaryDirectory() as folder:
                made = row((args.keep or Path(folder)) / f"{trl}-{transformers}", trl, transformers, commit)
            print(", ".join(f"{key} {value}" for key, value in made.items()), flush=True)
            worst = worst or made["result"] != "passed"
            if args.write:
                replace_rows(Path(__file__).with_suffix(".csv"), [made], ("trl", "transformers"), COLUMNS, in_order)
    raise SystemExit(worst)


if __name__ == "__main__":
    main()
