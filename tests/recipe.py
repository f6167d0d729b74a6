"""A recipe that trains in a second, with its model and its rows, for tests of runs and of the command line."""

import json
from pathlib import Path
from typing import Any

import tiny
from bandpo_runs import toy

ROWS = 12  # a run of five rounds with four prompts each passes over them nearly twice


def make(home: Path) -> Path:
    """Write the model and the rows; returns the folder."""
    tiny.model().save_pretrained(home / "model")
    toy.tokenizer().save_pretrained(home / "model")
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in toy.prompts(ROWS, seed=0)))
    return home


def node(home: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """Five rounds of four optimizer steps; `changes` are settings, those of `data` and `trainer` laid on ours."""
    out: dict[str, Any] = {
        "model": str(home / "model"),
        "data": {"source": "file", "path": str(home / "rows.jsonl")},
        "reward": "recipe:share_of_even",
        "rounds": 5,
        "save_every": 2,
        "threads": 1,
        "output": str(output),
        "trainer": {
            "learning_rate": 5e-3,
            "per_device_train_batch_size": 8,
            "steps_per_generation": 2,
            "num_iterations": 2,
            "num_generations": 4,
            "max_completion_length": 6,
            "logging_steps": 1,
            "lr_scheduler_type": "linear",
            "activation_checkpointing": False,
            "bf16": False,
            "use_cpu": True,
        },
    }
    for key, value in changes.items():
        out[key] = {**out[key], **value} if key in ("data", "trainer") else value
    return out


def share_of_even(completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """A reward that tells completions apart from the start."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]
