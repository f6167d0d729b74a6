"""The lab: a toy task, and a tiny model that half-knows how to work step by step, to see rules differ in minutes."""

from .model import WarmStart, fresh_model, save_start, tokenizer, warm_start
from .task import (
    ANSWER,
    BASE,
    END,
    EQUALS,
    LENGTH,
    MAX_COMPLETION,
    PAD,
    SCENES,
    SLIP,
    SYMBOLS,
    Scene,
    prompts,
    reward,
)

__all__ = [
    "ANSWER",
    "BASE",
    "END",
    "EQUALS",
    "LENGTH",
    "MAX_COMPLETION",
    "PAD",
    "SCENES",
    "SLIP",
    "SYMBOLS",
    "Scene",
    "WarmStart",
    "fresh_model",
    "prompts",
    "reward",
    "save_start",
    "tokenizer",
    "warm_start",
]
