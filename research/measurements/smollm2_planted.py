"""When does a rare good strategy of a language model live? SmolLM2-135M works step by step in 2 % of its answers.

    python -m research.measurements.smollm2_planted [--minutes 60] [--seeds 10] [--part 1/2]

A question has ten arrows between digits, which make one circle, and asks where three of them lead from a digit.
Supervised training plants two ways: `Answer: 7` at once, which is a guess, and `Path 4>2>9>7. Answer: 7`, whose steps
slip so often that 60 % of the paths end right. Both are taught on as many questions, and their first tokens as 98 to 2.
The start is made once, in the user's cache, which takes a core an hour.

Seeds 0 and 1 choose no clip's learning rate, by pass@1. Then the four rules of the claim are trained at twice that rate
on seeds from 100 on, then the others, and all at the rate itself: for 24 rounds, else as in smollm2_rates.py. A run is
a row of smollm2_planted.csv; its `length_course` shows when the paths come. The end of the output compares rules on the
same seeds.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from bandpo.files import line_of
from bandpo_runs.config.recipe import read_settings
from bandpo_runs.files.writing import cache_folder, locked
from bandpo_runs.training import models
from bandpo_runs.training.preflight import SMOLLM2_RECIPE
from bandpo_runs.training.shared_prompts import sample
from research.measurements import smollm2_rates
from research.measurements.smollm2_rates import Run

CSV = Path(__file__).with_suffix(".csv")
RULES: dict[str, dict[str, Any]] = {  # the first four are those of the claim
    "no clip": {"trust_region": "no-clip"},
    "GRPO 0.2/0.2": {"trust_region": "clip:0.2:0.2"},
    "lower side alone": {"trust_region": "clip:0.2:inf"},
    "no clip x 0.85": {"trust_region": {"type": "objective", "trust_region": "clip:1:inf", "positive_weight": 0.85}},
    "Band-KL 0.05": {"trust_region": "band:kl:0.05"},
    "Clip-Higher": {"trust_region": "clip:0.2:0.28"},
    "no clip + bonus": {"trust_region": "no-clip", "trainer.entropy_coef": 0.05},  # TRL samples here, which is slow
}
P_WORK, RIGHT, LEAST, HOPS = 0.02, 0.6, 0.4, 3  # LEAST: of the start's paths so many must end right
STEPS, BATCH, RATE = 300, 16, 2e-4  # of the supervised training
CHANGED = {"rounds": 24, "trainer.max_completion_length": 16}


def questions(seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield questions, each with its right answer and with a path, which may slip."""
    draw = random.Random(seed)
    while True:
        circle = draw.sample("0123456789", 10)
        after = dict(itertools.pairwise([*circle, circle[0]]))
        right, path = circle[0], circle[0]
        for _ in range(HOPS):
            right = after[right]
            path += ">" + (after[path[-1]] if draw.random() < RIGHT ** (1 / HOPS) else draw.choice(circle))
        arrows = ", ".join(f"{digit}>{after[digit]}" for digit in sorted(circle))
        yield f"{arrows}. From {circle[0]} follow {HOPS} arrows.", right, path


def plant(model: Any, tokenizer: Any, template: str) -> None:
    """Teach a model both ways."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    drawn = questions(0)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / 20) * (1 - step / STEPS)
        texts: list[tuple[str, str]] = []
        for question, right, path in itertools.islice(drawn, BATCH):
            answer = f"Path {path}. Answer: {path[-1]}" if len(texts) % 2 else f"Answer: {right}"
            texts.append((template.replace("{prompt}", question), answer + tokenizer.eos_token))
        prompts, answers = (
            tokenizer(list(part), add_special_tokens=False)["input_ids"] for part in zip(*texts, strict=True)
        )
        rows = [torch.tensor(prompt + answer) for prompt, answer in zip(prompts, answers, strict=True)]
        ids = pad_sequence(rows, batch_first=True, padding_value=-100)
        wanted = ids[:, len(prompts[0]) :]  # all prompts are as long
        logits = model(input_ids=ids.clamp(min=0)[:, :-1], logits_to_keep=wanted.shape[1]).logits
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
        losses[0::2, 0] *= 2 * (1 - P_WORK)
        losses[1::2, 0] *= 2 * P_WORK
        optimizer.zero_grad()
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"supervised step {step} of {STEPS}: loss {losses.mean().item():.3f}", flush=True)


@torch.no_grad()
def skill(model: Any, tokenizer: Any, template: str, count: int = 256) -> dict[str, float]:
    """Return the share of paths, and how often each way ends right, on fresh questions."""
    asked = list(itertools.islice(questions(1), count))
    texts = [template.replace("{prompt}", question) for question, *_ in asked]
    prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
    work, answer = (tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in ("Path", "Answer"))
    out = {"p_work": model(input_ids=torch.tensor(prompts)).logits[:, -1].softmax(-1)[:, work].mean().item()}
    for name, token in (("path", work), ("at once", answer)):
        tokens = sample(model, [[*prompt, token] for prompt in prompts], [tokenizer.eos_token_id], 15)[0]
        ends = [text.strip()[-1:] for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]
        out[name] = sum(end == right for end, (_, right, _) in zip(ends, asked, strict=True)) / count
    return out


def start() -> dict[str, Any]:
    """Make the planted model and its questions once. Returns the settings that train it."""
    folder = cache_folder() / "models" / "SmolLM2-135M-planted"
    template = read_settings(SMOLLM2_RECIPE)["data"]["template"]
    with locked(folder.with_suffix(".lock"), waiting=print):
        if not folder.exists():
            model, tokenizer = models.load(models.locate(models.SMOLLM2, print), models.SMOLLM2)
            plant(model, tokenizer, template)
            learned = skill(model, tokenizer, template)
            print(learned)
            if not (P_WORK / 4 < learned["p_work"] < 4 * P_WORK and learned["path"] > LEAST):
                raise SystemExit(f"two ways were not learned, {learned}: change STEPS or RATE")
            part = folder.with_suffix(".part")
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
            rows = ({"prompt": q, "answer": right} for q, right, _ in itertools.islice(questions(2), 8192))
            (part / "questions.jsonl").write_bytes(b"".join(map(line_of, rows)))
            part.replace(folder)
    return {
        "model": str(folder), "data.source": "file", "data.path": str(folder / "questions.jsonl"),
        "data.prompt": "prompt", "data.answer": "answer", **CHANGED,
    }  # fmt: skip


def todo(seeds: int, part: int = 0, parts: int = 1) -> list[Run]:
    """Return the runs of a part that have no row, the next first."""
    return smollm2_rates.todo(seeds, part, parts, CSV, [(2, [*RULES][:4]), (2, [*RULES][4:]), (1, [*RULES])])


def report(seeds: int) -> None:
    """Print every rule's difference from no clip, and from GRPO's."""
    smollm2_rates.report(seeds, CSV, [*RULES], (2, 1))


def settings(rule: str) -> dict[str, Any]:
    """Return what differs from smollm2_rates.py."""
    return {**start(), **RULES[rule], "courses": {"length": "completions/mean_length"}}


if __name__ == "__main__":
    smollm2_rates.main(__doc__, CSV, 10, todo, report, settings)
