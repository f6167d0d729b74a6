"""Data sets to evaluate on: all of their problems, in order."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bandpo.errors import UserError, counted
from bandpo.files.checks import shortened

from .problems import corrected, messages_of, problem_of, template_text
from .readers import open_source, value_at
from .sources import count_warnings, find


@dataclass(frozen=True)
class EvaluationSet:
    """Problems to evaluate on.

    Attributes:
        name: of the data set, or of its file.
        rows: one for each problem: `messages`, `answer`, `problem` (without instructions), `id`, `data_source`.
        source: where they come from.
        warnings: what is not as recorded, in sentences.
    """

    name: str
    rows: list[dict[str, Any]]
    source: dict[str, Any]
    warnings: list[str]


def evaluation_set(
    name: str, *, template: str | None = None, copies: Path | None = None, **options: Any
) -> EvaluationSet:
    """Read a data set to evaluate on, by its name or from a file.

    Integers are written as usual (033 is 33), and nothing is dropped.

    Args:
        name: a known set (`aime24`, `aime25`, `amc23`, `gsm8k-test`; `gsm8k` is its test), `reasoning-gym:TASK`, a file
            that `bandpo data prepare` wrote, any other file, or a name on the hub.
        template: the text around a problem, by name (`paper`, `plain`, `boxed`) or as a text with {prompt} in it. By
            default `paper` for a known set and `plain` for others; problems that are messages stay as they are.
        copies: folder with copies of the hub's data sets, each in its folder ORG/NAME, to be read instead of the hub.
        options: columns and parts of other data, as for `sources.find`.

    Raises:
        UserError: it cannot be found or read, or has a row without a problem or an answer.
    """
    found = find(name, **options)
    found = [source for source in found if source.use == "evaluation"] if len(found) > 1 else found
    if len(found) != 1:
        raise UserError(f"{name} is {len(found)} evaluation sets ({', '.join(each.name for each in found)}); name one")
    source = found[0]
    text = template_text(template, source)
    read, where = open_source(source, copies)
    rows = []
    faults: Counter[str] = Counter()
    for index, row in enumerate(read):
        problem = problem_of(source, row, index)
        if not problem.text.strip() or problem.fault == "no answer":
            raise UserError(f"{name}: row {index + 1} has no {'answer' if problem.text.strip() else 'problem'}")
        if problem.fault is not None:
            if not problem.answer:
                raise UserError(f"{name}: row {index + 1}: {problem.fault}: {shortened(value_at(row, source.answer))}")
            faults[problem.fault] += 1
        answer = corrected(problem.answer, padded=False)[0] if source.integers else problem.answer
        prepared = value_at(row, "extra_info.problem")  # of a file that `prepare` wrote
        if isinstance(prepared, str):
            messages = problem.messages if template is None else None
            problem = dataclasses.replace(problem, text=prepared, messages=messages)
        rows.append(
            {
                "messages": messages_of(source, problem, text),
                "answer": answer,
                "problem": problem.text,
                "id": value_at(row, "extra_info.id") or problem.identity,
                "data_source": row.get("data_source") or source.data_source,
            }
        )
    if not rows:
        raise UserError(f"{name} has no rows")
    label = source.file if source.kind == "file" else source.name
    return EvaluationSet(label, rows, where, [*count_warnings(source, len(rows)), *fault_warnings(name, faults)])


def fault_warnings(name: str, counts: Mapping[str, int]) -> list[str]:
    """Write sentences about rows with an unusable problem or answer; none for other counts."""
    return [
        f"{name}: {counted(count, 'row')}: {what}"
        for what, count in counts.items()
        if what.startswith(("answer", "no "))
    ]


def rows_hash(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the SHA-256 of rows as JSON lines: the same whatever wrote the file that they are in."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()
