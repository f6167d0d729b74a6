"""YAML and logs of strangers: a file that would take minutes or gigabytes is an error within a second."""

import os
import time
import tracemalloc
from pathlib import Path

import pytest
import yaml
from commands import refusal
from disk import write

from bandpo.errors import UserError
from bandpo.files import LONGEST_LINE, YAML_BYTES, lines_of, parse_yaml
from bandpo_runs.cli import main
from bandpo_runs.files.reading import read_yaml


def doubling(levels, level):
    """Nine aliases a level, each of the level before."""
    names = "abcdefghijklm"
    rest = (f"{names[i + 1]}: &{names[i + 1]} {level(names[i])}\n" for i in range(levels))
    return "a: &a {x: 1, y: 2, z: 3}\n" + "".join(rest)


LISTS = doubling(9, lambda name: f"[{', '.join([f'*{name}'] * 9)}]")
MERGES = doubling(9, lambda name: f"{{<<: [{', '.join([f'*{name}'] * 9)}]}}")
NESTED = doubling(9, lambda name: "{" + ", ".join(f"k{i}: *{name}" for i in range(9)) + "}")
FULL = "is too large: more than 10,000 values or 1,048,576 characters, counting what aliases repeat"
HOSTILE = {
    "aliases of lists": (LISTS, FULL),
    "aliases of mappings": (NESTED, FULL),
    "aliases that are merged": (MERGES, FULL),
    "aliases as keys": (doubling(9, lambda name: f"{{? [{', '.join([f'*{name}'] * 9)}] : 1}}"), FULL),
    "one alias many times": (f"a: &a [{'x,' * 100}]\nb: [{'*a,' * 100}]\n", FULL),
    "one long text many times": (f"a: &a {'x' * 900_000}\nb: [{'*a,' * 9_000}]\n", FULL),
    "a list of a long text many times": (f"a: &a [{'x' * 900_000}]\nb: [{'*a,' * 4_000}]\n", FULL),
    "100,000 keys": ("".join(f"k{i}: 1\n" for i in range(100_000)), FULL),
    "a million keys": ("".join(f"k{i}: 1\n" for i in range(1_000_000)), "10,888,890 bytes, of which YAML may have"),
    "many documents": ("--- a\n" * 100_000, FULL),
    "a text of 50 MB": ("a: " + "x" * 50_000_000, "50,000,003 bytes, of which YAML may have 1,048,576"),
    "lists in lists": ("[" * 1_000_000, "nested more than 100 deep"),
    "mappings in mappings": ("{a: " * 200_000, "nested more than 100 deep"),
    "a block in a block": ("- " * 500_000, "nested more than 100 deep"),
    "aliases in aliases": (
        "- &a0 [x]\n" + "".join(f"- &a{i + 1} [*a{i}]\n" for i in range(120)), "nested more than 100 deep"
    ),
    "an alias in itself": ("a: &a [*a, *a]\n", "nested more than 100 deep"),
    "a number of base 60": ("a: 1" + ":1" * 500_000, "an integer of more than 400 digits"),
    "a number by its tag": ("a: !!int " + "1:" * 400_000 + "1", "an integer of more than 400 digits"),
    "directives": ("".join(f"%TAG !a{i}! x\n" for i in range(60_000)) + "--- a\n", "more than nine %TAG directives"),
    "directives in UTF-16": (
        ("".join(f"%TAG !{i}! x\n" for i in range(30_000)) + "--- a\n").encode("utf-16"), "more than nine %TAG"
    ),
}  # fmt: skip


# The short ones without libyaml, too: plain Python takes longer.
SHORT = [name for name, (text, _) in HOSTILE.items() if len(text) < 1000]
CASES = [*((name, True) for name in HOSTILE), *((name, False) for name in SHORT)]


@pytest.mark.parametrize(("name", "libyaml"), CASES)
def test_hostile_yaml_is_an_error_within_a_second(name, libyaml, monkeypatch):
    text, message = HOSTILE[name]
    if not libyaml:
        monkeypatch.delattr(yaml, "CSafeLoader")
    began = time.process_time()
    why = refusal(parse_yaml, text, "x.yaml")
    assert (time.process_time() - began < 1, why[:6], message in why, len(why) < 200) == (True, "x.yaml", True, True)


def test_what_is_allowed(monkeypatch):
    """Aliases and merges that people write, a file at either bound, and a few thousand settings."""
    text = "base: &base {a: 1, b: [2, 3]}\none: {<<: *base, a: 4}\ntwo: [*base, *base]\n"
    base = {"a": 1, "b": [2, 3]}
    assert parse_yaml(text, "x") == {"base": base, "one": base | {"a": 4}, "two": [base, base]}
    assert len(parse_yaml("".join(f"k{i}: {i}\n" for i in range(4_999)), "x")) == 4_999
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert parse_yaml(text, "x")["two"] == [base, base]
    assert parse_yaml("%TAG !e! tag:example.com,2000:\n--- a\n", "x") == "a"


@pytest.mark.parametrize(
    ("make", "most", "message"),
    [
        (lambda n: "[" + "x," * n + "]", 9_999, FULL),
        (lambda n: "a: " + "x" * n, YAML_BYTES - 3, "is too large"),
        (lambda n: "[" * n + "]" * n, 100, "deep"),
    ],
    ids=["values", "bytes", "depth"],
)
def test_a_bound_is_exact(make, most, message):
    assert parse_yaml(make(most), "x") == yaml.safe_load(make(most))
    assert message in refusal(parse_yaml, make(most + 1), "x")


@pytest.mark.parametrize(
    ("text", "line"), [("a: 1\nb: 2\na: 3\n", 3), ("x:\n  a: {k: 1, k: 2}\n", 2), ("<<: &a {b: 1}\n<<: *a\n", 2)]
)
def test_a_doubled_key_is_refused_with_its_line(text, line):
    with pytest.raises(UserError, match=rf"x.yaml is not YAML: key '.+' is there twice in .*, line {line}, column "):
        parse_yaml(text, "x.yaml")


def test_a_large_file_is_not_read(tmp_path):
    path = tmp_path / "a.yaml"
    path.touch()
    os.truncate(path, 2**40)
    assert "a.yaml is too large: 1,099,511,627,776 bytes" in refusal(read_yaml, path)


COMMANDS = {
    "train r.yaml": FULL, "doctor r.yaml": FULL, "eval m --data r.yaml": FULL,
    "report run": FULL, "doctor run/config.yaml": FULL, "eval run": FULL, "train run/config.yaml --resume": FULL,
    "train --rule LISTS": "a YAML node such as {type: band, delta: 0.05}",
    "explain LISTS": "a YAML node such as {type: band, delta: 0.05}",
    "train r.yaml trust_region=LISTS": FULL,
}  # fmt: skip


@pytest.mark.parametrize(("command", "message"), COMMANDS.items(), ids=COMMANDS)
def test_every_command_that_reads_yaml_says_it_within_a_second(command, message, here, monkeypatch, cli):
    monkeypatch.setenv("BANDPO_CACHE", "empty")
    Path("run", "model").mkdir(parents=True)
    write("run/run.json", {"label": "a", "seed": 0, "finished": True, "learning_rate": 1e-6})
    write("run/metrics.jsonl", [{"step": 1, "reward": 0.5}])
    for text in ("a: [", LISTS):  # the first loads what the command needs
        for name in ("r.yaml", "run/config.yaml"):
            write(name, "a: 1" if "=" in command else text)
        began = time.process_time()
        err = cli.error(*[word.replace("LISTS", text) for word in command.split()])
    assert time.process_time() - began < 1
    assert message in err


def test_a_long_line_of_a_log_is_refused_without_being_read(tmp_path):
    log = write(tmp_path / "metrics.jsonl", [{"step": 1}])
    os.truncate(log, 2**30)  # the second line is 1 GiB of NUL
    tracemalloc.start()
    try:
        why = refusal(list, lines_of(log))
        assert "metrics.jsonl, line 2: corrupt: it is longer than 33,554,432 bytes" in why
        assert tracemalloc.get_traced_memory()[1] < 3 * LONGEST_LINE
    finally:
        tracemalloc.stop()
    line = b"x" * (LONGEST_LINE - 1) + b"\n"
    write(log, line + line + b"x" + line)
    assert list(lines_of(log, -1)) == [line, line, b"x" + line]
    lines = lines_of(log)
    assert [next(lines), next(lines)] == [line, line]
    assert "line 3" in refusal(next, lines)


@pytest.mark.parametrize("command", ["watch --once", "report", "doctor", "calibrate", "score"])
def test_commands_say_which_line_of_a_log_is_too_long(command, here, capsys):
    name, *options = command.split()
    path = "tokens-0.jsonl" if name == "calibrate" else "metrics.jsonl"
    os.truncate(write(path, [{"step": 1, "reward": 1.0, "old_logps": [], "logps": []}]), 2**30)
    assert main([name, path, *options]) == 2
    assert "line 2: corrupt: it is longer than 33,554,432 bytes" in "".join(capsys.readouterr())
