"""Find data sets by name: those that bandpo knows, files, and others of the hub."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bandpo.errors import UserError, counted, nearest

from .golds import BOX, HASHES


@dataclass(frozen=True)
class Source:
    """Describe a data set and how its rows are read.

    Attributes:
        name: what it is called here.
        hub: its name on the hub, or the path of a file.
        kind: which of them it is.
        problem: column of the problem: text, or chat messages, whose last user message is the problem.
        answer: column of the answer; a.b is the field b of the struct a.
        config: of the hub data set.
        split: of the hub data set.
        file: name of the prepared file, without its ending; "" is `name`.
        use: what it is for.
        data_source: verl's key, by which its scorers and metrics go.
        rows: how many rows there are; None: not known.
        levels: lowest and highest `level` to keep.
        after: mark in the answer's column behind which the answer stands, `golds.HASHES` or `golds.BOX`.
        integers: every answer is an integer, by the rules of the contest or the making of the data.
        instructed: problems already stand in the instructions of the template `paper`.
    """

    name: str
    hub: str
    kind: Literal["hub", "file"] = "hub"
    problem: str = "problem"
    answer: str = "answer"
    config: str | None = None
    split: str = "train"
    file: str = ""
    use: Literal["train", "evaluation"] = "train"
    data_source: str = "math_dapo"
    rows: int | None = None
    levels: tuple[int, int] | None = None
    after: str | None = None
    integers: bool = False
    instructed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", self.file or self.name)


_DAPO = {"answer": "reward_model.ground_truth", "integers": True, "instructed": True}
_GSM8K = {"problem": "question", "config": "main", "after": HASHES, "integers": True}
_CONTEST = {"use": "evaluation", "integers": True}
# Rows are those of the data sets' cards; of MATH 12,500 less MATH-500; of the contests those of the paper too.
_KNOWN = (
    Source(
        "dapo-math-17k",
        "open-r1/DAPO-Math-17k-Processed",
        problem="source_prompt",
        config="all",
        rows=17_398,
        **_DAPO,
    ),
    Source(
        "dapo-math-17k-raw", "BytedTsinghua-SIA/DAPO-Math-17k", problem="prompt", rows=1_791_700, **_DAPO
    ),
    Source("math-levels-3-5", "nlile/hendrycks-MATH-benchmark", rows=12_000, levels=(3, 5)),
    Source("gsm8k-train", "openai/gsm8k", rows=7_473, **_GSM8K),
    Source(
        "aime24", "HuggingFaceH4/aime_2024", file="aime2024", data_source="aime_2024", rows=30, **_CONTEST
    ),
    Source(
        "aime25", "yentinglin/aime_2025", file="aime2025", data_source="aime_2025", rows=30, **_CONTEST
    ),
    # The prefix of its key sends it to verl's math_dapo scorer.
    Source(
        "amc23",
        "math-ai/amc23",
        problem="question",
        split="test",
        file="amc2023",
        data_source="aime_amc2023",
        rows=40,
        **_CONTEST,
    ),
    Source("gsm8k-test", "openai/gsm8k", split="test", use="evaluation", rows=1_319, **_GSM8K),
)
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
) -> list[Source]:
    """Find the data sets of a name.

    >>> [source.name for source in find("gsm8k")]
    ['gsm8k-test', 'gsm8k-train']

    Args:
        name: a known one, a group, a file, or a name on the hub.
        prompt: column with the problems of unknown data.
        answer: column with their answers.
        config: of an unknown set of the hub.
        split: of it.
        answer_from: `hashes` or `box`, if the answers of unknown data are solutions.
        evaluation: unknown data are an evaluation set.

    Raises:
        UserError: the data set is unknown, or an argument does not go with it.
    """
    listed = GROUPS.get(name, (name,) if name in SOURCES else ())
    if listed:
        options = {
            "--prompt": prompt,
            "--answer": answer,
            "--config": config,
            "--split": split,
            "--answer-from": answer_from,
            "--evaluation": evaluation,
        }
        for option, value in options.items():
            if value:
                raise UserError(
                    f"{option} does not go with {name}: it is for data that bandpo does not know"
                )
        return [SOURCES[each] for each in listed]
    is_file = Path(name).is_file() or name.endswith((".jsonl", ".json", ".csv", ".parquet"))
    if is_file and (config or split):
        raise UserError(
            f"--config and --split are for data sets of the hub, got {config or split!r} for file {name}"
        )
    common: dict[str, Any] = {
        "problem": prompt or "prompt",
        "answer": answer or "answer",
        "split": split or "train",
        "after": {"hashes": HASHES, "box": BOX}.get(answer_from or ""),
        "use": "evaluation" if evaluation else "train",
    }
    if is_file:
        return [Source(name, name, "file", file=Path(name).stem, **common)]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return [Source(name, name, file=name.split("/")[1], config=config, **common)]
    names = [*GROUPS, *SOURCES]
    raise UserError(
        f"no data set {name!r}{nearest(name, names)}; known are {', '.join(names)}, and a .jsonl, "
        ".json, .csv or .parquet file, or ORG/NAME of the hub will do"
    )


def warnings_of(source: Source, read: int, faults: Mapping[str, int]) -> list[str]:
    """Warn of unexpected numbers of rows, and of unusable problems and answers."""
    out = [
        f"{counted(count, 'row')}: {what}"
        for what, count in faults.items()
        if what.startswith(("answer", "no "))
    ]
    if source.rows not in (None, read):
        out = [f"{counted(read, 'row')}, expected {source.rows:,}", *out]
    return [f"{source.name}: {warning}" for warning in out]
