"""`python -m research.bench`: what it says beforehand and in the end, and one line for every mistake."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from contests import FakeWorlds, node_of

import research.worlds
from research.bench.__main__ import main

ROOT = Path(__file__).parent.parent.parent
BOTH = ROOT / "research" / "contests" / "rare_and_noisy.yaml"


@pytest.fixture
def worlds(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    fake = FakeWorlds()
    fake.band = 0.03
    monkeypatch.setattr(research.worlds, "train", fake.train)
    node = node_of(controls=[{"name": "none"}, {"name": "weight", "positive_weight": 0.95}])
    Path("small.yaml").write_text(yaml.safe_dump(node))
    return fake


def test_it_says_what_it_costs_and_what_it_found(worlds, capsys):
    assert main(["small.yaml", "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("That is 472 training runs of about ")
    at = lines.index("rare and noisy, control: none")
    head, band, clip = (re.split(r"\s{2,}", lines[at + i].strip()) for i in (2, 4, 5))
    assert head == ["family", "final", "minus clip", "p", "better", "lost", "half"]
    assert (band[0], clip[0], clip[2:5]) == ("band", "clip", ["-", "-", "-"])
    assert re.fullmatch(r"\+0\.0\d\d \[\+0\.0\d\d, \+0\.0\d\d\]", band[2])
    assert (band[3], band[5], band[6]) == ("< .001", "0.0 %", "20")
    assert lines[at + 7].split() == ["band", "delta", "0.01,", "learning", "rate", "0.02"]
    at = lines.index("rare and noisy: minus clip under the same control")
    assert lines[at + 4].split()[-1] == "^"  # the weight adds .1 to every family
    assert [re.sub("[^*^]", "", cell) for cell in lines[at + 5].split()[1:]] == ["*", "*^"]


def test_the_numbers_are_one_json_document_and_kept(worlds, capsys):
    assert main(["small.yaml", "-o", "here", "--json"]) == 0
    shown = capsys.readouterr()
    results = json.loads(shown.out)
    assert results == json.loads(Path("here/results.json").read_text())
    assert "training runs" in shown.err
    assert [(table["control"], len(table["families"])) for table in results["tables"]] == [("none", 2), ("weight", 2)]
    band, clip = results["tables"][0]["families"]
    assert (band["family"], band["point"], band["searched"]) == ("band", {"delta": 0.01, "learning_rate": 0.02}, 15)
    assert band["difference"]["low"] < 0.03 < band["difference"]["high"]
    assert clip["difference"] is None
    assert band["seeds"] == clip["seeds"] == [1000, 40]
    assert results["worlds_version"] == results["lab_version"] == 1
    assert band["lost"]["value"] == 0.0


def test_an_interrupted_contest_goes_on_with_the_same_command(worlds, capsys, monkeypatch):
    assert main(["small.yaml", "-o", "whole", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    monkeypatch.setattr("research.bench.running.RUNS_AT_ONCE", 8)
    worlds.stop_after = len(worlds.runs) + 150
    assert main(["small.yaml", "-o", "here", "--json"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted; the same command goes on"
    worlds.stop_after = None
    assert main(["small.yaml", "-o", "here", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == whole
    missing = int(re.findall(r"That is (\d+) training runs, of 472, of about ", shown.err)[0])
    assert 472 - 150 <= missing < 472
    assert main(["small.yaml", "-o", "here", "--json"]) == 0
    assert "Of its 472 training runs none is missing." in capsys.readouterr().err


def test_a_smoke_test_keeps_its_numbers_apart(worlds, capsys):
    assert main(["small.yaml", "--smoke", "--only", "band", "-o", "here"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("small (smoke test): 1 world x 2 families")
    assert "nothing can be concluded" in out
    assert "1 setting more than the 2 of all, in a wider grid" in out
    assert "at the edge" not in out
    assert sorted(path.name for path in Path("here").iterdir()) == ["rows.jsonl", "smoke.json"]


def test_a_control_is_chosen_by_seeds_that_do_not_judge(worlds, capsys, monkeypatch):
    """A weight that helps on the seeds of the choice alone: on those that judge it is worse."""
    plain = worlds.train

    def turned(scene, learners, seeds, **options):
        results = plain(scene, learners, seeds, **options)
        if seeds[0] >= 1000:
            for i, learner in enumerate(learners):
                results["final"][i] -= 0.2 * (learner.positive_weight != 1)
        return results

    monkeypatch.setattr(research.worlds, "train", turned)
    assert main(["small.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line == "rare and noisy: minus clip under the same control")
    assert ["^" in cell for cell in lines[at + 5].split()[1:]] == [False, True]
    tables = json.loads(Path("runs/bench/small/results.json").read_text())["tables"]
    (plain_one, weighted) = (table["families"][0] for table in tables)
    assert plain_one["family"] == weighted["family"] == "band"
    assert weighted["chosen_with"] > plain_one["chosen_with"] + 0.05
    assert weighted["value"]["value"] < plain_one["value"]["value"] - 0.05
    rows = {row["key"]: row for row in map(json.loads, Path("runs/bench/small/rows.jsonl").read_text().splitlines())}
    (key,) = weighted["keys"]
    assert rows[key]["seeds"] == weighted["seeds"]
    assert np.mean(rows[key]["final"]) == pytest.approx(weighted["value"]["value"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["smal.yaml"], "contest smal.yaml does not exist, did you mean 'small.yaml'?"),
        (["small.yaml", "--only", "clip"], "'clip' is the baseline, and alone compares nothing; name some of ['band']"),
        (["small.yaml", "--only", "bnd"], "unknown family 'bnd', did you mean 'band'?"),
        (["small.yaml", "--jobs", "0"], "must be a positive integer, got '0'"),
        (["broken.yaml"], "broken.yaml: unknown key 'famlies', did you mean 'families'?"),
    ],
)
def test_a_mistake_is_one_line(worlds, capsys, arguments, told):
    Path("broken.yaml").write_text("name: x\nfamlies: []\n")
    assert main([*arguments]) == 2
    assert told in capsys.readouterr().err
    assert not worlds.runs


@pytest.mark.slow
def test_a_process_that_was_killed_goes_on(tmp_path, monkeypatch):
    """In the real worlds, killed when it has written some rows; no process of it is left."""
    node = node_of(worlds=[{"base": "rare and noisy", "rounds": 8}], settings=6)
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(node))
    code = (
        "import sys; from research.bench import running; running.RUNS_AT_ONCE = 4; "
        "from research.bench.__main__ import main; "
    )
    command = [
        sys.executable,
        "-c",
        f"{code}sys.exit(main(sys.argv[1:]))",
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
def test_the_contest_of_the_repository_runs(tmp_path):
    """In a process of its own, which knows no rule of research yet."""
    command = [sys.executable, "-m", "research.bench", str(BOTH), "--smoke", "-o", str(tmp_path), "--json"]
    results = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [len(table["families"]) for table in results["tables"]] == [13] * 8
