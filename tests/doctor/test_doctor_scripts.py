"""The doctor of scripts and settings as people keep them: wrappers, arithmetic, Hydra's files, and what is missing."""

import itertools
import re
import time
from pathlib import Path

import pytest
import yaml
from disk import write
from trl import GRPOConfig

from bandpo.errors import UserError
from bandpo.integrations import TRAINERS
from bandpo_runs.doctor import on_trl
from bandpo_runs.doctor.examine import examine
from bandpo_runs.doctor.hosts import FACTS, host_of
from bandpo_runs.doctor.on_trl import JUDGED
from bandpo_runs.doctor.scripts import of_code, of_shell

ACTOR = "actor_rollout_ref.actor"
BASE = f'python3 -m verl.trainer.main_ppo data.train_batch_size=64 {ACTOR}.ppo_mini_batch_size="${{MINI:-16}}" "$@"\n'


def told(tmp_path, **files):
    """Write files, and return what is said of the first one, without the precision."""
    first, *_ = [write(tmp_path / name.replace("__", "."), text) for name, text in files.items()]
    return [f for f in examine([str(first)]) if "the actor computes" not in f.what]


def test_of_a_script_that_is_not_there_nothing_is_made_up(tmp_path):
    run = f"bash ../other/base.sh {ACTOR}.optim.lr=1e-7\nsource /opt/env.sh\nsource ~/x.sh\n"
    first, *_, last = told(tmp_path, run__sh=run)
    assert (first.level, first.what.startswith("base.sh is called in the script and not read")) == ("note", True)
    assert first.cure.startswith("add it: bandpo doctor base.sh ")
    assert last.level == "note"
    assert last.what == (
        "the optimizer steps per batch are not judged: train_batch_size is not given here; verl's default would be "
        "1024; ppo_mini_batch_size is not given here; verl's default would be 256"
    )


@pytest.mark.parametrize(
    "call",
    [
        'bash "$(dirname "$0")/base.sh" x.y=1',
        'MINI=8 exec bash "${HERE}/base.sh" "$@"',
        'exec "$HERE/base.sh" \\\n  x.y=1',
        "if ! A=1 bash ./base.sh; then exit 1; fi",
        "A=1 ./base.sh",
        "sbatch -N2 scripts/base.sh 2>&1 | tee log",
        'cd "$HERE"; source base.sh && python x.py',
        "bash /elsewhere/base.sh x.y=1",
    ],
)
def test_a_script_that_is_called_and_not_given_is_named(tmp_path, call):
    assert told(tmp_path, run__sh=f"# bash other.sh\n{call}\n")[0].what.startswith("base.sh is called in the script")


def test_the_cure_names_the_file_beside_the_script_and_settings_behind_its_arguments_are_not_judged(tmp_path):
    inner = write(tmp_path / "base.sh", f"{BASE[:-6]} $@ {ACTOR}.ppo_mini_batch_size=64\n")
    sizes, outer = (
        tmp_path / "sizes.env",
        write(tmp_path / "run.sh", f". ./sizes.env\nbash base.sh {ACTOR}.ppo_epochs=1\n"),
    )
    finding = next(iter(examine([str(outer)])))
    assert finding.what.startswith(f"{inner}, sizes.env is called in the script and not read")
    assert finding.cure == f"add it: bandpo doctor {inner} sizes.env {outer}"
    write(sizes, "MINI=16\n")
    for behind in (f"$@ {ACTOR}.x=64", f'"${{@:2}}" {ACTOR}.x=64', f'"$@" "{ACTOR}.x=64"', "$* --x 4"):
        write(inner, f"{BASE[:-6]} {behind}\n")
        levels = [finding.level for finding in examine([str(inner), str(sizes), str(outer)])]
        assert {"ok", "problem"}.isdisjoint(levels), behind
    write(inner, BASE)  # and in front of them they are its own
    assert {"ok", "problem"} & {finding.level for finding in examine([str(inner), str(sizes), str(outer)])}
    write(tmp_path / ".env", "MINI=16\n")
    assert [f.level for f in examine([str(tmp_path / ".env"), str(write(tmp_path / "one.sh", f"source .env\n{BASE}"))])]
    no_calls = f"LOG=/data/x.env\ndocker run \\\n  --env-file=./x.env\n{BASE}"
    assert "is called" not in " ".join(f.what for f in examine([str(write(tmp_path / "two.sh", no_calls))]))


GROWING = "".join(f"{name}={10 * f'${before}'}\n" for before, name in itertools.pairwise("abcdefghijklmnop"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("N=8 bash x\nN=${N:-4}\nrun a.b=$N", 8),
        ("N=4\nN=\"${N}\" M='1'\nexport N\nif [ N ]; then run a.b=$N; fi", 4),
        ("A=$B\nB=4\nrun a.b=$A", 4),
        ("N=4\nrun a.b=${Y:-${N}}", 4),
        ("N=4\nrun a.b=$((N * 2))", "$"),
        ("N=${N:-4}\nrun a.b=$(($N%3))", "$"),
        ("N=4\nrun a.b=${X:-$((N * N))}", "$"),
        ("N=4\nM=$((N / 2))\nrun a.b=$M", "$"),
        ("N=4\nN=8\nrun a.b=${N:-2}", "$"),
        ('N=${N:-4}\nif [ "$DEBUG" ]; then N=8; fi\nrun a.b=$N', "$"),
        (': "${N:=4}"\nif [ "$DEBUG" ]; then N=8; fi\nrun a.b=$N', "$"),
        ("N=$(nvidia-smi | wc -l)\nrun a.b=$((N * 2))", "$"),
        ("run a.b=$(($(f 4)))", "$"),
        ("A=$B\nB=$A\nrun a.b=$A", "$"),
        (f"a=xxxxx\n{GROWING}run a.b=$p", "$"),  # which would grow without end
    ],
)
def test_a_shell_variable_has_its_one_value_and_what_is_computed_is_not_known(text, value):
    result = of_shell(text)["a"]["b"]
    assert result == value if isinstance(value, int) else "$" in result


@pytest.mark.parametrize(
    "text", ["$((" * 20_000, f"{'9' * 900}\nrun a.b=$(({'$N*' * 6}1))", f"{{}} {'a/' * 50_000}", "1 " + "N=1 " * 50_000]
)
def test_a_script_of_any_shape_takes_no_time(tmp_path, text):
    began = time.process_time()
    told(tmp_path, run__sh=f"N={text}\n{text}\n{BASE}")
    assert time.process_time() - began < 5


# ---- the doctor on setups as people keep them: scripts, settings and logs of every trainer (doctor_cases.yaml)

CASES = yaml.safe_load(Path(__file__).with_name("doctor_cases.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["is"])
def test_a_setup_has_these_findings(case, here):
    for name, text in case.get("files", {}).items():
        write(name, text)
    try:
        examined = [finding for finding in examine(case["arguments"]) if "says when a clip matters" not in finding.cure]
        findings = [f"{finding.level}: {finding.what}" for finding in examined]
    except UserError as error:
        findings = [f"UserError: {error}"]
    beginnings = [finding[: len(begin)] for finding, begin in zip(findings, case["findings"], strict=False)]
    assert (len(findings), beginnings) == (len(case["findings"]), case["findings"])


# ---- the doctor of every trainer: it knows whose a configuration is, reads each form, and says what has an effect

SIZES = "--rollout-batch-size 32\n --n-samples-per-prompt 8\n --global-batch-size {}\n"
RLHF = "--rollout.batch_size {} --train.batch_size 128\n"
NEMO = "  num_prompts_per_step: {}\n  num_generations_per_prompt: 8\n"


def said(tmp_path, text, suffix=".yaml"):
    return [(f.level, f.what, f.cure) for f in examine([str(write(tmp_path / f"run{suffix}", text.encode()))])]


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
RECIPES = {"AReaL", "OpenRLHF", "NeMo-RL", "open-instruct", "ROLL", "EasyR1", "ms-swift"}  # of docs/hosts.md


def test_every_trainer_has_facts():
    assert set(WRITTEN) == set(FACTS) == set(TRAINERS) - {"TRL", "unsloth"} | RECIPES  # unsloth's is a GRPOConfig


HALF = {
    "RLinf": (
        ".yaml",
        "n_minibatches: 4\n{}",
        "entropy_op_type: torch",
        "entropy_op_type: flash_attn",
        "set entropy_op",
    ),
    "miles": (".sh", "miles {}\n", "--true-on-policy-mode", "", "remove --true-on-policy-mode"),
    "torchrl": (
        ".yaml",
        "clip: torchrl\ntrain: {{mixed_precision: {}}}\n",
        "false",
        "true",
        "set train.mixed_precision=True",
    ),
    "axolotl": (".yaml", "rl: grpo\nbf16: true\n{}", "deepspeed: zero3.json\n", "", "remove deepspeed"),
    "ms-swift": (".sh", "swift rlhf --torch_dtype bfloat16 {}\n", "--deepspeed zero2", "", "remove --deepspeed"),
    "open-instruct": (".sh", "python open_instruct/grpo_fast.py\n{}", "", None, "write logits.float() in forward_for_"),
}


@pytest.mark.parametrize(("suffix", "text", "bad", "good", "cure"), HALF.values(), ids=HALF)
def test_half_precision_is_told_where_the_trainer_does_not_compute_in_float32(tmp_path, suffix, text, bad, good, cure):
    def told(setting):
        words = "log-probabilities have the precision of the model. In bfloat16 ratios are off by several percent"
        return [(f[0], cure in f[2]) for f in said(tmp_path, text.format(setting), suffix) if words in f[1]]

    assert told(bad) == [("warning", True)]
    assert good is None or told(good) == []


def test_of_other_trainers_it_says_no_word_of_precision(tmp_path):
    texts = {name: said(tmp_path, text.format(number), suffix) for name, (suffix, text, number, _) in WRITTEN.items()}
    assert [name for name, told in texts.items() if "precision of the model" in str(told)] == ["open-instruct"]


def test_a_shell_script_is_read_and_not_run():
    script = """
    # slime a.b=9
    N=4; export M=${N}
    : "${K:=7}"
    x=1
    [ "$x" ] && x=2
    run a.b="$N" '+a.c={type: band, delta: 0.1}' a.d=${M} a.e=${Q:-5} a.f=$K a.g=$x a.h=$((N*2)) "a.i=it's" \\
      --flag --other-flag 0.5 --last=3 # a.j=1
    touch ran
    """
    assert of_shell(script) == {
        "a": {"b": 4, "c": {"type": "band", "delta": 0.1}, "d": 4, "e": 5, "f": 7, "g": "$x", "h": "$((N*2))",
              "i": "its"},
        "--flag": True, "--other-flag": 0.5, "--last": 3,
    }  # fmt: skip
    assert not Path("ran").exists()


def test_of_a_script_plain_values_are_read_and_names_that_are_set_once(tmp_path):
    path = write(
        tmp_path / "a.py",
        "print('ran')\nn = 4\nm = 1\nm = 2\nclass C:\n    k: int = 3\n"
        "f(a=n, b=m, c=args.k, d=g(), e=dict(x=1), **{'h': 2})\nmod.f(a=1)\nf(a=4)\nf(i=1)\nf(i=2)\n",
    )
    f = {"a": 4, "b": ..., "c": ..., "d": ..., "e": {"x": 1}, "**{'h': 2}": ..., "i": ...}
    assert of_code(path) == {"f": f, "mod": {"f": {"a": 1}}, "dict": {"x": 1}}


def test_comments_do_not_tell_whose_a_configuration_is():
    for one, other in itertools.permutations(["import torchtitan", "import xtuner", "n_minibatches: 4"], 2):
        assert host_of(f"# {other}\n{one}  # {other}\n") == host_of(one) != host_of(other)
    assert host_of("nothing: 1") is None


# ---- the doctor of TRL's settings, held against GRPOConfig itself, and of logs that were made with a known fau


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
    of_trl = accumulation % (args.steps_per_generation * iterations) == 0  # as its trainer asks
    ((level, what, cure),) = findings(*(f"{key}={value}" for key, value in settings.items()))
    assert (level, "clipping has no effect: every ratio is 1" in what) == ("problem" if of_trl else "ok", of_trl)
    if of_trl:
        cure = re.match(r"steps_per_generation=(\d+) ", cure)[0].strip()
        assert findings(f"gradient_accumulation_steps={accumulation}", cure)[0][0] == "ok"


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
        result = findings("num_iterations=2", *settings)
        levels = [level for level, what, _ in result if "In bfloat16 ratios are off by several percent" in what]
        assert levels == ["warning"] * (half and told), settings


CHANGED = {
    "in place": ("steps = 1\nsteps *= 8", "steps_per_generation=steps", "steps_per_generation"),
    "a loop": ("steps = 1\nfor steps in (1, 8):\n    pass", "steps_per_generation=steps", "steps_per_generation"),
    "an item": ("kw = dict(num_iterations=1)\nkw['num_iterations'] = 4", "**kw", "**kw: not a plain value"),
    "an update": ("kw = dict(num_iterations=1)\nkw.update(num_iterations=4)", "**kw", "**kw: not a plain value"),
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
    "another call": ("other = GRPOConfig(num_iterations=1)", "num_iterations=4", "num_iterations: not a plain value"),
    "another rule": (
        "BandPOTrainer(m, trust_region='grpo')\nBandPOTrainer(m, trust_region='dapo')",
        "num_iterations=n",
        "num_iterations, trust_region: not a plain value",
    ),
    "an attribute": ("", "num_iterations=1)\nargs.num_iterations = 4\nprint(args", "num_iterations: not a plain value"),
}


@pytest.mark.parametrize(("before", "words", "what"), CHANGED.values(), ids=CHANGED)
def test_what_a_script_changes_after_it_was_set_is_not_judged(tmp_path, before, words, what):
    result = findings(write(tmp_path / "train.py", f"{before}\nargs = GRPOConfig({words})\n"))
    assert not {level for level, *_ in result} & {"ok", "problem"}
    assert any(what in message for _, message, _ in result)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
def test_what_is_judged_has_trls_own_values(tmp_path):
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    own = {name: getattr(args, name) for name in JUDGED}
    assert own == {**JUDGED, "steps_per_generation": 1, "generation_batch_size": 8}
