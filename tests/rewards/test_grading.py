"""The two scorers: what counts as the answer, and when it is right. Cases: research/measurements/scorers.py."""
# ruff: noqa: RUF001  (letters of other scripts and their punctuation are meant)

import importlib.util
import random
import subprocess
import sys
import time
import types
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from commands import missing, refusal
from math_verify import LatexExtractionConfig, parse, verify
from scripts import load

from bandpo.rewards import grading
from bandpo.rewards.final_answer import final_answer, without_thinking
from bandpo.rewards.grading import Grade, grade
from bandpo.rewards.lexicon import WORDS, P, in_english
from bandpo.rewards.workers import comparisons
from bandpo.rewards.workers.pool import Pool, Stopped

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def scorers():
    return load("research/measurements/scorers.py")


# ---- the table


def test_math_says_what_a_reader_says(scorers):
    texts, answers, right = zip(*scorers.CASES, strict=True)
    scores = [g.score for g in grade(texts, answers)]
    assert [case for case, score in zip(scorers.CASES, scores, strict=True) if score != case[2]] == []
    assert 0 < sum(right) < len(right)


def test_the_recorded_rows_are_what_the_scorers_say(scorers):
    rows = scorers.read_rows(scorers.ROWS)
    assert [(row["text"], row["answer"], int(row["right"])) for row in rows] == scorers.CASES
    found = scorers.scores()
    assert set(found) == {"math", "dapo-strict", "TRL accuracy_reward"}  # verl's: tests/cluster
    for name, column in found.items():
        assert [int(row[name]) for row in rows] == column, name


def test_the_page_is_current(scorers):
    assert scorers.PAGE.read_text(encoding="utf-8") == scorers.page()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["answer", "box", "sentence", "formula"])
def test_tricky_answers_are_judged_as_beforehand(scorers, form):
    """All of them, each graded once in each form."""
    cases = scorers.tricky(form)
    assert len(cases) > 5000
    assert 0.35 < sum(case.right for case in cases) / len(cases) < 0.65
    bad = scorers.misjudged(cases)
    recorded = {(row["gold"], row["text"]) for row in scorers.read_rows(scorers.MISJUDGED)}
    assert {(case.gold, case.text) for case in bad} <= recorded
    assert not any(case.right == 0 for case in bad)
    total, lost = (Counter(case.part for case in some if case.right) for some in (cases, bad))
    assert lost.total() <= 0.01 * total.total()
    assert all(lost[part] <= 0.025 * total[part] for part in total)


# What stands behind "Answer: " and a right answer, by what they show and the score.
VALUES = {
    ("sentences and words are read", 1): [
        ("The vertex is at $(3, -4)$.", "(3,-4)"),
        ("He runs a total of **540** meters every week.", "540"),
        ("There are $10!$ ways to arrange the books.", "10!"), ("\\textbf{(B)}\\ 7", "7"), ("7, which is prime", "7"),
        ("2.5 million", "2500000"), ("1e3", "1000"), ("a hundred and five", "105"),
        ("three and a half hours", "\\frac{7}{2}"), ("12 dollars and 5 cents", "\\$12.05"),
        ("3.2 \\times 10⁻⁴", "0.00032"), ("20 choose 10", "\\binom{20}{10}"),
        ("$x < -2$ or $x > 4$", "(-\\infty,-2)\\cup(4,\\infty)"),
        ("x > -2 and x < 4", "(-2,4)"), ("\\{x \\in \\mathbb{R} : -3 \\le x < 5\\}", "[-3,5)"),
        ("x = 3, y = -1", "(3,-1)"), ("\\frac{35}{100} = 35\\%", "35\\%"), ("(B) 15", "B"),
        ("The day of the week is Tuesday.", "\\text{Tuesday}"), ("2132 (base 5)", "2132_5"), ("Nora has 75", "75"),
        ("y = 6, x = 2", "(2,6)"), ("two and a half", "\\frac{5}{2}"), ("a:b = 3:2", "3:2"), ("-1+2e", "2e-1"),
    ],
    ("sentences that say something else", 0): [
        ("The square of the answer is 7", "7"), ("Twice the radius is 7", "7"), ("The number of ways is not 7", "7"),
        ("The probability could be 7", "7"), ("x is 8 and y is 7", "7"), ("7 for the wrong question", "7"),
        ("seven to the fourth", "7"), ("~42", "42"), ("x < -2 or x < 4", "(-\\infty,-2)"),
        ("x < -2 or x > 4", "(-2,4)"), ("x = -1, y = 3", "(3,-1)"), ("(B) or (C)", "B"), ("B: 7, C: 8", "B"),
        ("7 million", "7"), ("two hundred and", "200"), ("Nobody has 75", "75"), ("-five", "5"),
        ("twenty, three", "23"), ("2 million 500 thousand", "2000500000"), ("42 cm = 42 m", "42"),
        ("twice the answer = 42", "42"), ("42 a lie", "42"), ("two to three", "2"),
        ("42 dollars for one and ten for another", "42"), ("2/3 to the power of 2", "\\frac{2}{9}"),
        ("N \\equiv 6\\pmod{10}\\cdot 7", "42"), ("(y, x) = (2,6)", "(2,6)"), ("x = 2 or y = 6", "(2,6)"),
        ("x = 9 or x = 10", "(10,9)"), ("x < 1 or y > 2", "(-\\infty,1)\\cup(2,\\infty)"), ("0.2", "2e-1"),
        ("reverse ratio = 3:2", "3:2"), ("(B) is eliminated", "B"), ("Its negation is odd", "odd"),
        ("\\frac{1}{2} (or 0.6)", "\\frac{1}{2}"),
    ],
    ("other ways to write the same", 1): [
        ("\\frac{2}{2^{100}}", "\\frac{1}{2^{99}}"), ("2^{2^{10}}", "2^{2^{10}}"),
        ("\\frac{3}{2\\sqrt{3}}", "\\frac{\\sqrt{3}}{2}"),
        ("\\sqrt{2}\\cdot 10^{-40}", "\\frac{2\\cdot 10^{-40}}{\\sqrt{2}}"),
        ("\\{2^{-99}, 1\\}", "1, \\frac{1}{2^{99}}"),
        ("\\frac{30}{31!}", "\\frac{30}{31\\cdot 30!}"),
        ("31.415927", "10\\pi"),
        ("0.0123457", "\\frac{1}{81}"),
        ("6.63e-34", "6.63\\times10^{-34}"),
        ("6.63\\times10^{-34}", "6.63e-34"),
        ("300000000", "3e8"),
        ("3e8", "3\\cdot 10^8"),
        ("exp(16)", "e^{16}"),
        ("\\exp(-1)", "\\frac1e"),
        ("\\sqrt(2)", "\\sqrt2"),
        ("\\frac{\\sqrt(3)}{2}", "\\frac{\\sqrt3}{2}"),
        ("4*sqrt(2*(3+1))", "4\\sqrt{8}"),
        ("arctan(2)", "\\arctan 2"),
        ("cosh(1)", "\\cosh 1"),
        ("1\N{FRACTION SLASH}2", "\\frac12"),
        ("\\nicefrac{1}{2}", "0.5"),
        ("\\num{6.63e-34}", "6.63e-34"),
        ("\\sigma = 2", "2"),
        ("\\varepsilon = 2", "2"),
        ("34\u200b", "34"),
        ("34", "\ufeff34"),
        ("34", "We get $17\\cdot2=\\boxed{34}$."),
        ("34", "She sold them.\n#### 34"),
        ("I(0)e^{-\\frac{1}{RC}t}", "I(0)e^{-\\frac{t}{RC}}"),
        ("a \\leq 2", "a \\le 2"),
        ("E_1, E_2", "E_{1},E_{2}"),
        ("2½", "\\frac52"),
        ("42", "\uff14\uff12"),
        ("x² + 1", "x^2+1"),
        (r"$\frac{1}{2}\cdot\vartheta$", r"\frac{\vartheta}{2}"), (r"$(-\infty,\infty)$", r"\mathbb{R}"),
    ],
    ("delimiters do not change an answer", 1): [
        *(("-$42$", "-42"), ("$-$42", "-42"), ("2$\\cdot$21", "42"), ("$42$ cm", "42"), ("\\(42\\) apples", "42")),
        *(("$x = 1$ or $x = 2$", "1,2"), ("$1$, $2$ and $3$", "1,2,3"), ("\\(1\\), \\(2\\)", "$1$, $2$")),
    ],
    ("an infinity is right for the same", 1): [
        (r"$\infty$", r"\infty"), ("$-\\infty$", "negative infinity"), ("$x = \\infty$", r"\infty"),
        ("$[0, +\\infty)$", r"[0,\infty)"),
    ],
    ("and for nothing else", 0): [(r"$(-\infty,\infty)$", "7")],
    ("numbers that spaces part are a row", 1): [
        ("0 1 1 0", "0 1 1 0"), ("$0\\ 1\\ 1\\ 0$", "0 1\n1 0"), ("0.5 -1.0", "0.50 -1"),
    ],
    ("and no product", 0): [
        ("1 1 0 0", "0 1 1 0"), ("0 1 1", "0 1 1 0"), ("0", "0 1 1 0"), ("6", "1 2 3"), ("3 2 1", "1 2 3"),
        ("-1", "2 -3"), ("1 2 3", "6"),
    ],
    ("a right answer of any length", 0): [
        ("7", right) for right in ("1" * 5000, "0." + "1" * 5000, r"\frac{1}{" + "1" * 5000 + "}")
    ],
    ("what only holds the right answer", 0): [
        (answer, "42") for answer in (
            "$42$ or maybe 43", "$42$ but perhaps 43 or 44", "$42$ apples and 43 pears", "$42$ or 43", "$42$ (43)",
            "$41$ $42$", "41 $42$", "\\(41\\) \\(42\\)", "\\(41\\) - \\(42\\)", "$42$41", "1/$42$", "$42$x", "$42$^2",
            "not 42", "anything except 42", "less than $42$", "minus 42", "negative 42", "-$42$", "42 million",
            "42 dozen",
        )
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [pytest.param(*pair, score, id=what) for (what, score), pairs in VALUES.items() for pair in pairs],
)
def test_an_answer_is_right_or_wrong(answer, right, score):
    assert grade([f"Answer: {answer}"], [right])[0].score == score


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("\\frac{1}{2^{98}}", "\\frac{1}{2^{99}}"), ("1.6\\times 10^{-19}", "3.2\\times 10^{-19}"),
        ("6.63e-34", "6.62e-34"), ("\\frac{1}{30!}", "\\frac{1}{31!}"), ("e^{-50}", "e^{-51}"),
        ("\\pi\\cdot10^{-20}", "10^{-20}"),
        ("\\frac12+\\frac{1}{2\\cdot3^{100}}", "\\frac12-\\frac{1}{2\\cdot3^{100}}"),
        ("\\sqrt{2}+10^{-40}", "\\sqrt{2}"),
        ("2^{200}+1", "2^{200}"),
        ("\\frac{1}{\\binom{100}{50}}", "\\frac{1}{\\binom{100}{49}}"),
        ("(0,\\frac{1}{2^{98}})", "(0,\\frac{1}{2^{99}})"),
        ("1,\\frac{1}{2^{98}}", "1,\\frac{1}{2^{99}}"),
        ("1,\\frac{1}{2^{998}}", "1,\\frac{1}{2^{999}}"),
        ("\\begin{pmatrix} 2^{-98} \\\\ 1 \\end{pmatrix}", "\\begin{pmatrix} 2^{-99} \\\\ 1 \\end{pmatrix}"),
        ("x+2^{-98}", "x+2^{-99}"), ("x > 2^{-98}", "x > 2^{-99}"), ("y = 2^{-98}x", "y = 2^{-99}x"),
        ("[0,2^{-98}]\\cup[1,2]", "[0,2^{-99}]\\cup[1,2]"), ("0.000001", "\\frac{1}{3000000}"),
        ("0.0000012", "\\frac{\\pi}{10000000}"),
        ("1.208925819614629 \\times 10^{24}", "1208925819614629174706176"),
        ("\\sqrt{x^2}", "x"),
        ("y", "x"), ("N(42)", "x"), ("f(1)+2", "f(2)+2"), ("g(0)+x", "f(0)+x"),
    ],
)  # fmt: skip
def test_exact_values_are_equal_only_if_their_difference_is_zero(answer, right):
    texts = [f"Answer: ${each}$" for each in (answer, right, right)]
    assert [g.score for g in grade(texts, [right, answer, right])] == [0, 0, 1]


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("$7+\\frac{1}{\\ln 0}$", "7"), ("$\\log_0 7$", "0"), ("$\\frac{1}{\\tan(\\pi/2)}$", "0"),
        ("$7 + 0\\cdot\\frac{1}{\\ln 0}$", "7"), ("number of digits in 42", "42"), ("the sum in 42", "42"),
        ("42 errors", "42"), ("42 \\approx 43", "42"), ("$1\\ne 2$", "\\emptyset"), ("None", "None"), ("nan", "nan"),
        ("proof", "proof"), ("notfound", "notfound"),
    ],
)  # fmt: skip
def test_what_has_no_value_or_another_meaning_is_never_right(answer, right):
    assert grade([f"Answer: {answer}"], [right])[0].score == 0


# Recorded from the public scorer: the first five right, the others wrong.
PUBLIC = [
    *("Answer: $42$", "answer:\\boxed{42}", "Answer: x=42", "Answer: 42", "Answer:\n42"),
    *("**Answer:** 42", "**Answer: 42**", "Answer: 42.", "Answer: 42.0", "The final answer is \\boxed{42}"),
    *("Answer: \\(42\\)", "Answer: $$42$$"),
]


STRICT = [
    *((text, "42", int(i < 5)) for i, text in enumerate(PUBLIC)),
    *(("Answer: 0.5", "\\frac{1}{2}", 0), ("Answer: \\frac{1}{2}", "\\dfrac{1}{2}", 0), ("Answer: 33", "033", 0)),
    *(("Answer: 42\n" + "x" * 289, "42", 1), ("Answer: 42\n" + "x" * 290, "42", 0)),
]


def test_dapo_strict_on_the_recorded_cases():
    texts, answers, scores = zip(*STRICT, strict=True)
    assert [g.score for g in grade(texts, answers, "dapo-strict")] == [*scores]
    read = grade(["Answer: 1,000", "nothing"], ["1000", "42"], "dapo-strict")
    assert read == [Grade(1.0, "1000"), Grade(0.0, None, "unparsed")]


# ---- math


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        *(
            ("0.6666666666666667", "0.6666666667", 1),
            ("0.6666666666", "0.66666666667", 1),
            ("0.1", "0.10000000000000003", 1),
        ),
        *(("3244047.10", "3244047.0999999996", 1), ("3.443305535530000e+08", "344330553.55300003", 1)),
        *(("0.67", "0.6666666667", 0), ("3244048", "3244047.0999999996", 0), ("0.12345678", "0.12345679", 0)),
        *(
            ("0.1234567", "0.12345678", 0),
            ("12345678901234567890", "12345678901234567891", 0),
            ("3.14159", "3.141592", 0),
        ),
    ],
)
def test_floats_agree_as_a_computer_prints_them(one, other, same):
    assert [g.score for g in grade([f"Answer: {one}", f"Answer: {other}"], [other, one])] == [same] * 2


def test_equal_answers_have_equal_strings():
    """So that majorities can be taken: numbers reduced, right answers as the right answer."""
    forms = ["0.5", "\\frac{1}{2}", "\\dfrac{2}{4}", "$1/2$", "+.50", "\\frac{\\sqrt{4}}{4}"]
    for right in ("\\frac{1}{2}", "0.50", "7"):
        assert {g.answer for g in grade([f"Answer: {f}" for f in forms[:5]], [right] * 5)} == {"1/2"}
    assert [g.answer for g in grade([f"Answer: {f}" for f in forms], ["\\frac12"] * 6)][5] == "1/2"
    texts = ["Answer: 042", "Answer: 43", "Answer: Tuesday", "Answer: it depends"]
    read = Grade(1.0, "42"), Grade(0.0, "43"), Grade(1.0, "tuesday"), Grade(0.0, None, "unparsed")
    assert grade(texts, ["42", "42", "tuesday", "42"]) == [*read]


def by_math_verify(right, answer):
    config = [LatexExtractionConfig(boxed_match_priority=0)]
    read = [parse(f"${text}$", config, parsing_timeout=0) for text in (right, answer)]
    return float(verify(*read, timeout_seconds=0))


def test_numbers_are_compared_as_math_verify_compares_them():
    rng = random.Random(0)

    def number():
        n, d = rng.randint(-40, 40), rng.choice([1, 2, 4, 5, 8, 3, 7])
        forms = [f"\\frac{{{n}}}{{{d}}}", f"{n}/{d}"] if n >= 0 else [f"-\\frac{{{-n}}}{{{d}}}", f"-{-n}/{d}"]
        if d in (1, 2, 4, 5, 8):
            forms.append(str(n / d))
        if d == 1:
            forms += [str(n), f"{n:04}", f"{1000 * n:,}"]
        return rng.choice(forms)

    pairs = [(number(), number()) for _ in range(150)]
    plain = {a: a.replace("\\frac{", "").replace("}{", "/").replace("}", "") for a, _ in pairs[:50] if "," not in a}
    pairs += [(a, str(float(Fraction(text)))) for a, text in plain.items()]
    ours = [g.score for g in grade([f"Answer: {b}" for _, b in pairs], [a for a, _ in pairs])]
    theirs = [by_math_verify(a, b) for a, b in pairs]
    assert [p for p, x, y in zip(pairs, ours, theirs, strict=True) if x != y] == []
    assert 20 < sum(ours) < len(pairs) - 50


@pytest.mark.slow
def test_the_faster_parser_makes_the_same_of_it():
    """ANTLR's two stages against its usual one: same values, same answers that cannot be parsed."""
    code = """
import sys, types
from bandpo.rewards import equivalence
texts = [line for line in sys.stdin.read().split("\\n") if line]
def value(text):
    try:
        return str(equivalence._parse.__wrapped__(text))
    except Exception:
        return "None"
ours = [value(text) for text in texts]
equivalence.PredictionMode = types.SimpleNamespace(SLL=equivalence.PredictionMode.LL, LL=equivalence.PredictionMode.LL)
plain = [value(text) for text in texts]
assert ours == plain, [x for x in zip(texts, ours, plain) if x[1] != x[2]]
print(sum(x != "None" for x in ours), len(ours))
"""
    rewards = load("research/measurements/rewards.py")
    pairs = (grading._by_value(row["text"], row["answer"]) for row in rewards.made(5, group=1, count=80))
    soup = (grading._by_value(text, "x+1") for text in rewards.hostile(5, 80))
    texts = {text for pair in pairs if isinstance(pair, grading._Pair) for text in pair.values}
    soup = {text for p in soup if isinstance(p, grading._Pair) for text in p.values}
    texts |= {text for text in soup if len(text) < 60 and text.isprintable()}
    run = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(sorted(texts)), capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    parsed, number = map(int, run.stdout.split())
    assert 15 < parsed < number


# ---- what goes wrong


@pytest.mark.parametrize(
    "text",
    [
        "Answer: " + r"\(1\) " * 80 + "x",
        "1 " * 20_000 + r"x \boxed{7}",
        "x=" * 20_000 + r" \boxed{7}",
        r"\text{ " * 10_000 + r"\boxed{7}",
        "( " * 20_000 + r"\boxed{7}",
    ],
    ids=["formulas", "digits", "equations", "commands", "brackets"],
)
def test_no_answer_takes_the_caller_long(text):
    """What stands around a value is read in the process that trains: in time that grows with the length alone."""
    began = time.process_time()
    grading.grade([text], ["7"])
    assert time.process_time() - began < 5  # it was minutes, or years


def test_hostile_strings_are_wrong_and_cost_little():
    texts = [text for text in load("research/measurements/rewards.py").hostile(1, 1008) if "{9^" not in text]
    began, before = time.monotonic(), comparisons.pool().map([["1", "2"]])
    grades = grade(texts, ["\\frac{\\sqrt{3}}{2}"] * len(texts))
    assert before == [[False, "2"]]
    assert not any(g.score for g in grades)
    assert {g.status for g in grades} >= {"unparsed", "ok"}
    assert time.monotonic() - began < 240


def test_a_comparison_that_was_stopped_is_wrong_and_says_so(monkeypatch):
    stopped = types.SimpleNamespace(map=lambda tasks: [Stopped.TIME] * len(tasks))
    monkeypatch.setattr(grading, "pool", lambda: stopped)
    grades = grade(["Answer: $1+x$", "Answer: 42", "Answer: " + "9" * 501], ["y+1", "42", "42"])
    assert grades == [Grade(0.0, None, "timeout"), Grade(1.0, "42"), Grade(0.0, None, "unparsed")]


CONSTANTS = [
    *(r"\max(\infty,2)", r"2^{\ln(\infty)}", r"\log_2(2^{\infty})", r"2^{\infty!}", r"\exp(\infty!)", r"|\infty|"),
    *(
        r"\infty",
        r"\infty!!!!",
        r"\infty-\infty",
        r"\frac{0}{0}",
        r"\tan(\frac{\pi}{2})",
        r"\log 0",
        "|38/86/0|",
        "x=x",
    ),
    *(
        r"\sum_{n=1}^{\infty} n",
        r"\lim_{x\to 0}\frac{1}{x}",
        r"\Gamma(-1)",
        "nan",
        "zoo",
        "oo",
        r"\text{true}",
        r"\mathbb{R}",
    ),
]
RIGHTS = ["7919", "0.617", r"\frac{17}{23}", r"2\sqrt{31}", r"\{1,2\}", "x^2+1"]


def test_no_answer_is_right_for_every_question():
    search = load("research/measurements/constants.py")
    texts = [f"Answer: ${constant}$" for constant in CONSTANTS for _ in RIGHTS]
    assert not any(g.score for g in grade(texts, RIGHTS * len(CONSTANTS)))
    search.RIGHT = RIGHTS
    answers = search.made(seed=1, count=100)
    assert search.search(answers) == {}
    assert len(answers) > 70


@pytest.mark.slow
def test_the_workers_believe_no_infinity_either():
    """Asked without the reading before them; and nothing depends on what was asked before."""
    tasks = [[right, constant] for constant in CONSTANTS[:20] for right in ("42", "0", "2\\sqrt{31}")]
    tasks += [["\\infty", "2^{\\infty}-1"], ["-\\infty", "\\infty"], ["0", "e^{-\\infty} + \\infty"]]
    found = []
    for order in (tasks, tasks[::-1]):
        pool = Pool("bandpo.rewards.equivalence:compare", seconds=20, size=1)
        found.append(dict(zip(map(tuple, order), map(tuple, pool.map(order)), strict=True)))
        pool.close()
    assert (found[0], {task for task, (equal, _) in found[0].items() if equal}) == (found[1], set())


@pytest.mark.parametrize(
    "answer",
    [
        *(r"\binom{20000}{10000}", r"\Gamma(1600)", r"\gcd(10^{5000},10^{5000})", r"\frac{0}{0}\cdot i", "(10^6)!"),
        *(
            "(9^9)^{(9^9)^9}", r"\binom{10^9}{10^8}", r"\sum_{i=1}^{10^9} i^{99}", r"\Gamma(10^9)", "7!!!!!",
            "2^{-10^{12}}",
        ),
        *("e^{e^{e^{e^{e^7}}}}", r"\sqrt[10^9]{2^{10^9}}", r"\gcd(99999999999!, 7)", "(" * 40 + "8" + ")" * 40),
    ],
)  # fmt: skip
def test_what_is_too_large_to_write_out_is_wrong_and_stops_no_worker(answer):
    graded = grade([f"Answer: ${answer}$"], ["7"])[0]
    assert (graded.score, graded.status == "timeout") == (0.0, False)


@pytest.mark.parametrize(
    ("texts", "answers", "thinking", "message"),
    [
        ("Answer: 7", "7", None, "texts must be a list of texts, got 'Answer: 7'"),
        ([None], ["7"], None, "texts must be a list of texts"),
        ([b"7"], ["7"], None, "texts must be a list of texts"),
        (["7"], "7", None, "answers must be a list of texts or numbers, each one right answer, got '7'"),
        (["7"], [["7", "8"]], None, "answers must be a list of texts or numbers, each one right answer"),
        (["7"], ["7"], True, "thinking must be 'opened' or None, got True"),
    ],
)
def test_what_would_be_ignored_is_refused(texts, answers, thinking, message):
    with pytest.raises((TypeError, ValueError), match=message):
        grade(texts, answers, thinking=thinking)
    assert grade(["7"], [7])[0].score == 1


def test_what_is_no_scorer():
    assert not missing(
        refusal(grade, ["a"], ["b"], "maths"), "scorer must be one of ['math', ", "'dapo'], got 'maths', did you mean"
    )
    with pytest.raises(ValueError, match="texts and answers must be as many, got 2 and 1"):
        grade(["a", "b"], ["b"])


def test_without_math_verify(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    comparisons.check_math_verify.cache_clear()
    assert "scorer 'math' needs math-verify: pip install 'bandpo[math]'" in refusal(grade, [], [])
    assert grade(["Answer: 42"], ["42"], "dapo-strict")[0].score == 1
    comparisons.check_math_verify.cache_clear()


def test_a_tower_of_powers_is_refused_at_once():
    """Many different ones, a second each, would be what a training step waits for."""
    texts = [f"Answer: $9^{{9^{{9^{{{k}}}}}}}$" for k in range(500)] + ["Answer: 2^2^2", "Answer: $2^{10 ^ 9}$"]
    texts += [f"Answer: $1E-9999999999 + {i}$" for i in range(5)]
    grades = grade(texts, ["42"] * len(texts))
    assert {(g.score, g.status) for g in grades} <= {(0, "unparsed"), (0, "ok")}


# ---- the scorer `dapo`, without verl: tests/cluster holds it against verl's own

BOXES = {  # as verl 0.9.1 reads them
    "\\boxed{42}": "42",
    "\\boxed{1} \\boxed{\\frac{1}{2}}": "\\frac{1}{2}",
    "$\\boxed{4 2}$" + "." * 80: "4 2",  # as it is written, without normalisation
    "\\boxed{42}" + "." * 95: None,
    "\\boxed{42": None,
    "\\boxed 42": None,
    "42} is what it is": None,
    "Answer: 7\n\\boxed{42}": "7",
}


@pytest.mark.parametrize("text", BOXES)
def test_dapo_reads_a_box_where_no_answer_is_stated(text):
    read = BOXES[text]
    status = "unparsed" if read is None else "ok"
    right, wrong = Grade(float(read is not None), read, status), Grade(0.0, read, status)
    assert grade([text, text], [read or "42", "41"], "dapo") == [right, wrong]
    if read and "Answer" not in text:
        assert grade([text], [f"{read} "], "dapo")[0].score == 0, "without normalisation"


def test_dapo_gives_what_verl_gave_on_the_recorded_cases(scorers):
    rows = scorers.read_rows(scorers.ROWS)
    graded = grade([row["text"] for row in rows], [row["answer"] for row in rows], "dapo")
    assert [int(each.score) for each in graded] == [int(row["verl math_dapo"]) for row in rows]


# ---- answers in many scripts: unknown words change nothing, and what takes an answer back is known in eleven l

STATED = """
따라서 답은 \\boxed{12}입니다.
정답은 12입니다.
답: **12**
Итак, в корзине осталось \\boxed{12} яблок.
**Ответ:** 12 яблок
Ответ — 12.
Разом $\\boxed{12}$ гривень.
Відповідь: 12
Άρα έμειναν \\boxed{12} μήλα.
Απάντηση: 12
לכן נשארו \\boxed{12} תפוחים.
תשובה: 12
إذن عدد التفاحات هو \\boxed{12}.
الجواب: ١٢
الإجابة هي \\boxed{12} كتابًا.
بنابراین \\boxed{12} سیب باقی می‌ماند.
इसलिए उत्तर \\boxed{12} है।
उत्तर: 12
তাই উত্তর \\boxed{12} টি।
எனவே \\boxed{12} ஆப்பிள்கள் உள்ளன.
కాబట్టి సమాధానం \\boxed{12}.
ดังนั้นคำตอบคือ \\boxed{12} ผล
คำตอบ: 12
答えは12です。
したがって、\\boxed{12}個です。
答案：12
所以一共有 $\\boxed{12}$ 个苹果。
Le total est égal à \\boxed{12}.
**Réponse finale :** 12 pommes
La réponse est donc 12.
La respuesta será \\boxed{12} años.
La respuesta correcta es 12.
A resposta é $12$.
O resultado é \\boxed{12}, à noite.
La risposta è \\boxed{12}.
Also bleiben \\boxed{12} Äpfel übrig.
Die Antwort ist 12 Äpfel.
Het antwoord is \\boxed{12} kilometer.
Svaret är \\boxed{12} år.
Zatem zostało \\boxed{12} jabłek.
Odpowiedź: 12
Takže odpověď je 12.
Tehát a válasz: 12
Cevap: 12 öğrenci
Vậy tổng số là \\boxed{12} học sinh.
Đáp án: 12
Jadi jawabannya adalah 12.
Răspunsul este \\boxed{12}.
Vastaus on 12.
""".strip().splitlines()
TAKEN_BACK = """
Это не \\boxed{12}.
Ответ не равен \\boxed{12}, а 13.
\\boxed{12} — неверный ответ.
Возможно, \\boxed{12}.
La mitad de \\boxed{12}.
No es \\boxed{12}, sino 13.
\\boxed{12} es incorrecto.
Quizás \\boxed{12}.
Ce n'est pas \\boxed{12}.
La moitié de \\boxed{12}.
Das ist nicht \\boxed{12}.
Die Hälfte von \\boxed{12}.
\\boxed{12} ist falsch.
Não é \\boxed{12}.
Metade de \\boxed{12}.
答案不是 \\boxed{12}。
\\boxed{12} 是错误的。
答案可能是 12
答えは\\boxed{12}ではありません。
\\boxed{12}は間違いです。
답은 \\boxed{12}이 아닙니다.
아마 \\boxed{12}
الجواب ليس \\boxed{12}.
ربما \\boxed{12}
उत्तर \\boxed{12} नहीं है।
शायद \\boxed{12}
The hint says \\boxed{12}. But I give up.
Suppose the answer is 12. Then 1 = 2, a contradiction.
12 has been ruled out.
The answer is greater than 12.
Answer: we can exclude 12
If there were no leap years, the answer would be 12. But there are.
Предположим, что $n=\\boxed{12}$. Тогда сумма цифр была бы чётной.
Angenommen, $x=\\boxed{12}$. Dann stünde links 5 und rechts 8.
A common mistake is to conclude that the answer is $\\boxed{12}$; the draws are not independent.
It would be tempting to write \\boxed{12}, but the triangle is not equilateral.
Many students think the total is \\boxed{12}.
Une erreur fréquente est de répondre \\boxed{12}.
很多人误以为答案是$\\boxed{12}$，其实不是独立的。
Частая ошибка — считать, что ответ равен $\\boxed{12}$.
Zu den \\boxed{12} kommen noch die Versandkosten hinzu, die in der Aufgabe fehlen.
Il faut encore ajouter les frais de port à \\boxed{12}.
把\\boxed{12}再加上运费，才是最后要付的钱。
We still have to add the postage to \\boxed{12}.
Wäre $n = \\boxed{12}$, so wäre die Quersumme 3, im Widerspruch zur Voraussetzung.
If $n$ were \\boxed{12}, its digits would sum to 3, which contradicts the condition.
The number of days is strictly below $\\boxed{12}$.
The answer is 12. No, scratch that, the deposit is missing.
The answer is 12. No, I forgot to subtract the deposit.
答案是12。不对，我忘了减去押金。
Die Antwort ist 12. Nein, ich habe vergessen, das Pfand abzuziehen.
長さは正でなければならないので、\\boxed{12}は不適である。
\\boxed{12} (a guess)
I am guessing \\boxed{12}.
\\boxed{12}. Oops, it should be 13.
So the rope is \\boxed{12} m long. Hmm, no, I mixed up feet and metres.
所以路程是 \\boxed{12} 公里。不，我把速度看错了。
Wäre das Viereck ein Quadrat, so käme $\\boxed{12}$ heraus; es ist aber keines.
有人会认为答案是 12，其实这种想法忽略了顺序。
If the triangle had been equilateral, the answer would have been 12.
If the triangle had been equilateral, the answer would have been \\boxed{12}.
Many people think the answer is 12.
""".strip().splitlines()


PERCENT_RATIO_OR_TIME = [
    ("\\boxed{62.5\\%}", "62.5", 1), ("\\boxed{62.5\\%}", "0.625", 1), ("\\boxed{0.625}", "62.5\\%", 1),
    ("\\boxed{0.42\\%}", "42", 0), ("\\boxed{25\\%}", "0.25\\%", 0), ("\\boxed{\\frac{2}{3}}", "2:3", 1),
    ("\\boxed{4:6}", "2:3", 1), ("\\boxed{5}", "5 : 1", 1), ("\\boxed{7/12}", "7:12", 1),
    ("\\boxed{1/3}", "10:30", 0), ("\\boxed{\\frac12}", "1:2:3", 0), ("Answer: 01:02:03.50", "1:2:3.5", 1),
    ("Answer: 00:12:30.5", "00:47:11.25", 0), ("Answer: 1:58 a.m.", "1:58", 1), ("Answer: 1:58", "1:58 a.m.", 0),
    ("Answer: 10:30:15", "10:30", 0), ("\\boxed{8} dozen birds", "8", 1), ("\\boxed{8} dozen birds", "96", 1),
    ("\\boxed{8} dozen", "9", 0), ("\\boxed{42} cents", "\\$42", 0), ("\\boxed{D} days", "D", 1),
    ("\\boxed{350}", "350 (g)", 1), ("Answer: 2,5 Liter", "2.5", 1), ("\\boxed{1,2}", "\\frac{6}{5}", 0),
    ("Answer: $N \\equiv 12 \\pmod{100}$", "12", 1), ("\\boxed{12 \\pmod 5}", "12", 0),
    ("\\boxed{350} m", "350 (g)", 0), ("boxed{no}", "no", 1), ("Answer: The answer is \boxed{7}", "7", 1),
    ("**Answer:** They meet 27 miles from city A.", "27", 1), ("\\boxed{a \\leq 2}", "a \\le 2", 1),
]  # fmt: skip
LATER = "If the first one is taken, two are left, and each of them has a partner on the other side. " * 8
A_THOUGHT_THAT_GOES_ON = [
    ("We add them.\n\nSo the answer is 7.\n\nI hope this helps!", 1),
    (f"So the answer is 7.\n\n{LATER}", 1),  # the answer first, then why
    (f"We add them.\n\nSo the answer is 7.\n\n{LATER}", 0),
    ("We add them.\n\nSo the answer is 7.\n\nWait, one case is missing.", 0),
    ("We add them.\n\nSo the answer is 7. Alternatively, count the cases", 0),
    ("Perhaps the answer is 7, which is the minimal", 0),
    ("The answer should be 7.\n\nBut let me check", 0),
    (f"It is $\\boxed{{7}}$.\n\n{LATER}", 1),
    (f"<think>7 or 8</think>We add.\n\nSo the answer is 7.\n\n{LATER}", 1),  # the thought was closed
    ("<think>7 or 8</think>So the answer is 7.\n\nLet me verify: 3 + 4 = 7.", 1),
    (f"So the answer is 8.\n\n<think>We add.\n\nSo the answer is 7.\n\n{LATER}", 0),
]
ONLY_LOOK_LIKE_IT = [
    "若x=3，则y=\\boxed{12}。",
    "Если x = 3, то y = \\boxed{12}.",
    "Suppose x = 3, we get \\boxed{12}.",
    "La mitad de 24 es \\boxed{12}.",
    "Die Quadratwurzel aus 144 ist \\boxed{12}.",
    "最大可能值为\\boxed{12}。",
    "不同的选法有\\boxed{12}种。",
    "x=\\boxed{12}（x=-3舍去）",
    "以上より、答えは12です。以上です。",
    "Antwort: 12,00",
    "There are \\boxed{12} non-empty subsets.",
    "a total of $\\boxed{12}$ non congruent triangles",
    "$$b+b=24\\Rightarrow 2b=24$$ $$\\boxed{12}$$",
    "สมมติว่ามี 3 กล่อง = 12 คำตอบคือ 12",
    "Many people forget the 3 boys, so the answer is \\boxed{12}.",
    "A common mistake is to count both ends. The answer is \\boxed{12}.",
    "We still have to add 5 to 7 and get \\boxed{12}.",
    "Il faut encore ajouter 5, et on obtient \\boxed{12}.",
    "有人买了3个苹果，一共\\boxed{12}个。",
    "Сначала 9, ещё добавить 3, получится \\boxed{12}.",
    "The answer is \\boxed{12}. Do not forget the units.",
    "We get \\boxed{12} apples. No other value works.",
    "The answer is \\boxed{12}. Not all of them are red.",
    "**Nihai cevap: %12**",
    "**پاسخ نهایی: 12٪**",
    "If Tom had not bought it, he would have been able to buy \\boxed{12} more.",
    "The answer is 12, not 13.",
    "The answer is 12 rather than 13.",
    "The answer is 12. This is not 13 since the dog was counted.",
    "The plane is above 3 km, so the answer is \\boxed{12}.",
    "Цена равна $\\boxed{12}$ см².",
    "Toplam cevap 12'dir.",
]
A_LETTER = {
    1: (
        "D) velocity", "(D) velocity", "D. velocity", "D: velocity", "\\text{D: velocity}", "D - velocity", "(D) a dog",
        "D",
    ),
    0: (
        "C) velocity", "(C) or (D) velocity", "D: 7, C: 8", "(D) is eliminated", "(D) may be it", "D) wrong",
        "D is wrong", "velocity",
    ),
}  # fmt: skip
TOGETHER = [
    ("$x=\\boxed{1}$ or $x=\\boxed{2}$", "1,2", 1), ("\\boxed{1} and \\boxed{2}", "\\{2,1\\}", 1),
    ("\\boxed{1} and \\boxed{2}", "2", 1), ("$\\boxed{x+1}$ or $\\boxed{1+x}$", "x+1", 1),
    ("$x=\\boxed{1}$ or $x=\\boxed{2}$", "1", 0), ("\\boxed{1} and \\boxed{2}", "1", 0),
    ("$x=\\boxed{1}$ or $x=\\boxed{2}$", "2", 0), ("\\boxed{1}, \\boxed{2}", "2", 0),
]  # fmt: skip
UNITS = [
    ("\\boxed{42} cents", "\\$42", 0), ("$\\boxed{25}\\%$", "0.25", 1), ("\\$\\boxed{42}", "\\$42", 1),
    ("$\\boxed{42}$ dollars", "\\$42", 1),
]  # fmt: skip
WORDS_OF_A_NUMBER = [
    ("The answer is a million percent.", "0.617", 0), ("The answer is a million percent.", "10000", 1),
    ("The answer is twelve percent.", "0.12", 1),
]  # fmt: skip
WHOLE = {
    "stated": [(text, gold, int(gold == "12")) for text in STATED for gold in ("12", "13")],
    "stated after more": [(f"We count them.\n\n{text}", "12", 1) for text in STATED],
    "taken back": [(text, "12", 0) for text in TAKEN_BACK],
    "words that only look like it": [(text, "12", 1) for text in ONLY_LOOK_LIKE_IT],
    "percent, ratios, times and what stands behind a box": PERCENT_RATIO_OR_TIME,
    "a thought that goes on states nothing": [(text, "7", score) for text, score in A_THOUGHT_THAT_GOES_ON],
    "a percentage in words": WORDS_OF_A_NUMBER,
    "a letter with its text is the letter": [
        (form.format(text), "D", score)
        for score, texts in A_LETTER.items()
        for text in texts
        for form in ("Answer: {}", "\\boxed{{{}}}")
    ],
    "boxes that stand together": TOGETHER,
    "the unit beside a box": UNITS,
    "a json field that is nested too deeply": [
        ('"answer": ' + "[" * 2000, "42", 0),
        ('{"answer": ' + '{"a":' * 2000, "42", 0),
    ],
}


@pytest.mark.parametrize(
    ("text", "gold", "score"),
    [pytest.param(*case, id=what) for what, cases in WHOLE.items() for case in cases],
)
def test_a_text_is_right_or_wrong(text, gold, score):
    assert grade([text], [gold])[0].score == score


@pytest.mark.parametrize("gold", ["\\boxed{}", "Answer: -", "\\boxed{-}", "", "The answer is -."])
def test_a_right_answer_that_holds_nothing_is_never_right(gold):
    assert grade(["Answer: 7", ""], [gold] * 2)[0].score == 0


def test_words_that_decide_are_read_as_english_and_others_as_nothing():
    read = {"не равен": "not equal", "яблок, ١٢。": "word, 12.", "α = 3": "α = 3"}  # a sign is not a word
    assert {text: " ".join(in_english(text).split()) for text in read} == read


def test_every_word_and_pattern_can_be_compiled():
    assert all(getattr(P, name).pattern for name in vars(P.texts))
    for english in ("not", "maybe", "half of", "IS-WRONG", "wait, IS-WRONG."):
        assert len(WORDS[english]) > 20


# ---- where an answer stands in what models, trainers and data sets write, and what takes it back


def stated(text, thinking=None):
    found = final_answer(text, thinking)
    return list(found.answers) if found else None


ENDS = [
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>", "<eos>", "<end_of_turn>", "<|return|>", "<eoa>", "<pad>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 42", "42"),
        ("Answer: 41\nAnswer:\n\n  42 \nmore", "42"),
        ("The **final answer**: 42. It is even.", "42"),
        ("Answer: 42. Then I stop.", "42"),
        ("### Final Answer\n\n42", "42"),
        ("**Final Answer**\n\n$42$\n\nI checked it.", "$42$"),
        ("## Answer\n---\n42 apples\n", "42 apples"),
        ('{"reasoning": "6 times 7", "answer": "42"}', "42"),
        ("\u7b54\u6848\uff1a42", "42"),
        ("the answer is 42", "42"),
        ("The answer to the question is 42.", "42."),
        ("6 * 7 = 42\n#### 42", "42"),
        ("It is done. #### 42", "42"),
        ("#### Step 2: add\nso \\boxed{42}", "42"),
        ("<answer>\n42\n</answer>", "42"),
        ("<answer>Six times seven:\n42 apples</answer>", "42 apples"),
        ("\\boxed{42}", "42"), ("\\fbox{42}", "42"), ("we get $\\boxed 7$.", "7"), ("\\boxed\\pi is it", "\\pi"),
        ("\\boxed{\\boxed{42}}", "42"), ("\\boxed{1} then \\boxed{\\{2\\}}", "\\{2\\}"),
        ("We multiply.\n\n**42**", "42**"), ("We multiply.\nResult: $42$", "$42$"), ("my answers were 42", None),
        ("The sum is 42", None), ("I don't know: 42", None), ("", None),
        # the last statement counts, whatever its kind
        ("Answer: 42\n\\boxed{43}", "43"),
        ("\\boxed{43}\nAnswer: 42", "42"),
        ("\\boxed{41}\nAnswer: 42\n\n**Answer:**\n", "42"),
        ("\\boxed{41}. Wait, no.\n#### 42", "42"),
        ("<answer>41</answer> I mean: the answer is 42", "42"),
        ("Answer: 42\n" + "y" * 5000 + "\nAnswer:", "42"),
        ("x" * 5000 + "\nAnswer: 42\n" + "y" * 5000, "42"),
        ("\\boxed{42}. I checked that the answer is correct.", "42"),
        ("\\boxed{42}\nConfidence: 95", "42"),
        ("\\boxed{42}\n\nCheck: $6 \\cdot 7 = 42$", "42"),
        ("\\boxed{41}\nFinal: 42", "42"),
        ("Answer: the answer is 42", "the answer is 42"),
        ("$\\boxed{42}$. We may check our answer: $6 + 36 = 42$, so it is right.", "42"),
        *((text.format(end), "42") for end in ENDS for text in ("Answer: 42{0}", "It is \\boxed{{42}}.{0}\n{0}")),
    ],
)  # fmt: skip
def test_the_forms_of_a_statement(text, answer):
    assert stated(text) == (None if answer is None else [answer])


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>Answer: 12</think>It is \\boxed{70}", "It is \\boxed{70}"),
        ("no opening tag: Answer: 12</think>70", "70"),
        ("<think>one</think> <think>two</think>70", "70"),
        ("[THINK]12[/THINK]70", "70"),
        ("<reasoning>12</reasoning><answer>70</answer>", "<answer>70</answer>"),
        ("<|channel|>analysis<|message|>12<|end|><|start|>assistant<|channel|>final<|message|>70", "70"),
        ("analysisWe add. Answer: 12assistantfinal70", "70"),
        ("<|begin_of_thought|>12<|end_of_thought|>70", "70"),
        ("<think>Answer: 12", ""),
        ("<|channel|>analysis<|message|>Answer: 12", ""),
        ("70 <think>Answer: 12", "70 "),
        ("Answer: 70", "Answer: 70"),
    ],
)
def test_thinking_is_not_the_answer(text, rest):
    assert without_thinking(text) == rest


def test_a_block_that_the_prompt_opened_must_be_closed():
    assert stated("so Answer: 70", "opened") is None
    assert stated("so Answer: 12</think>Answer: 70", "opened") == ["70"]
    assert [g.score for g in grade(["Answer: 70"] * 2, ["70"] * 2, thinking="opened")] == [0, 0]


def test_where_the_answers_of_tricky_texts_stand(scorers):
    cases = [case for case in scorers.tricky("answer") if case.whole]
    assert (len(cases) > 300, scorers.misjudged(cases)) == (True, [])


@pytest.mark.parametrize(
    "text",
    [
        "<" * 10**6,
        " " * 10**6 + "x",
        "\\boxed{" * 10**5,
        "answer" * 10**5,
        "a\n" * 10**5 + "####" * 100,
        "So the answer is " * 10**4,
        "#### " * 10**4,
        "\\boxed{1}\n" * 10**4 + "the answer is\n" * 10**4,
        "<answer></answer>\n" * 10**4,
        *(
            f"$\\boxed{{7}}{again * 200}x$"
            for again in ("^\\circ ", "\\right)", "\\pmod{5}", " m}", " m^{2}", "~~m", "/ m", "\\left(")
        ),
        *(f"${again * 200}2\\boxed{{7}}$" for again in ("\\left(", "\\displaystyle{", "\\textstyle{")),
        "\\boxed{6}" + "\\text{  }" * 200 + "x\\boxed{7}",
    ],
)
def test_looking_for_an_answer_takes_time_in_proportion_to_the_length(text):
    for _ in range(3):  # on a machine that is busy
        half, whole = (seconds(text[:length]) for length in (len(text) // 2, len(text)))
        if whole < 3 * half + 0.5:  # twice; the square would be four times
            return
    pytest.fail(f"half of the text takes {half:.2f} s, the whole {whole:.2f} s")


def seconds(text):
    began = time.process_time()
    final_answer(text)
    return time.process_time() - began
