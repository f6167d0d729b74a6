"""What the commands make of logs and samples that others wrote, in public repositories.

    python -m research.measurements.logs clones    # clones: a folder with a git directory OWNER+NAME/repo of each below
    python -m research.measurements.logs clones --write    # and write it to logs.csv

Event files need the extra `trackers`, and logs of inspect_ai the extra `inspect`. The files themselves are not kept.
A row has the command, its exit code, and of its output the numbers, or the error without the name of the file.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bandpo_runs.provenance import source_commit
from research.csv_rows import write_rows

COLUMNS = ["kind", "repository", "at", "path", "command", "code", "result", "commit"]
GRPO = "expert_guy/post_training_project/threestage/stage2_output"
TRL, XLING = "alexchilton/CAS_NLP_MODULE4_GRPO", "nhockid235/xling-grpo-sub3b"
INSPECT = "UKGovernmentBEIS/inspect_ai"
WATCH, SCORE = ["watch", "--once", "--json"], ["score", "--json"]
REPORT, DOCTOR, TABLE = ["report"], ["doctor"], ["table"]
FILES = [
    ("TRL's state", TRL, f"{GRPO}/checkpoint-160/trainer_state.json", (WATCH, REPORT, DOCTOR, TABLE)),
    ("TRL's state", TRL, "lara/output_4090/wordle-grpo/checkpoint-400/trainer_state.json", (WATCH, REPORT, DOCTOR)),
    ("TRL's state", XLING, "results/training/grpo/a2_vi_42/checkpoint-50/trainer_state.json", (WATCH, REPORT, DOCTOR)),
    ("TRL's state, no GRPO", "aloshdenny/kevin-token-compressor", "trainer_state.json", (WATCH, REPORT)),
    ("tensorboard of TRL", TRL, f"{GRPO}/logs/events.out.tfevents.1766306229.Mac.13809.0", (WATCH, REPORT, DOCTOR)),
    (
        "tensorboard of TRL",
        TRL,
        "lara/4070/output5/wordle-grpo-rtx4070/logs/events.out.tfevents.1767733342.lara_TUF.21148.0",
        (WATCH, REPORT),
    ),
    ("console of TRL", XLING, "results/training/training.log", (WATCH, REPORT)),
    ("console of verl", "yuzhaouoe/GUI-Cursor-Moving", "verl_demo.log", (WATCH, REPORT, DOCTOR)),
    ("console of verl, ended early", "KotoHanon/VERL-Maze", "verl_demo.log", (WATCH, REPORT)),
    ("history of wandb", "oraby8/research_tts", "wandb_history.csv", (WATCH, REPORT)),
    ("table of runs of wandb", "oraby8/research_tts", "wandb_export_2026-03-02T10_38_30.064+02_00.csv", (WATCH,)),
    ("history of wandb, multi-agent PPO", "SnappierCape/ds-marl-air-cargo", "wandb_export.csv", (WATCH, REPORT)),
    (
        "inspect_ai's .eval",
        INSPECT,
        "tests/scorer/logs/2025-02-11T15-17-00-05-00_popularity_dPiJifoWeEQBrfWsAopzWr.eval",
        (SCORE, TABLE),
    ),
    (
        "inspect_ai's .eval",
        INSPECT,
        "tests/log/test_list_logs/2024-11-05T13-32-37-05-00_input-task_hxs4q9azL3ySGkjJirypKZ.eval",
        (SCORE,),
    ),
    ("inspect_ai's .eval", INSPECT, "tests/analysis/test_logs_choices/mmlu-summary-choices.eval", (SCORE,)),
    ("inspect_ai's .json", INSPECT, "tests/analysis/test_logs/2025-05-12T20-28-13-04-00_popularity.json", (SCORE,)),
    ("inspect_ai's .json", INSPECT, "tests/log/test_eval_log/log_formats.json", (SCORE,)),
]


def result_of(command: list[str], output: str, error: str, name: str) -> str:
    """What of an output is kept: numbers, in one line."""
    if error:
        return " ".join(error.replace(name, "FILE").split())[:300]
    if "--json" in command:
        (result,) = json.loads(output)
        if command[0] == "watch":
            numbers = {key: float(f"{value:.4g}") for key, value in result["numbers"].items()}
            notes = [note.replace(name, "FILE") for note in result["notes"]]
            return json.dumps({"step": result.get("step"), **numbers, **({"notes": notes} if notes else {})})
        rows = result["results"]
        means = {row["data"]: {key: value["value"] for key, value in row.items() if "mean@" in key} for row in rows}
        return json.dumps({"scorer": result["scorer"], "prompts": [row["prompts"] for row in rows], **means})
    return " ".join(output.replace(name, "FILE").split())[:300]


def measure(folder: Path) -> list[dict]:
    rows = []
    for kind, repository, path, commands in FILES:
        git = ["git", "-C", str(folder / repository.replace("/", "+") / "repo")]
        at = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()[:7]
        content = subprocess.run([*git, "show", f"HEAD:{path}"], check=True, capture_output=True).stdout
        for command in commands:
            with tempfile.TemporaryDirectory() as home:
                name = Path(path).name
                (Path(home) / name).write_bytes(content)
                program = "import sys; from bandpo_runs.cli import main; sys.exit(main())"
                run = subprocess.run(
                    [sys.executable, "-c", program, command[0], name, *command[1:]],
                    cwd=home,
                    capture_output=True,
                    text=True,
                )
            result = result_of(command, run.stdout, run.stderr if run.returncode > 1 else "", name)
            values = [kind, repository, at, path, " ".join(command), run.returncode, result, source_commit()]
            rows.append(dict(zip(COLUMNS, values, strict=True)))
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows = measure(args.folder)
    if args.write:
        write_rows(Path(__file__).with_suffix(".csv"), rows)


if __name__ == "__main__":
    main()
