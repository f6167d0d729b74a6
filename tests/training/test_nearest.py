"""`nearest`: which runs clipped as many tokens, and what that moved there."""

import csv

import pytest

from bandpo_runs.training.nearest import _WORLDS, POINTS, nearest


def points():
    with POINTS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("percent", "named"),
    [
        (0.03, "GRPO .2 in Qwen2.5-3B, the paper's authors, steps 1 to 4 (docs/paper.md)"),
        (2.0, "DPPO TV .1 in prime-rl #3244, answers up to 3 steps old (-0.23 from DPPO TV .2, reward after 15 steps"),
        (49.0, "GRPO 0.2/0.2 in SmolLM2, 8 epochs (-0.12 from no clip, 16 pairs of seeds"),
    ],
)
def test_the_nearest_runs_are_named_with_what_they_are_compared_with(percent, named):
    assert named in nearest(percent).what


def test_worlds_are_told_by_what_they_moved_from_no_clip():
    """By hand, from the points that clip a third to three times 3 %; random rewards have no best learning rate."""
    assert {point["kind"] for point in points()} > {*_WORLDS}
    kind = next(iter(_WORLDS))
    near = [float(p["pass1"]) for p in points() if p["kind"] == kind and 1 < float(p["clipped"]) < 9]
    what = nearest(3.0).what
    assert f"at the best learning rate pass@1 by {min(near):+.2g} to {max(near):+.2g} and coverage" in what
    assert f"from no clip, in {len(near)} settings; at four times the best" in what


def test_what_is_far_is_not_named():
    assert nearest(1e-5).what == "rules that clip 3e-06 to 3e-05 % of tokens moved, in small worlds: not tried"
    assert "verl #7356" not in nearest(40.0).what  # a share of responses
