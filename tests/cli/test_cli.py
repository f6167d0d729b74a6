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
from unittest.mock import Mock

import pytest
import recipe
import torch
from commands import missing
from disk import contents, write
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
    return recipe.make(tmp_path_factory.mktemp("home"))


@pytest.fixture
def here(home, here, monkeypatch):
    """A working directory with a recipe, good and bad data, and some other file; nothing may be looked up outside."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    node = recipe.node(home, Path("run"), rounds=1, save_every=0)
    for name, content in {
        "recipe.yaml": node,
        "misspelt.yaml": {**node, "ronuds": 1},
        "empty.jsonl": "",
        "corrupt.jsonl": '{"prompt": "a", "answer": 1}\n{"prompt": "b"',
        "column.jsonl": '{"question": "a", "answer": 1}\n' * 4,
        "nice.jsonl": '{"prompt": "a", "response": "b", "answer": "x"}\n',
        "trainer_state.json": '{"log_history": [',
        "damaged/config.json": (home / "model" / "config.json").read_text(),
        "damaged/model.safetensors": b"nothing",
    }.items():
        write(name, content)
    Path("circle").symlink_to("circle")
    return here


# ---- mistakes

RECIPE = ["train", "recipe.yaml"]
MISTAKES = {
    "train misspelt.yaml": "unknown key 'ronuds', did you mean 'rounds'?",
    "train recipe.yaml trainer.learning_rte=1": "unknown key 'trainer.learning_rte', did you mean",
    "train no/such.yaml": "no/such.yaml does not exist\n",
    "train recipe.yml": "recipe.yml does not exist, did you mean 'recipe.yaml'?",
    "train recipe.yaml rounds": "'rounds' is not a setting; write key=value",
    "train recipe.yaml data.path=gone.jsonl": "data.path 'gone.jsonl' is not a file",
    "train recipe.yaml data.path=empty.jsonl": "data.path 'empty.jsonl' has no rows",
    "train recipe.yaml data.path=corrupt.jsonl": "data.path 'corrupt.jsonl' cannot be read: line 2",
    "train recipe.yaml data.path=column.jsonl data.prompt=prompt": "data.prompt: column 'prompt' is not in ",
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
    "train recipe.yaml trainer.logging_steps=0.5": "must be a positive integer that divides save_every",
    "train recipe.yaml output=recipe.yaml": "recipe.yaml is not a folder, and one is expected to write to",
    "train recipe.yaml --resume": "run holds no run to resume (no config.yaml); start one without --resume",
    "report damaged": "damaged: no run found",
    "lab --methods grpoo": "no method or rule is called 'grpoo', did you mean 'grpo'?",
    "lab --methods clip:2": "error: eps_low of Clip must be a number in [0, 1], got '2'",
    "lab --methods grpo,grpo": "method 'grpo' is given twice",
    "lab --methods grpo,ppo": "method 'ppo' is given twice, it is 'grpo'",
    "lab --rounds=0 --methods 'band-kl,{type: band, delta: 0.05}'": "delta: 0.05}' is given twice, it is 'band-kl'",
    "lab --rounds=0 --methods '{type: clop}'": "did you mean 'clip'?",
    "lab --rounds 0": "rounds: Input should be greater than or equal to 1, got 0",
    # Wrong arguments.
    "sing": "no such command 'sing' (see bandpo --help)",
    "trian": "no such command 'trian'. Did you mean 'train'? (see bandpo --help)",
    "train model=./nowhere": "model './nowhere': the folder",
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
    "explain band --vs clip:x": "invalid value for '--vs': eps_low of Clip must be a number in [0, 1], got 'x'",
    "explain band --p 0.5,2": "invalid value for '--p': must be a probability in (0, 1], got '2' (see bandpo explain",
    "eval m --timeout inf": "must be a positive number of seconds, got 'inf'",
    "score a --column score": "must be NAME=VALUE, got 'score'",
    "report a -o b.jsonl": "must be the name of a page, which ends in .html or .htm, got 'b.jsonl'",
    "watch a= --once": "'a=' has no path behind its =; is a variable of the shell not set?",
    "watch gone --once": "gone: nothing to show; no log is at gone",
    "watch trainer_state.json --once": "nothing to show; trainer_state.json: corrupt: one JSON object is expected",
    "watch gone --every 0": "must be a positive number of seconds",
    "watch gone --silent x": "must be a positive number of minutes, got 'x'",
    "eval ./gone --data column.jsonl": "gone holds no model (config.json and weights) or run (run.json)",
    "eval recipe.yaml --data column.jsonl": "recipe.yaml holds no model (config.json and weights) or run (run.json)",
    "data prepare column.jsonl -o new --split test": "--config and --split are for data sets of the hub, got",
    "score nice.jsonl --scorer last-number": "last-number compares numbers, and the answer 'x' is not a number",
    "score nice.jsonl ./nice.jsonl --scorer math": "nice.jsonl: given twice",
    "table A=nice.jsonl -o ./nice.jsonl": "--output must be another file than those that are read, nice.jsonl",
    # The last one would count.
    "table a --step 1 --step 2": "error: --step takes one value, and is there 2 times (see bandpo table --help)",
    "eval m -o a --data c --output b": "error: -o/--output takes one value, and is there 2 times",
    # An empty argument is no folder, and a link to itself none either.
    "watch '' --once": "what follows 'watch' is empty; is a variable of the shell not set?",
    "data prepare column.jsonl -o ''": "what follows '-o' is empty; is a variable",
    "''": "what follows 'bandpo' is empty; is a variable",
    "watch circle --once": "circle",
    "score circle": "circle",
    "report circle": "circle",
    "data prepare column.jsonl -o a --split b --split c": "error: --split takes one value, and is there 2 times",
}


@pytest.mark.parametrize(("args", "message"), MISTAKES.items())
def test_a_mistake_is_one_line_and_nothing_is_written(here, cli, args, message):
    before = contents(here)
    assert (message in (error := cli.error(*shlex.split(args))), contents(here)) == (True, before), error


KINDS = {"run.json": "{}", "eval.json": "{}", "report.md": "# Prepared data", "config.json": '{"model_type": "qwen2"}'}
WRITE = {
    "run.json": ["train", "recipe.yaml", "output=there"],
    "eval.json": ["eval", "model", "--data", "rows.jsonl", "--no-chat", "--scorer", "exact", "-o", "there"],
    "report.md": ["data", "prepare", "nice.jsonl", "-o", "there"],
    "": ["lab", "-o", "there"],
}


@pytest.mark.parametrize("own", WRITE)
@pytest.mark.parametrize("mark", [*KINDS, "a file", "a link to nothing"])
def test_a_command_writes_into_no_folder_of_another(here, home, cli, own, mark):
    if mark == own:  # of its own kind, with errors of its own
        return
    for name in "model", "rows.jsonl":
        Path(name).symlink_to(home / name)
    if mark in KINDS:
        write(f"there/{mark}", KINDS[mark])
    elif mark == "a file":
        write("there", "")
    else:
        Path("there").symlink_to("nowhere")
    before = contents(here)
    why = "there holds " if mark in KINDS else "there is not a folder"
    assert (why in cli.error(*WRITE[own]), contents(here)) == (True, before)


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
        ("raises", " raised ZeroDivisionError: division by zero at .*broken_rewards.py:3\n"),
        ("short", " must return a list of 16 numbers, one per completion, got a list of 1"),
        ("leaves", " raised SystemExit: None at "),
    ],
)
def test_a_reward_that_fails_is_one_line_and_the_run_can_be_resumed(here, cli, monkeypatch, function, message):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "broken_rewards", raising=False)
    write("broken_rewards.py", BROKEN)
    args = [*RECIPE, f"reward=broken_rewards:{function}"]
    assert re.search(f"reward 'broken_rewards:{function}'{message}", cli.error(*args))
    sys.modules["broken_rewards"].__dict__[function] = lambda completions, **columns: [0.0] * len(completions)
    assert "starting again" in cli.out(*args, "--resume")
    assert json.loads(Path("run/run.json").read_text())["finished"]


def test_a_run_is_neither_repeated_nor_resumed_with_other_settings(here, cli):
    cli.out(*RECIPE)
    before = contents(here)
    assert "run already holds a run, which is finished; " in cli.error(*RECIPE)
    other = "(seed, trainer.learning_rate); resume with the same ones"
    assert other in cli.error(*RECIPE, "--resume", "seed=4", "trainer.learning_rate=1e-4")
    assert "run is finished; nothing to resume" in cli.out(*RECIPE, "--resume")
    assert contents(here) == before
    whole = Path("run/config.yaml").read_text()
    assert whole.count("trainer:\n") == 1
    write("run/config.yaml", whole.replace("trainer:\n", "trainer:\n  model_init_kwargs: {}\n"))  # it is no setting
    cli.out(*RECIPE, "--resume")
    Path("run/config.yaml").unlink()  # whoever lost it is not sent in a circle
    assert cli.error(*RECIPE, "--resume").endswith("run holds no run to resume (no config.yaml); put it back\n")


def test_a_chat_template_that_refuses_the_messages_is_named(here, cli, monkeypatch):
    tokenizer = toy.tokenizer()
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"  # Gemma's own words
    train_is(monkeypatch, lambda: tokenizer.apply_chat_template([{"role": "system", "content": "Be short."}]))
    line = "error: the model's chat template refuses these messages: System role not supported\n"
    assert cli.error("train", "scene=tail") == line


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
def test_a_package_that_is_missing_is_named_with_how_to_get_it(here, cli, monkeypatch, package, modules, args):
    take_away(monkeypatch, [package], modules)
    _trainer.cache_clear()
    assert cli.error(*args) == f"error: {package} is not installed; pip install 'bandpo[lab]'\n"


def test_the_report_needs_nothing_that_training_needs(here, cli, monkeypatch):
    taken = ["config.recipe", "config", "cli.show_training", "reports.sections", "reports.charts", "reports.page"]
    take_away(monkeypatch, ["trl", "transformers", "datasets", "rich"], taken)
    assert "no run found" in cli.error("report", "damaged")


def test_a_short_word_needs_no_package_but_torch_and_a_node_says_what_it_needs(cli, monkeypatch):
    take_away(monkeypatch, ["yaml"], [])
    out = cli.out("explain", "band:tv:0.1", "--p", "0.37", "--vs", "clip")
    assert not missing(out, "0.27 to 0.47", "0.296 to 0.444")
    assert "error: yaml is not installed; pip install " in cli.error("explain", "{type: band}")


# ---- what goes through


@pytest.fixture
def calls(monkeypatch):
    """The arguments that the commands pass on."""
    seen = {}
    monkeypatch.setattr(show_training, "train_and_show", lambda *args: seen.update(train=args))
    monkeypatch.setattr(show_training, "compare_and_show", lambda *args: seen.update(lab=args))
    return seen


def train_is(monkeypatch, function):
    monkeypatch.setattr(show_training, "train_and_show", lambda *args: function())


TEXT = "label='x y'"


@pytest.mark.parametrize(
    ("args", "taken"),
    [
        (["r.yaml"], ("r.yaml", [], False, "bandpo train r.yaml")),
        (["scene=tail", "b=2"], (None, ["scene=tail", "b=2"], False, "bandpo train scene=tail b=2")),
        (["--resume", "r.yaml", "a=1"], ("r.yaml", ["a=1"], True, "bandpo train r.yaml a=1")),
        (["r.yaml", "a=1", "--resume", "b=2"], ("r.yaml", ["a=1", "b=2"], True, "bandpo train r.yaml a=1 b=2")),
        (["--resume", "model=m"], (None, ["model=m"], True, "bandpo train model=m")),
        # A file of that name.
        (["c=1", "model=m"], ("c=1", ["model=m"], False, "bandpo train c=1 model=m")),
        # The command can be repeated in a shell.
        (["a b.yaml", TEXT], ("a b.yaml", [TEXT], False, """bandpo train 'a b.yaml' 'label='"'"'x y'"'"''""")),
    ],
)  # fmt: skip
def test_train_takes_a_recipe_and_settings_in_any_order_and_records_the_command(here, calls, args, taken):
    Path("c=1").write_text("")
    assert (main(["train", *args]), calls["train"]) == (0, taken)


LAB = {"scene": "tail", "methods": None, "seeds": [0, 1], "output": Path("runs/lab"), "resume": False,
       "overrides": {"trainer": {}, "tokens_share": 0}}  # fmt: skip
NODE = "{type: by_sign, positive: {type: clip, eps_high: 1.0}, negative: {type: clip}}"


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ([], LAB),
        # A comma within a node is the node's own, however deep.
        (["--scene", "storm", "--methods", f"grpo, {NODE},band-kl", "--methods", "no-clip", "--seeds", "3,1",
          "--rounds", "5", "--lr", "1e-3", "--tokens", "--jobs", "3", "-o", "there", "--resume"],
         {"scene": "storm", "methods": ["grpo", NODE, "band-kl", "no-clip"], "seeds": [3, 1], "output": Path("there"),
          "jobs": 3, "resume": True,
          "overrides": {"trainer": {"learning_rate": 1e-3}, "rounds": 5, "tokens_share": 1.0}}),
    ],
)  # fmt: skip
def test_the_lab_takes_its_options(here, calls, cli, options, taken):
    cli.out("lab", *options)
    names = ("scene", "methods", "seeds", "output", "overrides", "jobs", "resume", "command")
    found = dict(zip(names, calls["lab"], strict=True))
    assert {name: found[name] for name in taken} == taken


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
def test_each_help_has_every_option_and_argument_in_80_columns(cli, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    out = cli.out(*name.split(), "--help")
    assert out.startswith(f"Usage: bandpo {name} ")
    assert max(map(len, out.splitlines())) <= 80
    params = COMMANDS[name].params
    assert not missing(out, *(x.metavar if x.param_type_name == "argument" else ", ".join(x.opts) for x in params))
    assert not [each.help for each in params if not each.help[:1].isupper() or len(each.help) >= 100]
    assert len(COMMANDS[name].help.partition("\n")[0]) < 80


def test_each_command_stands_once_under_a_heading(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = cli.out(code=2)
    assert shown.index("--version") < min(shown.index(f"{heading}:") for heading in app.HEADINGS)
    names = [name for under in app.HEADINGS.values() for name in under]
    assert sorted(names) == sorted({name.split()[0] for name in COMMANDS})
    heads = [COMMANDS[name].help.partition("\n")[0].rstrip(".") for name in names]
    assert missing(shown, *(f"\n  {name} " for name in names), *heads) == []  # no line is cut


def test_the_help_names_the_rules_of_the_lab(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert f"[default: {', '.join(DEFAULT_METHODS)}]" in cli.out("lab", "--help")


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [("ex", "explain"), ("lab --sc", "--scene"), ("lab --scene st", "storm"), ("data pre", "prepare")],
)
def test_the_shell_completes_commands_options_and_choices(capfd, monkeypatch, typed, wanted):
    for name, value in {"_BANDPO_COMPLETE": "complete_bash", "COMP_WORDS": f"bandpo {typed}"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    with pytest.raises(SystemExit):
        main([])
    assert capfd.readouterr().out.split() == [wanted]


# ---- the end of a command


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("a bug"), OSError("a bug"), Exception("a bug")])
def test_a_bug_keeps_its_traceback_and_asks_for_a_report(here, monkeypatch, error):
    train_is(monkeypatch, Mock(side_effect=error))
    with pytest.raises(type(error)) as caught:
        main(["train", "scene=tail"])
    assert caught.value.__notes__[0].endswith("report this: bandpo train scene=tail")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("basic_ios::clear: iostream error"), "a file could not be written; is the disk full? (basic_ios"),
        (OSError(24, "Too many open files"), "Too many open files"),
        (OSError(28, "No space left on device", "a.txt"), "a.txt: No space left on device"),
        (MemoryError(), "out of memory; in training smaller batches"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            "out of memory; in training smaller batches",
        ),
        (ModuleNotFoundError("", name="trl"), "trl is not installed; pip install 'bandpo[lab]'"),
        (ModuleNotFoundError("", name="bandpo.x"), "None"),
    ],
)
def test_what_the_machine_lacks_is_one_line(error, said):
    assert str(app.line_of(error)).startswith(said)


def test_control_characters_of_others_do_not_reach_a_terminal(here, cli, monkeypatch):
    info = {"label": "\x1b]0;pwned\x07\x1b[2J\u202e\x9b2J", "seed": 0, "finished": False, "learning_rate": 1e-5}
    write("one/run.json", info)
    write("one/metrics.jsonl", '{"step": 1, "round": 1, "reward": 0.5}\n')
    write("rude_reward.py", "raise ValueError('\\x1b[2Jboo\\x07')")
    monkeypatch.syspath_prepend(here)
    for shown, text in (
        (cli.out("watch", "one", "--once"), r"\x1b]0;pwned\x1b[2J\u202e\x9b2J"),  # rich leaves the bell out
        (cli.error("report", "no\x1b[2J\tthing"), r"no\x1b[2J"),
        (cli.error(*RECIPE, "reward=rude_reward:f"), r"\x1b[2Jboo\x07"),
    ):
        assert (text in shown, re.search("[\0-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown)) == (True, None)


def test_what_rich_draws_keeps_its_own_control_characters(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", app._Printable(screen))
    console = lines()
    console._force_terminal, console.legacy_windows = True, False
    console.print(Text("a\x1b[2Jb"), style="bold", end="\r")
    console.control(Control.move(0, -1))
    print("\r 10 %\r", end="")
    print("a\rb\x1b")
    assert re.search(r"a\\x1b\[2Jb.*\x1b\[1A\r 10 %\ra\\rb\\x1b\n\Z", screen.getvalue(), re.DOTALL)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_command_in_one_line_and_with_its_code(here, capsys, monkeypatch, name):
    number = getattr(signal, name)
    usual = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
    before = signal.signal(number, usual)  # the tests themselves may have been started by nohup
    train_is(monkeypatch, lambda: (os.kill(os.getpid(), number), time.sleep(60)))
    try:
        assert (main(["train", "scene=tail"]), signal.getsignal(number)) == (128 + number, usual)
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


STARTED = "import sys; from bandpo_runs.cli import main; sys.exit(main({args}))"


@pytest.mark.parametrize("args", [["methods"], ["--help"], ["score", "nice.jsonl", "--scorer", "exact"]])
def test_output_that_nobody_reads_ends_silently_and_a_full_disk_is_one_line(here, args):
    def ended(stdout):
        command = [sys.executable, "-c", STARTED.format(args=args)]
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stderr

    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as unread:
        assert ended(unread) == (141, "")
    if Path("/dev/full").exists():
        with Path("/dev/full").open("w") as nowhere:
            assert ended(nowhere) == (2, "error: No space left on device\n")


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
    line = shlex.join([sys.executable, "-c", STARTED.format(args=args.split())])
    done = subprocess.run(["sh", "-c", f"{line} {closed}"], capture_output=True, text=True)
    why = "error: gone: no such file or folder; expected a folder of bandpo eval, or a file of answers\n"
    assert (done.returncode, done.stderr) == (code, why if code and "2>" not in closed else "")


def test_every_command_refuses_an_option_that_is_there_twice():
    leaves = [command for _, command in commands(app.get_command(app.app)) if not hasattr(command, "commands")]
    assert (len(leaves), {type(command) for command in leaves}) == (14, {app.Once})
