"""What does each side of a clip do to entropy where rewards are random? SmolLM2-135M, 4 epochs over each batch.

    python -m research.measurements.smollm2_random [--minutes 60] [--seeds 12] [--part 1/2]

As smollm2_rates.py at no clip's best learning rate, but the reward of each answer is a coin: nothing can be learned.
The first three rules are trained on seeds from 100 on, all rules of a seed in turn, then the others. A run is a row of
smollm2_random.csv; its pass@k are by the task's own scorer. The end of the output compares rules on the same seeds.
"""

import random
from pathlib import Path
from typing import Any

from research.measurements import smollm2_rates
from research.measurements.smollm2_rates import Run, best_rate

CSV = Path(__file__).with_suffix(".csv")
SIDES = {"no clip": "no-clip", "upper side alone": "clip:1:0.2", "lower side alone": "clip:0.2:inf"}
RULES = SIDES | {"GRPO 0.2/0.2": "clip:0.2:0.2", "Band-KL 0.05": "band:kl:0.05"}
ORDER = (1, [*SIDES]), (1, [rule for rule in RULES if rule not in SIDES])


def coin(completions: list[Any], **columns: Any) -> list[float]:
    """Reward each answer by a coin, of Python's generator, which the run's seed sets."""
    return [float(random.random() < 0.5) for _ in completions]


def todo(seeds: int, part: int = 0, parts: int = 1) -> list[Run]:
    """Return the runs of a part that have no row, the next first."""
    rate = best_rate()
    if rate is None:
        raise SystemExit("smollm2_rates.csv has no best learning rate yet: run research.measurements.smollm2_rates")
    return smollm2_rates.todo(seeds, part, parts, CSV, ORDER, rate)


def report(seeds: int) -> None:
    """Print every rule's difference from no clip, and from the upper side alone."""
    smollm2_rates.report(seeds, CSV, [*RULES], (1,), best_rate(), "upper side alone")


def settings(rule: str) -> dict[str, Any]:
    """Return what differs from smollm2_rates.py."""
    return {"trust_region": RULES[rule], "reward": "research.measurements.smollm2_random:coin"}


if __name__ == "__main__":
    smollm2_rates.main(__doc__, CSV, 12, todo, report, settings)
