"""Check the installed versions, and verl's plug-in."""

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator

from . import Finding, Level

# What bandpo is tested with (constraints/), and the releases that its integrations need.
TESTED: dict[str, tuple[str, ...]] = {
    "torch": ("2.13.0",),
    "trl": ("1.16.0", "0.24.0"),  # and some between, research/measurements/trl_versions.csv
    "transformers": ("5.23.0", "5.10.4"),  # with TRL, with verl
    "verl": ("0.9.1", "0.9.0", "0.8.0", "0.7.1"),  # research/measurements/verl_versions.csv
    "ray": ("2.60.0",),
    "vllm": ("0.28.0",),
    "TransferQueue": ("0.1.11",),
    "flash-attn": (),
}
# What verl 0.9.1 names for GPUs (constraints/gpu.txt). No GPU run of ours stands behind it.
FOR_GPUS = {"torch": "2.11.0", "transformers": "5.9.0", "vllm": "0.24.0", "flash-attn": "2.8.3"}
# What verl needs beside torch, and for what.
FOR_VERL = {
    "ray": "verl's processes are its workers",
    "vllm": "it samples the answers in our recipes",
    "TransferQueue": "verl's trainer keeps its batches in it",
    "flash-attn": "verl's attention on GPUs, and log-probabilities in float32",
}
_INSTALL = "docs/verl.md#on-gpus has an image, and versions that go together"
# What needs each extra. verl and its parts are looked at by themselves.
EXTRAS = {
    "lab": "bandpo train, lab, report, watch and calibrate, and for BandPOTrainer",
    "eval": "bandpo eval, score, compare and table",
    "reasoning-gym": "data of reasoning_gym",
    "trackers": "event files of tensorboard",
    "inspect": "logs of inspect_ai",
}
NEEDED = {"trl": ("0.24", "1.16"), "verl": ("0.7", "0.9")}

# The last with `trl.experimental.ppo`; verl's worker imports that where TRL is installed.
_TRL_OF_VERL = (1, 12)
_PLUG_INS = (0, 9)  # verl from here on loads plug-ins, and its trainer needs TransferQueue


def installation() -> Iterator[Finding]:
    """Find the installed versions, and what is missing or untested."""
    yield Finding("ok", f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    verl = version_of("verl")
    has_plug_ins = minor(verl or "0.9") >= _PLUG_INS
    for name, tested in TESTED.items():
        version = version_of(name)
        number = version and version.partition("+")[0]
        remark = f" (tested with {', '.join(tested)})" if tested else " (not tested)"
        if number and number in (*tested, FOR_GPUS.get(name)):
            remark = "" if number in tested else " (verl's version for GPUs; not run by us)"
        if version is None and verl and name in FOR_VERL and (has_plug_ins or name != "TransferQueue"):
            yield Finding("warning", f"{name} is not installed: {FOR_VERL[name]}", _INSTALL)
        elif version is None and name == "verl":  # the others are brought by an extra
            yield Finding("note", f"verl is not installed{remark}", _INSTALL)
        elif (
            version
            and name in NEEDED
            and not minor(NEEDED[name][0]) <= minor(version) <= minor(NEEDED[name][1])
        ):
            yield Finding(
                "problem",
                f"{name} {version}, bandpo needs {' to '.join(f'{each}.x' for each in NEEDED[name])}",
                f"pip install '{name}=={NEEDED[name][1]}.*'; the integration leans on names of these releases"
                + "; if it is EasyR1's own package verl: docs/hosts.md" * (name == "verl"),
            )
        elif version:
            yield Finding("ok", f"{name} {version}{remark}")
    trl = version_of("trl")
    if verl and trl and minor(trl) > _TRL_OF_VERL:
        yield Finding(
            "warning",
            f"verl's FSDP worker cannot make a model beside TRL {trl}: it imports trl.experimental.ppo",
            "to train with verl here: pip install 'trl<1.13'",
        )
    yield _gpus("warning" if verl else "note")
    for extra, use in EXTRAS.items():
        missing = _missing(extra)
        if missing:
            yield Finding(
                "note",
                f"not installed, for {use}: {', '.join(missing)}",
                f"pip install 'bandpo[{extra}]'",
            )


def _missing(extra: str) -> list[str]:
    """Name the packages of an extra that are not installed."""
    lines = (
        importlib.metadata.requires("bandpo") or [] if version_of("bandpo") else []
    )  # it may run from its source
    names = {re.split(r"[^\w.-]", line)[0] for line in lines if line.endswith(f"extra == '{extra}'")}
    return sorted(name for name in names if version_of(name) is None)


def _gpus(missing: Level) -> Finding:
    """Look for GPUs as torch sees them."""
    try:
        import torch

        built, count = torch.version.cuda or torch.version.hip, torch.cuda.device_count()
        names = " and ".join(sorted({torch.cuda.get_device_name(number) for number in range(count)}))
    except Exception as error:  # whatever a broken torch or driver raises
        return Finding("problem", f"torch cannot be used: {type(error).__name__}: {error}", _INSTALL)
    if not built:
        return Finding(missing, f"no GPU: torch {torch.__version__} is a build for CPUs", _INSTALL)
    if not count:
        return Finding(
            missing,
            f"no GPU is seen by torch {torch.__version__}, a build for CUDA {built}",
            "nvidia-smi shows GPUs and driver, which must be new enough for that CUDA; see CUDA_VISIBLE_DEVICES, too",
        )
    return Finding("ok", f"{count} x {names}, CUDA {built}")


def minor(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
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
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
    return "loss known" if "bandpo" in POLICY_LOSS_REGISTRY else "loss unknown"
"""
_HERE = f"""{_LOOK}
print(look())
try:
    import verl.workers.engine_workers
except Exception as error:
    print(f"no worker: {{error}}")
"""
_IN_A_WORKER = f"""{_LOOK}
import os, ray
ray.init(address=os.environ.get("RAY_ADDRESS"), log_to_driver=False, logging_level="ERROR")
print(ray.get(ray.remote(num_cpus=0)(look).remote(), timeout=120))
"""


def plug_in(ray: bool = True) -> Iterator[Finding]:
    """Check that verl knows the policy loss `bandpo` and can import its worker.

    It asks a fresh process, and for the loss a Ray worker too.

    Releases before 0.9 load no plug-ins, so there the module is imported first, as `_target_` does.
    """
    version = version_of("verl")
    if version is None:
        return
    here, in_a_worker = _HERE, _IN_A_WORKER
    if minor(version) < _PLUG_INS:
        here, in_a_worker = (
            x.replace("import verl\n", "import bandpo.integrations.verl\n") for x in (here, in_a_worker)
        )
        yield Finding(
            "note",
            f"verl {version} loads no plug-ins: the setting _target_ makes the loss known, in each process",
            "or set VERL_USE_EXTERNAL_MODULES=bandpo.integrations.verl for every process",
        )
    yield from _ask("a fresh process", here)
    if ray and version_of("ray") is not None:
        address = os.environ.get("RAY_ADDRESS")
        yield from _ask(
            f"a worker of the Ray cluster at {address}" if address else "a Ray worker", in_a_worker
        )


def _ask(where: str, script: str) -> Iterator[Finding]:
    command, environment = (
        [sys.executable, "-P", "-c", script],
        {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        yield Finding(
            "problem",
            f"{where} did not answer within 300 s",
            "is the cluster up, and has it a free CPU?",
        )
        return
    if "loss known" in done.stdout:
        yield Finding("ok", f"verl knows the policy loss 'bandpo' in {where}")
        for reason in re.findall("^no worker: (.*)", done.stdout, re.MULTILINE):
            yield Finding(
                "problem",
                f"verl's worker cannot be imported in {where}: {reason}",
                "verl's rollout engine (vllm or sglang) brings what is missing: uvicorn, fastapi",
            )
        return
    reason = (done.stderr.strip().splitlines() or ["it is not among verl's policy losses"])[-1]
    cure = "install bandpo in the environment of that process (in Ray: on every node, or by runtime_env)"
    if "loss unknown" in done.stdout:
        reason = (
            "verl loaded no plug-in of that name; `python -c 'import bandpo.integrations.verl'` shows why"
        )
        cure += "; VERL_USE_EXTERNAL_PLUGINS, if it is set, must name bandpo"
    yield Finding("problem", f"verl does not know the policy loss 'bandpo' in {where}: {reason}", cure)
