"""`bandpo bench`: what it says beforehand and in the end, and one line for every mistake."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from contests import FakeWorlds, node_of

import bandpo.worlds
from bandpo.bench import read_contest
from bandpo.cli import main

ROOT = Path(__file__).parent.parent.parent
BOTH = ROOT / "benchmarks" / "contest" / "both.yaml"


@pytest.fixture
def worlds(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    fake = FakeWorlds()
    fake.band = 0.03
    monkeypatch.setattr(bandpo.worlds, "train", fake.train)
    node = node_of(controls=[{"name": "none"}, {"name": "weight", "positive_weight": 0.95}])
    Path("small.yaml").write_text(yaml.safe_dump(node))
    return fake


def test_it_says_what_it_costs_and_what_it_found(worlds, capsys):
    assert main(["bench", "small.yaml", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == (
        "small: 1 world x 2 families x 2 controls. Of each family under each control 15 settings are tried on 4 seeds, "
        "the best 3 on 6 others, and one is judged on 40 more."
    )
    assert lines[1].startswith("That is 472 training runs of about ")
    assert "on 1 core, and more where a grid has to be widened." in lines[1]
    at = next(i for i, line in enumerate(lines) if line == "both, control: none")
    head, band, clip = (re.split(r"\s{2,}", lines[at + i].strip()) for i in (2, 4, 5))
    assert head == ["family", "final", "minus clip", "p", "better", "lost", "half"]
    assert (band[0], clip[0], clip[2:5]) == ("band", "clip", ["-", "-", "-"])
    assert re.fullmatch(r"\+0\.0\d\d \[\+0\.0\d\d, \+0\.0\d\d\]", band[2])
    assert (band[3], band[5], band[6]) == ("< .001", "0.0 %", "20")
    assert lines[at + 7].split() == ["band", "delta", "0.01,", "learning", "rate", "0.02"]
    assert lines[at + 8].split() == ["clip", "up", "0.4,", "learning", "rate", "0.02"]
    assert "both, control: weight" in out
    at = next(i for i, line in enumerate(lines) if line == "both: minus clip under the same control")
    assert lines[at + 2].split() == ["family", "none", "weight"]
    assert all(cell.endswith("*") for cell in lines[at + 5].split()[1:])
    assert "15 settings were tried of each family" in out
    assert lines[-1] == "rows runs/bench/small/rows.jsonl, numbers runs/bench/small/results.json"


def test_the_numbers_are_one_json_document_and_kept(worlds, capsys):
    assert main(["bench", "small.yaml", "-o", "here", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found == json.loads(Path("here/results.json").read_text())
    assert "training runs" in shown.err
    assert [(table["control"], len(table["families"])) for table in found["tables"]] == [("none", 2), ("weight", 2)]
    band, clip = found["tables"][0]["families"]
    assert (band["family"], band["point"], band["searched"]) == ("band", {"delta": 0.01, "learning_rate": 0.02}, 15)
    assert band["difference"]["low"] < 0.03 < band["difference"]["high"]
    assert clip["difference"] is None
    assert band["seeds"] == clip["seeds"] == [1000, 40]
    assert found["worlds_version"] == 1
    assert (band["profile"]["0.1"], band["lost"]["value"]) == (1.0, 0.0)
    assert 1 >= band["profile"]["0.8"] > band["profile"]["0.95"] >= 0


def test_an_interrupted_contest_goes_on_with_the_same_command(worlds, capsys):
    assert main(["bench", "small.yaml", "-o", "whole", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    worlds.stop_after = len(worlds.runs) + 150
    assert main(["bench", "small.yaml", "-o", "here", "--json"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted; the same command goes on"
    worlds.stop_after = None
    assert main(["bench", "small.yaml", "-o", "here", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == whole
    assert "Some of it may be there already." in shown.err


def test_what_was_widened_is_told(worlds, capsys):
    worlds.best_up = 1000.0
    assert main(["bench", "small.yaml"]) == 0
    out = capsys.readouterr().out
    told = "clip (both, none): up was at the edge of its grid, which was widened up to 3.2; up is at the upper edge"
    assert f"  {told}" in out
    assert "3 settings more than the 15 of all" in out


def test_a_smoke_test_keeps_its_numbers_apart(worlds, capsys):
    assert main(["bench", "small.yaml", "--smoke", "--only", "band", "-o", "here"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("small (smoke test): 1 world x 2 families")
    assert "nothing can be concluded" in out
    assert sorted(path.name for path in Path("here").iterdir()) == ["rows.jsonl", "smoke.json"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["smal.yaml"], "contest smal.yaml does not exist, did you mean 'small.yaml'?"),
        (["small.yaml", "--only", "bnd"], "there is no family 'bnd' in this contest, did you mean 'band'?"),
        (["small.yaml", "--jobs", "0"], "must be a positive number, got '0'"),
        (["broken.yaml"], "broken.yaml: unknown key 'famlies', did you mean 'families'?"),
    ],
)
def test_a_mistake_is_one_line(worlds, capsys, arguments, told):
    Path("broken.yaml").write_text("name: x\nfamlies: []\n")
    assert main(["bench", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not worlds.runs


def test_the_contest_of_the_repository_is_fair_and_affordable():
    contest = read_contest(BOTH)
    assert (len(contest.families), len(contest.controls), contest.searched) == (13, 7, 144)
    assert contest.families[0].name == contest.baseline
    assert contest.fewest_runs < 530_000  # at 5 ms each 45 minutes of one core and a half
    assert all(why is None for why in map(_why_not, contest.families))


def _why_not(family):
    """Why the fast engine cannot run it."""
    from bandpo.bench.contest import Control, grid_of, learner_of

    point = grid_of({**family.grid, "learning_rate": (0.02,)})[0]
    return bandpo.worlds.why_not_numba(bandpo.worlds.Learner(**learner_of(family, Control(name="none"), point)))


@pytest.mark.slow
def test_a_process_that_was_killed_goes_on(tmp_path, monkeypatch):
    """In the real worlds, killed when it has written some rows; no process of it is left."""
    node = node_of(worlds=[{"base": "both", "rounds": 8}], settings=6)
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(node))
    code = "import sys; from bandpo.bench import running; running.RUNS_AT_ONCE = 4; from bandpo.cli import main; "
    command = [
        sys.executable,
        "-c",
        f"{code}sys.exit(main(sys.argv[1:]))",
        "bench",
        "one.yaml",
        "--jobs",
        "2",
        "--json",
    ]

    def finish(folder):
        done = subprocess.run([*command, "-o", folder], cwd=tmp_path, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    rows = tmp_path / "killed" / "rows.jsonl"
    killed = subprocess.Popen([*command, "-o", "killed"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while killed.poll() is None and not (rows.exists() and rows.read_bytes().count(b"\n") > 5):
        time.sleep(0.02)
    assert killed.poll() is None  # it was at work
    killed.kill()
    killed.communicate(timeout=20)  # its pipes are closed, so nobody else holds them
    before = rows.read_bytes()
    assert finish("killed") == finish("whole")
    assert rows.read_bytes()[: before.rfind(b"\n")] == before[: before.rfind(b"\n")]
    written = [sorted((tmp_path / name / "rows.jsonl").read_bytes().splitlines()) for name in ("killed", "whole")]
    assert written[0] == written[1]


@pytest.mark.slow
def test_the_contest_of_the_repository_runs(tmp_path, capsys):
    assert main(["bench", str(BOTH), "--smoke", "-o", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(table["families"]) for table in found["tables"]] == [13] * 7
