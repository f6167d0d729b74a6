"""The tokens of a run, from files: the old and the current log-probability of each, and what else is told of it."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bandpo.errors import UserError, nearest
from bandpo.files import json_line, lines_of, shortened

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Names of each column in bandpo, TRL and verl, in the order in which they are looked for.
NAMES = {
    "old": ("old_logps", "old_per_token_logps", "old_log_probs", "old_logprobs", "old_log_prob"),
    "new": ("logps", "per_token_logps", "log_probs", "logprobs", "log_prob", "new_logps", "new_log_probs"),
    "advantage": ("advantages", "advantage"),
    "response": ("response_id", "completion_id", "sequence_id", "request_id"),
    "mask": ("response_mask", "completion_mask", "mask"),
}
_MEANING = {"old": "old log-probabilities", "new": "current log-probabilities"}
_SMALLEST = -1e300  # as which -inf counts where it is subtracted
_ROUNDING = 1e-3  # what rounding may put above 0


@dataclass(frozen=True, eq=False)
class Tokens:
    """Response tokens, one after the other."""

    old: Floats  # log p under the old policy
    log_ratio: Floats  # the current minus the old log-probability
    advantages: Floats | None  # None: no column has them
    responses: Integers | None  # the number of each token's response, from 0; None: not known
    columns: Mapping[str, str]  # which column was read for what

    @property
    def count(self) -> int:
        return len(self.old)

    @property
    def response_count(self) -> int | None:
        return None if self.responses is None else int(self.responses.max()) + 1


def read_tokens(paths: Sequence[Path], names: Mapping[str, str | None] | None = None) -> Tokens:
    """Read tokens from JSON lines or Parquet: a row a token, or a row a response.

    Args:
        paths: the files.
        names: of columns, by what they hold (old, new, advantage, response, mask); others are looked for by the names
            of bandpo, TRL and verl. Without a column of responses, a row with lists is a response.

    Raises:
        UserError: no such file or column, or a value that cannot be; the message has the file and the row.
    """
    given = {role: name for role, name in (names or {}).items() if name is not None}
    parts: list[Tokens] = []
    for path in paths:
        if path.suffix not in (".jsonl", ".parquet"):
            raise UserError(f"{str(path)!r} must end in one of ['.jsonl', '.parquet']")
        if not path.is_file():
            raise UserError(f"{str(path)!r} is not a file")
        parts.append(_tokens(path, given))

    def joined(name: str) -> Any:
        values = [getattr(part, name) for part in parts]
        return None if any(each is None for each in values) else np.concatenate(values)

    responses = None
    if all(part.responses is not None for part in parts):
        starts = np.cumsum([0, *(part.response_count or 0 for part in parts)])
        responses = np.concatenate([part.responses + start for part, start in zip(parts, starts, strict=False)])
    old, log_ratio, advantages = (joined(name) for name in ("old", "log_ratio", "advantages"))
    return Tokens(old, log_ratio, advantages, responses, parts[0].columns)


def _tokens(path: Path, given: Mapping[str, str]) -> Tokens:
    rows = _rows_of_parquet(path, given) if path.suffix == ".parquet" else _rows_of_json(path)
    if not rows:
        raise UserError(f"{path} has no rows")
    columns = _chosen(path, list(rows[0]), given)
    found: dict[str, list[Any]] = {role: [row.get(name) for row in rows] for role, name in columns.items()}
    by_response = isinstance(found["old"][0], list)
    of = {
        role: _column(path, columns, role, values, by_response, found["old"])
        for role, values in sorted(found.items(), key=lambda item: item[0] != "old")
        if role != "response"
    }
    lengths = np.array([len(x) for x in found["old"]], np.int64) if by_response else np.ones(len(rows), np.int64)
    row = np.repeat(np.arange(len(rows)), lengths)  # of each token
    responses = row if by_response else None
    if "response" in found:
        responses = _responses(path, columns["response"], found["response"])[row]
    mask, kept = of.pop("mask", None), slice(None)
    if mask is not None:
        _refuse(path, columns["mask"], mask, (mask != 0) & (mask != 1), row, "0 and 1 are expected")
        kept = mask == 1
    of = {role: values[kept] for role, values in of.items()}
    return _checked(path, columns, of, None if responses is None else responses[kept], row[kept], mask is not None)


def _rows_of_json(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate((line for line in lines_of(path) if line.strip()), 1):
        try:
            rows.append(json_line(line, f"{path}, row {number}"))
        except UserError:
            if line.endswith(b"\n") or not rows:
                raise
            break  # it is being written, or was when its process was killed
    return rows


def _rows_of_parquet(path: Path, given: Mapping[str, str]) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            chosen = _chosen(path, file.schema_arrow.names, given)
            return file.read(list(dict.fromkeys(chosen.values()))).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error


def _column(
    path: Path, columns: Mapping[str, str], role: str, values: list[Any], by_response: bool, old: list[Any]
) -> Floats:
    """Return the numbers of a column; one advantage may stand for a response."""
    repeated = role == "advantage" and by_response and not isinstance(values[0], list)
    single, out = repeated or not by_response, array("d")
    for number, (value, other) in enumerate(zip(values, old, strict=True), 1):
        wrong = ""
        if isinstance(value, list) and single:
            wrong = f"must be a number like {columns['old']!r}, not a list"
        elif isinstance(value, int | float) and not single:
            wrong = f"must be a list like {columns['old']!r}"
        elif isinstance(value, list) and len(value) != len(other):
            wrong = f"has {len(value)} values, {columns['old']!r} has {len(other)}"
        else:
            try:
                numbers: Any = [value] * len(other) if repeated else [value] if single else value
                out.extend(numbers)
            except TypeError:
                wrong = f"is {shortened(value)}; a number or a list of numbers is expected"
        if wrong:
            raise UserError(f"{path}, row {number}: {columns[role]!r} {wrong}")
    return np.frombuffer(out) if out else np.zeros(0)


def _responses(path: Path, name: str, values: list[Any]) -> Integers:
    numbers: dict[Any, int] = {}
    for number, value in enumerate(values, 1):
        if not isinstance(value, str | int):
            raise UserError(f"{path}, row {number}: {name!r} is {shortened(value)}; a name or a number is expected")
        numbers.setdefault(value, len(numbers))
    return np.array([numbers[value] for value in values], np.int64)


def _checked(
    path: Path, columns: dict[str, str], of: dict[str, Floats], responses: Integers | None, row: Integers, masked: bool
) -> Tokens:
    if not len(row):
        raise UserError(f"{path} has no tokens{' where the mask is 1' if masked else ''}")
    padding = "" if masked else "; is it padding? --mask names the column of the response's tokens"
    for role, x in of.items():
        _refuse(path, columns[role], x, np.isnan(x), row, f"a number is expected{padding}")
        if role != "advantage":
            what = "log-probabilities are at most 0; are these probabilities, or negated?"
            _refuse(path, columns[role], x, x > _ROUNDING, row, what)
    impossible = f"a token of probability 0 cannot have been sampled{padding}"
    _refuse(path, columns["old"], of["old"], of["old"] == -np.inf, row, impossible)
    old, new = np.minimum(of["old"], 0.0), np.minimum(of["new"], 0.0)
    log_ratio = np.maximum(new, _SMALLEST) - old
    if responses is not None:
        responses = np.unique(responses, return_inverse=True)[1]  # a response without tokens does not count
    return Tokens(old, log_ratio, of.get("advantage"), responses, columns)


def _refuse(path: Path, column: str, x: Floats, wrong: Bools, row: Integers, what: str) -> None:
    at = np.flatnonzero(wrong)
    if len(at):
        others = f" (and {len(at) - 1:,} more)" if len(at) > 1 else ""
        raise UserError(f"{path}, row {row[at[0]] + 1}: {column!r} is {x[at[0]]:g}{others}; {what}")


def _chosen(path: Path, there: list[str], given: Mapping[str, str]) -> dict[str, str]:
    """Choose the columns."""
    listed = ", ".join(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
    for role, name in given.items():
        if name not in there:
            raise UserError(f"{path} has no column {name!r} (--{role}){nearest(name, there)}; it has {listed}")
    chosen = dict(given)
    for role, known in NAMES.items():
        if role not in chosen and (name := next((name for name in known if name in there), None)):
            chosen[role] = name
    for role, meaning in _MEANING.items():
        if role not in chosen:
            raise UserError(
                f"{path} has no column of {meaning} (docs/run.md says how to write them); looked for "
                f"{', '.join(NAMES[role])}; it has {listed}. --{role} names it"
            )
    if chosen["old"] == chosen["new"]:
        raise UserError(f"{path}: --old and --new are the same column, {chosen['old']!r}")
    return chosen
