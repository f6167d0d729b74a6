"""report.json and report.md: what became of every row of the prepared files in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired

import pydantic
from typing_extensions import TypedDict

from bandpo.errors import UserError
from bandpo.files import read_json

from ..files.writing import write_atomically

# What report.json says, as far as it is read again; "from" is a word of Python, so not as classes.
_more = pydantic.with_config(pydantic.ConfigDict(extra="allow"))
_From = _more(TypedDict("_From", {"files": NotRequired[dict[str, str]]}))


class _Lengths(TypedDict):
    median: float
    longest: int


_Counts = dict[str, int]
_Entry = _more(
    TypedDict(
        "_Entry",
        {
            "file": str, "rows": int, "read": int, "sha256": str, "rows_sha256": str, "from": _From,
            "dropped": _Counts, "kept_though": _Counts, "corrected": _Counts, "warnings": list[str],
            "examples": dict[str, list[dict[str, Any]]], "prompt_tokens": _Lengths | None, "settings": dict[str, Any],
        },
    )
)  # fmt: skip
_Group = _more(TypedDict("_Group", {"warnings": list[str]}))
_Report = _more(TypedDict("_Report", {"files": dict[str, _Entry], "groups": dict[str, _Group]}))


def read_report(output: Path) -> dict[str, Any]:
    path = output / "report.json"
    if not path.exists():
        return {"files": {}, "groups": {}}
    try:
        return read_json(path, _Report)
    except UserError as error:
        raise UserError(
            f"{error}: it is not a report of bandpo data prepare; remove it, or choose another folder"
        ) from None


def write_report(report: Mapping[str, Any], output: Path) -> None:
    for name, text in (("report.md", _text(report)), ("report.json", json.dumps(report, indent=1) + "\n")):
        write_atomically(output / name, text.encode())


def _text(report: Mapping[str, Any]) -> str:
    """Write the report as Markdown."""
    lines = [
        "# Prepared data",
        "",
        "| file | read | rows | dropped | put right | SHA-256 |",
        "|---|---|---|---|---|---|",
    ]
    for entry in report["files"].values():
        numbers = [entry["read"], entry["rows"], sum(entry["dropped"].values()), sum(entry["corrected"].values())]
        cells = [f"{number:,}" for number in numbers]
        lines.append(f"| {entry['file']} | {' | '.join(cells)} | `{entry['sha256']}` |")
    for group in report["groups"].values():
        lines += [line for warning in group["warnings"] for line in ("", f"**Warning**: {warning}.")]
    for entry in report["files"].values():
        lines += ["", f"## {entry['file']}", "", f"From {_from(entry['from'])}."]
        if entry["prompt_tokens"]:
            tokens = entry["prompt_tokens"]
            lines.append(f"Prompts have {tokens['median']:g} tokens (median), {tokens['longest']:,} at most.")
        lines += [line for warning in entry["warnings"] for line in ("", f"**Warning**: {warning}.")]
        for title, key in (("Dropped", "dropped"), ("Found and kept", "kept_though"), ("Put right", "corrected")):
            if entry[key]:
                lines += ["", f"{title}:", ""]
            for what, count in entry[key].items():
                lines.append(f"- {count:,} x {what}")
                lines += [f"    - {_example(example)}" for example in entry["examples"].get(what, ())]
    return "\n".join(lines) + "\n"


def _from(where: Mapping[str, Any]) -> str:
    if "files" in where:
        return ", ".join(f"`{path}` ({digest[:12]})" for path, digest in where["files"].items())
    return ", ".join(f"{key} {value}" for key, value in where.items() if value is not None)


def _example(example: Mapping[str, Any]) -> str:
    def quoted(value: Any) -> str:
        return f"`{' '.join(str(value).replace('`', ' ').split())}`"

    return ", ".join(f"{key.replace('_', ' ')} {quoted(value)}" for key, value in example.items())
