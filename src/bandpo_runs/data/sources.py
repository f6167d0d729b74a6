"""The data sets that bandpo knows, and which of them, or of other data, a name stands for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bandpo.errors import UserError, counted, nearest

from .golds import BOX, HASHES


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
        file: the name of the prepared file, without its ending; "" is `name`.
        use: what it is for.
        data_source: verl's key, by which its scorers and metrics go.
        rows: how many rows there are; None: not known.
        kept: the least and most that are left of them after `levels`.
        levels: the lowest and highest `level` to keep.
        after: the mark in the answer's column behind which the answer stands, `golds.HASHES` or `golds.BOX`.
        integers: every answer is an integer, by the rules of the contest or the making of the data.
        instructed: problems already stand in the instructions of the template `paper`.
        stream: too large to keep a copy of.
        options: of a reasoning_gym task.
        size: how many rows to take, the first ones; how many items of a reasoning_gym task to make.
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
    rows: int | None = None
    kept: tuple[int, int] | None = None
    levels: tuple[int, int] | None = None
    after: str | None = None
    integers: bool = False
    instructed: bool = False
    stream: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", self.file or self.name)


_DAPO = {"answer": "reward_model.ground_truth", "identity": "extra_info.index", "integers": True, "instructed": True}
_GSM8K = {"problem": "question", "config": "main", "after": HASHES, "integers": True}
_CONTEST = {"identity": "id", "use": "evaluation", "integers": True}
# Rows are those of the data sets' cards; of MATH 12,500 less MATH-500, of which the public logs of the paper keep as
# many as fill 102 steps of 256 with DAPO's; of the contests also the grid of the paper's numbers.
_KNOWN = (
    Source(
        "dapo-math-17k", "open-r1/DAPO-Math-17k-Processed", problem="source_prompt", config="all", rows=17_398, **_DAPO
    ),
    Source(
        "dapo-math-17k-raw", "BytedTsinghua-SIA/DAPO-Math-17k", problem="prompt", rows=1_791_700, stream=True, **_DAPO
    ),
    Source(
        "math-levels-3-5", "nlile/hendrycks-MATH-benchmark", identity="unique_id",
        rows=12_000, kept=(8_714, 8_969), levels=(3, 5),
    ),
    Source("gsm8k-train", "openai/gsm8k", rows=7_473, **_GSM8K),
    Source("aime24", "HuggingFaceH4/aime_2024", file="aime2024", data_source="aime_2024", rows=30, **_CONTEST),
    Source("aime25", "yentinglin/aime_2025", file="aime2025", data_source="aime_2025", rows=30, **_CONTEST),
    # The prefix of its key sends it to verl's math_dapo scorer.
    Source(
        "amc23", "math-ai/amc23", problem="question", split="test", file="amc2023", data_source="aime_amc2023", rows=40,
        **_CONTEST,
    ),
    Source("gsm8k-test", "openai/gsm8k", split="test", use="evaluation", rows=1_319, **_GSM8K),
)  # fmt: skip
SOURCES = {source.name: source for source in _KNOWN}
# Data sets that are prepared together; training rows are held against the evaluation sets among them.
GROUPS = {
    "paper": ("aime24", "aime25", "amc23", "dapo-math-17k", "math-levels-3-5"),
    "gsm8k": ("gsm8k-test", "gsm8k-train"),
}


def find(
    name: str,
    *,
    prompt: str | None = None,
    answer: str | None = None,
    config: str | None = None,
    split: str | None = None,
    answer_from: str | None = None,
    evaluation: bool = False,
    options: Mapping[str, Any] | None = None,
    size: int | None = None,
) -> list[Source]:
    """Find the data sets of a name.

    Args:
        name: a known one, a group, `reasoning-gym:TASK`, a file, or a name on the hub.
        prompt: column with the problems of unknown data.
        answer: column with their answers.
        config: of an unknown set of the hub.
        split: of it.
        answer_from: `hashes` or `box`, if the answers of unknown data are solutions.
        evaluation: unknown data are an evaluation set.
        options: of a reasoning_gym task.
        size: how many rows to take, or items to make.

    Raises:
        UserError: there is no such data set, or an argument does not go with it.
    """
    task = name.removeprefix("reasoning-gym:") if name.startswith("reasoning-gym:") else None
    known = GROUPS.get(name, (name,) if name in SOURCES else ())
    unfit: dict[str, Any] = {"--option": options} if not task else {}
    if known or task:
        unfit |= {"--prompt": prompt, "--answer": answer, "--config": config, "--answer-from": answer_from}
    if known:
        unfit |= {"--split": split, "--evaluation": evaluation}
    if given := next((key for key, value in unfit.items() if value), None):
        raise UserError(
            f"{given} does not go with {name}: it is for {_FOR.get(given, 'data that bandpo does not know')}"
        )
    if known:
        return [dataclasses.replace(SOURCES[each], size=size) for each in known]
    common: dict[str, Any] = {"split": split or "train", "use": "evaluation" if evaluation else "train", "size": size}
    if task is not None:
        common["size"] = size or 1000
        return [Source(name, task, "reasoning-gym", "question", file=task, options=options or {}, **common)]
    after = {"hashes": HASHES, "box": BOX}.get(answer_from or "")
    common |= {"problem": prompt or "prompt", "answer": answer or "answer", "after": after}
    if Path(name).is_file() or name.endswith((".jsonl", ".json", ".csv", ".parquet")):
        return [Source(name, name, "file", file=Path(name).stem, **common)]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return [Source(name, name, file=name.split("/")[1], config=config, stream=True, **common)]
    names = [*GROUPS, *SOURCES]
    raise UserError(
        f"no data set {name!r}{nearest(name, names)}; known are {', '.join(names)} (`bandpo data list`), and "
        "reasoning-gym:TASK, a .jsonl, .json, .csv or .parquet file, or ORG/NAME of the hub will do"
    )


_FOR = {"--option": "reasoning-gym:TASK"}


def count_warnings(source: Source, read: int, kept: int | None = None) -> list[str]:
    """Warn of counts that are not the recorded ones; `kept` are the rows left after `levels`."""
    out = []
    if source.size is None and source.rows not in (None, read):
        out.append(f"{source.name}: {counted(read, 'row')}, expected {source.rows:,}")
    if source.size is None and kept is not None and source.kept and not source.kept[0] <= kept <= source.kept[1]:
        levels = " of levels {} to {}".format(*source.levels or (0, 0))
        low, high = source.kept
        out.append(f"{source.name}: {counted(kept, 'row')}{levels}, expected {low:,} to {high:,}")
    return out


def listing() -> str:
    """Write the known data sets and groups: a name on the left, and what is to be said of it behind."""
    out = []
    for source in SOURCES.values():
        config = f", {source.config}" if source.config else ""
        levels = (
            ", levels {} to {}, {:,} to {:,} kept".format(*source.levels, *source.kept or ()) if source.levels else ""
        )
        out.append(f"{source.name:18} {source.use}: {source.hub}{config}, {source.split}, {source.rows:,} rows{levels}")
    return "\n".join([*out, *(f"{name:18} {' '.join(names)}" for name, names in GROUPS.items())])
