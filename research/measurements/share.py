"""What share of a training step the loss is: SmolLM2-135M, forward and backward, on one thread.

    python -m research.measurements.share smollm2

The micro-batch is smollm2_reuse.py's: 32 completions of 16 tokens after prompts of 32. The step is what a training
step is without sampling, and so an upper limit of the share: log-probabilities of the completions, the loss with its
metrics, the backward pass. The median of five is a row of share.csv.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from bandpo import Band, policy_loss
from bandpo_runs.provenance import hardware, source_commit
from bandpo_runs.training.models import locate
from research.csv_rows import write_rows

ROWS, PROMPT, COMPLETION, REPEAT = 32, 32, 16, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(locate(parser.parse_args().model, print), dtype=torch.float32)
    tokens = torch.randint(model.config.vocab_size, (ROWS, PROMPT + COMPLETION))
    advantages, mask = torch.randn(ROWS), torch.ones(ROWS, COMPLETION, dtype=torch.bool)
    region, old = Band("kl", 0.05), None
    steps, losses = [], []
    for _ in range(REPEAT + 1):
        began = time.perf_counter()
        logits = model(tokens, logits_to_keep=COMPLETION + 1).logits[:, :-1]
        logps = logits.log_softmax(-1).gather(-1, tokens[:, -COMPLETION:, None])[..., 0]
        leaf = logps.detach().requires_grad_()
        old = logps.detach() + 0.1 * torch.randn_like(logps.detach()) if old is None else old
        before = time.perf_counter()
        loss, _ = policy_loss(leaf, old, advantages, mask, region)
        loss.backward()
        losses.append(time.perf_counter() - before)
        logps.backward(leaf.grad)
        steps.append(time.perf_counter() - began)
        model.zero_grad()
    step, loss = (statistics.median(times[1:]) for times in (steps, losses))  # the first makes the table of the band
    print(f"step {step:.2f} s, loss {1e3 * loss:.2f} ms: {loss / step:.3%} (the first loss: {1e3 * losses[0]:.1f} ms)")
    row = {
        "case": f"SmolLM2-135M, {ROWS} x ({PROMPT} + {COMPLETION}) tokens, {region}",
        "step_s": round(step, 3),
        "loss_ms": round(1e3 * loss, 3),
        "share": f"{loss / step:.5f}",
        "repeats": REPEAT,
        "hardware": hardware(gpu=False),
        "torch": torch.__version__,
        "commit": source_commit(),
    }
    write_rows(Path(__file__).with_suffix(".csv"), [row], add=True)


if __name__ == "__main__":
    main()
