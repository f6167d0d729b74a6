"""Rewards by hand: what counts as the answer, and what a broken reward function says."""

import asyncio
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from commands import missing, refusal

from bandpo.errors import UserError
from bandpo.rewards import grading
from bandpo.rewards.functions import (
    RewardError,
    compute_score,
    compute_score_dapo,
    compute_score_dapo_strict,
    dapo,
    dapo_strict,
    exact,
    guarded,
    last_number,
    math_reward,
    resolve,
    text_of,
)
from bandpo.rewards.workers import comparisons
from bandpo.rewards.workers.pool import Pool, Stopped

# ---- exact and last number

EXACT = [
    ("yes", "yes", 1.0), ("  yes\n", "yes ", 1.0), ("Yes", "yes", 0.0), ("yes.", "yes", 0.0), ("", "", 1.0),
    ("7", 7, 1.0), ("7.0", 7, 0.0), ("é", "é", 1.0), ("007", "7", 0.0),
]  # fmt: skip
IS_LAST = [
    ("7", "7"), ("007", "7"), ("7", "7.0"), ("It is 7.", "7"), ("7%", "7"), ("$7", "7"),
    ("first 3, then 4, so 7", "7"), ("3 + 4 = 7", "7"), ("-7", "-7"), ("x = -7", "-7"), ("(-7)", "-7"),
    ("\N{MINUS SIGN}7", "-7"), ("-7", "\N{MINUS SIGN}7"), ("10-7", "7"), ("x-7", "7"), ("10 - 7", "7"),
    ("1,234", "1234"), ("1234", "1,234"), ("1,234,567.50", "1234567.5"), ("-1,234", "-1234"), ("1,2,7", "7"),
    ("12,34", "34"), ("1,2345", "2345"), ("5,007", "5007"), ("3.14", "3.14"), ("3.140", "3.14"), ("3.14.7", "7"),
    ("it is .5", "0.5"), ("-.5", "-0.5"), ("well...5", "5"), ("0.1", "0.1"), ("7 apples", "7"), ("1/2", "2"),
    ("\N{ARABIC-INDIC DIGIT SEVEN}", "7"), ("\N{FULLWIDTH DIGIT SEVEN}", "7"), ("x² = 7²", "7"), ("7 °C 🎉", "7"),
    ("9" * 5000, "9" * 5000), ("-0", "0"), ("1_000", "000"),
]  # fmt: skip
IS_NOT = [
    ("", "7"), ("seven", "7"), ("7 or 8", "7"), ("-7", "7"), ("7", "-7"), ("0.7", "7"), ("77", "7"),
    ("1,2,7", "127"), ("9" * 5000, "9" * 4999 + "8"), ("0.30000000000000001", "0.3"), ("²", "2"),
]  # fmt: skip
SCORES = [
    *((exact, *each) for each in EXACT),
    *((last_number, *each, 1.0) for each in IS_LAST),
    *((last_number, *each, 0.0) for each in IS_NOT),
]


@pytest.mark.parametrize(("reward", "completion", "answer", "score"), SCORES)
def test_the_answer_alone_or_the_last_number_in_value(reward, completion, answer, score):
    assert reward([completion], [answer]) == [score]


@pytest.mark.parametrize("answer", ["seven", "", None, "nan", "inf", "1/2"])
def test_an_answer_that_is_no_number_is_an_error_that_shows_it(answer):
    with pytest.raises(ValueError, match=rf"the answer {re.escape(repr(answer))} is not a number"):
        last_number(["7"], [answer])


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "assistant", "content": "so "}, {"role": "assistant", "content": None}, {"content": "7"}], "7"),
        ([{"role": "assistant", "content": "7"}, {"role": "tool", "content": "8"}, {"role": "user", "content": "9"}],
         "7"),
        ([{"role": "assistant", "content": [{"type": "thinking", "thinking": "8"}, {"type": "text", "text": "so "},
                                            {"type": "text", "text": "7"}]}], "so 7"),
        ([{"role": "user", "content": "7"}], ""),
    ],
)  # fmt: skip
def test_chat_messages_are_read_as_their_text(messages, text):
    assert (text_of(messages), last_number([messages], ["7"])) == (text, [float("7" in text)])
    assert exact([messages], [f" {text} "]) == [1.0]


@pytest.mark.parametrize("wrong", [None, b"7", 7])
def test_what_is_neither_text_nor_messages_is_refused(wrong):
    with pytest.raises(TypeError, match="a completion must be a text or a list of chat messages, got"):
        math_reward([wrong], ["7"])


# ---- math, dapo-strict

TEXTS = ["Answer: $1 + x$", "**Answer:** 42", "Answer: 43", "nothing"]
MESSAGES = [[{"role": "assistant", "content": text}] for text in TEXTS]
ANSWERS = ["x+1", 42, "42", "42"]
WRONG = {"score": -1.0, "acc": False, "dataset": "any"}  # for verl


def test_the_rewards_are_the_scorers():
    assert last_number(["1", "2", "3"], ["1", "3", 3]) == exact(["a", "b", "c"], ["a", "c", "c"]) == [1.0, 0.0, 1.0]
    assert math_reward(TEXTS, answer=ANSWERS, prompts=["?"] * 4) == [1.0, 1.0, 0.0, 0.0]
    assert resolve("math")(completions=MESSAGES, answer=ANSWERS) == [1.0, 1.0, 0.0, 0.0]
    strict = {"answer": ["1+x", 42, "43", "42"], "trainer_state": None}
    assert resolve("dapo-strict")(completions=MESSAGES, **strict) == [1.0, 0.0, 1.0, 0.0]
    assert dapo([*TEXTS[1:], "\\boxed{7}"], ["**42", "42", "x", "7"]) == [1.0, 0.0, 0.0, 1.0]
    for reward in (math_reward, exact, last_number):
        with pytest.raises(ValueError, match=r"as many|shorter"):
            reward(TEXTS, answer=ANSWERS[1:])


@pytest.mark.parametrize("reward", [math_reward, dapo_strict, dapo])
@pytest.mark.parametrize(
    ("columns", "score"),
    [
        ({"ground_truth": ["7"], "solution": ["8"], "reward_model": ["8"], "level": [1]}, 1),
        ({"solution": ["7"], "prompts": ["?"]}, 1),
        ({"reward_model": [{"style": "rule", "ground_truth": "7"}]}, 1),
        ({"answer": ["8"], "ground_truth": ["7"]}, 0),  # answer comes first
        ({"answer": [{"ground_truth": 7}]}, 1),
    ],
)
def test_right_answers_may_stand_in_other_columns(reward, columns, score):
    assert reward(["Answer: 7"], **columns) == [score]


@pytest.mark.parametrize("reward", [math_reward, dapo_strict, dapo])
@pytest.mark.parametrize(
    ("columns", "names"),
    [({"prompts": ["?"], "gold": ["7"], "trainer_state": None}, "prompts, gold"), ({}, "none")],
)
def test_columns_without_right_answers_are_named(reward, columns, names):
    why = rf"in a column answer, ground_truth or solution; the columns are {names}$"
    with pytest.raises(ValueError, match=why):
        reward(["Answer: 7"], **columns)


@pytest.mark.parametrize("reward", [math_reward, dapo_strict, dapo])
@pytest.mark.parametrize("answer", ["7", [["7", "8"]]], ids=["a text", "a list of answers"])
def test_a_column_that_is_no_list_of_answers_is_refused_as_by_grade(reward, answer):
    with pytest.raises(TypeError, match=r"^answers must be a list"):
        reward(["Answer: 7"], answer)


def test_the_share_that_cannot_be_read_is_logged(monkeypatch):
    logged = {}
    monkeypatch.setattr(grading, "pool", lambda: SimpleNamespace(map=lambda tasks: [Stopped.TIME] * len(tasks)))
    math_reward(
        ["Answer: 1", *TEXTS[1:], "Answer: $1+y$"], answer=["1", *ANSWERS[1:], "42"], log_metric=logged.__setitem__
    )
    assert logged == {"reward/unparsed": 0.2, "reward/timeout": 0.2, "reward/error": 0}


@pytest.fixture
def failing(monkeypatch):
    """Put workers in place whose every task raises."""
    pools = []

    def failing(**settings):
        pools.append(Pool("worker_tasks:fail", seconds=1, size=1, **settings))
        monkeypatch.setattr(grading, "pool", lambda: pools[-1])

    yield failing
    for pool in pools:
        pool.close()


def test_a_fault_of_the_scorer_ends_no_training(failing):
    """It is a grade of its own, wrong, and said once."""
    failing()
    logged, why = {}, r"worker_tasks:fail raised ValueError: what is that .*\\sqrt\{2\}"
    with pytest.warns(RuntimeWarning, match=why) as warned:
        assert math_reward([r"Answer: $\sqrt{2}$", "Answer: 7"], ["7"] * 2, log_metric=logged.__setitem__) == [0, 1]
    assert (len(warned), logged) == (1, {"reward/unparsed": 0, "reward/timeout": 0, "reward/error": 0.5})
    assert grading.grade([r"Answer: $\sqrt{3}$"], ["7"]) == [grading.Grade(0.0, None, "error")]
    assert compute_score("any", r"Answer: $\sqrt{5}$", "7") == {**WRONG, "pred": "[INVALID]"}


def test_a_scorer_that_cannot_grade_at_all_is_an_error(failing):
    """Unlike an answer that makes it fail: else a training would go on with nothing but zeros."""
    failing(warm_up=comparisons.WARM_UP)
    with pytest.raises(RewardError, match="a worker cannot load worker_tasks:fail: ValueError: what is that"):
        resolve("math")(completions=[r"Answer: $\sqrt{2}$"], answer=["7"])


@pytest.mark.parametrize(
    ("score", "text", "answer", "result"),
    [
        (compute_score, TEXTS[1], 42, {"score": 1.0, "acc": True, "pred": "42"}),
        (compute_score, "nothing", "42", {"pred": "[INVALID]"}),
        (compute_score_dapo_strict, TEXTS[1], "42", {"pred": "**42"}),
        (compute_score_dapo_strict, "Answer: 42", "42", {"score": 1.0, "acc": True, "pred": "42"}),
        (compute_score_dapo_strict, "\\boxed{42}", "42", {"pred": "[INVALID]"}),
        (compute_score_dapo, "\\boxed{42}", "42", {"score": 1.0, "acc": True, "pred": "42"}),
    ],
)
def test_what_verl_gets(score, text, answer, result):
    assert score("any", text, answer, {"index": 0}, reward_router_address=None) == WRONG | result


# ---- guarded


def returns(values):
    return guarded(lambda completions, **columns: values, "mine")


def test_a_good_reward_passes_through_with_its_columns():
    seen = {}

    def good(completions, **columns):
        seen.update(columns)
        return [1, 0.5, None, True]

    reward = guarded(good, "mine")
    assert reward(completions=["a"] * 4, answer="x", trainer_state=3) == [1, 0.5, None, True]
    assert (seen, reward.__name__) == ({"answer": "x", "trainer_state": 3}, "good")  # TRL names the metric after it


def test_a_reward_may_do_what_it_likes_with_the_lists_it_is_given():
    def careless(completions, answer, **columns):
        values = [float(c == a) for c, a in zip(completions, answer, strict=True)]
        completions.clear()
        answer.clear()
        return values

    completions, answer = ["a", "b"], ["a", "c"]
    results = guarded(careless, "mine")(completions=completions, answer=answer)
    assert (results, completions, answer) == ([1.0, 0.0], ["a", "b"], ["a", "c"])


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        ((1, 0.5), [1.0, 0.5]),
        (np.array([1, 0.5]), [1.0, 0.5]),
        (torch.tensor([1, 0.5], requires_grad=True), [1.0, 0.5]),
        ([torch.tensor(0.5), torch.float64.itemsize], [0.5, 8.0]),
        ([0.5, math.nan], [0.5, None]),  # NaN is a reward that is missing
    ],
)
def test_a_tuple_an_array_and_a_tensor_are_lists(values, numbers):
    results = returns(values)(completions=["a", "b"])
    assert ([*map(type, results)], results) == ([*map(type, numbers)], numbers)


def raises(completions, **columns):
    raise ValueError("one\n\n  two")


def calls(completions, **columns):
    return json.loads("{")


def leaves(completions, **columns):
    sys.exit()


@pytest.mark.parametrize(
    ("reward", "error"),
    [
        (raises, "ValueError: one two"),
        (calls, "JSONDecodeError: Expecting property name .*"),  # the place is in the reward, not in what it called
        (leaves, "SystemExit"),
    ],
)
def test_a_reward_that_raises_is_one_line_with_its_name_the_error_and_the_place(reward, error):
    line = reward.__code__.co_firstlineno + 1
    with pytest.raises(RewardError, match=rf"^reward 'mine' raised {error} at {re.escape(__file__)}:{line}$"):
        guarded(reward, "mine")(completions=["a"])


def test_a_reward_without_room_for_the_columns_is_told_so():
    with pytest.raises(RewardError, match=r"reward 'mine' raised TypeError: .* unexpected keyword argument 'answer'"):
        guarded(lambda completions: [1.0], "mine")(completions=["a"], answer=["b"])


class Judge:
    def __init__(self):
        self.loops = set()

    async def __call__(self, completions, **columns):
        self.loops.add(asyncio.get_running_loop())
        return [0.5] * len(completions)


async def waits(completions, answer, **columns):
    await asyncio.sleep(0)
    if answer == ["no"]:
        raise ValueError("no judge")
    return (1.0,) * len(answer)


def test_a_coroutine_is_waited_for_and_guarded():
    reward, judge, line = guarded(waits, "mine"), Judge(), waits.__code__.co_firstlineno + 3
    assert reward(completions=["a", "b"], answer=["c", "d"]) == [1.0, 1.0]
    for completions, answer, why in (
        (["a"], ["no"], rf"^reward 'mine' raised ValueError: no judge at .*functions\.py:{line}$"),
        (["a", "b"], ["c"], r"^reward 'mine' must return a list of 2 numbers, .*, got a list of 1$"),
    ):
        with pytest.raises(RewardError, match=why):
            reward(completions=completions, answer=answer)
    results = [guarded(judge, "judge")(completions=["a"]) for _ in range(2)]
    assert (results, len(judge.loops)) == ([[0.5], [0.5]], 1)


def test_a_coroutine_is_waited_for_where_a_loop_runs_already():
    async def notebook():
        return guarded(waits, "mine")(completions=["a"], answer=["c"])

    assert asyncio.run(notebook()) == [1.0]


class Ragged:
    """Has no number, and says so in its own way."""

    def tolist(self):
        raise KeyError("ragged")

    __float__ = tolist

    def __repr__(self):
        return "Ragged"


@pytest.mark.parametrize(
    ("values", "got"),
    [
        ([1.0], "a list of 1"),
        ([1.0] * 3, "a list of 3"),
        ([], "a list of 0"),
        (None, "NoneType"),
        (1.0, "float"),
        ({1.0, 2.0}, "set"),
        ((1.0,), "a list of 1"),
        (torch.zeros(2, 1), "[0.0] among them"),
        (torch.tensor(1.0), "Tensor"),
        (Ragged(), "Ragged"),
        ([Ragged(), 1.0], "Ragged among them"),
        ([torch.zeros(2), 1.0], "tensor([0., 0.]) among them"),
        ([0.0, 10**400], "an integer too large for a float among them"),
        ([0.0, 1.1e18], "1.1e+18 among them"),
        ([-(10**20), 0.0], "-100000000000000000000 among them"),
        (["a", "b"], "'a' among them"),
        ([math.inf, 0.0], "inf among them"),
    ],
)
def test_a_result_that_is_no_number_per_completion_is_one_line(values, got):
    limits = ".*from -1e\\+18 to 1e\\+18.*" if got.endswith("among them") else "((?!from -1e).)*"
    why = f"^reward 'mine' must return a list of 2 numbers, one per completion{limits}got {re.escape(got)}$"
    with pytest.raises(RewardError, match=why):
        returns(values)(completions=["a", "b"])


# ---- resolve


def test_a_function_of_a_module_in_the_working_directory_is_found(here, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_reward_module.py").write_text("def two(completions, **columns):\n    return [2.0] * len(completions)\n")
    assert resolve("my_reward_module:two")(completions=["a", "b"]) == [2.0, 2.0]
    why = refusal(resolve, "my_reward_module:three")
    assert not missing(why, "reward 'my_reward_module:three' cannot be imported: ", "has no 'three'")


def test_a_module_there_takes_the_place_of_no_other(here, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    Path("colorsys.py").write_text("def reward(completions, **columns): ...")
    with pytest.raises(UserError, match=r"cannot be imported: .*python3\.\d+/colorsys\.py has no 'reward'$"):
        resolve("colorsys:reward")
    assert sys.path[-1] == str(here)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exactly", "reward must be 'exact', 'last-number', 'math', 'dapo-strict', 'dapo' or "),
        ("no_such_module:f", "reward 'no_such_module:f' cannot be imported: ModuleNotFoundError"),
        (":f", "reward ':f' cannot be imported: "),
        ("math:pi", "reward 'math:pi' must be a function, got float"),
        ("broken_reward_module:f", "reward 'broken_reward_module:f' cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_reward_that_cannot_be_had_is_named(tmp_path, monkeypatch, name, message):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_reward_module.py").write_text("1 / 0")
    assert refusal(resolve, name).startswith(message)
