"""Folders of strangers: a command that reads them imports nothing that they name, and nothing that lies in them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import recipe
from disk import write
from report_runs import make_rows, write_run

import bandpo
from bandpo_runs.cli import main

SOURCE = str(Path(bandpo.__file__).parents[1])
RULE = {"type": "intersect", "first": {"type": "clip"}, "second": {"type": "evilmod:X", "eps": 0.1}}
# It leaves a mark when it is executed.
EVIL = "with open({mark!r}, 'a') as file:\n    file.write(__name__ + '\\n')\n"
CLASS = """
import torch, bandpo
from dataclasses import dataclass
@dataclass(frozen=True)
class X(bandpo.Region):
    kind = "x_of_a_stranger"
    eps: float = 0.2
    def bounds(self, old_logps, context=None):
        return bandpo.Bounds(0 * old_logps - self.eps, 0 * old_logps + self.eps)
"""
# Names, beside the rule's and the reward's, of what the commands import, or what their libraries look for.
SHADOWS = ("yaml", "torch", "typer", "numpy", "pydantic", "verl", "wandb", "sitecustomize")
READING = [
    ["report", "run", "-o", "report.html"],
    ["watch", "run", "--once"],
    ["doctor", "run/config.yaml"],
    ["doctor", "trl.yaml"],
    ["doctor", "verl.yaml"],
    ["doctor", "train.py"],
    ["doctor", "run/metrics.jsonl"],
    ["eval", "run", "-n", "1", "--max-tokens", "2", "--scorer", "exact", "-o", "graded"],
    ["eval", "run/model", "--data", "run", "-n", "1", "--max-tokens", "2", "--scorer", "exact", "-o", "other"],
    ["score", "graded"],
    ["compare", "graded", "other"],
    ["table", "graded", "other"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a stranger sent: a finished run with a rule and a reward of its own, settings, and files of Python."""
    home = recipe.make(tmp_path_factory.mktemp("stranger"))
    evil, run = EVIL.format(mark=str(home / "ran")), home / "run"
    node = recipe.node(home, run, trust_region=RULE, label="Mine", reward="evilmod:reward", data={"eval_size": 2})
    row = {"step": 1, "response_id": "a", "old_logps": [-1.0, -2.0], "logps": [-1.1, -1.0], "advantage": 0.5}
    facts = {"label": "Mine", "seed": 0, "finished": True, "learning_rate": 5e-3, "rounds": 3, "command": "bandpo"}
    loss = {"loss_mode": "bandpo", "_target_": "bandpo.integrations.verl.BandPOLossConfig", "trust_region": RULE}
    for name, content in {
        **{f"{name}.py": evil for name in SHADOWS},
        "evilmod.py": evil + CLASS,
        "matplotlibrc": "backend: module://evilmod\n",
        "run/config.yaml": {**node, "model": str(run / "model")},
        "run/run.json": facts,
        "run/metrics.jsonl": make_rows([0.1, 0.2, 0.3]),
        "run/tokens/tokens-0.jsonl": [row],
        "trl.yaml": {"trust_region": RULE, "num_iterations": 2},
        "train.py": f"from trl import GRPOConfig\nGRPOConfig(trust_region={RULE!r}, num_iterations=2)\n",
        "verl.yaml": {"actor_rollout_ref": {"actor": {"policy_loss": loss}}},
    }.items():
        write(home / name, content)
    (home / "model").rename(run / "model")
    return home


@pytest.fixture
def inside(folder, monkeypatch):
    """Inside it, with its modules to be had, as for someone who has such a module."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    yield folder
    Path("ran").unlink(missing_ok=True)
    sys.modules.pop("evilmod", None)
    bandpo.Region.kinds.pop("x_of_a_stranger", None)


def test_no_command_that_reads_imports_what_is_named(inside, capsys):
    for args in READING:
        assert (main(args) in (0, 1), Path("ran").exists()) == (True, False), args
    assert "evilmod" not in sys.modules
    text = " ".join("".join(capsys.readouterr()).split())
    assert text.count("the rule evilmod:X is not loaded; --trust loads it") == 4  # of the doctor


def test_two_rules_under_one_label_are_two_where_neither_is_loaded(inside, tmp_path, cli):
    for seed, eps in enumerate((0.1, 0.2)):
        write_run(tmp_path, "Mine", seed, make_rows([0.1]), {"trust_region": {"type": "evilmod:X", "eps": eps}})
    assert ("label 'Mine' stands for another" in cli.error("report", tmp_path), Path("ran").exists()) == (True, False)


@pytest.mark.parametrize("args", READING[2:6], ids=lambda args: args[1].replace("/", "-"))
def test_trust_imports_it(inside, capsys, args):
    assert main([*args, "--trust"]) in (0, 1)
    shown = capsys.readouterr().out
    assert (Path("ran").read_text(), "not loaded" in shown, "X(0.1)" in shown) == ("evilmod\n", False, True)


@pytest.fixture
def model(here, monkeypatch):
    """A model whose folder has code in every place that transformers knows, and a recipe that trains it."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(here / "modules"))
    evil, folder = EVIL.format(mark=str(here / "ran")), recipe.make(here) / "model"
    classes = "from transformers import Qwen2Config as C, Qwen2ForCausalLM as M, PreTrainedTokenizerFast as T\n"
    write(folder / "evil.py", evil + classes)
    write(folder / "custom_generate/generate.py", evil + "def generate(model, **more): ...\n")
    for name, auto in (
        ("config.json", {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}),
        ("tokenizer_config.json", {"AutoTokenizer": ["evil.T", "evil.T"]}),
    ):
        write(folder / name, json.loads((folder / name).read_text()) | {"auto_map": auto})
    return folder


def train(home: Path, **trainer) -> list[str]:
    """The line that trains a recipe with these settings."""
    write(home / "r.yaml", recipe.node(home, home / "out", rounds=1, trainer={"beta": 0.1, **trainer}))
    return ["train", "r.yaml"]


def test_no_code_of_a_models_folder_runs(model, cli):
    """`beta` lets TRL load the model once more, as the reference."""
    home, allowed = model.parent, {"trust_remote_code": True}
    for settings in (
        allowed,
        {"model_init_kwargs": allowed},
        {"model_init_kwargs": json.dumps(allowed)},
        {"generation_kwargs": {"custom_generate": str(model), **allowed}},
    ):
        error = cli.error(*train(home, **settings))
        assert (error.startswith("error: trainer."), Path("ran").exists()) == (True, False), settings
    cli.out(*train(home))
    cli.out("eval", "model", "--data", "lab", "-n", "1", "--max-tokens", "2", "--limit", "2")
    assert not Path("ran").exists()


def test_no_kernel_that_a_models_folder_names_is_loaded(model, cli):
    config = json.loads((model / "config.json").read_text())
    write(model / "config.json", {**config, "attn_implementation": "evil/kernel"})
    said = "model {!r} cannot be loaded: its config.json has 'evil/kernel' as attn_implementation, a kernel of the "
    for line, name in ((train(model.parent), str(model)), (["eval", "model", "--data", "lab", "-n", "1"], "model")):
        assert said.format(name) in cli.error(*line)


@pytest.mark.parametrize(
    ("trainer", "line"),
    [
        ({"push_to_hub": True, "hub_model_id": "evil/x", "report_to": ["wandb"], "run_name": "[bold]"},
         "This run may send data to other machines, with the logins of this one: push_to_hub=True, "
         "hub_model_id=evil/x, report_to=['wandb'].\nIT STARTS\n"),
        ({"num_iterations": 1, "steps_per_generation": 1}, "To change one: key=value.\nIT STARTS\n"),
    ],
)  # fmt: skip
def test_a_recipe_that_sends_data_out_is_said_before_it_starts(here, cli, monkeypatch, trainer, line):
    for name in ("WANDB_PROJECT", "WANDB_ENTITY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("bandpo_runs.training.on_trl.run", lambda config, **more: print("IT STARTS") or here)
    assert line in cli.out(*train(recipe.make(here), **trainer))


def ran(folder: Path, command: list[str], path: str) -> tuple[str, str]:
    """What a process printed that was started in the folder, and which of the folder's modules it executed."""
    (folder / "ran").unlink(missing_ok=True)
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return done.stdout, (folder / "ran").read_text() if (folder / "ran").exists() else ""


def test_python_m_leaves_the_working_directory_out(folder):
    assert ran(folder, [sys.executable, "-m", "bandpo", *READING[0]], SOURCE) == ("report.html\n", "")


@pytest.mark.slow
def test_an_empty_entry_of_pythonpath_leaves_it_out(folder, tmp_path):
    """All commands that read, in one process that is called as pip's script is; an empty entry comes first."""
    code = "import sys\nfrom bandpo_runs.cli import main\n"
    code += f"for args in {READING!r}:\n    assert main(args) in (0, 1), args\n"
    code += f"print([sys.path.count(place) for place in ('', {str(folder)!r})])\n"
    script = write(tmp_path / "bandpo", code)
    (folder / "sitecustomize.py").unlink()  # Python itself runs it, before any of us
    out, executed = ran(folder, [sys.executable, str(script)], f"{os.pathsep}{SOURCE}")
    assert (executed, out.endswith("\n[0, 0]\n")) == ("", True)


def test_an_entry_that_is_meant_stays(folder, tmp_path):
    """`PYTHONPATH=.` is how a rule of one's own is found; a program that calls the command line keeps its path."""
    code = "import os, sys\nfrom bandpo_runs.cli import main\n"
    code += "print(sys.path.count(os.getcwd()), os.environ['PYTHONPATH'])\n"
    empty = tmp_path / "empty"
    empty.mkdir()
    for name, path, shown in (
        ("bandpo", f".{os.pathsep}{SOURCE}", f"1 .{os.pathsep}{SOURCE}\n"),
        ("bandpo", f"{os.pathsep}.{os.pathsep}{SOURCE}", f"1 .{os.pathsep}{SOURCE}\n"),
        ("program.py", f"{os.pathsep}{SOURCE}", f"1 {os.pathsep}{SOURCE}\n"),
    ):
        (tmp_path / name).write_text(code)
        assert ran(empty, [sys.executable, str(tmp_path / name)], path) == (shown, "")


@pytest.mark.slow
def test_training_finds_a_rule_and_a_reward_in_the_working_directory_behind_all_others(tmp_path):
    """Under -m, too; and a file there that is called like a library takes its place nowhere."""
    evil = EVIL.format(mark=str(tmp_path / "ran"))
    own = "def reward(completions, **columns):\n    return [float(len(text)) for text in completions]\n"
    node = {"rounds": 1, "trust_region": {"type": "own:X"}, "reward": "own:reward"}
    for name, content in {
        **{f"{name}.py": evil for name in ("yaml", "torch", "trl", "datasets")},
        "own.py": evil + CLASS + own,
        "r.yaml": recipe.node(recipe.make(tmp_path), tmp_path / "out", **node),
    }.items():
        write(tmp_path / name, content)
    out, executed = ran(tmp_path, [sys.executable, "-m", "bandpo", "train", "r.yaml"], SOURCE)
    assert (out.endswith(f"{tmp_path / 'out'}\n"), executed) == (True, "own\n")
