"""Evaluate inside training. Scores of the sampled answers get verl's names.

TRL samples `num_generations_eval` answers to every row of an evaluation data set and reports their mean reward. The
rows are marked here, so that the reward function, which sees every answer, can keep their scores by question.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from accelerate.utils import gather_object
from datasets import Dataset
from numpy.typing import ArrayLike

from bandpo.rewards.functions import Reward, text_of

from ..config.recipe import DataConfig
from ..data import question_sets
from ..statistics.estimators import best_at_k_bootstrap, pass_at_k, powers

# Columns of the marked rows: the data set's name in metrics, and the question's number.
DATA, ROW = "validation_data", "validation_row"
EXAMPLES = 3  # rows whose answers are kept
# Rewards that are 1 for right and 0 for wrong. verl calls their values acc, others reward.
ACCURACIES = ("exact", "last-number", "math", "dapo-strict", "dapo", "lab")


def validation_rows(data: DataConfig, held_out: Dataset | None, chat: bool) -> Dataset | None:
    """Return the marked rows to evaluate on in training. They are those of data.eval_path, else the held-out ones.

    Args:
        data: of the run.
        held_out: from `rows_and_reward`.
        chat: whether the model is trained on messages; questions then come as such too.

    Raises:
        UserError: see `question_sets.read`.
    """
    if data.eval_path is None:
        if held_out is None:
            return None
        names = [question_sets.held_out_name(data)] * len(held_out)
        return held_out.add_column(DATA, names).add_column(ROW, list(range(len(held_out))))
    rows = []
    for question_set in (question_sets.read(spec, chat=chat) for spec in data.eval_path.split(",")):
        for question in question_set.questions:
            source = question.more.get("data_source")
            # verl's key of the data; math_dapo is that of all to which nobody gave one.
            name = question_set.name if source in (None, "math_dapo") else source
            rows.append(
                {"prompt": question.content, "answer": question.answer, DATA: name, ROW: len(rows)}
            )
    return Dataset.from_list(rows)


class Validation:
    """A reward that keeps the scores of marked rows.

    Attributes:
        by_question: the mean score of each question, at the last `take`.
        answers: prompt and answer of the first EXAMPLES rows, at the last evaluation.
    """

    def __init__(self, reward: Reward, accuracy: bool) -> None:
        self._kind = "acc" if accuracy else "reward"
        self._scores: dict[str, dict[int, list[float]]] = {}
        self.by_question: dict[int, float] = {}
        self.answers: dict[int, tuple[Any, str]] = {}

        @functools.wraps(reward)
        def recorded(completions: list[Any], **columns: Any) -> Sequence[float | None]:
            data, rows = columns.pop(DATA, None), columns.pop(ROW, None)
            values = reward(completions=completions, **columns)
            if data is not None and rows is not None:
                prompts = columns.get("prompts") or completions
                for name, row, value, prompt, text in zip(
                    data, rows, values, prompts, completions, strict=True
                ):
                    if row < EXAMPLES:
                        self.answers[row] = prompt, text_of(text)
                    if value is not None:
                        self._scores.setdefault(name, {}).setdefault(row, []).append(float(value))
            return values

        self.reward = recorded

    def take(self) -> dict[str, float]:
        """Return the metrics of the rows kept since the last call. They are of all processes, and each must call it."""
        own, self._scores = self._scores, {}
        scores: dict[str, dict[int, list[float]]] = {}
        for name, by_row in (item for part in gather_object([own]) for item in part.items()):
            for row, values in by_row.items():
                scores.setdefault(name, {}).setdefault(row, []).extend(values)
        out = {}
        self.by_question = {
            row: float(np.mean(by_row[row])) for by_row in scores.values() for row in sorted(by_row)
        }
        for name, by_row in scores.items():
            # The same for all, unless a reward did not apply to some, or processes were evened out by repeating some.
            least = min(map(len, by_row.values()))
            out |= metrics(name, self._kind, [values[:least] for values in by_row.values()])
        return out


def metrics(data: str, kind: str, scores: ArrayLike) -> dict[str, float]:
    """Compute verl's mean@n and best@k/mean of scores [questions, n]. Of kind acc it adds the unbiased pass@k.

    Like verl, what has all n samples is under val-core, the rest under val-aux; pass@k for k = 1 is mean@n.
    """
    values = np.asarray(scores, np.float64)
    n = values.shape[-1]
    out = {f"val-core/{data}/{kind}/mean@{n}": float(values.mean(-1).mean())}
    for k in powers(n):
        section = f"val-{'core' if k == n else 'aux'}/{data}/{kind}"
        out[f"{section}/best@{k}/mean"] = float(best_at_k_bootstrap(values, k).mean())
        if kind == "acc":
            out[f"{section}/pass@{k}"] = float(pass_at_k(n, values.sum(-1), k).mean())
    return out
