"""Read rows of a data set as plain dictionaries. They come from the hub, a copy of it, or a file."""

import contextlib
import csv
import hashlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from bandpo.errors import UserError
from bandpo.files import LONGEST_LINE, json_line, lines_of, parse_json, shortened

from ..files.reading import content_of
from .sources import Source

Rows = Iterator[dict[str, Any]]


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """Return row["a"]["b"] for "a.b".

    Where row["a"] is a list of objects it is that of each. None if nothing is there. A column that is itself called
    "a.b" comes first.
    """
    if path in row or "." not in path:
        return row.get(path)
    head, rest = path.split(".", 1)
    inside = row.get(head)
    objects = _objects(inside) if isinstance(inside, list) else []
    if objects:
        return [value_at(each, rest) for each in objects]
    return value_at(inside, rest) if isinstance(inside, Mapping) else None


def file_rows(path: Path, name: str | None = None, *others: str) -> Rows:
    """Read a file of JSON lines, JSON, CSV or Parquet, by its ending. Errors have `name` and the endings `others`.

    Raises:
        UserError: no such file, another ending, or a file that cannot be read; in the last case only when its rows are.
    """
    name = name or repr(str(path))
    if not path.is_file():
        raise UserError(f"{name} is not a file")
    if path.suffix not in _READERS:
        *endings, last = *sorted(_READERS), *others
        raise UserError(f"{name} must end in {', '.join(endings)} or {last}")
    return _guarded(_READERS[path.suffix], path, name)


def _guarded(reader: Callable[[Path], Rows], path: Path, name: str) -> Rows:
    try:
        yield from reader(path)
    except (OSError, ValueError, csv.Error, pyarrow.ArrowException) as error:
        raise UserError(f"{name} cannot be read: {' '.join(str(error).split())}") from error


def whole_json(path: Path) -> dict[str, Any] | list[Any] | None:
    """Parse a file that is one object or array, of any size. None for lines, of which .jsonl may have one.

    Raises:
        UserError: the file is damaged.
    """
    longest = LONGEST_LINE if path.suffix == ".jsonl" else -1
    lines = filter(bytes.strip, (line.removeprefix(BOM_UTF8) for line in lines_of(path, longest)))
    first, second = next(lines, b""), next(lines, b"")
    with contextlib.suppress(UserError):
        if not first or (json_line(first, "") is not None and (second or path.suffix == ".jsonl")):
            return None
    value = parse_json(content_of(path), str(path))
    return value if isinstance(value, dict | list) else None


def rows_in(whole: Mapping[str, Any] | list[Any]) -> tuple[str, list[dict[str, Any]]]:
    """Return the rows of a JSON array or of an object's one list, and its name.

    They may be numbered instead: {"0": {}, ...}.

    Raises:
        UserError: an array with something else, or an object with no list of objects, or several.
    """
    if isinstance(whole, list):
        for number, row in enumerate(whole, 1):
            if not isinstance(row, dict):
                raise UserError(
                    f"row {number} must be an object with names and values, got {shortened(row)}"
                )
        return "", whole
    lists = {name: _objects(value) for name, value in [("", whole), *whole.items()]}
    lists = {name: rows for name, rows in lists.items() if rows}
    if len(lists) != 1:
        has = (
            "no list of objects is among them"
            if not lists
            else f"{' and '.join(lists)} are lists of objects"
        )
        raise UserError(
            f"one object, with the keys {', '.join(list(whole)[:20])}; {has}, where one is expected"
        )
    return lists.popitem()


def _objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list, or by number in an object. Messages are none."""
    if isinstance(value, dict):
        value = [each for name, each in value.items() if name.isdecimal()]
    is_rows = isinstance(value, list) and all(
        isinstance(each, dict) and "role" not in each for each in value
    )
    return value if is_rows else []


def _json_rows(path: Path) -> Rows:
    """Read a whole file, or else lines. A table would make a date of the answer "2024-01-01"."""
    whole = whole_json(path)
    if whole is not None:
        yield from rows_in(whole)[1]
        return
    for number, line in enumerate(lines_of(path), 1):
        if line.removeprefix(BOM_UTF8).strip():
            yield json_line(line, f"line {number}")


def _csv_rows(path: Path) -> Rows:
    csv.field_size_limit(2**31 - 1)  # an answer may be long
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]  # of "prompt, score"
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


_COPIED = (
    "--from copies; for data.eval_path, the file that `bandpo data prepare` writes with --from copies"
)


def hub_rows(hub: str, config: str | None, split: str, then: str = _COPIED) -> tuple[Rows, str | None]:
    """Read the rows of a data set of the Hugging Face hub, and their commit.

    It is downloaded into the hub's own cache, which goes on where a download broke off. With HF_HUB_OFFLINE=1 only that
    cache is read, and the commit is None.

    Raises:
        UserError: it cannot be reached or has no such part; the message says how to use a copy on disk, by the setting
            `then`.
    """
    from datasets import load_dataset
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_OFFLINE

    try:
        revision = None
        if not HF_HUB_OFFLINE and not Path(hub).is_dir():
            # First, because it fails at once without a network, where load_dataset tries for half a minute.
            revision = HfApi().dataset_info(hub, timeout=20).sha
        rows: Any = load_dataset(hub, config, split=split, revision=revision)
        return iter(rows), revision
    except Exception as error:  # the hub's client has many ways to say no
        raise UserError(
            f"{hub} cannot be loaded from the Hugging Face hub "
            f"({' '.join(str(error).split()) or type(error).__name__}). Where there is a network: `hf download {hub} "
            f"--repo-type dataset --local-dir copies/{hub}`; then here: {then}"
        ) from error


def files_on_disk(source: Source, copies: Path | None) -> list[Path]:
    """List the files that a source is read from. Copies of the hub are at ORG/NAME; none if it is downloaded.

    Raises:
        UserError: nothing of it is there; the message says where it was looked for.
    """
    if source.kind == "file":
        return [Path(source.hub)]
    if copies is None:
        return []
    folder = copies / source.hub
    # As datasets' own push_to_hub lays them out: CONFIG/SPLIT-*, or data/SPLIT-* where there is one configuration.
    for place in [folder / source.config] if source.config else [folder / "data", folder]:
        files = sorted(
            path for path in place.glob(f"{source.split}*") if path.suffix in _READERS and path.is_file()
        )
        if files:
            return files
    raise UserError(
        f"no files {source.config + '/' if source.config else ''}{source.split}*.parquet (or .jsonl, .json, .csv) in "
        f"{folder}; --from takes a folder with copies such as `hf download {source.hub} --repo-type dataset "
        f"--local-dir {folder}` makes"
    )


def open_source(source: Source, copies: Path | None) -> tuple[Rows, dict[str, Any]]:
    """Return the rows of a source, and their origin. `copies`, if given, stand for the hub."""
    files = files_on_disk(source, copies)
    if files:
        rows = chain.from_iterable([file_rows(path) for path in files])
        return rows, {"files": {str(path): file_hash(path) for path in files}}
    rows, commit = hub_rows(source.hub, source.config, source.split)
    return rows, {
        "hub": source.hub,
        "config": source.config,
        "split": source.split,
        "commit": commit,
    }


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
