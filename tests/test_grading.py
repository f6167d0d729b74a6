"""The two scorers: what counts as the answer, and when it is the right one."""

from bandpo.grading import grade

# (text, right answer, score by value, score of the public scorer). The first twenty-one are the recorded cases.
CASES = [
    ("Answer: $42$", "42", 1, 1),
    ("answer:\\boxed{42}", "42", 1, 1),
    ("Answer: x=5", "5", 1, 1),
    ("Answer: 1,000", "1000", 1, 1),
    ("Answer:\n42", "42", 1, 1),
    ("**Answer:** 42", "42", 1, 0),
    ("**Answer: 42**", "42", 1, 0),
    ("Answer: 42.", "42", 1, 0),
    ("Answer: 42.0", "42", 1, 0),
    ("The final answer is \\boxed{42}", "42", 1, 0),
    ("Answer: \\(42\\)", "42", 1, 0),
    ("Answer: $$42$$", "42", 1, 0),
    ("Answer: 0.5", "\\frac{1}{2}", 1, 0),
    ("Answer: \\frac{1}{2}", "0.5", 1, 0),
    ("Answer: \\frac{1}{2}", "\\dfrac{1}{2}", 1, 0),
    ("Answer: \\dfrac{1}{2}", "\\frac{1}{2}", 1, 0),
    ("Answer: 33", "033", 1, 0),
    ("Answer: 033", "33", 1, 0),
    ("Answer: 43", "42", 0, 0),
    ("", "42", 0, 0),
    ("42", "42", 0, 0),
    ("**Final Answer**: 42", "42", 1, 0),
    ("Answer:\n$$\n42\n$$\nThat is all.", "42", 1, 0),
    ("Answer: **42**", "42", 1, 0),
    ("Answer: `42`", "42", 1, 0),
    ("Answer: $42", "42", 1, 1),
    ("Answer: \\$42", "42", 1, 1),
    ("Answer: €42", "42", 1, 0),
    ("Answer: 42 apples", "42", 1, 0),
    ("Answer: The number is 42.", "42", 1, 0),
    ("Answer: 42. This is because 6 x 7 = 42.", "42", 1, 0),
    ("So the answer is 42. I hope it is correct.", "42", 1, 0),
    ("Answer: 1 000", "1000", 1, 1),
    ("Answer: 1\\,000\\,000", "1{,}000{,}000", 1, 0),
    ("Answer: 27", "27.0", 1, 0),
    ("Answer: \N{MINUS SIGN}3", "-3", 1, 0),
    ("Answer: $-\\frac{1}{2}$", "-0.5", 1, 0),
    ("Answer: 3/4", "\\frac{6}{8}", 1, 0),
    ("Answer: (1, 2)", "(1,2)", 1, 1),
    ("Answer: Tuesday", "\\text{Tuesday}", 1, 1),
    ("Answer: No", "no", 1, 0),
    ("Answer: 90^\\circ", "90", 1, 1),
    ("Answer: 42 or 43", "42", 0, 0),
    ("Answer: 42, 43", "42", 0, 0),
    ("Answer: $x + 42$ apples", "42", 0, 0),
    ("Answer: 42 apples and 43 pears", "42", 0, 0),
    ("Answer: -42", "42", 0, 0),
    ("Answer: 0.3333", "\\frac{1}{3}", 0, 0),
    ("Answer: 1/0", "42", 0, 0),
    ("Answer: Tuesday", "42", 0, 0),
    ("Answer: 42", "Tuesday", 0, 0),
    ("\\boxed{42} and not \\boxed{43}", "42", 0, 0),
    ("Answer: 42\n\nAnswer: 43", "42", 0, 0),
    ("Answer: 42\nso that \\boxed{43}", "42", 1, 1),
    ("\\boxed{42", "42", 0, 0),
    ("Answer: 42\n" + "x" * 300, "42", 1, 0),
]


TEXTS, RIGHT = [case[0] for case in CASES], [case[1] for case in CASES]


def test_the_cases_by_value():
    scores = [g.score for g in grade(TEXTS, RIGHT)]
    assert [c for c, score in zip(CASES, scores, strict=True) if c[2] != score] == []


def test_the_cases_of_the_public_scorer():
    scores = [g.score for g in grade(TEXTS, RIGHT, "dapo-strict")]
    assert [c for c, score in zip(CASES, scores, strict=True) if c[3] != score] == []
