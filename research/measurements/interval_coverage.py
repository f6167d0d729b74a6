"""How often intervals of bandpo_runs.statistics hold the truth, how often its tests err, and the bias of estimators.

    python -m research.measurements.interval_coverage [--trials 2000] [--write]    coverage, errors and bias, as rows
    python -m research.measurements.interval_coverage --samples 1 --write    only what has so many samples a prompt
    python -m research.measurements.interval_coverage --page    the tables of research/pages/evaluation_measured.md

Made models: each prompt has its own chance of a right sample, drawn from a population. The truth is known: the mean of
the chances of these prompts, or of the population. Rows: what was measured, of which population, prompts, samples, the
share of intervals that hold the truth (or of tests with p < 0.05; or the bias in points), its standard error, and the
mean width of the intervals in points.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bandpo_runs.provenance import hardware, source_commit
from bandpo_runs.statistics.comparison import compare
from bandpo_runs.statistics.estimators import Graded, best_at_k_bootstrap, best_at_k_expected, pass_at_k, per_prompt
from bandpo_runs.statistics.intervals import average, clustered_error, sampling_error, training_runs
from research.csv_rows import as_table, read_rows, replace_rows

HERE = Path(__file__).resolve().parent
COMMAND = "python -m research.measurements.interval_coverage"
ROWS, PAGE = HERE / "interval_coverage.csv", HERE.parent / "pages" / "evaluation_measured.md"
Row = dict[str, Any]
Draw = Callable[[np.random.Generator, int], np.ndarray]
POPULATIONS: dict[str, Draw] = {
    "mixed: Beta(0.25, 0.75)": lambda rng, size: rng.beta(0.25, 0.75, size),
    "hard: Beta(0.1, 2.4)": lambda rng, size: rng.beta(0.1, 2.4, size),
    "easy: Beta(4, 0.4)": lambda rng, size: rng.beta(4, 0.4, size),
    "all or none: 30% always right": lambda rng, size: (rng.random(size) < 0.3).astype(float),
    "rare: 5% always right": lambda rng, size: (rng.random(size) < 0.05).astype(float),
    "alike: all at 0.5": lambda rng, size: np.full(size, 0.5),
    "alike and hard: all at 0.01": lambda rng, size: np.full(size, 0.01),
}
SIZES = ((30, 1), (30, 8), (30, 32), (10, 32), (500, 4))


def sample(rng: np.random.Generator, p: np.ndarray, n: int) -> np.ndarray:
    """Right and wrong samples [prompts, n]."""
    return (rng.random((len(p), n)) < p[:, None]).astype(float)


def graded(score: np.ndarray, name: str = "data") -> Graded:
    return Graded(name, score, None, None, None, None, [str(i) for i in range(len(score))])


def share(what: str, population: str, prompts: int, n: int, hits: list[bool], widths: list[float]) -> Row:
    rate = float(np.mean(hits))
    return {
        "what": what,
        "population": population,
        "prompts": prompts,
        "samples": n,
        "trials": len(hits),
        "result": round(rate, 4),
        "standard_error": round(math.sqrt(rate * (1 - rate) / len(hits)), 4),
        "mean_width_points": round(100 * float(np.mean(widths)), 2) if widths else "",
    }


def intervals(trials: int, sizes: tuple[tuple[int, int], ...] = SIZES, names: tuple[str, ...] = ()) -> Iterator[Row]:
    """The intervals of mean@n and pass@k of one model."""
    for name in names or tuple(POPULATIONS):
        many = POPULATIONS[name](np.random.default_rng(99), 2_000_000)
        for prompts, n in sizes:
            for k in (None, max(2, n // 4)) if n > 1 else (None,):
                rng = np.random.default_rng([prompts, n, k or 0, len(name)])
                curve = many if k is None else 1 - (1 - many) ** k
                by_error: dict[str, tuple[list[bool], list[float]]] = {"sampling": ([], []), "clustered": ([], [])}
                for _ in range(trials):
                    p = POPULATIONS[name](rng, prompts)
                    score = sample(rng, p, n)
                    fixed = float((p if k is None else 1 - (1 - p) ** k).mean())
                    for kind, truth, spread in (
                        ("sampling", fixed, sampling_error(score, k)),
                        ("clustered", float(curve.mean()), clustered_error(per_prompt(score, k))),
                    ):
                        low, high = spread.interval()
                        by_error[kind][0].append(low - 1e-12 <= truth <= high + 1e-12)
                        by_error[kind][1].append(high - low)
                label = "mean@n" if k is None else f"pass@{k}"
                for kind, (hits, widths) in by_error.items():
                    yield share(f"interval of {label}, {kind} error", name, prompts, n, hits, widths)


def averages(trials: int) -> Iterator[Row]:
    """The interval of an average over three data sets of 40, 30 and 30 prompts, as in the paper's table."""
    draws = [POPULATIONS[name] for name in ("easy: Beta(4, 0.4)", "mixed: Beta(0.25, 0.75)", "hard: Beta(0.1, 2.4)")]
    truth = float(np.mean([4 / 4.4, 0.25, 0.04]))
    rng = np.random.default_rng(5)
    hits, widths = [], []
    for _ in range(trials):
        scores = [sample(rng, draw(rng, size), 32) for draw, size in zip(draws, (40, 30, 30), strict=True)]
        low, high = average([clustered_error(per_prompt(score)) for score in scores]).interval()
        hits.append(low <= truth <= high)
        widths.append(high - low)
    yield share("interval of the average of three, clustered error", "easy, mixed, hard", 100, 32, hits, widths)


def runs(trials: int) -> Iterator[Row]:
    """The interval over training runs, whose means scatter normally or with a tail (one run in five collapses)."""
    for count in (2, 3, 5):
        for name, tail in (("normal", 0.0), ("one in five loses 20 points", 0.2)):
            rng = np.random.default_rng([count, int(tail * 10)])
            truth = 0.5 - 0.2 * tail
            hits, widths = [], []
            for _ in range(trials):
                values = rng.normal(0.5, 0.01, count) - 0.2 * (rng.random(count) < tail)
                spread = training_runs(values.tolist())
                assert spread is not None
                low, high = spread.interval()
                hits.append(low <= truth <= high)
                widths.append(high - low)
            yield share(f"interval over {count} training runs", name, 0, 0, hits, widths)


def changed(rng: np.random.Generator, p: np.ndarray, kind: str) -> np.ndarray:
    """Another model's chances: the same, moved up or down by chance, or so with a lean to the better."""
    if kind == "the same":
        return p
    noise = rng.normal(0, 0.6, len(p)) + (0.25 if kind == "better" else 0.0)
    return 1 / (1 + np.exp(-(np.log(p / (1 - p)) + noise)))


def differences(trials: int, sizes: tuple[tuple[int, int], ...] = SIZES) -> Iterator[Row]:
    """Intervals and tests of the difference of two models, of the same prompts."""
    for kind in ("the same", "as often better as worse", "better"):
        for prompts, n in sizes:
            rng = np.random.default_rng([prompts, n, len(kind)])
            big = rng.beta(0.3, 0.7, 2_000_000).clip(1e-6, 1 - 1e-6)
            population = float((changed(rng, big, kind) - big).mean())
            sampling, clustered, p_sampling, p_clustered = ([], []), ([], []), [], []
            for _ in range(trials if prompts < 100 else trials // 8):
                p = rng.beta(0.3, 0.7, prompts).clip(1e-6, 1 - 1e-6)
                q = changed(rng, p, kind)
                (result,) = compare([graded(sample(rng, p, n))], [graded(sample(rng, q, n))])
                for (hits, widths), truth, error in (
                    (sampling, float((q - p).mean()), result.sampling_error),
                    (clustered, population, result.clustered_error),
                ):
                    low, high = error.interval
                    hits.append(low <= truth <= high)
                    widths.append(high - low)
                p_sampling.append((result.sampling_error.p or 0) < 0.05)
                p_clustered.append((result.clustered_error.p or 0) < 0.05)
            yield share("interval of the difference, sampling error", kind, prompts, n, *sampling)
            yield share("interval of the difference, clustered error", kind, prompts, n, *clustered)
            yield share("p < 0.05 by reshuffling, sampling error", kind, prompts, n, p_sampling, [])
            yield share("p < 0.05 by flipping signs, clustered error", kind, prompts, n, p_clustered, [])


def bias(trials: int) -> Iterator[Row]:
    """Mean error of the estimators of pass@k, in points; the number of the row is a bias, not a share."""
    for name in ("mixed: Beta(0.25, 0.75)", "hard: Beta(0.1, 2.4)"):
        p = POPULATIONS[name](np.random.default_rng(3), 30)
        for n, k in ((32, 8), (32, 32), (64, 32)):
            rng = np.random.default_rng([n, k])
            truth = float((1 - (1 - p) ** k).mean())
            errors: dict[str, list[float]] = {"pass@k": [], "best@k, expected": [], "best@k, verl's bootstrap": []}
            for trial in range(trials):
                score = sample(rng, p, n)
                right = score.sum(-1).astype(int)
                errors["pass@k"].append(float(pass_at_k(n, right, k).mean()) - truth)
                errors["best@k, expected"].append(float(best_at_k_expected(n, right, k).mean()) - truth)
                if trial < 200:
                    errors["best@k, verl's bootstrap"].append(float(best_at_k_bootstrap(score, k).mean()) - truth)
            for what, some in errors.items():
                yield {
                    "what": f"bias in points, {what} as an estimate of pass@k, k = {k}",
                    "population": name,
                    "prompts": 30,
                    "samples": n,
                    "trials": len(some),
                    "result": round(100 * float(np.mean(some)), 3),
                    "standard_error": round(100 * float(np.std(some)) / math.sqrt(len(some)), 3),
                    "mean_width_points": "",
                }


def all_rows(trials: int, samples: int | None) -> Iterator[Row]:
    sizes = tuple(size for size in SIZES if samples in (None, size[1]))
    yield from intervals(trials, sizes)
    yield from differences(trials, sizes)
    for part in (averages, runs, bias) if samples is None else ():
        yield from part(trials)


# ---- the page


def tables(rows: list[dict[str, str]]) -> str:
    """The part of research/pages/evaluation_measured.md between its two marks."""
    of = {(r["what"], r["population"], r["prompts"], r["samples"]): r for r in rows}

    def cell(what: str, population: str, prompts: str = "30", samples: str = "32") -> str:
        row = of[what, population, prompts, samples]
        width = f" ({float(row['mean_width_points']):.1f})" if row["mean_width_points"] else ""
        return f"{100 * float(row['result']):.1f}{width}"

    lines = ["Of 30 problems, by seven populations of their chances:", ""]
    for what in ("mean@n", "pass@8"):
        told = []
        for kind in ("sampling", "clustered"):
            shares = [
                float(of[f"interval of {what}, {kind} error", name, "30", "32"]["result"]) for name in POPULATIONS
            ]
            told.append(f"{kind} error {100 * min(shares):.1f} to {100 * max(shares):.1f}")
        lines.append(f"- {what} of 32 samples: {', '.join(told)}")
    of_intervals = [r for r in rows if r["what"].startswith("interval of") and "difference" not in r["what"]]
    low = min(of_intervals, key=lambda r: float(r["result"]))
    lines += [
        "",
        f"Lowest of {len(of_intervals)}, with 10 to 500 prompts and 1 to 32 samples: "
        f"{100 * float(low['result']):.1f}% ({low['what'].removeprefix('interval of ')}, {low['population']}, "
        f"{low['prompts']} prompts, {low['samples']} samples).",
    ]
    kinds = ("the same", "as often better as worse", "better")
    tests = ("interval of the difference, sampling error", "interval of the difference, clustered error",
             "p < 0.05 by reshuffling, sampling error", "p < 0.05 by flipping signs, clustered error")  # fmt: skip
    lines += ["", as_table(["two models, 30 problems, 32 samples", *kinds], (
        [what, *(cell(what, kind) for kind in kinds)] for what in tests
    ))]  # fmt: skip
    scatters = {"normal": "normal scatter", "one in five loses 20 points": "one run in five loses 20 points"}
    lines += ["", as_table(["training runs", *scatters.values()], (
        [count, *(cell(f"interval over {count} training runs", name, "0", "0") for name in scatters)] for count in "235"
    ))]  # fmt: skip
    told = []
    for name in ("pass@k", "best@k, verl's bootstrap"):
        bias = [float(row["result"]) for row in rows if row["what"].startswith(f"bias in points, {name} as")]
        told.append(f"{name} {min(bias):+.2f} to {max(bias):+.2f}")
    lines += ["", f"Bias as an estimate of pass@k, in points: {'; '.join(told)}."]
    return "\n".join(lines)


def page(text: str, name: str, part: str) -> str:
    """`text` with what stands between the two marks of `name` replaced by `part`."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, has_begin, rest = text.partition(begin)
    _, also, tail = rest.partition(end)
    if not (has_begin and also):
        raise ValueError(f"{PAGE} has no marks {begin.strip()} and {end}")
    return f"{head}{begin}{part}\n{end}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--samples", type=int, help="only with so many samples a prompt")
    parser.add_argument("--write", action="store_true", help="replace these rows of interval_coverage.csv")
    parser.add_argument("--page", action="store_true", help="write the tables of research/pages/evaluation_measured.md")
    args = parser.parse_args()
    if args.page:
        rows = read_rows(ROWS)
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), "coverage", tables(rows)), encoding="utf-8")
        return 0
    begun, rows = time.perf_counter(), []
    for row in all_rows(args.trials, args.samples):
        rows.append(row)
        print(*(f"{value!s:>{width}}" for value, width in zip(row.values(), (55, 30, 4, 3, 5, 7, 7, 6), strict=True)))
    print(f"{len(rows)} rows in {time.perf_counter() - begun:.0f} s")
    if args.write:
        facts = {
            "hardware": hardware(gpu=False),
            "numpy": np.__version__,
            "commit": source_commit(),
            "command": f"{COMMAND}{f' --samples {args.samples}' if args.samples else ''} --write",
        }
        replace_rows(ROWS, [{**row, **facts} for row in rows], ("what", "population", "prompts", "samples"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
