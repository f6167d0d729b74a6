"""What a rule allows, in words and numbers, against numbers that are computed here by other means."""

import math
import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from commands import missing
from regions import parse_region

from bandpo import DCPO, Band, Bounds, BySign, Capped, Clip, Intersect, Objective, Region
from bandpo.explain import DEFAULT_P, explain, stops
from bandpo.losses.surrogates import SurrogateWeight
from bandpo.trust_regions import Relaxed
from oracle import exact_bounds

# [1 - eps, 1 + eps] of each rule by the formulas of the paper.
FORMULAS = {
    "band:tv:0.1": lambda p: (max(0, 1 - 0.1 / p), min(1 / p, 1 + 0.1 / p)),
    "band:chi2:0.1": lambda p: (
        max(0, 1 - math.sqrt(0.1 * (1 - p) / p)), min(1 / p, 1 + math.sqrt(0.1 * (1 - p) / p))
    ),
    "band:kl:0.05": lambda p: [math.exp(x) for x in exact_bounds("kl", math.log(p), 0.05)[:2]],
    "clip:0.2:0.28": lambda p: (0.8, 1.28),
    "dcpo:0.16:0.2:10": lambda p: (
        0.5 + 0.5 * math.sqrt(max(0, 1 - 0.64 / p)), min(10, 0.5 + 0.5 * math.sqrt(1 + 0.8 / p))
    ),
}  # fmt: skip


def rows(text):
    """The cells of the table of one rule."""
    table = text.split("\n\n")[1].splitlines()
    return [re.split(r" {2,}", row.strip()) for row in table[2:]]


def number(text):
    return 1 - float(text[4:]) if text.startswith("1 - ") else float(text)


def interval(text):
    return [number(part) for part in text.split(" to ")]


@pytest.mark.parametrize("word", FORMULAS)
def test_the_table_has_the_interval_in_probability_and_ratio(word):
    found = rows(explain(parse_region(word)))
    assert [number(row[0]) for row in found] == list(DEFAULT_P)
    digits = {"rel": 6e-4, "abs": 1e-12}
    for p, new, ratio, _ in found:
        p = number(p)
        low, high = FORMULAS[word](p)
        assert interval(ratio) == pytest.approx([low, high], **digits)
        assert interval(new) == pytest.approx([low * p, min(1, high * p)], **digits)


WIDE = [
    ["band:kl:0.05", "--vs", "clip:0.2:0.28"],
    ["{type: by_sign, positive: {type: band, delta: 0.0123}, negative: {type: clip, eps_low: 0.123}}", "--vs", "gspo"],
    [
        "{type: relaxed, inner: {type: band}, outer: {type: clip, eps_high: 0.28}}",
        "--vs",
        "{type: capped, region: {type: band, divergence: chi2}}",
    ],
    ["ce-gppo", "--vs", "dgpo", "--p", "0.123456,0.99999"],
]


@pytest.mark.parametrize("args", WIDE, ids=range(len(WIDE)))
@pytest.mark.parametrize(("columns", "most"), [(None, 100), ("80", 80)])
def test_lines_are_as_wide_as_the_terminal_and_no_word_is_lost(monkeypatch, cli, args, columns, most):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError))
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    narrow = cli.out("explain", *args)
    assert max(map(len, narrow.splitlines())) <= most
    monkeypatch.setenv("COLUMNS", "1000")
    one, other = ({*text.replace(":", "").split()} for text in (narrow, cli.out("explain", *args)))
    assert one == other


def test_numbers_near_the_ends_are_told_from_0_and_1():
    text = explain(Band("kl", 0.05), [0.001, 0.99, 1.0])
    assert not missing(text, "7.099e-26 to 0.05355", "0.9219 to 1 - 2.5e-05")
    assert not re.search(r"\s-0\s", text)


@pytest.mark.parametrize(
    ("region", "p", "below", "above"),
    [
        (Clip(0.2, 0.28), 0.5, "clip", "clip"),
        (Clip(0.2, 0.28), 0.79, "clip", "simplex"),  # 1.28 p > 1
        (Clip(1.0, math.inf), 0.5, "simplex", "simplex"),
        (Band("tv", 0.1), 0.09, "simplex", "band"),  # saturated for p <= delta (prop:saturation)
        (Band("tv", 0.1), 0.11, "band", "band"),
        (Band("tv", 0.1), 0.91, "band", "simplex"),
        (Band("chi2", 0.1), 0.09, "simplex", "band"),  # p / (1 - p) <= delta
        (Band("chi2", 0.1), 0.92, "band", "simplex"),  # (1 - p) / p <= delta
        (Band("kl", 0.05), 0.001, "band", "band"),
        (Band("kl", 0.05), 0.99, "band", "band"),
        (DCPO(0.16, 0.2), 0.003, "dcpo", "dcpo"),
        (Capped(Band("kl", 0.05), 10.0), 0.0070, "band", "capped"),
        (Capped(Band("kl", 0.05), 10.0), 0.0072, "band", "band"),
        (Capped(Clip(0.2, 20.0), 10.0), 0.5, "clip", "simplex"),  # 1/p = 2 comes before the cap
        (Relaxed(Band("kl", 0.05), Clip(0.2, 0.28)), 0.5, "inner band", "inner band"),
        (Relaxed(Band("kl", 0.05), Clip(0.2, 0.28)), 0.6, "inner band", "outer clip"),
        (Relaxed(Clip(0.2, 0.28), Band("kl", 0.05)), 0.6, "outer band", "inner clip"),
        (Relaxed(Capped(Band("kl", 0.05), 10.0), Clip()), 0.001, "inner band", "inner capped"),
        (Relaxed(Capped(Band("kl", 0.05), 10.0), Clip()), 0.1, "inner band", "inner band"),
        (Intersect(Band("kl", 0.05), Clip(0.2, 0.28)), 0.001, "second clip", "second clip"),
        (Intersect(Band("kl", 0.05), Clip(0.2, 0.28)), 0.6, "second clip", "first band"),
    ],
)
def test_what_stops_a_token_is_named(region, p, below, above):
    assert stops(region, torch.tensor([p], dtype=torch.float64).log()) == [(below, above)]
    text = explain(region, [p])
    assert rows(text)[0][-1] == (below if below == above else f"{below} / {above}")
    for reason in {below, above}:
        assert f"\n  {reason}: " in text


@dataclass(frozen=True)
class OfAShape(Region):
    """A clip of one's own that reads the shape."""

    kind: ClassVar[str] = "of_a_shape"

    def bounds(self, old_logps, context=None):
        _, length = old_logps.shape
        width = old_logps.new_full((), 0.1 * length).expand_as(old_logps)
        return Bounds(-width, width)


def test_a_rule_of_ones_own_may_read_the_shape_and_is_named_by_its_kind():
    text = explain(OfAShape(), [0.1], Clip(0.2, 0.2))
    assert re.search(r"OfAShape +0\.09048 to 0\.1105  0\.9048 to 1\.105  of_a_shape\n", text)
    assert "\n  of_a_shape: the rule itself\n" in text


@dataclass(frozen=True)
class Squared(SurrogateWeight):
    kind: ClassVar[str] = "squared"

    def weight(self, s, edge, up):
        return torch.exp(2 * (edge - s))


@dataclass(frozen=True)
class Gate(SurrogateWeight):
    kind: ClassVar[str] = "gate"
    has_bounds: ClassVar[bool] = False

    def weight(self, s, edge, up):
        return s.sigmoid()


def test_an_application_of_ones_own_is_told_by_its_weight():
    text = explain(Objective(Clip(0.2, 0.2), surrogate=(Squared(), "clip")), [0.1])
    assert "\n    where A >= 0: of a surrogate of your own, with the weight Squared\n" in text
    text = explain(Objective(Clip(1.0, math.inf), surrogate=Gate()), [0.1])
    assert "\n    where A < 0: of a surrogate of your own, with the weight Gate\n" in text


def test_two_rules_are_set_side_by_side():
    table = explain(Band("kl", 0.05), [0.08, 0.5], Clip(0.2, 0.28)).split("\n\n")[1].splitlines()
    assert [re.split(r" {2,}", row.strip())[:2] for row in table[1::2]] == [
        ["0.08", "Band-KL 0.05"],
        ["0.5", "Band-KL 0.05"],
    ]
    assert [row.split("  ")[0].strip() for row in table[2::2]] == ["", ""]


def test_what_stands_for_several_of_its_rules_is_said_once():
    rule = BySign(Band("kl", 0.1), Capped(Band()))
    assert explain(rule, [0.1]).splitlines().count("  kl: KL(pi_old || pi)") == 1
    both = explain(BySign(Band(), Band("tv")), [0.1]).splitlines()
    assert both[1:3] == ["  kl: KL(pi_old || pi)", "  tv: TV(pi, pi_old)"]
