"""Write what was run of each trainer: our tests of `Clip` and of `Band` with its own loss, a row of hosts.csv each.

    [BANDPO_HOSTS=FOLDER] python -m research.measurements.hosts [HOST ...] [--write]

It runs in each environment that has some of the trainers: those of the stages `tests`, `verl` and `hosts` in
.ci/stages. FOLDER has a checkout or an unpacked wheel of trainers that are not installed (tests/hosts/test_limits.py).
A trainer whose tests are skipped here keeps its row. `--write` replaces the rows of the others; the exit code is 1
where a test failed, or none of a HOST ran. Other trainers' rows are in host_installs.csv and verl_versions.csv.
"""

import argparse
import datetime
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

from bandpo_runs.provenance import source_commit
from research.csv_rows import read_rows, write_rows
from research.measurements import trl_versions
from research.measurements.trl_versions import ROOT

CSV = Path(__file__).with_suffix(".csv")
SOURCE = "from its source"  # or, where its package is installed, "real function"
LIMITS, RECIPES, CONFIG = "hosts/test_limits.py", "hosts/test_recipes.py", "cluster/test_verl_config.py"
ON_TRL = "hosts/test_recipes_on_trl.py"
# The name of a trainer's package, or of its folder; its tests, by file and what their names hold; and what is run.
TRAINERS = {
    "TRL": ("trl", "integrations/test_trl.py integrations/test_trl_probabilities.py", "", "trained"),
    "TRL, images": ("trl", "integrations/test_trl_images.py", "", "trained"),
    "TRL's SDPO": ("trl", f"{RECIPES} {ON_TRL}", "sdpo", "trained"),
    "TRL, by Oumi": ("oumi", ON_TRL, "oumi", "trained"),
    "AsyncGRPO": ("trl", "integrations/test_trl_async.py", "", "trained"),
    "verl, by agent-lightning": ("agentlightning", CONFIG, "agentlightning", "its configuration"),
    "verl, by rLLM": ("rllm", CONFIG, "rllm", "its configuration"),
    "axolotl": ("axolotl", "hosts/test_axolotl.py", "", "trained"),
    "unsloth": ("unsloth", "hosts/test_unsloth.py", "", SOURCE),
    "torchrl": ("torchrl", "hosts/test_torchrl.py", "", SOURCE),
    "Liger": ("liger_kernel", "hosts/test_liger.py", "", SOURCE),
    "tinker": ("tinker", "hosts/test_tinker.py", "", "its formula"),
    "prime-rl": ("prime_rl", "hosts/test_prime_rl.py", "", SOURCE),
    **{host: (host, LIMITS, host, SOURCE) for host in ("xtuner", "miles", "slime")},
    "OpenRLHF": ("openrlhf", RECIPES, "openrlhf", SOURCE),
    "NeMo-RL": ("nemo_rl", RECIPES, "nemo_rl", SOURCE),
    "open-instruct": ("open_instruct", RECIPES, "open_instruct", SOURCE),
    "ROLL": ("roll", RECIPES, "roll", SOURCE),
    "Twinkle": ("twinkle", RECIPES, "twinkle", SOURCE),
    "labs-molt": ("molt", RECIPES, "molt", SOURCE),
    "EasyR1": ("easyr1", RECIPES, "easyr1", SOURCE),
}
CLIP, BAND = r"test_(clip_(is|equals|trains)|a_training_under_clip)_\w+", r"test_band_(is|has_the_loss)_\w+"
COLUMNS = ["host", "version", "run", "clip", "band", "python", "torch", "date", "commit"]


def run(files: list[str]) -> list[tuple[str, str, str]]:
    """Return file, name and outcome of each test of the two claims in these files."""
    suite = ["--continue-on-collection-errors", "-k", "clip or band or settings_pass", *(f"tests/{x}" for x in files)]
    cases, printed = trl_versions.cases(sys.executable, suite, ROOT / "tests" / "cluster", *sys.path[1:])
    print(printed)
    outcomes = []
    for case in cases:
        bad = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
        file = f"{case.get('classname', '').removeprefix('tests.').replace('.', '/')}.py"
        outcomes.append((file, case.get("name", ""), bad))
    return outcomes


def version_of(package: str) -> str | None:
    """Return the release or the commit of a trainer that is installed or in the folder, or None."""
    folder = Path(os.environ.get("BANDPO_HOSTS", "none"), package)
    if (folder / ".git").exists():
        git = ["git", "-C", folder, "rev-parse", "--short=7", "HEAD"]
        return f"commit {subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()}"
    if folder.is_dir():
        return next((each.version for each in distributions(path=[str(folder)])), None)
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def row(host: str, outcomes: list[tuple[str, str, str]]) -> dict[str, str] | None:
    """Return the row of a trainer, or None where its tests did not run."""
    package, file, part, how = TRAINERS[host]
    cases = [(name, outcome) for where, name, outcome in outcomes if where in file.split() and part in name]
    clip, band = ([each for each in cases if re.match(claim, each[0])] for claim in (CLIP, BAND))
    told = [each for each in cases if "settings_pass" in each[0]] if file == CONFIG else [*clip, *band]
    if not told or any(outcome == "skipped" for _, outcome in told):
        return None
    if how == SOURCE and not Path(os.environ.get("BANDPO_HOSTS", "none"), package).is_dir():
        how = "real function"
    bad = sorted({name for name, outcome in told if outcome != "passed"})
    exact = "bit for bit" if any("bit_for_bit" in name for name, _ in clip) else "equal"
    cells = {"clip": exact, "band": "equal"} if file != CONFIG else {}
    if bad or (file != CONFIG and not (clip and band)):
        cells = dict.fromkeys(("clip", "band"), f"failed: {', '.join(bad) or 'one of the two claims has no test'}")
    about = {"python": platform.python_version(), "torch": version("torch"), "date": str(datetime.date.today())}
    return {"host": host, "version": version_of(package) or "", "run": how, **cells, **about}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=f"{', '.join(TRAINERS)}; by default all")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if unknown := sorted(set(args.hosts) - set(TRAINERS)):
        parser.error(f"unknown trainer: {', '.join(unknown)}; this command knows {', '.join(TRAINERS)}")
    chosen, commit = args.hosts or [*TRAINERS], source_commit()
    outcomes = run([*dict.fromkeys(file for host in chosen for file in TRAINERS[host][1].split())])
    ran = {host: one | {"commit": commit} for host in chosen if (one := row(host, outcomes)) is not None}
    for one in ran.values():
        print(one)
    if args.write:
        rows = {one["host"]: one for one in read_rows(CSV)} | ran
        write_rows(CSV, [rows[host] for host in TRAINERS if host in rows], COLUMNS)
    if missing := [host for host in args.hosts if host not in ran]:
        raise SystemExit(f"no test of {', '.join(missing)} ran here")
    raise SystemExit(any("failed" in one.get("clip", "") for one in ran.values()))


if __name__ == "__main__":
    main()
