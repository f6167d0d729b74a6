"""The benchmark of the losses: that it runs."""

from scripts import load


def test_every_case_whose_cost_is_measured_runs():
    cost = load("research/measurements/cost.py")
    for call in cost.cases().values():
        call()
