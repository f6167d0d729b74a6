"""`nearest`: which runs clipped as many tokens, and what that moved there."""

import pytest

from bandpo_runs.training.nearest import nearest


@pytest.mark.parametrize(
    ("percent", "named"),
    [
        (0.03, "GRPO .2 in Qwen2.5-3B, the paper's authors, steps 1 to 4 (docs/paper.md)"),
        (2.0, "DPPO TV .1 in prime-rl #3244, answers up to 3 steps old (-0.23 from DPPO TV .2, reward after 15 steps"),
        (49.0, "GRPO 0.2/0.2 in SmolLM2, 8 epochs (-0.12 from no clip, 16 pairs of seeds"),
        (1e-5, "tokens: none of docs/report/index.md"),
    ],
)
def test_the_nearest_runs_are_named_with_what_they_are_compared_with(percent, named):
    what = nearest(percent).what
    assert named in what
    assert "verl #7356" not in what  # a share of responses
