"""The command line, `bandpo`: what is asked, and what is shown. One file for each group of commands."""

from bandpo.path import leave_out_the_working_directory

leave_out_the_working_directory()

from .app import main  # noqa: E402

__all__ = ["main"]
