r"""How fast the scorer `math` is, and what hostile answers do to it.

    python -m research.measurements.rewards    # 1,000 made answers, and more such
    python -m research.measurements.rewards --hostile 100000    # as many hostile strings
    python -m research.measurements.rewards --million 1000000    # as many generated answers: half an hour
    python -m research.measurements.rewards ... --write    # and append rows to rewards.csv

An answer is 200 to 4,000 tokens of reasoning, at 4 characters a token, and a last line: a third are wrong, a tenth
cannot be parsed. Of the right answers 7 in 10 are whole numbers, 1 in 10 are decimals or fractions, 2 in 10 need a
parser. As in a training step, 16 answers are to one question; another row has a question for each.

Run i has seed i, so that nothing is cached; run 0 starts the workers and does not count. Rates are medians; `cpu_s` is
the processor time of a run in all processes, which other work on the machine changes less than the time on the clock.

Generated answers are written by a small grammar of answers, or are made answers with faults put in, words around
numbers, characters of all kinds, what is known to be hard for sympy, and the hostile strings. They are graded in
batches of 500; `errors` are the answers on which the scorer failed, `exceptions` what came out of `grade`, which should
be none.
"""

import argparse
import contextlib
import importlib.metadata
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from bandpo.rewards import grading
from bandpo.rewards.workers import comparisons
from bandpo.rewards.workers.pool import Stopped
from bandpo_runs.provenance import hardware, source_commit
from research.csv_rows import write_rows

ROWS = Path(__file__).with_suffix(".csv")

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
        answer = rng.choice(wrong if i % 3 == 0 else forms)
        last = rng.choice(_LOST) if i % 10 == 1 else rng.choice(_LAST).format(answer)
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
    seeds, result = range(runs + 1), []
    for name, scorer, sets in (
        ("made answers, 16 to a question", _grade, [made(seed) for seed in seeds]),
        ("made answers, each to its own question", _grade, [made(seed, group=1) for seed in seeds]),
        ("made answers, 16 to a question, every one parsed", _parse_all, [made(seed) for seed in seeds]),
    ):
        comparisons.forget_pool()
        times, costs = [], []
        for rows in sets:
            before, began = _cpu_seconds(), time.perf_counter()
            scorer(rows)
            times.append(time.perf_counter() - began)
            costs.append(_cpu_seconds() - before)
        row = {
            "case": name,
            "answers": len(rows),
            "seconds": round(statistics.median(times[1:]), 3),
            "per_second": round(len(rows) / statistics.median(times[1:])),
            "cpu_s": round(statistics.median(costs[1:]), 3),
        }
        result.append({**row, "runs": runs, **_facts()})
        comparisons.pool().close()
    return result


def _grade(rows):
    return grading.grade([row["text"] for row in rows], [row["answer"] for row in rows])


def _parse_all(rows):
    pairs = [(row["answer"], grading.final_answer(row["text"])) for row in rows]
    return comparisons.pool().map(
        [[right, grading.bare(statement.answers[-1])] for right, statement in pairs if statement]
    )


# ---- hostile answers

_ATOMS = [
    "9", "0", "42", "x", "y", "\\pi", "e", "i", "\\infty", "1e9", ".5", "1,000", "-", "+", "\\cdot", "/", "^", "_",
    "!", "=", "{", "}", "(", ")", "[", "]", "|", "\\{", "\\}", "\\left(", "\\right)", "\\left.", "\\right|", ",",
    ";", "\\\\", "&", "%", "#", "\\frac", "\\dfrac", "\\sqrt", "\\sqrt[3]", "\\log", "\\sin", "\\lim_{x\\to 0}",
    "\\int_0^1", "\\sum_{n=1}^{9}", "\\binom", "\\begin{pmatrix}", "\\end{pmatrix}", "\\begin{cases}", "\\text{",
    "\\boxed{", "\\mathrm{", "\\overline{", "\\hat", "\\in", "$", "$$", "\\(", "\\)", "\\[", "\\]", "\\", "\\le",
    "<", ">", "\\ne", "\\pm", "\\cup", "\\mod", "\\to", " ", "\n", "\t", "Answer:", "answer is", "**", "`", "or",
    "and", "\x00", "\ud800", "\udfff", "\u202e", "\u200f", "\u0663", "\uff17", "\u00b2", "\u0301", "\U0001f600",
    "\ufeff", "\u00a0", "\u2028", "\x1b[31m", "%s", "{0}", "__import__('os')", "lambda: 0", "exit()",
]  # fmt: skip
_BOMBS = [
    "9^{9^{9^9}}", "9^{9^{9^{9^{9^{9}}}}}", "10^{10^{10}}", "9^{9^9} - 9^{9^9} + 42", "(10^6)!", "((9!)!)!",
    "\\binom{10^9}{10^8}", "\\sum_{i=1}^{10^9} i^{99}", "\\prod_{i=1}^{10^6} i", "\\int_0^{10^6} e^{x^{x^x}} dx",
    "2^{2^{2^{2^{2^{2}}}}}", "\\sqrt[10^9]{2^{10^9}}", "(x+1)^{10^5}", "\\log_{2}(2^{2^{99}})", "\\cos(10^{10^9})",
    "\\frac{1}{9^{9^{9^9}}}",
]  # fmt: skip


_UNITS = [
    "9", "{", "Answer:", "Answer: ", "\\boxed{", "\\boxed{1}", " ", "\n", "\x00", "\ud800", "\u202e", "$", "\\",
    "1,", "**", "\\frac", "answer ", "answer is ", "Answer \n", "1/", "1 & 2 \\\\ ", "\u0301", "\u0663",
]  # fmt: skip


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
    opening, closing = rng.choice([
        ("{", "}"), ("(", ")"), ("\\left(", "\\right)"), ("\\sqrt{", "}"), ("\\frac{1}{1+", "}"),
        ("\\frac{", "}{2}"), ("x^{", "}"), ("\\boxed{", "}"), ("\\text{", "}"), ("-", ""),
        ("\\begin{pmatrix}", "\\end{pmatrix}"), ("|", "|"), ("\\log(", ")"),
    ])  # fmt: skip
    unclosed = rng.random() < 0.3
    return f"Answer: ${opening * depth}1{closing * (depth - 1 if unclosed else depth)}$"


def _long(rng: random.Random) -> str:
    unit = rng.choice(_UNITS)
    return (
        "Answer: " + unit * (rng.choice([10_000, 100_000, 1_000_000]) // len(unit)) + rng.choice(["", "42", "$", "}"])
    )


# ---- generated answers

_RIGHT = r"""
7 42 0 -3 1000 0.617 7919 033 \frac{17}{23} 2\sqrt{31} \frac{\sqrt{3}}{2} \frac{3\pi}{4} x+1 x^2-5x+6 (1,2) [0,1)
\{1,2\} \infty A Tuesday 10:30 90^\circ \begin{pmatrix}1\\2\end{pmatrix} x=2 1,2 \$42 12\% 2^{100} 3-4i (-\infty,3]
""".split()  # noqa: SIM905
_WORDS = """half twice about most not square root squared or more apples percent million dollars degrees is hence maybe
(wrong) times multiple of the at least one plus minus""".split()  # noqa: SIM905
_HARD = r"""
\binom{20000}{10000} \Gamma(1600) \gcd(10^{5000},10^{5000}) \frac{0}{0}\cdot{i} 10^{5000} \max(\infty,2) 2^{\ln(\infty)}
\log_2(2^{\infty}) \exp(\infty!) \infty!!!! \infty^0 \infty-\infty 1\%0 0x1F \tan(\pi/2) \frac{1}{0} 0^{0} \sqrt[0]{2}
\log_1(1) 42_8 (-1)^{\frac{1}{2}} \sum_{n=1}^{\infty}n \lim_{x\to0}\frac1x 10^{-5000} 1e400 1e-400 \arcsin(2) x!
\int_0^1\frac{1}{x}dx |\infty| \prod_{n=0}^{9}n \begin{pmatrix}1\\2,3\end{pmatrix}
""".split()  # noqa: SIM905
# 0 and 1 stand for two expressions, 2 for a small number.
_SHAPES = r"""
0+1 0-1 01 0\cdot{1} \frac{0}{1} 0/1 \sqrt{0} (0) 0^{2} (0)^{2} \sqrt[3]{0} -0 |0| 0! \sin(0) \ln{0} \log_{2}(0) 0=1 0<1
0\le{x}\le1 (0,1) [0,1) \{0,1\} 0,1 0\text{or}1 (0,1]\cup[1,0) \begin{pmatrix}0&1\end{pmatrix} 0^\circ 0\% \$0 0:1
\binom{0}{1} \text{0} \boxed{0} 0\pm1 0_{2} \lfloor0\rfloor
""".split()  # noqa: SIM905
_ASKED = ["Answer: {}", "Answer: ${}$", "**Answer:** {}", "\\boxed{{{}}}", "So the answer is {}.", "{}"]
_SIGNS = "0123456789+-/,.^_{}()[]|\\$ \t\n\0" + (
    "\u0663\uff17\u00b2\u00bd\u2167\u4e94\u2212\u2013\u2044\uff0c\u3002\u00b7\u00d7\u200b\u202e"
)
# What a parser has to read takes a hundred times as long as the rest.
_KINDS = {"expression": 0.06, "mutant": 0.3, "words": 0.3, "characters": 0.12, "hard": 0.005, "soup": 0.215}


def generated(chunk: int, real: list[dict[str, str]], size: int = 500) -> list[tuple[str, str]]:
    """Texts and right answers, the same ones for the same number."""
    rng = random.Random(chunk)
    soup, rows = hostile(chunk, size), []
    for kind in rng.choices([*_KINDS], [*_KINDS.values()], k=size):
        right = rng.choice(_RIGHT)
        if kind == "soup":
            text = next(soup)
        elif kind == "mutant":
            text, right = rng.choice(real).values()
            text = _mutated(rng, text if rng.random() < 0.05 else text[-rng.randint(20, 300) :], real)
        else:
            if kind == "expression":
                answer = _expression(rng, rng.randint(0, 3))
            elif kind == "words":
                some = [*rng.choices(_WORDS, k=rng.randint(1, 4)), right if rng.random() < 0.5 else _expression(rng, 0)]
                rng.shuffle(some)
                answer = " ".join(some)
            elif kind == "characters":
                answer = _characters(rng)
            else:
                answer = rng.choice(_HARD)
                if rng.random() < 0.5:
                    answer = _shaped(rng, answer, _expression(rng, 0))
            text = rng.choice(_ASKED).format(_mutated(rng, answer, real) if rng.random() < 0.3 else answer)
        rows.append((text, right))
    return rows


def _expression(rng: random.Random, depth: int) -> str:
    if depth == 0:
        number = rng.choice([str(rng.randint(0, 99)), str(rng.randint(0, 10**6)), f"{rng.random():.3f}", "-1", "1,000"])
        return rng.choice([number, number, rng.choice(_RIGHT), rng.choice("xynabeiEI"), "\\pi", "\\alpha"])
    return _shaped(rng, *(_expression(rng, rng.randrange(depth)) for _ in range(2)))


def _shaped(rng: random.Random, one: str, other: str) -> str:
    parts = {"0": one, "1": other, "2": str(rng.randint(0, 12))}
    return "".join(parts.get(sign, sign) for sign in rng.choice(_SHAPES))


def _characters(rng: random.Random) -> str:
    """Bytes, code points of anywhere, or digits and signs of several scripts."""
    length = rng.choice([1, 3, 10, 40, 400])
    match rng.randrange(3):
        case 0:
            return rng.randbytes(length).decode(rng.choice(["latin-1", "utf-8"]), "surrogateescape")
        case 1:
            return "".join(chr(rng.choice([rng.randrange(0x110000), rng.randrange(0x3000)])) for _ in range(length))
        case _:
            return "".join(rng.choice(_SIGNS) for _ in range(length))


def _mutated(rng: random.Random, text: str, real: list[dict[str, str]]) -> str:
    for _ in range(rng.randint(1, 4)):
        i, j = sorted(rng.randrange(max(1, len(text))) for _ in range(2))
        j = min(j, i + 20)
        others = [rng.choice(_ATOMS), rng.choice(real)["text"][-rng.randint(1, 30) :], _characters(rng)[:3]]
        piece = rng.choice(["", text[i:j] * 2, *others])
        text = text[:i] + piece + text[j if rng.random() < 0.5 else i :]
    return text


# ---- what many of them do


def endure(case: str, batches: Iterator[list[tuple[str, str]]]) -> dict:
    """Grade them, in batches like those of a training step, and return their row."""
    grading.grade(["Answer: 3+4"] * 2, ["7", "8"])
    pool, parent = comparisons.pool(), psutil.Process()
    counts = ("answers", "parsed", "timeouts", "crashes", "errors", "exceptions", "seconds")
    row = {"case": case, **dict.fromkeys(counts, 0)}
    names, send = {"timeout": "timeouts", "error": "errors"}, pool.map

    def count_answers(pairs):
        row["parsed"] += len(pairs)
        results = send(pairs)
        row["crashes"] += sum(result is Stopped.DIED for result in results)
        return results

    pool.map = count_answers
    sizes, first = [], _cpu_seconds()
    for batch in batches:
        began = time.perf_counter()
        try:
            grades = grading.grade(*map(list, zip(*batch, strict=True)))
        except Exception as error:
            row["exceptions"] += 1
            print(f"{type(error).__name__}: {error}; the batch after {row['answers']} answers", file=sys.stderr)
            grades = []
        row["seconds"] += time.perf_counter() - began
        for graded in grades:
            if graded.status in names:
                row[names[graded.status]] += 1
        workers = [psutil.Process(pid).memory_info().rss for pid in pool.pids()]
        sizes.append((parent.memory_info().rss, max(workers, default=0)))
        row["answers"] += len(batch)
        if row["answers"] % 10_000 < len(batch):
            print(row, file=sys.stderr, flush=True)
    row |= {"per_second": round(row["answers"] / row["seconds"]), "seconds": round(row["seconds"], 1)}
    # From what the parent had after the first ten batches.
    grown = max(size for size, _ in sizes) - sizes[min(len(sizes) - 1, 9)][0]
    row |= {"cpu_s": round(_cpu_seconds() - first, 1), "parent_growth_mb": grown >> 20}
    return {**row, "worker_mb": max(size for _, size in sizes) >> 20, "runs": 1, **_facts()}


def hostile_row(number: int) -> dict:
    texts = hostile(0, number)
    rights = ("42", "\\frac{\\sqrt{3}}{2}", "033", "x+1")
    batches = iter(lambda: [(text, rights[i % 4]) for i, text in zip(range(1000), texts, strict=False)], [])
    return endure("hostile strings", batches)


def million_row(number: int) -> dict:
    real = made(0)
    return endure("generated answers", (generated(chunk, real) for chunk in range(number // 500)))


# ---- rows


def _cpu_seconds() -> float:
    """Of this process and its children, dead and alive."""
    times = os.times()
    living = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            living += sum(child.cpu_times()[:4])
    return sum(times[:4]) + living


def _facts() -> dict:
    return {
        "workers": comparisons.pool().size,
        "load": round(os.getloadavg()[0], 1),
        "hardware": hardware(gpu=False),
        "python": platform.python_version(),
        "math_verify": importlib.metadata.version("math-verify"),
        "commit": source_commit(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hostile", type=int, metavar="N")
    parser.add_argument("--million", type=int, metavar="N")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.million:
        rows = [million_row(args.million)]
    else:
        rows = [hostile_row(args.hostile)] if args.hostile else speed(args.runs)
    for row in rows:
        print(row)
    if args.write:
        write_rows(ROWS, rows, add=True)


if __name__ == "__main__":
    main()
