"""The tokens of a run, from files: the old and the current log-probability of each, and what else is told of it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bandpo.errors import UserError, nearest
from bandpo.files import json_line, lines_of, shortened

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# What each column is called, in bandpo, TRL and verl, in the order in which names are looked for.
NAMES = {
    "old": ("old_logps", "old_per_token_logps", "old_log_probs", "old_logprobs", "old_log_prob"),
    "new": ("logps", "per_token_logps", "log_probs", "logprobs", "log_prob", "new_logps", "new_log_probs"),
    "advantage": ("advantages", "advantage"),
    "response": ("response_id", "completion_id", "sequence_id", "request_id"),
    "mask": ("response_mask", "completion_mask", "mask"),
}
_MEANING = {"old": "old log-probabilities", "new": "current log-probabilities"}
_SMALLEST = -1e300  # as which -inf counts where it is subtracted
# What rounding may put above 0.
_ROUNDING = 1e-3
_FAR = 60.0  # policy_loss clamps log-ratios to this
# Dumps that look as if they held tokens, by columns that they have.
_DUMPS = {
    "what verl writes under trainer.rollout_data_dir or trainer.validation_data_dir": {"input", "output", "score"},
    "what TRL writes with log_completions": {"prompt", "completion", "advantage"},
}


@dataclass(frozen=True, eq=False)
class Tokens:
    """Response tokens, one after the other.

    Attributes:
        old: log p under the old policy.
        log_ratio: log r, the current minus the old log-probability.
        advantages: None if no column has them.
        responses: the number of each token's response, from 0; None if it is not known.
        columns: which column was read for what.
        saturated: tokens whose log-ratio was beyond +-60, where the loss clamps it.
    """

    old: Floats
    log_ratio: Floats
    advantages: Floats | None
    responses: Integers | None
    columns: Mapping[str, str]
    saturated: int

    @property
    def count(self) -> int:
        return len(self.old)

    @property
    def response_count(self) -> int | None:
        return None if self.responses is None else int(self.responses.max()) + 1


class _Column:
    """The numbers of one column, one after the other, and how many each row has; None where a row has one."""

    def __init__(self, values: Any, lengths: Integers | None) -> None:
        self.values, self.lengths = np.asarray(values, np.float64), lengths


def read_tokens(paths: Sequence[Path], names: Mapping[str, str | None] | None = None) -> Tokens:
    """Read the tokens of files of JSON lines or Parquet: a row for each token, or one for each response, with lists.

    Args:
        paths: the files, which have the same columns.
        names: of columns, by what they hold (old, new, advantage, response, mask); what is not named is looked for by
            the names that bandpo, TRL and verl have for it. Without a column of its name, a row with lists is a
            response of its own.

    Raises:
        UserError: no such file or column, or a value that cannot be; the message has the file and the row.
    """
    given = {role: name for role, name in (names or {}).items() if name is not None}
    if unknown := set(given) - set(NAMES):
        raise ValueError(f"names must be of {list(NAMES)}, got {sorted(unknown)}")
    parts: list[Tokens] = []
    for path in paths:
        if path.suffix not in _READERS:
            raise UserError(f"{str(path)!r} must end in one of {sorted(_READERS)}")
        if not path.is_file():
            raise UserError(f"{str(path)!r} is not a file")
        parts.append(_tokens(path, given))
        if parts[0].columns != parts[-1].columns:
            raise UserError(
                f"files must have the same columns; {paths[0]} has {dict(parts[0].columns)}, {path} "
                f"{dict(parts[-1].columns)}"
            )
    first, advantages, responses = parts[0], None, None
    if first.advantages is not None:
        advantages = np.concatenate([cast(Floats, part.advantages) for part in parts])
    if all(part.responses is not None for part in parts):
        starts = np.cumsum([0, *(part.response_count or 0 for part in parts)])
        responses = np.concatenate([part.responses + start for part, start in zip(parts, starts, strict=False)])
    old, log_ratio = (np.concatenate([getattr(part, name) for part in parts]) for name in ("old", "log_ratio"))
    return Tokens(old, log_ratio, advantages, responses, first.columns, sum(part.saturated for part in parts))


def _tokens(path: Path, given: Mapping[str, str]) -> Tokens:
    columns: dict[str, str] = {}

    def choose(there: list[str]) -> list[str]:
        columns.update(_chosen(path, there, given))
        return list(dict.fromkeys(columns.values()))

    found, ids = _READERS[path.suffix](path, choose, lambda: columns.get("response"))
    old, new = found[columns["old"]], found[columns["new"]]
    lengths = old.lengths
    if (lengths is None) != (new.lengths is None):
        raise UserError(f"{path}: {columns['old']!r} and {columns['new']!r} must both be lists, or both be numbers")
    by_response = lengths is not None
    if lengths is None:
        lengths = np.ones(len(old.values), np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)  # of each token

    def per_token(role: str, may_be_one: bool) -> Floats | None:
        if role not in columns:
            return None
        column = found[columns[role]]
        if column.lengths is None and by_response and not may_be_one:
            raise UserError(f"{path}: {columns[role]!r} must be a list like {columns['old']!r}")
        if column.lengths is None:
            return column.values[rows] if by_response else column.values
        if not by_response:
            raise UserError(f"{path}: {columns[role]!r} must be a number like {columns['old']!r}, not a list")
        if len(wrong := np.flatnonzero(column.lengths != lengths)):
            row = int(wrong[0])
            raise UserError(
                f"{path}, row {row + 1}: {columns[role]!r} has {column.lengths[row]} values, {columns['old']!r} has "
                f"{lengths[row]}"
            )
        return column.values

    current = cast(Floats, per_token("new", False))
    advantages, mask = per_token("advantage", True), per_token("mask", False)
    responses = rows if by_response else None
    if "response" in columns:
        responses = np.asarray(ids, np.int64)[rows]
    kept = old.values, current, advantages, responses, rows
    if mask is not None:
        if len(wrong := np.flatnonzero((mask != 0) & (mask != 1))):
            _refuse(path, columns["mask"], mask, wrong, rows, "0 and 1 are expected")
        kept = tuple(None if x is None else x[mask == 1] for x in kept)
    return _checked(path, columns, *kept, masked=mask is not None)


def _checked(
    path: Path, columns: dict[str, str], old: Any, new: Any, advantages: Any, responses: Any, rows: Any, masked: bool
) -> Tokens:
    if not len(old):
        raise UserError(f"{path} has no tokens{' where the mask is 1' if masked else ''}")
    padding = "" if masked else "; is it padding? --mask names the column of the response's tokens"
    for role, x in {"old": old, "new": new, "advantage": advantages}.items():
        if x is None:
            continue
        if len(wrong := np.flatnonzero(np.isnan(x))):
            _refuse(path, columns[role], x, wrong, rows, f"a number is expected{padding}")
        if role != "advantage" and len(wrong := np.flatnonzero(x > _ROUNDING)):
            what = "log-probabilities are at most 0; are these probabilities, or negated?"
            _refuse(path, columns[role], x, wrong, rows, what)
    if len(wrong := np.flatnonzero(old == -np.inf)):
        _refuse(path, columns["old"], old, wrong, rows, f"a token of probability 0 cannot have been sampled{padding}")
    old, new = np.minimum(old, 0.0), np.minimum(new, 0.0)
    log_ratio = np.maximum(new, _SMALLEST) - old
    if responses is not None:
        responses = np.unique(responses, return_inverse=True)[1]  # a response without tokens is none
    return Tokens(old, log_ratio, advantages, responses, columns, int((np.abs(log_ratio) > _FAR).sum()))


def _refuse(path: Path, column: str, x: Floats, wrong: Integers, rows: Integers, what: str) -> None:
    at = int(wrong[0])
    others = f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
    raise UserError(f"{path}, row {rows[at] + 1}: {column!r} is {x[at]:g}{others}; {what}")


def _chosen(path: Path, there: list[str], given: Mapping[str, str]) -> dict[str, str]:
    """Choose the columns."""
    for role, name in given.items():
        if name not in there:
            raise UserError(f"{path} has no column {name!r} (--{role}){nearest(name, there)}; it has {_listed(there)}")
    chosen = dict(given)
    for role, known in NAMES.items():
        if role not in chosen and (name := next((name for name in known if name in there), None)):
            chosen[role] = name
    for role, meaning in _MEANING.items():
        if role in chosen:
            continue
        for dump, columns in _DUMPS.items():
            if columns <= set(there):
                raise UserError(
                    f"{path} looks like {dump}: texts and scores, but no log-probabilities. docs/run.md has the "
                    "lines that write them"
                )
        raise UserError(
            f"{path} has no column of {meaning}; looked for {', '.join(NAMES[role])}; it has {_listed(there)}. "
            f"--{role} names it"
        )
    if chosen["old"] == chosen["new"]:
        raise UserError(f"{path}: --old and --new are the same column, {chosen['old']!r}")
    return chosen


def _listed(names: list[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


_Read = Callable[[Path, Callable[[list[str]], list[str]], Callable[[], str | None]], tuple[dict[str, _Column], Any]]


def _read_json(
    path: Path, choose: Callable[[list[str]], list[str]], of_response: Callable[[], str | None]
) -> tuple[dict[str, _Column], Any]:
    values: dict[str, array[float]] = {}
    lengths: dict[str, array[int]] = {}
    numbers: dict[Any, int] = {}  # of responses
    ids = array("q")
    names: list[str] = []
    for number, line in enumerate((line for line in lines_of(path) if line.strip()), 1):
        try:
            row = json_line(line, f"{path}, row {number}")
        except UserError:
            if line.endswith(b"\n") or not values:
                raise
            break  # it is being written, or was when its process was killed
        if not values:
            names = choose(list(row))
            values, lengths = {name: array("d") for name in names}, {name: array("q") for name in names}
        for name in names:
            value = row.get(name)
            if name == of_response():
                if not isinstance(value, str | int):
                    raise UserError(
                        f"{path}, row {number}: {name!r} is {shortened(value)}; a name or a number is expected"
                    )
                ids.append(numbers.setdefault(value, len(numbers)))
                continue
            try:
                if isinstance(value, list):
                    values[name].extend(value)
                    lengths[name].append(len(value))
                else:
                    values[name].append(value)
            except TypeError:
                raise UserError(
                    f"{path}, row {number}: {name!r} is {shortened(value)}; a number or a list of numbers is expected"
                ) from None
            if lengths[name] and len(lengths[name]) < number:
                raise UserError(f"{path}, row {number}: {name!r} is a list in some rows and a number in others")
    if not values:
        raise UserError(f"{path} has no rows")
    columns = {
        name: _Column(np.frombuffer(x), np.frombuffer(lengths[name], np.int64) if lengths[name] else None)
        for name, x in values.items()
        if name != of_response()
    }
    return columns, ids


def _read_parquet(
    path: Path, choose: Callable[[list[str]], list[str]], of_response: Callable[[], str | None]
) -> tuple[dict[str, _Column], Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            table = file.read(choose(file.schema_arrow.names))
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    columns, ids = {}, None
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if isinstance(column, pyarrow.ChunkedArray):  # without rows
            raise UserError(f"{path} has no rows")
        if name == of_response():
            if column.null_count:
                raise UserError(f"{path}: {name!r} is missing in {column.null_count:,} rows")
            ids = column.dictionary_encode().indices.to_numpy(zero_copy_only=False)
            continue
        lengths, kind = None, column.type
        if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
            if column.null_count:
                row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
                raise UserError(f"{path}, row {row + 1}: {name!r} is missing")
            lengths = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
            column = column.flatten()
        if not (pyarrow.types.is_floating(column.type) or pyarrow.types.is_integer(column.type)
                or pyarrow.types.is_boolean(column.type)):  # fmt: skip
            raise UserError(f"{path}: {name!r} holds {kind}; a number or a list of numbers is expected")
        columns[name] = _Column(column.cast("float64").to_numpy(zero_copy_only=False), lengths)
    return columns, ids


_READERS: dict[str, _Read] = {".jsonl": _read_json, ".parquet": _read_parquet}
