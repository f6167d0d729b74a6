"""What holds for every test, and which tests need an environment of their own."""

import os
from importlib.util import find_spec

import torch

# readline, which pytest imports, hands 80 to all processes that are started then, xdist's workers among them.
os.environ.pop("COLUMNS", None)
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # what is imported from trl.experimental would warn

torch.set_num_threads(1)  # on small tensors, threads mostly wait for each other

# Tests of the verl integration need the environment of constraints/verl.txt, those of the smaller integrations, each
# where its host is installed, that of constraints/hosts.txt.
TRAINERS = {"liger": "liger_kernel", "skyrl": "skyrl", "tinker": "tinker", "torchrl": "torchrl"}
collect_ignore = [f"hosts/test_{name}.py" for name, package in TRAINERS.items() if find_spec(package) is None]
collect_ignore += [f"cluster/{name}" for name in ("cpu_platform", "update_actor.py", "verl_dump.py")]  # for others
collect_ignore_glob = ["cluster/*"] if find_spec("verl") is None else []
collect_ignore_glob += ["conftest.py", "*/conftest.py"]  # of one name: only one could be looked through for doctests
