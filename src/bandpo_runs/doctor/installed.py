"""Check the installed versions."""

import platform
import re
from collections.abc import Iterator

import torch

from ..provenance import version_of
from . import Finding

_ANY = ("0", "99")
# Of each package: the versions that bandpo is tested with (constraints/); the first and the last release that it can
# use; and what verl, which needs it beside torch, needs it for.
_PACKAGES: dict[str, tuple[tuple[str, ...], tuple[str, str], str]] = {
    "torch": (("2.13.0",), _ANY, ""),
    # And some between, research/measurements/trl_versions.csv.
    "trl": (("1.16.0", "0.24.0"), ("0.24", "1.16"), ""),
    "transformers": (("5.23.0", "5.10.4"), _ANY, ""),  # with TRL, with verl
    # research/measurements/verl_versions.csv
    "verl": (("0.9.1", "0.9.0", "0.8.0", "0.7.1"), ("0.7", "0.9"), ""),
    "ray": (("2.60.0",), _ANY, "verl's processes are its workers"),
    "vllm": (("0.28.0",), _ANY, "it samples the answers in our recipes"),
    "TransferQueue": (("0.1.11",), _ANY, "verl's trainer keeps its batches in it"),
    "flash-attn": ((), _ANY, "verl's attention on GPUs, and log-probabilities in float32"),
}
_INSTALL = "docs/verl.md#on-gpus has an image, and versions that go together"


def installation() -> Iterator[Finding]:
    """Find the installed versions, and what is missing or untested."""
    yield Finding("ok", f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    versions = {name: version_of(name) or "" for name in _PACKAGES}
    verl, trl = versions["verl"], versions["trl"]
    for name, (tested, (oldest, newest), use) in _PACKAGES.items():
        version, remark = (
            versions[name],
            f" (tested with {', '.join(tested)})" if tested else " (not tested)",
        )
        if version and minor(oldest) <= minor(version) <= minor(newest):
            yield Finding("ok", f"{name} {version}{remark * (version.partition('+')[0] not in tested)}")
        elif version:
            cure = f"pip install '{name}=={newest}.*'"
            cure += "; for EasyR1's own package verl see docs/hosts.md" * (name == "verl")
            yield Finding("problem", f"{name} {version}: bandpo needs {oldest}.x to {newest}.x", cure)
        elif name == "verl":
            yield Finding("note", f"verl is not installed{remark}", _INSTALL)
        elif verl and use and (name != "TransferQueue" or minor(verl) >= (0, 9)):
            yield Finding("warning", f"{name} is not installed: {use}", _INSTALL)
    if verl and minor(trl) > (1, 12):  # the last with trl.experimental.ppo
        what = f"verl's FSDP worker cannot make a model beside TRL {trl}: it imports trl.experimental.ppo"
        yield Finding("warning", what, "to train with verl here: pip install 'trl<1.13'")
    yield _gpus(needed=bool(verl))


def _gpus(needed: bool) -> Finding:
    """Look for GPUs as torch sees them."""
    try:
        built, count = torch.version.cuda or torch.version.hip, torch.cuda.device_count()
        names = " and ".join(sorted({torch.cuda.get_device_name(number) for number in range(count)}))
    except Exception as error:  # whatever a broken driver raises
        return Finding("problem", f"torch cannot be used: {type(error).__name__}: {error}", _INSTALL)
    if built and count:
        return Finding("ok", f"{count} x {names}, CUDA {built}")
    what = f"no GPU is seen by torch {torch.__version__}, which is a build for {f'CUDA {built}' if built else 'CPUs'}"
    cure = "nvidia-smi shows GPUs and driver, which must be new enough for that CUDA; see CUDA_VISIBLE_DEVICES, too"
    return Finding("warning" if needed else "note", what, cure if built else _INSTALL)


def minor(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
