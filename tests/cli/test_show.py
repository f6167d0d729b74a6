"""What the commands print."""

import json
from pathlib import Path
from types import SimpleNamespace

from rich.console import Console

from bandpo_runs.cli import show_training
from bandpo_runs.reports import verdicts
from bandpo_runs.toy import SCENES
from bandpo_runs.training import on_trl
from bandpo_runs.training.side_by_side import plan


def test_a_line_has_what_the_row_has():
    row = {"round": 3, "reward": 0.25, "lab/work": 0.5, "entropy": 1.2345, "clip/fraction": 0.0123}
    row["clip/tail_high_share"] = 0.6
    config = SimpleNamespace(rounds=30, reward="mine:score", data=SimpleNamespace(eval_path=None))
    assert show_training._line(row, config, [10.0, 20.0]) == (
        "round  3 of 30  reward 0.250  work 0.500  entropy 1.23  clipped 1.23 %  20 s  about 6.8 min left"
    )
    assert show_training._line({"round": 1, "reward": None, "clip/fraction": 0.0}, config, [2.0]) == (
        "round  1 of 30  reward -  clipped 0.00 %  2 s  about 1.0 min left"
    )
    assert show_training._line({"round": 0, "eval/reward": 0.5}, config, []) == "before  held-out reward 0.500"
    config.reward = "math"
    assert show_training._line({"round": 4, "eval/reward": 0.5}, config, []) == "round  4 of 30  held-out right 50.0 %"


def test_a_row_of_the_lab_fits_80_columns(tmp_path):
    (job,) = plan(
        "tail",
        ["{type: relaxed, inner: {type: band}, outer: {type: clip, eps_low: 0.25, eps_high: 0.29}}"],
        [12345],
        tmp_path,
        {"rounds": 1000},
    )
    row = {"round": 999, "reward": 1.0, "lab/work": 1.0, "entropy": 12.345, "clip/fraction": 1.0}
    head = show_training._LAB_ROW.format("rule", "seed", "round", "reward", "work", "entropy", "clip %", "tail %")
    for line in head, show_training._lab_row(job, row | {"clip/tail_high_share": 1.0}):
        assert len(line) <= 80
    assert show_training._lab_row(job, row).split()[-6:] == ["999/1000", "1.000", "1.000", "12.35", "100.00", "-"]


def test_brackets_in_a_name_are_no_markup(tmp_path, monkeypatch, capsys):
    def run(config, *, say, **named):
        say(f"going on in {config.output}")
        folder = Path(config.output)
        folder.mkdir()
        (folder / "metrics.jsonl").write_text('{"step": 1, "clip/fraction": 0.01}\n')
        return folder

    monkeypatch.setattr(on_trl, "run", run)
    monkeypatch.chdir(tmp_path)
    show_training.train_and_show(None, ["scene=tail", "label='mine [/x]'", "output='[runs]'"], False, "bandpo train")
    first, rule, second, clip, *_ = capsys.readouterr().out.splitlines()
    assert first == "mine [/x] on lab, 30 rounds of 64 steps, in [runs]"
    assert rule.startswith('Band("kl", 0.05): a token of probability 0.5 may go from 0.3458 to 0.6542, one of 0.001 up')
    assert second == "going on in [runs]"
    assert clip.startswith("The rule clipped at most 1 % of tokens in 1 row (")


def test_a_comparison_ends_with_the_path_of_its_report(tmp_path, monkeypatch, capsys):
    """The runs are replaced by rows; everything after them is real."""

    def fake(jobs, *, on_row, **named):
        for job in jobs:
            job.folder.mkdir(parents=True)
            (job.folder / "config.yaml").write_text(job.config.to_yaml())
            rows = [{"step": 64 * r, "round": r, "reward": 0.1 * r, "lab/work": 0.1 * r, "entropy": 1} for r in (1, 2)]
            (job.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            facts = {
                "label": job.config.label, "method": job.name, "seed": job.config.seed, "scene": "tail", "rounds": 2,
                "learning_rate": 5e-6, "steps_per_round": 64, "finished": True, "command": "bandpo lab", "versions": {},
                "commit": None, "started": "2026-01-01T00:00:00+00:00", "wall_seconds": 1.0,
            }  # fmt: skip
            (job.folder / "run.json").write_text(json.dumps(facts))
            on_row(job, rows[-1])
        return [job.folder for job in jobs]

    monkeypatch.setattr(show_training, "run_all", fake)
    monkeypatch.setattr(show_training, "console", Console(width=200))
    show_training.compare_and_show("tail", ["grpo", "band-kl"], [0], tmp_path, {"rounds": 2}, 2, False, "bandpo lab")
    out = capsys.readouterr().out
    page = out.splitlines()[-1]
    assert page == str(tmp_path / "report-tail.html")
    assert "<svg" in (tmp_path / "report-tail.html").read_text()
    assert f"2 runs (GRPO 0.2/0.2, Band-KL 0.05; seeds 0), 2 at once, into {tmp_path}." in out
    assert "          GRPO 0.2/0.2    0     2/2   0.200  0.200     1.00       -       -\n" in out
    assert out.count("                  rule seed   round  reward   work  entropy  clip %  tail %\n") == 1
    assert "Too few pairs of seeds (1)" in out
    assert "Other scenes: --scene " in out
    assert "what a clip costs a rare strategy, not what it protects." in out


def test_every_scene_has_its_words():
    assert SCENES.keys() == verdicts.SCENES.keys() == verdicts.LIMITS.keys()
