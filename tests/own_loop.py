"""The lines of docs/own_loop.md for papers without a name in the index, to be run on tensors of a test."""

from __future__ import annotations

import re

import torch
from scripts import ROOT, load
from torch import Tensor

import bandpo

BLOCKS = [text for _, text in load(".ci/readme.py").blocks(ROOT / "docs" / "own_loop.md") if text[0] == "#"]


def block(name: str) -> str:
    """Return the lines whose remark begins with a paper's name."""
    (found,) = (text for text in BLOCKS if re.match(rf"# (\S+ or )?{name}\b", text))
    return found


def run(lines: str, data: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict]:
    """Run lines of the page on a batch. Return the loss, its gradient, and the names that they set."""
    logps = data["logps"].clone().requires_grad_()
    names = {"bandpo": bandpo, "torch": torch, "current": lambda: logps, **data}
    exec(lines, names)
    return names["loss"].detach(), torch.autograd.grad(names["loss"], logps)[0], names
