"""Check the installed versions, and verl's plug-in."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator

from . import Finding

# What bandpo is tested with (constraints.txt and constraints-verl.txt), and the releases that its integrations need.
TESTED: dict[str, tuple[str, ...]] = {
    "torch": ("2.13.0",),
    "trl": ("1.16.0", "0.24.0"),  # and some between, benchmarks/trl_versions.csv
    "transformers": ("5.23.0", "5.10.4"),  # with TRL, with verl
    "verl": ("0.9.1", "0.9.0"),
    "ray": ("2.60.0",),
    "vllm": ("0.28.0",),
}
NEEDED = {"trl": ("0.24", "1.16"), "verl": ("0.9", "0.9")}


def installation() -> Iterator[Finding]:
    """Find the installed versions, and what is missing or untested."""
    yield Finding("ok", f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name, tested in TESTED.items():
        version = version_of(name)
        same = version is not None and version.partition("+")[0] in tested
        known = "" if same else f" (tested with {' and '.join(tested)})"
        if version is None:
            yield Finding("note", f"{name} is not installed{known}")
        elif name in NEEDED and not _minor(NEEDED[name][0]) <= _minor(version) <= _minor(NEEDED[name][1]):
            cure = f"pip install '{name}=={NEEDED[name][1]}.*'; the integration leans on names of these releases"
            needed = " to ".join(dict.fromkeys(f"{each}.x" for each in NEEDED[name]))
            yield Finding("problem", f"{name} {version}, bandpo needs {needed}", cure)
        else:
            yield Finding("ok", f"{name} {version}{known}")


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def version_of(name: str) -> str | None:
    """Return the installed version of a package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# What a process must print to have the plug-in. verl loads plug-ins when it is imported, and hides why one failed.
_LOOK = """
def look():
    import verl
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as known
    return "loss known" if "bandpo" in known else "loss unknown"
"""
_HERE = f"{_LOOK}\nprint(look())"
_IN_A_WORKER = f"""{_LOOK}
import os, ray
ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, logging_level="ERROR")
print(ray.get(ray.remote(num_cpus=0)(look).remote(), timeout=120))
"""


def plug_in(ray: bool = True) -> Iterator[Finding]:
    """Check that verl knows the policy loss `bandpo`. It asks a fresh process and a Ray worker."""
    if version_of("verl") is None:
        return
    yield _ask("a fresh process", _HERE)
    if ray and version_of("ray") is not None:
        address = os.environ.get("RAY_ADDRESS")
        yield _ask(f"a worker of the Ray cluster at {address}" if address else "a Ray worker", _IN_A_WORKER)


def _ask(where: str, script: str) -> Finding:
    command, environment = [sys.executable, "-P", "-c", script], {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return Finding("problem", f"{where} did not answer within 300 s", "is the cluster up, and has it a free CPU?")
    if "loss known" in done.stdout:
        return Finding("ok", f"verl knows the policy loss 'bandpo' in {where}")
    reason = (done.stderr.strip().splitlines() or ["it is not among verl's policy losses"])[-1]
    cure = "install bandpo in the environment of that process (in Ray: on every node, or by runtime_env)"
    if "loss unknown" in done.stdout:
        reason = "verl loaded no plug-in of that name; `python -c 'import bandpo.integrations.verl'` shows why"
        cure += "; VERL_USE_EXTERNAL_PLUGINS, if it is set, must name bandpo"
    return Finding("problem", f"verl does not know the policy loss 'bandpo' in {where}: {reason}", cure)
