"""Check a run before anything is loaded, and fill in what the recipe leaves open, to fit the machine and the data."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bandpo.errors import UserError, counted
from bandpo.losses.nodes import method_or_objective, objective
from bandpo.losses.notation import label_of_objective
from bandpo.losses.objective import Method

from ..config.recipe import DEFAULT_RULE, merge
from ..files.reading import read_json
from . import models, processes

# What a run needs beside TRL: a package and the extra that brings it, by what is asked for.
_NEEDS = {
    "math": ("math_verify", "math"),
    "reasoning_gym": ("reasoning_gym", "reasoning-gym"),
    "lora": ("peft", "train"),
}
_PROMPTS = ("prompt", "question", "problem", "messages", "query", "input", "instruction")
_ANSWERS = ("answer", "ground_truth", "solution", "gold", "gold_answer", "target", "reference", "output", "label")
_GB = 1e9
_PASTE = "bandpo train MODEL --data FILE.jsonl, with rows of {prompt, answer}"


@dataclass(frozen=True)
class Machine:
    """Describe what trains: cores, and the free memory of the GPU or else of the machine."""

    cores: int
    memory: float
    gpu: str | None
    gpus: int
    bf16: bool

    @classmethod
    def here(cls) -> Machine:
        """Look at this machine, without starting CUDA where there is none."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if torch.cuda.is_available():
            name, free = torch.cuda.get_device_name(), torch.cuda.mem_get_info()[0]
            return cls(cores, free, name, torch.cuda.device_count(), torch.cuda.is_bf16_supported())
        info = Path("/proc/meminfo")
        available = re.search(r"MemAvailable:\s+(\d+)", info.read_text()) if info.is_file() else None
        return cls(cores, 1024.0 * int(available[1]) if available else math.inf, None, 0, False)

    def line(self, trainer: Mapping[str, Any]) -> str:
        """Say what trains, and in which precision."""
        precision = "bfloat16" if trainer.get("bf16") else "float16" if trainer.get("fp16") else "float32"
        if self.gpu is None or trainer.get("use_cpu"):
            free = "" if self.memory == math.inf else f", {self.memory / _GB:.0f} GB of memory free"
            return f"Machine: {counted(self.cores, 'core')}{free}; {precision} on the CPU."
        several = f"; all {self.gpus}: torchrun --nproc-per-node {self.gpus} -m bandpo train ..." * (
            self.gpus > processes.count()
        )
        return f"Machine: {self.gpu}, {self.memory / _GB:.0f} GB free; {precision}{several}."


@dataclass(frozen=True)
class _Data:
    """Describe the first rows of a data set."""

    node: dict[str, Any]
    rows: int | None = None
    numbers: bool = True  # all answers are numbers
    longest: int = 100  # characters of a prompt


def prepare(node: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Check a recipe against machine, model and data, and fill in what it leaves open.

    Returns:
        The recipe with all that was chosen, and three lines that say so.

    Raises:
        UserError: with all that is wrong or missing, in one message.
    """
    problems = _missing_packages(node)
    folder, data, machine = "", _Data(dict(node.get("data") or {})), Machine.here()
    try:
        folder = models.locate(str(node.get("model", models.SMOLLM2)), unpack=False)
    except UserError as error:
        problems.append(str(error))
    try:
        data = _read(data.node)
    except UserError as error:
        problems.append(str(error))
    trainer = dict(node.get("trainer") or {})
    for name in ("bf16", "fp16") if machine.gpu is None or trainer.get("use_cpu") else ():
        if trainer.get(name):
            problems.append(f"trainer.{name}=true needs a GPU, and here is none: remove it; float32 is chosen then")
    if problems:
        raise UserError("; ".join(problems) if len(problems) == 1 else f"{len(problems)} things: {_listed(problems)}")
    return _filled(node, folder, data, machine)


def _listed(problems: Sequence[str]) -> str:
    return "; ".join(f"({number}) {problem}" for number, problem in enumerate(problems, 1))


def _missing_packages(node: Mapping[str, Any]) -> list[str]:
    asked = {node.get("reward"), (node.get("data") or {}).get("source"), "lora" if node.get("lora") else None}
    needs = {"trl": "lab", **dict(need for name, need in _NEEDS.items() if name in asked)}
    missing = {package: extra for package, extra in needs.items() if importlib.util.find_spec(package) is None}
    return [f"{package} is not installed: pip install 'bandpo[{extra}]'" for package, extra in missing.items()]


def _read(node: dict[str, Any]) -> _Data:
    """Look at the first rows of a file, and name its columns. Raises UserError."""
    if not node.get("source") and not node.get("path"):
        raise UserError(f"there is no data to train on: {_PASTE}")
    node.setdefault("source", "file")
    if node["source"] != "file":
        return _Data(node)
    from ..data.readers import file_rows

    path = Path(node.get("path") or "")
    reader = file_rows(path, f"data.path {str(path)!r}")
    rows = list(islice(reader, 1000))
    if not rows:
        raise UserError(f"data.path {str(path)!r} has no rows")
    names = list(dict.fromkeys(name for row in rows for name in row))
    prompt = node.setdefault("prompt", next((name for name in _PROMPTS if name in names), None))
    last = rows[0].get(prompt)
    talks = isinstance(last, list) and bool(last) and last[-1].get("role") == "assistant"
    usual = next((name for name in _ANSWERS if name in names), prompt if talks else None)
    answer = node.setdefault("answer", usual)
    for key, name in (("prompt", prompt), ("answer", answer)):
        if name not in names:
            what = f"has no column {name!r}" if name else f"has no column of the {key}"
            raise UserError(f"data.path {str(path)!r} {what}; it has {names}: data.{key}=COLUMN names it")
    golds = [str(row[answer]).rpartition("####")[2].strip() for row in rows if answer != prompt and row.get(answer)]
    numbers = bool(golds) and all(re.fullmatch(r"-?[\d,]*\.?\d+", gold) for gold in golds)
    longest = max(len(json.dumps(row.get(prompt), default=str)) for row in rows)
    return _Data(node, len(rows) + sum(1 for _ in reader), numbers, longest)


def _filled(node: Mapping[str, Any], folder: str, data: _Data, machine: Machine) -> tuple[dict[str, Any], list[str]]:
    on_cpu = machine.gpu is None or (node.get("trainer") or {}).get("use_cpu", False)
    name, lora = str(node.get("model", models.SMOLLM2)), node.get("lora")
    size = models.parameters(folder)
    held_out = min(200, (data.rows or 0) // 10)
    rate = (1e-5 if (size or 1e9) < 5e8 else 1e-6) * (10 if lora else 1)
    rounds = int(node.get("rounds") or (24 if on_cpu else 200))
    chosen: dict[str, Any] = {
        "model": name,
        "data": {"chat": "chat" not in data.node and _talks(folder), "eval_size": held_out, **data.node},
        "reward": "last-number" if data.numbers else "math",
        "trust_region": DEFAULT_RULE,
        "rounds": rounds,
        "save_every": max(1, rounds // 4),
        "shared_prompts": on_cpu and processes.count() == 1,
        "trainer": {
            "learning_rate": rate,
            "lr_scheduler_type": "constant",
            "num_generations": 8,
            "max_completion_length": 64 if on_cpu else 512,
            "use_cpu": on_cpu,
            "bf16": not on_cpu and machine.bf16,
        },
    }
    full = merge(chosen, node)
    trainer = full["trainer"]
    estimate = _Estimate(size, folder, lora, trainer["max_completion_length"] + data.longest // 3)
    micro = next((n for n in (32, 16, 8, 4, 2) if estimate.memory(n) < 0.8 * machine.memory), 1)
    micro = trainer.setdefault("per_device_train_batch_size", micro * processes.count())
    accumulation = trainer.setdefault("gradient_accumulation_steps", max(1, 32 // micro))
    steps = trainer.setdefault("steps_per_generation", 4 * accumulation)
    trainer.setdefault("activation_checkpointing", not on_cpu)
    per_round = steps * trainer.get("num_iterations", 1) // accumulation
    trainer.setdefault("logging_steps", max(1, per_round))
    if full["data"].get("eval_size"):
        trainer.setdefault("eval_on_start", True)
        trainer.setdefault("eval_strategy", "steps")
        trainer.setdefault("eval_steps", max(1, full["rounds"] // 4) * max(1, per_round))
        trainer.setdefault("num_generations_eval", 1)
        trainer.setdefault("per_device_eval_batch_size", full["data"]["eval_size"] if on_cpu else micro)
    full.setdefault("output", _output(full))
    needed, disk = estimate.memory(micro // processes.count() or 1), estimate.disk(full["save_every"])
    place = next(
        each for each in (Path(full["output"]).absolute(), *Path(full["output"]).absolute().parents) if each.exists()
    )
    if needed > machine.memory:
        less = "a smaller model" if lora else "--lora, or a smaller model"
        raise UserError(
            f"this needs about {needed / _GB:.1f} GB of memory, {machine.memory / _GB:.1f} GB are free: take {less}"
        )
    if disk > (free := shutil.disk_usage(place).free):
        raise UserError(
            f"this needs about {disk / _GB:.1f} GB on the disk of {place}, {free / _GB:.1f} GB are free: save_every=0 needs less, -o takes another disk"
        )
    answers, group = micro * steps, trainer["num_generations"]
    return full, [
        machine.line(trainer),
        f"Batch: {answers} answers a round ({answers // group} questions x {group}) of at most "
        f"{trainer['max_completion_length']} tokens, in {counted(max(1, per_round), 'optimizer step')}"
        + (f"; about {needed / _GB:.1f} GB of memory, {disk / _GB:.1f} GB of disk." if size else "."),
        f"Reward {full['reward']}, learning rate {trainer['learning_rate']:g}"
        + (f", LoRA of rank {lora}" if lora else "")
        + f", {counted(full['rounds'], 'round')}, {full['data'].get('eval_size', 0)} questions held out. Any of it is changed by key=value.",
    ]


@dataclass(frozen=True)
class _Estimate:
    """Estimate what a training takes, in bytes: weights, gradients and Adam's numbers in float32, and a micro-batch."""

    parameters: int | None
    folder: str
    lora: int | None
    tokens: int

    def memory(self, micro: int) -> float:
        """Return the peak, with `micro` answers at once; 0 where the model's size is not known."""
        if self.parameters is None:
            return 0
        file = Path(self.folder, "config.json")
        config = read_json(file, dict[str, Any]) if file.is_file() else {}
        width = config.get("num_hidden_layers", 30) * config.get("hidden_size", 2048)
        per_token = 12 * config.get("vocab_size", 150_000) + 40 * width
        return (4 if self.lora else 16) * self.parameters + micro * self.tokens * per_token

    def disk(self, save_every: int) -> float:
        """Return the size of the model and of two checkpoints, and of a third while it is written."""
        saved = 0.0 if self.lora else 4.0 + (36.0 if save_every else 0)
        return saved * (self.parameters or 0)


def _talks(folder: str) -> bool:
    """Check that a model has a chat template."""
    if folder.endswith(models.UNPACKED):
        return True
    if not Path(folder).is_dir():
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False).chat_template is not None
    file = Path(folder, "tokenizer_config.json")
    return Path(folder, "chat_template.jinja").is_file() or (
        file.is_file() and "chat_template" in file.read_text("utf-8")
    )


def _output(node: Mapping[str, Any]) -> str:
    """Name the folder of a run by model, rule and seed."""
    try:
        named = method_or_objective(node["trust_region"])
        rule = named.name if isinstance(named, Method) else label_of_objective(objective(named))
    except ValueError as error:
        raise UserError(f"trust_region: {error}") from None
    seed = f"-seed{node['seed']}" if node.get("seed") else ""
    slugs = [re.sub(r"[^\w.]+", "-", text.lower()).strip("-") for text in (Path(node["model"]).name, rule)]
    return f"runs/{slugs[0]}/{slugs[1]}{seed}"
