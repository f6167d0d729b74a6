"""Check the installed versions."""

import platform
import re
from collections.abc import Iterator

from ..provenance import version_of
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
# What verl needs beside torch, and for what.
FOR_VERL = {
    "ray": "verl's processes are its workers",
    "vllm": "it samples the answers in our recipes",
    "TransferQueue": "verl's trainer keeps its batches in it",
    "flash-attn": "verl's attention on GPUs, and log-probabilities in float32",
}
_INSTALL = "docs/verl.md#on-gpus has an image, and versions that go together"
NEEDED = {"trl": ("0.24", "1.16"), "verl": ("0.7", "0.9")}

# The last with `trl.experimental.ppo`; verl's worker imports that where TRL is installed.
_TRL_OF_VERL = (1, 12)


def installation() -> Iterator[Finding]:
    """Find the installed versions, and what is missing or untested."""
    yield Finding("ok", f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    versions = {name: version for name in TESTED if (version := version_of(name)) is not None}
    for name, version in versions.items():
        tested, (oldest, newest) = TESTED[name], NEEDED.get(name, (version, version))
        remark = f" (tested with {', '.join(tested)})" if tested else " (not tested)"
        if minor(oldest) <= minor(version) <= minor(newest):
            yield Finding("ok", f"{name} {version}{remark * (version.partition('+')[0] not in tested)}")
        else:
            yield Finding(
                "problem",
                f"{name} {version}: bandpo needs {oldest}.x to {newest}.x",
                f"pip install '{name}=={newest}.*'"
                + "; for EasyR1's own package verl see docs/hosts.md" * (name == "verl"),
            )
    verl, trl = versions.get("verl"), versions.get("trl", "0")
    if verl is None:
        yield Finding(
            "note", f"verl is not installed (tested with {', '.join(TESTED['verl'])})", _INSTALL
        )
    for name, use in FOR_VERL.items():
        if verl and name not in versions and (name != "TransferQueue" or minor(verl) >= (0, 9)):
            yield Finding("warning", f"{name} is not installed: {use}", _INSTALL)
    if verl and minor(trl) > _TRL_OF_VERL:
        yield Finding(
            "warning",
            f"verl's FSDP worker cannot make a model beside TRL {trl}: it imports trl.experimental.ppo",
            "to train with verl here: pip install 'trl<1.13'",
        )
    yield _gpus("warning" if verl else "note")


def _gpus(missing: Level) -> Finding:
    """Look for GPUs as torch sees them."""
    try:
        import torch

        built, count = torch.version.cuda or torch.version.hip, torch.cuda.device_count()
        names = " and ".join(sorted({torch.cuda.get_device_name(number) for number in range(count)}))
    except Exception as error:  # whatever a broken torch or driver raises
        return Finding("problem", f"torch cannot be used: {type(error).__name__}: {error}", _INSTALL)
    if built and count:
        return Finding("ok", f"{count} x {names}, CUDA {built}")
    what = f"no GPU is seen by torch {torch.__version__}, which is a build for {f'CUDA {built}' if built else 'CPUs'}"
    cure = "nvidia-smi shows GPUs and driver, which must be new enough for that CUDA; see CUDA_VISIBLE_DEVICES, too"
    return Finding(missing, what, cure if built else _INSTALL)


def minor(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
