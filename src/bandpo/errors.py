"""What a user is told."""

from __future__ import annotations


class UserError(ValueError):
    """Something that the user wrote or left on the disk cannot work; the command line prints the message alone."""
