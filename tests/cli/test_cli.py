"""The command line: what it takes, what it gives back, and one line on stderr for every mistake."""

import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import recipe
import torch
import yaml
from rich.control import Control
from rich.text import Text
from typer.main import get_command

import bandpo
from bandpo.losses.nodes import methods
from bandpo_runs import toy
from bandpo_runs.cli import app, arguments, main, show_training
from bandpo_runs.cli.ending import lenient_output
from bandpo_runs.config.recipe import _trainer
from bandpo_runs.progress import lines
from bandpo_runs.training.side_by_side import DEFAULT_METHODS


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = recipe.make(tmp_path_factory.mktemp("home"))
    (home / "empty").mkdir()
    return home


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def here(home, tmp_path, monkeypatch):
    """A working directory with a recipe, good and bad data, and some other file; nothing may be looked up outside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    node = recipe.node(home, Path("run"), rounds=1, save_every=0)
    Path("recipe.yaml").write_text(yaml.safe_dump(node))
    Path("misspelt.yaml").write_text(yaml.safe_dump({**node, "ronuds": 1}))
    Path("empty.jsonl").write_text("")
    Path("corrupt.jsonl").write_text('{"prompt": "a", "answer": 1}\n{"prompt": "b"')
    Path("column.jsonl").write_text('{"question": "a", "answer": 1}\n' * 4)
    Path("damaged").mkdir()
    Path("damaged/config.json").write_text((home / "model" / "config.json").read_text())
    Path("damaged/model.safetensors").write_bytes(b"nothing")
    return tmp_path


def everything(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def one_line(capsys):
    """What stderr has, which must be one line."""
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    return captured.err


# ---- mistakes

RECIPE = ["train", "recipe.yaml"]
MISTAKES = {
    "misspelt key": (["train", "misspelt.yaml"], "unknown key 'ronuds', did you mean 'rounds'?"),
    "misspelt setting": ([*RECIPE, "trainer.learning_rte=1"], "unknown key 'trainer.learning_rte', did you mean"),
    "no recipe": (["train", "gone.yaml"], "gone.yaml does not exist"),
    "no setting": ([*RECIPE, "rounds"], "'rounds' is not a setting; write key=value"),
    "no data": ([*RECIPE, "data.path=gone.jsonl"], "data.path 'gone.jsonl' is not a file"),
    "empty data": ([*RECIPE, "data.path=empty.jsonl"], "data.path 'empty.jsonl' has no rows"),
    "corrupt data": ([*RECIPE, "data.path=corrupt.jsonl"], "data.path 'corrupt.jsonl' cannot be read: line 2"),
    "no column": ([*RECIPE, "data.path=column.jsonl"], "data.prompt: column 'prompt' is not in 'column.jsonl'"),
    "no model": ([*RECIPE, "model=./gone"], "model './gone' (this folder does not exist) cannot be loaded"),
    "no model at all": ([*RECIPE, "model=damaged"], "model 'damaged' cannot be loaded"),
    "no reward": ([*RECIPE, "reward=gone:reward"], "reward 'gone:reward' cannot be imported"),
    "no chat template": ([*RECIPE, "data.chat=true"], "has no chat template"),
    "temperature": ([*RECIPE, "trainer.temperature=0"], "trainer: temperature must be positive"),
    "epsilon": ([*RECIPE, "trainer.epsilon=0.3"], "trainer.epsilon is set by trust_region; remove it"),
    "loss type": ([*RECIPE, "trainer.loss_type=cispo"], "trainer: loss_type must be one of"),
    "generations": ([*RECIPE, "trainer.num_generations=1"], "trainer: GRPO requires at least 2 generations"),
    "scheduler": ([*RECIPE, "trainer.lr_scheduler_type=flat"], "trainer: flat is not a valid SchedulerType"),
    "vllm": ([*RECIPE, "trainer.use_vllm=true"], "trainer: vLLM is not available"),
    "tracker": ([*RECIPE, "trainer.report_to=comet_ml"], "trainer: CometCallback requires comet-ml"),
    "logging": ([*RECIPE, "trainer.logging_steps=0.5"], "trainer.logging_steps must be a positive integer, got 0.5"),
    "output is a file": ([*RECIPE, "output=recipe.yaml"], "recipe.yaml"),
    "nothing to resume": (
        [*RECIPE, "--resume"],
        "run holds no run to resume (no config.yaml); start one without --resume",
    ),
    "no runs to draw": (["report", "damaged"], "damaged: no run found"),
    "no folder to draw": (["report", "gone"], "gone: no run found"),
    "unknown method": (["lab", "--methods", "grpoo"], "no method or rule is called 'grpoo', did you mean 'grpo'?"),
    "rule in words": (["lab", "--methods", "clip:2"], "error: 'clip:2': eps_low of Clip must be a number in [0, 1]"),
    "method twice": (["lab", "--methods", "grpo,grpo"], "method 'grpo' is given twice"),
    "no rounds": (["lab", "--rounds", "0"], "rounds: Input should be greater than or equal to 1, got 0"),
}


@pytest.mark.parametrize(("args", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(here, capsys, args, message):
    before = everything(here)
    assert main(args) == 2
    assert message in one_line(capsys)
    assert everything(here) == before


ARGUMENTS = {
    "unknown command": (["sing"], "no such command 'sing' (see bandpo --help)"),
    "misspelt command": (["trian"], "no such command 'trian'. Did you mean 'train'? (see bandpo --help)"),
    "no recipe": (["train"], "no recipe is given; try bandpo train recipes/lab/band-kl.yaml, or bandpo lab"),
    "no recipe to resume": (["train", "--resume"], "no recipe is given"),
    "no recipe, and the lab is not asked for": (
        ["train", "rounds=3"],
        "no recipe is given, and no model: name one with",
    ),
    "no command": (["data"], "missing command (see bandpo data --help)"),
    "unknown option": (["train", "--fast"], "no such option: --fast (see bandpo train --help)"),
    "option of all": (["--fast"], "no such option: --fast (see bandpo --help)"),
    "unknown argument": (["lab", "tail"], "got unexpected extra argument(s) (tail) (see bandpo lab --help)"),
    "option without value": (["lab", "--seeds"], "option '--seeds' requires an argument (see bandpo lab --help)"),
    "seeds in words": (["lab", "--seeds", "abc"], "different seeds like 0,3,4; got 'abc'"),
    "seeds half in words": (["lab", "--seeds", "1,b"], "different seeds like 0,3,4; got '1,b'"),
    "no seeds": (["lab", "--seeds", "0"], "got '0'"),
    "seeds twice": (["lab", "--seeds", "1,1"], "got '1,1'"),
    "negative seeds": (["lab", "--seeds=-1,2"], "got '-1,2'"),
    # With no rounds: were they accepted, it would take minutes to tell.
    "no jobs": (["lab", "--rounds=0", "--jobs", "0"], "invalid value for '--jobs': must be a positive number, got '0'"),
    "no scene": (
        ["lab", "--scene", "calm"],
        "invalid value for '--scene': 'calm' is not one of 'tail', 'storm', 'both' (see",
    ),
    "no number": (["lab", "--lr", "fast"], "invalid value for '--lr': Input should be a valid number, "),
    "nothing to draw": (["report"], "missing argument 'RUNS' (see bandpo report --help)"),
    "nothing to explain": (["explain"], "missing argument 'RULE' (see bandpo explain --help)"),
    "unknown rule": (
        ["explain", "bnd:kl"],
        "invalid value for 'RULE': no method or rule is called 'bnd:kl', did you mean 'band-kl'?",
    ),
    "unknown other rule": (
        ["explain", "band", "--vs", "clip:x"],
        "invalid value for '--vs': 'clip:x': eps_low of Clip must be a ",
    ),
    "no probability": (
        ["explain", "band", "--p", "0.5,2"],
        "invalid value for '--p': must be a probability in (0, 1], got '2' (see bandpo explain --help)",
    ),
    "no values": (
        ["lab", "--methods", " ,"],
        "invalid value for '--methods': nothing is given (see bandpo lab",
    ),
    "no time": (["eval", "m", "--timeout", "inf"], "must be a positive number of seconds, got 'inf'"),
    "spaces in a list": (
        ["lab", "--methods", "grpo", "{type: clip}", "--seeds", "1"],
        "invalid value for '--methods': values are separated by commas: --methods 'grpo,{type: clip}' (see bandpo lab",
    ),
    "the same rule by another name": (["lab", "--methods", "grpo,ppo"], "method 'ppo' is given twice, it is 'grpo'"),
    "spaces behind an argument": (["explain", "band", "--p", "0.5", "0.9"], "separated by commas: --p 0.5,0.9 (see "),
    "spaces among arguments": (["score", "a", "-k", "1", "8"], "separated by commas: -k 1,8 (see bandpo score --help)"),
    "spaces in another list": (
        ["data", "prepare", "a.csv", "-o", "b", "--against", "aime24", "aime25"],
        "separated by commas: --against aime24,aime25 (see bandpo data prepare --help)",
    ),
}


@pytest.mark.parametrize(("args", "message"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_wrong_arguments_are_one_line(here, capsys, args, message):
    before = everything(here)
    assert main(args) == 2
    assert message in one_line(capsys)
    assert everything(here) == before


BROKEN = """
def raises(completions, answer, **columns):
    return [1 / int(a == "nothing") for a in answer]

def short(completions, **columns):
    return [1.0]


def leaves(completions, **columns):
    exit()


async def waits(completions, **columns):
    return tuple(len(text) for text in completions)
"""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", "reward 'broken_rewards:raises' raised ZeroDivisionError: division by zero at "),
        (
            "short",
            "reward 'broken_rewards:short' must return a list of 16 numbers, one per completion, got a list of 1",
        ),
        ("leaves", "reward 'broken_rewards:leaves' raised SystemExit: None at "),
    ],
)
def test_a_reward_that_fails_is_one_line_and_the_run_can_be_resumed(here, capsys, monkeypatch, function, message):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "broken_rewards", raising=False)
    Path("broken_rewards.py").write_text(BROKEN)
    args = [*RECIPE, f"reward=broken_rewards:{function}"]
    assert main(args) == 2
    line = one_line(capsys)
    assert message in line
    assert function != "raises" or line.endswith("broken_rewards.py:3\n")
    sys.modules["broken_rewards"].__dict__[function] = lambda completions, **columns: [0.0] * len(completions)
    assert main([*args, "--resume"]) == 0
    assert "starting again" in capsys.readouterr().out
    assert json.loads(Path("run/run.json").read_text())["finished"]


def test_a_reward_that_is_waited_for_trains(here, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "broken_rewards", raising=False)
    Path("broken_rewards.py").write_text(BROKEN)
    assert main([*RECIPE, "reward=broken_rewards:waits"]) == 0
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert rows[0]["reward"] > 0
    assert rows[0]["rewards/waits/mean"] == rows[0]["reward"]


def test_a_run_is_neither_repeated_nor_resumed_with_other_settings(here, capsys):
    assert main(RECIPE) == 0
    capsys.readouterr()
    before = everything(here)
    assert main(RECIPE) == 2
    assert "run already holds a run; continue it with --resume, or choose another output" in one_line(capsys)
    assert main([*RECIPE, "--resume", "seed=4", "trainer.learning_rate=1e-4"]) == 2
    assert "(seed, trainer.learning_rate); resume with the same ones" in one_line(capsys)
    assert main([*RECIPE, "--resume"]) == 0
    assert "run is finished; nothing to resume" in capsys.readouterr().out
    assert everything(here) == before


def test_a_run_whose_settings_are_lost_is_not_sent_in_a_circle(here, capsys):
    Path("run").mkdir()
    Path("run/run.json").write_text("{}")
    assert main([*RECIPE, "--resume"]) == 2
    assert "run holds no run to resume (no config.yaml); start one without --resume" in one_line(capsys)


# ---- packages that are not installed


def take_away(monkeypatch, packages, modules):
    """As if the packages were not installed and our modules not yet imported."""
    loaded = {name: importlib.import_module(f"bandpo_runs.{name}") for name in modules}
    for name, module in loaded.items():
        wing, _, file = f"bandpo_runs.{name}".rpartition(".")
        monkeypatch.setattr(importlib.import_module(wing), file, module)  # an import replaces it too
        monkeypatch.delitem(sys.modules, f"bandpo_runs.{name}")
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize(
    ("package", "modules", "args"),
    [
        ("trl", [], RECIPE),
        ("numpy", ["reports.page"], ["lab"]),
        ("matplotlib", ["reports.charts", "reports.page"], ["report", "damaged"]),
    ],
)
def test_a_package_that_is_missing_is_named_with_how_to_get_it(here, capsys, monkeypatch, package, modules, args):
    take_away(monkeypatch, [package], modules)
    _trainer.cache_clear()
    assert main(args) == 2
    assert one_line(capsys) == f"error: {package} is not installed; pip install 'bandpo[lab]'\n"


def test_the_report_needs_nothing_that_training_needs(here, capsys, monkeypatch):
    taken = ["config.recipe", "config", "cli.show_training", "reports.runs", "reports.charts", "reports.page"]
    take_away(monkeypatch, ["trl", "transformers", "datasets", "rich"], taken)
    assert main(["report", "damaged"]) == 2
    assert "no run found" in one_line(capsys)


def test_a_short_word_needs_no_package_but_torch_and_a_node_says_what_it_needs(capsys, monkeypatch):
    take_away(monkeypatch, ["yaml"], [])
    assert main(["explain", "band:tv:0.1", "--p", "0.37", "--vs", "clip"]) == 0
    out = capsys.readouterr().out
    assert "0.27 to 0.47" in out
    assert "Up, against GRPO 0.2/0.2: Band-TV 0.1 leaves more room for p < 0.5, " in out
    assert main(["explain", "{type: band}"]) == 2
    assert "a YAML node needs PyYAML (pip install pyyaml)" in one_line(capsys)


# ---- what goes through


class Called(Exception):
    pass


@pytest.fixture
def calls(monkeypatch):
    """The arguments that the commands pass on."""
    seen = {}
    monkeypatch.setattr(show_training, "train_and_show", lambda *args: seen.update(train=args))
    monkeypatch.setattr(show_training, "compare_and_show", lambda *args: seen.update(lab=args))
    return seen


@pytest.mark.parametrize(
    ("args", "recipe_", "settings", "resume"),
    [
        (["r.yaml"], "r.yaml", [], False),
        (["r.yaml", "a=1", "b.c=2"], "r.yaml", ["a=1", "b.c=2"], False),
        (["a=1"], None, ["a=1"], False),
        (["a=1", "b=2"], None, ["a=1", "b=2"], False),
        (["--resume", "r.yaml", "a=1"], "r.yaml", ["a=1"], True),
        (["r.yaml", "--resume", "a=1"], "r.yaml", ["a=1"], True),
        (["r.yaml", "a=1", "--resume", "b=2"], "r.yaml", ["a=1", "b=2"], True),
        (["--resume", "a=1"], None, ["a=1"], True),
    ],
)
def test_train_takes_a_recipe_and_settings_in_any_order(here, calls, args, recipe_, settings, resume):
    assert main(["train", *args]) == 0
    assert calls["train"][:3] == (recipe_, settings, resume)


def test_the_lab_goes_on_with_numbers_that_are_not_finite_where_it_is_told_to(here, calls):
    assert main(["lab", "--no-stop-if-not-finite"]) == 0
    assert calls["lab"][4] == {"trainer": {}, "stop_if_not_finite": False}
    assert main(["lab"]) == 0
    assert calls["lab"][4] == {"trainer": {}}


def test_a_recipe_may_have_an_equals_sign_in_its_name(here, calls):
    Path("a=1").write_text("")
    assert main(["train", "a=1", "b=2"]) == 0
    assert calls["train"][:2] == ("a=1", ["b=2"])


def test_the_command_is_recorded_so_that_it_can_be_repeated(here, calls):
    assert main(["train", "a b.yaml", "label='x y'", "--resume"]) == 0
    assert calls["train"][3] == """bandpo train 'a b.yaml' 'label='"'"'x y'"'"''"""


def test_the_lab_without_options(here, calls):
    assert main(["lab"]) == 0
    (scene, methods, seeds, output, overrides, _, resume, _) = calls["lab"]
    assert (scene, methods, seeds, output, overrides, resume) == (
        "tail",
        None,
        [0, 1],
        Path("runs/lab"),
        {"trainer": {}},
        False,
    )


def test_the_lab_takes_its_options(here, calls):
    options = [
        "--scene",
        "storm",
        "--methods",
        "grpo,{type: clip}",
        "--seeds",
        "3,1",
        "--rounds",
        "5",
        "--lr",
        "1e-3",
    ]
    assert main(["lab", *options, "--jobs", "3", "-o", "there", "--resume"]) == 0
    assert calls["lab"][:7] == (
        "storm",
        ["grpo", "{type: clip}"],
        [3, 1],
        Path("there"),
        {"trainer": {"learning_rate": 1e-3}, "rounds": 5},
        3,
        True,
    )


def test_lists_are_given_by_commas_and_again(here, calls):
    """A comma within a node is the node's own, however deep."""
    node = "{type: by_sign, positive: {type: clip, eps_high: 1.0}, negative: {type: clip}}"
    assert main(["lab", "--methods", f"grpo, {node},band-kl", "--methods", "no-clip"]) == 0
    assert calls["lab"][1] == ["grpo", node, "band-kl", "no-clip"]
    assert main(["lab", "--methods=grpo", "--seeds", "4,2", "--methods=band-kl"]) == 0
    assert calls["lab"][1:3] == (["grpo", "band-kl"], [4, 2])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ["a"]),
        ("a,b , c", ["a", "b", "c"]),
        (",a,,", ["a"]),
        ("{a: [1, 2], b: {c: 1, d: 2}},e", ["{a: [1, 2], b: {c: 1, d: 2}}", "e"]),
        ("[1, 2],[3]", ["[1, 2]", "[3]"]),
        ("a},b", ["a}", "b"]),
        ("{a, b", ["{a, b"]),
        (" , ", []),
    ],
)
def test_a_list_is_split_at_the_commas_outside_brackets(text, parts):
    assert arguments.split(text) == parts


def test_words_behind_a_list_may_be_arguments(here, capsys):
    """The command's own, where none of them stands before the list."""
    assert main(["explain", "--p", "0.37", "band:tv:0.1"]) == 0
    assert "0.27 to 0.47" in capsys.readouterr().out
    for words in (["-k", "1,8", "gone"], ["gone", "-k", "8", "lost"]):
        assert main(["score", *words]) == 2
        assert "gone" in one_line(capsys)


def commands(group, *above):
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *above, name)
    yield " ".join(above), group


COMMANDS = {name: command for name, command in commands(get_command(app.app)) if name}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_help_has_every_option_and_argument_in_80_columns(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Usage: bandpo {name} ")
    assert max(map(len, out.splitlines())) <= 80
    assert "\n\n  " in out  # what the command does
    first = [line[2:].split("  ")[0] for line in out.splitlines() if line.startswith("  ") and line[2:3] != " "]
    for param in COMMANDS[name].params:
        if param.param_type_name == "argument":
            assert param.metavar in first  # and no Python type behind it
        else:
            shown = ", ".join(param.opts)
            assert any(text == shown or text.startswith(f"{shown} ") for text in first), param.opts
        assert param.help or name == "compare"  # A and B


def test_each_command_has_a_line_in_the_help(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    assert main(["data", "--help"]) == 0
    said = capsys.readouterr().out
    assert "..." not in said.replace("[ARGS]...", "")  # no line is cut
    for name, command in COMMANDS.items():
        assert f"\n  {name.split()[-1]} " in said
        assert command.help.partition("\n")[0].rstrip(".") in said


def test_each_command_stands_once_under_a_heading(capsys):
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert [*app.HEADINGS] == [line[:-1] for line in shown.splitlines() if line[:1].strip() and line.endswith(":")][:-1]
    names = [name for under in app.HEADINGS.values() for name in under]
    assert sorted(names) == sorted({name.split()[0] for name in COMMANDS})


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [("--v", "--version"), ("--i", ""), ("ex", "explain"), ("lab --sc", "--scene"), ("lab --scene st", "storm")],
)
def test_the_shell_completes_commands_options_and_choices(capfd, monkeypatch, typed, wanted):
    words = ["bandpo", *typed.split()]
    asked = {"_BANDPO_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    assert capfd.readouterr().out.split() == wanted.split()


def test_a_count_of_seeds_means_that_many(here, calls):
    main(["lab", "--seeds", "3"])
    assert calls["lab"][2] == [0, 1, 2]


def test_an_interruption_is_told_apart_from_a_mistake(here, capsys, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(show_training, "train_and_show", interrupted)
    assert main(["train", "a=1"]) == 130
    assert capsys.readouterr().err == "interrupted; the same command with --resume goes on\n"


def test_an_interruption_before_there_is_a_command_is_no_fault(here, capsys, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(app, "get_command", interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "interrupted; the same command goes on\n"


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("a bug"), OSError("a bug"), Called()])
def test_a_bug_is_not_hidden_behind_one_line(here, monkeypatch, error):
    ours = {"error": error}
    exec(compile("def buggy(*args):\n    raise error", show_training.__file__, "exec"), ours)
    monkeypatch.setattr(show_training, "train_and_show", ours["buggy"])
    with pytest.raises(type(error)) as caught:
        main(["train", "a=1"])
    assert "fault of bandpo itself" in caught.value.__notes__[0]


def test_what_a_library_raises_is_one_line_that_names_it_and_keeps_the_traceback(here, capsys, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    bag, flat = torch.nn.functional.embedding_bag, torch.ones(3)
    monkeypatch.setattr(show_training, "train_and_show", lambda *args: bag(flat, flat))
    assert main(["train", "a=1"]) == 2
    line = one_line(capsys)
    wanted = r"error: torch raised ValueError: .* \(at torch/nn/functional\.py:\d+, "
    wanted += r"called at bandpo_runs/cli/training\.py:\d"
    assert re.match(wanted, line), line
    (kept,) = here.glob("bandpo-*.txt")
    assert str(kept) in line
    assert "Traceback (most recent call last)" in kept.read_text()
    kept.unlink()
    monkeypatch.setattr(show_training, "train_and_show", lambda *args: 1 / 0)  # such as a rule of the user's
    assert main(["train", "a=1"]) == 2
    assert f"error: {__file__} raised ZeroDivisionError: division by zero (at {__file__}:" in one_line(capsys)
    monkeypatch.setattr(tempfile, "tempdir", str(here / "none"))
    assert main(["train", "a=1"]) == 2
    assert "traceback" not in one_line(capsys)


@pytest.mark.parametrize("template", ["{{ raise_exception('System role not supported') }}", "{{ messages + 1 }}"])
def test_a_chat_template_that_refuses_the_messages_is_named(here, capsys, monkeypatch, template):
    tokenizer = toy.tokenizer()
    tokenizer.chat_template = template
    messages = [{"role": "system", "content": "Be short."}]
    monkeypatch.setattr(show_training, "train_and_show", lambda *args: tokenizer.apply_chat_template(messages))
    assert main(["train", "a=1"]) == 2
    said = "System role not supported" if "role" in template else "can only concatenate list"
    assert one_line(capsys).startswith(f"error: the model's chat template refuses these messages: {said}")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("basic_ios::clear: iostream error"), "a file could not be written; is the disk full? (basic_ios"),
        (Exception("I/O error: Input/output error (os error 5)"), "a file could not be read or written; is the disk"),
        (OSError(27, "File too large"), "a file could not be read or written; is the disk"),
        (OSError(28, "No space left on device"), "a file could not be written; is the disk full?"),
        (OSError(24, "Too many open files"), "Too many open files"),
        (OSError(28, "No space left on device", "a.txt"), "a.txt: No space left on device"),
        (MemoryError(), "out of memory; smaller batches"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory; smaller batches"),
    ],
)
def test_what_the_machine_lacks_is_no_fault_of_ours(error, said):
    assert str(app.told(error)).startswith(said)


def test_control_characters_of_others_do_not_reach_a_terminal(here, capsys, monkeypatch):
    Path("one").mkdir()
    info = {"label": "\x1b]0;pwned\x07\x1b[2J\u202e\x9b2J", "seed": 0, "finished": False, "learning_rate": 1e-5}
    Path("one/run.json").write_text(json.dumps(info))
    Path("one/metrics.jsonl").write_text('{"step": 1, "round": 1, "reward": 0.5}\n')
    assert main(["watch", "one", "--once"]) == 0
    out = capsys.readouterr().out
    assert r"\x1b]0;pwned\x1b[2J\u202e\x9b2J" in out  # rich leaves the bell out
    assert main(["report", "no\x1b[2J\tthing"]) == 2
    assert "no\\x1b[2J" in (err := one_line(capsys))
    Path("rude_reward.py").write_text("raise ValueError('\\x1b[2Jboo\\x07')")
    monkeypatch.syspath_prepend(here)
    assert main([*RECIPE, "reward=rude_reward:f"]) == 2
    assert r"\x1b[2Jboo\x07" in (more := one_line(capsys))
    assert not re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\u202e]", out + err + more)


def test_what_rich_draws_keeps_its_own_control_characters(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    with lenient_output():
        console = lines()
        console._force_terminal, console.legacy_windows = True, False
        console.print(Text("a\x1b[2Jb"), style="bold", end="\r")
        console.control(Control.move(0, -1))
        print("\r 10 %\r", end="")
        print("a\rb\x1b")
    assert screen.getvalue().endswith("\x1b[1A\r 10 %\ra\\rb\\x1b\n")
    assert r"a\x1b[2Jb" in screen.getvalue()


def test_train_prints_rows_and_at_the_end_the_folder(here, capsys):
    assert main([*RECIPE, "label=mine"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("mine on ")
    assert sum(bool(re.match(r"round 1 of \d+  reward ", line)) for line in out) == 1
    assert out[-1] == "run"
    assert Path("run/model/model.safetensors").is_file()
    assert json.loads(Path("run/run.json").read_text())["command"] == "bandpo train recipe.yaml label=mine"


def test_a_command_that_was_given_before_the_libraries_are_there_costs_no_import(here):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys\n"
            "from bandpo_runs.cli import main\n"
            "for args in (['--version'], ['--help'], ['lab', '--help'], []): print('code', main(args))\n"
            "print('pydantic' in sys.modules)\n"  # by which Typer reads values
            "print('code', main(['lab', '--seeds', 'abc']))\n"
            "print(sorted({'torch', 'trl', 'transformers', 'rich', 'matplotlib'} & set(sys.modules)))\n",
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == f"bandpo {bandpo.__version__}"
    assert [line for line in lines if line.startswith("code")] == ["code 0", "code 0", "code 0", "code 2", "code 2"]
    assert lines[-3:] == ["False", "code 2", "[]"]
    for command in COMMANDS:
        assert f"\n  {command.split()[0]} " in done.stdout


def test_the_help_names_every_method_of_the_lab(capsys):
    assert main(["lab", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split()).replace("- ", "-")  # names are broken at their hyphens
    known = {each.name for each in methods()}
    assert {"grpo", "clip-higher", "band-kl", "band-tv", "band-chi2", "no-clip", "gspo"} <= known & set(
        said.replace(",", " ").split()
    )
    assert f"[default: {','.join(DEFAULT_METHODS)}]" in said
    assert all(f"{scene.defaults['rounds']} in {name}" in said for name, scene in toy.SCENES.items())


@pytest.fixture
def signals_as_usual():
    """The tests themselves may have been started by nohup."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_as_usual")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("consequence", [None, OSError(5, "Input/output error"), RuntimeError("a worker is gone")])
def test_a_signal_ends_a_command_in_one_line_and_with_its_code(here, capsys, monkeypatch, name, consequence):
    number = getattr(signal, name)

    def ended(*args):
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        finally:  # the way out may fail: the terminal is gone, or a worker
            if consequence is not None:
                raise consequence

    monkeypatch.setattr(show_training, "train_and_show", ended)
    assert signal.getsignal(number) is signal.SIG_DFL
    assert main(["train", "a=1"]) == 128 + number
    assert capsys.readouterr().err == f"ended by {name}; the same command with --resume goes on\n"
    assert signal.getsignal(number) is signal.SIG_DFL


@pytest.mark.usefixtures("signals_as_usual")
def test_signals_that_somebody_else_has_taken_are_left_alone(here, monkeypatch):
    def look(*args):
        seen.append(signal.getsignal(signal.SIGHUP))

    seen = []
    monkeypatch.setattr(show_training, "train_and_show", look)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        main(["train", "a=1"])
    finally:
        signal.signal(signal.SIGHUP, before)
    monkeypatch.setenv("WORLD_SIZE", "2")  # the launcher's
    main(["train", "a=1"])
    assert seen == [signal.SIG_IGN, signal.SIG_DFL]


def test_a_training_whose_reader_goes_away_goes_on(here, monkeypatch, capsys):
    """`bandpo train recipe.yaml | head -1` ended with the next row, without a word."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", buffering=1) as nobody, monkeypatch.context() as patch:  # noqa: PTH123
        patch.setattr(sys, "stdout", nobody)
        assert main(RECIPE) == 0
    assert json.loads(Path("run/run.json").read_text())["finished"]
    assert Path("run/metrics.jsonl").read_text().count("\n") >= 1
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("option", ["report -o", "report --output", "calibrate --map", "watch --html"])
def test_a_page_never_takes_the_place_of_what_it_is_made_of(option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "my.jsonl"
    log.write_text('{"step": 1, "reward": 0.5, "old_logps": -1.0, "logps": -1.1}\n' * 2)
    before = log.read_text()
    command, option = option.split()
    assert main([command, "my.jsonl", option, "my.jsonl"]) == 2
    said = capsys.readouterr().err
    assert option in said
    assert "must be the name of a page, which ends in .html or .htm, got 'my.jsonl'" in said
    assert log.read_text() == before


def test_a_page_may_go_to_a_device_or_a_pipe_whatever_it_is_called(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("/dev/stdout", "/dev/not/there", str(tmp_path / "pipe")):
        assert arguments.page(name) == Path(name)
