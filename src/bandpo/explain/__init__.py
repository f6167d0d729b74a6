"""Moves that a method or a rule allows a token, in words and as plain data."""

from .data import explanation_data
from .explanation import explain

__all__ = ["explain", "explanation_data"]
