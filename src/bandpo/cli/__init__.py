"""The command line, `bandpo`: what is asked, and what is shown. One file for each group of commands."""

from .app import main

__all__ = ["main"]
