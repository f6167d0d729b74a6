"""The figures: what is drawn, against formulas written here; the same bytes each time; nothing cut off."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.path import Path as MplPath
from mpl_toolkits.mplot3d.art3d import Poly3DCollection

from bandpo import DCPO, Band, Clip
from research.figures import CLASSES, FIGURES, PAIR, PAPER, main, stretches

ROOT = Path(__file__).parents[2]
# The epsilons below and above at p, as the paper writes them (delta 0.1; eq:tv_bounds, eq:chi2_bounds, DCPO's own).
EPSILONS = {
    Clip(0.2, 0.28): lambda p: (0.2 + 0 * p, 0.28 + 0 * p),
    DCPO(0.2, 0.28, math.inf): lambda p: (
        0.5 - 0.5 * np.sqrt(np.maximum(0, 1 - 0.8 / p)), 0.5 * np.sqrt(1 + 1.12 / p) - 0.5
    ),
    Band("tv", 0.1): lambda p: (np.minimum(1, 0.1 / p), np.minimum(1 / p - 1, 0.1 / p)),
    Band("chi2", 0.1): lambda p: (
        np.minimum(1, np.sqrt(0.1 * (1 - p) / p)), np.minimum(1 / p - 1, np.sqrt(0.1 * (1 - p) / p))
    ),
}  # fmt: skip


def kl(p, q):
    """KL(coin p || coin q)."""
    with np.errstate(divide="ignore"):
        return p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))


def drawn(name, rules=None):
    figure, caption = FIGURES[name](rules or (PAIR if name == "regions-3d" else PAPER))
    (ax,) = figure.axes
    return ax, caption


def pairs(name):
    """{rule: (p, lower, upper)} of a figure that draws two lines for each."""
    lines = drawn(name)[0].lines
    return {r: (*lines[2 * i].get_data(), lines[2 * i + 1].get_ydata()) for i, r in enumerate(PAPER)}


def test_the_default_rules_are_those_of_the_paper():
    assert [*PAPER] == [*[*EPSILONS][:2], Band("kl", 0.1), Band("tv", 0.1), Band("chi2", 0.1)]
    assert (Band("kl", 0.1), Clip(0.2, 0.28)) == PAIR


@pytest.mark.parametrize("region", EPSILONS, ids=str)
def test_variation_and_ratio_draw_the_formulas_of_the_paper(region):
    p, low, high = pairs("variation")[region]
    eps_low, eps_high = EPSILONS[region](p)
    np.testing.assert_allclose(low, -eps_low * p, atol=1e-12)
    np.testing.assert_allclose(high, eps_high * p, atol=1e-12)
    p, low, high = pairs("ratio")[region]
    eps_low, eps_high = EPSILONS[region](p)
    np.testing.assert_allclose(low, 1 - eps_low, atol=1e-12)
    np.testing.assert_allclose(high, 1 + eps_high, atol=1e-12)


def test_every_band_is_within_the_simplex_and_that_of_kl_is_where_kl_is_delta():
    for region, (p, low, high) in pairs("variation").items():
        if isinstance(region, Band):
            assert (low >= -p).all()
            assert (high <= 1 - p + 1e-15).all()
    p, low, high = (x[:380] for x in pairs("variation")[Band("kl", 0.1)])  # up to p = 0.95
    np.testing.assert_allclose(kl(p, p + high), 0.1, rtol=1e-6)
    rare = p > 0.02  # below it p + low is a rounding error
    np.testing.assert_allclose(kl(p, p + low)[rare], 0.1, rtol=1e-6)


def test_the_regions_are_those_of_both_rules_and_cover_the_surface():
    ax, _ = drawn("regions-3d")
    # Which kind each point of a grid is, as drawn, and by the definitions.
    p, q = np.meshgrid((np.arange(400) + 0.5) / 400, (np.arange(400) + 0.5) / 400)
    shown, corners = np.full(p.shape, -1), []
    for polygon in ax.collections:
        assert isinstance(polygon, Poly3DCollection)
        x, y, z = np.asarray(polygon._faces[0]).T
        np.testing.assert_allclose(x * z, y, atol=1e-12)  # on the surface
        corners.extend(x)
        inside = MplPath(np.column_stack([x, y])).contains_points(np.column_stack([p.flat, q.flat]))
        shown[inside.reshape(p.shape)] = CLASSES.index(to_hex(polygon._facecolor3d[0]))
    band, clip = kl(p, q) <= 0.1, (q >= 0.8 * p) & (q <= 1.28 * p)
    expected = np.select([q > 10 * p, band & clip, band, clip], [-1, 2, 0, 1], 3)
    assert (shown != expected).mean() < 1e-3
    # The surface has its corner at p = 1 / 10, and the borders theirs where the rules' bounds cross.
    low, high = 0.3, 0.75
    for _ in range(60):
        p = 0.5 * (low + high)
        low, high = (p, high) if kl(p, 1.28 * p) < 0.1 else (low, p)
    for corner in (0.1, low):
        assert min(abs(x - corner) for x in corners) < 1e-9


def test_the_command_takes_rules_and_prints_captions(tmp_path, capsys):
    main(["-o", str(tmp_path), "--only", "variation", "ratio", "--regions", "band:tv:0.3", "clip"])
    out = capsys.readouterr().out.splitlines()
    assert out[::2] == [f"{tmp_path / name}.pdf .svg .png" for name in ("variation", "ratio")]
    assert {path.stem for path in tmp_path.iterdir()} == {"variation", "ratio"}


def test_stretches_find_every_change_of_a_step_function():
    edges = torch.tensor([1e-9, 0.2, 0.203, 0.99], dtype=torch.float64)
    parts = stretches(lambda log_p: (log_p.exp()[..., None] > edges).sum(-1))
    assert [start for start, _, _ in parts] == pytest.approx([0, *edges.tolist()], rel=1e-12)
    assert [end for _, end, _ in parts] == pytest.approx([*edges.tolist(), 1], rel=1e-12)
    assert [value for _, _, value in parts] == [0, 1, 2, 3, 4]
    assert stretches(lambda log_p: torch.full_like(log_p, 7)) == [(0.0, 1.0, 7)]
