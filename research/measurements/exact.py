"""How often the divergence of one token and that of the whole distribution disagree, in the lab and in SmolLM2-135M.

    python -m research.measurements.exact [--smollm2 smollm2] [--write]

The old policy answers questions; a few steps of Adam on these answers, with the KL band of 0.05, make the new one. Then
every token of every answer has three divergences: that of the token itself (`divergence_at`, what a band bounds), that
of the old policy's k likeliest tokens, the drawn one and the rest (`top_k_divergence`; k is 20, of the lab's 20 symbols
5), and that of the whole vocabulary (`full_divergence`). `missed` is the share of tokens for which one token's is
within the radius and the whole beyond it. `--write` writes exact.csv.
"""

import argparse
import copy
import platform
import random
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from bandpo import Band, group_advantages, policy_loss
from bandpo.band import divergence_at
from bandpo.losses import token_logps
from bandpo_runs import toy
from bandpo_runs.provenance import hardware, source_commit
from bandpo_runs.training.models import locate
from research.csv_rows import write_rows
from research.rules.full_divergence import full_divergence, top_k_divergence

DIVERGENCES, RADII, TOP = ("kl", "tv"), (0.01, 0.05, 0.15), 20
EDGES = (0.2, 0.4, 0.6, 0.8)  # of bins of the old probability, closed on the right
BINS = tuple(f"p{edge}" for edge in (*EDGES, 1.0))
GROUP = 8


class Answers(NamedTuple):
    ids: Tensor  # prompts, all of one length, and answers
    prompt: int
    mask: Tensor  # of the answers
    rewards: Tensor


def answers_of(model: Any, prompts: Tensor, length: int, end: int, reward: Any) -> Answers:
    """GROUP answers to each prompt, drawn from the model itself."""
    repeated = prompts.repeat_interleave(GROUP, 0)
    ids = model.generate(
        repeated,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        attention_mask=torch.ones_like(repeated),
        max_new_tokens=length,
        pad_token_id=end,
        eos_token_id=end,
    )
    drawn = ids[:, prompts.shape[1] :]
    ended = (drawn == end).cumsum(1)
    mask = (ended == 0) | ((ended == 1) & (drawn == end))
    return Answers(ids, prompts.shape[1], mask, torch.tensor(reward(drawn), dtype=torch.float32))


def states_of(model: Any, answers: Answers) -> Tensor:
    """The hidden states before each token of the answers."""
    return model.model(input_ids=answers.ids[:, :-1]).last_hidden_state[:, answers.prompt - 1 :]


def of_the_lab() -> tuple[Any, Answers]:
    folder, _ = toy.warm_start(toy.SCENES["storm"].p_work, 0, print)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), toy.tokenizer()
    rows = toy.prompts(64, 0)
    prompts = tokenizer([row["prompt"] for row in rows], return_tensors="pt")["input_ids"]
    wanted = [row["answer"] for row in rows for _ in range(GROUP)]

    def reward(drawn: Tensor) -> list[float]:
        return toy.reward([""] * len(wanted), drawn.tolist(), wanted)

    return model, answers_of(model, prompts, toy.MAX_COMPLETION, toy.END, reward)


def of_smollm2(name: str) -> tuple[Any, Answers]:
    folder = locate(name, print)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rng = random.Random(0)
    numbers = [(rng.randint(10, 49), rng.randint(10, 49)) for _ in range(5)]  # of two digits: all of one length
    prompts = tokenizer([f"Q: What is {a} + {b}? A:" for a, b in numbers], return_tensors="pt")["input_ids"]

    def reward(drawn: Tensor) -> list[float]:
        """Short answers are better: right ones are too rare for a few steps."""
        return [-float(len(text)) for text in tokenizer.batch_decode(drawn, skip_special_tokens=True)]

    return model, answers_of(model, prompts, 12, tokenizer.eos_token_id, reward)


def measured(model: Any, old: Any, answers: Answers) -> list[dict[str, Any]]:
    """A row for each divergence, radius and bin of the old probability."""
    mask, tokens = answers.mask, answers.ids[:, answers.prompt :]
    with torch.no_grad():
        states, old_states = states_of(model, answers)[mask], states_of(old, answers)[mask]
    k = min(TOP, len(model.lm_head.weight) // 4)
    weight, old_weight, drawn = model.lm_head.weight.detach(), old.lm_head.weight.detach(), tokens[mask]
    logps, old_logps = (token_logps(x, w, drawn)[0].detach() for x, w in ((states, weight), (old_states, old_weight)))
    tops = [(x @ old_weight.T).log_softmax(-1).topk(k, -1) for x in old_states.split(64)]
    some = torch.cat([torch.cat([x.indices for x in tops]), drawn[:, None]], -1)
    old_some = torch.cat([torch.cat([x.values for x in tops]), old_logps[:, None]], -1)
    rows: list[dict[str, Any]] = []
    for name in DIVERGENCES:
        one = divergence_at(logps - old_logps, old_logps, name)
        top = top_k_divergence(states, some, old_some, name, weight=weight)
        full = full_divergence(states, old_states, name, weight=weight, old_weight=old_weight)
        if not bool((one <= full * 1.001 + 1e-4).all()):  # of float32 logits
            raise SystemExit("one token's divergence is above the whole")
        edges = torch.tensor(EDGES).log()
        at = sum((old_logps > edge).long() for edge in edges)
        for radius in RADII:
            for i, label in enumerate(("all", *BINS)):
                here = torch.ones_like(at, dtype=torch.bool) if i == 0 else at == i - 1
                beyond, count = here & (full > radius), here.sum().item()
                rows.append(
                    {
                        "divergence": name,
                        "radius": radius,
                        "probability": label,
                        "tokens": count,
                        "k": k,
                        "beyond": share(beyond, count),
                        "one_token_beyond": share(here & (one > radius), count),
                        "missed": share(beyond & (one <= radius), count),
                        "top_k_missed": share(beyond & (top <= radius), count),
                        "mean_divergence": round(full[here].mean().item(), 6) if count else "",
                        "one_over_full": round((one / full)[here].median().item(), 4) if count else "",
                        "top_k_over_full": round((top / full)[here].median().item(), 4) if count else "",
                    }
                )
    return rows


def share(what: Tensor, count: int) -> float | str:
    return round(what.sum().item() / count, 4) if count else ""


def run(name: str, model: Any, answers: Answers, learning_rate: float, at: tuple[int, ...]) -> list[dict[str, Any]]:
    """Rows after each of these numbers of steps."""
    old = copy.deepcopy(model)
    tokens, mask = answers.ids[:, answers.prompt :], answers.mask
    advantages = group_advantages(answers.rewards, GROUP)
    with torch.no_grad():
        old_logps, _ = token_logps(states_of(old, answers), old.lm_head.weight, tokens, response_mask=mask)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0)
    rows: list[dict[str, Any]] = []
    for step in range(1, max(at) + 1):
        optimizer.zero_grad()
        logps, _ = token_logps(states_of(model, answers), model.lm_head.weight, tokens, response_mask=mask)
        policy_loss(logps, old_logps, advantages, mask, Band("kl", 0.05))[0].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step in at:
            numbers = measured(model, old, answers)
            facts = {"model": name, "learning_rate": learning_rate, "steps": step}
            rows += [facts | row for row in numbers]
            for row in numbers:
                if row["probability"] == "all":
                    print(name, step, row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", help="smollm2, as `bandpo train` finds it, or a folder")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = run("lab", *of_the_lab(), 4e-4, (1, 4, 16))
    if args.smollm2:
        torch.manual_seed(0)
        rows += run("SmolLM2-135M", *of_smollm2(args.smollm2), 1e-5, (1, 3))
    if args.write:
        facts = {
            "hardware": hardware(gpu=False),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "commit": source_commit(),
        }
        write_rows(Path(__file__).with_suffix(".csv"), [row | facts for row in rows])


if __name__ == "__main__":
    main()
