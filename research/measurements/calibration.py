"""How often the intervals of `bandpo calibrate` hold the true number, and how long it takes to find numbers.

    python -m research.measurements.calibration [--trials 500] [--write]    rows of coverage, and one of time

Made responses: the size of a token's critical number depends on its response too (`clustering` is the spread between
responses over that within them), and lengths are uniform, or of a heavy tail. "rate": the number that leaves a share of
the tokens outside is sought, "match": the one that leaves as many as another rule, which agrees with it more or less.
The truth is that of a population of 200,000 responses. `below` and `above` are the shares of intervals that lie wholly
below and above it, of which 0.025 each is what they say. The percentile bootstrap over responses stands beside it: it
is what the command had before.
"""

import argparse
import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bandpo import Band, Clip
from bandpo_runs.reports.calibration import calibrate
from bandpo_runs.reports.tokens import Tokens
from bandpo_runs.statistics.calibration import number_interval

ROWS = Path(__file__).resolve().with_suffix(".csv")
Row = dict[str, Any]
RESAMPLES = 200
CELLS = [
    (question, lengths, clustering, responses, outside)
    for question, lengths, clustering in (
        ("rate", "uniform", 0.5),
        ("rate", "uniform", 1.5),
        ("rate", "heavy tail", 0.5),
        ("match", "uniform", 0.5),
    )
    for responses in (20, 100, 400)
    for outside in (5, 20, 50)
]


def made(rng: np.random.Generator, count: int, lengths: str, clustering: float) -> tuple[np.ndarray, ...]:
    """Critical numbers of a rule and of another one, and the response of each token."""
    if lengths == "uniform":
        sizes = rng.integers(1, 40, count)
    else:
        sizes = np.minimum(np.ceil(8 * rng.lognormal(0.0, 1.2, count)), 2000).astype(np.int64)
    responses = np.repeat(np.arange(count), sizes)
    shared = clustering * rng.standard_normal(count)[responses]
    own = rng.standard_normal(len(responses))
    other = 0.6 * own + 0.8 * rng.standard_normal(len(responses))
    return np.exp(shared + own), np.exp(shared + other), responses


def bootstrap(rng: np.random.Generator, critical: np.ndarray, responses: np.ndarray, wanted: np.ndarray):
    """The 95 % percentile interval: whole responses are drawn again."""
    order = np.argsort(-critical)
    descending, numbers = np.append(critical[order], 0.0), []
    for _ in range(RESAMPLES):
        weights = np.bincount(rng.integers(len(wanted), size=len(wanted)), minlength=len(wanted))
        outside = weights[responses[order]].cumsum()
        numbers.append(descending[np.searchsorted(outside, math.floor(weights @ wanted + 1e-9), side="right")])
    return np.quantile(numbers, [0.025, 0.975], method="inverted_cdf")


def coverage(trials: int) -> Iterator[Row]:
    for question, lengths, clustering, count, outside in CELLS:
        rng = np.random.default_rng([count, outside, int(10 * clustering), len(question), len(lengths)])
        one, other, of = made(rng, 200_000, lengths, clustering)
        rate = outside / (count * len(of) / 200_000)
        reference = np.quantile(other, 1 - rate)
        truth = np.quantile(one, 1 - rate)
        missed: dict[str, list[tuple[bool, bool, float]]] = {"calibrate": [], "percentile bootstrap": []}
        while len(missed["calibrate"]) < trials:
            critical, rival, responses = made(rng, count, lengths, clustering)
            if question == "rate":
                wanted = rate * np.bincount(responses, minlength=count)
            else:
                wanted = np.bincount(responses[rival > reference], minlength=count).astype(np.float64)
            if not 0 < wanted.sum() < len(critical):  # nothing to match: the command refuses
                continue
            ends = number_interval(critical, responses, wanted), bootstrap(rng, critical, responses, wanted)
            for name, (low, high) in zip(missed, ends, strict=True):
                width = math.log(high / low) if 0 < low <= high < math.inf else math.inf
                missed[name].append((high < truth, low > truth, width))
        for name, rows in missed.items():
            below, above, width = (np.array(x) for x in zip(*rows, strict=True))
            held = 1 - below.mean() - above.mean()
            yield {
                "what": f"interval of {name}",
                "question": question,
                "lengths": lengths,
                "clustering": clustering,
                "responses": count,
                "outside": outside,
                "trials": trials,
                "result": round(held, 4),
                "standard_error": round(math.sqrt(held * (1 - held) / trials), 4),
                "below": round(below.mean(), 4),
                "above": round(above.mean(), 4),
                "median_width": round(float(np.median(width)), 3),
            }


def seconds() -> Row:
    """Of a million tokens of 10,000 responses, and three rules."""
    rng = np.random.default_rng(0)
    old = np.log(rng.beta(0.7, 0.4, 1_000_000).clip(1e-4, 1 - 1e-6))
    ratio = np.minimum(0.1 * rng.standard_normal(len(old)), -old)
    tokens = Tokens(old, ratio, None, np.repeat(np.arange(10_000), 100), {})
    began = time.process_time()
    calibrate(tokens, [Band("kl"), Band("tv"), Clip(0.2, 0.2)])
    taken = round(time.process_time() - began, 2)
    facts = {"question": "match", "lengths": "100 each", "clustering": 0.0, "responses": 10_000, "trials": 1}
    return {"what": "seconds of the CPU, a million tokens and three rules", **facts, "result": taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--write", action="store_true", help="replace calibration.csv")
    args = parser.parse_args()
    rows = []
    for row in itertools.chain(coverage(args.trials), [seconds()]):
        rows.append(row)
        print(*row.values(), flush=True)
    if args.write:
        from bandpo_runs.provenance import hardware, source_commit
        from research.csv_rows import write_rows

        facts = {
            "hardware": hardware(gpu=False),
            "numpy": np.__version__,
            "commit": source_commit(),
            "command": "python -m research.measurements.calibration --write",
        }
        write_rows(ROWS, [{**row, **facts} for row in rows])


if __name__ == "__main__":
    main()
