"""Rules in words, there and back."""

import contextlib
import dataclasses
import math

import pytest
from regions import IN_YAML, Wider, parse_region

from bandpo import DCPO, Band, BySign, Capped, Clip
from bandpo.band import Divergence
from bandpo.trust_regions import RIPO, Relaxed

WORDS = {
    "clip": Clip(0.2, 0.2),
    "clip:0.2:0.28": Clip(0.2, 0.28),
    "clip:1:inf": Clip(1.0, math.inf),
    "dcpo:0.2:0.28": DCPO(0.2, 0.28, 10.0),
    "dcpo:0.2:0.28:inf": DCPO(0.2, 0.28, math.inf),
    "band:tv": Band("tv", 0.05),
    "band:kl:1e-3": Band("kl", 0.001),
    "{type: band, delta_low: 0.01, delta_high: 0.1}": Band("kl", 0.05, 0.01, 0.1),
    "{type: band, divergence: chi2, delta: 0.1}": Band("chi2", 0.1),
    "ripo:0.1": RIPO(0.1),
    "type: clip": Clip(0.2, 0.2),
    "Band:KL:0.1": Band("kl", 0.1),
    "{type: Band, divergence: TV}": Band("tv"),
    "{type: capped, region: {type: band}, max_ratio: 3}": Capped(Band(), 3.0),
}


@pytest.mark.parametrize(("text", "region"), WORDS.items(), ids=WORDS)
def test_a_text_is_its_rule(text, region):
    assert parse_region(text) == region
    assert parse_region(str(region.to_config()).replace("'", "")) == region  # what to_config writes is such a text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bnd:kl:0.05", "no trust region type is called 'bnd', did you mean 'band'? `bandpo methods` lists all"),
        ("band:chi:0.05", "divergence must be one of ['chi2', "),
        ("band:kl:-1", "delta of Band must be a number in (0, inf), got '-1'"),
        ("clip:0.2:0.28:3", "'clip:0.2:0.28:3' has more than the fields of clip:eps_low:eps_high"),
        ("capped", "trust region 'capped' lacks region; it has ['region', 'max_ratio']"),
        ("capped:band:kl:0.05:10", "'capped:band:kl:0.05:10' has more than the fields of "
         "{type: capped, region: {type: band}, max_ratio: ...}"),
        ("relaxed:band", "trust region 'relaxed' lacks outer; it has ['inner', 'outer']"),
        ("relaxed:band:kl", "inner of Relaxed must be a trust region, got 'band'; a rule is written"),
        ("", "no trust region type is called ''; `bandpo methods` lists all"),
        ("{type: band", "a rule is a short word such as band:kl:0.05 or a YAML node"),
        ("clip/0.2", "no trust region type is called 'clip/0.2', did you mean 'clip'?"),
        ("[band, kl]", "no trust region type is called '[band, kl]'"),
        ("{type: band, dleta: 1}", "unknown key 'dleta' in trust region 'band', did you mean 'delta'?"),
    ],
)  # fmt: skip
def test_a_wrong_text_is_named_with_what_is_allowed(text, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse_region(text)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def numbers(thing):
    """The numbers in a rule: what it is with each of them a little smaller."""
    for field in dataclasses.fields(thing):
        value = getattr(thing, field.name)
        if not field.init or isinstance(value, bool):
            continue
        changed = [0.99 * value] if isinstance(value, float) else [value + 1] if isinstance(value, int) else []
        for each in changed if not dataclasses.is_dataclass(value) else numbers(value):
            with contextlib.suppress(ValueError):  # a number that may not be another one
                yield dataclasses.replace(thing, **{field.name: each})


@pytest.mark.parametrize("region", [*IN_YAML, *WORDS.values()], ids=lambda region: region.label)
def test_a_rule_with_another_number_has_another_label(region):
    same = [each for each in numbers(region) if each != region and each.label == region.label]
    assert all(each.delta_low and each.delta_high for each in same)  # a band whose delta is that of neither side


LABELS = {
    **dict(zip(list(WORDS.values())[:5], ["GRPO 0.2/0.2", "Clip-Higher 0.2/0.28", "No clip", "DCPO 0.2/0.28",
                                          "DCPO 0.2/0.28 cap inf"], strict=True)),
    Capped(Band("kl", 0.05), 20.0): "Band-KL 0.05 cap 20.0",
    Relaxed(Band("kl", 0.05), Clip(0.2, 0.28)): "Relaxed Band-KL 0.05",
    WORDS["{type: band, delta_low: 0.01, delta_high: 0.1}"]: "Band-KL 0.01/0.1",
    Band("jensen_shannon"): "Band-jensen_shannon 0.05",
    Band("kl", 0.1, 0.05, 0.05): "Band-KL 0.05",
    Band(Divergence("kl", lambda u: (u - 1) ** 2)): "Band-kl (own) 0.05",
    RIPO(0.1): "RIPO 0.1",
    Wider(0.3): "Wider 0.3",
    BySign(Clip(0, 0), Band()): "Ratio 1 for A >= 0, Band-KL 0.05 for A < 0",
}  # fmt: skip


def test_a_label_says_what_the_rule_is():
    assert {rule: rule.label for rule in LABELS} == LABELS
    cap_of_both, cap_of_one = Capped(Relaxed(Band(), Clip(0.1, 0.1)), 3), Relaxed(Band(), Capped(Clip(0.1, 0.1), 3))
    assert cap_of_both.label != cap_of_one.label
