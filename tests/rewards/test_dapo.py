"""The scorer `dapo`, without verl: tests/cluster holds it against verl's own."""

import pytest
from scripts import load

from bandpo.rewards.grading import Grade, grade

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
    assert grade([text], [read or "42"], "dapo") == [Grade(float(read is not None), read, status)]
    assert grade([text], ["41"], "dapo") == [Grade(0.0, read, status)]
    if read and "Answer" not in text:
        assert grade([text], [f"{read} "], "dapo")[0].score == 0, "without normalisation"


def test_dapo_gives_what_verl_gave_on_the_recorded_cases():
    scorers = load("research/measurements/scorers.py")
    rows = scorers.read_rows(scorers.ROWS)
    graded = grade([row["text"] for row in rows], [row["answer"] for row in rows], "dapo")
    assert [int(each.score) for each in graded] == [int(row["verl math_dapo"]) for row in rows]
