"""What a user is told."""

from __future__ import annotations

import re


class UserError(ValueError):
    """Something that the user wrote or left on the disk cannot work; the command line prints the message alone."""


def without_password(text: str) -> str:
    """A text as it may be shown and written: of an address in it, what stands before the @ is blanked out."""
    return re.sub(r"://[^/\s]+@", "://***@", text)
