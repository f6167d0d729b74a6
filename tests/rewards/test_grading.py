"""The two scorers: what counts as the answer, and when it is right. Cases: research/measurements/scorers.py."""

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
from math_verify import LatexExtractionConfig, parse, verify
from scripts import load

from bandpo.errors import UserError
from bandpo.rewards import grading
from bandpo.rewards.grading import Grade, grade
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


@pytest.mark.parametrize(
    ("answer", "right"),
    [
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
)  # fmt: skip
def test_sentences_and_words_are_read(answer, right):
    assert grade([f"Answer: {answer}"], [right])[0].score == 1


@pytest.mark.parametrize(
    ("answer", "right"),
    [
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
)  # fmt: skip
def test_sentences_that_say_something_else_are_wrong(answer, right):
    assert grade([f"Answer: {answer}"], [right])[0].score == 0


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
    assert [g.score for g in grade([f"Answer: ${answer}$", f"Answer: ${right}$"], [right, answer])] == [0, 0]
    assert grade([f"Answer: ${right}$"], [right])[0].score == 1


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("\\frac{2}{2^{100}}", "\\frac{1}{2^{99}}"),
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
    ],
)
def test_other_ways_to_write_the_same(answer, right):
    assert grade([f"Answer: {answer}"], [right])[0].score == 1


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        ("0 1 1 0", "0 1 1 0", 1), ("$0\\ 1\\ 1\\ 0$", "0 1\n1 0", 1), ("0.5 -1.0", "0.50 -1", 1),
        ("1 1 0 0", "0 1 1 0", 0), ("0 1 1", "0 1 1 0", 0), ("0", "0 1 1 0", 0), ("6", "1 2 3", 0),
        ("3 2 1", "1 2 3", 0), ("-1", "2 -3", 0), ("1 2 3", "6", 0),
    ],
)  # fmt: skip
def test_numbers_that_spaces_part_are_a_row_and_no_product(answer, right, score):
    assert grade([f"Answer: {answer}"], [right])[0].score == score


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


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        *(
            ("D) velocity", 1), ("(D) velocity", 1), ("D. velocity", 1), ("D: velocity", 1),
            ("\\text{D: velocity}", 1), ("D - velocity", 1),
        ),
        *(
            ("(D) a dog", 1), ("D", 1), ("C) velocity", 0), ("(C) or (D) velocity", 0), ("D: 7, C: 8", 0),
            ("(D) is eliminated", 0),
        ),
        *(("(D) may be it", 0), ("D) wrong", 0), ("D is wrong", 0), ("velocity", 0)),
    ],
)  # fmt: skip
def test_a_letter_with_its_text_is_the_letter(answer, score):
    assert grade([f"Answer: {answer}", f"\\boxed{{{answer}}}"], ["D"] * 2)[0].score == score


# Recorded from the public scorer: the first five right, the others wrong.
PUBLIC = [
    *("Answer: $42$", "answer:\\boxed{42}", "Answer: x=42", "Answer: 42", "Answer:\n42"),
    *("**Answer:** 42", "**Answer: 42**", "Answer: 42.", "Answer: 42.0", "The final answer is \\boxed{42}"),
    *("Answer: \\(42\\)", "Answer: $$42$$"),
]


def test_dapo_strict_on_the_recorded_cases():
    assert [g.score for g in grade(PUBLIC, ["42"] * 12, "dapo-strict")] == [1] * 5 + [0] * 7
    assert grade(["Answer: 1,000"], ["1000"], "dapo-strict") == [Grade(1.0, "1000")]
    pairs = [("0.5", "\\frac{1}{2}"), ("\\frac{1}{2}", "\\dfrac{1}{2}"), ("33", "033")]
    assert [g.score for g in grade([f"Answer: {a}" for a, _ in pairs], [b for _, b in pairs], "dapo-strict")] == [0] * 3
    inside, outside = "Answer: 42\n" + "x" * 289, "Answer: 42\n" + "x" * 290
    assert [g.score for g in grade([inside, outside], ["42"] * 2, "dapo-strict")] == [1, 0]
    assert grade(["nothing"], ["42"], "dapo-strict") == [Grade(0.0, None, "unparsed")]


# ---- math


@pytest.mark.parametrize(
    "answer",
    [
        *("$42$ or maybe 43", "$42$ but perhaps 43 or 44", "$42$ apples and 43 pears", "$42$ or 43", "$42$ (43)"),
        *("$41$ $42$", "41 $42$", "\\(41\\) \\(42\\)", "\\(41\\) - \\(42\\)", "$42$41", "1/$42$", "$42$x", "$42$^2"),
        *(
            "not 42", "anything except 42", "less than $42$", "minus 42", "negative 42", "-$42$", "42 million",
            "42 dozen",
        ),
    ],
)  # fmt: skip
def test_what_only_holds_the_right_answer_is_wrong(answer):
    assert grade([f"Answer: {answer}"], ["42"])[0].score == 0


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        *(("-$42$", "-42"), ("$-$42", "-42"), ("2$\\cdot$21", "42"), ("$42$ cm", "42"), ("\\(42\\) apples", "42")),
        *(("$x = 1$ or $x = 2$", "1,2"), ("$1$, $2$ and $3$", "1,2,3"), ("\\(1\\), \\(2\\)", "$1$, $2$")),
    ],
)
def test_delimiters_do_not_change_an_answer(answer, right):
    assert grade([f"Answer: {answer}"], [right])[0].score == 1


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


def test_an_exponent_that_nobody_writes_out_is_wrong_at_once():
    grades = grade([f"Answer: $1E-9999999999 + {i}$" for i in range(5)], ["7"] * 5)
    assert {(g.score, g.status) for g in grades} == {(0.0, "unparsed")}


def test_equal_answers_have_equal_strings():
    """So that majorities can be taken: numbers reduced, right answers as the right answer."""
    forms = ["0.5", "\\frac{1}{2}", "\\dfrac{2}{4}", "$1/2$", "+.50", "\\frac{\\sqrt{4}}{4}"]
    for right in ("\\frac{1}{2}", "0.50", "7"):
        assert {g.answer for g in grade([f"Answer: {f}" for f in forms[:5]], [right] * 5)} == {"1/2"}
    assert [g.answer for g in grade([f"Answer: {f}" for f in forms], ["\\frac12"] * 6)][5] == "1/2"
    assert grade(["Answer: 042", "Answer: 43"], ["42"] * 2) == [Grade(1.0, "42"), Grade(0.0, "43")]
    assert grade(["Answer: Tuesday", "Answer: it depends"], ["tuesday", "42"]) == [
        Grade(1.0, "tuesday"),
        Grade(0.0, None, "unparsed"),
    ]


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
    pairs += [(a, b) for a, _ in pairs[:50] if "," not in a for b in [str(float(Fraction(_fraction(a))))]]
    ours = [g.score for g in grade([f"Answer: {b}" for _, b in pairs], [a for a, _ in pairs])]
    theirs = [by_math_verify(a, b) for a, b in pairs]
    assert [p for p, x, y in zip(pairs, ours, theirs, strict=True) if x != y] == []
    assert 20 < sum(ours) < len(pairs) - 50


def _fraction(text):
    return text.replace("\\frac{", "").replace("}{", "/").replace("}", "")


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
    pairs = rewards._parser_pairs(rewards.made(5, group=1, count=80))
    soup = (grading._by_value(text, "x+1") for text in rewards.hostile(5, 80))
    texts = {text for pair in pairs for text in pair.values}
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


@pytest.mark.parametrize("right", ["1" * 5000, "0." + "1" * 5000, r"\frac{1}{" + "1" * 5000 + "}"])
def test_a_right_answer_of_any_length_can_be_asked_for(right):
    assert grading.grade(["Answer: 7"], [right])[0].score == 0


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (r"$\frac{1}{2}\cdot\vartheta$", r"\frac{\vartheta}{2}"),
        (r"$(-\infty,\infty)$", r"\mathbb{R}"),
        (r"$(-\infty,\infty)$", "7"),
    ],
)
def test_commands_that_both_have_and_the_whole_line(answer, right):
    assert grading.grade([f"Answer: {answer}"], [right])[0].score == (right != "7")


def test_hostile_strings_are_wrong_and_cost_little():
    texts = [text for text in load("research/measurements/rewards.py").hostile(1, 1008) if "{9^" not in text]
    began, before = time.monotonic(), comparisons.pool().map([["1", "2"]])
    grades = grade(texts, ["\\frac{\\sqrt{3}}{2}"] * len(texts))
    assert before == [[False, "2"]]
    assert not any(g.score for g in grades)
    assert {g.status for g in grades} >= {"unparsed", "ok"}
    assert time.monotonic() - began < 240
    assert grade(["Answer: \\frac{3}{2\\sqrt{3}}"], ["\\frac{\\sqrt{3}}{2}"])[0].score == 1


def answering(monkeypatch, result):
    """The workers give the same to every question; what they were asked is returned."""
    asked = []
    pool = types.SimpleNamespace(map=lambda tasks: asked.extend(tasks) or [result] * len(tasks))
    monkeypatch.setattr(grading, "pool", lambda: pool)
    return asked


def test_a_comparison_that_was_stopped_is_wrong_and_says_so(monkeypatch):
    answering(monkeypatch, Stopped.TIME)
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
    assert found[0] == found[1]
    assert {task for task, (equal, _) in found[0].items() if equal} == set()


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (r"\infty", r"\infty"),
        ("-\\infty", "negative infinity"),
        ("x = \\infty", r"\infty"),
        ("[0, +\\infty)", r"[0,\infty)"),
    ],
)
def test_an_infinity_is_right_for_the_same(answer, right):
    assert grade([f"Answer: ${answer}$"], [right])[0].score == 1


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
    with pytest.raises(UserError, match=r"scorer must be one of \['math', .*'dapo'\], got 'maths', did you mean"):
        grade(["a"], ["b"], "maths")
    with pytest.raises(ValueError, match="texts and answers must be as many, got 2 and 1"):
        grade(["a", "b"], ["b"])


def test_without_math_verify(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    comparisons.check_math_verify.cache_clear()
    with pytest.raises(UserError, match=r"scorer 'math' needs math-verify: pip install 'bandpo\[math\]'"):
        grade([], [])
    assert grade(["Answer: 42"], ["42"], "dapo-strict")[0].score == 1
    comparisons.check_math_verify.cache_clear()


def test_a_tower_of_powers_is_refused_at_once():
    """Many different ones, a second each, would be what a training step waits for."""
    texts = [f"Answer: $9^{{9^{{9^{{{k}}}}}}}$" for k in range(500)] + ["Answer: 2^2^2", "Answer: $2^{10 ^ 9}$"]
    grades = grade(texts, ["42"] * len(texts))
    assert {(g.score, g.status) for g in grades} <= {(0, "unparsed"), (0, "ok")}
    assert grade([r"\boxed{2^{2^{10}}}"], ["2^{2^{10}}"])[0].score == 1
