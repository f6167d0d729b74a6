"""Whatever is in a file, a command that reads it ends with a result or one line that names the file.

Whatever happens to a file that is written, no half of it is left.
"""

import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from bandpo_runs.cli import main
from bandpo_runs.data.questions import Question
from bandpo_runs.evals.folder import Evaluation
from bandpo_runs.evals.grades import grade_folder
from bandpo_runs.evals.samples import Sample, Sampling
from bandpo_runs.reports import page

pytestmark = pytest.mark.slow

CLIP = {"type": "clip", "eps_low": 0.2, "eps_high": 0.2}


def make_run(folder, **facts):
    folder.mkdir(parents=True)
    info = {"label": "GRPO", "seed": 0, "scene": "tail", "learning_rate": 5e-6, "rounds": 3, "steps_per_round": 4}
    info |= {"finished": True, "command": "bandpo lab", "versions": {"torch": "2"}, "hardware": "x86", "commit": "abc"}
    info |= {"started": "2026-11-21T14:00:00+00:00", "wall_seconds": 8.5, **facts}
    (folder / "run.json").write_text(json.dumps(info))
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": 0, "trust_region": CLIP, "trainer": {"beta": 0.0}}))
    rows = [{"step": 4 * i, "round": i, "reward": i / 3, "entropy": 1.0, "clip/fraction": 0.1} for i in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_evaluation(folder):
    questions = [Question("made", i, f"{i} + 1 =", str(i + 1)) for i in range(4)]
    facts = {"label": "Made", "model": "m", "weights": "w", "backend": "transformers", "scorer": "exact"}
    facts |= {"versions": {"torch": "2"}, "command": "bandpo eval m", "started": "now"}
    with Evaluation(folder, facts, Sampling(n=2, max_tokens=8), questions) as evaluation:
        for question, sample, seed in evaluation.todo():
            evaluation.add(Sample("made", question.prompt, sample, seed, str(question.prompt + sample), 2, "stop"))
    grade_folder(folder)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with all that commands read, whole."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(page, "svg", lambda *arguments, **options: "<svg></svg>")  # drawing takes seconds
    make_run(Path("run"))
    make_evaluation(Path("eval"))
    make_evaluation(Path("other"))
    sample = {"input": "1 + 1 =", "gts": "2", "score": 1.0, "acc": True, "pred": "2", "data_source": "made", "step": 1}
    Path("verl.jsonl").write_text(json.dumps(sample) + "\n")
    Path("log.jsonl").write_text(json.dumps({"step": 1, "data": {"critic/score/mean": 0.5}}) + "\n")
    Path("state").mkdir()
    Path("state/trainer_state.json").write_text(json.dumps({"log_history": [{"step": 1, "reward": 0.5}]}))
    Path("verl.yaml").write_text("actor_rollout_ref: {actor: {ppo_mini_batch_size: 8}}\ntrust_region: {type: band}\n")
    Path("recipe.yaml").write_text("rounds: 1\nscene: tail\nunknown: 1\n")
    Path("data.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}\n')
    return tmp_path


RESUME = ["train", "scene=tail", "rounds=1", "output=run", "--resume"]
READERS = {
    "run/run.json": [["report", "run"]],
    "run/config.yaml": [["report", "run"], RESUME],
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
    "verl.yaml": [["doctor", "verl.yaml"], ["verl", "verl.yaml", "--print"]],
    "recipe.yaml": [["train", "recipe.yaml"]],
    "data.jsonl": [["data", "prepare", "data.jsonl", "-o", "made"]],
}


def check(capsys, args, name, refused=False):
    """The command ends well or with one short line; `refused`: with the line, and it names the file."""
    code = main(args)
    err = capsys.readouterr().err
    assert code in ((2,) if refused else (0, 1, 2)), (args, err)
    if code == 2:
        assert err.startswith("error: "), err
        assert err.count("\n") == 1, err
        assert len(err) < 1100, err
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
    content = GARBAGE[garbage]
    path = Path(name)
    path.write_bytes(path.read_bytes()[:-20] if content is None else content)
    whole = content is None or (name == "data.jsonl" and garbage == "a list")
    for args in READERS[name]:
        check(capsys, args, name, refused=not whole)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "nothing"])
@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_one_line(here, capsys, name, kind):
    path = Path(name)
    path.unlink()
    make = {"pipe": os.mkfifo, "folder": Path.mkdir, "nothing": lambda path: None}
    make |= {"device": lambda path: path.symlink_to("/dev/zero")}
    make[kind](path)
    for args in READERS[name]:
        check(capsys, args, name)


DEEP: list = []
for _ in range(500):
    DEEP = [DEEP]
VALUES = {
    "missing": ..., "null": None, "text": "<script>alert(1)</script>", "true": True, "a negative number": -1,
    "a fraction": 0.5, "a large number": 10**400, "NaN": float("nan"), "infinity": float("inf"), "a list": [1],
    "a mapping": {"a": 1}, "deep": DEEP, "NUL": "a\0b", "half a character": "a\ud800b", "much": "x" * 100_000,
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
            if not (name == "verl.yaml" and args[0] == "doctor" and message[:9] in ("", "must hold")):
                code = main(args)
                err = capsys.readouterr().err
                assert (code, err.count("\n")) == (2, 1), err
                if name == "recipe.yaml":
                    assert message in err
    assert not Path("ran").exists()


def test_a_score_needs_all_of_the_questions(here, capsys):
    """A missing line gave the score of the others, and said nothing."""
    path = Path("eval/prompts.jsonl")
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    for args in (["score", "eval"], ["table", "eval"]):
        assert main(args) == 2
        assert "prompts.jsonl: the questions of 'made' are not those that were asked" in capsys.readouterr().err
    path.write_text(path.read_text() + '{"data":"made","prompt":3,"content":"another","answer":"4"}\n')
    assert main(["score", "eval"]) == 2
    assert "are not those that were asked" in capsys.readouterr().err


# ---- writing


def full(*arguments):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("args", [["report", "run", "-o", "out.html"], ["table", "eval", "-o", "out.md"]])
@pytest.mark.parametrize("before", [None, "old"])
def test_a_full_disk_is_one_line_and_leaves_what_was_there(here, capsys, monkeypatch, args, before):
    if before:
        Path(args[-1]).write_text(before)
    monkeypatch.setattr(os, "fsync", full)
    assert main(args) == 2
    assert capsys.readouterr().err == f"error: {args[-1]}: No space left on device\n"
    assert (Path(args[-1]).read_text() if before else not Path(args[-1]).exists()) == (before or True)
    assert not [path.name for path in here.iterdir() if path.name.startswith(".")]


def test_an_evaluation_on_a_full_disk_is_one_line_and_loses_nothing(here, capsys, monkeypatch):
    path = Path("eval/grades-exact.jsonl")
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert main(["score", "eval"]) == 2
    assert capsys.readouterr().err == "error: eval/grades-exact.jsonl: No space left on device\n"
    path.write_bytes(path.read_bytes()[:-5])  # the line that did not fit
    assert main(["score", "eval"]) == 0
    assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())


@pytest.mark.parametrize(
    "setting",
    ["trainer.hub_token=hf_abc", "trainer.model_init_kwargs={token: hf_abc}",
     "trainer.vllm_server_base_url=http://me:hf_abc@host:8000"],
)  # fmt: skip
def test_a_secret_does_not_get_into_the_files_of_a_run(here, capsys, setting):
    assert main(["train", "scene=tail", "rounds=1", "output=secret", setting]) == 2
    err = capsys.readouterr().err
    assert "looks like a secret" in err
    assert "hf_abc" not in err
    assert not Path("secret").exists()


def test_the_report_blanks_a_secret_that_is_in_the_files(here):
    make_run(Path("more/one"), seed=1, command="bandpo train trainer.hub_token=hf_abc")
    Path("more/one/config.yaml").write_text(yaml.safe_dump({"trust_region": CLIP, "trainer": {"hub_token": "hf_abc"}}))
    assert main(["report", "run", "more"]) == 0
    page = Path("report.html").read_text()
    assert "hf_abc" not in page
    assert "trainer.hub_token=***" in page


@pytest.mark.parametrize(
    "text", ["!!bool maybe", "[" * 10_000, "&a [*a]", "{a: 1, a: 2}", '"\\ud800"', "9" * 5000, "{"]
)
def test_yaml_on_the_command_line_is_one_line(here, capsys, text):
    for args in (
        ["train", "scene=tail", f"rounds={text}"],
        ["explain", f"{{type: band, delta: {text}}}"],
        ["eval", "m", "--body", f"seed={text}"],
        ["report", text],
    ):
        assert main(args) == 2, args
        assert capsys.readouterr().err.count("\n") == 1, args


def test_a_device_is_written_to_and_a_link_stays(here):
    """As root, `-o /dev/null` replaced the device for the whole machine; so here it is one of our own."""
    device = here / "device"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError:
        pytest.skip("no device can be made here")
    Path("target").write_text("old")
    Path("page").symlink_to("target")
    for output in ("device", "page"):
        assert main(["table", "eval", "-o", output]) == 0
    assert device.is_char_device()
    assert Path("page").is_symlink()
    assert Path("target").read_text() != "old"
