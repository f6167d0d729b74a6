r"""Where scorers disagree: ours, verl's and TRL's, on answers whose rightness is plain to see.

    python -m research.measurements.scorers    # what the scorers of this environment say
    python -m research.measurements.scorers --write    # and write it to scorers.csv; columns of others stay as they are
    python -m research.measurements.scorers --tricky    # what `math` misjudges of tricky.yaml, in four forms
    python -m research.measurements.scorers --tricky --write    # and write it to tricky.csv, tricky_counts.csv
    python -m research.measurements.scorers --page    # research/pages/scorers.md from the rows

TRL's scorer needs the environment of `constraints/base.txt`, verl's two that of `constraints/verl.txt`.
"""

import argparse
import importlib.util
import logging
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import yaml

from bandpo.rewards.grading import grade
from research.csv_rows import as_table, read_rows, write_rows

ROOT = Path(__file__).resolve().parents[2]
TRICKY, MISJUDGED = Path(__file__).with_name("tricky.yaml"), Path(__file__).with_name("tricky.csv")
READING = Path(__file__).with_name("reading.csv")
COUNTS = Path(__file__).with_name("tricky_counts.csv")
ROWS, PAGE = Path(__file__).with_suffix(".csv"), ROOT / "research/pages/scorers.md"

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

The rules of `math` beyond [the usual ones](../../docs/evaluate.md#what-the-scorer-accepts), and how it was checked.

## Where the answer stands

A thinking block that is never closed holds no answer; if the prompt opened it, say `grade(..., thinking="opened")`.

- A box is none where arithmetic touches it (`2\boxed{7}`, `(1, \boxed{7})`), or where words negate it, doubt it, take a
  part of it or take it back ("perhaps \boxed{7}").
- A sentence counts if only its paragraph and a short closing follow, and no "wait". "Should be" states nothing.
- Boxes side by side are a list if the right answer is one. Else the last counts behind "and"; behind a comma or "or"
  each must be right.
- The last 10,000 characters are read, in them the last 50 statements, and of an answer at most 500 characters.

{reading}

A published solution is graded against its own last box, an answer of a model against its publisher's verdict, or
math-verify's ([sources](../measurements/reading.py), [rows](../measurements/reading.csv)). `read`: right, and gets 1.

## What is right

- *Words* around a value are dropped, unless one may change it: "half of 7", "about 7".
- *Exact values* are equal if their difference is zero, also in lists, intervals and matrices. *Undefined parts* such
  as `\ln 0` are never right.
- *Equations.* `x = 42` and `6 \cdot 7 = 42` are 42. *Choices.* `D`, `(D)` and `D) velocity` are D.
- *Times* are compared part by part, and so is `0 1 1`. A *ratio* `2:3` is 2/3; `10:30` is a time.
- *Behind a box* "dozen" may scale it or name what is counted: `\boxed{8} dozen` is 8 or 96.
- *Bases.* 42_8 is not 42, but 2516 is right for 2516_8. `2e-1` and `3e+2` hold Euler's number; `3e8` and `1e-5` are
  numbers.

Numbers are compared here, all else by [math-verify](https://github.com/huggingface/Math-Verify).

## Tricky answers

[Answers](../measurements/tricky.yaml), judged before they were graded, that the scorer was made with: a test, no
estimate ([misjudged](../measurements/tricky.csv)).

{tricky}

## dapo-strict

It is `math_dapo` of verl 0.5.0 to 0.9.0; `dapo`, of verl 0.9.1, also reads a `\boxed{}` in the last 100 characters.
Both gave verl's own scores on 60,000 made answers.

## Time and hostile answers

{speed}

No answer ends a run: two crashes are a `timeout`, a failure of the scorer an `error`.

## Where scorers disagree

Of {cases} short answers ([rows](../measurements/scorers.csv)) so many are not judged as a reader does:
{wrong}

## Repeat it

    python -m research.measurements.reading sets --write
    python -m research.measurements.scorers --tricky --write
    python -m research.measurements.rewards --write    # also --hostile 100000, --million 1000000
    python -m research.measurements.constants --count 100000    # answers right for two questions
    python -m research.measurements.scorers --write    # in an environment with TRL, and in one with verl
    python -m research.measurements.scorers --page
"""


def available() -> dict:
    """The scorers of this environment: name -> function of texts and right answers."""

    def ours(name):
        return lambda texts, answers: [g.score for g in grade(texts, answers, name)]

    scorers = {"dapo-strict": ours("dapo-strict")}
    has_math_verify = importlib.util.find_spec("math_verify") is not None
    if has_math_verify:
        scorers["math"] = ours("math")
    if importlib.util.find_spec("verl") is not None:
        from verl.utils.reward_score import math_dapo, math_verify

        def alone(score):
            return lambda texts, answers: [score(t, a) for t, a in zip(texts, answers, strict=True)]

        scorers["verl math_dapo"] = alone(lambda t, a: float(math_dapo.compute_score(t, a)["acc"]))
        if has_math_verify:
            scorers["verl math_verify"] = alone(math_verify.compute_score)
    if importlib.util.find_spec("trl") is not None and has_math_verify:
        from trl.rewards import accuracy_reward

        def trl(texts, answers):
            # It takes messages, and right answers with their delimiters; None: it cannot read the right answer.
            scores = accuracy_reward([[{"content": text}] for text in texts], [f"${answer}$" for answer in answers])
            return [score or 0.0 for score in scores]

        scorers["TRL accuracy_reward"] = trl
    return scorers


# ---- tricky answers


class Tricky(NamedTuple):
    form: str
    part: str
    gold: str
    text: str
    right: int
    whole: bool


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
    cases = []
    for group in yaml.safe_load(TRICKY.read_text(encoding="utf-8")):
        for verdict, right in (("right", 1), ("wrong", 0)):
            for answer in group.get(verdict, []):
                part = group.get("part") or ("first", "second")[zlib.crc32(f"{group['gold']}\t{answer}".encode()) % 2]
                whole = group.get("whole", False)
                if form != "answer" and (whole or _OWN_FORM.search(answer) or answer.count("{") != answer.count("}")):
                    continue
                text = answer if whole else FORMS[form].format(answer)
                cases.append(Tricky(form, part, group["gold"], text, right, whole))
    return cases


def misjudged(cases: list[Tricky]) -> list[Tricky]:
    grades = grade([case.text for case in cases], [case.gold for case in cases])
    return [case for case, graded in zip(cases, grades, strict=True) if graded.score != case.right]


def _reading_page() -> str:
    rows = read_rows(READING)
    models = [row for row in rows if row["writing"] == "as written" and not row["set"].startswith("answers")]
    shown = list({row["set"]: row for row in reversed(rows) if row not in models}.values())[::-1]
    total = {name: str(sum(int(row[name]) for row in models)) for name in list(rows[0])[2:-1]}
    shown.append({"set": f"{len(models)} sets of other models", **total})
    names = ("set", *total)
    lines = (
        [_code(row[name]) if "\\" in row[name] or "$" in row[name] else row[name] for name in names] for row in shown
    )
    return as_table([name.replace("_", "-") for name in names], lines)


def _tricky_page() -> str:
    forms: dict[tuple[str, ...], list[str]] = {}
    for row in read_rows(COUNTS):
        counts = tuple(row[name] for name in ("right", "refused", "wrong", "rewarded"))
        forms.setdefault(counts, []).append(_code(FORMS[row["form"]].format("...")))
    lines = ([", ".join(where), *counts] for counts, where in forms.items())
    return as_table(["where", "right", "refused", "wrong", "rewarded"], lines)


def scores() -> dict[str, list[int]]:
    texts, answers = [case[0] for case in CASES], [case[1] for case in CASES]
    by_scorer = {}
    for name, scorer in available().items():
        scorer(texts, answers)  # on a busy machine math-verify's own limit of 5 s can strike while it is still loading
        by_scorer[name] = [int(score) for score in scorer(texts, answers)]
    return by_scorer


def page() -> str:
    rows = read_rows(ROWS)
    wrong = {name: sum(row[name] != row["right"] for row in rows) for name in SCORERS}
    counts = ", ".join(f"{name} {number}" for name, number in wrong.items()) + "."
    head = INTRODUCTION.replace("{cases}", str(len(rows))).replace("{wrong}", counts)
    return head.replace("{speed}", _speed()).replace("{tricky}", _tricky_page()).replace("{reading}", _reading_page())


def _speed() -> str:
    rows = {row["case"]: row for row in read_rows(ROWS.with_name("rewards.csv"))}  # the latest of each
    made = {name.removeprefix("made answers, "): row for name, row in rows.items() if name.startswith("made answers")}
    speeds = "; ".join(f"{name} {row['per_second']} ({row['cpu_s']} s)" for name, row in made.items())
    lines = ["Answers of 200 to 4,000 tokens a second (processor time for 1,000):", f"{speeds}."]
    row, hostile, million = next(iter(made.values())), rows["hostile strings"], rows["generated answers"]
    number, parsed = f"{int(hostile['answers']):,}", f"{int(hostile['parsed']):,}"
    lines += [
        f"Medians of {row['runs']} runs with {row['workers']} workers on {row['hardware']}, load {row['load']}.",
        "",
        f"{number} hostile strings took {hostile['seconds']} s: {parsed} reached the parser,",
        f"{hostile['timeouts']} were stopped, {hostile['crashes']} crashed a worker. The parent grew by",
        f"{hostile['parent_growth_mb']} MB, the workers to {hostile['worker_mb']} MB.",
        f"{int(million['answers']):,} generated answers: {million['exceptions']} exceptions, {million['crashes']}",
        f"crashes, {million['errors']} failures of the scorer, {million['timeouts']} comparisons stopped.",
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
    logging.disable(logging.WARNING)  # math-verify warns in every call
    if args.tricky:
        bad, counts = [], []
        for form in FORMS:
            cases = tricky(form)
            wrong = misjudged(cases)
            bad += wrong
            total, lost = (Counter(case.right for case in some) for some in (cases, wrong))
            counts.append({"form": form, "right": total[1], "refused": lost[1], "wrong": total[0], "rewarded": lost[0]})
            print(counts[-1])
        for case in bad:
            print(case.form, case.part, "right" if case.right else "wrong", repr(case.gold), repr(case.text), sep="\t")
        if args.write:
            write_rows(
                MISJUDGED, [dict(zip(Tricky._fields[:-1], case, strict=False)) for case in bad], Tricky._fields[:-1]
            )
            write_rows(COUNTS, counts)
        return
    if args.page:
        PAGE.write_text(page(), encoding="utf-8")
        return
    columns = scores()
    for i, (text, answer, right) in enumerate(CASES):
        print(
            right, *(f"{name} {column[i]}" for name, column in columns.items()), repr(text[:50]), repr(answer), sep="\t"
        )
    if args.write:
        old, rows = {(row["text"], row["answer"]): row for row in read_rows(ROWS, missing_ok=True)}, []
        for i, (text, answer, right) in enumerate(CASES):
            row = {**old.get((text, answer), {}), "text": text, "answer": answer, "right": right}
            rows.append({**row, **{name: column[i] for name, column in columns.items()}})
        write_rows(ROWS, rows, COLUMNS)


if __name__ == "__main__":
    main()
