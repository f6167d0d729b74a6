"""Training rows `{prompt, answer, ...}` from a file, the hub, a reasoning_gym task or the lab, in a fixed order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars, load_dataset

from . import lab
from .config import DataConfig, RunConfig, UserError
from .rewards import Reward, guarded, resolve, text_of

# In CSV every cell is text, "007" and "NA" too.
_LOADERS: dict[str, tuple[str, dict[str, Any]]] = {
    ".jsonl": ("json", {}),
    ".json": ("json", {}),
    ".csv": ("csv", {"dtype": str, "keep_default_na": False}),
    ".parquet": ("parquet", {}),
}
disable_progress_bars()  # they would break the progress display


def prepare(config: RunConfig) -> tuple[Dataset, Dataset | None, Reward]:
    """The rows to train on, in order and as many as the run needs; the rows held out; the reward.

    The order is drawn here from the run's seed, passes over the rows following each other: the trainer then goes
    through the data once, which it can resume exactly, and every rule sees the same prompts.

    Raises:
        UserError: a missing or empty file, a missing column, too few rows.
    """
    needed = config.rounds * config.prompts_per_round
    data = config.data
    if data.source == "lab":
        return Dataset.from_list(lab.prompts(needed, config.seed)), None, guarded(lab.reward, "lab")
    reward: Reward | None = None
    if data.source == "reasoning_gym":
        rows, scorer = _reasoning_gym(data, config)
        if config.reward == "reasoning-gym":
            reward = guarded(scorer, "reasoning-gym")
    else:
        rows = _columns(_load(data), data)
    if config.reward == "reasoning-gym" and reward is None:
        raise UserError(f"reward 'reasoning-gym' needs data.source 'reasoning_gym', got {data.source!r}")
    reward = reward or resolve(config.reward)
    if data.size is not None:
        if len(rows) < data.size:
            raise UserError(f"data.size is {data.size}, but {data.path or data.task} has only {len(rows)} rows")
        rows = rows.select(range(data.size))
    held_out = None
    if data.eval_size:
        first = max(0, len(rows) - data.eval_size)
        held_out = rows.select(range(first, len(rows)))
        # A prompt that is held out must not be trained on, however often it occurs.
        seen = {json.dumps(prompt) for prompt in held_out["prompt"]}
        rows = rows.select(
            [i for i, prompt in enumerate(rows["prompt"]) if i < first and json.dumps(prompt) not in seen]
        )
    train = len(rows)
    if train < config.prompts_per_round:
        raise UserError(
            f"{train} rows are left to train on (data.eval_size {data.eval_size} and their repetitions are "
            f"held out); a round needs {config.prompts_per_round}"
        )
    rng = torch.Generator().manual_seed(config.seed)
    passes = -(-needed // train)
    order = torch.cat([torch.randperm(train, generator=rng) for _ in range(passes)])[:needed]
    return rows.select(order.tolist()), held_out, reward


def _load(data: DataConfig) -> Dataset:
    if data.source == "hub":
        try:
            return load_dataset(data.path, split=data.split)
        except Exception as error:  # the hub client has many ways to say no
            reason = " ".join(str(error).split())
            raise UserError(f"data.path {data.path!r} cannot be loaded from the hub: {reason}") from error
    path = Path(data.path or "")
    if not path.is_file():
        raise UserError(f"data.path {data.path!r} is no file")
    if path.suffix not in _LOADERS:
        raise UserError(f"data.path {data.path!r} must end in one of {sorted(_LOADERS)}")
    if path.stat().st_size == 0:
        raise UserError(f"data.path {data.path!r} is empty")
    loader, options = _LOADERS[path.suffix]
    try:
        rows = load_dataset(loader, data_files=str(path), split="train", **options)
    except Exception as error:
        cause = error.__cause__ or error
        raise UserError(f"data.path {data.path!r} cannot be read: {' '.join(str(cause).split())}") from error
    if len(rows) == 0:
        raise UserError(f"data.path {data.path!r} has no rows")
    return rows


def _columns(rows: Dataset, data: DataConfig) -> Dataset:
    """Rename to `prompt` and `answer`, put the prompt into its template and, for chat, into a message."""
    for column in (data.prompt, data.answer):
        if column not in rows.column_names:
            raise UserError(f"column {column!r} is not in {data.path!r}, which has {rows.column_names}")

    def shape(row: dict[str, Any], index: int) -> dict[str, Any]:
        prompt, answer = row[data.prompt], row[data.answer]
        if not prompt or not isinstance(prompt, str | list):
            raise UserError(f"row {index} of {data.path!r}: {data.prompt!r} must be text or messages, got {prompt!r}")
        if answer is None:
            raise UserError(f"row {index} of {data.path!r}: {data.answer!r} is missing")
        return {"prompt": _prompt(prompt, data) if isinstance(prompt, str) else prompt, "answer": str(answer)}

    others = [column for column in (data.prompt, data.answer) if column not in ("prompt", "answer")]
    return rows.map(shape, with_indices=True, remove_columns=others)


def _prompt(text: str, data: DataConfig) -> str | list[dict[str, str]]:
    text = data.template.replace("{prompt}", text)
    return [{"role": "user", "content": text}] if data.chat else text


def _reasoning_gym(data: DataConfig, config: RunConfig) -> tuple[Dataset, Reward]:
    try:
        import reasoning_gym
    except ImportError:
        raise UserError("data.source 'reasoning_gym' needs the package: pip install 'bandpo[reasoning-gym]'") from None
    needed = data.size or config.rounds * config.prompts_per_round + data.eval_size
    options = {"seed": 0, **data.options}
    try:
        source = reasoning_gym.create_dataset(data.task, size=needed, **options)
    except Exception as error:
        raise UserError(f"data.task {data.task!r} with options {options}: {' '.join(str(error).split())}") from error
    items = list(source)  # their metadata can be anything, so rows only point to them
    rows = [
        {"prompt": _prompt(item["question"], data), "answer": str(item["answer"]), "item": i}
        for i, item in enumerate(items)
    ]

    def score(completions: list[Any], item: list[int], **columns: Any) -> list[float]:
        return [
            float(source.score_answer(text_of(c).strip(), items[i])) for c, i in zip(completions, item, strict=True)
        ]

    return Dataset.from_list(rows), score
