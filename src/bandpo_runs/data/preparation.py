"""`bandpo data prepare`: from a data set as it is published to a file to train on, with an account of every change.

A file is made in one pass (`collect`: what is read, corrected, and dropped for which reason), cut to the longest
prompt, and put into its place in one step. Its account, with the settings, lies in the Parquet file itself, so that a
file with the same settings is not made again, and a run that was killed goes on with the file it was at. `report.md` is
written from the accounts of all files in the folder.

One schema serves both trainers: verl reads `data_source`, `prompt`, `ability`, `reward_model` and `extra_info`; TRL
reads `prompt` and `answer`, and gives the other columns to the reward.
"""

from __future__ import annotations

import dataclasses
import json
import os
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
from ..files.writing import write_atomically
from .leaks import Leaks
from .problems import Problem, fault_warnings, messages_of, template_text
from .question_sets import evaluation_set
from .questions import Content, fingerprint
from .readers import file_hash, files_on_disk, open_source
from .selection import Before, collect, measured, token_counter
from .sources import Source, count_warnings


@dataclass(frozen=True)
class Settings:
    """Settings of the preparation.

    Attributes:
        template: the text around a problem: by name, or a text with {prompt} in it; None: see `template_text`.
        tokenizer: a model's name or folder; its chat template counts the tokens of a prompt. None: no limit.
        max_prompt_tokens: training rows with longer prompts are dropped.
        against: evaluation sets that training rows must not hold: names, or files.
        as_published: answers, duplicates and leaks stay as they are published; they are counted all the same.
        copies: folder with copies of the hub's data sets, to be read instead of the hub.
    """

    template: str | None = None
    tokenizer: str | None = None
    max_prompt_tokens: int = 1024
    against: tuple[str, ...] = ()
    as_published: bool = False
    copies: Path | None = None


def prepare(
    sources: Sequence[Source],
    output: Path,
    settings: Settings | None = None,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, dict[str, Any]]:
    """Make the files of some data sets, with report.md beside them; returns their accounts, by name of the file.

    Evaluation sets come first. Training rows are held against those of the same call, and against `settings.against`;
    a training file also does not repeat the problems of the ones before it.

    Args:
        sources: what to prepare, as `find` gives it.
        output: the folder; made if it is not there.
        settings: see `Settings`.
        say: is told what happens, in lines.

    Raises:
        UserError: data that cannot be reached or read, or does not have the columns, in one line; or another process
            writes to the folder.
    """
    settings = settings or Settings()
    names = [source.file for source in sources]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(
            f"two of the data sets would be written to {twice}.parquet; prepare them into different folders"
        )
    if settings.max_prompt_tokens < 1:
        raise UserError(f"--max-prompt-tokens must be at least 1, got {settings.max_prompt_tokens}")
    paths = {source.name: output / f"{source.file}.parquet" for source in sources}
    done: dict[str, dict[str, Any]] = {}
    before = Before()
    with locked(output / ".lock"):
        for source in sorted(sources, key=lambda source: source.use != "evaluation"):
            if source.use == "train" and not before.hashes:
                own = {each.name: str(paths[each.name]) for each in sources if each.use == "evaluation"}
                before = _held_against({name: name for name in settings.against} | own, settings, say)
            account = _file(paths[source.name], source, settings, before, say)
            done[source.file] = account
            if source.use == "train":
                before = before.and_then(source, paths[source.name])
        accounts = {path: account_of(path) for path in sorted(output.glob("*.parquet"))}
        report = _report({path: account for path, account in accounts.items() if account})
        write_atomically(output / "report.md", report.encode())
    return done


def _asked(content: Content) -> str:
    """Return the question itself: a text, or the last message."""
    return content if isinstance(content, str) else content[-1]["content"]


def _held_against(against: Mapping[str, str], settings: Settings, say: Callable[[str], None]) -> Before:
    """Read the evaluation sets of these names."""
    sets, hashes = [], []
    for name, place in against.items():
        found = evaluation_set(place, template="plain", copies=settings.copies)
        for warning in found.warnings:
            say(f"warning: {warning}")
        sets.append((name, [_asked(question.content) for question in found.questions]))
        hashes.append(fingerprint(found.questions))
    if not sets:
        say("training rows are not held against evaluation sets; --against aime24,aime25,amc23 does that")
    return Before(Leaks(sets), tuple(hashes))


def _file(path: Path, source: Source, settings: Settings, before: Before, say: Callable[[str], None]) -> dict[str, Any]:
    """Make one file, or find it finished; returns its account."""
    if source.kind == "file" and Path(source.hub).resolve() == path.resolve():
        raise UserError(f"{path} would be written over itself; choose another folder with -o")
    wanted = _wanted(source, settings, before)
    account = account_of(path)
    if account and account.get("settings") == wanted:
        say(f"{source.name}: {path} is finished, {counted(account['rows'], 'row')}")
    else:
        account = _made(path, source, settings, before, wanted, say)
        say(f"{source.name}: {path}, {counted(account['rows'], 'row')} of {account['read']:,}")
        for kind, counts in _counts(account).items():
            say(f"  {kind.lower()}: {_listed(counts)}")
    for warning in account["warnings"]:
        say(f"warning: {warning}")
    return account


def _made(
    path: Path, source: Source, settings: Settings, before: Before, wanted: Any, say: Callable[[str], None]
) -> dict[str, Any]:
    if settings.tokenizer is not None:
        token_counter(settings.tokenizer)  # before anything is read: it may not be there
    say(f"{source.name}: reading {source.hub}")
    rows, where = open_source(source, settings.copies)
    read, of_level, problems, findings = collect(source, rows, before, as_published=settings.as_published)
    if not read:
        raise UserError(f"{source.name} has no rows")
    prepared = [_prepared(source, problem, wanted["template"]) for problem in problems]
    prepared = measured(source, prepared, findings, settings.tokenizer, settings.max_prompt_tokens)
    if not prepared:
        shown = next((example for examples in findings.examples.values() for example in examples), {})
        like = f"; an answer is {shortened(shown['answer'])}" if shown.get("answer") else ""
        raise UserError(f"{source.name}: of {counted(read, 'row')} none is left ({_listed(findings.dropped)}){like}")
    warnings = count_warnings(source, read, of_level if source.levels else None)
    warnings += fault_warnings(source.name, findings.kept_though + findings.dropped)
    account = {
        "rows": len(prepared),
        "read": read,
        "dropped": dict(findings.dropped.most_common()),
        "kept_though": dict(findings.kept_though.most_common()),
        "corrected": dict(findings.corrected.most_common()),
        "warnings": warnings,
        "examples": findings.examples,
        "from": where,
        "version": __version__,
        "settings": wanted,
    }
    _write(prepared, account, path)
    return account


def _wanted(source: Source, settings: Settings, before: Before) -> dict[str, Any]:
    """Collect all facts that a file depends on, by which a finished one is known.

    What the hub has now is not asked.
    """
    node = {key: value for key, value in dataclasses.asdict(source).items() if key not in ("rows", "kept")}
    wanted = {
        "format": 3,  # of a file and of its account; another one is made again
        "source": node,
        "template": template_text(settings.template, source),
        "tokenizer": settings.tokenizer,
        "max_prompt_tokens": settings.max_prompt_tokens if settings.tokenizer else None,
        "as_published": settings.as_published,
        "held_against": list(before.hashes),
        "copied": [file_hash(path) for path in files_on_disk(source, settings.copies) if path.is_file()],
    }
    return json.loads(json.dumps(wanted))


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


def _write(rows: list[dict[str, Any]], account: Mapping[str, Any], path: Path) -> None:
    """Write the file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    schema = SCHEMA.with_metadata({"bandpo": json.dumps(account)})
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), part)
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    part.replace(path)


def account_of(path: Path) -> dict[str, Any] | None:
    """Read the account in a prepared file; None if there is no such file, it is damaged, or another program's."""
    if not path.is_file():
        return None
    try:
        return json.loads((pyarrow.parquet.read_schema(path).metadata or {})[b"bandpo"])
    except (OSError, KeyError, ValueError, pyarrow.ArrowException):
        return None


# -------------------------------------------------------------------------------------------------------------- report
def _report(accounts: Mapping[Path, Mapping[str, Any]]) -> str:
    """Write what became of every row of the files in a folder, as Markdown."""
    lines = [
        "# Prepared data",
        "",
        "| file | read | rows | dropped | put right | SHA-256 |",
        "|---|---|---|---|---|---|",
    ]
    for path, account in accounts.items():
        numbers = [account["read"], account["rows"], sum(account["dropped"].values())]
        numbers.append(sum(account["corrected"].values()))
        lines.append(f"| {path.name} | {' | '.join(f'{each:,}' for each in numbers)} | `{file_hash(path)}` |")
    for path, account in accounts.items():
        where = account["from"]
        files = [f"`{name}` ({digest[:12]})" for name, digest in where.get("files", {}).items()]
        hub = [f"{key} {value}" for key, value in where.items() if value is not None]
        lines += ["", f"## {path.name}", "", f"From {', '.join(files or hub)}."]
        lines += [line for warning in account["warnings"] for line in ("", f"**Warning**: {warning}.")]
        for title, counts in _counts(account).items():
            lines += ["", f"{title}:", ""]
            for what, count in counts.items():
                lines.append(f"- {count:,} x {what}")
                lines += [f"    - {_example(example)}" for example in account["examples"].get(what, ())]
    return "\n".join(lines) + "\n"


def _counts(account: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    titles = {"Dropped": "dropped", "Found and kept": "kept_though", "Put right": "corrected"}
    return {title: account[key] for title, key in titles.items() if account[key]}


def _listed(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} {what}" for what, count in counts.items())


def _example(example: Mapping[str, Any]) -> str:
    quoted = {key: " ".join(str(value).replace("`", " ").split()) for key, value in example.items()}
    return ", ".join(f"{key.replace('_', ' ')} `{text}`" for key, text in quoted.items())
