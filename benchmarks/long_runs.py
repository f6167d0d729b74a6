"""What `report` and `watch` take of a processor beside long logs.

    python benchmarks/long_runs.py [--repeat 3] [--write]    # 20 minutes; and write it to benchmarks/long_runs.csv

The log is that of one run with made rows of 12 numbers, or of 75 as `bandpo train` writes. Of `report` and of `watch
--once` it is all processor time, of a live `watch --html` that of two minutes in which a row comes each second, after a
minute for the rows that were there.
"""

import argparse
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bandpo_runs.provenance import hardware, source_commit

COLUMNS = [
    "command",
    "rows",
    "numbers",
    "median_s",
    "least_s",
    "most_s",
    "share",
    "repeats",
    "load",
    "hardware",
    "commit",
]
BANDPO = [sys.executable, "-m", "bandpo"]
SIZES = [(10, 12), (5_000, 12), (20_000, 12), (20_000, 75), (400_000, 12)]
LIVE = [(20_000, 12), (20_000, 75)]
BEFORE, DURING = 60, 120  # seconds
NAMES = ("entropy", "clip/fraction", "clip/tail_high_count", "clip/tail_high_share", "clip/good_tail_tokens",
         "cut/good_tail_count", "cut/fraction", "kl_old/k3")  # fmt: skip


def row(step: int, rows: int, numbers: int) -> str:
    """Rewards that rise, and noise."""
    known = {"step": step, "reward": 0.9 * step / (step + rows / 10) + 0.05 * random.random(), "tokens": 4096.0}
    known |= {"clip/count": float(random.randrange(400)), **{name: random.random() for name in NAMES}}
    known |= {f"other/{i}": random.random() for i in range(numbers - len(known))}
    return json.dumps(known) + "\n"


def make(folder: Path, rows: int, numbers: int) -> Path:
    folder.mkdir()
    info = {"label": "Band-KL 0.05", "seed": 0, "finished": False, "learning_rate": 1e-6}
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "config.yaml").write_text("trust_region: {type: band, divergence: kl, delta: 0.05}\n")
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(row(step, rows, numbers) for step in range(1, rows + 1))
    return folder


def processor(arguments: list[str]) -> float:
    """Seconds that a command takes of it."""
    process = subprocess.Popen([*BANDPO, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"bandpo {' '.join(arguments)} ended with {status}")
    return usage.ru_utime + usage.ru_stime


def used(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def live(run: Path, rows: int, numbers: int) -> float:
    """The share of a core that `watch --html` takes."""
    with (run / "metrics.jsonl").open("a") as log:
        watch = subprocess.Popen([*BANDPO, "watch", str(run), "--html", str(run / "w.html")], stdout=subprocess.DEVNULL)
        before = 0.0
        for second in range(BEFORE + DURING):
            if second == BEFORE:
                before = used(watch.pid)
            log.write(row(rows + 1 + second, rows, numbers))
            log.flush()
            time.sleep(1)
        share = (used(watch.pid) - before) / DURING
        watch.kill()
        watch.wait()
    return share


def measure(repeat: int) -> list[dict[str, object]]:
    found = []
    with tempfile.TemporaryDirectory() as home:
        for rows, numbers in SIZES:
            run = make(Path(home, f"{rows}-{numbers}"), rows, numbers)
            for command in (["report", str(run), "-o", f"{home}/report.html"], ["watch", str(run), "--once"]):
                times = sorted(processor(command) for _ in range(repeat))
                seconds = [f"{x:.1f}" for x in (statistics.median(times), times[0], times[-1])]
                found.append([command[0] + " --once" * (command[0] == "watch"), rows, numbers, *seconds, "", repeat])
                print(*found[-1], flush=True)
            if (rows, numbers) in LIVE:
                found.append(["watch --html", rows, numbers, "", "", "", f"{live(run, rows, numbers):.4f}", 1])
                print(*found[-1], flush=True)
    common = [f"{os.getloadavg()[2]:.0f}", hardware(gpu=False), source_commit()]
    return [dict(zip(COLUMNS, [*values, *common], strict=True)) for values in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    found = measure(args.repeat)
    if args.write:
        with Path(__file__).with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
