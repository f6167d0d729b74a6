"""`bandpo data prepare`: from a data set as it is published to a file to train on, with a report of every change.

A file is made in one pass (`collect`: what is read, corrected, and dropped for which reason), cut to the longest
prompt, written beside its place and put there in one step; then `report.json` gets its entry. A file whose entry has
the same settings and the right hash is not made again, so a run that was killed goes on with the file it was at.

One schema serves both trainers: verl reads `data_source`, `prompt`, `ability`, `reward_model` and `extra_info`; TRL
reads `prompt` and `answer`, and gives the other columns to the reward.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from bandpo import __version__
from bandpo.errors import UserError, counted
from bandpo.files import shortened

from ..files.locks import locked
from .evaluation_sets import evaluation_set, fault_warnings, rows_hash
from .leaks import Leaks
from .problems import Problem, messages_of, template_text
from .readers import Copies, file_hash, files_on_disk, open_source
from .report import read_report, write_report
from .selection import Before, collect, measured, token_counter
from .sources import GROUPS, SOURCES, Source, count_warnings


@dataclass(frozen=True)
class Settings:
    """Settings of the preparation.

    Attributes:
        template: the text around a problem: by name, or a text with {prompt} in it; None: see `template_text`.
        tokenizer: a model's name or folder; its chat template counts the tokens of a prompt. None: no limit.
        max_prompt_tokens: training rows with longer prompts are dropped.
        against: evaluation sets that training rows must not hold: names, or files.
        as_published: answers, duplicates and leaks stay as they are published; they are counted all the same.
        copies: a copy of the hub's data sets on disk, to be read instead of the hub.
        strict: counts that are not the recorded ones end the run.
        force: make finished files again.
    """

    template: str | None = None
    tokenizer: str | None = None
    max_prompt_tokens: int = 1024
    against: tuple[str, ...] = ()
    as_published: bool = False
    copies: Path | None = None
    strict: bool = False
    force: bool = False


@dataclass(frozen=True)
class Outcome:
    """Outcome of `prepare`.

    Attributes:
        files: the entries of the report for the files asked for, by name.
        warnings: about the files together; each file has its own.
        report: the report for reading.
    """

    files: dict[str, dict[str, Any]]
    warnings: list[str]
    report: Path


def prepare(
    sources: Sequence[Source],
    output: Path,
    settings: Settings | None = None,
    *,
    group: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Make the files of some data sets, with report.json and report.md beside them.

    Evaluation sets come first. Training rows are held against those of the same call, and against `settings.against`;
    a training file also does not repeat the problems of the ones before it.

    Args:
        sources: what to prepare, as `find` gives it.
        output: the folder; made if it is not there.
        settings: see `Settings`.
        group: the name in `GROUPS` that they are, so that their count together is checked.
        say: is told what happens, in lines.

    Raises:
        UserError: data that cannot be reached or read, or does not have the columns, in one line; with
            `settings.strict` also counts that are not the recorded ones. Another process writes to the folder.
    """
    settings = settings or Settings()
    names = [source.file for source in sources]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            f"two of the data sets would be written to {twice}.parquet; prepare them into different folders"
        )
    if settings.max_prompt_tokens < 1:
        raise UserError(f"--max-prompt-tokens must be at least 1, got {settings.max_prompt_tokens}")
    with locked(output / ".lock"):
        return _prepare(sources, output, settings, group, say)


def _prepare(
    sources: Sequence[Source], output: Path, settings: Settings, group: str | None, say: Callable[[str], None]
) -> Outcome:
    report = read_report(output)
    evaluation = [source for source in sources if source.use == "evaluation"]
    training = [source for source in sources if source.use == "train"]
    against = {source.name: output / f"{source.file}.parquet" for source in evaluation}
    if training:
        against |= {name: _finished(name, output, report) for name in settings.against if name not in against}
    copies = None
    if settings.copies is not None:
        hub = [source.name for source in sources if source.kind == "hub"]
        hub += [name for name, path in against.items() if path is None and name in SOURCES]
        if settings.copies.is_file() and len(hub) > 1:
            needed = " and ".join(hub)
            raise UserError(f"--from {settings.copies} is one file, but {needed} are to be read; give a folder")
        copies = Copies(settings.copies, alone=len(hub) == 1)
    folder = _Folder(output, settings, copies, report, say)
    done = {source.file: _file(folder, source, Before()) for source in evaluation}
    if training:
        before = _held_against(folder, against)
        for source in training:
            done[source.file] = _file(folder, source, before)
            before = before.and_then(source, done[source.file], output / f"{source.file}.parquet")

    warnings = []
    if group is not None and GROUPS[group].training_rows and not any(source.size for source in sources):
        low, high = GROUPS[group].training_rows or (0, 0)
        total = sum(done[source.file]["rows"] for source in training)
        if not low <= total <= high:
            expected = f"expected {low:,} to {high:,} ({GROUPS[group].counted})"
            warnings.append(f"{group}: {counted(total, 'row')} to train on, {expected}")
        report["groups"][group] = {"training_rows": total, "warnings": warnings}
        write_report(report, output)
    for warning in warnings:
        if settings.strict:
            raise UserError(f"{warning}; --strict takes this for an error")
        say(f"warning: {warning}")
    return Outcome(done, warnings, output / "report.md")


@dataclass(frozen=True)
class _Folder:
    path: Path
    settings: Settings
    copies: Copies | None
    report: dict[str, Any]
    say: Callable[[str], None]


def _held_against(folder: _Folder, against: Mapping[str, Path | None]) -> Before:
    """Read the evaluation sets of these names, from prepared files if there is a path."""
    sets, hashes = [], []
    for name, path in against.items():
        found = evaluation_set(str(path) if path else name, copies=None if path else folder.copies)
        for warning in found.warnings:
            folder.say(f"warning: {warning}")
        sets.append((name, [row["problem"] for row in found.rows]))
        hashes.append(rows_hash({"problem": row["problem"]} for row in found.rows))
    if not sets:
        folder.say("training rows are not held against evaluation sets; --against aime24,aime25,amc23 does that")
    return Before(Leaks(sets), tuple(hashes))


def _finished(name: str, output: Path, report: Mapping[str, Any]) -> Path | None:
    """Return the finished evaluation set of the same folder, which saves a download."""
    entry = report["files"].get(SOURCES[name].file) if name in SOURCES else None
    if entry is None or (entry["settings"].get("source") or {}).get("size") is not None:
        return None
    path = output / entry["file"]
    return path if path.is_file() and file_hash(path) == entry["sha256"] else None


def _file(folder: _Folder, source: Source, before: Before) -> dict[str, Any]:
    """Make one file, or find it finished; returns its entry, which is in the report then."""
    settings, report, say = folder.settings, folder.report, folder.say
    path = folder.path / f"{source.file}.parquet"
    if source.kind == "file" and Path(source.hub).resolve() == path.resolve():
        raise UserError(f"{path} would be written over itself; choose another folder with -o")
    wanted = _wanted(folder, source, before)
    entry = report["files"].get(source.file)
    again = settings.force or not entry or entry["settings"] != wanted or (settings.strict and entry["warnings"])
    if not again and path.is_file() and file_hash(path) == entry["sha256"]:
        say(f"{source.name}: {path} is finished, {counted(entry['rows'], 'row')}")
        for warning in entry["warnings"]:
            say(f"warning: {warning}")
        return entry
    if settings.tokenizer is not None:
        token_counter(settings.tokenizer)  # before anything is read: it may not be there
    say(f"{source.name}: reading {source.hub}")
    rows, where = open_source(source, folder.copies)
    read, of_level, problems, findings = collect(source, rows, before, as_published=settings.as_published)
    if not read:
        raise UserError(f"{source.name} has no rows")
    prepared = [_prepared(source, problem, wanted["template"]) for problem in problems]
    prepared, lengths = measured(source, prepared, findings, settings.tokenizer, settings.max_prompt_tokens)
    if not prepared:
        shown = next((example for examples in findings.examples.values() for example in examples), {})
        like = f"; an answer is {shortened(shown['answer'])}" if shown.get("answer") else ""
        raise UserError(f"{source.name}: of {counted(read, 'row')} none is left ({_listed(findings.dropped)}){like}")
    warnings = count_warnings(source, read, of_level if source.levels else None)
    warnings += fault_warnings(source.name, findings.kept_though + findings.dropped)
    for what, count in findings.kept_though.items():
        if what.startswith("prompt longer"):
            warnings.append(f"{source.name}: {counted(count, 'row')}: {what}; verl will leave them out")
    if settings.strict and warnings:
        raise UserError(f"{warnings[0]}; --strict takes this for an error, and {path} is not written")
    _write(prepared, path)
    entry = {
        "file": path.name,
        "rows": len(prepared),
        "sha256": file_hash(path),
        "rows_sha256": rows_hash(prepared),
        "read": read,
        "dropped": dict(findings.dropped.most_common()),
        "kept_though": dict(findings.kept_though.most_common()),
        "corrected": dict(findings.corrected.most_common()),
        "warnings": warnings,
        "examples": findings.examples,
        "from": where,
        "prompt_tokens": {"median": statistics.median(lengths), "longest": max(lengths)} if lengths else None,
        "versions": {"bandpo": __version__, "pyarrow": pyarrow.__version__},
        "settings": wanted,
    }
    report["files"][source.file] = entry
    write_report(report, folder.path)
    say(f"{source.name}: {path}, {counted(len(prepared), 'row')} of {read:,}")
    for kind, key in (("dropped", "dropped"), ("found and kept", "kept_though"), ("put right", "corrected")):
        if entry[key]:
            say(f"  {kind}: {_listed(entry[key])}")
    for warning in warnings:
        say(f"warning: {warning}")
    return entry


def _wanted(folder: _Folder, source: Source, before: Before) -> dict[str, Any]:
    """Collect all facts that a file depends on, by which a finished one is known.

    What the hub has now is not asked.
    """
    settings, node = folder.settings, json.loads(json.dumps(dataclasses.asdict(source)))
    wanted = {
        "format": _FORMAT,
        "source": {key: value for key, value in node.items() if key not in _RECORDED},
        "template": template_text(settings.template, source),
        "tokenizer": settings.tokenizer,
        "max_prompt_tokens": settings.max_prompt_tokens if settings.tokenizer else None,
        "as_published": settings.as_published,
        "held_against": list(before.hashes),
    }
    if copied := files_on_disk(source, folder.copies):
        wanted["copied"] = [file_hash(path) for path in copied if path.is_file()]
    return wanted


_FORMAT = 2  # of a file and of its entry; another one is made again
_RECORDED = {"rows", "kept", "counted", "licence"}  # what is known of a source; the file does not depend on it


def _listed(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} {what}" for what, count in counts.items())


SCHEMA = pyarrow.schema(
    {
        "data_source": pyarrow.string(),
        "prompt": pyarrow.list_(pyarrow.struct({"role": pyarrow.string(), "content": pyarrow.string()})),
        "ability": pyarrow.string(),
        "reward_model": pyarrow.struct({"style": pyarrow.string(), "ground_truth": pyarrow.string()}),
        "extra_info": pyarrow.struct(
            {
                "split": pyarrow.string(),
                "index": pyarrow.int64(),  # the row's number in its source, from 0
                "id": pyarrow.string(),  # its name there
                "problem": pyarrow.string(),  # without instructions
                "source": pyarrow.string(),
            }
        ),
        "answer": pyarrow.string(),
    }
)


def _prepared(source: Source, problem: Problem, template: str) -> dict[str, Any]:
    return {
        "data_source": source.data_source,
        "prompt": messages_of(source, problem, template),
        "ability": "MATH",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {
            "split": source.split,
            "index": problem.index,
            "id": problem.identity,
            "problem": problem.text,
            "source": source.name if source.kind == "file" else source.hub,
        },
        "answer": problem.answer,
    }


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=SCHEMA), part)
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.replace(path)
