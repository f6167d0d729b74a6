"""Moves that a method or a rule allows a token, in words and as plain data."""

from .explanation import explain, explanation_data

__all__ = ["explain", "explanation_data"]
