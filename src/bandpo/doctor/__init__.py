"""Checks of a setup: what is installed, and which settings of a run on TRL or verl do nothing.

Each gives findings; a finding says what is the case and, where something should change, what to do.
"""

from .findings import Finding
from .installed import installation, plug_in
from .on_trl import trl_settings
from .on_verl import verl_settings

__all__ = ["Finding", "installation", "plug_in", "trl_settings", "verl_settings"]
