"""Recipes: every mistake is named with its key, every recipe loads, and what is written back is what was read."""

import dataclasses
import math
from pathlib import Path

import disk
import pytest
import recipe
import yaml
from commands import missing, refusal
from transformers import Qwen2Config, Qwen2VLConfig

from bandpo import Band, Clip, Objective, objective
from bandpo.integrations.trl import BandPOConfig
from bandpo.notation import short_node
from bandpo_runs import config, toy
from bandpo_runs.config.recipe import FIXED, RESERVED, build, load
from bandpo_runs.config.trust import ALLOWED, check_attention, sent_away
from bandpo_runs.training import on_trl
from bandpo_runs.training.side_by_side import plan

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def write(tmp_path):
    return lambda name, content: disk.write(tmp_path / name, content)


@pytest.fixture
def node(tmp_path):
    return recipe.node(tmp_path, tmp_path / "run", trust_region={"type": "band", "divergence": "kl", "delta": 0.05})


# ---- mistakes


@pytest.mark.parametrize(
    ("setting", "start"),
    [
        ("rounds=1.5", "rounds: "), ("rounds=abc", "rounds: "), ("rounds=true", "rounds: "), ("rounds=0", "rounds: "),
        ("seed=-1", "seed: "), ("save_every=[1]", "save_every: "), ("data=5", "data: "),
        ("data.size=many", "data.size: "), ("data.source=web", "data.source: "), ("trainer=5", "trainer: "),
        ("trainer.learning_rate=fast", "trainer.learning_rate: "),
        ("trainer.num_generations=4.5", "trainer.num_generations: "),
        ("trainer.bf16=maybe", "trainer.bf16: "),
        ("trust_region=0.05", "trust_region: 0.05 is not a trust region; a rule is written Band('kl', 0.05)"),
        ("trust_region.delta=-1", "trust_region: delta "),
        ("trust_region.delta=wide", "trust_region: delta "),
        ("trust_region.divergence=klx", "trust_region: divergence must be one of ['chi2', "),
        ("scene=[tail]", "scene: "),
    ],
)  # fmt: skip
def test_a_wrong_value_is_an_error_that_names_the_key_and_the_value(write, node, setting, start):
    why = refusal(load, write("r.yaml", node), [setting])
    assert (why[: len(start)], missing(why, repr(yaml.safe_load(setting.partition("=")[2])))) == (start, [])


WRONG = [
    (["ronuds=3"], "unknown key 'ronuds', did you mean 'rounds'?"),
    (["data.pth=x"], "unknown key 'data.pth', did you mean 'path'?"),
    (["trainer.learning_rte=1"], "unknown key 'trainer.learning_rte', did you mean 'learning_rate'?"),
    (["trust_region.detla=1"], "unknown key 'detla' in trust region 'band', did you mean 'delta'?"),
    (["trust_region.type=bnd"], "'bnd', did you mean 'band'?"),
    (["xyzzy=1"], "unknown key 'xyzzy'"),
    (["rounds"], "'rounds' is not a setting"),
    (["=3"], "'=3' is not a setting"),
    (["model.x=3"], "model.x cannot be set"),
    (["rounds=[3"], "the value of rounds"),
    (["trainer.num_generations=3"], "must be a multiple of num_generations = 3"),
    (["trainer.learning_rate=-1"], "trainer.learning_rate must be 0 or larger, got -1.0"),
    (["trainer.gradient_accumulation_steps=3"], "gradient_accumulation_steps = 3"),
    (["trainer.gradient_accumulation_steps=0"], "gradient_accumulation_steps must be a positive number, got 0"),
    (["trainer.steps_per_generation=null"], "trainer.steps_per_generation must be a positive number, got None"),
    (["scene=tail"], "scene is 'tail'; set all of model, data.source and reward, or none of them for the lab"),
    (["reward=lab"], "reward is 'lab' and scene is None; set all"),
    (["data.source=lab"], "data.path is set, but data.source 'lab' does not use it"),
    (["data.source=lab", "data.path=null"], "data.source is 'lab' and scene is None; set all"),
    (["data.split=test"], "data.split is set, but data.source 'file' does not use it"),
    (["data.path=null"], "data.path is missing; data.source 'file' needs it"),
    (["data.template='{prompts}'"], "data.template: String should match pattern '\\{prompt\\}', got '{prompts}'"),
    (["trainer.eval_strategy=steps"], "trainer.eval_strategy or eval_on_start needs data.eval_size"),
    (["trainer.eval_on_start=true"], "trainer.eval_strategy or eval_on_start needs data.eval_size"),
    (["data.eval_path=lab"], "data.eval_path needs trainer.eval_strategy and eval_steps"),
    (["data.eval_path=lab", "data.eval_size=1"], "data.eval_size and eval_path are two sets"),
    # Whole files.
    ("- 1", "must hold settings by name, got [1]"),
    ("1: 2", "must hold settings by name, got {1: 2}"),
    ("", "must hold settings by name, got None"),
    ("rounds: [", "r.yaml is not YAML: "),
    ("base: r.yaml", "is its own base"),
    ("base: 5", "r.yaml must be the name of a recipe, got 5"),
    ("base: gone.yaml", "r.yaml has it as base"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_settings_and_recipes_that_will_not_do_are_an_error_that_names_them(write, node, wrong, message):
    is_file = isinstance(wrong, str)
    why = refusal(load, write("r.yaml", wrong if is_file else node), [] if is_file else wrong)
    assert (message in why, "\n" in why) == (True, False), why


@pytest.mark.parametrize("key", [*RESERVED, *FIXED])
def test_a_trainer_key_that_bandpo_sets_is_refused_with_the_reason(node, key):
    node["trainer"][key] = True
    why = refusal(build, node)
    fixed = f"trainer.{key} cannot be set, got True: {FIXED.get(key)}; leave it out"
    assert why == (fixed if key in FIXED else f"trainer.{key} is set by {RESERVED[key]}; remove it")


def test_reserved_trainer_keys_exist_and_their_replacements_too():
    fields = {f"trainer.{key}" for key in BandPOConfig.__dataclass_fields__} | set(config.RunConfig.model_fields)
    assert {f"trainer.{key}" for key in RESERVED | FIXED} <= fields
    assert set(RESERVED.values()) <= {*fields, "--resume"}


# ---- numbers, overrides, inheritance


def test_overrides_reach_into_nodes_and_leave_the_rest(write, node):
    """A number may be written as YAML reads it as text, and `no` is a strategy though YAML takes it for False."""
    node["trainer"] |= {"learning_rate": "1e-3", "eval_strategy": False}
    settings = ["trust_region.delta=6e-2", "trainer.num_generations=8", "rounds=5", "rounds=7", "label=mine"]
    result = load(write("r.yaml", node), settings)
    trainer = build(node).trainer | {"num_generations": 8, "learning_rate": 1e-3, "eval_strategy": "no"}
    assert result.trainer == trainer
    assert (result.objective.trust_region, result.rounds, result.label) == (Band("kl", 0.06), 7, "mine")


def test_a_rule_may_be_an_objective(write, node):
    clip = {"type": "clip", "eps_low": 0.2, "eps_high": 0.2}
    node["trust_region"] = {"type": "objective", "trust_region": clip, "surrogate": ["mask", "clip"]}
    file = write("r.yaml", node)
    result = load(file, ["trust_region.trust_region.eps_high=0.28", "trust_region.dual_clip=3"])
    assert result.objective == Objective(Clip(0.2, 0.28), surrogate=("mask", "clip"), dual_clip=3.0)
    assert build(yaml.safe_load(result.to_yaml())).objective == result.objective
    for settings, why in (
        (
            ["trust_region.dual_clip=3", "trust_region.surrogate=weight"],
            "dual_clip must be None for surrogate = 'weigh",
        ),
        (["trust_region.surogate=mask"], "unknown key 'surogate' in objective, did you mean 'surr"),
    ):
        assert refusal(load, file, settings).startswith(f"trust_region: {why}")


def test_a_base_is_a_start_of_which_the_recipe_changes_what_it_names(write, node):
    write("base.yaml", {**node, "trust_region": {"type": "band", "divergence": "tv", "delta": 0.3}})
    write("sub/middle.yaml", {"base": "../base.yaml", "trainer": {"learning_rate": 1e-4}, "rounds": 9})
    top = write("sub/top.yaml", "base: middle.yaml\nrounds: 3\ntrust_region: {type: band, delta: 0.1}")
    result, own = load(top), build(node)
    assert (result.rounds, result.trainer, result.data) == (3, {**own.trainer, "learning_rate": 1e-4}, own.data)
    assert result.objective.trust_region == Band("kl", 0.1)  # a rule is replaced whole: not tv


def test_a_scene_of_the_lab_sets_what_the_recipe_does_not():
    result = build({"trainer": {"learning_rate": 1.0}})
    assert (result.scene, result.model, result.data.source, result.reward) == ("tail", "lab", "lab", "lab")
    assert result.trainer | {"learning_rate": 1.0, "num_iterations": 4} == result.trainer
    assert build({"scene": "storm"}).trainer["num_iterations"] == 8


def test_a_round_is_counted_in_optimizer_steps_and_in_prompts(node):
    node["trainer"] |= {"steps_per_generation": 6, "num_iterations": 2, "gradient_accumulation_steps": 4}
    result = build(node)
    assert (result.steps_per_round, result.prompts_per_round) == (3, 8 * 6 // 4)


def test_the_label_is_made_from_the_rule_where_there_is_none(node):
    labels = {
        "Clip 0.1/0.3": {"type": "clip", "eps_low": 0.1, "eps_high": 0.3},
        "GRPO 0.1/0.1": {"type": "clip", "eps_low": 0.1, "eps_high": 0.1},
        "No clip": {"type": "clip", "eps_low": 1, "eps_high": math.inf},
        "Band-TV 0.1": {"type": "band", "divergence": "tv", "delta": 0.1},
        "Band-chi2 0.05 cap 10.0": {"type": "capped", "region": {"type": "band", "divergence": "chi2"}},
        "DCPO 0.16/0.2": {"type": "dcpo"},
        "DCPO 0.16/0.2 cap 5.0": {"type": "dcpo", "max_ratio": 5},
        "Relaxed Band-TV 0.1": {"type": "relaxed", "inner": {"type": "band", "divergence": "tv", "delta": 0.1},
                                "outer": {"type": "clip", "eps_low": 0.2, "eps_high": 0.28}},
        "Band-KL 0.05 or GRPO 0.2/0.2": {"type": "relaxed", "inner": {"type": "band"}, "outer": {"type": "clip"}},
    }  # fmt: skip
    assert [build({**node, "trust_region": rule}).label for rule in labels.values()] == list(labels)


@pytest.mark.parametrize(
    ("method", "label"),
    [
        ("grpo", "GRPO 0.2/0.2"), ("clip-higher", "Clip-Higher 0.2/0.28"), ("band-kl", "Band-KL 0.05"),
        ("band-tv", "Band-TV 0.05"), ("band-chi2", "Band-chi2 0.05"), ("band-relaxed", "Relaxed Band-KL 0.05"),
        ("dcpo", "DCPO 0.16/0.2"), ("no-clip", "No clip"), ("clip-wide", "Clip 0.2/1.0"),
    ],
)  # fmt: skip
def test_a_rule_has_one_name_whether_a_method_a_node_or_a_recipe(tmp_path, method, label):
    node = yaml.safe_dump(short_node(dataclasses.replace(objective(method), aggregation=None)))
    by_name, by_node = (plan("tail", [text], [0], tmp_path)[0] for text in (method, node))
    assert (by_name, by_name.config.label) == (by_node, label)
    for path in RECIPES.glob(f"*/{method}.yaml"):
        assert load(path).label == label


# ---- writing it back


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"scene": "storm"},
        {"trust_region": {"type": "clip", "eps_low": 1, "eps_high": math.inf}},
        {"label": "Ünï: 'code'", "trust_region": short_node(objective("band-relaxed"))},
        {"data": {"template": "Question:\n{prompt}\n\n  Answer: ", "prompt": "é", "eval_size": 3}},
        {"trainer": {"max_completion_length": None, "lr_scheduler_kwargs": {"a": [1, None]}, "learning_rate": "1e-30"}},
    ],
)
def test_the_resolved_recipe_loads_back_to_an_equal_config(write, tmp_path, changes):
    first = build(changes if "scene" in changes else recipe.node(tmp_path, tmp_path / "run", **changes))
    assert load(write("resolved.yaml", first.to_yaml())) == first


def test_the_resolved_recipe_says_what_was_left_to_the_defaults(node):
    del node["trust_region"]
    written = yaml.safe_load(build(node).to_yaml())
    rule = {"type": "band", "divergence": "kl", "delta": 0.05}
    assert written | {"trust_region": rule, "label": "Band-KL 0.05", "seed": 0} == written
    assert written["data"] | {"template": "{prompt}", "eval_size": 0} == written["data"]


# ---- the recipes


FILES = sorted(  # those of `bandpo train`
    path
    for path in RECIPES.glob("*/*.yaml")
    if path.name != "base.yaml" and path.parent.name not in ("cluster", "paper")
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_is_the_method_of_its_name(path):
    result = load(path)
    assert result.objective.trust_region == objective(path.stem).trust_region
    assert path.stem in result.output
    assert result.steps_per_round > 1  # otherwise no rule acts


@pytest.mark.parametrize("folder", ["lab", "trl"])
def test_the_recipes_of_a_folder_differ_in_nothing_but_the_rule(folder):
    first, *others = (load(path) for path in FILES if path.parent.name == folder)
    assert len({config.output for config in (first, *others)}) == 1 + len(others) > 1
    for other in others:
        assert {key for key, value in other if value != getattr(first, key)} == {"label", "trust_region", "output"}


def test_a_recipe_for_a_real_model_trains_a_small_one(tmp_path, monkeypatch, write):
    """recipes/trl/band-kl.yaml with its data form, reward and rule, and smaller sizes."""
    model = recipe.make(tmp_path) / "model"
    tokenizer = toy.tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}="
    tokenizer.save_pretrained(model)
    rows = write("train.jsonl", [{"prompt": "a b", "answer": 7}, {"prompt": "c d", "answer": "8"}])
    sizes = {"num_generations": 4, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1,
             "steps_per_generation": 4, "max_completion_length": 6, "activation_checkpointing": "false",
             "bf16": "false", "use_cpu": "true"}  # fmt: skip
    settings = [f"model={model}", f"data.path={rows}", f"output={tmp_path / 'run'}", "rounds=1"]
    built, make = [], on_trl.BandPOTrainer
    monkeypatch.setattr(on_trl, "BandPOTrainer", lambda **given: built.append(make(**given)) or built[-1])
    folder = on_trl.run(
        load(RECIPES / "trl" / "band-kl.yaml", settings + [f"trainer.{key}={value}" for key, value in sizes.items()])
    )
    (trainer,) = built
    assert (trainer.trust_region, trainer.loss_type, trainer.state.global_step) == (Band("kl", 0.05), "grpo", 4)
    rows = disk.json_rows(folder / "metrics.jsonl")
    assert [(row["step"], row["sequences"]) for row in rows] == [(1, 2), (2, 2), (3, 2), (4, 2)]
    assert rows[0]["rewards/last_number/mean"] == 0  # no number in its vocabulary


@pytest.mark.parametrize(
    ("settings", "label"),
    [([], "ours"), (["trust_region.delta=0.1"], "Band-KL 0.1"), (["trust_region.delta=0.1", "label=mine"], "mine")],
)
def test_another_rule_by_override_gets_its_own_label(write, settings, label):
    recipe = write("r.yaml", "scene: tail\nlabel: ours\ntrust_region: {type: band, delta: 0.05}\n")
    assert load(recipe, settings).label == label


# ---- what a recipe hands on to libraries, what a model of a stranger may name, and where a run would send its

TEXTS = ("model_init_kwargs", "generation_kwargs", "chat_template_kwargs", "accelerator_config", "deepspeed",
         "fsdp_config", "lr_scheduler_kwargs", "gradient_checkpointing_kwargs", "liger_kernel_config",
         "activation_checkpointing_kwargs", "transformers_continuous_batching_config")  # fmt: skip


def test_the_mappings_of_the_trainer_are_these():
    """Those that take text as well, which TRL reads as JSON or as the name of a file: a new one is met here first."""
    hints = {key: str(field.type) for key, field in BandPOConfig.__dataclass_fields__.items()}
    assert {key for key, hint in hints.items() if "dict" in hint} - {"trust_region"} == {*TEXTS} >= {*ALLOWED}


@pytest.mark.parametrize("key", TEXTS)
def test_a_mapping_of_the_trainer_is_no_text(node, key):
    """As text nothing would have checked it: '{"trust_remote_code": true}' ran the code of a model's folder."""
    for text in ('{"trust_remote_code": true}', "settings.json"):
        node["trainer"][key] = text
        assert refusal(build, node) == f"trainer.{key}: Input should be a valid dictionary, got {text!r}"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_init_kwargs", {"trust_remote_code": True},
         "trainer.model_init_kwargs.trust_remote_code cannot be set, got True: it could load code"),
        ("model_init_kwargs", {"dtype": "float32", "use_kernels": True}, "model_init_kwargs.use_kernels cannot be set"),
        ("model_init_kwargs", {"attn_implementation": "kernels-community/flash-attn2"},
         "trainer.model_init_kwargs.attn_implementation must be one of eager, sdpa, flex_attention, got "
         "'kernels-community/flash-attn2'"),
        ("model_init_kwargs", {"attn_implementation": {"": "evil/kernel"}}, "attn_implementation must be one of eager"),
        ("model_init_kwargs", {"dtype": ["float32"]}, "dtype must be one of auto, float32, bfloat16, float16, got ['f"),
        ("generation_kwargs", {"custom_generate": "evil/repository"},
         "trainer.generation_kwargs.custom_generate cannot be set, got 'evil/repository'"),
        ("generation_kwargs", {"top_pp": 0.9}, "it could load code, did you mean 'top_p'?"),
        ("accelerator_config", {"splitbatches": True}, "cannot be set, got True: it could load code"),
        ("gradient_checkpointing_kwargs", {"context_fn": "evil:f"}, "context_fn cannot be set"),
        ("transformers_continuous_batching_config", {"page_size": 1}, "page_size cannot be set"),
    ],
)  # fmt: skip
def test_what_could_load_code_is_handed_on_to_no_library(node, key, value, message):
    node["trainer"][key] = value
    assert message in refusal(build, node)


def test_what_is_harmless_is_handed_on(node):
    passed = {
        "model_init_kwargs": {"dtype": "bfloat16", "attn_implementation": "eager"},
        "generation_kwargs": {"top_k": 5, "seed": 1},
        "accelerator_config": {"even_batches": False},
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "chat_template_kwargs": {"enable_thinking": False},
        "lr_scheduler_kwargs": {"min_lr": 1e-7},
        "deepspeed": None,
    }
    node["trainer"] |= passed
    assert build(node).trainer.items() >= passed.items()


@pytest.mark.parametrize(
    ("trainer", "sent"),
    [
        ({}, []),
        ({"report_to": "none", "push_to_hub": False}, []),
        ({"report_to": None, "vllm_mode": "server"}, []),
        ({"push_to_hub": True, "hub_model_id": "evil/x", "report_to": ["wandb"]},
         ["push_to_hub=True", "hub_model_id=evil/x", "report_to=['wandb']"]),
        ({"log_completions_hub_repo": "evil/c"}, ["log_completions_hub_repo=evil/c"]),
        ({"vllm_server_base_url": "http://evil:1"}, ["vllm_server_base_url=http://evil:1"]),
    ],
)  # fmt: skip
def test_settings_that_send_data_away_are_listed(node, trainer, sent):
    node["trainer"] |= trainer
    assert sent_away(build(node).trainer) == sent


def test_a_kernel_of_the_hub_is_not_loaded_for_a_model():
    for name in (None, "eager", "sdpa", "flash_attention_2"):
        check_attention(Qwen2Config(attn_implementation=name))
    kernel = "evil/kernel@main:f"
    for kind, name in ((Qwen2Config, kernel), (Qwen2VLConfig, {"text_config": kernel})):
        with pytest.raises(ValueError, match=rf"config\.json has '{kernel}' as attn_implementation, a kernel of"):
            check_attention(kind(attn_implementation=name))
