"""`nearest`: which runs clipped as many tokens, and what that moved there."""

import csv

import pytest

from bandpo_runs.training.nearest import POINTS, nearest


@pytest.mark.parametrize(
    ("percent", "named"),
    [(0.03, "Qwen2.5-3B"), (2.0, "prime-rl #3244"), (49.0, "SmolLM2, 8 epochs, GRPO 0.2/0.2"), (1e-5, "Qwen2.5-3B")],
)
def test_the_nearest_public_run_is_named_with_its_source(percent, named):
    said = nearest(percent)
    assert said.level == "note"
    assert named in said.what
    with POINTS.open(encoding="utf-8", newline="") as file:
        sources = [
            point["source"] for point in csv.DictReader(file) if point["run"].startswith(named.partition(", G")[0])
        ]
    assert any(source in said.what for source in sources)


def test_worlds_are_told_by_what_they_moved():
    """By hand, from the points that clip a third to three times 3 %."""
    with POINTS.open(encoding="utf-8", newline="") as file:
        points = [point for point in csv.DictReader(file) if point["source"].startswith("research/grids")]
    near = [point for point in points if 1 < float(point["clipped"]) < 9 and "too high" not in point["kind"]]
    moved = [float(point["pass1"]) for point in near]
    said = nearest(3.0).what
    assert said.startswith(f"rules that clip 1 to 9 % of tokens moved pass@1 by {min(moved):+.2g} to {max(moved):+.2g}")
    assert f" at the best learning rate ({len(near)} runs of small worlds); pass@1" in said
    assert "at four times the best (" in said


def test_no_world_clips_as_few():
    assert "small worlds" not in nearest(1e-5).what
