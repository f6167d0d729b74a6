r"""Is there an answer that is right for questions that have nothing in common? A search over made answers.

    python -m research.measurements.constants    # 3,000 answers of seed 0
    python -m research.measurements.constants --count 100000 --seed 1

An answer is made by a grammar of what has fooled comparers: infinities and what is computed with them, 0/0, functions,
relations, intervals, sets, matrices, huge numbers, words, units, boxes. Each is graded against every one of `RIGHT`,
whose values are all different: an answer that is right for two of them is a fault, and is printed.
"""

import argparse
import random
import sys
import time

from bandpo.rewards.grading import grade

RIGHT = [
    "42", "0.617", r"\frac{17}{23}", r"2\sqrt{31}", r"\{1,2\}", "x^2+2x+1", "(3,7)", r"\frac{\pi}{6}", "25\\%",
    "3+4i", "[5,9)", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", "Tuesday", "x > 8", "10:30", "101_2",
    r"(-\infty,6]",
]  # fmt: skip
_ATOMS = [
    r"\infty", r"-\infty", "0", "1", "2", "42", "x", "i", "e", r"\pi", "nan", "zoo", "oo", r"\frac{0}{0}",
    r"\frac{1}{0}", "10^{99}", "99!", r"\emptyset", r"\mathbb{R}", "-1", "0.5", r"\text{true}",
    r"\text{undefined}", "n", "C", "?", "-0",
]  # fmt: skip
_AROUND = [
    r"|{}|", r"{}!", r"\sqrt{{{}}}", r"\ln({})", r"\exp({})", r"\sin({})", r"\tan({})", r"\lfloor {} \rfloor",
    "({})", r"\log_2({})", r"\Gamma({})", r"-{}", r"\{{{}\}}", r"\boxed{{{}}}", r"{}\%", r"{}^\circ",
    r"\text{{{}}}", r"\${}", r"\overline{{{}}}", r"\lim_{{n \to \infty}} {}", r"\sum_{{n=1}}^{{\infty}} {}",
    r"\int_0^{{\infty}} {} dx", "x={}", r"\begin{{pmatrix}} {} \end{{pmatrix}}", "the answer is {}", "{} cm",
    "any {}", r"\operatorname{{{}}}", r"\arctan({})",
]  # fmt: skip
_BETWEEN = [
    "{}+{}", "{}-{}", r"{} \cdot {}", "{}/{}", "{}^{{{}}}", r"\frac{{{}}}{{{}}}", r"\max({},{})", r"\min({},{})",
    r"\binom{{{}}}{{{}}}", r"\gcd({},{})", r"{} \mod {}", "({},{})", "[{},{})", "{},{}", r"\{{{},{}\}}", "{}={}",
    "{}<{}", r"{}\ne{}", r"{}\approx{}", r"{} \pm {}", r"{} \cup {}", r"{} \cap {}", r"{}\in{}", "{} or {}",
    "{}:{}", "{}_{{{}}}", r"{}\boxed{{{}}}", r"{} \le {}", r"\log_{{{}}}{{{}}}", "{} {}",
    r"\sum_{{n={}}}^{{{}}} n", r"\lim_{{n\to {}}} {}",
]  # fmt: skip


def made(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)

    def one(depth: int) -> str:
        kind = rng.random() if depth else 0.0
        if kind < 0.25:
            return rng.choice(_ATOMS)
        if kind < 0.6:
            return rng.choice(_AROUND).format(one(depth - 1))
        return rng.choice(_BETWEEN).format(one(depth - 1), one(depth - 1))

    return list(dict.fromkeys(one(rng.randint(1, 4)) for _ in range(count)))


def search(answers: list[str]) -> dict[str, list[str]]:
    """Answer -> the right answers that it is equal to, where these are more than one."""
    grades = iter(grade([f"Answer: ${a}$" for a in answers for _ in RIGHT], RIGHT * len(answers)))
    right_for = {a: [right for right in RIGHT if next(grades).score] for a in answers}
    return {a: rights for a, rights in right_for.items() if len(rights) > 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    answers, began, faults = made(args.seed, args.count), time.perf_counter(), 0
    for start in range(0, len(answers), 500):
        for answer, rights in search(answers[start : start + 500]).items():
            faults += 1
            print(repr(answer), rights)
        print(
            f"{min(start + 500, len(answers))} answers, {time.perf_counter() - began:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    print(f"{len(answers)} answers against {len(RIGHT)} right ones: {faults} right for more than one")


if __name__ == "__main__":
    main()
