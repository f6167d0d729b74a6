"""A number of a rule that is steered by what is logged: the law, paths, states, and what is refused."""

import json
import math

import pytest
import torch

from bandpo import Band, BySign, Capped, Clip, Controller, Objective, policy_loss


def controller(path="delta", measure="clip/fraction", target=0.02, **changes):
    return Controller(path, measure, target, **{"low": 0.001, "high": 2.0, "gain": -0.1, "smoothing": 0.5} | changes)


def test_the_number_follows_its_law():
    """v <- v exp(gain e), e the error of the smoothed measure, at most 1 of its target, within both limits."""
    steered, rule, value, smoothed = controller(), Band("kl", 0.05), 0.05, 0.02
    for measured in (0.02, 0.03, 0.05, 0.9, 0.9, 0.0, 0.0, 0.01, math.nan, math.inf):
        rule = steered.step(rule, {"clip/fraction": measured, "other": 1.0})
        if math.isfinite(measured):
            smoothed = 0.5 * smoothed + 0.5 * measured
            value *= math.exp(-0.1 * max(-1.0, min(1.0, (0.02 - smoothed) / 0.02)))
        assert (rule.delta, steered.measured) == pytest.approx((value, smoothed), rel=1e-12)
    for measured, limit in ((1.0, 2.0), (0.0, 0.001)):
        for _ in range(200):
            rule = steered.step(rule, {"clip/fraction": measured})
        assert rule == Band("kl", limit)


@pytest.mark.parametrize(("gain", "slope"), [(-0.1, -1.0), (0.1, 1.0)])
def test_a_measure_that_answers_late_is_brought_to_its_target(gain, slope):
    steered, rule, late = controller(gain=gain, smoothing=0.9), Band("kl", 0.5), [0.02 * 10**slope] * 3
    for _ in range(400):
        rule = steered.step(rule, {"clip/fraction": late.pop(0)})
        late.append(0.02 * (rule.delta / 0.05) ** slope)
    assert rule.delta == pytest.approx(0.05, rel=0.02)


def test_a_target_below_zero_has_the_same_law():
    up = controller(target=-2.0, gain=0.1, smoothing=0.0).step(Band("kl", 0.05), {"clip/fraction": -3.0})
    assert up.delta == pytest.approx(0.05 * math.exp(0.05))


@pytest.mark.parametrize(
    ("path", "rule", "expected"),
    [
        ("eps_high", Clip(0.2, 0.3), Clip(0.2, 0.6)),
        (("eps_low", "eps_high"), Clip(0.3, 0.3), Clip(0.6, 0.6)),
        ("region.delta", Capped(Band("kl", 0.3), 5.0), Capped(Band("kl", 0.6), 5.0)),
        ("positive.region.delta_high", BySign(Capped(Band("tv", 0.1, delta_high=0.3)), Clip()),
         BySign(Capped(Band("tv", 0.1, delta_high=0.6)), Clip())),
        ("trust_region.eps_high", Objective(Clip(0.2, 0.3), dual_clip=3.0), Objective(Clip(0.2, 0.6), dual_clip=3.0)),
        ("positive_weight", Objective(positive_weight=0.3), Objective(positive_weight=0.6)),
    ],
)  # fmt: skip
def test_a_number_has_its_place_in_a_rule_or_an_objective(path, rule, expected):
    steered = controller(path, low=0.1, high=0.6, gain=-10.0, smoothing=0.0)
    assert steered.step(rule, {"clip/fraction": 1.0}) == expected


def test_a_loop_of_three_lines_holds_an_entropy():
    """The entropy of a policy under the loss itself, which rises as its upper clip gets wider."""
    steered, rule = Controller("eps_high", "entropy", 0.3, low=0.1, high=1.0, smoothing=0.0), Clip(0.2, 0.28)
    old, mask = torch.full((2, 4), -1.0), torch.ones(2, 4, dtype=torch.bool)
    for entropy, wider in ((0.2, True), (0.5, False)):
        _, metrics = policy_loss(old, old, torch.ones(2), mask, rule, extra={"entropies": torch.full((2, 4), entropy)})
        moved = steered.step(rule, metrics.compute())
        assert (moved.eps_high > rule.eps_high) == wider
        rule = moved


def test_a_state_that_went_through_json_goes_on_exactly():
    numbers = [{"clip/fraction": 0.001 * i} for i in range(40)]
    steered, resumed, rule = controller(), controller(), Band("kl", 0.05)
    for each in numbers[:17]:
        rule = steered.step(rule, each)
    resumed.load_state_dict(json.loads(json.dumps(steered.state_dict())))
    again = resumed.begin(Band("kl", 0.05))
    for each in numbers[17:]:
        assert again == rule
        rule, again = steered.step(rule, each), resumed.step(again, each)
    assert (again, resumed.state_dict()) == (rule, steered.state_dict())
    fresh = controller()
    fresh.load_state_dict(controller().state_dict())  # of a run that has not begun
    assert fresh.begin(Band("kl", 0.07)) == Band("kl", 0.07)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: controller(low=0.0), "low of Controller must be positive, got 0.0"),
        (lambda: controller(high=math.inf), "high of Controller must be finite, and above low = 0.001, got inf"),
        (lambda: controller(target=0.0), "target of Controller must be finite and not 0, got 0.0"),
        (lambda: controller(gain=math.nan), "gain of Controller must be finite and not 0, got nan"),
        (lambda: controller(smoothing=1.0), r"smoothing of Controller must be in \[0, 1\), got 1.0"),
        (
            lambda: controller().begin(Band("kl", 3.0)),
            r"begin with one number in \[0.001, 2\], got {'delta': 3.0}",
        ),
        (lambda: controller(("eps_low", "eps_high")).begin(Clip(0.2, 0.28)), "must begin with one number in"),
        (lambda: controller("eps_low").begin(Clip()), r"eps_low of Clip must be a number in \[0, 1\], got 2.0"),
        (lambda: controller("dleta").begin(Band()), r"'dleta' must name a number of Band\(.*got None"),
        (lambda: controller("divergence").begin(Band()), "'divergence' must name a number"),
        (lambda: controller("delta_low").begin(Band()), "'delta_low' must name a number"),
        (
            lambda: controller().step(Band(), {"entropy": 1.0}),
            r"must have 'clip/fraction', .* got \['entropy'\]",
        ),
        (lambda: controller().load_state_dict({"value": 0.05}), r"the state of a Controller must have a value in"),
        (lambda: controller().load_state_dict({"value": 3.0, "measured": 0.1}), r"the state of a Controller must"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()
