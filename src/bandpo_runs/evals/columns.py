"""Find the columns of a file of answers, and read its scores."""

import contextlib
import re
from collections.abc import Collection, Mapping
from typing import Any

Row = Mapping[str, Any]

# What each column is called, in the order in which names are looked for; capitals and _ do not matter.
NAMES = {
    "prompt": (
        "prompt",
        "question",
        "problem",
        "input",
        "query",
        "origin_prompt",
        "instruction",
        "messages",
        "conversation",
    ),
    "problem": ("problem_id", "question_id", "prompt_id", "custom_id"),
    "response": (
        "response",
        "responses",
        "completion",
        "completions",
        "output",
        "outputs",
        "generation",
        "generations",
        "samples",
        "model_output",
        "full_model_response",
        "model_response",
        "generated_text",
        "origin_prediction",
        "code",
        "prediction",
        "predictions",
        "model_answer",
        "messages",
        "conversation",
    ),
    "answer": (
        "gts",
        "gold",
        "gold_answer",
        "gt",
        "ground_truth",
        "expected_answer",
        "correct_answer",
        "reference_answer",
        "reference",
        "references",
        "refr",
        "target",
        "answer",
        "solution",
    ),
    "score": ("acc", "correct", "is_correct", "score", "scores", "reward"),
    "extracted": (
        "pred",
        "extracted_answer",
        "extracted_prediction",
        "predicted_answer",
        "prediction",
        "predictions",
        "model_answer",
    ),
    "data": ("data_source", "dataset"),
}
# The letters are inspect_ai's: correct, incorrect, no answer.
_RIGHT: dict[str, float] = {"1.0": 1, "true": 1, "c": 1, "0.0": 0, "-1.0": 0, "false": 0, "i": 0, "n": 0}


def is_missing(value: Any) -> bool:
    """Tell None, and the NaN of a table, from a value."""
    return value is None or value != value


def is_right(score: Any) -> float | None:
    """Read a score as 1.0 or 0.0. None for another one. A number as text, such as "1.00", is that number."""
    text = str(score).strip().lower()
    with contextlib.suppress(ValueError):
        text = str(float(text) + 0.0)  # not -0.0
    return _RIGHT.get(text)


def is_clear(value: Any) -> bool:
    """Tell whether a score, or each in lists of them, is right, wrong or missing."""
    return (
        all(map(is_clear, value))
        if isinstance(value, list)
        else is_missing(value) or is_right(value) is not None
    )


def column_of(row: Row, role: str, used: Collection[str] = (), depth: int = 4) -> str | None:
    """Find the column of a role by its usual names.

    It may be in an object: "a.b" is field b of column a.

    An object with such a field is not the answer itself: of {"completions": [{"model_answer": ...}]} it is the field.
    """
    paths, level = list[str](), [("", row)]
    for _ in range(depth):
        fields = [(f"{path}{name}", value) for path, inside in level for name, value in inside.items()]
        names = [re.sub(r"[\W_]", "", path.rpartition(".")[2].lower()) for path, _ in fields]
        paths += [
            path
            for name in NAMES[role]
            for field, (path, _) in zip(names, fields, strict=True)
            if field == name.replace("_", "") and path not in used
        ]
        firsts = [
            (path, value[0] if isinstance(value, list) and value else value) for path, value in fields
        ]
        level = [
            (f"{path}.", each)
            for path, each in firsts
            if isinstance(each, Mapping) and "role" not in each
        ]
    return next((path for path in paths if not any(each.startswith(f"{path}.") for each in paths)), None)
