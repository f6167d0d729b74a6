"""Read and write the rows of a measurement, a CSV file beside its script, and show them in tables."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def read_rows(path: Path, *, missing_ok: bool = False) -> list[dict[str, str]]:
    """Read the rows of a measurement. With `missing_ok`, a file that does not exist has none."""
    if missing_ok and not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(
    path: Path, rows: Iterable[Mapping[str, object]], columns: Iterable[str] = (), *, add: bool = False
) -> None:
    """Write the rows of a measurement, or `add` them to its file.

    Columns are those of the file that is added to, those given, or else the first row's. What a row lacks is empty.
    Raises ValueError for a row with another column.
    """
    rows, header = list(rows), list[str]()
    if add and path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            header = next(csv.reader(file), [])
    made = io.StringIO()
    writer = csv.DictWriter(made, header or list(columns) or list(rows[0]), lineterminator="\n")
    if not header:
        writer.writeheader()
    writer.writerows(rows)
    with path.open("a" if add else "w", newline="", encoding="utf-8") as file:
        file.write(made.getvalue())


def replace_rows(
    path: Path,
    rows: Sequence[Mapping[str, object]],
    key: Sequence[str],
    columns: Iterable[str] = (),
    order: Callable[[Any], Any] | None = None,
) -> None:
    """Write rows in the place of those that have the same `key`. The others stay; all are sorted by `order`."""
    key_of = lambda row: tuple(str(row[name]) for name in key)  # noqa: E731
    new = set(map(key_of, rows))
    others = [row for row in read_rows(path, missing_ok=True) if key_of(row) not in new]
    write_rows(path, sorted([*others, *rows], key=order) if order else [*others, *rows], columns)


def as_table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (head, *lines))
    return "\n".join([first, f"|{'---|' * len([*head])}", *others])
