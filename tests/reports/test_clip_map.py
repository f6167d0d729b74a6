"""The clip map: its dots, its lines and its numbers are those of the tokens and of the rule, counted here."""

import html
import json
import math
import re

import numpy as np
import pytest
import torch
from regions import Wider

from bandpo import Band, Clip
from bandpo.errors import UserError
from bandpo_runs.cli import main
from bandpo_runs.reports.charts import INK
from bandpo_runs.reports.clip_map import clip_map, draw_map
from bandpo_runs.reports.templates import LIGHT
from bandpo_runs.reports.tokens import Tokens

NAMES = {"below": LIGHT[0], "above": LIGHT[1], "inside": INK}


def tokens(count=300, seed=0):
    generator = np.random.default_rng(seed)
    old = np.log(generator.beta(0.7, 0.4, count).clip(1e-3, 0.999))
    ratio = np.minimum(0.4 * generator.standard_normal(count), -0.9 * old)
    return Tokens(old, ratio, generator.standard_normal(count), np.arange(count) // 10, {})


def drawn(picture):
    """The places in pixels of what is drawn in each colour: dots by their beginnings, and both lines."""
    found = {}
    colours = ("var(--c0)", "var(--c1)", "var(--ink)", "var(--c2)")
    for colour, name in zip(colours, ("below", "above", "inside", "lines"), strict=True):
        paths = re.findall(r'<path d="([^"]*)"[^>]*style="fill: none; stroke: ' + re.escape(colour), str(picture))
        found[name] = [np.array(re.findall(r"([ML]) (\S+) (\S+)", path)) for path in paths]
    return found


def values(points, top):
    """Logit of the old probability and log-ratio."""
    ends = math.log(1e-4 / (1 - 1e-4)), math.log((1 - 1e-4) / 1e-4)
    x, y = points[:, 1].astype(float), points[:, 2].astype(float)
    return ends[0] + (x - 46) / 306 * (ends[1] - ends[0]), ((262 - y) / 234 * 2 - 1) * top


@pytest.mark.parametrize("region", [Clip(0.2, 0.2), Band("kl", 0.05)])
def test_dots_and_lines_are_where_tokens_and_bounds_are(region):
    made = tokens()
    of_map = clip_map(made, region)
    found, (label, picture, words) = of_map.found, draw_map(of_map)
    p, r = np.exp(made.old), np.exp(made.log_ratio)
    if isinstance(region, Clip):
        above, below = r > 1.2, r < 0.8
    else:  # KL of two points, where the new probability of the token is r p
        q = (r * p).clip(1e-300, 1 - 1e-15)
        far = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)) > 0.05
        above, below = far & (r > 1), far & (r < 1)
    expected = {"above": above, "below": below, "inside": ~(above | below)}
    top = np.clip(1.3 * np.quantile(np.abs(made.log_ratio), 0.999), 0.25, 3.4)
    places = drawn(picture)
    for name, of in expected.items():
        # The grid lines and the frame have other strokes; the dots of a colour are the longest path.
        points = max(places[name], key=len)
        points = points[points[:, 0] == "M"]
        x, y = values(points, top)
        assert len(x) == of.sum() > 10
        np.testing.assert_allclose(x, (made.old - np.log1p(-p))[of], atol=2e-3)
        np.testing.assert_allclose(y, made.log_ratio[of], atol=2e-3)
    for line, upper in zip(places["lines"], (False, True), strict=True):
        x, y = values(line, top)
        bounds = region.bounds(torch.from_numpy(-np.log1p(np.exp(-x))))
        at = (bounds.log_high if upper else bounds.log_low).numpy()
        near = np.abs(at) < top
        assert near.sum() >= 2  # a straight line has few points
        np.testing.assert_allclose(y[near], at[near], atol=0.02)
    shares = [100 * x.mean() for x in (above | below, above, below)] + [100 * (p[above | below] <= 0.2).mean()]
    assert [100 * x for x in (found.rate, found.high, found.low, found.rare)] == pytest.approx(shares)
    said = [f"{share:.3g} %" for share in shares]
    assert words.startswith(f"Of 300 tokens {label} has {said[0]} outside: {said[1]} above its interval (orange) and")
    assert f"and {said[2]} below (blue). {said[3]} of these are rare" in words
    assert "drawn" not in words


def test_of_many_tokens_some_are_drawn_and_far_ones_stand_on_the_frame():
    many = tokens(6000)
    many.log_ratio[:60] = -50.0
    of_map = clip_map(many, Clip(0.2, 0.2))
    found, (_, picture, words) = of_map.found, draw_map(of_map)
    assert "2,500 random tokens are drawn." in words
    points = {name: max(paths, key=len) for name, paths in drawn(picture).items() if name != "lines"}
    assert sum((path[:, 0] == "M").sum() for path in points.values()) == 2500
    assert points["below"][:, 2].astype(float).max() == pytest.approx(262)
    assert found.rate == pytest.approx((np.abs(np.expm1(many.log_ratio)) > 0.2).mean())


def test_a_rule_that_needs_more_is_refused():
    with pytest.raises(UserError, match="needs more than old log-probabilities and advantages"):
        clip_map(tokens(), Wider())


def table(page):
    """The cells of the rows of the map's table, by rule."""
    part = page.split("Shares of the tokens</caption>")[1].split("</table>")[0]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', part, re.DOTALL)
    return {html.unescape(name): re.findall(r"<td>(.*?)</td>", cells) for name, cells in rows}


@pytest.mark.parametrize("more", [[], ["--cut"], ["--rate", "0.05"]])
def test_the_map_of_calibrate_has_its_numbers(tmp_path, monkeypatch, capsys, more):
    monkeypatch.chdir(tmp_path)
    made = tokens(3000)
    with (tmp_path / "tokens.jsonl").open("w") as file:
        for parts in zip(*(np.split(x, 300) for x in (made.old, made.log_ratio, made.advantages)), strict=True):
            old, ratio, advantages = parts
            row = {"old_logps": old, "logps": old + ratio, "advantages": advantages}
            file.write(json.dumps({name: x.tolist() for name, x in row.items()}) + "\n")
        file.write('{"old_logps": [-0.1], "lo')  # the run goes on
    command = ["calibrate", "tokens.jsonl", "--rule", "band-kl,ripo,clip:0.0001:0.2", "--map", "new/map.html", *more]
    assert main([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    page = (tmp_path / "new" / "map.html").read_text()
    rules = [data["reference"]] * (data["reference"] is not None)
    rules += [each["measured"] for each in data["rules"] if each["measured"]]
    shown = [
        [f"{data['tokens']:,}", *(f"{100 * rule[name]:.3g} %" for name in ("rate", "high", "low", "rare"))]
        for rule in rules
    ]
    assert list(table(page).values()) == shown
    assert list(table(page)) == [rule["label"] for rule in rules]
    assert len(re.findall("<figure>", page)) == 2
    assert ('<th scope="col">cut' in page) == ("--cut" in more)
    assert "default-src 'none'" in page
    assert not re.search(r"\bsrc=|\bhref=\"(?!#)|<script", page)
    assert main(command) == 0
    assert capsys.readouterr().out.endswith("\nnew/map.html\n")
