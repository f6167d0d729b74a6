"""Which texts are the same problem, and which training rows hold one of an evaluation set."""
# ruff: noqa: RUF001  (Chinese punctuation is meant)

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import LEAKED, PLACES, aime24, dapo, own, problem, put, rows_of

from bandpo.errors import UserError
from bandpo_runs.data.leaks import RUN, SHARE, Leaks, same_text, words


@given(st.text(max_size=20), st.data())
def test_same_text_forgets_white_space_and_case_and_nothing_else(text, draw):
    spaced = "".join(c + draw.draw(st.sampled_from(["", " ", "\n", "\t "])) for c in text)
    assert same_text(spaced) == same_text(text)
    assert same_text(text + "+1") != same_text(text + "-1") != same_text(text)


def test_a_planted_leak_is_found_however_it_is_written(make, copies, tmp_path):
    written = [
        LEAKED["problem"],
        LEAKED["problem"].replace("$", "").replace(r"\tfrac{9}{2}", r"\dfrac92").upper().replace(r"\OMEGA", r"\omega"),
        "A warm-up. " + problem(50) + " And now: " + LEAKED["problem"],
        # The start alone, without what all such problems end with.
        r"Let \(ABC\) be a triangle with \(AB=5\) and \(BC=\frac{9}{2}\), inscribed in a circle. What is its area?",
    ]
    clean = r"The mean of four numbers is $\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers."
    # The ending does not leak: three evaluation problems have it.
    evaluation = [*(aime24(problem(i), "1", i) for i in range(27)), LEAKED]
    endings = [LEAKED["problem"][LEAKED["problem"].index("which is") :], ""]
    evaluation += [aime24(f"{problem(60 + i)} The result, {endings[0]}", "1", i) for i in range(2)]
    put(copies, "aime24", evaluation)
    rows = [dapo(text, "33", i) for i, text in enumerate([*written, clean, problem(301)])]
    put(copies, "dapo-math-17k", rows)
    outcome, _ = make("dapo-math-17k", against=("aime24",))
    entry = outcome["dapo-math-17k"]
    assert entry["dropped"] == {"holds a problem of aime24": 4}
    assert [row["extra_info"]["index"] for row in rows_of(tmp_path / "out/dapo-math-17k.parquet")] == [4, 5]
    shown = entry["examples"]["holds a problem of aime24"][0]
    assert f"evaluation row 27, share 1.00, holds `{LEAKED['problem'][:100]}" in shown


def test_a_short_problem_is_held_by_the_same_words_only():
    leaks = Leaks([("short", ["Find $2^{10}$.", "What is pi?"])])
    assert leaks.find("find 2^10").name == "short"
    assert leaks.find("What is $\\pi$?").row == 1
    assert leaks.find("Find $2^{11}$.") is None
    assert leaks.find("Find $2^{10}$ and then something else of some length, as one does.") is None


def test_runs_that_stand_in_three_problems_say_nothing():
    ending = "where m and n are relatively prime positive integers; find the sum of m and n"
    problems = [f"{problem(i)} It is m over n, {ending}" for i in range(3)]
    assert Leaks([("set", problems[:2])]).find(f"Something else is m over n, {ending}").name == "set"
    assert Leaks([("set", problems)]).find(f"Something else is m over n, {ending}") is None
    assert Leaks([("set", problems)]).find(problems[1]).row == 1


def test_a_repetition_of_a_leak_is_a_leak(make, copies):
    put(copies, "dapo-math-17k", [dapo(LEAKED["problem"], answer, 0) for answer in ("33", "33", "34")])
    outcome = None
    with pytest.raises(UserError, match="of 3 rows none is left") as caught:
        outcome, _ = make("dapo-math-17k", against=("aime24",))
    assert outcome is None
    assert "3 holds a problem of aime24" in str(caught.value)


def test_paper_holds_its_training_rows_against_its_evaluation_sets(make, copies, tmp_path):
    rows = rows_of(copies / PLACES["dapo-math-17k"])
    planted = [problem(5), problem(105), problem(205)]  # of AIME 2024, AIME 2025, AMC 2023
    put(copies, "dapo-math-17k", [*rows, *(dapo(text, "1", 90 + i) for i, text in enumerate(planted))])
    outcome, _ = make("paper")
    assert outcome["dapo-math-17k"]["dropped"] == {
        "holds a problem of aime24": 1,
        "holds a problem of aime25": 1,
        "holds a problem of amc23": 1,
    }
    assert outcome["math-levels-3-5"]["dropped"] == {"level outside 3 to 5": 8}


def test_against_takes_names_and_files(make, copies, tmp_path):
    path = own(tmp_path, [{"prompt": problem(302), "answer": "1"}], "mine.jsonl")
    put(copies, "dapo-math-17k", [dapo(problem(i), "1", i) for i in (5, 302, 303)])
    outcome, _ = make("dapo-math-17k", against=("aime24", path))
    assert outcome["dapo-math-17k"]["dropped"] == {"holds a problem of aime24": 1, f"holds a problem of {path}": 1}


SENTENCE = st.lists(st.sampled_from("ab"), max_size=14).map(" ".join)


@given(st.lists(SENTENCE, min_size=1, max_size=6), SENTENCE)
def test_the_index_finds_what_comparing_all_pairs_finds(problems, text):
    def runs(sentence):
        split = sentence.split()
        return {tuple(split[i : i + RUN]) for i in range(len(split) - RUN + 1)}

    distinct = list(dict.fromkeys(problems))
    common = {run for each in distinct for run in runs(each) if sum(run in runs(other) for other in distinct) >= 3}
    shares = [len(own & runs(text)) / len(own) if (own := runs(each) - common) else 0.0 for each in distinct]
    best = 1.0 if text in distinct else max(shares)
    result = Leaks([("set", problems)]).find(text)
    if best < SHARE:
        assert result is None
    else:
        assert result.share == pytest.approx(best)
        assert result.problem == text if text in distinct else shares[distinct.index(result.problem)] == result.share


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"$\dfrac{1}{2}$", r"\frac12"),
        (r"\left( x+1 \right)", "(x+1)"),
        (r"\text{lcm}(a,b)", "lcm(a, b)"),
        (r"$1,2,\ldots,n$", "1, 2, ..., n"),
        ("Ａ＝２", "a = 2"),
        ("2x", "2 x"),
    ],
)
def test_words_do_not_see_how_a_formula_looks(one, other):
    assert words(one) == words(other)


def test_words_see_numbers_letters_and_chinese_characters():
    assert words("求 $x^{12}$，x是整数") == ["求", "x", "12", "x", "是", "整", "数"]
    assert words("$x_1$") != words("$x_2$")


def test_who_holds_nothing_against_training_rows_is_told(make):
    _, lines = make("dapo-math-17k")
    assert any(line.startswith("training rows are not held against evaluation sets") for line in lines)
    _, lines = make("paper")
    assert not any(line.startswith("training rows are not held") for line in lines)
