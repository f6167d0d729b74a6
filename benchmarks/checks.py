r"""What each check of the scorer `math` decides: its source is changed in one place, and every answer is graded again.

    python benchmarks/checks.py sets            # sets: the folder that benchmarks/reading.py describes
    python benchmarks/checks.py sets --write    # and write benchmarks/checks.csv

A check is an `if`, one side of an `and` or `or`, a word of a list, an entry of a table, or an alternative of a regular
expression. Answers with a verdict are graded without it: for final_answer.py and boxes.py whole texts (those of
benchmarks/tricky.yaml and up to 300 of each set), for the other files the tricky answers behind "Answer:". `stopped`
wrong ones would be rewarded without it, `gained` right ones refused; `lost` right ones would be read, `let_in` wrong
ones refused. `unknown` are generated answers (benchmarks/rewards.py) that would get another score.
A check that only loses is one to drop.
"""

import argparse
import ast
import itertools
import multiprocessing
import multiprocessing.pool
import random
import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import reading
import rewards
import scorers

from bandpo.rewards import equivalence, grading
from bandpo_runs.provenance import write_rows

FILES = ["quantities.py", "notation.py", "answers.py", "boxes.py", "final_answer.py", "grading.py"]
FOLDER = Path(grading.__file__).parent
COLUMNS = ["file", "line", "lines", "check", "stopped", "gained", "lost", "let_in", "unknown"]
READERS = ("boxes.py", "final_answer.py")  # tried on whole texts; the others on the tricky answers


class Case(NamedTuple):
    text: str
    gold: str
    right: int | None
    whole: bool


# ---- the answers


def cases(folder: Path) -> list[Case]:
    """Each with its verdict: 1, 0, or None where it is not known."""
    found: dict[tuple[str, str], Case] = {}
    rng = random.Random(0)
    for _name, _writing, rows in reading.sets(folder):
        for text, gold, right in rows if len(rows) < 300 else rng.sample(rows, 300):
            found[text, gold] = Case(text, gold, right, True)
    found |= {(c.text, c.gold): Case(c.text, c.gold, c.right, c.whole) for c in scorers.tricky("answer")}
    real = rewards.made(0)
    found |= {pair: Case(*pair, None, False) for chunk in range(2) for pair in rewards.generated(chunk, real)}
    return list(found.values())


# ---- the checks


class Check(NamedTuple):
    file: str
    line: int
    lines: int
    text: str
    source: str  # the file without it


def checks(file: str) -> Iterator[Check]:
    """Every one of a file, with what the file is without it."""
    source = (FOLDER / file).read_text(encoding="utf-8")
    tree = ast.parse(source)
    body = [node for node in tree.body if not _is_strict(node)]
    for top in body:
        for node in _nodes(top):
            for text, undo in _changes(node):
                lines = node.end_lineno - node.lineno + 1 if isinstance(node, ast.If) else 0
                yield Check(file, node.lineno, lines, text, ast.unparse(tree))
                undo()


def _nodes(top: Any) -> Iterator[Any]:
    """All of them but docstrings, annotations, messages of errors, and the parts of strings."""
    if isinstance(top, (ast.Raise, ast.arg)) or (isinstance(top, ast.Expr) and isinstance(top.value, ast.Constant)):
        return
    yield top
    if not isinstance(top, ast.JoinedStr):
        for name, child in ast.iter_fields(top):
            for each in child if isinstance(child, list) else [child]:
                if isinstance(each, ast.AST) and name not in ("annotation", "returns"):
                    yield from _nodes(each)


def _is_strict(node: ast.AST) -> bool:
    """Of `dapo-strict`, which is another scorer."""
    names = [node.name] if isinstance(node, ast.FunctionDef) else [ast.unparse(t) for t in getattr(node, "targets", [])]
    return any(re.match(r"_dapo|_STRICT|_REPLACED|_REMOVED|_minerva|_INVALID|_WARM", name) for name in names)


def _changes(node: Any) -> Iterator[tuple[str, Any]]:
    """(what is taken away, how to put it back) of one node, which is changed in place."""
    if isinstance(node, (ast.If, ast.IfExp)):
        test, node.test = node.test, ast.Constant(False)
        yield f"if {ast.unparse(test)}", lambda: setattr(node, "test", test)
    if isinstance(node, ast.BoolOp):
        for value in (all_of := node.values):
            node.values = [other for other in all_of if other is not value]
            operator = "and" if isinstance(node.op, ast.And) else "or"
            yield f"{operator} {ast.unparse(value)}", lambda: setattr(node, "values", all_of)
    if isinstance(node, (ast.List, ast.Set, ast.Tuple)) and len(node.elts) > 2:
        for entry in (entries := node.elts):
            node.elts = [other for other in entries if other is not entry]
            yield ast.unparse(entry), lambda: setattr(node, "elts", entries)
    if isinstance(node, ast.Dict) and len(node.keys) > 2:
        keys, values = node.keys, node.values
        for i, key in enumerate(keys):
            node.keys, node.values = keys[:i] + keys[i + 1 :], values[:i] + values[i + 1 :]
            yield f"{ast.unparse(key)}: {ast.unparse(values[i])}", lambda: _put_back(node, keys, values)
    if isinstance(node, ast.Attribute) and node.attr == "split" and isinstance(node.value, ast.Constant):
        yield from _in_string(node.value, _words)
    if isinstance(node, (ast.Constant, ast.JoinedStr)):
        yield from _in_string(node, _alternatives)


def _put_back(node: Any, keys: Any, values: Any) -> None:
    node.keys, node.values = keys, values


def _in_string(node: Any, cut: Any) -> Iterator[tuple[str, Any]]:
    """Without one word of a list of words, or one alternative of a regular expression."""
    inner = [part for part in node.values if isinstance(part, ast.FormattedValue)] if hasattr(node, "values") else []
    parts = node.values if hasattr(node, "values") else [node]
    text, at = "", iter(range(len(inner)))
    for part in parts:
        text += f"\0{next(at)}\0" if isinstance(part, ast.FormattedValue) else str(getattr(part, "value", ""))
    if not isinstance(getattr(node, "value", ""), str):
        return
    before = node.__dict__.copy()
    for taken, rest in cut(text):
        pieces = re.split(r"\0(\d+)\0", rest)
        values = [inner[int(p)] if i % 2 else ast.Constant(p) for i, p in enumerate(pieces)]
        if isinstance(node, ast.Constant):
            node.value = rest
        else:
            node.values = values
        shown = re.sub(r"\0(\d+)\0", lambda found: "{" + ast.unparse(inner[int(found[1])].value) + "}", taken)
        yield shown, lambda: node.__dict__.update(before)


def _words(text: str) -> Iterator[tuple[str, str]]:
    for found in re.finditer(r"\S+", text):
        yield found[0], text[: found.start()] + text[found.end() :]


def _alternatives(pattern: str) -> Iterator[tuple[str, str]]:
    """(an alternative, the pattern without it) for every one of every group."""
    groups: list[list[int]] = [[0]]
    spans: list[list[int]] = []
    i, in_class = 0, False
    while i < len(pattern):
        if pattern[i] == "\\":
            i += 2
            continue
        if in_class:
            in_class = pattern[i] != "]"
        elif pattern[i] == "[":
            in_class = True
            i += pattern[i + 1 : i + 2] == "]" or 2 * (pattern[i + 1 : i + 3] == "^]")
        elif pattern[i] == "(":
            opening = re.compile(r"\((?:\?(?:P<\w+>|<?[=!:]|[a-z-]*:|[a-z]+\)))?").match(pattern, i)
            i = opening.end() - 1 if opening else i
            if pattern[i] != ")":
                groups.append([i + 1])
        elif pattern[i] == "|":
            groups[-1].append(i)
        elif pattern[i] == ")" and len(groups) > 1:
            spans.append([*groups.pop(), i])
        i += 1
    spans.append([*groups.pop(), len(pattern)])
    for cuts in spans:
        for start, end in itertools.pairwise(cuts) if len(cuts) > 2 else ():
            first = start == cuts[0]
            yield pattern[start + (not first) : end], pattern[:start] + pattern[end + first :]


# ---- what they decide

_CACHE: dict[tuple[str, ...], Any] = {}
_CASES: list[Case] = []
_BASE: list[int] = []


class _Compare:
    """In place of the workers: compares here, and remembers."""

    def map(self, tasks: list[list[str]]) -> list[Any]:
        return [self._one(tuple(task)) for task in tasks]

    def _one(self, task: tuple[str, ...]) -> Any:
        if task not in _CACHE:
            signal.setitimer(signal.ITIMER_VIRTUAL, 1)
            try:
                _CACHE[task] = equivalence.compare(list(task))
            except (TimeoutError, MemoryError):
                _CACHE[task] = [False, None]
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        return _CACHE[task]


def _stop(*_: Any) -> None:
    raise TimeoutError


def _graded(some: list[Case]) -> list[int]:
    pool, grading._pool = grading._pool, _Compare  # type: ignore[assignment]
    try:
        return [int(g.score) for g in grading.grade([c[0] for c in some], [c[1] for c in some])]
    finally:
        grading._pool = pool


def _without(check: Check) -> dict[str, Any]:
    """Grade all in a process of its own in which the check is gone."""
    receive, send = multiprocessing.Pipe(duplex=False)
    words = re.findall("[a-z]{2,}", check.text.casefold()) if re.fullmatch(r"'?[A-Za-z]+'?(: .*)?", check.text) else []
    some = [i for i, c in enumerate(_CASES) if not words or any(w in f"{c[0]} {c[1]}".casefold() for w in words)]
    some = [i for i in some if _CASES[i].whole == (check.file in READERS)]
    child = multiprocessing.get_context("fork").Process(target=_graded_without, args=(check, some, send))
    child.start()
    scores = receive.recv() if receive.poll(300) else None
    child.kill()
    child.join()
    counts: dict[str, Any] = dict.fromkeys(COLUMNS[4:], 0)
    if isinstance(scores, list):
        for i, after in zip(some, scores, strict=True):
            right, before = _CASES[i][2], _BASE[i]
            if before != after:
                name = "unknown" if right is None else [["let_in", "stopped"], ["gained", "lost"]][right][after]
                counts[name] += 1
    else:
        counts["stopped"] = "fails"
    line = [check.file, check.line, check.lines, check.text]
    return dict(zip(COLUMNS, [*line, *counts.values()], strict=True))


def _graded_without(check: Check, some: list[int], send: Any) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    try:
        for file in FILES[FILES.index(check.file) :]:
            module = sys.modules[f"bandpo.rewards.{file[:-3]}"]
            source = check.source if file == check.file else (FOLDER / file).read_text(encoding="utf-8")
            exec(compile(source, file, "exec"), module.__dict__)
        send.send(_graded([_CASES[i] for i in some]))
    except Exception as error:
        send.send(repr(error))


def measure(folder: Path, only: str) -> list[dict[str, Any]]:
    global _CASES, _BASE
    signal.signal(signal.SIGVTALRM, _stop)
    grading._check_math_verify()
    _CASES = cases(folder)
    _BASE = _graded(_CASES)
    print(f"{len(_CASES)} answers", flush=True)
    found = []
    with multiprocessing.pool.ThreadPool(2) as pool:
        for row in pool.imap(_without, (check for file in FILES for check in checks(file) if only in file)):
            found.append(row)
            print(*row.values(), sep="\t", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a file")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    found = measure(args.folder, args.only)
    if args.write:
        write_rows(Path(__file__).with_suffix(".csv"), found)


if __name__ == "__main__":
    main()
