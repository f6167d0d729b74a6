"""Read training rows `{prompt, answer, ...}` in a fixed order. They come from files, the hub or the lab."""

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pyarrow
import torch
from datasets import Dataset

from bandpo.errors import UserError, counted
from bandpo.files import line_of, shortened
from bandpo.rewards.functions import Reward, guarded, resolve

from .. import toy
from ..config.recipe import DataConfig, RunConfig
from .golds import HASHES, read_gold
from .problems import are_messages
from .readers import file_hash, file_rows, hub_rows


def rows_and_reward(config: RunConfig) -> tuple[Dataset, Dataset | None, Reward]:
    """Read the rows as `read_rows` does, and the reward. For `module:function` the module is imported.

    Raises:
        UserError: as there, or the reward is unknown.
    """
    reward = guarded(toy.reward, "lab") if config.reward == "lab" else resolve(config.reward)
    return *read_rows(config), reward


def checksums(data: DataConfig, rows: Dataset) -> dict[str, str]:
    """Return the SHA-256 of each file of the data by its path. Of the hub it is that of the rows."""
    names = [data.path or "", *(data.eval_path or "").split(",")]  # of the hub's data sets, too
    sums = {name: file_hash(Path(name)) for name in names if Path(name).is_file()}
    if data.source == "hub":
        sums["data.source hub"] = hashlib.sha256(b"".join(map(line_of, rows))).hexdigest()
    return sums


def read_rows(config: RunConfig) -> tuple[Dataset, Dataset | None]:
    """Read the training rows and the held-out rows.

    Training rows come in order, as many as the run needs. Nothing that the config names is imported or executed:
    whoever reads a run trusts it with nothing.

    The order is drawn here from the run's seed, passes over the rows following each other: the trainer then goes
    through the data once, which it can resume exactly, and every rule sees the same prompts.

    Raises:
        UserError: a missing or empty file, a missing column, too few rows.
    """
    needed = config.rounds * config.prompts_per_round
    data = config.data
    if data.source == "lab":
        flip = toy.SCENES[config.scene or "tail"].flip
        return Dataset.from_list(toy.prompts(needed, config.seed, flip)), None
    if data.source == "largest-of-three":
        made = _largest_of_three(data.size or needed + data.eval_size)
        rows = Dataset.from_list([{**row, "prompt": _prompt(row["prompt"], data)} for row in made])
    else:
        rows = _from_table(data, config.reward)
    if data.size is not None:
        if len(rows) < data.size:
            raise UserError(
                f"data.size is {data.size}, but {data.path} has only {counted(len(rows), 'row')}"
            )
        rows = rows.select(range(data.size))
    held_out = None
    if data.eval_size:
        first = max(0, len(rows) - data.eval_size)
        held_out = rows.select(range(first, len(rows)))
        # A prompt that is held out must not be trained on, however often it occurs.
        prompts = [json.dumps(prompt) for prompt in rows["prompt"]]
        seen = set(prompts[first:])
        rows = rows.select([i for i, prompt in enumerate(prompts) if prompt not in seen])
    train = len(rows)
    if train < config.prompts_per_round:
        raise UserError(
            f"{counted(train, 'row')} left to train on (data.eval_size {data.eval_size} and their repetitions are "
            f"held out); a round needs {config.prompts_per_round}"
        )
    rng = torch.Generator().manual_seed(config.seed)
    order = torch.cat([torch.randperm(train, generator=rng) for _ in range(0, needed, train)])[:needed]
    return rows.select(order.tolist()), held_out


def table_rows(source: str, path: str, split: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Read all rows of a file or of the hub, and the names of their columns. Raises UserError."""
    if source == "hub":
        rows = list(hub_rows(path, None, split, then="data.source=file data.path=FILE")[0])
    else:
        rows = list(file_rows(Path(path), f"data.path {path!r}"))
    if not rows:
        raise UserError(f"data.path {path!r} has no rows")
    return rows, list(dict.fromkeys(name for row in rows for name in row))


def _from_table(data: DataConfig, reward: str) -> Dataset:
    """Read a file or a data set of the hub. Its columns are renamed, and a prompt is put into its template."""
    path = data.path or ""
    rows, names = table_rows(data.source, path, data.split)
    for key, name in (("prompt", data.prompt), ("answer", data.answer)):
        if name not in names:
            raise UserError(
                f"data.{key}: column {name!r} is not in {path!r}, which has {names}; name yours by "
                f"data.{key}=COLUMN"
            )
    others = [name for name in names if name not in (data.prompt, data.answer, "prompt", "answer")]
    shaped = []
    for number, row in enumerate(rows, 1):
        where, prompt, answer = f"row {number} of {path!r}", row.get(data.prompt), row.get(data.answer)
        if are_messages(prompt) and prompt[-1]["role"] == "assistant":  # a whole conversation
            *prompt, last = prompt
            answer = last["content"] if data.answer == data.prompt else answer
        if not prompt or not isinstance(prompt, str | list):
            raise UserError(f"{where}: {data.prompt!r} must be text or messages, got {prompt!r}")
        if answer is None:
            raise UserError(f"{where}: {data.answer!r} is missing")
        if isinstance(answer, list | dict) and ":" not in reward:  # an imported reward may want all of it
            try:
                answer = read_gold(answer)[0]
            except ValueError as error:
                raise UserError(f"{where}: {data.answer!r} is {shortened(answer)}: {error}") from None
        prompt = _prompt(prompt, data) if isinstance(prompt, str) else prompt
        answer = str(answer).rpartition(HASHES)[2].strip()  # GSM8K has the working before it
        if not answer:
            raise UserError(f"{where}: {data.answer!r} is missing")
        shaped.append({"prompt": prompt, "answer": answer, **{name: row.get(name) for name in others}})
    if len({type(row["prompt"]) for row in shaped}) > 1:
        raise UserError(f"data.path {path!r}: some prompts are text, others messages")
    try:
        return Dataset.from_list(shaped, on_mixed_types="use_json")
    except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise UserError(
            f"data.path {path!r} does not fit a table: {' '.join(str(error).split())}"
        ) from error


def _prompt(text: str, data: DataConfig) -> str | list[dict[str, str]]:
    text = data.template.replace("{prompt}", text)
    return [{"role": "user", "content": text}] if data.chat else text


def _largest_of_three(count: int) -> list[dict[str, Any]]:
    """Make different questions after the largest of three numbers of two digits."""
    if count > 704_880:
        raise UserError(f"data.size must be at most 704,880 for largest-of-three, got {count:,}")
    draw, answers = random.Random(0), dict[str, str]()
    while len(answers) < count:
        numbers = draw.sample(range(10, 100), 3)
        answers["Name the largest number: {}, {}, {}.".format(*numbers)] = str(max(numbers))
    return [{"prompt": question, "answer": answer} for question, answer in answers.items()]
