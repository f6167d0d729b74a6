"""Run the command line by `python -m bandpo` and `torchrun -m bandpo`. The second package brings it."""

import sys

from .path import leave_out_the_working_directory

leave_out_the_working_directory()

from importlib.metadata import entry_points  # noqa: E402

commands = tuple(entry_points(group="console_scripts", name="bandpo"))
sys.exit(
    commands[0].load()() if commands else "error: the command bandpo is not installed; pip install bandpo"
)
