"""The doctor of TRL's settings, held against GRPOConfig itself, and of logs that were made with a known fault."""

import itertools
import json
import re

import pytest
import yaml
from trl import GRPOConfig

from bandpo.doctor import on_trl
from bandpo.doctor.on_trl import JUDGED
from bandpo_runs.cli import main
from bandpo_runs.training.doctor import examine


def findings(*arguments):
    return [(finding.level, finding.what, finding.cure) for finding in examine([str(text) for text in arguments])]


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("accumulation", "steps", "iterations"), [*itertools.product((1, 4, 6), (None, 1, 4, 12), (1, 2))]
)
def test_the_ratio_is_1_where_trl_itself_makes_no_pass_for_old_log_probabilities(
    tmp_path, accumulation, steps, iterations
):
    settings = {"gradient_accumulation_steps": accumulation, "num_iterations": iterations}
    settings |= {} if steps is None else {"steps_per_generation": steps}
    args = GRPOConfig(
        str(tmp_path), num_generations=2, per_device_train_batch_size=2, use_cpu=True, bf16=False, **settings
    )
    assert args.steps_per_generation is not None
    of_trl = accumulation % (args.steps_per_generation * iterations) == 0  # as its trainer asks
    (found,) = findings(*(f"{key}={value}" for key, value in settings.items()))
    assert found[0] == ("problem" if of_trl else "ok")
    assert ("the ratio is 1 by design" in found[1]) == of_trl
    if of_trl:
        cure = int(re.match(r"steps_per_generation=(\d+) ", found[2])[1])
        assert findings(f"gradient_accumulation_steps={accumulation}", f"steps_per_generation={cure}")[0][0] == "ok"


@pytest.mark.parametrize(("version", "told"), [("1.14.2", True), ("1.15.0", False), (None, False)])
def test_half_precision_is_told_where_trl_computes_log_probabilities_in_it(monkeypatch, version, told):
    """Hold bf16 and weights to runs of TRL 1.9.0 and 1.16.0; DeepSpeed and 1.15 were read."""
    monkeypatch.setattr(on_trl, "version_of", {"trl": version}.get)
    for settings, half in (
        (["bf16=false", "model_init_kwargs={dtype: bfloat16}"], True),
        (["deepspeed=zero3.json"], True),
        (["deepspeed=zero3.json", "bf16=false"], False),
        (["bf16=true", "model_init_kwargs={dtype: bfloat16}"], False),
        (["bf16=false", "model_init_kwargs={dtype: float32}"], False),
        (["bf16=false"], False),
    ):
        found = [
            f for f in findings("num_iterations=2", *settings) if "in bfloat16 ratios are wrong by percents" in f[1]
        ]
        assert [f[0] for f in found] == ["warning"] * (half and told), settings


TWICE = ["num_iterations=2", "gradient_accumulation_steps=1"]
PLANTED = {
    "node": (
        [*TWICE, "trust_region={type: bond}"],
        "problem",
        "trust_region: .*'bond', did you mean 'band'",
    ),
    "processes": (["generation_batch_size=64"], "note", "depends on the number of processes; not judged"),
    "a word": (["num_iterations=two"], "problem", "not all of these are positive numbers: .* num_iterations 'two'"),
    "a text": (["num_iterations='2'"], "problem", "not all of these are positive numbers: .* num_iterations '2'"),
    "none": (["num_iterations=0"], "problem", "not all of these are positive numbers: .* num_iterations 0"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_with_its_cure(name):
    settings, level, what = PLANTED[name]
    (found,) = [f for f in findings(*settings) if f[0] != "ok"]
    assert found[0] == level
    assert re.search(what, found[1])
    assert found[2]


def test_settings_of_a_wrong_type_are_named():
    found = findings(*TWICE, "trust_region=band-kl", "generation_kwargs=5", "loss_type=[a]")
    expected = "loss_type must be text and generation_kwargs a mapping, got ['a'] and 5"
    assert [f[:2] for f in found if f[0] != "ok"] == [("problem", expected)]


@pytest.mark.parametrize("settings", [["trust_region={type: band, delta: 0.05}"], ["epsilon=0.2", "beta=0.04"]])
def test_what_is_well_is_not_blamed(settings):
    assert {f[0] for f in findings(*TWICE, *settings)} == {"ok"}


@pytest.mark.parametrize("setting", ["use_vllm=true", "fsdp=full_shard", "deepspeed=zero3.json"])
def test_what_was_only_read_is_said(setting):
    name = setting.partition("=")[0]
    told = [found for found in findings("num_iterations=2", "trust_region=band", setting) if found[1].startswith(name)]
    assert [(level, "read with it, and not run" in what) for level, what, _ in told] == [("note", True)]
    assert not any(what.startswith(name) for _, what, _ in findings("num_iterations=2", setting))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("model = 'Qwen/Qwen2.5-VL-3B-Instruct'", True),
        ("x = AutoProcessor.from_pretrained(y)", True),
        ("# a-VL-b", False),
    ],
)
def test_of_a_script_for_images_it_is_said_that_the_trainer_was_only_read(tmp_path, line, told):
    script = tmp_path / "train.py"
    script.write_text(f"{line}\nBandPOTrainer(m, r, GRPOConfig(num_iterations=2), d, trust_region='band:kl:0.05')\n")
    assert told == any(what.startswith("images: BandPOTrainer was read") for _, what, _ in findings(script))


def test_a_file_and_a_script_say_the_same(tmp_path):
    settings = {"num_iterations": 1, "trust_region": "cispo", "gradient_accumulation_steps": 8}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "a.json").write_text(json.dumps(settings))
    (tmp_path / "a.py").write_text(
        "import trl\nBandPOConfig(num_iterations=1, trust_region='cispo', gradient_accumulation_steps=8, **{'x': 1})\n"
    )
    expected = findings(*(f"{key}={value}" for key, value in settings.items()))
    assert [f[0] for f in expected] == ["problem", "ok"]
    for name in ("a.yaml", "a.json", "a.py"):
        assert findings(tmp_path / name) == expected
    assert findings(tmp_path / "a.py", "num_iterations=2")[0][0] == "ok"


def test_of_a_script_only_plain_values_are_judged_and_it_is_not_run(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("import trl\nprint('ran')\nargs = trl.GRPOConfig(num_iterations=n, loss_type='grpo')\n")
    ((level, what, _),) = findings(script)
    assert (level, what.partition(" in ")[0]) == ("note", "num_iterations: not a plain value")
    script.write_text("BandPOConfig('out', num_iterations=2, trust_region={'type': 'band'}, **more)\n")
    found = findings(script)
    assert [f[0] for f in found] == ["warning", "ok"]  # what is in `more` may change each of the others
    assert found[0][1] == "BandPOConfig(**more): more cannot be read, for the script is not run; plain values in it can"
    assert "train.py epsilon_high=" in found[0][2]
    assert findings(script, "loss_type=sapo")[-1][0] == "problem"  # what is given beside the script is judged
    assert "ran" not in capsys.readouterr().out
    for text, message in (
        ("a = 1\n", "calls GRPOConfig or BandPOConfig 0 times; one call is expected"),
        ("GRPOConfig()\nGRPOConfig()\n", "calls GRPOConfig or BandPOConfig 2 times; one call is expected"),
        ("a = = 1\n", "is not Python: invalid syntax"),
    ):
        script.write_text(text)
        assert main(["doctor", str(script)]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1


BESIDE_A_RULE = {
    "epsilon_high": ("epsilon_high=0.28", "Band('kl', 0.05)", "problem", "Remove epsilon_high = 0.28: your Band"),
    "epsilon": ("epsilon=0.3", "'gspo'", "problem", "Remove epsilon = 0.3: your Objective.Clip"),
    "another loss": ("loss_type='sapo'", "bandpo.Band('kl', 0.05)", "problem", "loss_type 'sapo' has no clip"),
    "delta beside more": (
        "delta=4.0",
        "Objective(Band(), surrogate='mask')",
        "problem",
        "delta must not be set with Obj",
    ),
    "delta for a radius": ("delta=0.05", "'grpo'", "problem", "^delta = 0.05 is TRL's two-sided clip"),
    "Liger": ("use_liger_kernel=True", "'grpo'", "problem", "use_liger_kernel must be False"),
    "temperature": ("generation_kwargs={'temperature': 0.7}", "'grpo'", "problem", "tokens sampled at 0.7"),
    "top_k": ("top_k=50, top_p=0.9", "'grpo'", "warning", "^top_p = 0.9, top_k = 50: tokens are not sampled from"),
    "bounds": ("", "Clip(0.8, eps_high=1.2)", "warning", r"^Clip\(0.8, 1.2\) lets the ratio go from 0.2 to 2.2"),
    "none": ("", "Band", "problem", "Band'> is not a trust region$"),
    "no rule by that name": ("", "'bnd:kl'", "problem", "no method or rule is called 'bnd:kl', did you mean 'band-kl'"),
}


CHANGED = {
    "in place": ("steps = 1\nsteps *= 8", "steps_per_generation=steps", "steps_per_generation"),
    "a loop": ("steps = 1\nfor steps in (1, 8):\n    pass", "steps_per_generation=steps", "steps_per_generation"),
    "an item": ("kw = dict(num_iterations=1)\nkw['num_iterations'] = 4", "**kw", "kw cannot be read"),
    "an update": ("kw = dict(num_iterations=1)\nkw.update(num_iterations=4)", "**kw", "kw cannot be read"),
    "the trainer's": (
        "",
        "num_iterations=1)\ntrainer.args.num_iterations = 4\nprint(args",
        "num_iterations: not a plain",
    ),
    "an argument": ("steps = 1\ndef main(steps):\n    pass", "steps_per_generation=steps", "steps_per_generation"),
    **{
        name: (f"steps = 1\n{line}", "steps_per_generation=steps", "steps_per_generation")
        for name, line in {
            "an import": "try:\n    from mine import steps\nexcept ImportError:\n    pass",
            "a module": "import mine as steps",
            "a function": "def steps(): ...",
            "a class": "class steps: ...",
            "an error": "try: ...\nexcept ValueError as steps: ...",
            "a pattern": "match mine:\n    case [steps]: ...",
            "a rest": "match mine:\n    case [*steps]: ...",
        }.items()
    },
    "an attribute": ("", "num_iterations=1)\nargs.num_iterations = 4\nprint(args", "num_iterations: not a plain value"),
}


JUDGED_STILL = {
    "a comprehension": "steps = 8\nrows = [steps for steps in range(3)]\nGRPOConfig(steps_per_generation=steps)",
    "a field": "class Mine:\n    steps: int\nsteps = 8\nargs = GRPOConfig(steps_per_generation=steps)",
    "another's": "args = GRPOConfig(steps_per_generation=8)\nargs.output_dir = 'x'\na.b.steps_per_generation = 1",
}


@pytest.mark.parametrize("name", JUDGED_STILL)
def test_what_a_script_changes_elsewhere_changes_no_verdict(tmp_path, name):
    (tmp_path / "train.py").write_text(JUDGED_STILL[name])
    (found,) = findings(tmp_path / "train.py")
    assert "spread over 8 optimizer steps" in found[1]


@pytest.mark.parametrize("name", CHANGED)
def test_what_a_script_changes_after_it_was_set_is_not_judged(tmp_path, name):
    before, words, what = CHANGED[name]
    (tmp_path / "train.py").write_text(f"{before}\nargs = GRPOConfig({words})\n")
    found = findings(tmp_path / "train.py")
    assert not {level for level, *_ in found} & {"ok", "problem"}
    assert any(what in said for _, said, _ in found)


def test_flags_of_a_launch_script_are_settings_of_trl(tmp_path):
    script, config = tmp_path / "run.sh", tmp_path / "trl.yaml"
    config.write_text("gradient_accumulation_steps: 8\n")
    script.write_text("accelerate launch train.py --gradient_accumulation_steps 8 --steps-per-generation 16\n")
    (found,) = findings(script)
    assert found[:2] == ("ok", found[1])
    assert "spread over 2 optimizer steps" in found[1]
    script.write_text("trl grpo --config recipes/$1.yaml --num_iterations 4 --gradient_accumulation_steps $STEPS\n")
    cure = f"give that file too, first: bandpo doctor CONFIG.yaml {script}"
    assert findings(script) == [("warning", "--config recipes/$1.yaml is not read", cure)]
    assert not [found for found in findings(config, script) if found[0] in ("ok", "problem")]  # STEPS is not known
    script.write_text("trl grpo --config recipes/$1.yaml --num_iterations 4\n")
    (found,) = findings(config, script)
    assert "each answer is used 4 times" in found[1]
    (found,) = findings(config, script, "num_iterations=2")  # the last one wins
    assert "each answer is used twice" in found[1]
    for other in ("deepspeed sft.py --temperature 0.6", "megatron rlhf --rlhf_type grpo --steps_per_generation 4"):
        script.write_text(f"{other} --gradient_accumulation_steps 8\n")
        (found,) = findings(script)
        assert found[1].startswith("unknown settings")


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
def test_what_is_judged_has_trls_own_values(tmp_path):
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    own = {name: getattr(args, name) for name in JUDGED}
    assert own == {**JUDGED, "steps_per_generation": 1, "generation_batch_size": 8}


@pytest.mark.parametrize("name", BESIDE_A_RULE)
def test_what_the_trainer_refuses_or_warns_of_is_found_in_a_script(tmp_path, name):
    settings, rule, level, what = BESIDE_A_RULE[name]
    script = tmp_path / "train.py"
    script.write_text(
        f"args = GRPOConfig('out', steps_per_generation=4, {settings})\n"
        f"trainer = BandPOTrainer(model, reward, args, data, trust_region={rule})\n"
    )
    found = findings(script)
    assert found[0][:2] == (
        "ok",
        "each answer is used once, and a batch is spread over 4 optimizer steps "
        "(steps_per_generation 4, num_iterations 1 by default, gradient_accumulation_steps 1 by default)",
    )
    blamed = next(f for f in found if f[0] != "ok")
    assert blamed[0] == level
    assert re.search(what, blamed[1])


def test_a_rule_that_a_script_computes_is_said_to_be_unread_and_the_rest_is_judged(tmp_path):
    script = tmp_path / "train.py"
    for rule in ("trust_region=make()", "trust_region=rule", "**more"):
        script.write_text(
            f"args = GRPOConfig(num_iterations=2, epsilon_high=0.28)\nBandPOTrainer(m, r, args, {rule})\n"
        )
        said = findings(script)
        assert [f[0] for f in said] == ["note", "ok", "problem"]
        assert said[0][1].startswith("trust_region: not a plain value in the script")
    script.write_text("args = GRPOConfig(num_iterations=2, epsilon_high=0.28)\nGRPOTrainer(m, r, args)\n")
    # TRL's own rule may be kept.
    assert [f[:2] for f in findings(script)][1:] == [
        ("note", 'with BandPOTrainer: Remove epsilon_high = 0.28: your Band("kl", 0.05) replaces it')
    ]
    script.write_text("args = GRPOConfig(num_iterations=2, use_liger_kernel=True, loss_type='sapo')\n")
    said = [what for level, what, _ in findings(script) if level == "note"]
    assert [what.split(" must be ")[0].split(" has ")[0] for what in said] == [
        "with BandPOTrainer: use_liger_kernel", "with BandPOTrainer: loss_type 'sapo'"
    ]  # fmt: skip
    script.write_text("args = GRPOConfig(num_iterations=2)\nBandPOTrainer(m, r, args)\n")
    default = 'no trust_region is given here; without one the loss of TRL is Band("kl", 0.05): a token of'
    assert findings(script)[1][1].startswith(default)


def logs(tmp_path, **numbers):
    """Our log, TRL's with our trainer, and verl's, of three rows each with these numbers."""
    ours = [{"round": i, "reward": 0.1, **numbers} for i in range(3)]
    trl = {
        "log_history": [*({"step": i, **{f"bandpo/{k}": v for k, v in numbers.items()}} for i in range(3)), {"loss": 1}]
    }
    verl = [{"step": i, "data": {f"actor/bandpo/{k}": v for k, v in numbers.items()}} for i in range(3)]
    (tmp_path / "trainer_state.json").write_text(json.dumps(trl))
    for name, rows in (("metrics.jsonl", ours), ("verl.jsonl", verl)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [tmp_path / name for name in ("metrics.jsonl", "trainer_state.json", "verl.jsonl")]


@pytest.mark.parametrize(
    ("far", "share", "level", "what"),
    [
        (0.0, 0.0, "problem", "Clipping had no effect in 3 rows: every ratio is 1, because each batch gets one"),
        (3e-6, 0.0, "problem", "Clipping had no effect in 3 rows"),  # rounding
        (0.15, 0.0, "warning", "The rule clipped no token in 3 rows: any wider rule would have given this run"),
        (0.15, 0.002, "ok", "clip/fraction: The rule clipped at most 0.2 % of tokens in 3 rows .* can hardly matter"),
    ],
)
def test_a_log_tells_a_ratio_of_1_from_a_dead_clip(tmp_path, far, share, level, what):
    numbers = {"log_ratio/max": far / 3, "log_ratio/min": -far, "clip/high_fraction": 0.0, "clip/low_fraction": share}
    for path in logs(tmp_path, **numbers):
        assert [f[0] for f in findings(path)][-1:] == [level]
        assert re.search(what, findings(path)[-1][1])
        assert ("log-ratios go as far as 0.15" in findings(path)[-1][2]) == (level == "warning")


@pytest.mark.parametrize("name", ["clip_ratio/region_mean", "actor/pg_clipfrac", "bandpo/clip/fraction"])
@pytest.mark.parametrize(("share", "level"), [(0.0, "warning"), (0.01, "ok")])
def test_of_a_log_without_ratios_only_the_rate_is_known(tmp_path, name, share, level):
    row = {"step": 1, name: share, "actor/ppo_kl": float("nan")}
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": [row, {"step": 2, name: None}, {}]}))
    (tmp_path / "verl.jsonl").write_text(json.dumps({"step": 1, "data": {name: share}}) + "\n")
    for path in (tmp_path / "trainer_state.json", tmp_path / "verl.jsonl"):
        assert findings(path)[-1][0] == level
        assert name.removeprefix("bandpo/") in findings(path)[-1][1]
    assert main(["doctor", str(tmp_path / "verl.jsonl")]) == 0


ARGPARSE = """
import argparse
from dataclasses import dataclass, field
from trl import GRPOConfig
@dataclass
class Options:
    loss_type: str = field(default="dapo", metadata={"help": "of TRL"})
parser = argparse.ArgumentParser()
parser.add_argument("--epsilon", type=float, default=0.3)
parser.add_argument("-n", "--num-iterations", type=int, default=2)
parser.add_argument("--spg", type=int, required=True)
args = parser.parse_args()
uses = args.num_iterations
(options,) = HfArgumentParser(Options).parse_args_into_dataclasses()
GRPOConfig(epsilon=args.epsilon, num_iterations=uses, steps_per_generation=args.spg, loss_type=options.loss_type)
"""


def test_an_option_of_the_command_line_has_its_default_and_the_user_is_told(tmp_path):
    (tmp_path / "train.py").write_text(ARGPARSE)
    script = str(tmp_path / "train.py")
    unread, default, *rest = examine([script])
    assert unread.what.startswith("steps_per_generation: not a plain value in the script")
    assert unread.cure == "give it too: bandpo doctor train.py steps_per_generation=..."
    assert default.what == "epsilon=0.3, loss_type=dapo, num_iterations=2: the default of an option of the script"
    assert default.cure.endswith("give it too: bandpo doctor train.py epsilon=...")
    assert rest[0].what.startswith("with BandPOTrainer: Remove epsilon = 0.3")
    default, uses, *_ = examine([script, "steps_per_generation=4", "epsilon=0.2", "loss_type=grpo"])
    assert default.what == "num_iterations=2: the default of an option of the script"
    assert uses.what.startswith("each answer is used twice, and a batch is spread over 8 optimizer steps")
