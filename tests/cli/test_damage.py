"""Whatever is in a file, a command that reads it ends with a result or one line that names the file.

Whatever happens to a file that is written, no half of it is left.
"""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from commands import missing
from disk import write
from report_runs import write_run

from bandpo_runs.cli import main
from bandpo_runs.data.questions import Question
from bandpo_runs.evals.folder import Evaluation
from bandpo_runs.evals.grades import grade_folder
from bandpo_runs.evals.samples import Sample, Sampling
from bandpo_runs.reports import page

pytestmark = pytest.mark.slow

LOGGED = [{"step": 4 * i, "round": i, "reward": i / 3, "entropy": 1.0, "clip/fraction": 0.1} for i in (1, 2, 3)]


def make_evaluation(folder):
    questions = [Question("made", i, f"{i} + 1 =", str(i + 1)) for i in range(4)]
    facts = {"label": "Made", "model": "m", "weights": "w", "backend": "transformers", "scorer": "exact",
             "versions": {"torch": "2"}, "command": "bandpo eval m", "started": "now"}  # fmt: skip
    with Evaluation(folder, facts, Sampling(n=2, max_tokens=8), questions) as evaluation:
        for request in evaluation.todo():
            _, prompt, sample = request.key
            evaluation.add(Sample(*request.key, request.seed, str(prompt + sample), 2, "stop"))
    grade_folder(folder)


FILES = {
    "verl.jsonl": [
        {"input": "1 + 1 =", "gts": "2", "score": 1.0, "acc": True, "pred": "2", "data_source": "made", "step": 1}
    ],
    "log.jsonl": [{"step": 1, "data": {"critic/score/mean": 0.5}}],
    "state/trainer_state.json": {"log_history": [{"step": 1, "reward": 0.5}]},
    "verl.yaml": "actor_rollout_ref: {actor: {ppo_mini_batch_size: 8}}\ntrust_region: {type: band}\n",
    "recipe.yaml": "rounds: 1\nscene: tail\nunknown: 1\n",
    "data.jsonl": '{"prompt": "1 + 1 =", "answer": "2"}\n',
}


@pytest.fixture
def here(here, monkeypatch):
    """A working directory with all that commands read, whole."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(page, "svg", lambda *arguments, **options: "<svg></svg>")  # drawing takes seconds
    write_run(Path(), rows=LOGGED, config={"trainer": {"beta": 0.0}}).rename("run")
    for name in ("eval", "other"):
        make_evaluation(Path(name))
    for name, content in FILES.items():
        write(name, content)
    return here


READERS = {
    "run/run.json": [["report", "run"]],
    "run/config.yaml": [["report", "run"], ["train", "scene=tail", "rounds=1", "output=run", "--resume"]],
    "run/metrics.jsonl": [["report", "run"]],
    "eval/eval.json": [["score", "eval"], ["compare", "eval", "other"], ["table", "eval"]],
    "eval/prompts.jsonl": [["score", "eval"], ["compare", "eval", "other"]],
    "eval/samples.jsonl": [["score", "eval"], ["table", "eval"]],
    "eval/grades-exact.jsonl": [["score", "eval"], ["table", "eval"]],
    "verl.jsonl": [["compare", "verl.jsonl", "verl.jsonl"], ["table", "verl.jsonl"]],
    "log.jsonl": [["report", "log.jsonl"], ["doctor", "log.jsonl"]],
    "state/trainer_state.json": [
        ["doctor", "state/trainer_state.json"],
        ["report", "state"],
    ],
    "verl.yaml": [["doctor", "verl.yaml"]],
    "recipe.yaml": [["train", "recipe.yaml"]],
    "data.jsonl": [["data", "prepare", "data.jsonl", "-o", "made"]],
}


def check(capsys, args, name, refused=False):
    """The command ends well or with one short line; `refused`: with the line, and it names the file."""
    code = main(args)
    err = capsys.readouterr().err
    assert code in ((2,) if refused else (0, 1, 2)), (args, err)
    if code == 2:
        assert (err.startswith("error: "), err.count("\n"), len(err) < 1100) == (True, 1, True), err
    if refused:
        assert Path(name).name in err or Path(name).parent.name in err, err


GARBAGE = {
    "half": None,  # of what was there
    "not UTF-8": b'{"a": "\xff\xfe"}\n', "NUL": b"\0" * 100 + b"\n", "words": b"nothing to see here: {\n",
    "a list": b"[1, 2]\n", "a number": b"7\n", "a large number": b'{"a": ' + b"9" * 5000 + b"}\n",
    "lists in lists": b"[" * 10_000 + b"]" * 10_000 + b"\n",
    "deeper than it looks": b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}\n",
    "mappings in mappings": b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"\n",
}  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("name", READERS)
def test_garbage_is_one_line(here, capsys, name, garbage):
    content, path = GARBAGE[garbage], Path(name)
    path.write_bytes(path.read_bytes()[:-20] if content is None else content)
    whole = content is None or (name == "data.jsonl" and garbage == "a list")
    for args in READERS[name]:
        check(capsys, args, name, refused=not whole)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "nothing"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_one_line(here, capsys, name, kind):
    path = Path(name)
    path.unlink()
    make = {"pipe": os.mkfifo, "folder": Path.mkdir, "nothing": lambda path: None,
            "device": lambda path: path.symlink_to("/dev/zero")}  # fmt: skip
    make[kind](path)
    for args in READERS[name]:
        check(capsys, args, name)


VALUES = {
    "missing": ..., "null": None, "text": "<script>alert(1)</script>", "true": True, "a negative number": -1,
    "a fraction": 0.5, "a large number": 10**400, "NaN": float("nan"), "infinity": float("inf"), "a list": [1],
    "a mapping": {"a": 1}, 
    "deep": json.loads("[" * 500 + "]" * 500), "NUL": "a\0b", "half a character": "a\ud800b", "much": "x" * 100_000,
}  # fmt: skip
OBJECTS = [name for name in READERS if name.endswith((".json", ".jsonl"))]


def places(node, above=()):
    """Where something can be put: each field, and those within it."""
    inner = enumerate(node) if isinstance(node, list) else node.items()
    for key, value in inner:
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from places(value, (*above, key))
    if isinstance(node, dict):
        yield (*above, "more")


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("name", OBJECTS)
def test_a_field_of_another_type_is_one_line(here, capsys, name, value):
    """Each field of the first object, one after the other, and one that nobody knows."""
    path = Path(name)
    first, *others = path.read_text().splitlines(keepends=True) if name.endswith("l") else [path.read_text()]
    for place in places(json.loads(first)):
        node = within = json.loads(first)
        for part in place[:-1]:
            within = within[part]
        within[place[-1]] = VALUES[value]
        if value == "missing":
            del within[place[-1]]
        path.write_text(json.dumps(node) + "\n" + "".join(others))
        for args in READERS[name]:
            check(capsys, args, name)
            page = Path("report.html")
            assert not page.exists() or "<script>alert" not in page.read_text()


YAML = {
    "a key twice": ("rounds: 1\nscene: tail\nrounds: 2\n", "key 'rounds' is there twice"),
    "an alias in itself": ("a: &a [*a]\n", "nested more than 100 deep"),
    "an object": ("a: !!python/object/apply:os.system [touch ran]\n", "is not YAML: could not determine a constructor"),
    "a day": ("a: 2024-13-45\n", "is not YAML: month must be"),
    "a large number": ("a: " + "9" * 5000 + "\n", "is not YAML: an integer of more than 400 digits"),
    "a number that is too large": ("a: " + "9" * 400 + "\n", "an integer of more than 300 digits"),
    "NUL": ('output: "a\\0b"\n', "holds a character that no text can have"),
    "half a character": ('"a\\ud800": 1\n', "invalid Unicode character escape code"),
    "a list as a key": ("? [1]\n: 2\n", "is not YAML: while constructing a mapping"),
    "a number as a key": ("1: 2\n", "must hold settings by name, got {1: 2}"),
    "numbers among keys": ("trust_region: {type: band, 1: 2}\n", ""),
}


@pytest.mark.parametrize(("text", "message"), YAML.values(), ids=YAML)
def test_yaml_that_will_not_do_is_one_line(here, capsys, text, message):
    for name in ("recipe.yaml", "verl.yaml", "run/config.yaml"):
        Path(name).write_text(text)
        for args in READERS[name]:
            if not (name == "verl.yaml" and message[:9] in ("", "must hold")):
                code = main(args)
                err = capsys.readouterr().err
                assert (code, err.count("\n"), name != "recipe.yaml" or message in err) == (2, 1, True), err
    assert not Path("ran").exists()


def test_a_score_needs_all_of_the_questions(here, cli):
    """A missing line gave the score of the others, and said nothing."""
    path = Path("eval/prompts.jsonl")
    *rest, _ = path.read_text().splitlines(keepends=True)
    for another, command in (("", "score"), ("", "table"), (Question("made", 3, "another", "4"), "score")):
        write(path, "".join(rest) + (another and f"{json.dumps(another.row())}\n"))
        assert "prompts.jsonl: the questions of 'made' are not those that were asked" in cli.error(command, "eval")


# ---- writing


def full(*arguments):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("args", [["report", "run", "-o", "out.html"], ["table", "eval", "-o", "out.md"]])
@pytest.mark.parametrize("before", [None, "old"])
def test_a_full_disk_is_one_line_and_leaves_what_was_there(here, cli, monkeypatch, args, before):
    output = Path(args[-1])
    if before:
        write(output, before)
    monkeypatch.setattr(os, "fsync", full)
    assert cli.error(*args) == f"error: {output}: No space left on device\n"
    assert (output.read_text() if output.exists() else None) == before
    assert not [path.name for path in here.iterdir() if path.name.startswith(".")]


def test_an_evaluation_on_a_full_disk_is_one_line_and_loses_nothing(here, cli, monkeypatch):
    path = Path("eval/grades-exact.jsonl")
    whole = path.read_bytes().splitlines(keepends=True)
    write(path, b"".join(whole[:3]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert cli.error("score", "eval") == "error: eval/grades-exact.jsonl: No space left on device\n"
    write(path, path.read_bytes()[:-5])  # the line that did not fit
    cli.out("score", "eval")
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(whole)


@pytest.mark.parametrize(
    "setting",
    ["trainer.hub_token=hf_abc", "trainer.model_init_kwargs={token: hf_abc}",
     "trainer.vllm_server_base_url=http://me:hf_abc@host:8000"],
)  # fmt: skip
def test_a_secret_does_not_get_into_the_files_of_a_run(here, cli, setting):
    error = cli.error("train", "scene=tail", "rounds=1", "output=secret", setting)
    assert (missing(error, "looks like a secret", "hf_abc"), Path("secret").exists()) == (["hf_abc"], False)


def test_the_report_blanks_a_secret_that_is_in_the_files(here, cli):
    facts = {"seed": 1, "command": "bandpo train trainer.hub_token=hf_abc"}
    write_run(Path("more"), rows=LOGGED, config={"trainer": {"hub_token": "hf_abc"}}, **facts)
    cli.out("report", "run", "more")
    assert missing(Path("report.html").read_text(), "trainer.hub_token=***", "hf_abc") == ["hf_abc"]


@pytest.mark.parametrize(
    "text", ["!!bool maybe", "[" * 10_000, "&a [*a]", "{a: 1, a: 2}", '"\\ud800"', "9" * 5000, "{"]
)
def test_yaml_on_the_command_line_is_one_line(here, cli, text):
    for args in (
        ["train", "scene=tail", f"rounds={text}"],
        ["explain", f"{{type: band, delta: {text}}}"],
        ["eval", "m", "--body", f"seed={text}"],
        ["report", text],
    ):
        cli.error(*args)


def test_a_device_is_written_to_and_a_link_stays(here, cli):
    """As root, `-o /dev/null` replaced the device for the whole machine; so here it is one of our own."""
    device, page = Path("device"), Path("page")
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError:
        pytest.skip("no device can be made here")
    page.symlink_to(write("target", "old"))
    for output in (device, page):
        cli.out("table", "eval", "-o", output)
    assert (device.is_char_device(), page.is_symlink(), page.read_text() != "old") == (True, True, True)


# ---- no command looks anything up or connects to anything unless a name on the hub, a tracker or a server was

RECIPES = Path(__file__).parents[2] / "recipes"

# Python runs this in every process that it starts: what is asked for beyond this machine is written down, and refused.
WATCH = """
import os, socket

def beyond(host):
    return host not in (None, "", "localhost") and not str(host).startswith(("127.", "::1", "0.0.0.0"))

def told(what, host):
    if beyond(host):
        with open(os.environ["WATCHED"], "a") as file:
            file.write(f"{what} {host}\\n")
        raise OSError(f"the test allows no connection to {host}")

look_up, connect, connect_ex = socket.getaddrinfo, socket.socket.connect, socket.socket.connect_ex

def watched_look_up(host, *rest, **more):
    told("looked up", host.decode() if isinstance(host, bytes) else host)
    return look_up(host, *rest, **more)

def watched(real):
    def call(self, address):
        told("connected to", address[0] if isinstance(address, tuple) else None)
        return real(self, address)
    return call

socket.getaddrinfo = watched_look_up
socket.socket.connect, socket.socket.connect_ex = watched(connect), watched(connect_ex)
"""

COMMANDS = """
train lab.yaml rounds=2 output=run
lab --methods grpo --seeds 1 --rounds 1 -o compared
report run -o run.html
explain band:kl:0.05
data prepare rows.jsonl -o data
eval run -n 1 --limit 2 --max-tokens 2 -o before
eval run -n 1 --limit 2 --max-tokens 2 --data lab -o after
score before
compare before after
table before after
doctor
"""

# The warm start is trained for two steps: what it asks for does not depend on how well it has learned.
RUN = """
import shlex, sys
from bandpo_runs.cli import main
from bandpo_runs import toy
train = toy._supervised
toy._supervised = lambda start, steps, say: train(start, 2, say)
for line in sys.argv[1].strip().splitlines():
    assert main(shlex.split(line)) in (0, 1), line  # 1: the doctor found a problem
    print("done:", line, flush=True)
"""


def environment(tmp_path, **more):
    """Without anything that forbids connections, and with nothing in the hub's cache nor in ours."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    forbidding = ("CI", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    kept = {name: value for name, value in os.environ.items() if name not in forbidding}
    path = os.pathsep.join([str(tmp_path), *filter(None, [kept.get("PYTHONPATH")])])
    kept |= {"HF_HOME": str(tmp_path / "hf"), "BANDPO_CACHE": str(tmp_path / "cache")}
    return kept | {"PYTHONPATH": path, "WATCHED": str(tmp_path / "watched")} | more


def test_the_watch_sees_what_it_should(tmp_path):
    for call in ("socket.create_connection(('bandpo.example', 80))", "socket.socket().connect(('192.0.2.1', 80))"):
        code = f"import socket\ntry: {call}\nexcept OSError as error: print(error)"
        done = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True)
        assert "the test allows no connection" in done.stdout
    assert (tmp_path / "watched").read_text() == "looked up bandpo.example\nconnected to 192.0.2.1\n"


def test_no_command_connects_to_anything(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n')
    (tmp_path / "lab.yaml").write_text(f"base: {RECIPES / 'lab' / 'band-kl.yaml'}\n")
    done = subprocess.run(
        [sys.executable, "-c", RUN, COMMANDS], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("done:") == len(COMMANDS.strip().splitlines())
    watched = tmp_path / "watched"
    assert not watched.exists(), watched.read_text()
