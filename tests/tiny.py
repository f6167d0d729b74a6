"""A model and settings small enough to train in a second, for tests of trainers."""

from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, Qwen2Config
from trl import GRPOConfig

from bandpo_runs import toy
from bandpo_runs.config.recipe import FORMERLY


def model(seed: int = 0, dtype: torch.dtype = torch.float32):
    """One layer, with weights so large that tokens have different probabilities from the start."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(toy.SYMBOLS), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, initializer_range=0.3, max_position_embeddings=64, bos_token_id=None,
        eos_token_id=toy.END, pad_token_id=toy.PAD,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).to(dtype)


def rows(count: int = 64) -> Dataset:
    """The lab's prompts."""
    return Dataset.from_list(toy.prompts(count, seed=0))


def count_a(completions: list[str], **columns: Any) -> list[float]:
    """A reward that every completion has some of."""
    return [float(text.split().count("a")) for text in completions]


def settings(folder: Any, kind: type[GRPOConfig] = GRPOConfig, **changes: Any) -> GRPOConfig:
    """12 steps, 8 on each batch, with steps so large that a clip binds."""
    values: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 16,
        "steps_per_generation": 4,
        "num_iterations": 2,
        "num_generations": 8,
        "max_completion_length": 6,
        "max_steps": 12,
        "learning_rate": 5e-3,
        "logging_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "activation_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    known = kind.__dataclass_fields__
    return kind(**{name if name in known else FORMERLY[name]: value for name, value in (values | changes).items()})
