"""What a loop of one's own is given: the functions of examples/papers.py, to be run on tensors of a test, and the lines
of docs/own_loop.md for several processes."""

import inspect

import torch
from scripts import ROOT, load
from torch import Tensor

ALL = [text for _, text in load(".ci/readme.py").blocks(ROOT / "docs" / "own_loop.md")]
PAPERS = load("examples/papers.py")
ONE_PROCESS = "store=dist.HashStore(), rank=0, world_size=1"


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


def of_batch(function, data: dict[str, Tensor], **more):
    """Call a function with the tensors that it names."""
    return function(**{name: data[name] for name in inspect.signature(function).parameters if name in data}, **more)


def run(function, data: dict[str, Tensor], **more) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch and its gradient."""
    logps = data["logps"].clone().requires_grad_()
    loss, _ = of_batch(function, data | {"logps": logps}, **more)
    return loss.detach(), torch.autograd.grad(loss, logps)[0]
