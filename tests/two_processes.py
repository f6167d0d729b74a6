"""`bandpo` as a launcher starts it, with completions that depend on prompts alone; `python two_processes.py
[--kill-at STEP | --break-at STEP] COMMAND ...`. Each process leaves its number in the file that PROCESSES names."""

import os
import signal
import sys
from pathlib import Path

import torch
from transformers import Qwen2ForCausalLM

from bandpo_runs import toy
from bandpo_runs.cli import main


def fixed_completions(self, input_ids, **named):
    """In the place of `generate`: other tokens for every prompt and place in its group, the same in any batch."""
    out = torch.full((len(input_ids), toy.MAX_COMPLETION), toy.PAD)
    for i, prompt in enumerate(input_ids.tolist()):
        draw = torch.Generator().manual_seed(hash((*prompt, i % 4)) % 2**31)
        length = int(torch.randint(1, toy.MAX_COMPLETION, (), generator=draw))
        out[i, :length] = torch.randint(0, toy.BASE, (length,), generator=draw)
        out[i, length] = toy.END
    return torch.cat([input_ids, out], 1)


def kill_last_process(step):
    from bandpo_runs.training import on_trl

    def stop(self, args, state, control, **named):
        if state.global_step == step and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)

    on_trl._Recorder.on_step_end = stop


def break_last_process(step):
    """One of its weights is NaN from that step on; gradients are shared."""
    from bandpo_runs.training import on_trl

    def spoil(self, args, state, control, model=None, **named):
        if state.global_step + 1 == step and os.environ["RANK"] == "1":
            next(model.parameters()).data.view(-1)[0] = float("nan")

    on_trl._Recorder.on_step_begin = spoil


if __name__ == "__main__":
    with Path(os.environ["PROCESSES"]).open("a") as file:
        file.write(f"{os.getpid()}\n")
    arguments = sys.argv[1:]
    if arguments[0] in ("--kill-at", "--break-at"):
        (kill_last_process if arguments[0] == "--kill-at" else break_last_process)(int(arguments[1]))
        arguments = arguments[2:]
    Qwen2ForCausalLM.generate = fixed_completions
    sys.exit(main(arguments))
