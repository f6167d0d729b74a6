"""The doctor of scripts and settings as people keep them: wrappers, arithmetic, Hydra's files, and what is missing."""

import itertools
import time

import pytest

from bandpo.errors import UserError
from bandpo_runs.training.doctor import examine
from bandpo_runs.training.shell import of_shell

ACTOR = "actor_rollout_ref.actor"
BASE = f'python3 -m verl.trainer.main_ppo data.train_batch_size=64 {ACTOR}.ppo_mini_batch_size="${{MINI:-16}}" "$@"\n'


def told(tmp_path, **files):
    """Write files, and return what is said of the first one, without the precision."""
    paths = [tmp_path / name.replace("__", ".") for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.write_text(text, encoding="utf-8")
    return [f for f in examine([str(paths[0])]) if "the actor computes" not in f.what]


def steps_of(tmp_path, **files):
    (finding,) = (f for f in told(tmp_path, **files) if "optimizer step" in f.what)
    return finding.level, finding.what


@pytest.mark.parametrize(
    "call",
    [
        'bash "$(dirname "$0")/base.sh" {more}',
        'exec bash "${{HERE}}/base.sh" {more} "$@"',
        'HERE=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)\nexec "$HERE/base.sh" \\\n  {more} "$@"',
        "A=1 ./base.sh {more}",
        "sbatch -N2 scripts/base.sh {more} 2>&1 | tee log",
    ],
)
@pytest.mark.parametrize(("before", "more", "steps"), [("", "x.y=1", 4), ("MINI=8 ", "x.y=1", 8), ("", "{own}", 2)])
def test_a_script_that_is_called_stands_in_its_place(tmp_path, call, before, more, steps):
    more = more.format(own=f"{ACTOR}.ppo_mini_batch_size=32")
    *lines, last = call.format(more=more).split("\n", call.count("HERE=$"))
    level, what = steps_of(tmp_path, run__sh="\n".join([*lines, before + last]), base__sh=BASE)
    assert level == "ok"
    assert f"spread over {steps} optimizer steps" in what


def test_what_is_sourced_sets_variables(tmp_path):
    run = f". ./sizes.env\nsource env.sh\npython -m verl data.train_batch_size=$N {ACTOR}.ppo_mini_batch_size=$M"
    level, what = steps_of(tmp_path, run__sh=run, sizes__env="export N=64\n", env__sh="M=$((N / 4))\n")
    assert (level, "spread over 4 optimizer steps" in what) == ("ok", True)


def test_a_script_in_a_folder_beside_it_is_read(tmp_path):
    (tmp_path / "sizes").mkdir()
    (tmp_path / "sizes" / "small.sh").write_text("N=64\n")
    for path in (
        '"${HERE}/sizes/small.sh"',
        '"$HERE"/sizes/small.sh',
        "sizes/small.sh",
        '"$(dirname "$0")/sizes/small.sh"',
    ):
        run = f"source {path}\npython -m verl data.train_batch_size=$N {ACTOR}.ppo_mini_batch_size=16"
        assert steps_of(tmp_path, run__sh=run)[0] == "ok", path


def test_of_a_script_that_is_not_there_nothing_is_made_up(tmp_path):
    run = f"bash ../other/base.sh {ACTOR}.optim.lr=1e-7\nsource /opt/env.sh\nsource ~/x.sh\n"
    first, *_, last = told(tmp_path, run__sh=run)
    assert (first.level, first.what.startswith("base.sh: called in a script, and not beside it")) == ("note", True)
    assert first.cure.startswith("give it too, first: bandpo doctor base.sh ")
    assert last.level == "note"
    assert last.what == (
        "the optimizer steps of a batch are not judged: train_batch_size is not given here; verl's default would be "
        "1024; ppo_mini_batch_size is not given here; verl's default would be 256"
    )


def test_scripts_that_call_each_other_end(tmp_path):
    level, _ = steps_of(
        tmp_path, run__sh=f"bash ./other.sh\nbash run.sh\n{BASE}", other__sh="bash run.sh\nbash run.sh\n"
    )
    assert level == "ok"


PARTIAL = {
    "one setting": f"{ACTOR}.ppo_mini_batch_size: 64",
    "its epochs": f"{ACTOR}: {{ppo_epochs: 3}}",
    "no batch": f"{ACTOR}.clip_ratio: 0.2",
}


@pytest.mark.parametrize("name", PARTIAL)
def test_what_is_partial_is_never_ok(tmp_path, name):
    key, _, value = PARTIAL[name].partition(": ")
    found = list(examine([f"{key}={value}"]))
    assert not {f.level for f in found} & {"ok", "problem"}
    assert "train_batch_size is not given here; verl's default would be 1024" in found[-1].what
    assert found[-1].what.startswith("each answer is used 3 times; ") == (name == "its epochs")


def test_what_is_1_by_default_is_named_as_that_and_only_warned_of(tmp_path):
    run = "python open_instruct/grpo_fast.py --clip_higher 0.28"
    level, what = steps_of(tmp_path, run__sh=run)
    assert (level, what) == (
        "warning",
        "the ratio is 1 by design: each answer is used once, in one optimizer step (--num_mini_batches 1 by default, "
        "--num_epochs 1 by default), and no rule acts",
    )
    assert steps_of(tmp_path, run__sh=f"{run} --num_epochs 2")[0] == "ok"
    assert steps_of(tmp_path, run__sh=f"{run} --use_vllm_logprobs true")[0] == "note"  # then a rule may act


def test_a_factor_that_is_not_given_is_named_as_the_default():
    (steps,) = (f for f in examine(["data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=16"]) if "used" in f.what)
    assert "(train_batch_size 64, ppo_mini_batch_size 16, ppo_epochs 1 by default)" in steps.what
    (steps,) = (f for f in examine(["num_iterations=4"]) if "used" in f.what)
    assert (steps.level, steps.what) == (
        "note",
        "each answer is used 4 times; the optimizer steps of a batch are not judged: gradient_accumulation_steps is "
        "not given here; TRL's default would be 1",
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("N=4\nrun a.b=$((N * 2))", 8),
        ("N=4; M=12\nrun a.b=$(( (${N} + M) / 2 - 1 ))", 7),
        ("N=${N:-4}\nrun a.b=$(($N%3))", 1),
        ("N=4\nrun a.b=${X:-$((N * N))}", 16),
        ("N=8 bash x\nN=${N:-4}\nrun a.b=$N", 8),
        ("N=4\nN=\"${N}\" M='1'\nexport N\nif [ N ]; then run a.b=$N; fi", 4),
        ("A=$B\nB=4\nrun a.b=$A", 4),
        ("N=4\nrun a.b=${Y:-${N}}", 4),
    ],
)
def test_shell_arithmetic_of_known_names_is_computed(text, value):
    assert of_shell(text)["a"]["b"] == value


@pytest.mark.parametrize(
    "text",
    [
        "run a.b=$((N * 2))",
        "N=4\nN=8\nrun a.b=$((N * 2))",
        "N=4\nN=8\nrun a.b=${N:-2}",
        'N=${N:-4}\nif [ "$DEBUG" ]; then N=8; fi\nrun a.b=$N',
        ': "${N:=4}"\nif [ "$DEBUG" ]; then N=8; fi\nrun a.b=$N',
        "N=$(nvidia-smi | wc -l)\nrun a.b=$((N * 2))",
        "run a.b=$((1 / 0))",
        "run a.b=$((2 ** 9))",
        "run a.b=$(($(f 4)))",
        "A=$B\nB=$A\nrun a.b=$A",
    ],
)
def test_what_is_not_known_is_not_computed(text):
    assert "$" in of_shell(text)["a"]["b"]


def test_variables_that_grow_without_end_take_no_time():
    names = "abcdefghijklmnop"
    lines = [f"{name}={10 * f'${before}'}" for before, name in itertools.pairwise(names)]
    assert "$" in of_shell("\n".join(["a=xxxxx", *lines, "run a.b=$p"]))["a"]["b"]


def test_hydras_list_of_overrides_is_read(tmp_path):
    text = f"- data.train_batch_size=16\n- +{ACTOR}.ppo_mini_batch_size=8\n- ~algorithm.x\n- ~data.y=1\n"
    assert "spread over 2 optimizer steps" in steps_of(tmp_path, overrides__yaml=text)[1]
    for other in ("- 1\n- 2\n", "just text\n"):
        (tmp_path / "other.yaml").write_text(other)
        with pytest.raises(
            UserError, match=r"other\.yaml must hold settings by name, or Hydra's list of key=value, got "
        ):
            list(examine([str(tmp_path / "other.yaml")]))


def test_a_file_of_a_hydra_group_is_that_group(tmp_path):
    (tmp_path / "actor").mkdir()
    text = "defaults: [_self_]\nstrategy: fsdp\nppo_mini_batch_size: 8\nx: ${actor_rollout_ref.y}\n"
    level, what = steps_of(tmp_path / "actor", dp_actor__yaml=text)
    assert level == "note"
    assert what.endswith("not judged: train_batch_size is not given here; verl's default would be 1024")


def test_a_file_that_hydra_builds_on_others_is_the_whole_of_what_it_sets(tmp_path):
    (tmp_path / "math").mkdir()
    level, what = steps_of(tmp_path / "math", run__yaml="defaults: [base]\nalgorithm: {n_minibatches: 4}\n")
    assert (level, "spread over 4 optimizer steps" in what) == ("ok", True)
    with_rule = [str(tmp_path / "math" / "run.yaml"), "algorithm.n_minibatches=8"]
    assert any("spread over 8 optimizer steps" in f.what for f in examine(with_rule))


def test_settings_of_trl_one_level_down_are_read_and_that_is_said(tmp_path):
    text = "seed: 1\ntemperature: 1\ngrpo: {num_generations: 8, gradient_accumulation_steps: 4, num_iterations: 2}\n"
    note, steps = told(tmp_path, config__yaml=text)
    assert (note.level, note.what) == ("note", "what stands below grpo is read as TRL's settings")
    assert "spread over 2 optimizer steps (steps_per_generation 4 by default, num_iterations 2, " in steps.what
    two = f"{text}other: {{num_generations: 8}}\n"  # which of them trains?
    assert all("is read as" not in f.what for f in told(tmp_path, config__yaml=two))


GSPO = {
    "verl": (
        "run__sh",
        f"{ACTOR}.policy_loss.loss_mode=gspo {ACTOR}.clip_ratio_low={{}} {ACTOR}.clip_ratio_high={{}}",
    ),
    "SkyRL": ("run__sh", "trainer.algorithm.policy_loss_type=gspo t.eps_clip_low={} t.eps_clip_high={}"),
    "slime": ("run__sh", "slime --advantage-estimator gspo --eps-clip {} --eps-clip-high {}"),
    "AReaL": (
        "run__yaml",
        "x: areal\nactor: {{importance_sampling_level: sequence, eps_clip: {}, eps_clip_higher: {}}}",
    ),
    "ms-swift": ("run__sh", "swift rlhf --importance_sampling_level sequence --epsilon {} --epsilon_high {}"),
    "NeMo-RL": (
        "run__yaml",
        "num_prompts_per_step: 8\nloss_fn: {{sequence_level_importance_ratios: true, ratio_clip_min: {}, "
        "ratio_clip_max: {}}}",
    ),
    "TRL": ("run__sh", "trl grpo --importance_sampling_level sequence --epsilon {} --epsilon_high {}"),
}


@pytest.mark.parametrize("name", GSPO)
@pytest.mark.parametrize(("low", "high", "level"), [(0.2, 0.28, "warning"), (0.0003, 0.0004, "note")])
def test_gspos_limits_are_those_of_a_mean_ratio(tmp_path, name, low, high, level):
    file, text = GSPO[name]
    (limits,) = (f for f in told(tmp_path, **{file: text.format(low, high)}) if "GSPO" in f.what)
    assert limits.level == level
    assert "which GSPO's paper sets to 0.0003 and 0.0004" in limits.what
    assert ("; at 0.2 nothing is ever clipped" in limits.what) == (level == "warning")
    assert not any("as in Clip" in f.what for f in told(tmp_path, **{file: text.format(low, high)}))


def test_gspo_without_limits_names_the_default_as_that(tmp_path):
    (limits,) = (f for f in told(tmp_path, run__sh=f"{ACTOR}.policy_loss.loss_mode=gspo") if "GSPO" in f.what)
    assert (limits.level, "clip_ratio is not given here; verl's default would be 0.2" in limits.what) == ("note", True)
    (tmp_path / "a.py").write_text("GRPOConfig(num_iterations=2, importance_sampling_level='sequence')\n")
    (limits,) = (f for f in examine([str(tmp_path / "a.py")]) if "GSPO" in f.what)
    assert "epsilon is not given here; TRL's default would be 0.2" in limits.what


def test_a_rule_of_ours_with_gspos_ratio_and_limits_of_tokens_is_told(tmp_path):
    for eps, level in ((0.2, ["warning"]), (0.0003, [])):
        clip = f"{{type: clip, eps_low: {eps}, eps_high: {eps}}}"
        rule = f"{{type: objective, ratio: sequence-mean, trust_region: {clip}}}"
        text = f"rl: grpo\nplugins: [bandpo.integrations.axolotl.Plugin]\ntrust_region: {rule}\n"
        assert [f.level for f in told(tmp_path, run__yaml=text) if "GSPO" in f.what] == level


MEGATRON = [f"{ACTOR}.strategy=megatron", "model_engine=megatron", f"{ACTOR}.megatron.dtype=float16"]


@pytest.mark.parametrize("mark", MEGATRON)
def test_megatron_is_told_nothing_of_fsdp(mark):
    found = list(examine([mark, f"{ACTOR}.ppo_mini_batch_size=8"]))
    assert not any("fsdp_config" in f.what + f.cure for f in found)
    (precision,) = (f for f in found if "float32" in f.what)
    assert (precision.level, f"whatever {ACTOR}.megatron.dtype is" in precision.what) == ("note", True)
    assert any("fsdp_config" in f.cure for f in examine([f"{ACTOR}.ppo_mini_batch_size=8", f"{ACTOR}.strategy=fsdp2"]))


@pytest.mark.parametrize(
    ("more", "level", "end"),
    [((), "problem", ": verl stops at the start"), ((f"{ACTOR}.use_dynamic_bsz=true",), "note", "")],
)
def test_a_mini_batch_larger_than_the_batch_is_told(more, level, end):
    sizes = ["data.train_batch_size=16", f"{ACTOR}.ppo_mini_batch_size=64", *more]
    (found,) = (f for f in examine(sizes) if "larger" in f.what)
    assert (found.level, found.what) == (level, f"ppo_mini_batch_size 64 is larger than train_batch_size 16{end}")
    equal = ["data.train_batch_size=64", *sizes[1:]]
    assert not any("larger" in f.what for f in examine(equal))


def test_of_rllms_asynchronous_trainer_the_mini_batch_is_another_setting():
    sizes = ["data.train_batch_size=64", f"{ACTOR}.ppo_mini_batch_size=16", "rllm.async_training.mini_batch_size=64"]
    for on, level in (("true", "note"), ("false", "ok")):
        (*_, steps) = examine([*sizes, f"rllm.async_training.enable={on}"])
        assert (steps.level, "mini_batch_size takes the place of" in steps.what) == (level, level == "note")


@pytest.mark.parametrize(
    "text", ["$((" * 20_000, f"{'9' * 900}\nrun a.b=$(({'$N*' * 6}1))", f"{{}} {'a/' * 50_000}", "1 " + "N=1 " * 50_000]
)
def test_a_script_of_any_shape_takes_no_time(tmp_path, text):
    began = time.process_time()
    told(tmp_path, run__sh=f"N={text}\n{text}\n{BASE}")
    assert time.process_time() - began < 5


def test_scripts_that_call_the_next_one_twice_are_read_once_each(tmp_path):
    files = {f"s{k}__sh": f"bash s{k + 1}.sh\nbash s{k + 1}.sh x.n={k}\n" for k in range(30)}
    level, what = steps_of(tmp_path, **files, s30__sh=BASE)
    assert (level, "spread over 4 optimizer steps" in what) == ("ok", True)
