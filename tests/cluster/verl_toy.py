"""A tiny model, its data, a reward, and the settings with which verl trains it on a CPU."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

# verl before 0.9 has no plug-ins and no platforms: modules to import are named, one of ours and one for tests.
IS_OLD = version("verl").startswith(("0.7.", "0.8."))
BY_HAND = {"VERL_USE_EXTERNAL_MODULES": "bandpo.integrations.verl"} if IS_OLD else {}

# For every process; Ray's workers inherit it.
ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",  # the FSDP engine, which is registered for accelerators only
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # no pinning to cores that the actor needs
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    **{name: f"verl_before_09,{value}" for name, value in BY_HAND.items()},
}
# verl's averages.
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MODES += [] if IS_OLD else ["token-sum"]

# The made batch of update_actor.py, over all ranks.
PROMPT, RESPONSE = 6, 8
SIZE, MINI_BATCH, EPOCHS = 16, 8, 2

LOSS = "actor_rollout_ref.actor.policy_loss"
# The three settings as our page has them, and the third with a dual clip.
_PAGE = (Path(__file__).parents[2] / "docs" / "verl.md").read_text(encoding="utf-8")
OURS = re.findall(rf"^  ({re.escape(LOSS)}\.\S+) \\$", _PAGE, re.MULTILINE)
BAND, DUAL = re.findall(rf"'(\+{re.escape(LOSS)}\.trust_region=.*)'", _PAGE)


def composed(name, *words):
    """Compose a recipe of recipes/paper, as verl's command does with these words."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(Path(__file__).parents[2] / "recipes" / "paper"), version_base=None):
        return compose(name, overrides=["hydra.searchpath=[pkg://verl.trainer.config]", *words])


def region(**node):
    """A trust region on the command line."""
    return f"+{LOSS}.trust_region={{{','.join(f'{key}:{value}' for key, value in node.items())}}}"


def actor_settings(folder):
    """The actor alone; float32, because autocast would hand bfloat16 log-probabilities to the loss."""
    return [
        f"actor_rollout_ref.model.path={folder}/model",
        "actor_rollout_ref.model.use_remove_padding=False",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        "actor_rollout_ref.actor.strategy=fsdp2",  # FSDP 1 refuses the CPU
        "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2",  # for verl 0.7
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32",
        "actor_rollout_ref.actor.use_torch_compile=False",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
        "actor_rollout_ref.rollout.name=vllm",
    ]


def cpu_settings(folder, longest):
    """A whole run without a GPU, of prompts and answers of at most `longest` tokens together."""
    rollout = "actor_rollout_ref.rollout"
    return [
        *actor_settings(folder),
        "data.dataloader_num_workers=0",
        "actor_rollout_ref.ref.strategy=fsdp2",
        "critic.strategy=fsdp2",
        f"{rollout}.dtype=float32",
        f"{rollout}.enforce_eager=True",
        f"{rollout}.free_cache_engine=False",
        f"+{rollout}.enable_sleep_mode=False",
        f"{rollout}.max_model_len={longest}",
        f"{rollout}.max_num_seqs=32",
        f"{rollout}.agent.num_workers=1",
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=16",
        "reward.num_workers=1",
        "++transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        "trainer.device=cpu",
        "+ray_kwargs.ray_init.num_gpus=1",
        "ray_kwargs.ray_init.num_cpus=8",
    ]


def run_settings(folder, output, steps):
    """A whole run: 8 prompts x 4 samples a step, in two mini-batches, so that the second update is off policy."""
    rollout = "actor_rollout_ref.rollout"
    return [
        *cpu_settings(folder, 64),
        "algorithm.adv_estimator=grpo",
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/test.parquet",
        "data.train_batch_size=8",
        "data.max_prompt_length=32",
        "data.max_response_length=8",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
        f"{rollout}.n=4",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=8",
        f"{rollout}.max_num_batched_tokens=256",
        f"reward.custom_reward_function.path={Path(__file__).resolve()}",
        "trainer.n_gpus_per_node=1",
        "trainer.nnodes=1",
        "trainer.logger=[console,file]",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.total_epochs=1000",
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={output}/checkpoints",
        f"hydra.run.dir={output}/hydra",
    ]


def update_actor(folder, out, cases, ranks=1, *, dies=False):
    """Run update_actor.py: [{case: result} of each rank], and what it printed; no results of a run that dies."""
    import torch

    Path(out).mkdir()
    (Path(out) / "cases.json").write_text(json.dumps(cases))
    script = str(Path(__file__).parent / "update_actor.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", script]
    done = subprocess.run(
        [*command, str(out)], env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode != 0) is dies, done.stdout + done.stderr
    results = [] if dies else [torch.load(Path(out) / f"{rank}.pt") for rank in range(ranks)]
    return results, done.stdout + done.stderr


class AsRLLM:
    """A loss as rLLM gives it to verl's workers: an object with the actor's configuration (commit 9beb6e0)."""

    def __init__(self, inner, config):
        self.inner, self.config = inner, config

    def __call__(self, model_output, data, dp_group=None):
        return self.inner(self.config, model_output, data, dp_group)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """The reward: the share of digits, and 1 more for starting with the answer."""
    text = solution_str.strip()
    right = text[: len(ground_truth)] == ground_truth
    return {"score": right + sum(c.isdigit() for c in text) / max(len(text), 1), "acc": float(right)}


def tokenizer_of(characters):
    """Make Qwen's tokenizer, with a token for each character."""
    from transformers import Qwen2Tokenizer

    # transformers makes a byte-level Qwen2Tokenizer for a model of type qwen2, whatever was saved. verl asks Qwen's for
    # "\n" (\u010a) and <|im_end|>.
    special = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
    tokenizer = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate([*special, *characters])},
        merges=[],
        unk_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        extra_special_tokens=["<|im_start|>"],
    )
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer


def qwen2(vocabulary):
    """Make a random two-layer model; the tokenizer's length is its vocabulary: verl cuts the rollout's logits to it."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=64,  # vLLM's CPU heads have at least 32
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return Qwen2ForCausalLM(config).float()


def write(folder):
    """`folder/model`, a random Qwen2 with a tokenizer of characters, and `folder/{train,test}.parquet`."""
    import pandas

    tokenizer = tokenizer_of(["\u010a", "\u0120", *"0123456789+-*=?.abcdefghijklmnopqrstuvwxyz"])
    tokenizer.save_pretrained(Path(folder) / "model")
    qwen2(len(tokenizer)).save_pretrained(Path(folder) / "model")
    for split, size in (("train", 256), ("test", 8)):
        rows = [
            {
                "data_source": "toy/add",
                "prompt": [{"role": "user", "content": f"{i % 10}+{i * 7 % 10}="}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(i % 10 + i * 7 % 10)},
                "extra_info": {"split": split, "index": i},
            }
            for i in range(size)
        ]
        pandas.DataFrame(rows).to_parquet(Path(folder) / f"{split}.parquet")
