"""Nothing is lost and nothing is there twice, whenever a command is killed: kills at random moments, and what was left.

    python benchmarks/kills.py [KIND ...] [--n 300]    # train, eval, prepare, lab, train2; n kills, shared out
    python benchmarks/kills.py --write                 # also a row a kind in benchmarks/kills.csv

Each kind is a small command. It runs once without a kill. Then it is started in a new folder, killed at a random moment
of the time that it takes (three in four by KILL, else by TERM or HUP), and started again, until it comes to its end;
what it leaves must be what the first run left, byte for byte. After each kill no process may be left of it. `train2` is
`bandpo train` on two processes, of which one or all are killed.

Kills that are in the folder (-o) are not repeated, so the same command goes on where it was stopped. Exits with 1 if
anything is wrong.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "benchmarks" / "kills.csv"
SHARES = {"train": 90, "eval": 70, "prepare": 60, "lab": 40, "train2": 40}
WRONG = ("lost", "doubled", "differing", "left", "refused", "codes", "orphans")
COLUMNS = ["kind", "kills", "kill", "term", "hup", "runs", "fell", *WRONG, "seed", "commit"]
MARK = "BANDPO_KILLS"  # in the environment of everything that is started
SCRIPT = "import sys\nfrom bandpo_runs.cli import main\nif __name__ == '__main__':\n    sys.exit(main(sys.argv[1:]))\n"


@dataclass(frozen=True)
class Kind:
    """A command and what it leaves.

    Attributes:
        arguments: of `bandpo`, to write into a folder; going on or not.
        compared: patterns of files that must be the same, byte for byte.
        keys: of the rows in a file of JSON lines, to tell what is lost and what is there twice.
        phase: where a kill fell, by what is in the folder.
        forked: from this process, which has imported everything; else started as a user does.
        processes: of torchrun.
    """

    arguments: Callable[[Path, bool], list[str]]
    compared: tuple[str, ...]
    keys: Callable[[Path], Iterator[Any]]
    phase: Callable[[Path], str]
    forked: bool = True
    processes: int = 1


# ------------------------------------------------------------------------------------------------------------ the kinds
def kinds(home: Path) -> dict[str, Kind]:
    """The commands, with their model, rows and recipe in `home`, which are made if they are not there."""
    sys.path.insert(0, str(ROOT / "tests"))  # their model and recipe; workers import the reward by name
    import recipe
    import yaml

    from bandpo_runs import toy

    if not (home / "ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        recipe.make(home)
        (home / "start.py").write_text(SCRIPT)
        for number in range(4):
            rows = [{"question": f"What is {i} + {number}?", "answer": str(i + number)} for i in range(200)]
            (home / f"sums{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        start = toy.WarmStart(toy.SCENES["storm"].p_work, 0)
        skill = {"p_work": 0.3, "right_if_work": 0.4, "steps": 600}
        toy.save_start(start.folder, toy.fresh_model(0), skill)  # its training is not part of the runs
        (home / "ready").touch()

    def train(folder: Path, again: bool) -> list[str]:
        file = home / "recipe.yaml"
        node = recipe.node(home, folder, rounds=8, trainer={"save_total_limit": 1})
        file.write_text(yaml.safe_dump(node))
        return ["train", str(file), *(["--resume"] if again else [])]

    def evaluate(folder: Path, again: bool) -> list[str]:
        options = ["--no-chat", "--scorer", "exact", "--max-tokens", "6", "-n", "16", "--batch-size", "4"]
        return ["eval", str(home / "model"), "--data", str(home / "rows.jsonl"), "-o", str(folder), *options]

    def prepare(folder: Path, again: bool) -> list[str]:
        files = [str(home / f"sums{number}.jsonl") for number in range(4)]
        return ["data", "prepare", *files, "--prompt", "question", "--answer", "answer", "-o", str(folder)]

    def compare(folder: Path, again: bool) -> list[str]:
        options = ["--seeds", "1", "--rounds", "12", "--jobs", "2", "-o", str(folder)]
        again_options = ["--resume"] if again else []
        return ["lab", "--scene", "storm", "--methods", "grpo,band-kl", *options, *again_options]

    run = ("config.yaml", "metrics.jsonl", "model/*.safetensors", "model/*.json")
    samples = ("prompts.jsonl", "samples.jsonl", "grades-exact.jsonl")
    both = Kind(train, run, lambda folder: rows_of(folder, "metrics.jsonl", "step"), phase_of_run)
    return {
        "train": both,
        "eval": Kind(
            evaluate, samples, lambda folder: rows_of(folder, "*s*.jsonl", "data", "prompt", "sample"), phase_of_eval
        ),
        "prepare": Kind(prepare, ("*.parquet", "report.*"), names, phase_of_prepare),
        "lab": Kind(
            compare,
            tuple(f"storm/*/*/{pattern}" for pattern in run),
            lambda folder: rows_of(folder, "storm/*/*/metrics.jsonl", "step"),
            lambda folder: (
                "+".join(sorted({phase_of_run(path.parent) for path in folder.glob("storm/*/*/config.yaml")}))
                or "start"
            ),
            forked=False,
        ),
        "train2": Kind(both.arguments, both.compared, both.keys, both.phase, forked=False, processes=2),
    }


def rows_of(folder: Path, pattern: str, *columns: str) -> Iterator[Any]:
    for path in sorted(folder.glob(pattern)):
        for line in path.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                yield str(path.relative_to(folder)), line
                continue
            # An evaluation in the middle has the step of a row before it, and other columns.
            yield str(path.relative_to(folder)), *(row.get(column) for column in columns), "eval/reward" in row


def names(folder: Path) -> Iterator[Any]:
    yield from (path.name for path in folder.iterdir())


def phase_of_run(folder: Path) -> str:
    checkpoints = list(folder.glob("checkpoints/checkpoint-*"))
    if not (folder / "config.yaml").exists():
        return "start"
    if any(not (path / "bandpo.json").exists() for path in checkpoints):
        return "in a checkpoint"
    if (folder / "model").exists():
        return "in the model" if b'"finished": false' in (folder / "run.json").read_bytes() else "after the end"
    return f"after {len(checkpoints)} checkpoints" if checkpoints else "before a checkpoint"


def phase_of_eval(folder: Path) -> str:
    file = folder / "samples.jsonl"
    if (folder / "grades-exact.jsonl").exists():
        return "grading"
    content = file.read_bytes() if file.exists() else b""
    return "start" if not content else "sampling" if content.endswith(b"\n") else "in a sample"


def phase_of_prepare(folder: Path) -> str:
    files = list(folder.glob("*.parquet"))
    return f"{'in' if list(folder.glob('.*.part')) else 'after'} {len(files)} files" if files else "start"


# ---------------------------------------------------------------------------------------------------------- one process
class Command:
    """A command that runs, and all processes that it has started."""

    def __init__(self, kind: Kind, home: Path, folder: Path, again: bool, token: str) -> None:
        self.token, self.folder = token, folder
        arguments = kind.arguments(folder, again)
        os.environ[MARK] = token
        self.log = folder.parent / "output.txt"
        self.began = time.monotonic()
        with self.log.open("wb") as log:
            if kind.forked:
                self.pid = os.fork()
                if self.pid == 0:
                    run_here(arguments, log.fileno())
            else:
                launch = [sys.executable, "-P", str(home / "start.py")]
                if kind.processes > 1:
                    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
                    launch += [f"--nproc-per-node={kind.processes}", str(home / "start.py")]
                paths = [*sys.path[:1], str(ROOT / "tests"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
                self.pid = subprocess.Popen(
                    [*launch, *arguments],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                ).pid
        self.code: int | None = None

    def ended(self, seconds: float) -> bool:
        """Whether it comes to its end by itself within that time after its start."""
        while self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() - self.began > seconds:
                return False
            else:
                time.sleep(0.002)
        return True

    def family(self) -> list[int]:
        """Its processes that are alive: of its session, or with its mark."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                marked = f"{MARK}={self.token}\0".encode() in (entry / "environ").read_bytes()
            except OSError:  # it has just ended
                continue
            if state != "Z" and (marked or int(session) == self.pid):
                found.append(int(entry.name))
        return sorted(found)

    def orphans(self, seconds: float) -> list[int]:
        """Those that are still alive so long after the kill; they are ended then."""
        deadline = time.monotonic() + seconds
        while (left := self.family()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left


def run_here(arguments: list[str], log: int) -> None:
    """In a copy of this process: the command, and its end."""
    code = 70
    try:
        os.setsid()
        for target in (1, 2):
            os.dup2(log, target)
        from bandpo_runs.cli import main

        try:
            code = main(arguments)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


# ------------------------------------------------------------------------------------------------------------ the kills
def torment(name: str, kind: Kind, home: Path, place: Path, count: int, seed: int) -> list[dict[str, Any]]:
    """Kill the command so often; returns what is in its log: a line a kill, and one for each run that was ended."""
    path = place / "log.jsonl"
    whole = place / "whole" / "run"
    if not (whole.parent / "seconds").exists():
        shutil.rmtree(place, ignore_errors=True)
        whole.parent.mkdir(parents=True)
        command = Command(kind, home, whole, False, f"{name}-whole")
        command.ended(3600)
        if command.code != 0:
            sys.exit(f"{name}: without a kill it ended with {command.code}:\n{command.log.read_text()[-3000:]}")
        (whole.parent / "seconds").write_text(str(time.monotonic() - command.began))
    usual = float((whole.parent / "seconds").read_text())
    log = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    folder = place / "killed" / "run"

    def note(row: dict[str, Any]) -> None:
        log.append(row)
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    while (kills := sum("signal" in row for row in log)) < count or folder.exists():
        folder.parent.mkdir(exist_ok=True)
        chance = random.Random(f"{seed} {name} {kills} {len(log)}")
        again = any(folder.rglob("config.yaml"))
        command = Command(kind, home, folder, again, f"{name}-{os.getpid()}-{len(log)}")
        when = chance.uniform(0, usual) if kills < count else 3600
        if command.ended(when):
            row = {"code": command.code, "orphans": len(command.orphans(5))}
            if command.code == 0:
                row |= differences(kind, whole, folder)
            wrong = [key for key in WRONG if row.get(key)]
            if command.code != 0 or wrong:
                kept = place / f"wrong-{len(log)}"
                print(f"{name}: {row}, kept in {kept}\n{command.log.read_text()[-1000:]}", flush=True)
                folder.parent.rename(kept)
            shutil.rmtree(folder.parent, ignore_errors=True)
            usual = min(usual, time.monotonic() - command.began) if command.code == 0 and not again else usual
            note({"refused": int(command.code != 0), **row})
            continue
        how = chance.choice([signal.SIGKILL] * 6 + [signal.SIGTERM, signal.SIGHUP])
        targets, whom = [command.pid], ""
        if kind.processes > 1 and (ranks := [pid for pid in command.family() if pid != command.pid]):
            chosen = chance.choice(["launcher", "one rank", "all"])
            how = how if chosen == "launcher" else signal.SIGKILL
            targets = {"launcher": targets, "one rank": [chance.choice(ranks)], "all": [command.pid, *ranks]}[chosen]
            whom = f"{chosen}, "
        for pid in targets:
            try:
                os.kill(pid, how)
            except ProcessLookupError:  # it has just ended
                continue
        began = time.monotonic()
        # A launcher gives its processes half a minute to end.
        if not command.ended(time.monotonic() - command.began + (90 if kind.processes > 1 else 30)):
            os.kill(command.pid, signal.SIGKILL)
            command.ended(3600)
        orphans = command.orphans(30 if kind.processes > 1 else 15)
        # Before it has taken over the signals it ends by them; at its very end it may have been done.
        right = {-how, 128 + how, 0} if not whom else None
        row = {"signal": how.name, "fell": whom + kind.phase(folder), "orphans": len(orphans), "code": command.code}
        row["codes"] = int(right is not None and command.code not in right)
        note({**row, "seconds": round(time.monotonic() - began, 2)})
        if row["codes"] or orphans:
            print(f"{name}: {row}\n{command.log.read_text()[-1000:]}", flush=True)
        if sum("signal" in each for each in log) % 10 == 0:
            print(f"{name}: {sum('signal' in each for each in log)} of {count} kills", flush=True)
    return log


def differences(kind: Kind, whole: Path, folder: Path) -> dict[str, int]:
    """How many rows are lost or there twice, how many files differ, and how many half ones are left."""
    wanted, found = collections.Counter(kind.keys(whole)), collections.Counter(kind.keys(folder))
    files = {path.relative_to(root) for root in (whole, folder) for each in kind.compared for path in root.glob(each)}

    def content(path: Path) -> list[bytes] | None:
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else None
        if path.name == "config.yaml" and lines is not None:  # their places differ
            return [line for line in lines if not line.startswith(b"output:")]
        return lines

    def differs(name: Path) -> bool:
        return content(whole / name) != content(folder / name)

    half = [path for path in folder.rglob("*") if path.name.endswith((".tmp", ".part"))]
    return {
        "lost": (wanted - found).total(),
        "doubled": (found - wanted).total(),
        "differing": sum(map(differs, files)),
        "left": len(half),
    }


def summary(name: str, log: list[dict[str, Any]], seed: int, commit: str) -> dict[str, Any]:
    kills = [row for row in log if "signal" in row]
    fell = collections.Counter(row["fell"] for row in kills)
    return {
        "kind": name,
        "kills": len(kills),
        **{short: sum(row["signal"] == f"SIG{short.upper()}" for row in kills) for short in ("kill", "term", "hup")},
        "runs": sum("lost" in row for row in log),
        "fell": "; ".join(f"{where} {count}" for where, count in sorted(fell.items())),
        **{key: sum(row.get(key, 0) for row in log) for key in WRONG},
        "seed": seed,
        "commit": commit,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(SHARES)} (default: all)")
    parser.add_argument("--n", type=int, default=300, help="kills, shared out among the kinds (default: 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/kills"))
    parser.add_argument("--write", action="store_true", help="a row a kind in benchmarks/kills.csv")
    args = parser.parse_args()
    if unknown := set(args.kinds) - set(SHARES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    chosen = args.kinds or list(SHARES)
    place = args.output.resolve()
    os.environ |= {"BANDPO_CACHE": str(place / "cache"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ |= {"OMP_NUM_THREADS": "1"}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have them all ignore it
    import bandpo_runs.cli.show_training
    import bandpo_runs.data.preparation
    import bandpo_runs.evals.generate
    import bandpo_runs.training.on_trl  # noqa: F401  (the copies of this process have it then)
    from csv_rows import replace_rows

    known = kinds(place / "home")
    commit = subprocess.check_output(["git", "log", "-1", "--format=%h", "--", "src"], cwd=ROOT, text=True).strip()
    total = sum(SHARES[name] for name in chosen)
    rows = []
    for name in chosen:
        count = -(-args.n * SHARES[name] // total)
        log = torment(name, known[name], place / "home", place / name, count, args.seed)
        rows.append(summary(name, log, args.seed, commit))
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items() if value != 0), flush=True)
    if args.write:
        replace_rows(ROWS, rows, ["kind"], COLUMNS, order=lambda row: list(SHARES).index(row["kind"]))
    return int(any(row[key] for row in rows for key in WRONG))


if __name__ == "__main__":
    sys.exit(main())
