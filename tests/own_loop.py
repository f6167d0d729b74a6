"""The lines of docs/own_loop.md: those for papers without a name in the index, to be run on tensors of a test, and
those of several processes."""

from __future__ import annotations

import re

import torch
from scripts import ROOT, load
from torch import Tensor

import bandpo

ALL = [text for _, text in load(".ci/readme.py").blocks(ROOT / "docs" / "own_loop.md")]
BLOCKS = [text for text in ALL if text[0] == "#"]
ONE_PROCESS = "store=dist.HashStore(), rank=0, world_size=1"


def block(name: str) -> str:
    """Return the lines whose remark begins with a paper's name."""
    (found,) = (text for text in BLOCKS if re.match(rf"# (\S+ or )?{name}\b", text))
    return found


def holding(*words: str) -> str:
    """Return the first block of the page and those that hold the words, one for each."""
    (*others,) = ([text for text in ALL if word in text] for word in words)
    assert [len(each) for each in others] == [1] * len(words)
    return "\n".join(["import torch.distributed as dist", ALL[0], *(text for (text,) in others)])


def run_as_rank(rank: int, ranks: int, file: str, lines: str) -> None:
    """Run lines of the page in one of several processes, which meet by a file."""
    assert ONE_PROCESS in lines
    torch.set_num_threads(1)
    exec(lines.replace(ONE_PROCESS, f"store=dist.FileStore({file!r}, {ranks}), rank={rank}, world_size={ranks}"), {})


def run(lines: str, data: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict]:
    """Run lines of the page on a batch. Return the loss, its gradient, and the names that they set."""
    logps = data["logps"].clone().requires_grad_()
    names = {"bandpo": bandpo, "torch": torch, "current": lambda: logps, **data}
    exec(lines, names)
    return names["loss"].detach(), torch.autograd.grad(names["loss"], logps)[0], names
