"""Tests of the smaller integrations, each where its host is installed: the environment of constraints-hosts.txt."""

from importlib.util import find_spec

HOSTS = {"liger": "liger_kernel", "skyrl": "skyrl", "tinker": "tinker", "torchrl": "torchrl"}
collect_ignore = [f"test_{name}.py" for name, package in HOSTS.items() if find_spec(package) is None]
