"""The doctor of TRL's settings, held against GRPOConfig itself, and of logs that were made with a known fault."""

import itertools
import json
import re

import pytest
from trl import GRPOConfig

from bandpo.doctor import on_trl
from bandpo.doctor.on_trl import JUDGED
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
    (result,) = findings(*(f"{key}={value}" for key, value in settings.items()))
    assert result[0] == ("problem" if of_trl else "ok")
    assert ("the ratio is 1 by design" in result[1]) == of_trl
    if of_trl:
        cure = int(re.match(r"steps_per_generation=(\d+) ", result[2])[1])
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
        result = [
            f for f in findings("num_iterations=2", *settings) if "in bfloat16 ratios are wrong by percents" in f[1]
        ]
        assert [f[0] for f in result] == ["warning"] * (half and told), settings


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


@pytest.mark.parametrize("name", CHANGED)
def test_what_a_script_changes_after_it_was_set_is_not_judged(tmp_path, name):
    before, words, what = CHANGED[name]
    (tmp_path / "train.py").write_text(f"{before}\nargs = GRPOConfig({words})\n")
    result = findings(tmp_path / "train.py")
    assert not {level for level, *_ in result} & {"ok", "problem"}
    assert any(what in message for _, message, _ in result)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated:FutureWarning")
def test_what_is_judged_has_trls_own_values(tmp_path):
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    own = {name: getattr(args, name) for name in JUDGED}
    assert own == {**JUDGED, "steps_per_generation": 1, "generation_batch_size": 8}


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
