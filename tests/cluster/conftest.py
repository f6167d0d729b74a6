"""Tests of the verl integration. They need the environment of constraints-verl.txt and are not collected elsewhere."""

from importlib.util import find_spec

collect_ignore = ["cpu_platform", "update_actor.py", "verl_dump.py"]  # for other processes
collect_ignore_glob = ["*"] if find_spec("verl") is None else []
