"""Read the tokens of a run from JSON lines. A row is a response, with its log-probabilities as lists."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bandpo.errors import UserError
from bandpo.files import json_line, lines_of, shortened

from ..files.reading import check_different
from ..statistics.estimators import Floats, Integers

# Names of each column in bandpo, TRL and verl, in the order in which they are looked for.
NAMES = {
    "old": ("old_logps", "old_per_token_logps", "old_log_probs", "old_logprobs", "old_log_prob"),
    "new": (
        "logps",
        "per_token_logps",
        "log_probs",
        "logprobs",
        "log_prob",
        "new_logps",
        "new_log_probs",
    ),
    "advantage": ("advantages", "advantage"),
    "response": ("response_id", "completion_id", "sequence_id", "request_id"),
    "mask": ("response_mask", "completion_mask", "mask"),
}


@dataclass(frozen=True, eq=False)
class Tokens:
    """Response tokens, one after the other."""

    old: Floats  # log p under the old policy
    log_ratio: Floats  # the current minus the old log-probability
    advantages: Floats | None  # None: no column has them
    responses: Integers  # the number of each token's response, from 0
    columns: Mapping[str, str]  # which column was read for what

    @property
    def count(self) -> int:
        return len(self.old)

    @property
    def response_count(self) -> int:
        return int(self.responses.max()) + 1


def read_tokens(paths: Sequence[Path]) -> Tokens:
    """Read tokens from JSON lines with a row for each response.

    Args:
        paths: the files, or folders with their tokens-*.jsonl, themselves or in a folder `tokens`, as an output_dir of
            TRL or a run's folder has it. One name of a response in two files means two responses. Without a column of
            responses, each row is a response of its own.

    Raises:
        UserError: no such file or column, a file twice, or an impossible value; the message has the file and the row.
    """
    files: list[Path] = []
    for path in paths:
        inside = (
            sorted([*path.glob("tokens-*.jsonl")] or path.glob("tokens/tokens-*.jsonl"))
            if path.is_dir()
            else [path]
        )
        if not inside:
            raise UserError(
                f"no tokens-*.jsonl is in the folder {path}; give the folder that tokens_path names, or files"
            )
        files += inside
    check_different(files)
    parts = [_tokens(file) for file in files]
    starts = np.cumsum([0, *(part.response_count for part in parts)])
    advantages = [part.advantages for part in parts if part.advantages is not None]
    return Tokens(
        np.concatenate([part.old for part in parts]),
        np.concatenate([part.log_ratio for part in parts]),
        np.concatenate(advantages) if len(advantages) == len(parts) else None,
        np.concatenate([part.responses + start for part, start in zip(parts, starts, strict=False)]),
        parts[0].columns,
    )


def _tokens(path: Path) -> Tokens:
    columns: dict[str, str] = {}
    rows: list[dict[str, Floats]] = []
    numbers: dict[Any, int] = {}  # of responses that have tokens, by their name
    responses: list[Integers] = []
    for number, line in enumerate(filter(bytes.strip, lines_of(path)), 1):
        where = f"{path}, row {number}"
        try:
            row = json_line(line, where)
        except UserError:
            if line.endswith(b"\n") or not columns:
                raise
            break  # it is being written, or was when its process was killed
        columns = columns or _chosen(path, list(row))
        rows.append(_response(row, columns, where))
        name = row.get(columns["response"]) if "response" in columns else number
        if not isinstance(name, str | int):
            raise UserError(
                f"{where}: {columns['response']!r} is {shortened(name)}; a name or a number is expected"
            )
        if len(rows[-1]["old"]):
            responses.append(np.full(len(rows[-1]["old"]), numbers.setdefault(name, len(numbers))))
    if not responses:
        raise UserError(f"{path} has no tokens{' where the mask is 1' if 'mask' in columns else ''}")
    joined = {role: np.concatenate([row[role] for row in rows]) for role in rows[0]}
    old, new = np.minimum(joined["old"], 0.0), np.minimum(joined["new"], 0.0)
    return Tokens(
        old,
        np.maximum(new, -1e300) - old,  # -inf may be subtracted so
        joined.get("advantage"),
        np.concatenate(responses),
        columns,
    )


def _response(row: dict[str, Any], columns: Mapping[str, str], where: str) -> dict[str, Floats]:
    """Return the numbers of a row by what they are, of the tokens under the mask."""
    arrays: dict[str, Floats] = {}
    for role in [role for role in ("old", "new", "mask", "advantage") if role in columns]:
        name = columns[role]
        value = row.get(name)
        if role == "advantage" and not isinstance(value, list):
            value = [value] * len(arrays["old"])  # one for the whole response
        try:
            arrays[role] = np.array(array("d", value))  # type: ignore[arg-type]
        except TypeError:
            raise UserError(
                f"{where}: {name!r} is {shortened(value)}; a list of numbers is expected"
            ) from None
        sizes = len(arrays[role]), len(arrays["old"])
        if sizes[0] != sizes[1]:
            raise UserError(f"{where}: {name!r} has {sizes[0]} values, {columns['old']!r} has {sizes[1]}")
    padding = (
        ""
        if "mask" in arrays
        else "; is it padding? A column response_mask marks the response's tokens by 1"
    )
    mask = arrays.pop("mask", None)
    if mask is not None:
        _refuse(where, columns["mask"], mask[(mask != 0) & (mask != 1)], "0 and 1 are expected")
        arrays = {role: x[mask == 1] for role, x in arrays.items()}
    for role, x in arrays.items():
        _refuse(where, columns[role], x[np.isnan(x)], f"a number is expected{padding}")
        if role != "advantage":
            _refuse(
                where,
                columns[role],
                x[x > 1e-3],  # rounding may put less above 0
                "log-probabilities are at most 0; are these probabilities, or negated?",
            )
    old = arrays["old"]
    _refuse(
        where,
        columns["old"],
        old[old == -np.inf],
        f"a token of probability 0 cannot have been sampled{padding}",
    )
    return arrays


def _refuse(where: str, column: str, wrong: Floats, what: str) -> None:
    if len(wrong):
        raise UserError(f"{where}: {column!r} is {wrong[0]:g}; {what}")


def _chosen(path: Path, columns: list[str]) -> dict[str, str]:
    """Choose the columns by their usual names."""
    listed = ", ".join(columns[:20]) + (f" and {len(columns) - 20} more" if len(columns) > 20 else "")
    usual = {role: [name for name in each if name in columns] for role, each in NAMES.items()}
    chosen = {role: each[0] for role, each in usual.items() if each}
    for role, meaning in (("old", "old log-probabilities"), ("new", "current log-probabilities")):
        if role not in chosen:
            raise UserError(
                f"{path} has no column of {meaning} (docs/run.md says how to write them); looked for "
                f"{', '.join(NAMES[role])}; it has {listed}"
            )
    return chosen
