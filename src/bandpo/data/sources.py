"""Where rows come from: the data sets that bandpo knows, the hub, copies of it on disk, files, and reasoning_gym.

`SOURCES` and `GROUPS` are plain data: what each data set is, which columns hold what, and how many rows a real run must
find. The readers yield rows as plain dictionaries, and name what they could not read in one line.
"""

from __future__ import annotations

import csv
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet

from ..errors import UserError
from ..files import json_line, lines_of, read_json, shortened

Rows = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Source:
    """A data set and how its rows are read.

    Attributes:
        name: what it is called here.
        hub: its name on the hub; the path of a file; the name of a reasoning_gym task.
        kind: which of them it is.
        problem: the column with the problem: text, or chat messages, whose last user message is the problem.
        answer: the column with the answer; a.b is the field b of the struct a.
        identity: the column with a name of the row, where there is one.
        config: of the hub data set.
        split: of the hub data set.
        file: the name of the prepared file, without its ending.
        use: what it is for.
        data_source: verl's key, by which its scorers and metrics go.
        rows: how many rows there are; a pair where only a range is known; None where nothing is.
        kept: how many are left of them after `levels`.
        counted: where these numbers come from.
        levels: the lowest and highest `level` to keep.
        after: the mark in the answer's column behind which the answer stands.
        integers: every answer is an integer, by the rules of the contest or the making of the data.
        instructed: problems already stand in the instructions of the template `paper`.
        stream: too large to keep a copy of.
        options: of a reasoning_gym task.
        size: how many rows to take, the first ones; how many items of a reasoning_gym task to make.
        licence: as its card says, where that is known.
    """

    name: str
    hub: str
    kind: Literal["hub", "file", "reasoning-gym"] = "hub"
    problem: str = "problem"
    answer: str = "answer"
    identity: str | None = None
    config: str | None = None
    split: str = "train"
    file: str = ""
    use: Literal["train", "evaluation"] = "train"
    data_source: str = "math_dapo"
    rows: int | tuple[int, int] | None = None
    kept: int | tuple[int, int] | None = None
    counted: str = ""
    levels: tuple[int, int] | None = None
    after: str | None = None
    integers: bool = False
    instructed: bool = False
    stream: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    size: int | None = None
    licence: str = "not known"


# The recorded table: what a real run is checked against. `counted` says how far each number can be trusted.
SOURCES = {
    source.name: source
    for source in (
        Source(
            "dapo-math-17k",
            "open-r1/DAPO-Math-17k-Processed",
            problem="source_prompt",
            answer="reward_model.ground_truth",
            identity="extra_info.index",
            config="all",
            file="dapo-math-17k",
            rows=17_398,
            counted="by its card: 14,116 English, 3,282 Chinese",
            integers=True,
            instructed=True,
        ),
        Source(
            "dapo-math-17k-raw",
            "BytedTsinghua-SIA/DAPO-Math-17k",
            problem="prompt",
            answer="reward_model.ground_truth",
            identity="extra_info.index",
            file="dapo-math-17k-raw",
            rows=1_791_700,
            counted="by the card of a copy that splits it, 1,791,400 and 300",
            integers=True,
            instructed=True,
            stream=True,
            licence="Apache-2.0",
        ),
        Source(
            "math-levels-3-5",
            "nlile/hendrycks-MATH-benchmark",
            identity="unique_id",
            file="math-levels-3-5",
            rows=12_000,
            kept=(8_714, 8_969),
            counted="by MATH's 12,500 less MATH-500; kept by the 102 steps of 256 in an epoch of the public logs",
            levels=(3, 5),
        ),
        Source(
            "gsm8k-train",
            "openai/gsm8k",
            problem="question",
            config="main",
            file="gsm8k-train",
            rows=7_473,
            counted="by its paper and card",
            after="####",
            integers=True,
            licence="MIT",
        ),
        Source(
            "aime24",
            "HuggingFaceH4/aime_2024",
            identity="id",
            file="aime2024",
            use="evaluation",
            data_source="aime_2024",
            rows=30,
            counted="by its card, and the grid of the paper's numbers",
            integers=True,
            licence="its card names none",
        ),
        Source(
            "aime25",
            "yentinglin/aime_2025",
            identity="id",
            file="aime2025",
            use="evaluation",
            data_source="aime_2025",
            rows=30,
            counted="by the two contests, and the grid of the paper's numbers",
            integers=True,
        ),
        Source(
            "amc23",
            "math-ai/amc23",
            problem="question",
            identity="id",
            split="test",
            file="amc2023",
            use="evaluation",
            data_source="aime_amc2023",  # the prefix sends it to verl's math_dapo scorer
            rows=40,
            counted="by the grid of the paper's numbers",
            integers=True,
        ),
        Source(
            "gsm8k-test",
            "openai/gsm8k",
            problem="question",
            config="main",
            split="test",
            file="gsm8k-test",
            use="evaluation",
            rows=1_319,
            counted="by its paper and card",
            after="####",
            integers=True,
            licence="MIT",
        ),
    )
}


@dataclass(frozen=True)
class Group:
    """Data sets that are prepared together; training rows are held against the evaluation sets among them.

    Attributes:
        names: of the sources.
        training_rows: how many rows to train on they give in all, where that is known.
        counted: where that number comes from.
    """

    names: tuple[str, ...]
    training_rows: tuple[int, int] | None = None
    counted: str = ""


GROUPS = {
    "paper": Group(
        ("aime24", "aime25", "amc23", "dapo-math-17k", "math-levels-3-5"),
        training_rows=(102 * 256, 103 * 256 - 1),
        counted="by the 102 steps of 256 in an epoch of the public logs",
    ),
    "gsm8k": Group(("gsm8k-test", "gsm8k-train")),
}


# ------------------------------------------------------------------------------------------------------------- reading
def value_at(row: Mapping[str, Any], path: str) -> Any:
    """row["a"]["b"] for "a.b"; None where there is no such thing. A column that is itself called "a.b" comes first."""
    if path in row or "." not in path:
        return row.get(path)
    head, rest = path.split(".", 1)
    inside = row.get(head)
    return value_at(inside, rest) if isinstance(inside, Mapping) else None


def file_rows(path: Path, name: str | None = None) -> Rows:
    """The rows of a file of JSON lines, JSON, CSV or Parquet.

    Args:
        path: the file; its ending says what is in it.
        name: what to call it in errors.

    Raises:
        UserError: no such file, another ending, or a file that cannot be read; in the last case only when its rows are.
    """
    name = name or f"{str(path)!r}"
    if not path.is_file():
        raise UserError(f"{name} is no file")
    if path.suffix not in _READERS:
        raise UserError(f"{name} must end in one of {sorted(_READERS)}")
    return _guarded(_READERS[path.suffix], path, name)


def _guarded(reader: Callable[[Path], Rows], path: Path, name: str) -> Rows:
    try:
        yield from reader(path)
    except (OSError, ValueError, csv.Error, pyarrow.ArrowException) as error:
        raise UserError(f"{name} cannot be read: {' '.join(str(error).split())}") from error


def _json_rows(path: Path) -> Rows:
    """Lines, or one array; not through a table, which would make a date of the answer "2024-01-01"."""
    with path.open("rb") as file:
        start = file.read(2**12).removeprefix(BOM_UTF8).lstrip()
    if start.startswith(b"["):
        for number, row in enumerate(read_json(path, list[Any], shown=False, most=2**31), 1):
            if not isinstance(row, dict):
                raise ValueError(f"row {number} must be an object with names and values, got {shortened(row)}")
            yield row
        return
    for number, line in enumerate(lines_of(path), 1):
        if line.removeprefix(BOM_UTF8).strip():
            yield json_line(line, f"line {number}")


def _csv_rows(path: Path) -> Rows:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        for row in reader:
            if None in row:
                raise ValueError(f"line {reader.line_num} has more cells than the header")
            yield row


def _parquet_rows(path: Path) -> Rows:
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(1000):
            yield from batch.to_pylist()


_READERS: dict[str, Callable[[Path], Rows]] = {
    ".jsonl": _json_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}


def hub_rows(
    hub: str, config: str | None, split: str, *, stream: bool = False, then: str = "--from copies"
) -> tuple[Rows, str | None]:
    """The rows of a data set of the Hugging Face hub, and the commit that they are of.

    Without `stream` it is downloaded into the hub's own cache first, which goes on where a download broke off. With
    HF_HUB_OFFLINE=1 only that cache is read, and the commit is None.

    Raises:
        UserError: it cannot be reached or has no such part; the message names it and says how to use a copy on disk, by
            the setting `then`.
    """
    from datasets import load_dataset
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE

    try:
        revision = None
        if not HF_HUB_OFFLINE and not Path(hub).is_dir():
            # First, because it fails at once without a network, where load_dataset tries for half a minute.
            revision = HfApi().dataset_info(hub, timeout=20).sha
        found: Any = load_dataset(hub, config, split=split, streaming=stream, revision=revision)
    except Exception as error:  # the hub's client has many ways to say no
        raise UserError(_unreachable(hub, error, then)) from error
    return _hub_guarded(found, hub, then), revision


def _hub_guarded(found: Any, hub: str, then: str) -> Rows:
    try:
        yield from found
    except Exception as error:
        raise UserError(_unreachable(hub, error, then)) from error


def _unreachable(hub: str, error: Exception, then: str) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return (
        f"{hub} cannot be loaded from the Hugging Face hub ({reason}). Where there is a network: `hf download {hub} "
        f"--repo-type dataset --local-dir copies/{hub}`; then here: {then}"
    )


def copied_files(source: Source, copies: Path, *, alone: bool = True) -> list[Path]:
    """The files of a data set's split in a copy of the hub on disk.

    Args:
        source: which data set.
        copies: one of its files; a folder with its files in it; or a folder that holds such folders as ORG/NAME, NAME
            or datasets--ORG--NAME (the hub's own cache).
        alone: whether the first two will do; they cannot be told from another data set's.

    Raises:
        UserError: nothing of it is there; the message says where it was looked for.
    """
    if copies.is_file() and alone:
        return [copies]
    if not copies.is_dir():
        raise UserError(f"--from {copies} does not exist; it must be a file or a folder with a copy of {source.hub}")
    cached = copies / f"datasets--{source.hub.replace('/', '--')}" / "snapshots"
    snapshots = sorted(cached.glob("*/"), key=lambda folder: folder.stat().st_mtime, reverse=True)
    own = [copies / source.hub, copies / Path(source.hub).name, *snapshots[:1]]
    folder = next((folder for folder in own if folder.is_dir()), copies if alone else None)
    if folder is None:
        raise UserError(f"--from {copies} has no folder {source.hub}, {Path(source.hub).name} or {cached.parent.name}")
    # As datasets' own push_to_hub lays them out: CONFIG/SPLIT-*, or data/SPLIT-* where there is one configuration.
    for place in [folder / source.config] if source.config else [folder / "data", folder]:
        found = sorted(p for p in place.glob(f"{source.split}*") if p.suffix in _READERS and p.is_file())
        if found:
            return found
    where = f"{source.config}/" if source.config else ""
    raise UserError(
        f"no files {where}{source.split}*.parquet (or .jsonl, .json, .csv) of {source.hub} in {folder}; --from takes "
        "one of its files, or a folder as `hf download --repo-type dataset --local-dir` makes it"
    )


# ------------------------------------------------------------------------------------------------------- reasoning_gym
def reasoning_gym_items(
    task: str, size: int, options: Mapping[str, Any], name: str = "task"
) -> tuple[list[dict[str, Any]], Callable[[str, dict[str, Any]], float]]:
    """The items of a reasoning_gym task, with `question` and `answer`, and its scorer `score(text, item)`.

    Args:
        task: its name there.
        size: how many items.
        options: of the task, its `seed` among them (default 0).
        name: what to call the task in errors.

    Raises:
        UserError: reasoning_gym is not installed, or has no such task or option.
    """
    try:
        import reasoning_gym
    except ImportError:
        raise UserError(f"{name} {task!r} needs the package: pip install 'bandpo[reasoning-gym]'") from None
    options = {"seed": 0, **options}
    try:
        made = reasoning_gym.create_dataset(task, size=size, **options)
    except Exception as error:
        raise UserError(f"{name} {task!r} with options {options}: {' '.join(str(error).split())}") from error
    return list(made), made.score_answer
