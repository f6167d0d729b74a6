"""The command line, `bandpo`: what is asked, and what is shown."""

from .commands import main

__all__ = ["main"]
