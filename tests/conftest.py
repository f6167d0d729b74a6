"""What holds for every test, and which tests need an environment of their own."""

import os
from importlib.util import find_spec

import pytest
import torch
from commands import CommandLine

# readline, which pytest imports, hands 80 to all processes that are started then, xdist's workers among them.
os.environ.pop("COLUMNS", None)
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # what is imported from trl.experimental would warn

torch.set_num_threads(1)  # on small tensors, threads mostly wait for each other

# Tests of the verl integration need the environment of constraints/verl.txt. Those of the smaller integrations skip
# trainers that are not installed, as constraints/hosts.txt says.
collect_ignore = [f"cluster/{name}" for name in ("cpu_platform", "update_actor.py", "verl_dump.py")]  # for others
collect_ignore_glob = ["cluster/*"] if find_spec("verl") is None else []
collect_ignore_glob += ["conftest.py", "*/conftest.py"]  # of one name: only one could be looked through for doctests


@pytest.fixture(autouse=True)
def _threads():
    """A recipe sets the threads of the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capsys):
    return CommandLine(capsys)
