"""The scripts of .ci: what a failed stage does to the others, and which lines of the pages are resolved."""

from __future__ import annotations

import os
import subprocess

import pytest
from scripts import ROOT, load

STAGES = """
. .ci/stages
first() { echo begins; (exit 3); echo never; }
second() { false; echo never; }
third() { echo runs; }
beside second third
stage first
stage third
joined
report
echo never
"""


@pytest.fixture(scope="module")
def installs():
    return load(".ci/installs.py")


def run(script: str) -> tuple[int, list[str]]:
    """Run a script like those of .ci; its exit status and its lines."""
    own = {**os.environ, "CI": ""}  # installs no browser
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_after_a_failed_stage_the_others_run_and_the_end_names_it():
    code, lines = run(STAGES)
    assert code == 1
    assert "never" not in lines
    assert lines.count("begins") == 1
    assert lines.count("runs") == 2
    failed = [line for line in lines if line.startswith("=== failed: ")]
    assert sorted(failed) == ["=== failed: first (exit status 3)", "=== failed: second (exit status 1)"]
    assert lines[-2:] == failed


def test_stages_that_pass_end_with_0():
    code, lines = run(". .ci/stages; third() { echo runs; }; stage third; report; echo ended")
    assert code == 0
    assert lines[1] == "runs"
    assert lines[-1] == "ended"


def test_lines_that_install_are_collected_from_the_files(installs):
    lines = installs.lines()
    assert lines["-c", "constraints/base.txt", ".[lab]"] == "README.md"
    assert lines[".[verl]",] == "docs/verl.md"
    assert lines["-c", "constraints/base.txt", ".[dev,trackers,inspect]"] == ".ci/stages"
    assert ("-c", "constraints/base.txt", ".[inspect]") in lines  # the wheel, with each extra
    assert not any("$" in each or each == "--no-deps" for arguments in lines for each in arguments[-1:])


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("-c constraints/base.txt '.[lab]' && pip install x", [("-c", "constraints/base.txt", ".[lab]")]),
        ('-qq --no-deps "$torch" 2>"$work/torch.log"; then', None),
        ('-qq --no-deps --target "$work/hosts" -r list.txt', [("--no-deps", "-r", "list.txt")]),
        ("--no-deps .        # nothing else changes", [("--no-deps", ".")]),
        ("bandpo[train]", [(".[train]",)]),
        ('-qq -c constraints/base.txt -r "$work/docs.txt"', [("-c", "constraints/base.txt", ".[docs]")]),
    ],
)
def test_arguments_of_a_line(installs, line, arguments):
    assert installs.commands(line) == (arguments or [("--no-deps", *installs.variables()["$torch"])])


def test_a_variable_that_nobody_resolves_is_an_error(installs):
    with pytest.raises(SystemExit, match=r'a variable of `pip install -qq "\$new"` is not in installs\.py'):
        installs.commands('-qq "$new"')


def test_a_list_is_resolved_without_what_comes_from_an_address(installs, tmp_path):
    copy = installs.without_addresses("constraints/gpu.txt", str(tmp_path))
    text = (tmp_path / "gpu.txt").read_text(encoding="utf-8")
    assert copy == str(tmp_path / "gpu.txt")
    assert "https://" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
    assert "verl==0.9.1" in text
