"""The doctor of every trainer: it knows whose a configuration is, reads each form of it, and says what acts."""

import itertools
import json
import re

import pytest

from bandpo.doctor.hosts import FACTS, host_of
from bandpo.integrations import TRAINERS
from bandpo_runs.cli import main
from bandpo_runs.training.doctor import _of_code, examine
from bandpo_runs.training.shell import of_shell

NODE = "{type: band, divergence: kl, delta: 0.05}"
LINES = "--loss-type custom_loss --custom-loss-function-path bandpo.integrations.slime.loss"
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
BATCHES = [(name, suffix, text, n, i) for name, (suffix, text, *ns) in WRITTEN.items() for i, n in enumerate(ns) if n]


def test_every_trainer_has_facts():
    assert set(FACTS) == set(TRAINERS) - {"TRL", "unsloth"} | RECIPES, "unsloth's settings are a GRPOConfig"
    assert set(WRITTEN) == set(FACTS)


@pytest.mark.parametrize(("name", "suffix", "text", "number", "several"), BATCHES)
def test_it_says_whether_a_batch_serves_more_than_one_step(tmp_path, name, suffix, text, number, several):
    (steps,) = (f for f in said(tmp_path, text.format(number), suffix) if "optimizer step" in f[1])
    assert steps[0] == ("ok" if several else "problem")
    assert ("spread over 4 optimizer steps" if several else "the ratio is 1 by design") in steps[1]


@pytest.mark.parametrize("before", ["", "# ", "x: 1  # "])
def test_a_plug_in_in_a_comment_is_not_there(tmp_path, before):
    line = before + "plugins: [bandpo.integrations.axolotl.Plugin]"
    found = said(tmp_path, f"rl: grpo\n{line}\ntrust_region: {NODE}\n")
    assert found[0][0] == ("problem" if before else "ok")
    assert ("bandpo is not named" if before else "the loss of axolotl is Band") in found[0][1]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_configuration_without_a_rule_is_told_whose_loss_it_is(tmp_path, name):
    suffix, text, number, _ = WRITTEN[name]
    (note,) = (f for f in said(tmp_path, text.format(number), suffix) if "own" in f[1] and "loop" not in f[1])
    assert note[0] == "note"
    assert note[1].startswith(f"the loss is {name}'s own")
    limits = {"RLinf": r"\(ratio_clip_eps 0.2\) are distances from 1", "torchtitan": r"\(ratio_clip_high 0.28\)"}
    limits["prime-rl"] = r"\(eps 0.3\) are differences of probabilities"
    assert re.search(limits.get(name, ""), note[1])


@pytest.mark.parametrize("name", [name for name in WRITTEN if FACTS[name].get("steps") == [{}] or name == "tinker"])
def test_a_ratio_to_the_sampler_may_act_at_one_step(tmp_path, name):
    (steps,) = (f for f in said(tmp_path, WRITTEN[name][1].format("true"), WRITTEN[name][0]) if "each answer" in f[1])
    assert steps[0] == "ok"
    assert "the ratio is to the sampler" in steps[1] or "over 4 optimizer steps" in steps[1]


def test_a_setting_with_several_values_or_none_is_not_judged(tmp_path):
    for text, why in (
        ("a: {n_minibatches: 1}\nb: {n_minibatches: 4}\n", "not a plain number"),
        ("ratio_clip_eps: 0.2\n", "not given"),
    ):
        level, what, _ = said(tmp_path, text)[-1]
        assert (level, what) == (
            "note",
            f"the optimizer steps of a batch are not judged: n_minibatches is {why} here",
        )


def test_steps_that_depend_on_the_number_of_processes_are_not_judged(tmp_path):
    level, what, _ = said(tmp_path, "rl: grpo\ntrl: {generation_batch_size: 64, num_iterations: 2}\n")[-1]
    assert (level, "under trl.generation_batch_size they depend on the number of processes" in what) == ("note", True)


def test_the_anchor_can_be_a_setting(tmp_path):
    flags = f"slime {LINES} {SIZES.format(256)}"
    level, _, cure = said(tmp_path, flags, ".sh")[-1]
    assert (level, "or --use-rollout-logprobs, the sampler as anchor" in cure) == ("problem", True)
    assert said(tmp_path, f"{flags} --use-rollout-logprobs", ".sh")[-1][0] == "ok"
    script = "import skyrl\nrun('trainer.algorithm.policy_loss_type=bandpo')\nregister_bandpo_loss('dppo'{})\n"
    refused, taken = (said(tmp_path, script.format(more), ".py")[0] for more in ("", ", anchor='rollout'"))
    assert refused == (
        "problem",
        "trust_region: method 'dppo': its ratio is to the sampler's policy",
        "set anchor='rollout' of register_bandpo_loss",
    )
    assert taken[0] == "ok"


@pytest.mark.parametrize("before", ["import unsloth\n", "# no unsloth\n"])
def test_a_script_of_unsloth_is_judged_by_what_its_trainer_takes(tmp_path, before):
    trainer = "BandPOTrainer(model, reward, GRPOConfig(num_iterations=2), data, trust_region='gspo')\n"
    found = said(tmp_path, before + trainer, ".py")
    refused = [f[1] for f in found if "ratio must be 'token' through unsloth" in f[1]]
    assert bool(refused) == before.startswith("import")


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_of_a_recipe_settings_say_nothing_and_its_rule_is_not_read_from_them(tmp_path, name):
    suffix, text, number, _ = WRITTEN[name]
    note, *_ = said(tmp_path, text.format(number), suffix)
    assert note[2] == "for bandpo's: docs/recipes.md; no setting shows whether that is in place"
    rule = tmp_path / "rule.yaml"
    rule.write_text(f"trust_region: {NODE}\nplugin: bandpo.integrations.trl\n")
    level, what, cure = said(tmp_path, text.format(number), suffix, rule)[0]
    assert (level, what) == ("problem", f"bandpo is not named: the loss is {name}'s own, and no option is read")
    assert cure.startswith("docs/recipes.md")


def test_settings_of_trainers_with_a_recipe(tmp_path):
    areal = "actor: {{eps_clip: 0.4, ppo_n_minibatches: 1{}}}\n"
    for name, level in (("offload", "ok"), ("use_decoupled_loss", "problem"), ("recompute_logprob", "problem")):
        limits, steps = said(tmp_path, areal.format(f", {name}: true"))
        assert "its limits (eps_clip 0.4) are distances from 1" in limits[1]
        assert (steps[0], "the ratio is to the sampler" in steps[1]) == (level, level == "ok")
    assert "may be an approx" in said(tmp_path, areal.format(", prox_logp_method: loglinear"))[-1][1]
    roll = "num_return_sequences_in_group: 8\nactor_train: {training_args: {per_device_train_batch_size: 1}}\n"
    for text in (roll, "num_return_sequences_in_group: 8\n"):
        (*_, (level, what, _)) = said(tmp_path, text)
        assert (level, "/ the number of data-parallel processes" in what, "your own loop" in what) == (
            "note",
            True,
            False,
        )
    swift = "swift rlhf --rlhf_type grpo {} --num_iterations 2 --epsilon_high 0.28\n"
    _, steps = said(tmp_path, swift.format("--gradient_accumulation_steps 8"), ".sh")
    assert "each answer is used twice, and a batch is spread over 2 optimizer steps" in steps[1]
    assert "not judged" in said(tmp_path, swift.format(""), ".sh")[-1][1]
    assert "not judged" in said(tmp_path, swift.format("--generation_batch_size 64"), ".sh")[-1][1]


def test_a_rule_without_its_loss_is_told_what_to_write(tmp_path):
    for text, suffix, cure in (
        (f"rl: grpo\ntrust_region: {NODE}\n", ".yaml", "docs/hosts.md"),
        ("[trainer.loss]\ntype = 'custom'\nkwargs = {trust_region = 'dppo'}\n", ".toml", "loss.type=custom"),
    ):
        level, what, written = said(tmp_path, text, suffix)[0]
        assert (level, "no option is read" in what, written.startswith(cure)) == ("problem", True, True)


def test_a_file_of_the_rule_stands_beside_the_script(tmp_path):
    rule = tmp_path / "rule.yaml"
    rule.write_text(f"trust_region: {NODE}\n")
    found = said(tmp_path, f"slime {LINES} {SIZES.format(64)}", ".sh", rule)
    assert [f[0] for f in found] == ["ok", "ok"]
    assert found[0][1].startswith('the loss of slime is Band("kl", 0.05)')


@pytest.mark.parametrize(
    ("rule", "level", "words"),
    [
        ("Clip(1.0, inf)", "warning", "so wide that no token can be outside"),
        ("Band('tv', 1.0)", "warning", "so wide that no token can be outside"),
        ("Clip(0.2, 1000.0)", "ok", "the loss of tinker is Clip"),
        ("Clip(0.8, 1.2)", "warning", "lets the ratio go from 0.2 to 2.2"),
        ("make()", "note", "trust_region: not a plain value in the script"),
    ],
)
def test_a_region_that_stops_nothing_is_told(tmp_path, rule, level, words):
    found = said(tmp_path, f"import tinker\nx.forward_backward_custom(data, bandpo_loss({rule}))\n", ".py")
    levels = [f[0] for f in found if words in f[1]]
    assert levels == [level]
    assert ("warning" in [f[0] for f in found]) == (level == "warning")


def test_settings_of_the_sampler_that_change_its_probabilities_are_told(tmp_path):
    sampled = "import torchtitan\nSamplingConfig(temperature=0.8, top_p=0.95)\n"
    note = said(tmp_path, sampled, ".py")[-1]
    assert note[:2] == (
        "note",
        "SamplingConfig.top_p = 0.95, SamplingConfig.temperature = 0.8: tokens are not sampled from the probabilities "
        "that bounds are computed from",
    )
    ours = f"{sampled}from bandpo.integrations.torchtitan import BandPOLoss\nBandPOLoss.Config()\n"
    assert said(tmp_path, ours, ".py")[-1][0] == "warning"
    twice = f"{sampled}SamplingConfig(temperature=0.0, top_p=1.0)\n"  # which of them is the training's?
    assert said(tmp_path, twice, ".py")[-1][0] == "ok"
    skyrl = "generator.sampling_params.temperature=0.7 generator.eval_sampling_params.top_p=0.7 trainer.algorithm.x=1"
    assert (
        "sampl" not in said(tmp_path, skyrl, ".sh")[-1][1]
    )  # it divides by the temperature; the other is not training


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
    (found,) = (f for f in said(tmp_path, text.format(bad), suffix) if words in f[1])
    assert (found[0], cure in found[2]) == ("warning", True)
    assert good is None or not any(words in f[1] for f in said(tmp_path, text.format(good), suffix))


def test_of_other_trainers_it_says_no_word_of_precision(tmp_path):
    for name, (suffix, text, number, _) in WRITTEN.items():
        told = any("precision of the model" in f[1] for f in said(tmp_path, text.format(number), suffix))
        assert told == (name == "open-instruct"), name


@pytest.mark.parametrize("call", ["types.SamplingParams({})", "train.Config({})"])
def test_of_tinker_the_sampler_and_the_cookbook_are_read(tmp_path, call):
    """What training computes is at temperature 1, and the server may return log-probabilities at either."""
    script = "import tinker\nx.forward_backward_custom(data, bandpo_loss('band'))\n" + call
    for setting in ("temperature=0.7", "top_p=0.9", "top_k=20"):
        level, what, _ = said(tmp_path, script.format(f"max_tokens=9, {setting}"), ".py")[-1]
        assert level == "warning"
        assert f"{setting.replace('=', ' = ')}: tokens are not sampled from the probabilities" in what
    neutral = said(tmp_path, script.format("temperature=1.0, top_p=1, top_k=-1"), ".py")
    assert not any("sampled from" in what for _, what, _ in neutral)


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
    found = of_shell(script)
    assert found["a"] == {
        "b": 4, "c": {"type": "band", "delta": 0.1}, "d": 4, "e": 5, "f": 7, "g": "$x", "h": 8, "i": "its"
    }  # fmt: skip
    assert {key: value for key, value in found.items() if key != "a"} == {
        "--flag": True, "--other-flag": 0.5, "--last": 3
    }  # fmt: skip


def test_of_a_script_plain_values_are_read_and_names_that_are_set_once(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        "print('ran')\nn = 4\nm = 1\nm = 2\nclass C:\n    k: int = 3\n"
        "f(a=n, b=m, c=args.k, d=g(), e=dict(x=1), **{'h': 2})\nmod.f(a=1)\nf(a=4)\nf(i=1)\nf(i=2)\n"
    )
    found = _of_code(path)
    assert found["f"] == {"a": 4, "b": ..., "c": 3, "d": ..., "e": {"x": 1}, "h": 2, "i": ...}
    assert found["mod"] == {"f": {"a": 1}}


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path, capsys):
    for name, text in (("a.toml", "[trainer.loss\n"), ("b.py", "import xtuner (\n")):
        (tmp_path / name).write_text(text)
        assert main(["doctor", str(tmp_path / name)]) == 2
        assert f"{name} is not " in capsys.readouterr().err


def test_comments_do_not_tell_whose_a_configuration_is():
    for one, other in itertools.permutations(["import torchtitan", "import xtuner", "n_minibatches: 4"], 2):
        assert host_of(f"# {other}\n{one}  # {other}\n") == host_of(one) != host_of(other)
    assert host_of("nothing: 1") is None


LOGGED = {
    "prime-rl": {"bandpo/clip/count/mean": 2.0, "bandpo/tokens/mean": 200.0},
    "SkyRL": {"policy/bandpo/clip/count": 2.0, "policy/bandpo/tokens": 200.0, "policy/clip_ratio": 0.5},
    "tinker": {"bandpo/clip/fraction": 0.01},
    "SkyRL's own": {"policy/clip_ratio": 0.01},
    "SkyRL's own, of 2026": {"policy/ppo_clip_ratio": 0.01},
    "prime-rl's own": {"is_masked/mean": 0.01},
    "slime's own": {"train/pg_clipfrac": 0.01},
    "Trinity-RFT's own": {"actor/pg_clipfrac": 0.01, "actor/ppo_kl": 0.001, "actor/pg_loss": 0.02},
    "ms-swift's own": {"clip_ratio/region_mean": 0.01, "clip_ratio/low_mean": 0.004, "loss": 0.1},
    "RLinf's own": {"train/actor/clip_fraction": 0.01, "train/actor/ratio": 1.0, "train/actor/grad_norm": 0.3},
    "RLinf's own, of its runner of mathematics": {
        "actor/training/actor/clip_fraction": 0.01, "actor/training/actor/approx_kl": 0.001
    },
    "OpenRLHF's own": {"train/ppo_clip_ratio": 0.01, "train/response_clip_ratio": 0.5, "train/ppo_kl": 0.001},
    "open-instruct's own": {"policy/clipfrac_avg": 0.01, "val/rho_clipfrac": 0.5, "val/ratio": 1.0},
    "AReaL's own": {"ppo_actor/update/clip_ratio/avg": 0.01, "ppo_actor/update/clip_ratio/max": 1.0},
    "ROLL": {"actor/ppo_ratio_clipfrac": 0.01, "actor/clipfrac": 0.5, "actor/ppo_ratio_high_clipfrac": 0.004},
    "torchtitan": {"loss/ratio_clipped_frac": 0.01, "loss/ratio_mean": 1.0, "loss/mean": 0.1},
    "torchrl": {"training/clip_fraction": 0.01, "training/ESS": 0.9, "training/loss_objective": 0.1},
    "torchrl, of the loss": {"clip_fraction": 0.01, "ESS": 0.9},
    "xtuner": {
        "train_metrics/worker_0/step_avg_reduced_train_policy_clip_frac_high": 0.004,
        "train_metrics/worker_0/step_avg_reduced_train_policy_clip_frac_low": 0.006,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LOGGED)
def test_a_log_of_any_trainer_says_what_share_was_stopped(tmp_path, name):
    log = tmp_path / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": i, **LOGGED[name]}) + "\n" for i in range(3)))
    (found,) = examine([str(log)])
    assert f": The rule clipped {'' if 'own' in name else 'at most '}1 % of tokens in 3 rows" in found.what
    theirs = next(iter(LOGGED[name])).removeprefix("train/")
    theirs = "clip/fraction" if "bandpo/" in theirs or name == "xtuner" else theirs  # which are of two numbers
    assert found.what.startswith(f"{theirs}: "), "a trainer's own number goes by the trainer's name"


def test_a_folder_and_a_chart_stand_for_the_runs_in_them(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text("{}")
        (tmp_path / "runs" / name / "metrics.jsonl").write_text('{"step": 1, "bandpo/clip/fraction": 0.01}\n')
    chart = tmp_path / "chart.csv"
    chart.write_text("Step,c - actor/pg_clipfrac,d=1/2 - actor/pg_clipfrac\n1,0.01,0.01\n")
    for given, runs in ((tmp_path / "runs", ["a", "b"]), (chart, ["c", "d=1-2"]), (chart / "d=1-2", [""])):
        found = [each.what for each in examine([str(given)])]
        assert [what.partition(": ")[0] for what in found if runs != [""]] == [run for run in runs if run]
        assert all("1 % of tokens in 1 row" in what for what in found), "a chart of one number does not say whose loss"
        assert len(found) == len(runs)
