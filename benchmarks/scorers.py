r"""Where scorers disagree: ours, verl's and TRL's, on answers whose rightness is plain to see.

    python benchmarks/scorers.py            # what the scorers of this environment say
    python benchmarks/scorers.py --write    # and write it to benchmarks/scorers.csv; columns of others stay as they are
    python benchmarks/scorers.py --tricky    # what `math` misjudges of benchmarks/tricky.yaml, in four forms
    python benchmarks/scorers.py --tricky --write    # and write it to benchmarks/tricky.csv, tricky_counts.csv
    python benchmarks/scorers.py --page     # docs/scorers.md from the rows

TRL's scorer needs the environment of `constraints.txt`, verl's two that of `constraints-verl.txt`.
"""

import argparse
import csv
import importlib.util
import logging
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import yaml

from bandpo.rewards.grading import grade

ROOT = Path(__file__).resolve().parent.parent
TRICKY, MISJUDGED = Path(__file__).with_name("tricky.yaml"), Path(__file__).with_name("tricky.csv")
COUNTS = Path(__file__).with_name("tricky_counts.csv")
ROWS, PAGE = Path(__file__).with_suffix(".csv"), ROOT / "docs" / "scorers.md"

# (text, right answer, whether a reader would call it right)
CASES = [
    ("Answer: $42$", "42", 1),
    ("answer:\\boxed{42}", "42", 1),
    ("Answer: x=5", "5", 1),
    ("Answer: 1,000", "1000", 1),
    ("Answer:\n42", "42", 1),
    ("**Answer:** 42", "42", 1),
    ("**Answer: 42**", "42", 1),
    ("Answer: 42.", "42", 1),
    ("Answer: 42.0", "42", 1),
    ("The final answer is \\boxed{42}", "42", 1),
    ("Answer: \\(42\\)", "42", 1),
    ("Answer: $$42$$", "42", 1),
    ("Answer: 0.5", "\\frac{1}{2}", 1),
    ("Answer: \\frac{1}{2}", "0.5", 1),
    ("Answer: \\frac{1}{2}", "\\dfrac{1}{2}", 1),
    ("Answer: 33", "033", 1),
    ("Answer: 033", "33", 1),
    ("Answer: 27", "27.0", 1),
    ("Answer: \\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}", 1),
    ("Answer: $1+2x$", "2x+1", 1),
    ("Answer: $\\{2, 1\\}$", "\\{1,2\\}", 1),
    ("Answer: $\\left(1, 2\\right)$", "(1,2)", 1),
    ("Answer: 42 apples", "42", 1),
    ("Answer: 90^\\circ", "90", 1),
    ("Answer: 1\\,000", "1000", 1),
    ("Answer: \\text{Tuesday}", "Tuesday", 1),
    ("So the answer is 42.", "42", 1),
    ("Answer:\n$$\n42\n$$\nThat is all.", "42", 1),
    ("Answer: 42\n" + "We are done. " * 30, "42", 1),
    ("Answer: 43", "42", 0),
    ("Answer: -42", "42", 0),
    ("Answer: 42 or 43", "42", 0),
    ("Answer: 42, 43", "42", 0),
    ("Answer: $x + 42$ apples", "42", 0),
    ("Answer: 0.3333", "\\frac{1}{3}", 0),
    ("Answer: (0, 1)", "[0, 1)", 0),
    ("Answer: a square", "", 0),
    ("\\boxed{42} is wrong, so \\boxed{43}", "42", 0),
    ("Answer: 42\nNo, wait.\nAnswer: 43", "42", 0),
    ("The sum is 42", "42", 0),
]
SCORERS = ["math", "dapo-strict", "verl math_dapo", "verl math_verify", "TRL accuracy_reward"]
COLUMNS = ["text", "answer", "right", *SCORERS]

INTRODUCTION = r"""# The scorers

In short:

- **`math`**, the default, compares values: 1/2 is 0.5 is `\frac{1}{2}`. An answer that it is not sure about is wrong.
  Answers are checked in separate processes, so a malicious one cannot crash training.
- **`dapo-strict`** compares strings, as the paper's public runs did. It is for comparison with those runs, and it has
  known faults.
- Of {cases} tricky cases `math` gets all as a reader would; `dapo-strict` and the scorers of verl and TRL each get some
  of them wrong. The cases were written with `math`, so this is no fair contest.

[What is right](#what-is-right), [tricky answers](#tricky-answers),
[time and hostile answers](#time-and-hostile-answers), [where scorers disagree](#where-they-disagree).

`bandpo.rewards.grade(texts, answers, scorer)`; as rewards `math` and `dapo-strict` in a recipe of `bandpo train`,
`bandpo.rewards.math_reward` and `dapo_strict` in a TRL script, `compute_score` and `compute_score_dapo_strict` of
`pkg://bandpo.rewards` in verl (`reward.custom_reward_function`).

**`math`**, the default, compares values. The answer is the line of the last "Answer:" (Markdown, and the colon of
Chinese text, are fine; the next line, or a displayed formula, where nothing follows), else the last `\boxed{}`, with
the formula that it stands in, else the sentence after the last "answer is". Delimiters, boxes, `\text{}`, bold and full
stops are taken off. What stands beside a value must be known to leave it as it is: words of a list ("the answer is",
a unit, "in total", "x ="), or a sentence that says one value of its subject ("The vertex is at (3, -1)"), which is
believed if no word in it is known to change a value. Anything else ("half of", "at least", "squared", "(wrong)")
makes the answer wrong. Numbers are compared exactly; the rest goes to
[math-verify](https://github.com/huggingface/Math-Verify), in worker processes: 1 s of processor time and 1 GiB per
comparison, then the kernel ends it and the answer is wrong (status `timeout`). What it calls equal must also be of
one kind (a point is no set) and have one value in numbers, without infinities; nothing is computed that has more than
50,000 bits. An answer of more than 500 characters is not looked at. Right is 1, wrong is 0; in verl 1 and -1.

**`dapo-strict`** is the scorer of the public runs, `math_dapo` of verl 0.5: "Answer:" in the last 300 characters,
Minerva's normalisation (arXiv 2206.14858), equal strings. It is for comparison with those runs, and what recipes/paper
use. Right is 1, wrong is 0; in verl 1 and -1, as there: rewards standardised in a group do not see the difference. It
differs from `math` in that

- `\boxed{}` or "the answer is" alone is no answer, and neither is "Answer:" in bold (`**Answer:** 42`): the asterisks
  become part of the answer, or stand before the colon;
- a full stop, `\(..\)`, `$$..$$`, a trailing `.0` or an added zero make an answer wrong. AIME 2024 in
  `HuggingFaceH4/aime_2024` has answers like "033": no model that writes 33 can be right there;
- `0.5` is not `\frac{1}{2}`, `\frac` is not `\dfrac`, and no expression is equal to another way to write it;
- the answer must be within the last 300 characters;
- some words are taken for units wherever they stand ("sue", "points", "square"), and what is before "=" is dropped;
- an answer that is empty after all this is right if the right answer is empty, too.

verl 0.9's own `math_dapo` is `dapo-strict`, but where no "Answer:" is found it takes a `\boxed{}` within the last 100
characters. Against its functions `dapo-strict` is tested on 20,000 made answers (tests/cluster/test_verl_rewards.py).

## What is right

Decisions, where readers differ:

- *Lists and sets.* `1,2` is what MATH gives as an answer to "enter all, separated by commas": a set, in any order, with
  or without braces. `(1,2)` is a point or an open interval: it is never right for `1,2` or `\{1,2\}`, nor they for it.
  A column is not a row, `\pm 3` is `3, -3`.
- *Units.* Without the question a bare right answer leaves the unit open: `42 cm`, `42 dollars`, `42 degrees` are right
  for 42. Where the right answer has one, another is wrong (42 cents for $42, 90 % for 90 degrees) and none is right:
  MATH and GSM8K leave it out as often as not. Units are not converted.
- *Percent.* 25 % is 0.25 and 1/4. It is right for a bare whole 25 too: GSM8K's answers to "what percent" are bare.
- *Decimals.* Two decimals are equal exactly, or not: 0.4200005 is not 0.42. For what a decimal cannot write out (1/3)
  six places or more must be right, as math-verify has it; 0.333 is wrong.
- *Equations.* `x = 42`, `m+n = 42`, `6 \cdot 7 = 42` are right for 42, `43 = 42` is wrong: every side without a letter
  must be right.
- *Boxes.* `2\boxed{42}` is 84, and "not \boxed{42}" no answer.
- *Bases, times, ratios* are compared as they are written: 42_8 is not 42, 10:30 is not 1/3 and not 10:30 pm.
- *Letters.* `\Pi` is not `\pi`, E not e, X not x; `i` is the imaginary unit, unless a sum runs over it.
- *Infinities.* One is right only for the same one, alone; they may be the ends of intervals. Nothing is computed with
  them: sympy makes 42 - oo a zero, so that `\max(\infty,2)` was equal to nearly every number.
- *Hedges.* "about 7", "maybe 7", "7 or more" are no answers.

## Tricky answers

benchmarks/tricky.yaml has them with a verdict that was written before any was graded; where readers differ without the
question they are marked doubtful, and not counted. The first three parts are tricks, by those who wrote the scorer.
Parts four to seven were written from the decisions above alone, by language models that had not seen the scorer or the
other parts: four and five look for rare ways to be right, six and seven are what models write. Each part was run once
before anything was mended for it, and what it showed was then mended; so only this first run says something about
answers not seen before:

| part | right, refused | wrong, rewarded | the scorer at commit | the same, by the scorer as it was before |
|---|---|---|---|---|
| second | 20 of 525 (3.8 %) | 2 of 805 (0.2 %) | not recorded | 11.2 %, 19.3 % |
| third | 3 of 85 (3.5 %) | 1 of 125 (0.8 %) | not recorded | |
| fourth | 82 of 350 (23.4 %) | 0 of 350 | e3cbd31 | |
| fifth | 20 of 350 (5.7 %) | 0 of 350 | 90ef532 | 16.6 %, 0 % |
| sixth | 9 of 320 (2.8 %) | 0 of 320 | cd813ef | 9.4 %, 0 % |
| seventh | 4 of 320 (1.2 %) | 0 of 320 | 24017df | 5.9 %, 0 % |
| ninth | 7 of 320 (2.2 %) | 0 of 320 | a3a5d54 | 11.6 %, 0 % |

In the last column, the scorer of before is that of commit e3cbd31 from the fifth part on. To repeat such a run, check
out the commit, put today's `benchmarks/tricky.yaml` into it, and run its
`python benchmarks/scorers.py --tricky fifth`.

The eighth part is what a review of all this got rewarded or refused; the ninth was written after that was mended, half
of its wrong answers to be rewarded. Now it is

{tricky}

    python benchmarks/scorers.py --tricky all --write
    python benchmarks/constants.py --count 100000    # is any answer right for two questions?

## Time and hostile answers

{speed}

    python benchmarks/rewards.py --write
    python benchmarks/rewards.py --hostile 100000 --write
    python benchmarks/rewards.py --million 1000000 --write    # generated answers of all kinds

Every answer gets a grade, whatever it does, and no answer ends a training or an evaluation. The status says which:

| status | what happened | score |
|---|---|---|
| `ok` | an answer was read, and compared | 1 or 0 |
| `unparsed` | nothing was found that can be read as an answer | 0 |
| `timeout` | the comparison was ended at its limit of time or memory, or crashed its process twice | 0 |
| `error` | the scorer itself failed on it | 0 |

`error` should not occur. A warning (`RuntimeWarning`) tells of the first one in a process: the exception, its place,
and the answer: please report it, for an answer that is wrongly graded is a fault of bandpo or of math-verify. The later
ones are counted and not said; TRL logs the share as `reward/error`, beside `reward/unparsed` and `reward/timeout`, and
an evaluation stores the status with each sample. A scorer that can grade nothing (math-verify is missing, or judges
`x+1` and `1+x` to be different) is an error at the start instead.

The limits are the kernel's. One process loads math-verify, and forks the workers; so a worker that is ended costs some
hundredths of a second, not an import. It is replaced after 1,000 comparisons, and whenever one has failed in it. All of
them end with the process that grades, however it ends: on Linux at once. Elsewhere each worker is started by itself, as
forks are not safe there, and ends with its comparison.

`bandpo train` writes the time that the reward took, and its share, to `timing.jsonl`, a line per logged step:
`metrics.jsonl` has nothing that depends on the clock. verl logs `timing_s/reward`.

## Where they disagree

TRL's scorer wants LaTeX in delimiters or a box; verl's math_verify takes the last thing that it can read. 1: right.
Bold: not what a reader would say. Of {cases} cases, {wrong}
The cases were written with `math`, so this is a test of it, no estimate.

    python benchmarks/scorers.py --write    # in an environment with TRL, and in one with verl
    python benchmarks/scorers.py --page

| text | right answer | reader | {scorers} |
|---|---|---|{lines}|
"""


def available() -> dict:
    """The scorers of this environment: name -> function of texts and right answers."""

    def ours(name):
        return lambda texts, answers: [g.score for g in grade(texts, answers, name)]

    found = {"dapo-strict": ours("dapo-strict")}
    has_math_verify = importlib.util.find_spec("math_verify") is not None
    if has_math_verify:
        found["math"] = ours("math")
    if importlib.util.find_spec("verl") is not None:
        from verl.utils.reward_score import math_dapo, math_verify

        def alone(score):
            return lambda texts, answers: [score(t, a) for t, a in zip(texts, answers, strict=True)]

        found["verl math_dapo"] = alone(lambda t, a: float(math_dapo.compute_score(t, a)["acc"]))
        if has_math_verify:
            found["verl math_verify"] = alone(math_verify.compute_score)
    if importlib.util.find_spec("trl") is not None and has_math_verify:
        from trl.rewards import accuracy_reward

        def trl(texts, answers):
            # It takes messages, and right answers with their delimiters; None: it cannot read the right answer.
            scores = accuracy_reward([[{"content": text}] for text in texts], [f"${answer}$" for answer in answers])
            return [score or 0.0 for score in scores]

        found["TRL accuracy_reward"] = trl
    return found


# ---- tricky answers


class Tricky(NamedTuple):
    form: str
    part: str
    gold: str
    text: str
    right: int


# Where the answer stands. What has delimiters, a box, Markdown or lines of its own stands behind "Answer:" only.
FORMS = {
    "answer": "Answer: {}",
    "box": "\\boxed{{{}}}",
    "sentence": "Therefore, the answer is \\boxed{{{}}}.",
    "formula": "So we get \\(\\boxed{{{}}}\\).",
}
_OWN_FORM = re.compile(r"\$|\\boxed|\\fbox|\*\*|\*\w|`|__|\n|\\[(\[]")


def tricky(form: str) -> list[Tricky]:
    """Those that are counted. Which part an answer is in hangs on a checksum of it, not on anybody's choice."""
    found = []
    for group in yaml.safe_load(TRICKY.read_text(encoding="utf-8")):
        for verdict, right in (("right", 1), ("wrong", 0)):
            for answer in group.get(verdict, []):
                part = group.get("part") or ("first", "second")[zlib.crc32(f"{group['gold']}\t{answer}".encode()) % 2]
                whole = group.get("whole", False)
                if form != "answer" and (whole or _OWN_FORM.search(answer) or answer.count("{") != answer.count("}")):
                    continue
                text = answer if whole else FORMS[form].format(answer)
                found.append(Tricky(form, part, group["gold"], text, right))
    return found


def misjudged(cases: list[Tricky]) -> list[Tricky]:
    grades = grade([case.text for case in cases], [case.gold for case in cases])
    return [case for case, graded in zip(cases, grades, strict=True) if graded.score != case.right]


def _tricky_page() -> str:
    lines = ["| where | right | refused | wrong | rewarded |", "|---|---|---|---|---|"]
    with COUNTS.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            where = _code(FORMS[row["form"]].format("..."))
            lines.append(f"| {where} | {row['right']} | {row['refused']} | {row['wrong']} | {row['rewarded']} |")
    return "\n".join(lines)


def scores() -> dict[str, list[int]]:
    logging.disable(logging.WARNING)
    texts, answers = [case[0] for case in CASES], [case[1] for case in CASES]
    found = {}
    for name, scorer in available().items():
        scorer(texts, answers)  # on a busy machine math-verify's own limit of 5 s can strike while it is still loading
        found[name] = [int(score) for score in scorer(texts, answers)]
    return found


def read() -> list[dict[str, str]]:
    with ROWS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def page() -> str:
    rows = read()
    lines, wrong = [], dict.fromkeys(SCORERS, 0)
    for row in rows:
        cells = []
        for name in SCORERS:
            differs = row[name] != row["right"]
            wrong[name] += differs
            cells.append(f"**{row[name]}**" if differs else row[name])
        text = row["text"] if len(row["text"]) < 60 else row["text"][:30] + "…" + row["text"][-12:]
        lines.append(f"| {_code(text)} | {_code(row['answer'])} | {row['right']} | {' | '.join(cells)} |")
    counts = ", ".join(f"{name} has {number} such" for name, number in wrong.items()) + "."
    head = INTRODUCTION.replace("{cases}", str(len(rows))).replace("{wrong}", counts)
    head = head.replace("{speed}", _speed()).replace("{tricky}", _tricky_page())
    head = head.replace("{scorers}", " | ".join(SCORERS)).replace("{lines}", "|".join("---" for _ in SCORERS))
    return head + "\n".join(lines) + "\n"


def _speed() -> str:
    with (ROOT / "benchmarks" / "rewards.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}  # the latest of each
    lines = [
        "| 1,000 answers of 200 to 4,000 tokens | a second | processor time | parsed | p50, p99 of one alone |",
        "|---|---|---|---|---|",
    ]
    made = {name.removeprefix("made answers, "): row for name, row in rows.items() if name.startswith("made answers")}
    for name, row in made.items():
        latency = f"{row['p50_ms']}, {row['p99_ms']} ms" if row["p50_ms"] else ""
        lines.append(f"| {name} | {row['per_second']} | {row['cpu_s']} s | {row['parsed'] or 'all'} | {latency} |")
    row, hostile, million = next(iter(made.values())), rows["hostile strings"], rows["generated answers"]
    grown, size = hostile["worker_growth_mb"], hostile["worker_mb"]
    number, parsed = f"{int(hostile['answers']):,}", f"{int(hostile['parsed']):,}"
    lines += [
        "",
        f"Medians of {row['runs']} runs with {row['workers']} workers on {row['hardware']}, while the machine had a",
        f"load of {row['load']}: rates are what was left of it, processor times hardly. The first, with the start",
        f"of workers, took {row['first_s']} s. {number} hostile strings (towers of powers, nested braces, a",
        "megabyte of digits, null bytes, lone surrogates, unclosed LaTeX) took",
        f"{hostile['seconds']} s: {parsed} reached the parser,",
        f"{hostile['timeouts']} were stopped, {hostile['crashes']} crashed a worker. The parent grew by",
        f"{hostile['parent_growth_mb']} MB, the workers by {grown} MB, to {size} MB.",
        "",
        f"{int(million['answers']):,} generated answers, from right ones in many styles to nonsense of all kinds:",
        f"{million['exceptions']} exceptions, {million['crashes']} crashes, {million['errors']} failures of",
        f"the scorer, {million['timeouts']} comparisons stopped. The longest batch took {million['longest_s']} s; the",
        f"parent grew by {million['parent_growth_mb']} MB, the workers by {million['worker_growth_mb']} MB.",
    ]
    return "\n".join(lines)


def _code(text: str) -> str:
    return f"`{text}`".replace("\n", "⏎").replace("|", "\\|") if text else "(empty)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--tricky", action="store_true")
    args = parser.parse_args()
    if args.tricky:
        bad, counts = [], []
        for form in FORMS:
            cases = tricky(form)
            found = misjudged(cases)
            bad += found
            total, lost = (Counter(case.right for case in some) for some in (cases, found))
            counts.append({"form": form, "right": total[1], "refused": lost[1], "wrong": total[0], "rewarded": lost[0]})
            print(counts[-1])
        for case in bad:
            print(case.form, case.part, "right" if case.right else "wrong", repr(case.gold), repr(case.text), sep="\t")
        if args.write:
            with MISJUDGED.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([Tricky._fields, *bad])
            with COUNTS.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(counts[0]))
                writer.writeheader()
                writer.writerows(counts)
        return
    if args.page:
        PAGE.write_text(page(), encoding="utf-8")
        return
    found = scores()
    for i, (text, answer, right) in enumerate(CASES):
        print(
            right, *(f"{name} {column[i]}" for name, column in found.items()), repr(text[:50]), repr(answer), sep="\t"
        )
    if args.write:
        old = {(row["text"], row["answer"]): row for row in read()} if ROWS.exists() else {}
        with ROWS.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="", extrasaction="ignore")
            writer.writeheader()
            for i, (text, answer, right) in enumerate(CASES):
                row = {**old.get((text, answer), {}), "text": text, "answer": answer, "right": right}
                writer.writerow({**row, **{name: column[i] for name, column in found.items()}})


if __name__ == "__main__":
    main()
