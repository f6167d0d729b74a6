"""Run the command line, `bandpo`: what is asked, and what is shown."""

from bandpo.path import leave_out_the_working_directory

leave_out_the_working_directory()

from . import evals, reports, training  # noqa: E402, F401  (each adds its commands)
from .app import main  # noqa: E402

__all__ = ["main"]
