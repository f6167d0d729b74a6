"""The choice is made on some seeds and judged on others; a comparison that is not fair is refused."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import scipy.stats
from contests import node_of

from bandpo.errors import UserError
from research.bench.cells import run_cells
from research.bench.choosing import Judged, compare, decide
from research.bench.reading import make_contest
from research.bench.widening import widened
from research.statistics import extinction_rate


def run(cells, what, more=False):
    return {each.key: run_cells([each])[0] for each in cells}


def only_table(results) -> Any:
    (table,) = results.tables.values()
    return {one.judged.family: one for one in table}


def test_the_best_setting_of_each_family_is_found(small, worlds):
    table = only_table(decide(small, run))
    assert table["clip"].judged.point == {"up": 0.4, "learning_rate": 0.02}
    assert table["band"].judged.point == {"delta": 0.01, "learning_rate": 0.02}
    assert table["clip"].judged.searched == 15
    assert (table["clip"].judged.more, table["clip"].judged.edges) == (0, ())


def test_the_choice_is_that_of_the_second_stage_among_the_best_of_the_first(worlds):
    """By hand, from the rows; with noise that makes the two stages disagree."""
    seen = {}
    worlds.noise = 0.2

    def spying(cells, what, more=False):
        seen.setdefault(what, []).extend(cells)
        return run(cells, what)

    table = only_table(decide(make_contest(node_of(widen=False)), spying))
    assert {what: {each.seeds for each in cells} for what, cells in seen.items()} == {
        "search": {range(4)}, "choice": {range(100, 106)}, "judging": {range(1000, 1040)},
    }  # fmt: skip
    assert {what: len(cells) for what, cells in seen.items()} == {"search": 30, "choice": 6, "judging": 2}

    def best(cells, count):
        means = {each.learner: np.mean(run_cells([each])[0]["final"]) for each in cells}
        return sorted(means, key=lambda learner: -means[learner])[:count]

    assert {each.learner for each in seen["choice"][:3]} == set(best(seen["search"][:15], 3))
    assert seen["judging"][0].learner == best(seen["choice"][:3], 1)[0] != best(seen["search"][:15], 1)[0]
    judged = run_cells([seen["judging"][0]])[0]["final"]
    assert table["clip"].value.value == pytest.approx(np.mean(judged))


def test_a_choice_at_an_edge_widens_the_grid_once_and_that_is_told(worlds):
    worlds.best_up = 1000.0
    contest = make_contest(node_of())
    table = only_table(decide(contest, run))
    clip = table["clip"].judged
    assert clip.point["up"] == pytest.approx(3.2)  # a third of five values: one more, at the same ratio
    assert (clip.searched, clip.more) == (15, 3)
    assert clip.edges == (
        "up was at the edge of its grid, which was widened up to 3.2",
        "up is at the upper edge of its grid",
    )
    assert table["band"].judged.edges == ()
    narrow = only_table(decide(make_contest(node_of(widen=False)), run))["clip"].judged
    assert (narrow.point["up"], narrow.more) == (1.6, 0)
    assert narrow.edges == ("up is at the upper edge of its grid",)


def test_a_wider_grid_is_searched_around_the_choice(worlds):
    """Not the whole product of longer axes, which would be a search of several times as many settings."""
    worlds.best_up = 1000.0
    node = node_of(learning_rates=[0.001, 0.002])
    node["families"] = [{
        "name": "clip", "objective": {"type": "clip", "eps_low": "$low", "eps_high": "$up"},
        "grid": {"low": [0.1, 0.2, 0.3], "up": [0.1, 0.2, 0.4, 0.8]},
    }]  # fmt: skip
    seen = []

    def spying(cells, what, more=False):
        seen.extend(each for each in cells if what == "wider grids" and each.first == 0)
        return run(cells, what)

    clip = only_table(decide(make_contest(node), spying))["clip"].judged
    points = [json.loads(each.learner) for each in seen]
    regions = [(each["objective"]["trust_region"], each["learning_rate"]) for each in points]
    low = clip.point["low"]  # of which the result does not depend; the first is taken
    lows = {low} if low == 0.2 else {low, 0.05 if low == 0.1 else 0.45}
    assert {(r["eps_high"], rate) for r, rate in regions} == {
        (up, rate) for up in (0.8, 1.6) for rate in (0.001, 0.002, 0.004)
    }
    assert {r.get("eps_low", 0.2) for r, _ in regions} == lows
    assert clip.point["up"] == 1.6
    assert clip.point["learning_rate"] == 0.004
    assert clip.more == len(points) == 6 * len(lows) - 2


def test_beyond_two_edges_only_settings_that_are_allowed_together_are_tried():
    axes = {"low": (0.05, 0.1), "high": (0.3, 0.45), "learning_rate": (0.02,)}
    chosen: dict[str, Any] = {"low": 0.1, "high": 0.3, "learning_rate": 0.02}
    points = widened(axes, chosen, lambda point: float(point["low"]) < float(point["high"])).points
    assert [(point["low"], point["high"]) for point in points] == [(0.1, 0.3), (0.1, 0.2), (0.2, 0.3)]


def test_one_setting_for_all_worlds_or_one_for_each(worlds):
    """In storm the best upper side is another one."""

    def by_world(cells, what, more=False):
        rows = {}
        for each in cells:
            worlds.best_up = 0.1 if "storm" in each.world else 0.4
            rows[each.key] = run_cells([each])[0]
        return rows

    node = node_of(worlds=["rare and noisy", {"base": "storm", "flip": 0.2}])
    joint = decide(make_contest(node), by_world)
    assert list(joint.tables) == [(("rare and noisy", "storm, flip 0.2"), "none")]
    clip = {one.judged.family: one for one in joint.table(("rare and noisy", "storm, flip 0.2"), "none")}["clip"]
    assert clip.judged.point["up"] == 0.2
    assert clip.judged.values["final"].shape == (2, 40)
    apart = decide(make_contest({**node, "per_world": True}), by_world)
    points = [next(o for o in table if o.judged.family == "clip").judged.point["up"] for table in apart.tables.values()]
    assert points == [0.4, 0.1]


def test_every_control_has_its_own_choice_and_its_own_baseline(worlds):
    controls = [{"name": "none"}, {"name": "weight", "positive_weight": 0.95}]
    results = decide(make_contest(node_of(controls=controls)), run)
    assert list(results.tables) == [(("rare and noisy",), "none"), (("rare and noisy",), "weight")]
    tables: list[Any] = [{one.judged.family: one for one in table} for table in results.tables.values()]
    plain, weighted = tables
    assert weighted["clip"].value.value - plain["clip"].value.value == pytest.approx(0.1, abs=0.02)
    assert abs(weighted["band"].difference.value) < 0.02  # against the clip under the same control


def test_a_real_advantage_is_seen_and_none_is_not(small, worlds):
    worlds.band = 0.03
    band = only_table(decide(small, run))["band"]
    assert band.difference.low < 0.03 < band.difference.high
    assert band.difference.low > 0.02  # the noise of a seed is shared: unpaired it would be .05 sqrt(2 / 40) = .011
    assert band.p_adjusted < 0.001
    assert 0.9 > band.better > 0.5
    worlds.band = 0.0
    band = only_table(decide(small, run))["band"]
    assert band.difference.low < 0 < band.difference.high
    assert band.p_adjusted > 0.05


def judged(family="clip", **changes):
    values = {"final": np.linspace(0, 1, 40)[None], "half": np.full((1, 40), 5.0)}
    values = changes.pop("values", values)
    values = {"work": values["final"], **values}
    made = Judged(
        family, "none", ("rare and noisy",), {"learning_rate": 0.1}, 15, 0, (range(4), range(100, 106)),
        range(1000, 1040), 0.4, (), ("a key",), values,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)


def test_lost_runs_and_differences_by_hand():
    other = judged("band", values={"final": np.linspace(0, 1, 40)[None] + 0.1, "half": np.full((1, 40), 7.0)})
    by_family: dict[str, Any] = {one.judged.family: one for one in compare([judged(), other], "clip", "final", 0.5)}
    assert [*by_family] == ["band", "clip"]  # the best first
    assert by_family["clip"].lost.value == 0.5
    assert by_family["band"].lost.value == 0.4
    assert tuple(by_family["band"].difference) == pytest.approx((0.1, 0.1, 0.1))
    assert (by_family["clip"].difference, by_family["clip"].p) == (None, None)
    assert (by_family["clip"].half, by_family["band"].half) == (5, 7)


def two_worlds(family, first, second, **others):
    values = {name: np.stack(pair) for name, pair in {"final": (first, second), **others}.items()}
    return judged(family, worlds=("rare and noisy", "storm"), seeds=range(1000, 1000 + len(first)), values=values)


def test_worlds_that_share_seeds_are_not_independent():
    """A second world with the same numbers tells nothing new: every interval stays as wide."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(0.6, 0.2, (2, 40))
    once = compare([judged(values={"final": y[None]}), judged("band", values={"final": x[None]})], "clip", "final", 0.5)
    twice = compare([two_worlds("clip", y, y), two_worlds("band", x, x)], "clip", "final", 0.5)
    for one, two in zip(once, twice, strict=True):
        for name in ("value", "difference"):
            if getattr(one, name) is not None:
                assert tuple(getattr(two, name)) == pytest.approx(tuple(getattr(one, name)))
        assert (two.p, two.p_adjusted) == (one.p, one.p_adjusted)
        lost = int((one.judged.values["work"] < 0.5).sum())
        assert two.lost.value == one.lost.value == lost / 40
        assert one.lost == extinction_rate(one.judged.values["work"], 0.5)
        ends = scipy.stats.binom(40, lost / 40).ppf([0.025, 0.975]) / 40  # of 80 it would be narrower
        assert tuple(two.lost[1:]) == pytest.approx(tuple(ends), abs=0.026)
        assert two.lost.high - two.lost.low > 0.9 * (one.lost.high - one.lost.low)


def test_the_test_of_swapping_takes_all_worlds():
    """Of 8 seeds none differs in the first world and all do in the second: 2 of the 2^8 ways are as far."""
    same, more = np.full(8, 0.5), np.linspace(0.1, 0.2, 8)
    compared = compare([two_worlds("clip", same, same), two_worlds("band", same, same + more)], "clip", "final", 0.5)
    assert compared[0].p == 2 / 2**8
    compared = compare(
        [two_worlds("clip", same, same), two_worlds("band", same + more, same - more)], "clip", "final", 0.5
    )
    assert next(one.p for one in compared if one.p is not None) == 1  # better in one world, as much worse in the other


def test_a_run_is_lost_by_its_rare_strategy_whatever_it_earns_and_whatever_is_compared():
    final = np.linspace(0, 1, 40)[None]
    work = np.repeat([0.049, 0.05, 0.9], [4, 16, 20])[None]
    one = judged(values={"final": final, "mean": final / 10, "work": work})
    other = judged("band", values={"final": final + 0.1, "mean": final / 10 + 0.01, "work": 2 * work})
    by_family: dict[str, Any] = {each.judged.family: each for each in compare([one, other], "clip", "mean", 0.05)}
    assert (by_family["clip"].lost.value, by_family["band"].lost.value) == (0.1, 0.0)
    assert by_family["band"].difference.value == pytest.approx(0.01)
    assert by_family["clip"].value.value == pytest.approx(0.05)


def test_a_reward_that_is_not_finite_counts_as_0_and_another_number_not(worlds):
    def broken(cells, what, more=False):
        rows = run(cells, what)
        for each in cells:
            if what == "judging" and '"band"' in each.learner:
                row = rows[each.key]
                changed = {"final": 1.0, "half": 12.0, "work": 0.9}
                rows[each.key] = {**row, **{name: [None] * 10 + [x] * 30 for name, x in changed.items()}}
            if what == "search" and '"eps_high": 0.4' in each.learner:  # the best but for this
                rows[each.key] = {**rows[each.key], "final": [None, *rows[each.key]["final"][1:]]}
        return rows

    table = only_table(decide(make_contest(node_of(widen=False)), broken))
    assert (table["band"].value.value, table["band"].lost.value, table["band"].half) == (0.75, 0.25, 12)
    assert table["clip"].judged.point["up"] != 0.4


def test_p_values_are_adjusted_for_the_number_of_families():
    rng = np.random.default_rng(0)
    others = [
        judged(f"{i}", values={"final": judged().values["final"] + rng.normal(0.01 * i, 0.03, (1, 40))})
        for i in range(3)
    ]
    by_family: dict[str, Any] = {one.judged.family: one for one in compare([judged(), *others], "clip", "final", 0.5)}
    assert by_family["2"].p_adjusted == pytest.approx(3 * by_family["2"].p)
    assert by_family["0"].p_adjusted >= by_family["1"].p_adjusted >= by_family["2"].p_adjusted


UNFAIR = {
    "other seeds": ({"seeds": range(1001, 1041)}, "one was judged on seeds 1001 to 1040, the other on 1000 to 1039"),
    "another search": ({"searched": 60}, "60 settings were tried of one, and 15 of the other"),
    "another control": (
        {"control": "weight"}, "one ran under 'weight' in rare and noisy, the other under 'none' in rare and noisy",
    ),
    "another world": ({"worlds": ("storm",)}, "one ran under 'none' in storm"),
    "chosen by what it is judged by": (
        {"chosen_by": (range(4), range(1030, 1040))}, "seeds 1000 to 1039 overlap 1030 to 1039, by which",
    ),
    "chosen by others": ({"chosen_by": (range(4), range(200, 206))}, "chosen by different seeds"),
    "fewer runs": ({"values": {"final": np.zeros((1, 39))}}, r"has \(1, 39\) numbers for 40 seeds"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNFAIR)
def test_an_unfair_comparison_is_refused(name):
    changes, told = UNFAIR[name]
    with pytest.raises(UserError, match=f"band and clip cannot be compared: .*{told}"):
        compare([judged(), judged("band", **changes)], "clip", "final", 0.5)


@pytest.mark.parametrize("stage", ["search", "choice", "judging"])
def test_a_method_that_is_secretly_given_better_seeds_is_detected(small, worlds, stage):
    """Of a hundred seeds those on which it does best: an advantage of more than a standard deviation of the noise."""

    def planted(cells, what, more=False):
        rows = run(cells, what)
        for each in cells:
            if what == stage and '"band"' in each.learner:
                starts = range(each.first, each.first + 100)
                tried = [run_cells([dataclasses.replace(each, first=start)])[0] for start in starts]
                rows[each.key] = max(tried[1:], key=lambda row: np.mean(row["final"]))
        return rows

    with pytest.raises(UserError, match=r"band was run on seeds .* where all families must be run on"):
        decide(small, planted)


def test_without_its_baseline_nothing_is_compared():
    with pytest.raises(UserError, match="baseline 'none' is not among"):
        compare([judged()], "none", "final", 0.5)
