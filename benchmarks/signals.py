"""Every command ends by a signal: TERM, HUP and INT at random moments of its first 20 seconds, and what came of each.

    python benchmarks/signals.py [COMMAND ...]     # 40 signals for the five that run long, 10 for every other command
    python benchmarks/signals.py --write           # also a row a signal in benchmarks/signals.csv

Every second signal meets a command as a user starts it, the others a copy of this process, which has imported
everything: there the first seconds are those of the work. A moment is drawn up to 20 seconds, or to the end of a
command that is done before. The outcome is `obeyed` (it ended by that signal; `watch` ends well by Ctrl-C), `done` (it
was at its end, and ended well within a second), or `swallowed`.

Signals that are in the folder (-o) are not repeated. Exits with 1 if one was swallowed.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kills

from csv_rows import replace_rows

ROWS = kills.ROOT / "benchmarks" / "signals.csv"
COLUMNS = ["command", "started", "signal", "at", "code", "seconds", "outcome", "commit"]
SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
SPAN, MANY, FEW, LONG = 20.0, 40, 10, ("train", "eval", "watch", "report", "score")
PATIENCE = 90.0  # seconds that a command has to end; a shared machine may be slow


def commands(home: Path) -> dict[str, Callable[[Path], list[str]]]:
    """What each command is given, by a folder to write to. The inputs are made in `home`, if they are not there."""
    kills.kinds(home)
    import recipe
    import yaml

    model, rows, run, samples = home / "model", home / "rows.jsonl", home / "run", home / "samples"
    logs = [home / f"log{i}.jsonl" for i in range(3)]
    if not (home / "inputs").exists():
        chance = random.Random(0)
        for log in logs:
            with log.open("w") as file:
                for step in range(60_000):
                    noise = {name: round(chance.random(), 4) for name in ("reward", "entropy", "clip/fraction", "loss")}
                    file.write(json.dumps({"step": step, **noise}) + "\n")
        with (home / "answers.jsonl").open("w") as file:
            for i in range(40_000):
                response = f"So it is \\frac{{{i}}}{{{i % 7 + 1}}}, hence \\boxed{{\\frac{{{2 * i}}}{{{i % 9 + 1}}}}}"
                row = {"prompt": f"p{i}", "response": response, "answer": f"\\sqrt{{{i}}}"}
                file.write(json.dumps(row) + "\n")
        for folder in (run, samples, home / "other"):
            shutil.rmtree(folder, ignore_errors=True)
        finished = recipe.node(home, run, rounds=6, tokens_share=1.0)
        (home / "run.yaml").write_text(yaml.safe_dump(finished))
        begun(["train", str(home / "run.yaml")])
        for folder, seed in ((samples, "0"), (home / "other", "1")):
            drawn = ["--no-chat", "--scorer", "exact", "--max-tokens", "6", "-n", "64", "--seed", seed]
            begun(["eval", str(model), "--data", str(rows), "-o", str(folder), *drawn])
        (home / "inputs").touch()
    sums = [str(home / f"sums{number}.jsonl") for number in range(4)]
    paper = kills.ROOT / "recipes" / "paper" / "qwen2.5-3b" / "band-kl.yaml"

    def train(folder: Path) -> list[str]:
        file = home / "long.yaml"
        file.write_text(yaml.safe_dump(recipe.node(home, folder, rounds=2000, save_every=5)))
        return ["train", str(file)]

    exact = ["--no-chat", "--scorer", "exact", "--max-tokens", "6", "-n", "8000", "--batch-size", "8"]
    return {
        "train": train,
        "eval": lambda folder: ["eval", str(model), "--data", str(rows), "-o", str(folder), *exact],
        "watch": lambda folder: ["watch", *map(str, logs), "--every", "0.1"],
        "report": lambda folder: ["report", *map(str, logs), "-o", str(folder / "page.html")],
        "score": lambda folder: ["score", str(home / "answers.jsonl"), "--scorer", "math"],
        "demo": lambda folder: ["demo", "--seeds", "64", "-o", str(folder / "page.html")],
        "lab": lambda folder: ["lab", "--scene", "storm", "--seeds", "1", "--jobs", "2", "-o", str(folder)],
        "explain": lambda folder: ["explain", "band:kl:0.05"],
        "methods": lambda folder: ["methods"],
        "verl": lambda folder: ["verl", str(paper), "--print"],
        "data prepare": lambda folder: ["data", "prepare", *sums, "--prompt", "question", "-o", str(folder)],
        "data list": lambda folder: ["data", "list"],
        "calibrate": lambda folder: ["calibrate", str(run)],
        "compare": lambda folder: ["compare", str(samples), str(home / "other")],
        "table": lambda folder: ["table", str(samples), str(home / "other")],
        "doctor": lambda folder: ["doctor", str(logs[0])],
    }


def begun(arguments: list[str]) -> None:
    """Run a command to its end, which must be a good one."""
    if (pid := os.fork()) == 0:
        kills.run_here(arguments, os.open(os.devnull, os.O_WRONLY))
    if os.waitpid(pid, 0)[1]:
        sys.exit(f"bandpo {' '.join(arguments)} did not end well")


def strike(
    name: str, arguments: Callable[[Path], list[str]], home: Path, place: Path, forked: bool, at: float, number: int
) -> dict[str, Any] | None:
    """Start the command, send the signal, and tell what came of it. None where it had ended before."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    kind = kills.Kind(lambda folder, again: arguments(folder), (), kills.names, str, forked)
    command = kills.Command(kind, home, place / "out", False, f"signals-{os.getpid()}-{time.monotonic_ns()}")
    if command.ended(at):
        return None
    os.kill(command.pid, number)
    sent = time.monotonic() - command.began
    if not command.ended(sent + PATIENCE):
        os.kill(command.pid, signal.SIGKILL)
        command.ended(sent + 2 * PATIENCE)
    took = time.monotonic() - command.began - sent
    ends = {-number, 128 + number} | ({0} if (name, number) == ("watch", signal.SIGINT) else set())
    outcome = "obeyed" if command.code in ends else "done" if command.code == 0 and took < 1 else "swallowed"
    if outcome == "swallowed":
        print(
            f"{name} {signal.Signals(number).name} at {at:.2f}: code {command.code}\n{command.log.read_text()[-2000:]}"
        )
    if left := command.orphans(15):
        print(f"{name} {signal.Signals(number).name} at {at:.2f}: left {len(left)} processes")
    return {
        "command": name,
        "started": "warm" if forked else "cold",
        "signal": signal.Signals(number).name,
        "at": round(at, 2),
        "code": command.code,
        "seconds": round(took, 2),
        "outcome": outcome,
    }


def length(arguments: Callable[[Path], list[str]], home: Path, place: Path, forked: bool) -> float:
    """Seconds that the command takes without a signal, at most SPAN."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    kind = kills.Kind(lambda folder, again: arguments(folder), (), kills.names, str, forked)
    command = kills.Command(kind, home, place / "out", False, f"signals-{os.getpid()}-length")
    if command.ended(SPAN):
        return time.monotonic() - command.began
    os.kill(command.pid, signal.SIGKILL)
    command.ended(3600)
    command.orphans(15)
    return SPAN


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="COMMAND", help="(default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/signals"))
    parser.add_argument("--write", action="store_true", help="a row a signal in benchmarks/signals.csv")
    args = parser.parse_args()
    place = args.output.resolve()
    os.environ |= {"BANDPO_CACHE": str(place / "cache"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    os.environ |= {"OMP_NUM_THREADS": "1"}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have them all ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as would a shell that starts this in the background
    import bandpo_runs.cli.show_calibration
    import bandpo_runs.cli.show_evals
    import bandpo_runs.cli.show_training
    import bandpo_runs.cli.show_watch
    import bandpo_runs.data.preparation
    import bandpo_runs.demo
    import bandpo_runs.evals.generate
    import bandpo_runs.evals.dumps
    import bandpo_runs.reports.page
    import bandpo_runs.training.doctor
    import bandpo_runs.training.on_trl  # noqa: F401  (the copies of this process have it then)

    home = place / "home"
    every = commands(home)
    if unknown := set(args.names) - set(every):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    commit = subprocess.check_output(
        ["git", "log", "-1", "--format=%h", "--", "src"], cwd=kills.ROOT, text=True
    ).strip()
    rows: list[dict[str, Any]] = []
    for name in args.names or every:
        path = place / f"{name.replace(' ', '-')}.jsonl"
        own = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        lengths: dict[bool, float] = {}
        tries = 0
        while len(own) < (MANY if name in LONG else FEW):
            chance, tries = random.Random(f"{args.seed} {name} {len(own)} {tries}"), tries + 1
            forked, number = len(own) % 2 == 1, SIGNALS[len(own) // 2 % 3]
            if forked not in lengths:
                lengths[forked] = length(every[name], home, place / "work", forked)
            at = chance.uniform(0, lengths[forked])
            row = strike(name, every[name], home, place / "work", forked, at, number)
            if row is not None:
                own.append({**row, "commit": commit})
                with path.open("a") as file:
                    file.write(json.dumps(own[-1]) + "\n")
        counts = collections.Counter(row["outcome"] for row in own)
        print(f"{name}: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}", flush=True)
        rows += own
    if args.write:
        replace_rows(ROWS, rows, ["command"], COLUMNS, order=lambda row: list(every).index(row["command"]))
    return int(any(row["outcome"] == "swallowed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
