"""A row becomes a problem: its texts, its answer, and what will not do."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import BEFORE, BEHIND, CHINESE, dapo, gsm8k, math, own, problem, put, rows_of

from bandpo.errors import UserError
from bandpo_runs.data.problems import corrected


def test_the_prompt_texts_are_the_public_ones(make, tmp_path):
    make("paper")
    out = tmp_path / "out"
    for name in ("aime2024", "aime2025", "amc2023", "math-levels-3-5"):
        row = rows_of(out / f"{name}.parquet")[0]
        text = row["extra_info"]["problem"]
        assert row["prompt"] == [{"role": "user", "content": f"{BEFORE} {text} {BEHIND}"}]
    rows = rows_of(out / "dapo-math-17k.parquet")
    assert rows[0]["prompt"] == [{"role": "user", "content": BEFORE + problem(300) + BEHIND}]  # no spaces of ours
    assert rows[0]["extra_info"]["problem"] == problem(300)
    assert rows[-1]["extra_info"]["problem"] == CHINESE.format(7)
    assert rows[-1]["prompt"][0]["content"] == BEFORE + CHINESE.format(7) + BEHIND


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain", "{}"),
        ("boxed", "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}."),
        ("Q: {prompt} {x}\n{prompt}", "Q: {0} {{x}}\n{0}"),
    ],
)
def test_another_template_takes_the_public_text_off(make, tmp_path, template, text):
    make("dapo-math-17k", "aime25", template=template)
    for name, seed in (("dapo-math-17k", 300), ("aime2025", 100)):
        row = rows_of(tmp_path / "out" / f"{name}.parquet")[0]
        assert row["prompt"] == [{"role": "user", "content": text.format(problem(seed))}]


def test_each_correction_is_counted(make, copies):
    outcome, wording = make("paper")
    assert outcome["aime2024"]["corrected"] == {"zeros before an integer taken off": 11}  # 10 x 025, and 033
    assert outcome["amc2023"]["corrected"] == {"decimals of an integer taken off": 40}
    assert outcome["aime2025"]["corrected"] == outcome["math-levels-3-5"]["corrected"] == {}
    assert "  put right: 11 zeros before an integer taken off" in wording
    examples = outcome["aime2024"]["examples"]["zeros before an integer taken off"]
    assert examples[0] == f"row 1, problem `{problem(1)}`, was `025`, now `25`"


def test_as_published_keeps_the_zeros(make, tmp_path):
    outcome, _ = make("aime24", "amc23", as_published=True)
    assert rows_of(tmp_path / "out/aime2024.parquet")[1]["answer"] == "025"
    assert outcome["aime2024"]["corrected"] == {}
    # The published scores are those of integers.
    assert rows_of(tmp_path / "out/amc2023.parquet")[4]["answer"] == "1"


@given(st.integers(-(10**20), 10**20), st.integers(0, 4), st.booleans(), st.integers(0, 3), st.booleans())
def test_a_corrected_integer_is_the_same_number_as_it_is_usually_written(number, zeros, commas, decimals, padded):
    digits = f"{abs(number):,}" if commas else "0" * zeros + str(abs(number))
    text = ("-" if number < 0 else "") + digits + ("." + "0" * decimals if decimals else "")
    answer, changes = corrected(text, padded=padded)
    assert Decimal(answer) == number
    if not (padded and zeros and not commas):
        assert answer == str(number)
    assert bool(changes) == (answer != text)
    assert corrected(answer, padded=padded) == (answer, [])


@pytest.mark.parametrize(
    "answer", ["1,23", "12,3456", "1/2", "0.5", "27.50", r"\frac{1}{2}", "x", "1 000", "٣", "", "1e3"]
)
def test_what_is_no_integer_stays(answer):
    assert corrected(answer, padded=False) == (answer, [])


def test_no_answer_of_math_is_touched(make, copies, tmp_path):
    """The last two digits of a number can be 07."""
    put(copies, "math-levels-3-5", [math(problem(i), answer, 5, i) for i, answer in enumerate(["07", "2.0", "1,000"])])
    make("math-levels-3-5")
    assert [row["answer"] for row in rows_of(tmp_path / "out/math-levels-3-5.parquet")] == ["07", "2.0", "1,000"]


@pytest.mark.parametrize("answer", ["1/2", "\uff11\uff12", "\u0663"])  # digits that no scorer reads as such
def test_an_answer_that_should_be_an_integer_is_kept_and_warned_of(make, copies, tmp_path, answer):
    put(copies, "dapo-math-17k", [dapo(problem(1), answer, 0), dapo(problem(2), "2", 1)])
    outcome, wording = make("dapo-math-17k")
    assert outcome["dapo-math-17k"]["kept_though"] == {"answer is not an integer": 1}
    assert "warning: dapo-math-17k: 1 row: answer is not an integer" in wording
    assert len(rows_of(tmp_path / "out/dapo-math-17k.parquet")) == 2


def test_the_answer_of_gsm8k_stands_behind_its_mark(make, copies, tmp_path):
    put(
        copies,
        "gsm8k-train",
        [gsm8k(problem(1), "1,024"), gsm8k(problem(2), "7"), {"question": "x?", "answer": "no mark"}],
    )
    put(copies, "gsm8k-test", [gsm8k(problem(3), "-3")])
    outcome, _ = make("gsm8k")
    assert [row["answer"] for row in rows_of(tmp_path / "out/gsm8k-train.parquet")] == ["1024", "7"]
    assert [row["answer"] for row in rows_of(tmp_path / "out/gsm8k-test.parquet")] == ["-3"]
    assert outcome["gsm8k-train"]["dropped"] == {"no answer": 1}
    assert outcome["gsm8k-train"]["corrected"] == {"commas taken out": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "own.jsonl: of 0 rows none is left"),
        (
            [{"question": "x", "answer": 1}],
            "needs the columns 'prompt' and 'answer', and has no 'prompt'; row 1 has question, answer; bandpo data",
        ),
        ([{"prompt": "x", "gold": 1}], "has no 'answer'; row 1 has prompt, gold; bandpo data prepare"),
        ([{"prompt": 5, "answer": 1}], "row 1: 'prompt' must be text or messages, got 5"),
        ([{"prompt": ["x"], "answer": 1}], "row 1: 'prompt' must be text or messages"),
        ([{"prompt": "", "answer": 1}], "of 1 row none is left (1 no problem; e.g. row 0, problem ``, answer `1`)"),
        ([{"prompt": "x", "answer": float("nan")}], "of 1 row none is left (1 no answer; e.g. row 0, problem `x`"),
        ([{"prompt": "a \ud800", "answer": 1}], "own.parquet: 'utf-8' codec can't encode character '\\ud800'"),
    ],
)
def test_rows_that_will_not_do_are_named(make, tmp_path, rows, message):
    with pytest.raises(UserError) as caught:
        make(own(tmp_path, rows))
    assert message in str(caught.value)
    assert "own." in str(caught.value)
