"""The data sets that bandpo knows, and which of them, or of one's own, a name stands for.

`SOURCES` and `GROUPS` are plain data: what each data set is, which columns hold what, and how many rows a real run must
find.
"""

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
        file: the name of the prepared file, without its ending.
        use: what it is for.
        data_source: verl's key, by which its scorers and metrics go.
        rows: how many rows there are; a pair where only a range is known; None where nothing is.
        kept: how many are left of them after `levels`.
        counted: where these numbers come from.
        levels: the lowest and highest `level` to keep.
        after: the mark in the answer's column behind which the answer stands, `golds.HASHES` or `golds.BOX`.
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
            after=HASHES,
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
            after=HASHES,
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


def find(
    name: str,
    *,
    prompt: str | None = None,
    answer: str | None = None,
    config: str | None = None,
    split: str | None = None,
    data_source: str | None = None,
    options: Mapping[str, Any] | None = None,
    size: int | None = None,
    integers: bool = False,
    evaluation: bool = False,
    answer_from: str | None = None,
) -> list[Source]:
    """Find the data sets of a name: a known one, a group, `reasoning-gym:TASK`, a file, or a name on the hub.

    The arguments say how an unknown one is read; of a known one only `size` and `data_source` can be chosen.

    Raises:
        UserError: there is no such data set, or an argument that has no place.
    """
    own = {
        "--prompt": prompt,
        "--answer": answer,
        "--config": config,
        "--split": split,
        "--integers": integers,
        "--evaluation": evaluation,
        "--answer-from": answer_from,
    }
    task = name.removeprefix("reasoning-gym:") if name.startswith("reasoning-gym:") else None
    known = GROUPS[name].names if name in GROUPS else (name,) if name in SOURCES else ()
    for key, value in own.items():
        if value and (known or (task and key in ("--prompt", "--answer", "--config", "--answer-from"))):
            raise UserError(f"{key} has no place with {name}, whose columns are known")
    if options and not task:
        raise UserError(f"--option has no place with {name}; it goes with reasoning-gym:TASK")
    given: dict[str, Any] = {"size": size} | ({"data_source": data_source} if data_source else {})
    if known:
        return [dataclasses.replace(SOURCES[each], **given) for each in known]
    use = "evaluation" if evaluation else "train"
    common = {**given, "split": split or "train", "use": use, "integers": integers}
    if task is not None:
        common["size"] = size or 1000
        return [Source(name, task, "reasoning-gym", "question", file=task, options=options or {}, **common)]
    after = {"hashes": HASHES, "box": BOX}.get(answer_from or "")
    columns = {"problem": prompt or "prompt", "answer": answer or "answer", "after": after}
    if Path(name).is_file() or name.endswith((".jsonl", ".json", ".csv", ".parquet")):
        return [Source(name, name, "file", file=Path(name).stem, **columns, **common)]
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return [Source(name, name, file=name.split("/")[1], config=config, stream=True, **columns, **common)]
    close = nearest(name, [*GROUPS, *SOURCES])
    raise UserError(
        f"no data set {name!r}{close}; known are {', '.join([*GROUPS, *SOURCES])} (`bandpo data list`), and "
        "reasoning-gym:TASK, a .jsonl, .json, .csv or .parquet file, or ORG/NAME of the hub will do"
    )


def count_warnings(source: Source, read: int, kept: int | None = None) -> list[str]:
    """Warn of counts that are not the recorded ones; `kept` are the rows left after `levels`."""
    out = []
    levels = " of levels {} to {}".format(*source.levels or (0, 0))
    for what, count, expected in (("", read, source.rows), (levels, kept, source.kept)):
        if count is None or expected is None or source.size is not None:
            continue
        low, high = expected if isinstance(expected, tuple) else (expected, expected)
        if not low <= count <= high:
            wanted = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            out.append(f"{source.name}: {counted(count, 'row')}{what}, expected {wanted} ({source.counted})")
    return out


def listing() -> list[dict[str, Any]]:
    """List the known data sets, and groups of them."""
    sets = [
        {
            "name": source.name, "use": source.use, "hub": source.hub, "config": source.config, "split": source.split,
            "levels": source.levels, "rows": source.rows, "kept": source.kept, "counted": source.counted,
            "licence": source.licence,
        }
        for source in SOURCES.values()
    ]  # fmt: skip
    return [*sets, *({"name": name, "of": list(group.names)} for name, group in GROUPS.items())]


def listing_text() -> str:
    """Write the list in words: a name on the left, and what is to be said of it behind."""
    out = []
    for source in SOURCES.values():
        config = f", {source.config}" if source.config else ""
        levels = f", levels {source.levels[0]} to {source.levels[1]}" if source.levels else ""
        out += [
            f"{source.name:18} {source.use}: {source.hub}{config}, {source.split}{levels}",
            f"{'':18} {_expected(source)}; licence: {source.licence}",
        ]
    out += [f"{name:18} {' '.join(group.names)}" for name, group in GROUPS.items()]
    return "\n".join(out)


def _expected(source: Source) -> str:
    def text(count: int | tuple[int, int]) -> str:
        return f"{count[0]:,} to {count[1]:,}" if isinstance(count, tuple) else f"{count:,}"

    kept = f", {text(source.kept)} kept" if source.kept else ""
    return f"{text(source.rows or 0)} rows{kept} ({source.counted})"
