"""Reward completions with TRL's signature. It is `reward(completions, answer=[...], **columns) -> list[float]`.

And three with verl's: `reward.custom_reward_function.path=pkg://bandpo.rewards`, with `name=compute_score` for the
scorer `math`, `name=compute_score_dapo_strict` or `name=compute_score_dapo`.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib
import inspect
import math
import re
import reprlib
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from ..errors import UserError
from .grading import Grade, grade

Reward = Callable[..., Sequence[float | None]]


class RewardError(UserError):
    """Report an error of a reward function. The message names it, the place and the reason."""


def text_of(completion: str | list[dict[str, Any]]) -> str:
    """Return the text of a completion. For chat prompts it is that of the assistant's last message."""
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, list):
        raise TypeError(
            f"a completion must be a text or a list of chat messages, got {reprlib.repr(completion)}"
        )
    own = [message for message in completion if message.get("role", "assistant") == "assistant"]
    content = own[-1].get("content") if own else None
    if isinstance(content, list):
        return "".join(
            str(part.get("text") or "") for part in content if part.get("type", "text") == "text"
        )
    return str(content or "")


def exact(
    completions: list[Any],
    answer: list[Any],
    **columns: Any,
) -> list[float]:
    """Return 1 if the completion is the answer, up to white space at the ends."""
    return [float(text_of(c).strip() == str(a).strip()) for c, a in zip(completions, answer, strict=True)]


# 1,234,567 or 1234567, with decimals or not, or .5; a comma that groups no three digits separates two numbers.
_NUMBER = re.compile(r"-?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])\.\d+)")


def last_number(
    completions: list[Any],
    answer: list[Any],
    **columns: Any,
) -> list[float]:
    """Return 1 if the last number in the completion equals the answer. 7, 7.0 and 007 are equal.

    A minus sign counts only where no digit or letter stands before it: "3-5" ends with 5. Raises ValueError for an
    answer that is not a number.
    """
    return [
        float(read_number(text_of(c)) == _number(a)) for c, a in zip(completions, answer, strict=True)
    ]


def _number(answer: Any) -> Decimal:
    try:
        number = Decimal(str(answer).replace(",", "").replace("\N{MINUS SIGN}", "-"))
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite():
        raise UserError(f"last-number compares numbers, and the answer {answer!r} is not a number")
    return number


def read_number(text: str) -> Decimal | None:
    """Return the last number in a text. None if there is none."""
    text = text.replace("\N{MINUS SIGN}", "-")
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return None
    last = numbers[-1]
    digits = last.group().replace(",", "")
    if digits.startswith("-") and last.start() and text[last.start() - 1].isalnum():
        digits = digits[1:]
    return Decimal(digits)


def _golds(answer: list[Any] | None, columns: Mapping[str, Any]) -> Any:
    """Return the right answers, of the usual columns. A field `ground_truth`, as verl's data have, is taken out."""
    for column in (answer, *(columns.get(name) for name in ("ground_truth", "solution", "reward_model"))):
        if isinstance(column, str):  # `grade` refuses it, and a list in the place of an answer
            return column
        if column is not None:
            golds = [each.get("ground_truth") if isinstance(each, Mapping) else each for each in column]
            return [each if isinstance(each, list) else str(each) for each in golds]
    there = ", ".join(name for name, value in columns.items() if isinstance(value, list)) or "none"
    raise ValueError(
        f"right answers must be in a column answer, ground_truth or solution; the columns are {there}"
    )


def math_reward(
    completions: list[Any],
    answer: list[Any] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float]:
    """Return 1 if the final answer is right in value, else 0. It is the scorer `math` of `bandpo.rewards`.

    Without a column `answer` right answers are those of `ground_truth`, `solution` or verl's `reward_model`. TRL's
    `log_metric` gets `reward/unparsed`, `reward/timeout` and `reward/error`: the shares of completions without an
    answer that can be read, of those whose comparison was stopped, and of those on which the scorer itself failed.
    """
    grades = grade([text_of(c) for c in completions], _golds(answer, columns))
    if log_metric is not None and grades:
        for status in ("unparsed", "timeout", "error"):
            log_metric(f"reward/{status}", sum(g.status == status for g in grades) / len(grades))
    return [g.score for g in grades]


def dapo_strict(
    completions: list[Any],
    answer: list[Any] | None = None,
    **columns: Any,
) -> list[float]:
    """Return 1 where the public runs' scorer gives 1, and 0 for -1. Standardised in a group they are equal.

    It is the scorer `dapo-strict` of `bandpo.rewards`. Columns are those of `math_reward`.
    """
    return [
        g.score for g in grade([text_of(c) for c in completions], _golds(answer, columns), "dapo-strict")
    ]


def dapo(
    completions: list[Any],
    answer: list[Any] | None = None,
    **columns: Any,
) -> list[float]:
    r"""Return 1 where `math_dapo` of verl 0.9.1 gives 1, and 0 for -1.

    It is the scorer `dapo` of `bandpo.rewards`: a \boxed{} counts where "Answer:" is missing.
    """
    return [g.score for g in grade([text_of(c) for c in completions], _golds(answer, columns), "dapo")]


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Score a response for verl by the scorer `math`. The form is that of verl's own `math_dapo`.

    `score` is 1 or -1, `acc` whether it is right, and `pred` what was read, by which verl takes majorities. Whatever
    `data_source` is, the scorer is the same; as `dataset` it stands in each row of verl's dumps, which lack it.
    """
    return _for_verl(grade([solution_str], [str(ground_truth)])[0], data_source)


def compute_score_dapo_strict(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Score a response for verl by the public runs' scorer.

    It is verl's own `math_dapo` of 0.5.0 to 0.9.0.
    """
    return _for_verl(grade([solution_str], [str(ground_truth)], "dapo-strict")[0], data_source)


def compute_score_dapo(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    r"""Score a response for verl as its own `math_dapo` does since 0.9.1.

    It takes a `\boxed{}` where "Answer:" is missing.
    """
    return _for_verl(grade([solution_str], [str(ground_truth)], "dapo")[0], data_source)


def _for_verl(graded: Grade, data_source: str) -> dict[str, Any]:
    right = graded.score == 1
    return {
        "score": 1.0 if right else -1.0,
        "acc": right,
        "pred": "[INVALID]" if graded.answer is None else graded.answer,
        # Under the name "data_source" verl's older trainers end with an error: it is a column of the batch there.
        "dataset": data_source,
    }


def resolve(name: str) -> Reward:
    """Return the guarded reward function of a name or import path (`module:function`).

    The names are `exact`, `last-number`, `math`, `dapo-strict` and `dapo`. Modules are looked for in the working
    directory too, last. Raises UserError if the function is unknown, or a library is missing.
    """
    built_in = {
        "exact": exact,
        "last-number": last_number,
        "math": math_reward,
        "dapo-strict": dapo_strict,
        "dapo": dapo,
    }
    if name == "math":
        grade([], [])  # is math-verify there? Before the training, not in it
    if name in built_in:
        return guarded(built_in[name], name)
    module, colon, function = name.partition(":")
    if not colon:
        names = ", ".join(map(repr, built_in))
        raise UserError(f"reward must be {names} or 'module:function', got {name!r}")
    look_in_working_directory()
    try:
        home = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        raise UserError(f"reward {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    reward: Reward | None = getattr(home, function, None)
    if reward is None:
        where = getattr(home, "__file__", module)
        raise UserError(f"reward {name!r} cannot be imported: {where} has no {function!r}")
    if not callable(reward):
        raise UserError(f"reward {name!r} must be a function, got {type(reward).__name__}")
    return guarded(reward, name)


def look_in_working_directory() -> None:
    """Find modules in the working directory too. It comes last, so that they replace no others."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)


def guarded(reward: Reward, name: str) -> Reward:
    """Return the same reward with each fault as one line that names it.

    A fault is what it raises, `sys.exit()` too, and a result without one number per completion. A tuple, an array and a
    tensor of numbers are taken as lists, and a coroutine is waited for. It works on copies of its lists.
    """

    @functools.wraps(reward)
    def call(completions: list[Any], **columns: Any) -> list[float | None]:
        arguments = {
            key: list(value) if isinstance(value, list) else value
            for key, value in {"completions": completions, **columns}.items()
        }
        try:
            values: Any = reward(**arguments)
            if inspect.iscoroutine(values):
                values = _waited_for(values)
        except (Exception, SystemExit) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
            raise RewardError(f"reward {name!r} raised {reason}{_place(error, reward)}") from error
        return _numbers(values, len(completions), name)

    return call


def _waited_for(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine. It works in a running loop too, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _loop().run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_loop().run, coroutine).result()


@functools.cache
def _loop() -> asyncio.Runner:
    """Return one loop for all calls. In it a client that a reward keeps stays open."""
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


_MOST = 1e18  # trainers compute the spread of a group in float32, which has no square of more


def _numbers(values: Any, count: int, name: str) -> list[float | None]:
    """Return the results of a reward as numbers. Raises RewardError."""
    wanted = f"reward {name!r} must return a list of {count} numbers, one per completion"
    try:
        results = (
            list(values)
            if isinstance(values, tuple)
            else values.tolist()
            if hasattr(values, "tolist")
            else values
        )
    except Exception:  # of a class of the reward's own it may be anything
        results = values
    if not isinstance(results, list) or len(results) != count:
        got = f"a list of {len(results)}" if isinstance(results, list) else type(values).__name__
        raise RewardError(f"{wanted}, got {got}")
    numbers: list[float | None] = []
    for value in results:
        try:
            number = float(value) if hasattr(value, "__float__") else None
        except Exception:  # 10**400, a tensor of several, or whatever a class of the reward's own raises
            number = None
        if value is not None and (number is None or abs(number) > _MOST):
            got = (
                "an integer too large for a float"
                if isinstance(value, int) and number is None
                else reprlib.repr(value)
            )
            raise RewardError(
                f"{wanted}, from -{_MOST:g} to {_MOST:g} (None or NaN where it does not apply), got {got} among them"
            )
        numbers.append(None if number is None or math.isnan(number) else number)
    return numbers


def _place(error: BaseException, reward: Reward) -> str:
    """Say where an error arose. It is the last line of the reward's file, or of whatever it called."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is ours
    file = getattr(getattr(reward, "__code__", None), "co_filename", None)
    own = [frame for frame in frames if frame.filename == file] or frames
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
