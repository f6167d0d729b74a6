"""Check a run before anything is loaded, and fill in what the recipe leaves open, to fit the machine and the data."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bandpo.errors import UserError, counted

from ..config.recipe import RunConfig, build, merge
from ..files.reading import read_json
from . import models, processes

# What a run needs beside TRL: a package and the extra that brings it, by what is asked for.
_NEEDS = {
    "math": ("math_verify", "math"),
    "reasoning_gym": ("reasoning_gym", "reasoning-gym"),
    "lora": ("peft", "lab"),
}
_PROMPTS = ("prompt", "question", "problem", "messages", "query", "input", "instruction")
_ANSWERS = ("answer", "ground_truth", "solution", "gold", "gold_answer", "target", "reference", "output", "label")
Batch = Callable[[int], float]  # bytes that a training takes, by the answers that are computed at once
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
            free = "" if self.memory == math.inf else f", {_gb(self.memory)} of memory free"
            return f"Machine: {counted(self.cores, 'core')}{free}; {precision} on the CPU."
        several = f"; all {self.gpus}: torchrun --nproc-per-node {self.gpus} -m bandpo train ..." * (
            self.gpus > processes.count()
        )
        return f"Machine: {self.gpu}, {_gb(self.memory)} free; {precision}{several}."


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
    for key in ("data", "trainer"):
        if not isinstance(node.get(key, {}), Mapping):
            raise UserError(f"{key} must be settings by name, got {node[key]!r}")
    machine, problems = Machine.here(), _missing_packages(node)
    on_cpu = machine.gpu is None or bool(node.get("trainer", {}).get("use_cpu"))
    if node.get("trainer", {}).get("fp16") and on_cpu:
        problems.append("trainer.fp16=true needs a GPU: remove it; the CPU computes in float32")
    if node.get("trainer", {}).get("bf16") and not on_cpu and not machine.bf16:
        problems.append(f"trainer.bf16=true: {machine.gpu} has no bfloat16: trainer.fp16=true trainer.bf16=false")
    place, data = "", _Data(dict(node.get("data", {})))
    try:
        place = models.locate(str(node.get("model", models.SMOLLM2)), unpack=False)
    except UserError as error:
        problems.append(str(error))
    try:
        data = _read(data.node)
    except UserError as error:
        problems.append(str(error))
    if len(problems) > 1:
        listed = "; ".join(f"({number}) {problem}" for number, problem in enumerate(problems, 1))
        raise UserError(f"{len(problems)} things are missing or wrong: {listed}")
    if problems:
        raise UserError(problems[0])
    full = merge(_chosen(node, place, data, machine, on_cpu), node)
    model = _Model.at(place)
    batch = _fit(full, model, data, machine, on_cpu)
    config = build(full)  # every key and type
    _add_evaluation(full, config, on_cpu)
    full.setdefault("save_every", max(1, config.rounds // 4))
    full.setdefault("output", _output(config))
    needed = _check_room(full, model, batch, machine)
    return full, [machine.line(config.trainer), *_lines(config, full, needed)]


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


def _chosen(node: Mapping[str, Any], place: str, data: _Data, machine: Machine, on_cpu: bool) -> dict[str, Any]:
    """Return a value for what the recipe leaves open, but for the batch."""
    small = (models.parameters(place) or 1e9) < 5e8
    return {
        "model": models.SMOLLM2,
        "data": {
            "eval_size": min(200, (data.rows or 0) // 10),
            **({} if "chat" in data.node else {"chat": _talks(place)}),
            **data.node,
        },
        "reward": "last-number" if data.numbers else "math",
        "rounds": 24 if on_cpu else 200,
        "shared_prompts": on_cpu and processes.count() == 1,
        "trainer": {
            "learning_rate": (1e-5 if small else 1e-6) * (10 if node.get("lora") else 1),
            "lr_scheduler_type": "constant",
            "num_generations": 8,
            "max_completion_length": 64 if on_cpu else 512,
            "activation_checkpointing": not on_cpu,
            "use_cpu": on_cpu,
            "bf16": not on_cpu and machine.bf16,
            "fp16": not on_cpu and not machine.bf16,
        },
    }


def _fit(full: dict[str, Any], model: _Model, data: _Data, machine: Machine, on_cpu: bool) -> Batch:
    """Choose a batch of 4 optimizer steps on 32 answers each, in parts that fit the memory."""
    trainer, lora = full["trainer"], bool(full.get("lora"))
    if not isinstance(longest := trainer["max_completion_length"], int):
        raise UserError(f"trainer.max_completion_length must be a whole number, got {longest!r}")

    def memory(answers: int) -> float:
        return model.memory(answers, longest + data.longest // 3, lora=lora, again=not on_cpu)

    each = next((n for n in (32, 16, 8, 4, 2) if memory(n) < 0.8 * machine.memory), 1)
    if not trainer.keys() & {"per_device_train_batch_size", "steps_per_generation", "gradient_accumulation_steps"}:
        trainer["per_device_train_batch_size"] = max(each, processes.count())
        trainer["gradient_accumulation_steps"] = 32 // trainer["per_device_train_batch_size"]
        trainer["steps_per_generation"] = 4 * trainer["gradient_accumulation_steps"]
    return memory


def _add_evaluation(full: dict[str, Any], config: RunConfig, on_cpu: bool) -> None:
    """Log a row a round, and evaluate on the held-out questions before, four times on the way, and at the end."""
    trainer = full["trainer"]
    trainer.setdefault("logging_steps", config.steps_per_round)
    if config.data.eval_size:
        trainer.setdefault("eval_on_start", True)
        trainer.setdefault("eval_strategy", "steps")
        trainer.setdefault("eval_steps", max(1, config.rounds // 4) * config.steps_per_round)
        trainer.setdefault("num_generations_eval", 1)
        alone = config.data.eval_size if on_cpu else trainer["per_device_train_batch_size"]
        trainer.setdefault("per_device_eval_batch_size", alone)


def _check_room(full: Mapping[str, Any], model: _Model, memory: Batch, machine: Machine) -> str:
    """Say what a run takes. Raises UserError where memory or disk have less."""
    if model.parameters is None:
        return ""
    needed = memory(full["trainer"]["per_device_train_batch_size"] // processes.count())
    if needed > machine.memory:
        less = "a smaller model" if full.get("lora") else "--lora, or a smaller model"
        raise UserError(f"this needs about {_gb(needed)} of memory, and {_gb(machine.memory)} are free: take {less}")
    # Two checkpoints and a third that is being written, of weights and both of Adam's numbers; and the model.
    disk = 0 if full.get("lora") else (40 if full["save_every"] else 4) * model.parameters
    output = Path(full["output"]).absolute()
    free = shutil.disk_usage(next(each for each in (output, *output.parents) if each.exists())).free
    if disk > free:
        what = f"this needs about {_gb(disk)} of disk for {output}, and {_gb(free)} are free"
        raise UserError(f"{what}: save_every=0 takes {_gb(4 * model.parameters)}, and -o another folder")
    return f"; about {_gb(needed)} of memory and {_gb(disk)} of disk"


def _lines(config: RunConfig, full: Mapping[str, Any], room: str) -> list[str]:
    group, longest = config.trainer["num_generations"], config.trainer["max_completion_length"]
    asked, held_out = config.prompts_per_round, config.data.eval_size
    lora = f", LoRA of rank {config.lora}" if config.lora else ""
    return [
        f"Batch: {asked * group} answers a round ({asked} questions x {group}) of at most {longest} tokens, in "
        f"{counted(config.steps_per_round, 'optimizer step')}{room}.",
        f"Reward {config.reward}, learning rate {config.trainer['learning_rate']:g}{lora}, "
        f"{counted(config.rounds, 'round')}, {counted(held_out, 'held-out question')}. To change one: key=value.",
    ]


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


@dataclass(frozen=True)
class _Model:
    """Describe the size of a model; of one that is not on this machine yet only its weights may be known."""

    parameters: int | None
    vocabulary: int = 150_000
    width: int = 60_000  # hidden size x layers

    @classmethod
    def at(cls, place: str) -> _Model:
        """Read the size of a located model."""
        if place.endswith(models.UNPACKED):
            return cls(models.parameters(place), 49_152, 30 * 576)
        file = Path(place, "config.json")
        config = read_json(file, dict[str, Any]) if file.is_file() else {}
        vocabulary, layers, hidden = (config.get(name) for name in ("vocab_size", "num_hidden_layers", "hidden_size"))
        if isinstance(vocabulary, int) and isinstance(layers, int) and isinstance(hidden, int):
            return cls(models.parameters(place), vocabulary, layers * hidden)
        return cls(models.parameters(place))

    def memory(self, answers: int, tokens: int, *, lora: bool, again: bool) -> float:
        """Estimate the peak in bytes, with so many answers at once; 0 where the model's size is not known.

        Weights, gradients and Adam's two numbers are float32; so are the logits, three times, and what the layers keep,
        unless they compute it `again`.
        """
        if self.parameters is None:
            return 0
        kept = 4 * self.width if again else 80 * self.width
        return (4 if lora else 16) * self.parameters + answers * tokens * (12 * self.vocabulary + kept)


def _talks(folder: str) -> bool:
    """Check that a model has a chat template."""
    if folder.endswith(models.UNPACKED):  # which may not be there yet
        return True
    if not Path(folder).is_dir():
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False).chat_template is not None
    file = Path(folder, "tokenizer_config.json")
    return Path(folder, "chat_template.jinja").is_file() or (
        file.is_file() and "chat_template" in file.read_text("utf-8")
    )


def _output(config: RunConfig) -> str:
    """Name the folder of a run by model, rule and seed."""
    parts = [Path(config.model).name, config.method or str(config.label)]
    slugs = [re.sub(r"[^\w.]+", "-", part.lower()).strip("-") for part in parts]
    return f"runs/{slugs[0]}/{slugs[1]}" + (f"-seed{config.seed}" if config.seed else "")
