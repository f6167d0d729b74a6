"""The command line: what it takes, what it gives back, and one line on stderr for every mistake."""

import importlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import recipe
import torch
import yaml
from rich.control import Control
from rich.text import Text
from typer.main import get_command

from bandpo_runs import toy
from bandpo_runs.cli import app, main, shared, show_training
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
    Path("nice.jsonl").write_text('{"prompt": "a", "response": "b", "answer": "x"}\n')
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
    "train misspelt.yaml": "unknown key 'ronuds', did you mean 'rounds'?",
    "train recipe.yaml trainer.learning_rte=1": "unknown key 'trainer.learning_rte', did you mean",
    "train gone.yaml": "gone.yaml does not exist",
    "train recipe.yaml rounds": "'rounds' is not a setting; write key=value",
    "train recipe.yaml data.path=gone.jsonl": "data.path 'gone.jsonl' is not a file",
    "train recipe.yaml data.path=empty.jsonl": "data.path 'empty.jsonl' has no rows",
    "train recipe.yaml data.path=corrupt.jsonl": "data.path 'corrupt.jsonl' cannot be read: line 2",
    "train recipe.yaml data.path=column.jsonl data.prompt=prompt": "data.path 'column.jsonl' has no column 'prompt'",
    "train recipe.yaml model=./gone": "model './gone': the folder ",
    "train recipe.yaml model=damaged": "model 'damaged' cannot be loaded",
    "train recipe.yaml reward=gone:reward": "reward 'gone:reward' cannot be imported",
    "train recipe.yaml data.chat=true": "has no chat template",
    "train recipe.yaml trainer.temperature=0": "trainer: temperature must be positive",
    "train recipe.yaml trainer.epsilon=0.3": "trainer.epsilon is set by trust_region; remove it",
    "train recipe.yaml trainer.loss_type=cispo": "trainer: loss_type 'cispo' needs trust_region='cispo'",
    "train recipe.yaml trainer.num_generations=1": "trainer: GRPO requires at least 2 generations",
    "train recipe.yaml trainer.lr_scheduler_type=flat": "trainer: flat is not a valid SchedulerType",
    "train recipe.yaml trainer.use_vllm=true": "trainer: vLLM is not available",
    "train recipe.yaml trainer.report_to=comet_ml": "trainer: CometCallback requires comet-ml",
    "train recipe.yaml trainer.logging_steps=0.5": "trainer.logging_steps must be a positive integer, got 0.5",
    "train recipe.yaml output=recipe.yaml": "recipe.yaml is not a folder, and one is expected to write to",
    "train recipe.yaml --resume": "run holds no run to resume (no config.yaml); start one without --resume",
    "report damaged": "damaged: no run found",
    "lab --methods grpoo": "no method or rule is called 'grpoo', did you mean 'grpo'?",
    "lab --methods clip:2": "error: 'clip:2': eps_low of Clip must be a number in [0, 1]",
    "lab --methods grpo,grpo": "method 'grpo' is given twice",
    "lab --methods grpo,ppo": "method 'ppo' is given twice, it is 'grpo'",
    "lab --rounds 0": "rounds: Input should be greater than or equal to 1, got 0",
    # Wrong arguments.
    "sing": "no such command 'sing' (see bandpo --help)",
    "trian": "no such command 'trian'. Did you mean 'train'? (see bandpo --help)",
    "train model=./nowhere": "2 things are missing or wrong: (1) model './nowhere': the folder",
    "data": "missing command (see bandpo data --help)",
    "train --fast": "no such option: --fast (Possible options: --data) (see bandpo train --help)",
    "--fast": "no such option: --fast (see bandpo --help)",
    "lab tail": "got unexpected extra argument(s) (tail) (see bandpo lab --help)",
    "lab --methods grpo band-kl": "got unexpected extra argument(s) (band-kl) (see bandpo lab --help)",
    "lab --seeds": "option '--seeds' requires an argument (see bandpo",
    "lab --seeds abc": "must be a positive count or different seeds like 0,3,4; got 'abc'",
    "lab --seeds 0": "got '0'",
    "lab --seeds 1,1": "got '1,1'",
    "lab --seeds=-1,2": "got '-1,2'",
    # With no rounds: were they accepted, it would take minutes to tell.
    "lab --rounds=0 --jobs 0": "invalid value for '--jobs': must be a positive integer, got '0'",
    "lab --rounds=0 --scene calm": "invalid value for '--scene': 'calm' is not one of 'tail', 'storm', "
    "'rare-and-noisy' (see",
    "lab --rounds=0 --lr fast": "invalid value for '--lr': Input should be a valid number, ",
    "lab --rounds=0 --methods ,": "invalid value for '--methods': nothing is given (see bandpo lab",
    "explain": "missing argument 'RULE' (see bandpo explain --help)",
    "explain bnd:kl": "no method or rule is called 'bnd:kl', did you mean 'band-kl'?",
    "explain band --vs clip:x": "invalid value for '--vs': 'clip:x': eps_low of Clip must be a ",
    "explain band --p 0.5,2": "invalid value for '--p': must be a probability in (0, 1], got '2' (see bandpo explain",
    "eval m --timeout inf": "must be a positive number of seconds, got 'inf'",
    "score a --column score": "must be NAME=VALUE, got 'score'",
    "report a -o b.jsonl": "must be the name of a page, which ends in .html or .htm, got 'b.jsonl'",
    "watch a --html a.jsonl": "'--html': must be the name of a page",
    "watch a= --once": "'a=' has no path behind its =; is a variable of the shell not set?",
    "watch gone --once": "gone: nothing to show; no log is at gone",
    "methods grpoo": "no method or rule is called 'grpoo', did you mean 'grpo'?",
    "eval ./gone --data column.jsonl": "gone holds no model (config.json), run (run.json) or",
    "eval recipe.yaml --data column.jsonl": "recipe.yaml holds no model (config.json), run (run.json) or",
    "data prepare column.jsonl -o new --split test": "--config and --split are for data sets of the hub, got",
    "score nice.jsonl --scorer last-number": "last-number compares numbers, and the answer 'x' is not a number",
    "score nice.jsonl ./nice.jsonl --scorer math": "nice.jsonl: given twice",
    # The last one would count.
    "table a -k 1 -k 2": "error: -k takes one value, and is there 2 times (see bandpo table --help)",
    "eval m -o a --data c --output b": "error: -o/--output takes one value, and is there 2 times",
    "data prepare column.jsonl -o a --split b --split c": "error: --split takes one value, and is there 2 times",
}


@pytest.mark.parametrize(("args", "message"), MISTAKES.items())
def test_a_mistake_is_one_line_and_nothing_is_written(here, capsys, args, message):
    before = everything(here)
    assert main(args.split()) == 2
    assert message in one_line(capsys)
    assert everything(here) == before


@pytest.mark.parametrize("args", [["watch", "", "--once"], ["data", "prepare", "column.jsonl", "-o", ""], [""]])
def test_an_empty_argument_is_no_folder(here, capsys, args):
    before = everything(here)
    assert main(args) == 2
    after = ["bandpo", *args][args.index("")]
    assert f"what follows '{after}' is empty; is a variable of the shell not set?" in one_line(capsys)
    assert everything(here) == before


KINDS = {"run.json": "{}", "eval.json": "{}", "report.md": "# Prepared data", "config.json": '{"model_type": "qwen2"}'}
WRITE = {
    "run.json": ["train", "recipe.yaml", "output=there"],
    "eval.json": ["eval", "model", "--data", "rows.jsonl", "--no-chat", "--scorer", "exact", "-o", "there"],
    "report.md": ["data", "prepare", "nice.jsonl", "-o", "there"],
    "": ["lab", "-o", "there"],
}


@pytest.mark.parametrize("own", WRITE)
@pytest.mark.parametrize("mark", [*KINDS, "a file", "a link to nothing"])
def test_a_command_writes_into_no_folder_of_another(here, home, capsys, own, mark):
    for name in "model", "rows.jsonl":
        Path(name).symlink_to(home / name)
    if mark in KINDS:
        Path("there").mkdir()
        Path("there", mark).write_text(KINDS[mark])
    elif mark == "a file":
        Path("there").touch()
    else:
        Path("there").symlink_to("nowhere")
    if mark == own:  # of its own kind, with errors of its own
        return
    before = everything(here)
    assert main(WRITE[own]) == 2
    assert ("there holds " if mark in KINDS else "there is not a folder") in one_line(capsys)
    assert everything(here) == before


BROKEN = """
def raises(completions, answer, **columns):
    return [1 / int(a == "nothing") for a in answer]

def short(completions, **columns):
    return [1.0]


def leaves(completions, **columns):
    exit()
"""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", " raised ZeroDivisionError: division by zero at "),
        ("short", " must return a list of 16 numbers, one per completion, got a list of 1"),
        ("leaves", " raised SystemExit: None at "),
    ],
)
def test_a_reward_that_fails_is_one_line_and_the_run_can_be_resumed(here, capsys, monkeypatch, function, message):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "broken_rewards", raising=False)
    Path("broken_rewards.py").write_text(BROKEN)
    args = [*RECIPE, f"reward=broken_rewards:{function}"]
    assert main(args) == 2
    line = one_line(capsys)
    assert f"reward 'broken_rewards:{function}'{message}" in line
    assert function != "raises" or line.endswith("broken_rewards.py:3\n")
    sys.modules["broken_rewards"].__dict__[function] = lambda completions, **columns: [0.0] * len(completions)
    assert main([*args, "--resume"]) == 0
    assert "starting again" in capsys.readouterr().out
    assert json.loads(Path("run/run.json").read_text())["finished"]


def test_a_run_is_neither_repeated_nor_resumed_with_other_settings(here, capsys):
    assert main(RECIPE) == 0
    capsys.readouterr()
    before = everything(here)
    assert main(RECIPE) == 2
    assert "run already holds a run, which is finished; choose another output" in one_line(capsys)
    assert main([*RECIPE, "--resume", "seed=4", "trainer.learning_rate=1e-4"]) == 2
    assert "(seed, trainer.learning_rate); resume with the same ones" in one_line(capsys)
    assert main([*RECIPE, "--resume"]) == 0
    assert "run is finished; nothing to resume" in capsys.readouterr().out
    assert everything(here) == before
    whole = Path("run/config.yaml").read_text()
    assert whole.count("  options: {}\n") == 1
    Path("run/config.yaml").write_text(whole.replace("  options: {}\n", ""))  # an empty mapping is no setting
    assert main([*RECIPE, "--resume"]) == 0


def test_a_run_whose_settings_are_lost_is_not_sent_in_a_circle(here, capsys):
    assert main(RECIPE) == 0
    Path("run/config.yaml").unlink()
    capsys.readouterr()
    assert main([*RECIPE, "--resume"]) == 2
    assert one_line(capsys).endswith("run holds no run to resume (no config.yaml); put it back\n")


def test_a_chat_template_that_refuses_the_messages_is_named(here, capsys, monkeypatch):
    tokenizer = toy.tokenizer()
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"  # Gemma's own words
    train_is(monkeypatch, lambda: tokenizer.apply_chat_template([{"role": "system", "content": "Be short."}]))
    assert main(["train", "scene=tail"]) == 2
    assert one_line(capsys) == "error: the model's chat template refuses these messages: System role not supported\n"


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
        ("jinja2", ["reports.templates", "reports.page"], ["lab"]),
        ("matplotlib", ["reports.charts", "reports.page"], ["report", "damaged"]),
    ],
)
def test_a_package_that_is_missing_is_named_with_how_to_get_it(here, capsys, monkeypatch, package, modules, args):
    take_away(monkeypatch, [package], modules)
    _trainer.cache_clear()
    assert (main(args), one_line(capsys)) == (2, f"error: {package} is not installed; pip install 'bandpo[lab]'\n")


def test_the_report_needs_nothing_that_training_needs(here, capsys, monkeypatch):
    taken = ["config.recipe", "config", "cli.show_training", "reports.sections", "reports.charts", "reports.page"]
    take_away(monkeypatch, ["trl", "transformers", "datasets", "rich"], taken)
    assert main(["report", "damaged"]) == 2
    assert "no run found" in one_line(capsys)


def test_a_short_word_needs_no_package_but_torch_and_a_node_says_what_it_needs(capsys, monkeypatch):
    take_away(monkeypatch, ["yaml"], [])
    assert main(["explain", "band:tv:0.1", "--p", "0.37", "--vs", "clip"]) == 0
    out = capsys.readouterr().out
    assert "0.27 to 0.47" in out
    assert "0.296 to 0.444" in out
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


def train_is(monkeypatch, function):
    monkeypatch.setattr(show_training, "train_and_show", lambda *args: function())


@pytest.mark.parametrize(
    ("args", "recipe_", "settings", "resume"),
    [
        ("r.yaml", "r.yaml", [], False),
        ("scene=tail b=2", None, ["scene=tail", "b=2"], False),
        ("--resume r.yaml a=1", "r.yaml", ["a=1"], True),
        ("r.yaml a=1 --resume b=2", "r.yaml", ["a=1", "b=2"], True),
        ("--resume model=m", None, ["model=m"], True),
        ("c=1 model=m", "c=1", ["model=m"], False),  # a file of that name
    ],
)
def test_train_takes_a_recipe_and_settings_in_any_order(here, calls, args, recipe_, settings, resume):
    Path("c=1").write_text("")
    assert (main(["train", *args.split()]), calls["train"][:3]) == (0, (recipe_, settings, resume))


def test_the_command_is_recorded_so_that_it_can_be_repeated(here, calls):
    assert main(["train", "a b.yaml", "label='x y'", "--resume"]) == 0
    whole = """bandpo train 'a b.yaml' 'label='"'"'x y'"'"''"""
    assert calls["train"] == ("a b.yaml", ["label='x y'"], True, whole, False)
    assert main(["train", "a b.yaml", "label='x y'", "--changed-data"]) == 0  # as it is a way to resume
    assert calls["train"] == ("a b.yaml", ["label='x y'"], True, whole, True)


def test_the_lab_takes_its_options(here, calls):
    assert main(["lab"]) == 0
    (scene, methods, seeds, output, overrides, _, resume, _) = calls["lab"]
    assert (scene, methods, seeds, output, resume) == ("tail", None, [0, 1], Path("runs/lab"), False)
    assert overrides == {"trainer": {}, "tokens_share": 0}
    # A comma within a node is the node's own, however deep.
    node = "{type: by_sign, positive: {type: clip, eps_high: 1.0}, negative: {type: clip}}"
    options = ["--scene", "storm", "--methods", f"grpo, {node},band-kl", "--methods", "no-clip", "--seeds", "3,1"]
    options += ["--rounds", "5", "--lr", "1e-3", "--tokens", "--jobs", "3", "-o", "there", "--resume"]
    assert main(["lab", *options]) == 0
    (scene, methods, seeds, output, overrides, jobs, resume, _) = calls["lab"]
    assert (scene, seeds, output, jobs, resume) == ("storm", [3, 1], Path("there"), 3, True)
    assert methods == ["grpo", node, "band-kl", "no-clip"]
    assert overrides == {"trainer": {"learning_rate": 1e-3}, "rounds": 5, "tokens_share": 1.0}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b , c", ["a", "b", "c"]),
        (",a,,", ["a"]),
        ("{a: [1, 2], b: {c: 1, d: 2}},e", ["{a: [1, 2], b: {c: 1, d: 2}}", "e"]),
        ("a},b", ["a}", "b"]),
        ("{a, b", ["{a, b"]),
    ],
)
def test_a_list_is_split_at_the_commas_outside_brackets(text, parts):
    assert shared.split(text) == parts


# ---- help


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
    for param in COMMANDS[name].params:
        assert (param.metavar if param.param_type_name == "argument" else ", ".join(param.opts)) in out
        assert param.help[:1].isupper()
        assert len(param.help) < 100
    assert len(COMMANDS[name].help.partition("\n")[0]) < 80


def test_each_command_stands_once_under_a_heading(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert shown.index("--version") < min(shown.index(f"{heading}:") for heading in app.HEADINGS)
    names = [name for under in app.HEADINGS.values() for name in under]
    assert sorted(names) == sorted({name.split()[0] for name in COMMANDS})
    for name in names:
        assert f"\n  {name} " in shown
        assert COMMANDS[name].help.partition("\n")[0].rstrip(".") in shown  # no line is cut


def test_the_help_names_the_rules_of_the_lab(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["lab", "--help"]) == 0
    assert f"[default: {', '.join(DEFAULT_METHODS)}]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [("ex", "explain"), ("lab --sc", "--scene"), ("lab --scene st", "storm"), ("data pre", "prepare")],
)
def test_the_shell_completes_commands_options_and_choices(capfd, monkeypatch, typed, wanted):
    words = ["bandpo", *typed.split()]
    asked = {"_BANDPO_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    assert capfd.readouterr().out.split() == [wanted]


# ---- the end of a command


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("a bug"), OSError("a bug"), Called()])
def test_a_bug_keeps_its_traceback_and_asks_for_a_report(here, monkeypatch, error):
    def buggy():
        raise error

    train_is(monkeypatch, buggy)
    with pytest.raises(type(error)) as caught:
        main(["train", "scene=tail"])
    assert caught.value.__notes__[0].endswith("report this: bandpo train scene=tail")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("basic_ios::clear: iostream error"), "a file could not be written; is the disk full? (basic_ios"),
        (OSError(24, "Too many open files"), "Too many open files"),
        (OSError(28, "No space left on device", "a.txt"), "a.txt: No space left on device"),
        (MemoryError(), "out of memory; smaller batches"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory; smaller batches"),
        (ModuleNotFoundError("", name="trl"), "trl is not installed; pip install 'bandpo[lab]'"),
        (ModuleNotFoundError("", name="bandpo.x"), "None"),
    ],
)
def test_what_the_machine_lacks_is_one_line(error, said):
    assert str(app.line_of(error)).startswith(said)


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
    monkeypatch.setattr(sys, "stdout", app._Printable(screen))
    console = lines()
    console._force_terminal, console.legacy_windows = True, False
    console.print(Text("a\x1b[2Jb"), style="bold", end="\r")
    console.control(Control.move(0, -1))
    print("\r 10 %\r", end="")
    print("a\rb\x1b")
    assert screen.getvalue().endswith("\x1b[1A\r 10 %\ra\\rb\\x1b\n")
    assert r"a\x1b[2Jb" in screen.getvalue()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_command_in_one_line_and_with_its_code(here, capsys, monkeypatch, name):
    number = getattr(signal, name)
    usual = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
    before = signal.signal(number, usual)  # the tests themselves may have been started by nohup

    def ended():
        os.kill(os.getpid(), number)
        time.sleep(60)

    train_is(monkeypatch, ended)
    try:
        assert main(["train", "scene=tail"]) == 128 + number
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, before)
    what = "interrupted" if name == "SIGINT" else f"ended by {name}"
    assert capsys.readouterr().err == f"{what}; the same command with --resume goes on\n"


def test_signals_that_somebody_else_has_taken_are_left_alone(here, monkeypatch):
    seen = []
    train_is(monkeypatch, lambda: seen.append(signal.getsignal(signal.SIGHUP)))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    try:
        main(["train", "scene=tail"])
        monkeypatch.setenv("WORLD_SIZE", "2")  # the launcher's
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        main(["train", "scene=tail"])
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == [signal.SIG_IGN, signal.SIG_DFL]


@pytest.mark.parametrize("args", ["['methods']", "['--help']", "['score', 'nice.jsonl', '--scorer', 'exact']"])
def test_output_that_nobody_reads_ends_silently_and_a_full_disk_is_one_line(here, args):
    command = [sys.executable, "-c", f"import sys; from bandpo_runs.cli import main; sys.exit(main({args}))"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
    if Path("/dev/full").exists():
        with Path("/dev/full").open("w") as nowhere:
            done = subprocess.run(command, stdout=nowhere, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")


@pytest.mark.parametrize(
    ("args", "closed", "code"),
    [
        ("score nice.jsonl --scorer exact", ">&-", 0),
        ("methods", "<&- >&- 2>&-", 0),
        ("score gone", ">&-", 2),
        ("score gone", "2>&-", 2),
    ],
)
def test_closed_streams_are_no_error(here, args, closed, code):
    started = f"import sys; from bandpo_runs.cli import main; sys.exit(main({args.split()}))"
    line = shlex.join([sys.executable, "-c", started])
    done = subprocess.run(["sh", "-c", f"{line} {closed}"], capture_output=True, text=True)
    assert done.returncode == code
    if "2>" not in closed:
        assert done.stderr == ("" if code == 0 else "error: gone: no such file or folder; expected a folder of bandpo "
                               "eval, or a file of answers\n")  # fmt: skip


def test_a_link_to_itself_is_one_line(here, capsys):
    Path("loop").symlink_to("loop")
    for args in (["watch", "loop", "--once"], ["score", "loop"], ["report", "loop"]):
        assert main(args) == 2
        assert "loop" in one_line(capsys)


def test_every_command_refuses_an_option_that_is_there_twice():
    leaves = [command for _, command in commands(app.get_command(app.app)) if not hasattr(command, "commands")]
    assert len(leaves) == 16
    assert {type(command) for command in leaves} == {app.Once}
