"""Record the origin of a result, for folders of runs and rows of measurements."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from pathlib import Path

import torch

from bandpo import __version__


def version_of(name: str) -> str | None:
    """Return the installed version of a package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of bandpo, Python and the installed ones of `packages`."""
    own = {"bandpo": __version__, "python": platform.python_version()}
    others = {name: version_of(name) for name in packages}
    return own | {name: version for name, version in others.items() if version is not None}


def hardware(gpu: bool) -> str:
    """Name the processor that does the work."""
    if gpu:
        return torch.cuda.get_device_name()
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    return f"{name}, {os.cpu_count()} cores"


def source_commit() -> str | None:
    """Return the commit of the source tree of bandpo. It is None outside of a repository that tracks it."""
    try:
        for command in ["ls-files", "--error-unmatch", __file__], ["describe", "--always", "--dirty"]:
            done = subprocess.run(
                ["git", *command],
                cwd=Path(__file__).parent,
                capture_output=True,
                text=True,
                timeout=5,
                check=True,
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
