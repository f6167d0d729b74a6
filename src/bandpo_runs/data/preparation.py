"""Make the files of `bandpo data prepare`. Every change to a published data set is counted.

A file is made in one pass (`collect`: what is read, corrected, and dropped for which reason), and put into its place in
one step. Its account lies in the Parquet file itself, and `report.md` is written from
the accounts of all files in the folder.

One schema serves both trainers: verl reads `data_source`, `prompt`, `ability`, `reward_model` and `extra_info`; TRL
reads `prompt` and `answer`, and gives the other columns to the reward.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from bandpo import __version__
from bandpo.errors import UserError, counted

from ..files.writing import check_own, locked, write_atomically
from ..progress import Progress, lines
from .leaks import Leaks, same_text
from .problems import Problem, messages_of, problem_of, quoted, template_text, without_looks
from .question_sets import evaluation_set
from .readers import Rows, file_hash, open_source, value_at
from .sources import SOURCES, Source, warnings_of

_Say = Callable[[str], None]
Earlier = dict[str, tuple[str, str]]  # by a problem's text: its answer, and the training file that has it


@dataclass(frozen=True)
class Settings:
    """Hold the settings of the preparation.

    Attributes:
        template: the text around a problem: by name, or a text with {prompt} in it; None: see `template_text`.
        against: evaluation sets that training rows must not hold: names, or files.
        as_published: answers, duplicates and leaks stay as they are published; they are counted all the same.
        copies: folder with copies of the hub's data sets, to be read instead of the hub.
    """

    template: str | None = None
    against: tuple[str, ...] = ()
    as_published: bool = False
    copies: Path | None = None


def prepare(
    sources: Sequence[Source],
    output: Path,
    settings: Settings | None = None,
    *,
    say: _Say = lambda line: None,
) -> dict[str, dict[str, Any]]:
    """Make the files of some data sets, with a report.md. Returns their accounts, by name of the file.

    Evaluation sets come first. Training rows are held against those of the same call, and against `settings.against`;
    a training file also does not repeat the problems of the ones before it. `say` is told what happens, in lines.

    Raises:
        UserError: data that cannot be reached or read, or does not have the columns, in one line; or another process
            writes to the folder.
    """
    settings = settings or Settings()
    names = [source.file for source in sources]
    if len(set(names)) < len(names):
        twice = max(names, key=names.count)
        raise UserError(
            f"two data sets would be written to {twice}.parquet; prepare them into different folders"
        )
    done: dict[str, dict[str, Any]] = {}
    against = {name: name for name in settings.against}
    leaks, earlier = Leaks([]), Earlier()
    check_own(output, "report.md")
    with locked(output / ".lock"):
        for source in sorted(sources, key=lambda source: source.use != "evaluation"):
            path = output / f"{source.file}.parquet"
            if source.use == "train" and not earlier:
                leaks = _leaks(against, settings.copies, say)
            done[source.file] = _make(path, source, settings, leaks, earlier, say)
            if source.use == "evaluation":
                against[source.name] = str(path)
        accounts = {path: account_of(path) for path in sorted(output.glob("*.parquet"))}
        report = _report({path: account for path, account in accounts.items() if account})
        write_atomically(output / "report.md", report.encode())
    return done


def _leaks(against: Mapping[str, str], copies: Path | None, say: _Say) -> Leaks:
    """Read the evaluation sets of these names."""
    sets: list[tuple[str, list[str]]] = []
    for name, place in against.items():
        held_out = evaluation_set(place, template="plain", copies=copies)
        for warning in held_out.warnings:
            say(f"warning: {warning}")
        contents = [question.content for question in held_out.questions]
        sets.append((name, [text if isinstance(text, str) else text[-1]["content"] for text in contents]))
    if not sets:
        say("training rows are not held against evaluation sets; --against aime24,aime25,amc23 does that")
    return Leaks(sets)


def _make(
    path: Path,
    source: Source,
    settings: Settings,
    leaks: Leaks,
    earlier: Earlier,
    say: _Say,
) -> dict[str, Any]:
    """Make one file, whole or not at all, and return its account. The problems of a training file go to `earlier`."""
    if source.kind == "file" and Path(source.hub).resolve() == path.resolve():
        raise UserError(f"{path} would be written over itself; choose another folder with -o")
    say(f"{source.name}: reading {source.hub}")
    template = template_text(settings.template, source.name in SOURCES)
    rows, where = open_source(source, settings.copies)
    problems, findings = collect(source, rows, leaks, earlier, as_published=settings.as_published)
    prepared, stays = [], source.use == "evaluation"
    for problem in problems:
        prepared.append(_prepared(source, problem, template))
        if not stays:
            earlier.setdefault(same_text(problem.full_text), (problem.answer, source.name))
    if not prepared:
        why = "; ".join(
            [_listed(findings.dropped), *(f"e.g. {each[0]}" for each in findings.examples.values())]
        )
        raise UserError(f"{source.name}: of {counted(findings.read, 'row')} none is left ({why})")
    warnings = warnings_of(source, findings.read, findings.dropped + findings.kept_though)
    account = {
        "rows": len(prepared),
        **vars(findings),
        "warnings": warnings,
        "from": where,
        "version": __version__,
        "settings": {name: str(value) for name, value in vars(settings).items()},
    }
    _write(prepared, account, path)
    say(f"{source.name}: {path}, {counted(len(prepared), 'row')} of {findings.read:,}")
    for kind, counts in _counts(account).items():
        say(f"  {kind.lower()}: {_listed(counts)}")
    for warning in warnings:
        say(f"warning: {warning}")
    return account


_CONTRADICTION = "same problem with different answers"


@dataclass
class Findings:
    """Record the changes to a file's rows. They are counts, and the first few examples of each kind.

    With `stays`, rows with a fault stay, if they can be used at all, and are counted in `kept_though`.
    """

    stays: bool
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    kept_though: Counter[str] = field(default_factory=Counter)
    corrected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def note(self, counts: Counter[str], what: str, problem: Problem, more: str = "") -> None:
        """Count a finding. Its example has the row's number, the problem's text and `more`."""
        counts[what] += 1
        examples = self.examples.setdefault(what, [])
        if len(examples) < 3:
            examples.append(f"row {problem.index}, problem {quoted(problem.text)}{more and ', '}{more}")

    def fault(self, what: str, problem: Problem, more: str) -> None:
        """Count a row that is dropped, or stays with a fault."""
        self.note(self.kept_though if self.stays else self.dropped, what, problem, more)


def collect(
    source: Source, rows: Rows, leaks: Leaks, earlier: Earlier, *, as_published: bool
) -> tuple[list[Problem], Findings]:
    """Select rows in one pass: those to keep, and why the others are not kept.

    Of an evaluation set, and `as_published`, duplicates, leaks and doubtful answers stay, and are counted all the same.
    """
    findings = Findings(stays=source.use == "evaluation" or as_published)
    first: dict[str, Problem | str] = {}  # by text: its first problem, or why none of them is kept
    selected: dict[int, Problem] = {}
    with Progress("rows", title=source.name, pause=10.0, console=lines(stderr=True)) as progress:
        for index, row in enumerate(rows):
            progress.update(index)
            findings.read = index + 1
            if source.levels is not None and row.get("level") not in range(
                source.levels[0], source.levels[1] + 1
            ):
                findings.dropped["level outside {} to {}".format(*source.levels)] += 1
                continue
            problem = problem_of(source, row, index, padded=as_published)
            if problem.fault is not None:
                gold = f"answer {quoted(value_at(row, source.answer))}"
                if not (findings.stays and problem.usable):
                    findings.note(findings.dropped, problem.fault, problem, gold)
                    continue
                findings.fault(problem.fault, problem, gold)
            for change, shown in problem.changes:
                findings.note(findings.corrected, change, problem, shown)
            if source.integers and not re.fullmatch(
                r"[-+]?[0-9]+", problem.answer
            ):  # as scorers read one
                more = f"answer {quoted(problem.answer)}"
                findings.note(findings.kept_though, "answer is not an integer", problem, more)
            text = same_text(problem.full_text)
            what, more = _objection(problem, leaks, earlier.get(text), first.get(text))
            if what is not None:
                findings.fault(what, problem, more)
            if findings.stays or what is None:
                selected[index] = problem
                first.setdefault(text, problem)
                continue
            other = first.get(text)
            # Nobody here can say which answer is right.
            if what == _CONTRADICTION and isinstance(other, Problem):
                findings.fault(what, other, f"answer {quoted(other.answer)}")
                del selected[other.index]
            if what != "duplicate":
                first[text] = what
    return list(selected.values()), findings


def _objection(
    problem: Problem, leaks: Leaks, earlier: tuple[str, str] | None, same: Problem | str | None
) -> tuple[str | None, str]:
    """Say what speaks against a row, with an example. `same` says what became of rows with the same text."""
    answer = f"answer {quoted(problem.answer)}"
    if earlier is not None:
        return f"same problem as in {earlier[1]}", f"{answer}, there {quoted(earlier[0])}"
    if isinstance(same, str):
        return same, answer
    if same is not None:
        return (
            "duplicate"
            if without_looks(same.answer) == without_looks(problem.answer)
            else _CONTRADICTION,
            f"{answer}, of row {same.index}",
        )
    texts = dict.fromkeys([problem.text, problem.full_text])
    leak = next(filter(None, map(leaks.find, texts)), None)
    if leak is not None:
        return (
            f"holds a problem of {leak.name}",
            f"evaluation row {leak.row}, share {leak.share:.2f}, holds {quoted(leak.problem)}",
        )
    return None, ""


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
            "problem": problem.text,
            "source": source.name if source.kind == "file" else source.hub,
        },
        "answer": problem.answer,
    }


def _write(rows: list[dict[str, Any]], account: Mapping[str, Any], path: Path) -> None:
    try:
        table = pyarrow.Table.from_pylist(
            rows, schema=SCHEMA.with_metadata({"bandpo": json.dumps(account)})
        )
    except UnicodeEncodeError as error:  # of half a character, which no file can hold
        raise UserError(f"{path}: {error}") from None
    written = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table, written)
    write_atomically(path, written.getvalue().to_pybytes())


def account_of(path: Path) -> dict[str, Any] | None:
    """Read the account in a prepared file. None if it is damaged, or another program's."""
    try:
        return json.loads((pyarrow.parquet.read_schema(path).metadata or {})[b"bandpo"])
    except (OSError, KeyError, ValueError, pyarrow.ArrowException):
        return None


def _report(accounts: Mapping[Path, Mapping[str, Any]]) -> str:
    """Write what became of every row of the files in a folder, as Markdown."""
    text = [
        "# Prepared data",
        "",
        "| file | read | rows | dropped | put right | SHA-256 |",
        "|---" * 6 + "|",
    ]
    for path, account in accounts.items():
        sums = [sum(account[kind].values()) for kind in ("dropped", "corrected")]
        numbers = " | ".join(f"{each:,}" for each in (account["read"], account["rows"], *sums))
        text.append(f"| {path.name} | {numbers} | `{file_hash(path)}` |")
    for path, account in accounts.items():
        where = account["from"]
        files = [f"`{name}` ({digest[:12]})" for name, digest in where.get("files", {}).items()]
        hub = [f"{key} {value}" for key, value in where.items() if value is not None]
        text += ["", f"## {path.name}", "", f"From {', '.join(files or hub)}."]
        text += [line for warning in account["warnings"] for line in ("", f"**Warning**: {warning}.")]
        for title, counts in _counts(account).items():
            text += ["", f"{title}:", ""]
            for what, count in counts.items():
                text.append(f"- {count:,} x {what}")
                text += [f"    - {example}" for example in account["examples"].get(what, ())]
    return "\n".join(text) + "\n"


def _counts(account: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    titles = {
        "Dropped": "dropped",
        "Found and kept": "kept_though",
        "Put right": "corrected",
    }
    return {title: account[key] for title, key in titles.items() if account.get(key)}


def _listed(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{count:,} {what}" for what, count in counts.items())
