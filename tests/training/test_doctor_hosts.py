"""The doctor of every trainer: it knows whose a configuration is, reads each form of it, and says what acts."""

import itertools

import pytest

from bandpo.doctor.hosts import FACTS, host_of
from bandpo.integrations import TRAINERS
from bandpo_runs.training.doctor import examine
from bandpo_runs.training.script import of_code
from bandpo_runs.training.shell import of_shell

SIZES = "--rollout-batch-size 32\n --n-samples-per-prompt 8\n --global-batch-size {}\n"
RLHF = "--rollout.batch_size {} --train.batch_size 128\n"
NEMO = "  num_prompts_per_step: {}\n  num_generations_per_prompt: 8\n"


def said(tmp_path, text, suffix=".yaml", *more):
    path = tmp_path / f"run{suffix}"
    path.write_text(text, encoding="utf-8")
    return [(f.level, f.what, f.cure) for f in examine([str(path), *map(str, more)])]


# What a trainer's user writes, in the trainer's own form: one optimizer step a batch, then several. Without the second
# the number does not depend on the settings.
WRITTEN = {
    "verl": (".sh", "actor_rollout_ref.actor.ppo_mini_batch_size=64 data.train_batch_size={}", 64, 256),
    "SkyRL": (".sh", "N={}\nrun trainer.train_batch_size=$N \\\n trainer.policy_mini_batch_size=64", 64, 256),
    "RLinf": (".yaml", "algorithm: {{n_minibatches: {}, ratio_clip_eps: 0.2}}", 1, 4),
    "xtuner": (".py", "import xtuner\nn = {}\nWorkerConfig(optimizer_steps=n)\n", 1, 4),
    "slime": (".sh", f"ARGS=(--hf /slime/x\n {SIZES})", 256, 64),
    "miles": (".py", "import miles\nargs = '--rollout-batch-size 8 ' '--global-batch-size {} '\n", 8, 2),
    "prime-rl": (".toml", "[orchestrator]\nbatch_size = 128\n[trainer.loss]\neps = 0.3\n", None, None),
    "rLLM": (".yaml", "algorithm: {{loss_plugins: [mine], eps_clip: 0.2}}\n", None, None),
    "Trinity-RFT": (".yaml", "algorithm: {{algorithm_type: grpo, bypass_old_logprobs: {}}}", "false", None),
    "torchtitan": (".py", "import torchtitan\nDAPOLoss.Config(ratio_clip_high=0.28)\n", None, None),
    "tinker": (".py", "import tinker_cookbook\nclass C:\n    n: int = 4\nConfig(num_substeps=c.n)\n", None, None),
    "torchrl": (".py", "from torchrl.objectives.llm import GRPOLoss\n", None, None),
    "Liger": (".py", "import liger_kernel\n", None, None),
    "axolotl": (".yaml", "rl: grpo\ntrl: {{num_iterations: {}, epsilon: 0.2}}\n", 1, 4),
    "AsyncGRPO": (".py", "args = AsyncGRPOConfig(epsilon=0.2)\nAsyncGRPOTrainer(model, reward, args)\n", None, None),
    "AReaL": (".yaml", "actor: {{recompute_logprob: true, ppo_n_minibatches: {}}}\n", 1, 4),
    "OpenRLHF": (".sh", f"python3 -m openrlhf.cli.train_ppo_ray {RLHF}", 128, 512),
    "NeMo-RL": (".yaml", "policy: {{train_global_batch_size: 64}}\ngrpo:\n" + NEMO, 8, 32),
    "open-instruct": (".sh", "python open_instruct/grpo_fast.py --num_mini_batches {}\n", 1, 4),
    "ROLL": (".yaml", "num_return_sequences_in_group: 8\nppo_epochs: {}\n", None, None),
    "EasyR1": (
        ".sh",
        "python -m verl.trainer.main data.rollout_batch_size={} worker.actor.global_batch_size=64",
        64,
        256,
    ),
    "ms-swift": (".sh", "swift rlhf --gradient_accumulation_steps 2 --steps_per_generation {}\n", 2, 8),
}
RECIPES = {"AReaL", "OpenRLHF", "NeMo-RL", "open-instruct", "ROLL", "EasyR1", "ms-swift"}  # of docs/recipes.md


def test_every_trainer_has_facts():
    assert set(FACTS) == set(TRAINERS) - {"TRL", "unsloth"} | RECIPES, "unsloth's settings are a GRPOConfig"
    assert set(WRITTEN) == set(FACTS)


HALF = {
    "RLinf": (".yaml", "n_minibatches: 4\n{}", "entropy_op_type: torch", "entropy_op_type: flash_attn", "=flash_attn"),
    "miles": (".sh", "miles {}\n", "--true-on-policy-mode", "", "without --true-on-policy-mode they are"),
    "torchrl": (".yaml", "clip: torchrl\ntrain: {{mixed_precision: {}}}\n", "false", "true", "mixed_precision=True"),
    "axolotl": (".yaml", "rl: grpo\nbf16: true\n{}", "deepspeed: zero3.json\n", "", "without deepspeed they are"),
    "ms-swift": (".sh", "swift rlhf --torch_dtype bfloat16 {}\n", "--deepspeed zero2", "", "without --deepspeed"),
    "open-instruct": (".sh", "python open_instruct/grpo_fast.py\n{}", "", None, "write logits.float() in forward_for_"),
}


@pytest.mark.parametrize("name", HALF)
def test_half_precision_is_told_where_the_trainer_does_not_compute_in_float32(tmp_path, name):
    suffix, text, bad, good, cure = HALF[name]
    words = "log-probabilities are computed in the precision of the model; in bfloat16 ratios are wrong by percents"
    (result,) = (f for f in said(tmp_path, text.format(bad), suffix) if words in f[1])
    assert (result[0], cure in result[2]) == ("warning", True)
    assert good is None or not any(words in f[1] for f in said(tmp_path, text.format(good), suffix))


def test_of_other_trainers_it_says_no_word_of_precision(tmp_path):
    for name, (suffix, text, number, _) in WRITTEN.items():
        told = any("precision of the model" in f[1] for f in said(tmp_path, text.format(number), suffix))
        assert told == (name == "open-instruct"), name


def test_a_shell_script_is_read_and_not_run(tmp_path):
    script = """
    # slime a.b=9
    N=4; export M=${N}
    : "${K:=7}"
    x=1
    [ "$x" ] && x=2
    run a.b="$N" '+a.c={type: band, delta: 0.1}' a.d=${M} a.e=${Q:-5} a.f=$K a.g=$x a.h=$((N * 2)) "a.i=it's" \\
      --flag --other-flag 0.5 --last=3 # a.j=1
    touch ran
    """
    result = of_shell(script)
    assert result["a"] == {
        "b": 4, "c": {"type": "band", "delta": 0.1}, "d": 4, "e": 5, "f": 7, "g": "$x", "h": 8, "i": "its"
    }  # fmt: skip
    assert {key: value for key, value in result.items() if key != "a"} == {
        "--flag": True, "--other-flag": 0.5, "--last": 3
    }  # fmt: skip


def test_of_a_script_plain_values_are_read_and_names_that_are_set_once(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        "print('ran')\nn = 4\nm = 1\nm = 2\nclass C:\n    k: int = 3\n"
        "f(a=n, b=m, c=args.k, d=g(), e=dict(x=1), **{'h': 2})\nmod.f(a=1)\nf(a=4)\nf(i=1)\nf(i=2)\n"
    )
    result = of_code(path)
    assert result["f"] == {"a": 4, "b": ..., "c": 3, "d": ..., "e": {"x": 1}, "h": 2, "i": ...}
    assert result["mod"] == {"f": {"a": 1}}


def test_comments_do_not_tell_whose_a_configuration_is():
    for one, other in itertools.permutations(["import torchtitan", "import xtuner", "n_minibatches: 4"], 2):
        assert host_of(f"# {other}\n{one}  # {other}\n") == host_of(one) != host_of(other)
    assert host_of("nothing: 1") is None
