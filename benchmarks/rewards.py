r"""How fast the scorer `math` is, and what hostile answers do to it.

    python benchmarks/rewards.py                     # 1,000 made answers, benchmarks/answers.jsonl.gz, and more such
    python benchmarks/rewards.py --hostile 100000    # as many hostile strings
    python benchmarks/rewards.py ... --write         # and append rows to benchmarks/rewards.csv
    python benchmarks/rewards.py --make              # benchmarks/answers.jsonl.gz again, the same bytes

An answer is 200 to 4,000 tokens of reasoning, at 4 characters a token, and a last line: a third are wrong, a tenth
cannot be parsed. Of the right answers 7 in 10 are whole numbers, 1 in 10 are decimals or fractions, 2 in 10 need a
parser. As in a training step, 16 answers are to one question; another row has a question for each.

Run 0 is the committed file, run i the same with seed i, so that nothing is cached; the first starts the workers and is
told apart. Latency is that of one answer at a time. Rates are medians; `cpu_s` is the processor time of a run in all
processes, which other work on the machine changes less than the time on the clock.
"""

import argparse
import csv
import gzip
import importlib.metadata
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bandpo import grading
from bandpo.provenance import hardware, source_commit
from bandpo.workers import Stopped

ROWS, ANSWERS = Path(__file__).with_suffix(".csv"), Path(__file__).with_name("answers.jsonl.gz")
COLUMNS = [
    *("case", "answers", "parsed", "right", "unparsed", "timeouts", "crashes", "first_s", "seconds", "per_second"),
    *("cpu_s", "p50_ms", "p99_ms", "parent_mb", "parent_growth_mb", "worker_mb", "worker_growth_mb", "workers", "runs"),
    *("load", "hardware", "python", "math_verify", "commit"),
]

# ---- made answers

_STEPS = [
    "First, let us restate the problem in our own words. ",
    "We have $x^2 - 5x + 6 = 0$, so that $x = 2$ or $x = 3$. ",
    "Substituting this back gives $\\frac{a+b}{2} \\ge \\sqrt{ab}$ for all positive $a, b$. ",
    "Hence the total is $\\sum_{k=1}^{n} k = \\frac{n(n+1)}{2}$. ",
    "Wait, that does not look right; let me check the second case again. ",
    "By the law of cosines, $c^2 = a^2 + b^2 - 2ab\\cos\\gamma$. ",
    "There are $\\binom{10}{3} = 120$ ways to choose three of them. ",
    "Modulo 7 the powers of 3 are 3, 2, 6, 4, 5, 1, and then they repeat. ",
    "So far the answer is between 10 and 20, but we need it exactly.\n",
    "Therefore the two triangles are similar, and the ratio of their areas is 4 to 9.\n\n",
    "**Step.** Expand the product and collect the terms of equal degree:\n\\[ (x+1)(x-1) = x^2 - 1. \\]\n",
    "It follows that $\\boxed{n}$ is even, which is what we wanted to show. ",
]
_LAST = [
    "Answer: {}",
    "Answer: ${}$",
    "**Answer:** {}",
    "Answer: \\boxed{{{}}}",
    "The final answer is $\\boxed{{{}}}$.",
]
_LOST = ["I am not sure.", "Answer: \\frac{", "Answer: it depends on the shape", "Answer: $\\sqrt{x+$", "Answer:"]


def made(seed: int, group: int = 16, count: int = 1000) -> list[dict[str, str]]:
    """Rows of `text` and `answer`; so many in a row have the same right answer."""
    rng, rows = random.Random(seed), []
    for i in range(count):
        if i % group == 0:
            right, forms, wrong = _question(rng)
        reasoning, length = "", 4 * rng.randint(200, 4000)
        while len(reasoning) < length:
            reasoning += rng.choice(_STEPS)
        given = rng.choice(wrong if i % 3 == 0 else forms)
        last = rng.choice(_LOST) if i % 10 == 1 else rng.choice(_LAST).format(given)
        rows.append({"text": f"{reasoning}\n\n{last}", "answer": right})
    return rows


def _question(rng: random.Random) -> tuple[str, list[str], list[str]]:
    """A right answer, ways to write it, and wrong ones."""
    kind = rng.random()
    a, b, c = (rng.randint(2, 99) for _ in range(3))
    if kind < 0.7:
        n = rng.randint(0, 10 ** rng.randint(1, 5))
        return str(n), [str(n), f"{n:,}", f"{n}.0", f"0{n}"], [str(n + rng.randint(1, 99)) for _ in range(4)]
    if kind < 0.8:
        wrong = [f"{a + i}/{b}" for i in range(1, 5)]
        if rng.random() < 0.5:
            return f"{a}.{b}", [f"{a}.{b}", f"{a}.{b}0", f"0{a}.{b}00"], wrong
        return f"\\frac{{{a}}}{{{b}}}", [f"\\frac{{{a}}}{{{b}}}", f"\\dfrac{{{a}}}{{{b}}}", f"{2 * a}/{2 * b}"], wrong
    shapes = [
        ("{0}\\sqrt{{{1}}}", "\\sqrt{{{1}}} \\cdot {0}"),
        ("\\frac{{{0}\\pi}}{{{1}}}", "\\pi\\cdot\\frac{{{0}}}{{{1}}}"),
        ("{0}x^2+{1}x+{2}", "{2} + {1}x + {0}x^2"),
        ("({0}, {1})", "\\left({0}, {1}\\right)"),
        ("[{0}, {2}{1})", "\\left[ {0}, {2}{1}.0 \\right)"),
        ("{0}^{{{1}}}", "{0}^{{{1}}} \\cdot 1"),
        ("\\{{{0}, {2}{1}\\}}", "\\{{{2}{1}, {0}\\}}"),
    ]
    shape = rng.choice(shapes)
    return shape[0].format(a, b, c), [s.format(a, b, c) for s in shape], [s.format(a + 1, b, c) for s in shape]


def speed(runs: int) -> list[dict]:
    committed = [json.loads(line) for line in gzip.decompress(ANSWERS.read_bytes()).splitlines()]
    seeds, found = range(1, runs + 1), []
    for name, scorer, sets in (
        ("made answers, 16 to a question", _grade, [committed, *(made(seed) for seed in seeds)]),
        ("made answers, each to its own question", _grade, [made(seed, group=1) for seed in (0, *seeds)]),
        ("made answers, 16 to a question, every one parsed", _parse_all, [made(seed) for seed in (0, *seeds)]),
    ):
        grading._forget_pool()
        times, costs, grades = [], [], []
        for rows in sets:
            before, began = _cpu_seconds(), time.perf_counter()
            grades.append(scorer(rows))
            times.append(time.perf_counter() - began)
            costs.append(_cpu_seconds() - before)
        row = {
            "case": name,
            "answers": len(rows),
            "first_s": round(times[0], 2),
            "seconds": round(statistics.median(times[1:]), 3),
            "per_second": round(len(rows) / statistics.median(times[1:])),
            "cpu_s": round(statistics.median(costs[1:]), 3),
        }
        if scorer is _grade:
            first = grades[0]
            row["parsed"] = len(_parser_pairs(sets[0]))
            row["right"], row["unparsed"] = sum(g.score for g in first), sum(g.status == "unparsed" for g in first)
            row["timeouts"] = sum(g.status == "timeout" for g in first)
            singles = []
            for one in sets[-1]:
                began = time.perf_counter()
                grading.grade([one["text"]], [one["answer"]])
                singles.append(1e3 * (time.perf_counter() - began))
            cut = statistics.quantiles(singles, n=100)
            row["p50_ms"], row["p99_ms"] = round(cut[49], 3), round(cut[98], 1)
        found.append({**row, "runs": runs, **_facts()})
        grading._pool().close()
    return found


def _grade(rows):
    return grading.grade([row["text"] for row in rows], [row["answer"] for row in rows])


def _parse_all(rows):
    pairs = [[row["answer"], grading.final_answer(row["text"]) or ""] for row in rows]
    return grading._pool().map([[right, grading.bare(answer)] for right, answer in pairs if answer])


def _parser_pairs(rows):
    graded = (grading._by_value(row["text"], row["answer"]) for row in rows)
    return {pair for pair in graded if isinstance(pair, grading._Pair)}


# ---- hostile answers

_ATOMS = [
    *(
        "9",
        "0",
        "42",
        "x",
        "y",
        "\\pi",
        "e",
        "i",
        "\\infty",
        "1e9",
        ".5",
        "1,000",
        "-",
        "+",
        "\\cdot",
        "/",
        "^",
        "_",
        "!",
        "=",
    ),
    *(
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        "|",
        "\\{",
        "\\}",
        "\\left(",
        "\\right)",
        "\\left.",
        "\\right|",
        ",",
        ";",
        "\\\\",
        "&",
        "%",
        "#",
    ),
    *(
        "\\frac",
        "\\dfrac",
        "\\sqrt",
        "\\sqrt[3]",
        "\\log",
        "\\sin",
        "\\lim_{x\\to 0}",
        "\\int_0^1",
        "\\sum_{n=1}^{9}",
        "\\binom",
    ),
    *(
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\begin{cases}",
        "\\text{",
        "\\boxed{",
        "\\mathrm{",
        "\\overline{",
        "\\hat",
        "\\in",
    ),
    *(
        "$",
        "$$",
        "\\(",
        "\\)",
        "\\[",
        "\\]",
        "\\",
        "\\le",
        "<",
        ">",
        "\\ne",
        "\\pm",
        "\\cup",
        "\\mod",
        "\\to",
        " ",
        "\n",
        "\t",
    ),
    *(
        "Answer:",
        "answer is",
        "**",
        "`",
        "or",
        "and",
        "\x00",
        "\ud800",
        "\udfff",
        "\u202e",
        "\u200f",
        "\u0663",
        "\uff17",
        "\u00b2",
    ),
    *(
        "\u0301",
        "\U0001f600",
        "\ufeff",
        "\u00a0",
        "\u2028",
        "\x1b[31m",
        "%s",
        "{0}",
        "__import__('os')",
        "lambda: 0",
        "exit()",
    ),
]
_BOMBS = [
    "9^{9^{9^9}}",
    "9^{9^{9^{9^{9^{9}}}}}",
    "10^{10^{10}}",
    "9^{9^9} - 9^{9^9} + 42",
    "(10^6)!",
    "((9!)!)!",
    "\\binom{10^9}{10^8}",
    "\\sum_{i=1}^{10^9} i^{99}",
    "\\prod_{i=1}^{10^6} i",
    "\\int_0^{10^6} e^{x^{x^x}} dx",
    "2^{2^{2^{2^{2^{2}}}}}",
    "\\sqrt[10^9]{2^{10^9}}",
    "(x+1)^{10^5}",
    "\\log_{2}(2^{2^{99}})",
    "\\cos(10^{10^9})",
    "\\frac{1}{9^{9^{9^9}}}",
]


_UNITS = [
    *(
        "9",
        "{",
        "Answer:",
        "Answer: ",
        "\\boxed{",
        "\\boxed{1}",
        " ",
        "\n",
        "\x00",
        "\ud800",
        "\u202e",
        "$",
        "\\",
        "1,",
        "**",
    ),
    *("\\frac", "answer ", "answer is ", "Answer \n", "1/", "1 & 2 \\\\ ", "\u0301", "\u0663"),
]


def hostile(seed: int, count: int) -> Iterator[str]:
    """A fifth reaches the parser; one in 2,000 is a bomb, one in 1,000 is a megabyte or near it."""
    rng = random.Random(seed)
    for i in range(count):
        if i % 2000 == 7:
            yield f"Answer: ${rng.choice(_BOMBS)}$".replace("9", rng.choice("789"))
        elif i % 1000 == 3:
            yield _long(rng)
        else:
            soup = "".join(rng.choice(_ATOMS) for _ in range(rng.randint(1, 30)))
            shape = rng.random()
            if shape < 0.15:
                yield f"Answer: {soup}"
            elif shape < 0.16:
                yield _nested(rng, rng.choice([10, 30, 100, 1000]))
            elif shape < 0.6:
                yield soup + "\\boxed{" * rng.randint(0, 40) + soup
            else:
                yield soup * rng.randint(1, 60)


def _nested(rng: random.Random, depth: int) -> str:
    opening, closing = rng.choice(
        [
            ("{", "}"),
            ("(", ")"),
            ("\\left(", "\\right)"),
            ("\\sqrt{", "}"),
            ("\\frac{1}{1+", "}"),
            ("\\frac{", "}{2}"),
            ("x^{", "}"),
            ("\\boxed{", "}"),
            ("\\text{", "}"),
            ("-", ""),
            ("\\begin{pmatrix}", "\\end{pmatrix}"),
            ("|", "|"),
            ("\\log(", ")"),
        ]
    )
    unclosed = rng.random() < 0.3
    return f"Answer: ${opening * depth}1{closing * (depth - 1 if unclosed else depth)}$"


def _long(rng: random.Random) -> str:
    unit = rng.choice(_UNITS)
    return (
        "Answer: " + unit * (rng.choice([10_000, 100_000, 1_000_000]) // len(unit)) + rng.choice(["", "42", "$", "}"])
    )


def endure(number: int, batch: int = 1000) -> dict:
    """Grade hostile strings, in batches like those of a training step."""
    grading.grade(["Answer: 3+4"] * 2, ["7", "8"])
    pool, parent = grading._pool(), psutil.Process()
    died, send = [], pool.map

    def count(pairs):
        results = send(pairs)
        died.extend(r for r in results if r is Stopped.DIED)
        return results

    pool.map = count
    statuses, sizes, parsed = dict.fromkeys(("ok", "unparsed", "timeout"), 0), [], 0
    texts, began, before, load = hostile(0, number), time.perf_counter(), _cpu_seconds(), os.getloadavg()[0]
    done = 0
    while some := [text for _, text in zip(range(batch), texts, strict=False)]:
        rights = [("42", "\\frac{\\sqrt{3}}{2}", "033", "x+1")[i % 4] for i in range(len(some))]
        parsed += len({p for p in map(grading._by_value, some, rights) if isinstance(p, grading._Pair)})
        for graded in grading.grade(some, rights):
            statuses[graded.status] += 1
        done += len(some)
        workers = [psutil.Process(pid).memory_info().rss for pid in pool.pids()]
        sizes.append((parent.memory_info().rss, max(workers, default=0)))
        if done % 10_000 == 0:
            print(f"{done}: {statuses}, {sizes[-1][0] >> 20} and {sizes[-1][1] >> 20} MB", file=sys.stderr, flush=True)
    seconds = time.perf_counter() - began
    early, late = sizes[min(len(sizes) - 1, 9)], [max(size) for size in zip(*sizes[-10:], strict=True)]
    return {
        "case": "hostile strings",
        "answers": done,
        "parsed": parsed,
        "unparsed": statuses["unparsed"],
        "timeouts": statuses["timeout"],
        "crashes": len(died),
        "seconds": round(seconds, 1),
        "per_second": round(done / seconds),
        "cpu_s": round(_cpu_seconds() - before, 1),
        "parent_mb": late[0] >> 20,
        "parent_growth_mb": (late[0] - early[0]) >> 20,
        "worker_mb": late[1] >> 20,
        "worker_growth_mb": (late[1] - early[1]) >> 20,
        "runs": 1,
        **_facts(),
        "load": round(load, 1),
    }


# ---- rows


def _cpu_seconds() -> float:
    """Of this process and its children, dead and alive."""
    times = os.times()
    living = sum(sum(child.cpu_times()[:2]) for child in psutil.Process().children())
    return sum(times[:4]) + living


def _facts() -> dict:
    return {
        "workers": grading._pool().size,
        "load": round(os.getloadavg()[0], 1),
        "hardware": hardware(gpu=False),
        "python": platform.python_version(),
        "math_verify": importlib.metadata.version("math-verify"),
        "commit": source_commit(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hostile", type=int, metavar="N")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.make:
        text = "".join(json.dumps(row) + "\n" for row in made(0))
        ANSWERS.write_bytes(gzip.compress(text.encode(), mtime=0))
        return
    rows = [endure(args.hostile)] if args.hostile else speed(args.runs)
    for row in rows:
        print({key: value for key, value in row.items() if value is not None})
    if args.write:
        new = not ROWS.exists()
        with ROWS.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            if new:
                writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
