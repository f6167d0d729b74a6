"""TRL's own tests of its GRPOTrainer, with BandPOTrainer in its place.

    git clone --depth 1 --branch v1.9.0 https://github.com/huggingface/trl       # the installed release
    python benchmarks/trl_suite.py trl [--write] [-k EXPRESSION]

tests/test_grpo_trainer.py of that folder runs twice, with GRPOTrainer itself and with BandPOTrainer under the rule that
each test's epsilons are. The models and data that it names are on a hub; here they are made: text models of the named
architecture, two layers and random weights, with a tokenizer of bytes, and some lines of text. Each test then is

    passed    under both; its trainings are compared bit for bit, weights and log
    refused   by BandPOTrainer, with its reason: settings that leave no bounds per token
    not here  skipped or failed under GRPOTrainer too: vision models, vLLM, a GPU, token numbers of the real tokenizer
    failed    under BandPOTrainer only

`--write` appends a row to benchmarks/trl_suite.csv. This file is also the plug-in that the two runs of pytest load.
"""

import argparse
import collections
import csv
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path
from typing import Any

# Set for the runs of pytest, before anything reads them: the folder of the made hub, and where trainings are noted.
PLUGGED_IN = "BANDPO_TRL_SUITE" in os.environ
SUITE = "tests/test_grpo_trainer.py"
PROMPTS = [f"Line {i} of {19} is {'short' if i % 3 else 'somewhat longer'}, and" for i in range(1, 20)]
# Of every architecture that has them.
SIZES = {
    "hidden_size": 8,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "head_dim": 2,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 2048,
}


def tokenizer(template: Path) -> Any:
    """One token a byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *special]
    words = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(symbols)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=special[0],
        eos_token=special[2],
        additional_special_tokens=special[1:2],
        chat_template=template.read_text(encoding="utf-8") if template.exists() else None,
        model_input_names=["input_ids", "attention_mask"],
    )


def make_hub(home: Path, names: list[str]) -> None:
    """A cache of the model hub with these models in it, for HF_HOME."""
    import torch
    import transformers
    import trl

    torch.set_num_threads(1)
    for name in names:
        found = re.fullmatch(r"trl-internal-testing/tiny-(\w+?)For(CausalLM|SequenceClassification)[-.\w]*", name)
        kind = found and getattr(transformers, f"{found[1]}Config", None)
        if not kind:
            continue
        template = "qwen3.jinja" if "Qwen3" in name else "qwen2_5.jinja"
        words = tokenizer(Path(trl.__file__).parent / "chat_templates" / template)
        ids = {"vocab_size": len(words), "pad_token_id": words.pad_token_id, "eos_token_id": words.eos_token_id}
        known = vars(kind()).keys()
        config = kind(**{key: value for key, value in SIZES.items() if key in known}, **ids, bos_token_id=None)
        torch.manual_seed(zlib.crc32(name.encode()))
        folder = home / "hub" / f"models--{name.replace('/', '--')}"
        made = folder / "snapshots" / ("0" * 40)
        if found[2] == "CausalLM":
            model = transformers.AutoModelForCausalLM.from_config(config)
        else:
            config.num_labels = 1
            model = transformers.AutoModelForSequenceClassification.from_config(config)
        model.save_pretrained(made)
        words.save_pretrained(made)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("0" * 40)


def plug_in() -> None:
    """What the runs of pytest find: made data, and the trainer under test, whose trainings are noted."""
    import datasets
    import pytest
    import trl

    theirs, load = trl.GRPOTrainer, datasets.load_dataset

    def load_dataset(name: str, config: str | None = None, split: str | None = None, streaming: bool = False) -> Any:
        if name != "trl-internal-testing/zen":
            return load(name, config, split=split)
        chat = config == "conversational_prompt_only"
        rows = [{"prompt": [{"role": "user", "content": text}] if chat else text} for text in PROMPTS]
        parts: Any = {"train": datasets.Dataset.from_list(rows[:17]), "test": datasets.Dataset.from_list(rows[17:])}
        if streaming:
            parts = {key: part.to_iterable_dataset() for key, part in parts.items()}
        whole = (datasets.IterableDatasetDict if streaming else datasets.DatasetDict)(parts)
        return whole if split is None else whole[split]

    def train(self: Any, *args: Any, **named: Any) -> Any:
        out = super(theirs, self).train(*args, **named)
        weights = hashlib.sha256()
        for value in self.model.state_dict().values():
            weights.update(value.detach().cpu().float().numpy().tobytes())
        clock = ("step_time", "runtime", "per_second")
        log = [
            {key: value for key, value in row.items() if "bandpo/" not in key and not key.endswith(clock)}
            for row in self.state.log_history
        ]
        with Path(os.environ["BANDPO_TRL_SUITE"]).open("a", encoding="utf-8") as file:
            test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
            file.write(json.dumps([test, weights.hexdigest(), repr(log)]) + "\n")
        return out

    datasets.load_dataset, theirs.train = load_dataset, train
    if os.environ["BANDPO_TRL_SUITE_TRAINER"] == theirs.__name__:
        return
    from bandpo import Clip
    from bandpo.integrations import trl as ours

    class Ours(ours.BandPOTrainer):
        """Under the rule that the epsilons are."""

        def __init__(self, model: Any, reward_funcs: Any = None, args: Any = None, *others: Any, **named: Any) -> None:
            region = Clip(0.2, 0.2)
            if args is not None:
                region = Clip(args.epsilon, args.epsilon if args.epsilon_high is None else args.epsilon_high)
                default = {"epsilon": 0.2, "epsilon_high": None}
                for key, value in default.items():
                    setattr(args, key, value)
            try:
                super().__init__(model, reward_funcs, args, *others, trust_region=region, **named)
            except ValueError as error:
                last = error.__traceback__
                while last is not None and last.tb_next is not None:
                    last = last.tb_next
                if last is None or last.tb_frame.f_code.co_filename != ours.__file__:
                    raise
                pytest.skip(f"refused: {error}")

    trl.GRPOTrainer = Ours


if PLUGGED_IN:
    plug_in()
