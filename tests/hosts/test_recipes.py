"""The files of examples/trainers: where trainers build or clamp the loss, beside what test_conformance.py runs of them.

With BANDPO_HOSTS=FOLDER, which has a checkout or a wheel of each, every place is looked for in all of their files.
"""

import ast
import re
import sys

import pytest
from hosts.trainers import ACTORS, CASES, CLIP, PACKAGES, PROBABILITIES, RECIPES, RULE, by_recipe, place
from made import BANDS, batch

import bandpo

# Of each trainer: what its recipe changes, the files that build or call it, and those that clamp between 1 - and 1 +.
NEMO, ROLL = (
    "nemo_rl/algorithms",
    [f"roll/pipeline/{path.rpartition('.')[0].replace('.', '/')}.py" for path in ACTORS.split()],
)
PLACES = {
    "areal": (r"ppo_actor_loss_fn\(", "areal/trainer/ppo/actor.py", "areal/utils/functional/functional.py"),
    "openrlhf": (r"PolicyLoss\(", "openrlhf/trainer/ray/ppo_actor.py", "openrlhf/models/loss.py"),
    "nemo_rl": (
        r"ClippedPGLossFn\(",
        f"{NEMO}/grpo.py {NEMO}/ppo.py {NEMO}/single_controller_utils/setup.py",
        f"{NEMO}/loss/loss_functions.py",
    ),
    "open_instruct": (
        r"compute_grpo_loss\(",
        "open_instruct/grpo_fast.py open_instruct/olmo_core_train_modules.py",
        "open_instruct/grpo_utils.py",
    ),
    "roll": (r"get_old_log_probs_with_cache\(", " ".join(ROLL), " ".join(ROLL)),
    "swift": (
        r"self\._compute_loss_and_metrics\(",
        "swift/rlhf_trainers/grpo_trainer.py",
        "swift/rlhf_trainers/grpo_trainer.py swift/megatron/trainers/grpo_trainer.py swift/rl_core/advantage.py",
    ),
    "twinkle": (r"self\._compute_per_token_loss\(", "twinkle/loss/grpo.py", "twinkle/loss/grpo.py"),
    "molt": (r"get_policy_loss\(", "molt/models/loss.py", "molt/models/loss.py"),
    "easyr1": (r"compute_policy_loss\(", "verl/workers/actor/dp_actor.py", ""),  # it clamps log-ratios
    "oumi": (r"trl\.GRPOTrainer\b", "oumi/builders/training.py", ""),
}
CLAMP = r"\bclamp\((?:[^()]|\([^()]*\))*?\b1(?:\.0)? - (?!1e-6)"


def look(folder, package):
    """Fail with the files where a trainer builds or clamps its loss elsewhere than its recipe was written for."""
    called, *wanted = PLACES[package]
    root = folder / PACKAGES.get(package, package)
    texts = {
        str(file.relative_to(folder)): re.sub(r"(?m)^\s*(def|class|#).*$", "", file.read_text(encoding="utf-8"))
        for file in sorted(root.rglob("*.py"))
        if not file.name.startswith("test_")
    }
    for pattern, files in zip((called, CLAMP), wanted, strict=True):
        there = [file for file, text in texts.items() if re.search(pattern, text)]
        if there != sorted(files.split()):
            pytest.fail(f"{RECIPES[package].host}: {pattern} is in {there}, and its recipe was written for {files}")


BY_RECIPE = [key for key, case in CASES.items() if getattr(case.loss, "func", None) is by_recipe]


@pytest.mark.parametrize("trainer", [key for key in BY_RECIPE if CASES[key].exact], indirect=True)
def test_a_rule_that_needs_more_is_refused_at_the_first_loss(trainer):
    tensors = batch(PROBABILITIES)
    with pytest.raises(ValueError, match="BySign needs advantages"):
        trainer.run(bandpo.BySign(CLIP, BANDS[0]), tensors)


@pytest.mark.parametrize("file", PLACES["nemo_rl"][1].split())
@pytest.mark.parametrize("trainer", ["nemo_rl"], indirect=True)
def test_each_trainer_of_nemo_rl_imports_the_class_that_is_changed(trainer, file):
    lines = ast.parse((place("nemo_rl") / file).read_text(encoding="utf-8")).body
    (line,) = (x for x in lines if isinstance(x, ast.ImportFrom) and "ClippedPGLossFn" in {y.name for y in x.names})
    names = {}

    def changed(module, *tensors):
        exec(compile(ast.Module([line], []), file, "exec"), names)
        assert names["ClippedPGLossFn"].__call__ is sys.modules["bandpo_recipe"].loss

    with pytest.MonkeyPatch.context() as trainer.patch:
        by_recipe(changed, trainer, CLIP)
    assert names


@pytest.mark.parametrize("package", PLACES)
def test_every_place_where_a_trainer_builds_or_clamps_its_loss_was_there_when_its_recipe_was_written(package):
    if not place(package).is_dir():
        pytest.skip(f"BANDPO_HOSTS names no folder with {package}")
    look(place(package), package)


def test_each_recipe_is_ten_lines_at_most_with_a_rule_to_replace():
    assert ({*RECIPES}, {*PLACES}) == ({*(key.split()[0] for key in BY_RECIPE), "oumi"}, RECIPES.keys() - {"sdpo"})
    for name, recipe in RECIPES.items():
        others = recipe.text.split(RULE.removeprefix("bandpo."))
        assert (len(others), "".join(others).count('"kl"')) == (2, 0), name
        lines = [line for line in recipe.text.splitlines() if line and not re.match("import|from", line)]
        assert len(lines) <= 9, name
