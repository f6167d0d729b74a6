"""Recipes: every mistake is named with its key, every recipe loads, and what is written back is what was read."""

import dataclasses
import math
from pathlib import Path

import pytest
import recipe
import yaml

from bandpo import Band, Clip, Objective, objective
from bandpo.errors import UserError
from bandpo.integrations.trl import BandPOConfig
from bandpo.notation import short_node
from bandpo_runs import config
from bandpo_runs.config.recipe import FIXED, RESERVED, build, load
from bandpo_runs.training import on_trl
from bandpo_runs.training.side_by_side import plan

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def node(tmp_path):
    return recipe.node(tmp_path, tmp_path / "run", trust_region={"type": "band", "divergence": "kl", "delta": 0.05})


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return path

    return write


# ---- mistakes


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("ronuds=3", "unknown key 'ronuds', did you mean 'rounds'?"),
        ("data.pth=x", "unknown key 'data.pth', did you mean 'path'?"),
        ("trainer.learning_rte=1", "unknown key 'trainer.learning_rte', did you mean 'learning_rate'?"),
        ("trust_region.detla=1", "unknown key 'detla' in trust region 'band', did you mean 'delta'?"),
        ("trust_region.type=bnd", "'bnd', did you mean 'band'?"),
        ("xyzzy=1", "unknown key 'xyzzy'"),
    ],
)
def test_an_unknown_key_is_an_error_that_suggests_the_nearest(write, node, setting, message):
    with pytest.raises(UserError) as caught:
        load(write("r.yaml", node), [setting])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


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
    with pytest.raises(UserError) as caught:
        load(write("r.yaml", node), [setting])
    assert str(caught.value).startswith(start)
    value = yaml.safe_load(setting.partition("=")[2])
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["trainer.num_generations=3"], "must be a multiple of num_generations = 3"),
        (["trainer.learning_rate=-1"], "trainer.learning_rate must be 0 or larger, got -1.0"),
        (["trainer.gradient_accumulation_steps=3"], "gradient_accumulation_steps = 3"),
        (["trainer.gradient_accumulation_steps=0"], "gradient_accumulation_steps must be a positive number, got 0"),
        (["trainer.steps_per_generation=null"], "trainer.steps_per_generation must be a positive number, got None"),
        (["scene=tail"], "scene is 'tail'; set all of model, data.source and reward, or none of them for the lab"),
        (["reward=lab"], "reward is 'lab' and scene is None; set all"),
        (["data.source=lab"], "data.path is set, but data.source 'lab' does not use it"),
        (["data.source=lab", "data.path=null"], "data.source is 'lab' and scene is None; set all"),
        (["data.task=chain_sum"], "data.task is set, but data.source 'file' does not use it"),
        (["data.path=null"], "data.path is missing; data.source 'file' needs it"),
        (["data.source=reasoning_gym", "data.path=null"], "data.task is missing"),
        (["data.template='{prompts}'"], "data.template: String should match pattern '\\{prompt\\}', got '{prompts}'"),
        (["trainer.eval_strategy=steps"], "trainer.eval_strategy or eval_on_start needs data.eval_size"),
        (["trainer.eval_on_start=true"], "trainer.eval_strategy or eval_on_start needs data.eval_size"),
        (["data.eval_path=lab"], "data.eval_path needs trainer.eval_strategy and eval_steps"),
        (["data.eval_path=lab", "data.eval_size=1"], "data.eval_size and eval_path are two sets"),
    ],
)
def test_settings_that_cannot_go_together_are_an_error_that_names_them(write, node, settings, message):
    with pytest.raises(UserError) as caught:
        load(write("r.yaml", node), settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("key", [*RESERVED, *FIXED])
def test_a_trainer_key_that_bandpo_sets_is_refused_with_the_reason(node, key):
    node["trainer"][key] = True
    with pytest.raises(UserError) as caught:
        build(node)
    fixed = f"trainer.{key} cannot be set, got True: {FIXED.get(key)}; leave it out"
    assert str(caught.value) == (fixed if key in FIXED else f"trainer.{key} is set by {RESERVED[key]}; remove it")


def test_reserved_trainer_keys_exist_and_their_replacements_too():
    fields = {f"trainer.{key}" for key in BandPOConfig.__dataclass_fields__} | set(config.RunConfig.model_fields)
    assert {f"trainer.{key}" for key in RESERVED | FIXED} <= fields
    assert set(RESERVED.values()) <= {*fields, "--resume"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1", "must hold settings by name, got [1]"),
        ("1: 2", "must hold settings by name, got {1: 2}"),
        ("", "must hold settings by name, got None"),
        ("rounds: [", "r.yaml is not YAML: "),
        ("base: r.yaml", "is its own base"),
        ("base: 5", "r.yaml must be the name of a recipe or a list of names, got 5"),
        ("base: gone.yaml", "r.yaml has it as base"),
    ],
)
def test_a_recipe_that_cannot_be_read_is_one_line(write, content, message):
    with pytest.raises(UserError) as caught:
        load(write("r.yaml", content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_recipe_is_named_with_the_nearest(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("band-kl.yaml", "rounds: 1")
    for name, near in ("no/such.yaml", ""), ("band_kl.yaml", ", did you mean 'band-kl.yaml'?"):
        with pytest.raises(UserError) as raised:
            load(name)
        assert str(raised.value) == f"recipe {tmp_path / name} does not exist{near}"


@pytest.mark.parametrize("text", ["rounds", "=3", "model.x=3", "rounds=[3"])
def test_an_override_that_sets_nothing_is_an_error_that_shows_it(write, node, text):
    with pytest.raises(UserError) as caught:
        load(write("r.yaml", node), [text])
    assert text.partition("=")[0] in str(caught.value)


# ---- numbers, overrides, inheritance


def test_a_number_may_be_written_as_yaml_reads_it_as_text(write, node):
    node["trainer"]["learning_rate"] = "1e-3"
    assert isinstance(yaml.safe_load("1e-3"), str)
    result = load(write("r.yaml", node), ["trust_region.delta=6e-2", "trainer.beta=1e-4"])
    assert (result.trainer["learning_rate"], result.trainer["beta"]) == (1e-3, 1e-4)
    assert result.objective.trust_region == Band("kl", 0.06)


def test_overrides_reach_into_nodes_and_leave_the_rest(write, node):
    node["trust_region"] = {"type": "clip", "eps_low": 0.2, "eps_high": 0.2}
    settings = ["trust_region.eps_high=0.28", "trainer.num_generations=8", "rounds=5", "rounds=7", "label=mine"]
    result = load(write("r.yaml", node), settings)
    assert result.objective.trust_region == Clip(0.2, 0.28)
    assert result.trainer == {**build(node).trainer, "num_generations": 8}
    assert (result.rounds, result.label) == (7, "mine")


def test_a_rule_may_be_an_objective(write, node):
    clip = {"type": "clip", "eps_low": 0.2, "eps_high": 0.2}
    node["trust_region"] = {"type": "objective", "trust_region": clip, "surrogate": ["mask", "clip"]}
    result = load(write("r.yaml", node), ["trust_region.trust_region.eps_high=0.28", "trust_region.dual_clip=3"])
    assert result.objective == Objective(Clip(0.2, 0.28), surrogate=("mask", "clip"), dual_clip=3.0)
    assert build(yaml.safe_load(result.to_yaml())).objective == result.objective
    with pytest.raises(UserError, match=r"^trust_region: dual_clip must be None for surrogate = 'weight'"):
        load(write("r.yaml", node), ["trust_region.dual_clip=3", "trust_region.surrogate=weight"])
    with pytest.raises(UserError, match=r"^trust_region: unknown key 'surogate' in objective, did you mean 'surr"):
        load(write("r.yaml", node), ["trust_region.surogate=mask"])


def test_a_base_is_a_start_of_which_the_recipe_changes_what_it_names(write, node, tmp_path):
    (tmp_path / "sub").mkdir()
    write("base.yaml", node)
    write("sub/middle.yaml", {"base": "../base.yaml", "trainer": {"learning_rate": 1e-4}, "rounds": 9})
    result = load(write("sub/top.yaml", "base: middle.yaml\nrounds: 3"))
    assert result.rounds == 3
    assert result.trainer == {**build(node).trainer, "learning_rate": 1e-4}
    assert result.data == build(node).data


def test_a_rule_replaces_that_of_the_base_whole(write, node):
    write("base.yaml", {**node, "trust_region": {"type": "band", "divergence": "tv", "delta": 0.3}})
    result = load(write("top.yaml", "base: base.yaml\ntrust_region: {type: band, delta: 0.1}"))
    assert result.objective.trust_region == Band("kl", 0.1)  # not tv, which the base has


def test_a_scene_of_the_lab_sets_what_the_recipe_does_not():
    result = build({"trainer": {"learning_rate": 1.0}})
    assert result.scene == "tail"
    assert (result.model, result.data.source, result.reward) == ("lab", "lab", "lab")
    assert result.trainer["learning_rate"] == 1.0
    assert result.trainer["num_iterations"] == 4
    assert build({"scene": "storm"}).trainer["num_iterations"] == 8


def test_no_is_a_strategy_though_yaml_takes_it_for_a_truth_value(node):
    node["trainer"] |= yaml.safe_load("eval_strategy: no")
    assert build(node).trainer["eval_strategy"] == "no"


def test_a_round_is_counted_in_optimizer_steps_and_in_prompts(node):
    node["trainer"] |= {"steps_per_generation": 6, "num_iterations": 2, "gradient_accumulation_steps": 4}
    result = build(node)
    assert result.steps_per_round == 3
    assert result.prompts_per_round == 8 * 6 // 4


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
    assert by_name == by_node
    assert by_name.config.label == label
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
    assert written["trust_region"] == {"type": "band", "divergence": "kl", "delta": 0.05}
    assert written["label"] == "Band-KL 0.05"
    assert (written["seed"], written["data"]["template"], written["data"]["eval_size"]) == (0, "{prompt}", 0)


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


@pytest.mark.parametrize("folder", ["lab", "trl", "smollm2"])
def test_the_recipes_of_a_folder_differ_in_nothing_but_the_rule(folder):
    first, *others = (load(path) for path in FILES if path.parent.name == folder)
    assert len({config.output for config in (first, *others)}) == 1 + len(others) > 1
    for other in others:
        assert {key for key, value in other if value != getattr(first, key)} == {"label", "trust_region", "output"}


def test_a_recipe_for_a_real_model_trains_a_small_one(tmp_path, monkeypatch):
    """recipes/trl/band-kl.yaml with its data form, reward and rule, and smaller sizes."""
    recipe.make(tmp_path)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}="
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "train.jsonl").write_text('{"prompt": "a b", "answer": 7}\n{"prompt": "c d", "answer": "8"}\n')
    sizes = {"num_generations": 4, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 1,
             "steps_per_generation": 4, "max_completion_length": 6, "activation_checkpointing": "false",
             "bf16": "false", "use_cpu": "true"}  # fmt: skip
    settings = [f"model={tmp_path / 'model'}", f"data.path={tmp_path / 'train.jsonl'}", f"output={tmp_path / 'run'}"]
    settings += ["rounds=1", *(f"trainer.{key}={value}" for key, value in sizes.items())]
    result = load(RECIPES / "trl" / "band-kl.yaml", settings)
    built = []
    make = on_trl.BandPOTrainer

    def watch(**settings):
        built.append(make(**settings))
        return built[-1]

    monkeypatch.setattr(on_trl, "BandPOTrainer", watch)
    folder = on_trl.run(result)
    (trainer,) = built
    assert trainer.trust_region == Band("kl", 0.05)
    assert trainer.loss_type == "grpo"
    assert trainer.state.global_step == 4
    rows = [yaml.safe_load(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(row["sequences"] == 2 for row in rows)
    assert rows[0]["rewards/last_number/mean"] == 0  # no number in its vocabulary


def test_another_rule_by_override_gets_its_own_label(write):
    recipe = write("r.yaml", "scene: tail\nlabel: ours\ntrust_region: {type: band, delta: 0.05}\n")
    assert load(recipe).label == "ours"
    assert load(recipe, ["trust_region.delta=0.1"]).label == "Band-KL 0.1"
    assert load(recipe, ["trust_region.delta=0.1", "label=mine"]).label == "mine"
