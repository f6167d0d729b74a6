"""Files of tests: written in the form that their names ask for, and read again."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import yaml

from research.csv_rows import write_rows


def write(path: str | Path, content: Any) -> Path:
    """Write a text, bytes, an object or rows, and the folders above; returns the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(content), path)
    elif path.suffix == ".csv":
        write_rows(path, content)
    elif path.suffix == ".yaml":
        path.write_text(yaml.safe_dump(content, sort_keys=False))
    elif path.suffix == ".json":
        path.write_text(json.dumps(content))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def json_rows(path: Path) -> list[dict]:
    """The rows of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Everything in a folder, however deep."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
