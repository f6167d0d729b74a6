"""The command line, `bandpo`: the only wing that prints."""

from .commands import main

__all__ = ["main"]
