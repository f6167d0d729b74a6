"""The recipes of the paper's runs, the verl command made from them, and the estimate of memory and time."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from disk import write
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

import bandpo
from bandpo import Band, Capped, Clip, Objective
from bandpo.trust_regions import Relaxed
from bandpo_runs.training.on_verl import load
from research.plan import main as estimate
from research.plan import plan

PAPER = Path(__file__).parents[2] / "recipes" / "paper"
# The hub's name and the paper's steps.
MODELS = {
    "r1-qwen-1.5b": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 800),
    "r1-qwen-7b": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 500),
    "r1-llama-8b": ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 500),
    "qwen2.5-3b": ("Qwen/Qwen2.5-3B-Instruct", 800),
}
# The rule of the paper, and whether the public scripts cap it.
METHODS = {
    "grpo": (Clip(0.2, 0.2), False), "clip-higher": (Clip(0.2, 0.28), False), "band-kl-0.03": (Band("kl", 0.03), True),
    "band-kl": (Band("kl", 0.05), True), "band-kl-0.10": (Band("kl", 0.1), True), "band-tv": (Band("tv", 0.05), True),
    "band-chi2": (Band("chi2", 0.05), True),
    "relaxed": (Relaxed(Band("kl", 0.05), Clip(0.2, 0.28)), True),
    "dcpo": (bandpo.DCPO(0.16, 0.2, 10.0), False),
    "no-clip": (Clip(1.0, math.inf), False),
    "clip-wide": (Clip(0.2, 1.0), False),
    "weighted-clip": (Clip(0.02, 1.0), False),
}  # fmt: skip
WEIGHTS = {"weighted-clip": 0.85}
BAND_KL = PAPER / "qwen2.5-3b" / "band-kl.yaml"


def test_there_is_a_recipe_for_every_model_and_method():
    result = {str(path.relative_to(PAPER)) for path in PAPER.glob("*/*.yaml")}
    expected = {f"{model}/{method}.yaml" for model in MODELS for method in METHODS}
    parts = {f"models/{model}.yaml" for model in MODELS} | {f"methods/{method}.yaml" for method in METHODS}
    assert result == expected | parts


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_is_its_model_and_its_method_and_the_variants_differ_where_they_say(model, method):
    recipe = PAPER / model / f"{method}.yaml"
    paper, public = load([recipe]), load([recipe], ["variant=public"])
    (region, capped), weight = METHODS[method], WEIGHTS.get(method, 1.0)
    limited = Objective(Capped(region, 10.0) if capped else region, dual_clip=10.0, positive_weight=weight)
    rules = [bandpo.objective(each.loss["trust_region"]) for each in (paper, public)]
    assert rules == [Objective(region, positive_weight=weight), limited]
    name, steps = MODELS[model]
    assert paper.settings["actor_rollout_ref"]["model"]["path"] == name
    trainers = [each.settings["trainer"] for each in (paper, public)]
    assert [each["total_training_steps"] for each in trainers] == [steps, None]
    assert trainers[0]["total_epochs"] == 10
    # Two runs never share a folder of checkpoints, which verl would go on from.
    names = [f"{each['project_name']}/{each['experiment_name']}" for each in trainers]
    assert names == [f"paper-{model}/{method}", f"paper-{model}/{method}-variant-public"]
    different = {text.partition("=")[0].rpartition(".")[2] for text in {*paper.overrides()} ^ {*public.overrides()}}
    assert different == {"trust_region", "total_training_steps", "experiment_name"}


def words_of(command):
    """What a shell gives to `python`."""
    script = 'python() { printf "%s\\0" "$@"; }\n' + command
    return subprocess.run(["bash", "-euc", script], check=True, capture_output=True, text=True).stdout.split("\0")[:-1]


def test_the_printed_command_reaches_verl_word_by_word(cli):
    recipe, settings = str(PAPER / "r1-qwen-7b" / "relaxed.yaml"), ["variant=public", "trainer.nnodes=2"]
    words = words_of(cli.out("verl", recipe, *settings, "--print"))
    assert words == ["-m", "verl.trainer.main_ppo", *load([recipe], settings).overrides()]
    band, clip = "{type:band,divergence:kl,delta:0.05}", "{type:clip,eps_low:0.2,eps_high:0.28}"
    relaxed = f"{{type:capped,region:{{type:relaxed,inner:{band},outer:{clip}}},max_ratio:10.0}}"
    rule = f"{{type:objective,dual_clip:10.0,trust_region:{relaxed}}}"
    assert {*words} >= {
        "data.train_files=[data/paper/dapo-math-17k.parquet,data/paper/math-levels-3-5.parquet]",
        "reward.custom_reward_function.path='pkg://bandpo.rewards'",
    }
    assert words[-3:] == [
        "actor_rollout_ref.actor.policy_loss._target_=bandpo.integrations.verl.BandPOLossConfig",
        "actor_rollout_ref.actor.policy_loss.loss_mode=bandpo",
        f"+actor_rollout_ref.actor.policy_loss.trust_region={rule}",
    ]


def test_overrides_and_overlays_come_last(cli, tmp_path):
    text = "trainer: {test_freq: 20}\ntrust_region: {type: band, divergence: tv, delta: 0.3}\n"
    overlay = write(tmp_path / "mine.yaml", text)
    settings = ["trust_region.delta=0.2", "data.train_files=a b.parquet", "actor_rollout_ref.actor.optim.lr=2e-6"]
    words = words_of(cli.out("verl", BAND_KL, overlay, "--print", *settings, "+data.mine=1", "~critic"))
    once = (
        "+actor_rollout_ref.actor.policy_loss.trust_region={type:band,divergence:tv,delta:0.2}",
        "data.train_files='a b.parquet'",
        "actor_rollout_ref.actor.optim.lr=2e-6",
        "trainer.test_freq=20",
    )
    assert [*map(words.count, once)] == [1] * 4
    assert words[-2:] == ["+data.mine=1", "~critic"]
    # The name, and with it the folder of checkpoints, tells the runs apart.
    name = "trainer.experiment_name=band-kl-mine-trust_region.delta-0.2-data.train_files-a-b.parquet-"
    assert [word[: len(name)] for word in words if word.startswith("trainer.experiment_name=")] == [name]


def test_a_long_name_stays_short_and_different():
    long = [f"data.train_files=[{'/'.join(['folder'] * 40)}/{file}.parquet]" for file in ("a", "a", "b")]
    runs = [load([BAND_KL], settings) for settings in (*([x] for x in long), [*long, "trainer.experiment_name=mine"])]
    first, again, other, mine = (run.settings["trainer"]["experiment_name"] for run in runs)
    assert (first == again != other, len(first), len(other), mine) == (True, 100, 100, "mine")


def test_a_seed_makes_a_repetition_with_a_folder_of_its_own():
    settings = [], ["seed=1"], ["seed=2"], ["seed=2", "anchor=sampler"], ["trainer.experiment_name=mine", "seed=0"]
    runs = [load([BAND_KL], each) for each in settings]
    changed = {"data.seed=2", "actor_rollout_ref.actor.data_loader_seed=2", "actor_rollout_ref.rollout.seed=2000"}
    assert {*runs[2].overrides()} - {*runs[0].overrides()} == changed | {"trainer.experiment_name=band-kl-seed2"}
    names = [run.settings["trainer"]["experiment_name"] for run in runs]
    assert names == ["band-kl", "band-kl-seed1", "band-kl-seed2", "band-kl-anchor-sampler-seed2", "mine-seed0"]
    assert runs[-1].settings["data"]["seed"] == 0


@pytest.fixture
def estimated(capsys):
    """What `python -m research.plan` prints of a recipe."""

    def out(*words, code=0):
        assert estimate([str(word) for word in words]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return out


def test_the_estimate_of_repetitions(estimated):
    times = r"(?:800 steps|2 such runs) +([\d.]+)  hours, (\d+) GPU hours"
    one, two = re.findall(times, estimated(BAND_KL, "--seeds", "2"))
    hours, gpu_hours = float(one[0]), float(one[1])
    assert (float(two[0]), gpu_hours) == (pytest.approx(2 * hours, abs=0.2), pytest.approx(8 * hours, abs=1))


def test_the_last_recipe_that_names_a_variant_is_heard(tmp_path):
    nodes = {"variant": "paper"}, {"variant": "public"}, {}
    others = [write(tmp_path / f"{i}.yaml", node) for i, node in enumerate(nodes)]
    orders = [BAND_KL, *others], [*others, BAND_KL], [BAND_KL]
    result = [load(recipes).settings["trainer"]["total_training_steps"] for recipes in orders]
    assert result == [None, 800, 800]  # public has none


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["variant=publik"], "variant must be one of ['paper', 'public'], got 'publik', did you mean 'public'?"),
        (["trust_region.detla=0.1"], "trust_region: unknown key 'detla'"),
        (["tokens_share=0.1", "tokens_share.x=1"], "tokens_share.x cannot be set: tokens_share is 0.1, not a mapping"),
        (["variant=public", "trust_region.beta=0.1"], "trust_region: beta must be 0.0 through verl, got 0.1: the KL"),
        (["trainer=null"], "trainer.experiment_name cannot be set: trainer is None, not a mapping"),
        (["something"], "'something' is not a setting; write key=value"),
        (["seed=many"], "seed must be an integer from 0 to 999999, got 'many'"),
        (["seed=true"], "seed must be an integer from 0 to 999999, got True"),
        (["seed=1", "+data.seed=1"], "data.seed is set by seed; remove one of them"),
        (["data.seed=[1"], "the value of data.seed is not YAML"),
        (["none.yaml"], "none.yaml does not exist"),
        ([], "verl is not installed here (docs/verl.md); --print shows the command"),
    ],
)
def test_mistakes_are_named_in_one_line(cli, monkeypatch, here, arguments, message):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert message in cli.error("verl", BAND_KL, *arguments)


FAKE_MAIN = "import json, sys; print(json.dumps(sys.argv[1:])); sys.exit(7)"


@pytest.fixture
def fake_verl(tmp_path):
    """A package of verl's name that tells how it was started."""
    trainer = tmp_path / "site" / "verl" / "trainer"
    trainer.mkdir(parents=True)
    for folder in (trainer, trainer.parent):
        (folder / "__init__.py").touch()
    (trainer / "main_ppo.py").write_text(FAKE_MAIN)
    (tmp_path / "train.parquet").touch()
    write(tmp_path / "a.yaml", "data: {train_files: train.parquet}\ntrust_region: {type: band}\n")

    def run(*arguments, **more):
        code = "import sys; from bandpo_runs.cli import main; sys.exit(main())"
        path = os.pathsep.join([str(tmp_path / "site"), str(Path(bandpo.__file__).parent.parent)])
        environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | {"PYTHONPATH": path} | more
        command = [sys.executable, "-c", code, "verl", "a.yaml", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    return run


def test_verl_is_started_with_the_overrides_and_its_exit_code_is_ours(fake_verl):
    done = fake_verl("trainer.n_gpus_per_node=4")
    assert done.returncode == 7, done.stderr
    assert yaml.safe_load(done.stdout) == [
        "data.train_files=train.parquet",
        "trainer.n_gpus_per_node=4",
        "trainer.experiment_name=a",
        "actor_rollout_ref.actor.policy_loss._target_=bandpo.integrations.verl.BandPOLossConfig",
        "actor_rollout_ref.actor.policy_loss.loss_mode=bandpo",
        "+actor_rollout_ref.actor.policy_loss.trust_region={type:band}",
    ]


def test_a_run_that_goes_on_keeps_the_log_so_far(fake_verl, tmp_path):
    log, rest = (write(tmp_path / "logs" / "p" / name, name) for name in ("a.jsonl", "a.jsonl.1"))
    done = fake_verl("trainer.logger=[console,file]", "trainer.project_name=p", VERL_FILE_LOGGER_ROOT=tmp_path / "logs")
    assert (done.returncode, f"the log so far is now {log}.2" in done.stderr) == (7, True), done.stderr
    assert {path.name: path.read_text() for path in log.parent.iterdir()} == {
        "a.jsonl.1": rest.name, "a.jsonl.2": log.name,
    }  # fmt: skip


@pytest.mark.slow
def test_a_missing_data_file_is_named_before_ray_starts_unless_ray_runs_elsewhere(fake_verl):
    done = fake_verl("data.val_files=[train.parquet,none.parquet]")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: data file none.parquet does not exist; docs/reproduce.md says how it is made\n"
    assert fake_verl("data.val_files=hdfs://none.parquet").returncode == 7
    assert fake_verl("data.val_files=none.parquet", RAY_ADDRESS="auto").returncode == 7


# Seconds of a step in the released logs, Qwen2.5-3B-Instruct on 8 H200: four runs of four steps.
LOGS = {"generation": (35, 38), "old log-probs": (12.5, 12.5), "reference": (12, 15), "update": (42, 44)}


def test_the_estimate_of_time_against_the_released_logs():
    step = plan(load([BAND_KL], ["variant=public"])).step
    assert 104 <= sum(step.values()) <= 111
    errors = {phase: step[phase] / (sum(logged) / 2) - 1 for phase, logged in LOGS.items()}
    # research/pages/plan.md has these numbers.
    assert errors == pytest.approx(
        {"generation": 0.0, "old log-probs": -0.08, "reference": -0.15, "update": 0.07}, abs=0.01
    )


# As their weight files on the hub have them.
PARAMETERS = {
    "r1-qwen-1.5b": 1_777_088_000,
    "r1-qwen-7b": 7_615_616_512,
    "r1-llama-8b": 8_030_261_248,
    "qwen2.5-3b": 3_085_938_688,
}


@pytest.mark.parametrize("model", MODELS)
def test_the_parameters_are_those_of_transformers_model(model):
    shape = load([PAPER / model / "grpo.yaml"]).numbers["shape"]
    config, cls = (LlamaConfig, LlamaForCausalLM) if "llama" in model else (Qwen2Config, Qwen2ForCausalLM)
    with torch.device("meta"):
        made = cls(config(**shape))
    made.tie_weights()
    assert made.num_parameters() == PARAMETERS[model]
    # Qwen2's biases of queries, keys and values are left out.
    assert plan(load([PAPER / model / "grpo.yaml"])).parameters == pytest.approx(PARAMETERS[model], rel=1e-4)


def kept_bytes(hidden, intermediate, layers, tokens, checkpointing):
    """What autograd keeps of a forward pass in bfloat16, beside the parameters."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=64, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=hidden // 128, num_key_value_heads=1, use_cache=False,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).bfloat16().train()
    if checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    rest = {}

    def keep(x):
        if x.untyped_storage().data_ptr() not in parameters:
            rest[x.untyped_storage().data_ptr()] = x
        return x

    with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        model.model(torch.zeros(1, tokens, dtype=torch.long))
    return sum(x.untyped_storage().nbytes() for x in rest.values())


@pytest.mark.parametrize(("hidden", "intermediate"), [(256, 1376), (512, 1792)])
@pytest.mark.slow
def test_the_estimate_of_activations_against_what_autograd_keeps(hidden, intermediate):
    def of_a_layer(checkpointing):
        more_layers = [
            kept_bytes(hidden, intermediate, 2, tokens, checkpointing)
            - kept_bytes(hidden, intermediate, 1, tokens, checkpointing)
            for tokens in (256, 512)
        ]
        return (more_layers[1] - more_layers[0]) / 256

    assert of_a_layer(True) == 2 * hidden
    formula = 24 * hidden + 8 * intermediate
    assert 0.94 * formula < of_a_layer(False) < formula  # research/pages/plan.md has this number
    settings = [f"plan.shape.hidden_size={hidden}", f"plan.shape.intermediate_size={intermediate}"]
    wanted = plan(load([BAND_KL], [*settings, "plan.shape.num_hidden_layers=3"])).training["activations"]
    assert wanted * 2**30 == pytest.approx(8 * 5120 * (3 * 2 * hidden + formula))


def test_the_estimate_follows_the_settings():
    def of(*settings):
        return plan(load([BAND_KL], settings))

    one, two = of(), of("trainer.nnodes=2")
    assert two.training["gradients"] == pytest.approx(one.training["gradients"] / 2)
    assert two.step["update"] == pytest.approx(one.step["update"] / 2)
    # The longest answer takes as long on two nodes; half of the little that grows with the answers is gone.
    assert one.step["generation"] - 1 < two.step["generation"] < one.step["generation"]
    assert one.generation["rollout"] == pytest.approx(0.8 * 139)
    # 512 answers on a GPU, 256 at once: two waves of the longest, and a cache that is read for longer.
    assert of("plan.response_tokens=4096").step["generation"] > 2 * one.step["generation"]
    assert "reference" not in of("actor_rollout_ref.actor.use_kl_loss=false").step
    lora = plan(load([BAND_KL, PAPER / "lora.yaml"]))
    assert lora.step["update"] == pytest.approx(3 * lora.step["old log-probs"])
    assert lora.step["old log-probs"] == pytest.approx(one.step["old log-probs"] * 8 / 4)


def test_the_estimate_of_disk():
    whole = "actor_rollout_ref.actor.checkpoint.save_contents=[model,optimizer,extra,hf_model]"
    one, more = plan(load([BAND_KL])), plan(load([BAND_KL], [whole]))
    gib = one.parameters / 2**30  # float32 with Adam's two; bfloat16; and verl writes a whole model in float32
    assert (one.checkpoint, one.merged, more.checkpoint) == pytest.approx((12 * gib, 2 * gib, 16 * gib))
    assert one.answers == pytest.approx(3200 * (4 * 700 + 1024) / 2**30)


LLAMA = (PAPER / "r1-llama-8b" / "band-kl.yaml", "plan.memory=40", "trainer.total_training_steps=null")


@pytest.mark.parametrize(
    ("words", "shown", "hidden"),
    [
        ([BAND_KL], r"3\.09 billion parameters, on 1 x 8 H200\n4096 answers a step of 700 tokens\n", "DOES NOT FIT"),
        ([BAND_KL], r"checkpoints +69\.0  2 of 34\.5\n(.*\n)*.*validations +1\.8  161 of 12 MiB", None),
        ([BAND_KL, "trainer.total_training_steps=7"], r"checkpoints .* 1 of 34\.5", None),
        ([BAND_KL, "trainer.max_actor_ckpt_to_keep=null"], r"checkpoints .* 80 of 34\.5", None),
        ([BAND_KL, "trainer.save_freq=-1"], "disk of a run", "checkpoints  "),
        ([BAND_KL, "trainer.validation_data_dir=null"], "disk of a run", "validations  "),
        ([BAND_KL, "trainer.test_freq=-1"], "disk of a run", "validations  "),
        (LLAMA, "4096 tokens at most: all are taken to be as long as allowed(.*\n)*.* 1020 steps ", None),
        (LLAMA, r"training +\d+\.\d +DOES NOT FIT: weights", None),
        ([BAND_KL, PAPER / "lora.yaml", "variant=public"], " 4080 steps ", None),  # a quarter of the batch
    ],
)
def test_the_plan_says_what_fits_what_is_kept_and_what_is_a_bound(estimated, words, shown, hidden):
    text = estimated(*words)
    assert re.search(shown, text), text
    assert hidden is None or hidden not in text


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("plan.shape=null", "plan.shape.num_hidden_layers must be a number, got None"),
        ("trainer.n_gpus_per_node=0", "trainer.n_gpus_per_node must be positive, got 0"),
        ("data.train_batch_size=many", "data.train_batch_size must be a number, got 'many'"),
    ],
)
def test_a_number_that_the_estimate_lacks_is_named(estimated, setting, message):
    assert message in estimated(BAND_KL, setting, code=2)
