"""Does the test suite notice? Faults are planted in a copy of the core, one at a time, and a test has to fall.

    python benchmarks/mutations.py [--only NAME ...]    # all, or some
    python benchmarks/mutations.py --write              # and write the rows to benchmarks/mutations.csv
    python benchmarks/mutations.py --page               # research/pages/mutations.md from the rows

A fault is a small, plausible mistake: one text in the place of another, which must stand in its file exactly once. The
tests that fell must pass on a copy without a fault. Exits with 1 if a fault survives.
"""

import argparse
import csv
import itertools
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import mpmath  # noqa: F401
import pytest
import torch  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent
ROWS, PAGE = ROOT / "benchmarks" / "mutations.csv", ROOT / "research" / "pages" / "mutations.md"
COLUMNS = ["fault", "file", "test", "seconds", "commit"]
PACKAGES = ("src/bandpo", "src/bandpo_runs", "research")
COPIED = ("src", "research", "tests", "benchmarks", "docs", "recipes", "README.md", "pyproject.toml")
SURVIVED = "SURVIVED"
# It starts processes, for half a minute, and stands before most of its file.
SLOW = "tests/losses/test_policy.py::test_two_ranks_add_up_to_the_batch"

INTRODUCTION = """# Mutation check: does the test suite notice a fault in the core?

In short: it notices every one of them. Each row is a small fault that was put into the source by hand, and the test
that fell.

{planted} faults were planted, one at a time, each in a copy of the source; {caught} made a test fall. The test named is
the first to fall of those that were run for that fault, not the only one. The faults were chosen by hand: this is no
measure of coverage.

    python benchmarks/mutations.py --write    # plant them again; --only for a part
    python benchmarks/mutations.py --page     # this page from benchmarks/mutations.csv, which names the source's commit

| fault | file | text | became | first test to fall |
|---|---|---|---|---|"""


class Fault(NamedTuple):
    name: str
    file: str  # under one of PACKAGES; or a part of the explorer, under docs/
    old: str
    new: str
    tests: (
        str  # of the files tests/**/test_*.py, in this order; or one test, where those before it in its file are slow
    )


FAULTS = [
    # ---- numerics.py
    Fault(
        "e^x - 1 - x with its cancellation",
        "numerics.py",
        "torch.where(x.abs() < 0.5, 0.5 * x * x * series",
        "torch.where(x.abs() < 1e-4, 0.5 * x * x * series",
        "operator::test_every_divergence_agrees_with_its_definition_at_100_digits",
    ),
    Fault(
        "a saturation point rounded",
        "numerics.py",
        "float(exact - Decimal(float(exact)))",
        "0.0",
        "operator::test_lower_bound_is_accurate_to_the_last_ulp_before_it_saturates",
    ),
    # ---- band/solver.py
    Fault(
        "KL far out: the slope of the other side of the coin",
        "band/solver.py",
        "down - (delta - curved) * per_mu",
        "down - (delta - curved) * (odds * per_mu)",
        "operator::test_bounds_hold_far_outside_the_usual_radii",
    ),
    Fault(
        "Halley's step with the sign of its curvature",
        "band/solver.py",
        "denominator.addcmul_(numerator, x + mu, value=-1)",
        "denominator.addcmul_(numerator, x + mu, value=1)",
        "numerics operator",
    ),
    Fault(
        "KL in one step for two",
        "band/solver.py",
        "    up = up + _last_step(up, mu, nu, curved)[0]\n",
        "",
        "numerics operator",
    ),
    Fault(
        "KL: log Z not carried over the last step",
        "band/solver.py",
        "x.addcmul_(slope,",
        "x.addcmul_(0 * slope,",
        "numerics operator",
    ),
    Fault(
        "the last step of KL from a difference that cancels",
        "band/solver.py",
        "torch.where(t.abs() < 1, mu * excess(t) - excess(log_z), log_z - mu * t)",
        "log_z - mu * t",
        "numerics operator",
    ),
    Fault(
        "KL: below e^-300 r stays what it is, not r p",
        "band/solver.py",
        "log_high.sub_(beyond)",
        "log_high",
        "operator::test_bounds_go_on_below_the_probabilities_that_are_solved",
    ),
    Fault(
        "an own f keeps its linear part",
        "band/solver.py",
        "value = generator(x) - slope * expm1(x)",
        "value = generator(x)",
        "table::test_a_linear_part_does_not_keep_a_generator_from_its_table",
    ),
    Fault(
        "too few steps in float64",
        "band/solver.py",
        "torch.float64: 12}",
        "torch.float64: 4}",
        "table operator::test_every_divergence_agrees_with_its_definition_at_100_digits",
    ),
    Fault(
        "the bracket of the root begins where one term alone is delta",
        "band/solver.py",
        "log_delta - math.log(2)",
        "log_delta",
        "table operator",
    ),
    Fault(
        "the bracket ends at the knot below",
        "band/solver.py",
        "self.inverse[side][at.long() + end]",
        "self.inverse[side][at.long()]",
        "table operator",
    ),
    Fault(
        "saturation from half of delta on",
        "band/solver.py",
        "saturated = most <= delta",
        "saturated = most <= 2 * delta",
        "table",
    ),
    Fault(
        "an own f below e^-300: r instead of r p",
        "band/solver.py",
        "torch.where(rare, up_r - rise * beyond, down_c)",
        "torch.where(rare, up_r, down_c)",
        "operator::test_bounds_go_on_below_the_probabilities_that_are_solved",
    ),
    # ---- band/table.py
    Fault(
        "a table that does not fit is used",
        "band/table.py",
        "_TOLERANCE, _ROUNDING = 2.0**-24",
        "_TOLERANCE, _ROUNDING = 2.0**-9",
        "table",
    ),
    Fault(
        "the cell at the edge is not the first",
        "numerics.py",
        ".clamp_(2.0**self.first, last)",
        ".clamp_(max=last)",
        "table",
    ),
    Fault(
        "the table below e^-300 turns the wrong way",
        "band/table.py",
        "log_high.sub_(rise * beyond)",
        "log_high.add_(rise * beyond)",
        "table",
    ),
    # ---- what is kept, and what is checked
    Fault(
        "what is kept is made under the mode of its first user",
        "numerics.py",
        "torch.no_grad(), _disable_current_modes(), torch",
        "torch.no_grad(), torch",
        "table::test_nothing_made_under_a_mode_of_torch_is_kept",
    ),
    Fault(
        "secants at kinks, for radii in tensors",
        "band/dispatch.py",
        "_is_smooth(kind) if smooth is None else smooth",
        "True if smooth is None else smooth",
        "table::test_bounds_at_kinks_are_bisected_where_the_radius_is_a_tensor",
    ),
    Fault(
        "float64 is looked up in the table of float32",
        "band/dispatch.py",
        "if table.fits and log_p.dtype == torch.float32:",
        "if table.fits:",
        "operator::test_every_divergence_agrees_with_its_definition_at_100_digits",
    ),
    Fault(
        "what was made of a divergence is kept by its name",
        "band/dispatch.py",
        "key = (id(kind), what)",
        "key = (kind.name, what)",
        "table::test_two_divergences_of_one_name_are_told_apart",
    ),
    Fault(
        "a table is kept for whatever radius",
        "band/dispatch.py",
        "_kept(kind, (delta, device), lambda: BandTable",
        "_kept(kind, device, lambda: BandTable",
        "table::test_a_table_has_what_the_solver_finds",
    ),
    Fault(
        "every table is kept for ever",
        "band/dispatch.py",
        "list(_MADE)[: len(_MADE) - _KEPT + 1]",
        "list(_MADE)[:0]",
        "table::test_a_few_tables_are_kept",
    ),
    Fault(
        "two unnamed divergences have one name in graphs",
        "band/dispatch.py",
        'key = f"{kind.name}#{len(_UNNAMED)}"',
        'key = f"{kind.name}#0"',
        "table::test_two_divergences_of_one_name_are_told_apart",
    ),
    Fault(
        "a compiled graph forgets the shape of a radius per token",
        "band/dispatch.py",
        "shape = torch.broadcast_shapes(log_p.shape, delta.shape)",
        "shape = log_p.shape",
        "table::test_the_operator_of_graphs_says_beforehand_what_it_gives",
    ),
    Fault(
        "a check of f without the rounding of its terms",
        "band/divergences.py",
        "rounding + 16 * noise[apart:-apart]",
        "rounding",
        "operator::test_rounding_does_not_make_a_convex_sum_of_hinges_concave",
    ),
    Fault(
        "a check of f that looks at neighbours only",
        "band/divergences.py",
        "for apart in (1, 4, 16, 64, 256):",
        "for apart in (1,):",
        "operator::test_what_is_no_generator_is_refused_with_the_point_where_it_fails",
    ),
    Fault(
        "a generator that jumps to infinity passes for one that overflows",
        "band/divergences.py",
        "if not (last >= _FAR and (beyond",
        "if not ((beyond",
        "operator::test_what_is_no_generator_is_refused_with_the_point_where_it_fails",
    ),
    Fault(
        "the proof of a table takes the whole height of a parallelogram",
        "trust_regions/combinators.py",
        "rise * (1 - rise / width) / x",
        "rise * 1 / x",
        "table::test_the_proof_counts_the_left_end_of_a_cell",
    ),
    Fault(
        "the cell of a table in which a cap begins counts as capped",
        "trust_regions/combinators.py",
        "bounds.capped[:-2] & bounds.capped[1:-1]",
        "bounds.capped[:-2] | bounds.capped[1:-1]",
        "table::test_a_table_knows_where_a_cap_holds",
    ),
    Fault(
        "a weight's value ends at a thousand nats",
        "losses/surrogates.py",
        "_LOWEST_LOG_PI = -1e6",
        "_LOWEST_LOG_PI = -1e3",
        "surrogates::test_the_value_of_a_weight_is_its_log_pi_down_to_a_million_nats",
    ),
    # ---- band/divergences.py
    Fault(
        "KL in the other direction",
        "band/divergences.py",
        "kl_log_bounds, excess)",
        "kl_log_bounds, _reverse_kl)",
        "paper",
    ),
    Fault("reverse KL in the other direction", "band/divergences.py", "None, _reverse_kl)", "None, excess)", "paper"),
    Fault(
        "total variation without its half",
        "band/divergences.py",
        "lambda x: 0.5 * expm1(x).abs()",
        "lambda x: expm1(x).abs()",
        "paper",
    ),
    Fault(
        "chi2 saturates at delta, not delta / (1 + delta)",
        "band/closed_forms.py",
        "log_double(delta, _odds, _log_odds)",
        "log_double(delta)",
        "operator::test_lower_bound_is_accurate_to_the_last_ulp_before_it_saturates",
    ),
    Fault(
        "Hellinger reaches the simplex at p, not sqrt p",
        "band/closed_forms.py",
        "torch.where(0.5 * log_p >=",
        "torch.where(log_p >=",
        "paper",
    ),
    Fault(
        "Jensen-Shannon without its half",
        "band/divergences.py",
        "return 0.5 * torch.exp(half)",
        "return torch.exp(half)",
        "paper",
    ),
    Fault(
        "power divergences: 1 + l forgotten",
        "band/divergences.py",
        "return (_reverse_kl(x) + bend) / (1 + order)",
        "return _reverse_kl(x) + bend",
        "operator::test_a_power_divergence_is_a_named_one_up_to_a_factor_on_the_radius",
    ),
    # ---- band/operator.py
    Fault("delta halved", "band/operator.py", "return float(delta)", "return 0.5 * float(delta)", "paper"),
    Fault(
        "delta_low ignored",
        "band/operator.py",
        "both if delta_low is None else _radius(delta_low, like, on_cpu)",
        "both",
        "operator::test_the_two_sides_may_have_radii_of_their_own",
    ),
    Fault(
        "membership takes the radius of the other side",
        "band/operator.py",
        "torch.where(working_copy(log_ratio) < 0, low, high)",
        "torch.where(working_copy(log_ratio) < 0, high, low)",
        "operator::test_the_two_sides_may_have_radii_of_their_own",
    ),
    Fault(
        "membership forgets the simplex",
        "band/operator.py",
        "clamp(max=LOG_P_MAX) <= 0)",
        "clamp(max=LOG_P_MAX) <= torch.inf)",
        "operator::test_an_infinite_radius_is_the_simplex",
    ),
    Fault(
        "membership below e^-300 by r, not r p",
        "band/operator.py",
        "moved = moved + (old - log_p).clamp(-1e300, 0.0)",
        "moved = moved + 0.0",
        "operator::test_the_gate_knows_the_upper_bound_of_a_token_of_probability_e_to_the_minus_million",
    ),
    Fault(
        "the complement of a certain token",
        "band/operator.py",
        "working_copy(old_logps).clamp(max=LOG_P_MAX)\n    log_c",
        "working_copy(old_logps)\n    log_c",
        "operator::test_other_tokens_stay_where_they_are_beside_a_certain_one_that_stays",
    ),
    Fault(
        "upper bound beyond the simplex",
        "band/operator.py",
        "torch.minimum(log_high.to(device, dtype).clamp(min=0), limit.to(dtype))",
        "log_high.to(device, dtype).clamp(min=0)",
        "operator::test_bounds_are_defined_and_in_the_simplex_for_every_log_p",
    ),
    Fault(
        "an infinite radius in a tensor is a finite one",
        "band/operator.py",
        "everything = torch.isinf(delta)",
        "everything = torch.isnan(delta)",
        "operator::test_an_infinite_radius_is_the_simplex",
    ),
    Fault(
        "the last piece of a large batch forgotten",
        "band/operator.py",
        "range(0, flat.numel(), size)",
        "range(0, flat.numel() - size, size)",
        "numerics operator",
    ),
    # ---- bounds.py
    Fault(
        "minimum and maximum for clamp",
        "bounds.py",
        "torch.clamp(log_ratio, self.log_low, self.log_high)",
        "torch.minimum(torch.maximum(log_ratio, self.log_low), self.log_high)",
        "policy",
    ),
    Fault(
        "the interval is open",
        "bounds.py",
        "(log_ratio <= self.log_high)",
        "(log_ratio < self.log_high)",
        "trust_regions::test_a_ratio_on_either_bound_is_inside",
    ),
    Fault(
        "variation beyond the simplex",
        "bounds.py",
        "torch.minimum(up, -expm1(log_p))",
        "up",
        "paper::test_eq_theoretical_variation_range_set paper::test_worked_example_of_the_tail_token",
    ),
    Fault(
        "eps_low is the other epsilon", "bounds.py", "else self.epsilons[0]", "else self.epsilons[1]", "trust_regions"
    ),
    # ---- trust_regions/rules.py
    Fault(
        "DCPO: no clamp under the root",
        "trust_regions/rules.py",
        "(1 - self.eps_low * odds).clamp(min=0)",
        "(1 - self.eps_low * odds)",
        "trust_regions",
    ),
    Fault("RIPO: min_ratio forgotten", "trust_regions/rules.py", ".clamp(min=log_min)", "", "trust_regions"),
    Fault(
        "a cap forgets the cap inside",
        "trust_regions/rules.py",
        "capped = capped | bounds.capped",
        "capped = capped & bounds.capped",
        "trust_regions",
    ),
    Fault(
        "Band.contains: delta_high for both",
        "trust_regions/rules.py",
        "log_ratio, old_logps, self.divergence, self.delta, delta_low=self.delta_low",
        "log_ratio, old_logps, self.divergence, self.delta, delta_low=self.delta_high",
        "operator::test_the_two_sides_may_have_radii_of_their_own",
    ),
    # ---- trust_regions/combinators.py
    Fault(
        "Relaxed: the narrower upper bound",
        "trust_regions/combinators.py",
        "torch.maximum(a.log_high, b.log_high)",
        "torch.minimum(a.log_high, b.log_high)",
        "trust_regions",
    ),
    Fault(
        "Relaxed: the cap of the narrower rule",
        "trust_regions/combinators.py",
        "_capped(a.log_high >= b.log_high, a, b)",
        "_capped(a.log_high <= b.log_high, a, b)",
        "trust_regions",
    ),
    Fault(
        "Intersect: the lower of the lower bounds",
        "trust_regions/combinators.py",
        "torch.maximum(a.log_low, b.log_low)",
        "torch.minimum(a.log_low, b.log_low)",
        "algebra",
    ),
    Fault(
        "Intersect: the cap of the wider rule",
        "trust_regions/combinators.py",
        "_capped(a.log_high <= b.log_high, a, b)",
        "_capped(a.log_high >= b.log_high, a, b)",
        "algebra",
    ),
    Fault(
        "ByProbability: the threshold itself is likely",
        "trust_regions/combinators.py",
        "old_logps.detach() <= math.log(self.threshold)",
        "old_logps.detach() < math.log(self.threshold)",
        "algebra",
    ),
    Fault(
        "ByProbability: the cap of the other rule",
        "trust_regions/combinators.py",
        "_capped(first, a, b))",
        "_capped(first, b, a))",
        "algebra",
    ),
    Fault(
        "an intersection of clips counts as a rule that sees probabilities",
        "trust_regions/combinators.py",
        'kind: ClassVar[str] = "intersect"\n    sees_probability: ClassVar[bool] = False',
        'kind: ClassVar[str] = "intersect"\n    sees_probability: ClassVar[bool] = True',
        "algebra",
    ),
    Fault(
        "a rule within a rule has no brackets in its label",
        "trust_regions/base.py",
        'return f"({self.label})" if self.is_phrase else self.label',
        "return self.label",
        "algebra",
    ),
    Fault(
        "what stops a token is said of the wider rule of an intersection",
        "trust_regions/combinators.py",
        "return a.log_low >= b.log_low, a.log_high <= b.log_high",
        "return a.log_low <= b.log_low, a.log_high >= b.log_high",
        "algebra",
    ),
    # ---- trust_regions/adaptive.py
    Fault(
        "Adaptive: padding counts in the mean",
        "trust_regions/adaptive.py",
        'counted = context.require("response_mask", self) & ~weights.isnan()',
        "counted = ~weights.isnan()",
        "adaptive",
    ),
    Fault(
        "Adaptive: a part of a batch goes by its own mean",
        "trust_regions/adaptive.py",
        "known, mean = ~weights.isnan(), context.mean_weight",
        "known, mean = ~weights.isnan(), None",
        "adaptive",
    ),
    Fault(
        "Adaptive: the weights are not divided by their mean",
        "trust_regions/adaptive.py",
        "torch.where(counted, weights / mean, 1.0)",
        "torch.where(counted, weights, 1.0)",
        "adaptive",
    ),
    Fault(
        "Adaptive: a radius of one side stays as it is",
        "trust_regions/adaptive.py",
        'for name in ("delta", "delta_low", "delta_high") if',
        'for name in ("delta", "delta_low") if',
        "adaptive",
    ),
    Fault(
        "Tilt: no lower limit",
        "trust_regions/adaptive.py",
        ".clamp(-most, most).exp()",
        ".clamp(max=most).exp()",
        "adaptive",
    ),
    Fault(
        "Tilt: surprise with the sign of log p",
        "trust_regions/adaptive.py",
        "x = -old_logps.clamp(max=0)",
        "x = old_logps.clamp(max=0)",
        "adaptive",
    ),
    Fault(
        "Tilt: the position is not a share of the response",
        "trust_regions/adaptive.py",
        " / mask.sum(-1, keepdim=True).clamp(min=1)\n        else:",
        "\n        else:",
        "adaptive",
    ),
    Fault(
        "bounds in pieces take the radii of the first piece",
        "band/operator.py",
        ".expand(shape).flatten()[part]",
        ".expand(shape).flatten()[:size]",
        "operator::test_many_tokens_with_a_radius_each_are_as_few_of_them",
    ),
    Fault(
        "a rule sees NaN log-ratios in padding",
        "trust_regions/base.py",
        "return moved if self.response_mask is None else torch.where(self.response_mask, moved, 0.0)",
        "return moved",
        "context",
    ),
    Fault(
        "one number per response stays (B,)",
        "losses/policy.py",
        "x = x.detach()[:, None] if x.dim() == 1 else x.detach()",
        "x = x.detach()",
        "context",
    ),
    # ---- trust_regions/control.py, integrations/trl_control.py, integrations/trl_context.py
    Fault(
        "Controlled: the sign of every measure",
        "trust_regions/control.py",
        "gap = MEASURES[self.measure][0] * (self.target",
        "gap = -MEASURES[self.measure][0] * (self.target",
        "control",
    ),
    Fault(
        "PI: the integral winds up",
        "trust_regions/control.py",
        "if (wanted - reached) * error > 0:",
        "if False:",
        "control",
    ),
    Fault(
        "PI: the integral is frozen on the wrong side",
        "trust_regions/control.py",
        "(wanted - reached) * error > 0",
        "(wanted - reached) * error < 0",
        "control",
    ),
    Fault(
        "PI: no rate limit",
        "trust_regions/control.py",
        "_within(_within(wanted, last - self.rate, last + self.rate), math.log(low), math.log(high))",
        "_within(wanted, math.log(low), math.log(high))",
        "control",
    ),
    Fault(
        "PI: the integral starts at 0",
        "trust_regions/control.py",
        'return {"integral": math.log(value)}',
        'return {"integral": 0.0}',
        "control",
    ),
    Fault(
        "Controlled: NaN is measured",
        "trust_regions/control.py",
        "if math.isfinite(found):",
        "if True:",
        "control",
    ),
    Fault(
        "Hysteresis: no memory",
        "trust_regions/control.py",
        'error < -self.width else state["value"]',
        "error < -self.width else low",
        "control",
    ),
    Fault(
        "Controlled: a state of another law passes",
        "trust_regions/control.py",
        "if state.keys() != (wanted := self.start()).keys():",
        "if (wanted := self.start()) and False:",
        "control",
    ),
    Fault(
        "Controlled: the state is not saved",
        "integrations/trl_control.py",
        "        cast(Any, state.stateful_callbacks)[NAME] = self.state\n",
        "",
        "trl_control::test_a_run_that_goes_on_from_a_checkpoint_is_exact",
    ),
    Fault(
        "Controlled: the state is not read",
        "integrations/trl_control.py",
        "self.state, self.row, self._metrics = kept or self.rule.start()",
        "self.state, self.row, self._metrics = self.rule.start()",
        "trl_control",
    ),
    Fault(
        "Controlled: only the last micro-batch is measured",
        "integrations/trl_control.py",
        "metrics if self._metrics is None else self._metrics.merge(metrics)",
        "metrics",
        "trl_control",
    ),
    Fault(
        "Controlled: steps before are measured again",
        "integrations/trl_control.py",
        "        self._metrics = None\n",
        "",
        "trl_control",
    ),
    Fault(
        "Controlled in verl: only the last micro-batch is measured",
        "integrations/verl_control.py",
        "metrics if self._metrics is None else self._metrics.merge(metrics)",
        "metrics",
        "verl_controller",
    ),
    Fault(
        "Controlled in verl: each rank for itself",
        "integrations/verl_control.py",
        "self._metrics.all_reduce().compute()",
        "self._metrics.compute()",
        "verl_controller",
    ),
    Fault(
        "Controlled in verl: the state is not read",
        "integrations/verl_control.py",
        'rule.start() if kept is None else kept["state"]',
        "rule.start()",
        "verl_controller",
    ),
    Fault(
        "Controlled in verl: a checkpoint without a state passes",
        "integrations/verl_control.py",
        'scheduler.last_epoch != (0 if kept is None else kept["update"])',
        'scheduler.last_epoch != (scheduler.last_epoch if kept is None else kept["update"])',
        "verl_controller",
    ),
    Fault(
        "Controlled in verl: the state of another rule passes",
        "integrations/verl_control.py",
        'kept["rule"] != rule.to_config()',
        'kept["rule"]["type"] != rule.kind',
        "verl_controller",
    ),
    Fault(
        "PrefixBudget: a token spends before it is asked",
        "trust_regions/budget.py",
        "pad(torch.where(mask, gain, 0.0), (1, 0))[..., :-1].cumsum(-1)",
        "torch.where(mask, gain, 0.0).cumsum(-1)",
        "budget",
    ),
    Fault(
        "Controlled: the number never moves in TRL",
        "integrations/trl_control.py",
        "        _, self.state = self.rule.radius(self.state, found)",
        "        self.rule.radius(self.state, found)",
        "trl_control",
    ),
    Fault(
        "the group's outcomes of another process",
        "integrations/trl_context.py",
        "mine = slice(self.accelerator.process_index * count, (self.accelerator.process_index + 1) * count)",
        "mine = slice(0, count)",
        "trl_context::test_each_process_has_the_outcomes_of_its_own_responses",
    ),
    Fault(
        "the mean weight of one process",
        "integrations/trl_context.py",
        'cast(Tensor, self.accelerator.reduce(sums, reduction="sum")).tolist()',
        "sums.tolist()",
        "trl_context::test_each_process_has_the_outcomes_of_its_own_responses",
    ),
    Fault(
        "BySign: A = 0 is negative",
        "trust_regions/combinators.py",
        'require("advantages", self) >= 0',
        'require("advantages", self) > 0',
        "trust_regions surrogates",
    ),
    Fault(
        "Table: the mean error is proven, not the largest",
        "trust_regions/combinators.py",
        "clamp(min=1)).max()",
        "clamp(min=1)).mean()",
        "table",
    ),
    Fault(
        "a geometric mean may take a band inside a Clip",
        "trust_regions/combinators.py",
        "region.sees_probability or any(depends",
        "region.sees_probability and any(depends",
        "objective::test_what_contradicts_itself_cannot_be_made",
    ),
    # ---- losses/surrogates.py
    Fault(
        "the wrong bound binds",
        "losses/surrogates.py",
        "torch.where(tokens.up, ~(tokens.limited <= tokens.clipped), ~(tokens.limited >= tokens.clipped))",
        "torch.where(tokens.up, ~(tokens.limited >= tokens.clipped), ~(tokens.limited <= tokens.clipped))",
        "policy",
    ),
    Fault(
        "dual clip for both signs",
        "losses/surrogates.py",
        "torch.where(tokens.up, held, held.clamp(max=math.log(dual_clip)))",
        "held.clamp(max=math.log(dual_clip))",
        "policy",
    ),
    Fault(
        "mask forgotten",
        "losses/surrogates.py",
        "torch.where(tokens.mask, torch.exp(held) * tokens.weights, 0.0)",
        "torch.exp(held) * tokens.weights",
        "policy",
    ),
    Fault(
        "mask_two_sided drops above only",
        "losses/surrogates.py",
        "value * _uncut(clipped, limited)",
        "value * ((clipped >= limited) | limited.isnan())",
        "surrogates",
    ),
    Fault(
        "weight: the ratio is not clipped",
        "losses/surrogates.py",
        "slope = torch.where(mask, torch.exp(clipped) * weights, 0.0)",
        "slope = torch.where(mask, torch.exp(limited) * weights, 0.0)",
        "surrogates",
    ),
    Fault(
        "preserve: beta_low above, beta_high below",
        "losses/surrogates.py",
        "torch.where(tokens.up, self.high * value, self.low * value)",
        "torch.where(tokens.up, self.low * value, self.high * value)",
        "surrogates",
    ),
    Fault(
        "a pair: each sign has the other's gradient",
        "losses/surrogates.py",
        "torch.where(up, slope, other_slope)",
        "torch.where(up, other_slope, slope)",
        "surrogates",
    ),
    Fault(
        "GMPO: clipped tokens keep their gradient",
        "losses/surrogates.py",
        "0.0) * inside)",
        "0.0))",
        "surrogates::test_gmpo_is_the_geometric_mean_of_the_clipped_ratios",
    ),
    # ---- losses/packing.py
    Fault(
        "on a GPU, advantages that do not fit packed rows go to the next response in silence",
        "losses/packing.py",
        "self.misfit = (found != responses) | (most > longest) | again.any()",
        "self.misfit = (most > longest) | again.any()",
        "packing",
    ),
    Fault(
        "on a GPU, an id of packed rows that comes back is not seen",
        "losses/packing.py",
        "(most > longest) | again.any()",
        "(most > longest)",
        "packing",
    ),
    Fault(
        "of packed rows with a mask of numbers nothing is looked at where a normalizer is given",
        "losses/policy.py",
        "if was_looked_at and not torch.compiler.is_compiling():",
        "if normalizer is None and not torch.compiler.is_compiling():",
        "packing",
    ),
    Fault(
        "every position begins anew at a row, not at a response",
        "losses/packing.py",
        "- (tokens.cumsum(0) - tokens)[run]",
        "- 0 * run",
        "packing",
    ),
    Fault(
        "prompts between packed responses count as responses",
        "losses/packing.py",
        "((tokens > 0).cumsum(0) - 1)[run]",
        "run",
        "packing",
    ),
    Fault(
        "the same id in the next row is the same response",
        "losses/packing.py",
        "begins = torch.ones_like(mask)",
        "begins = torch.ones_like(mask).cumsum(0) == 1",
        "packing",
    ),
    Fault(
        "an id may come back in its row",
        "losses/packing.py",
        "& (run[:, 1:] != run[:, :-1])",
        "& (run[:, 1:] < run[:, :-1])",
        "packing",
    ),
    Fault(
        "the loss of each token of a packed row stays laid out",
        "losses/policy.py",
        "return loss if loss.dim() == 0 else packing.pack(loss).view(shape), metrics",
        "return loss, metrics",
        "packing",
    ),
    Fault(
        "one advantage for each packed row, not for each response, is taken",
        "losses/packing.py",
        "if count != responses:",
        "if count < responses:",
        "packing",
    ),
    Fault(
        "different advantages under one ratio are no reason to ask",
        "losses/policy.py",
        'sums["mixed"] = (top > -bottom).sum()',
        'sums["mixed"] = (top < -bottom).sum()',
        "packing",
    ),
    # ---- losses/policy.py
    Fault(
        "old log-probabilities may be positive",
        "losses/policy.py",
        "highest = torch.maximum(logps.detach().to(old_logps.dtype), old_logps)",
        "highest = logps.detach().to(old_logps.dtype)",
        "policy",
    ),
    Fault(
        "what cannot be is not looked for before the metrics are read",
        "losses/policy.py",
        "        metrics.check()\n    return aggregate_masked",
        "        metrics.counts\n    return aggregate_masked",
        "policy",
    ),
    Fault(
        "metrics do not object to what is no log-probability",
        "losses/metrics.py",
        "        check_sums(sums)",
        "        pass",
        "policy",
    ),
    Fault(
        "a written average is taken by a trainer with another one",
        "integrations/__init__.py",
        'elif found.aggregation == AVERAGES.get(host, NO_AVERAGE)[1].get(average or "", ""):',
        "elif found.aggregation is not None:",
        "methods",
    ),
    Fault(
        "a trainer that takes another average says that it is the paper's",
        "integrations/__init__.py",
        "    elif wanted == given:",
        "    elif wanted:",
        "methods",
    ),
    Fault(
        "policy: a weight on positive advantages is one on negative ones",
        "losses/policy.py",
        "torch.where(advantages > 0, objective.positive_weight * weights, weights)",
        "torch.where(advantages < 0, objective.positive_weight * weights, weights)",
        "policy",
    ),
    Fault(
        "old log-probabilities in padding",
        "losses/policy.py",
        "torch.where(mask, old_logps.detach().to(dtype), -1.0)",
        "old_logps.detach().to(dtype)",
        "policy",
    ),
    Fault(
        "the reference in padding",
        "losses/policy.py",
        "torch.where(mask, ref_logps.detach(), -1.0)",
        "ref_logps.detach()",
        "policy",
    ),
    Fault(
        "the KL penalty is a reward",
        "losses/policy.py",
        "per_token + objective.beta * kl",
        "per_token - objective.beta * kl",
        "policy",
    ),
    Fault(
        "metrics of the first piece only",
        "losses/policy.py",
        "[measured for _, measured in done]",
        "[measured for _, measured in done[:1]]",
        "policy surrogates",
    ),
    Fault(
        "the sequence's ratio is the mean",
        "losses/policy.py",
        'mean = ratio == "sequence-mean"',
        'mean = ratio != "token"',
        "surrogates::test_ratio_of_a_response_is_the_product_over_its_tokens",
    ),
    Fault(
        "the mean over a response counts padding",
        "losses/policy.py",
        "total / mask.sum(-1, keepdim=True).clamp(min=1)",
        "total / mask.shape[-1]",
        "surrogates::test_gspo_is_the_geometric_mean_of_the_ratios",
    ),
    Fault(
        "the log-ratio at its limit counts as clamped",
        "losses/policy.py",
        "log_ratio.abs() > limit",
        "log_ratio.abs() >= limit",
        "policy",
    ),
    Fault(
        "rollout weights upside down",
        "losses/policy.py",
        "old.clamp(min=LOWEST) - rollout.clamp(min=LOWEST)",
        "rollout.clamp(min=LOWEST) - old.clamp(min=LOWEST)",
        "surrogates::test_icepop_keeps_rho_inside_and_drops_the_rest",
    ),
    # ---- losses/objective.py, and what reads it
    Fault(
        "the log-ratio's limit is not the objective's",
        "losses/policy.py",
        "limit = MAX_LOG_RATIO if objective.max_log_ratio is None else objective.max_log_ratio",
        "limit = MAX_LOG_RATIO",
        "policy",
    ),
    Fault(
        "a dual clip goes by the application for A >= 0",
        "losses/surrogates.py",
        "(pair[1] in _BOUND_BOTH_SIDES or",
        "(pair[0] in _BOUND_BOTH_SIDES or",
        "objective",
    ),
    Fault(
        "a geometric mean of ratios in a band",
        "losses/objective.py",
        "depends_on_probability(self.trust_region):",
        "isinstance(self.trust_region, Band):",
        "objective",
    ),
    Fault(
        "a kind of penalty without a penalty",
        "losses/objective.py",
        "if self.beta == 0 and self.kl_penalty != Objective.kl_penalty:",
        "if self.beta < 0 and self.kl_penalty != Objective.kl_penalty:",
        "objective",
    ),
    Fault(
        "in a pair, Preserve is no node",
        "trust_regions/base.py",
        'return [_plain(each, name) for each in cast("tuple[Any, ...]", value)]',
        'return list(cast("tuple[Any, ...]", value))',
        "objective",
    ),
    Fault(
        "a dual clip is ignored where a clamp has none",
        "integrations/__init__.py",
        """        "dual_clip": f"{host}'s clamp has the two bounds and no third",
""",
        "",
        "objective",
    ),
    # ---- integrations/trl.py, integrations/trl_settings.py
    Fault(
        "TRL: an objective's loss is both bounds of the clamp",
        "integrations/trl.py",
        "Instead(torch.full_like(loss, math.inf)), Instead(loss)",
        "Instead(loss), Instead(loss)",
        "trl_objectives::test_a_clip_in_the_place_of_trls_term_is_trls_loss",
    ),
    Fault(
        "TRL: the loss of a token with TRL's sign",
        "integrations/trl.py",
        '{"advantages": -torch.ones_like(',
        '{"advantages": torch.ones_like(',
        "trl_objectives::test_a_clip_in_the_place_of_trls_term_is_trls_loss",
    ),
    Fault(
        "TRL: the loss of a token in one sum with 1",
        "integrations/trl_settings.py",
        "    def __radd__(self, one: object) -> Tensor:\n        return self.bound",
        "    def __radd__(self, one: object) -> Tensor:\n        return 1 + self.bound",
        "trl_objectives::test_every_objective_has_the_loss_gradient_and_metrics_of_policy_loss",
    ),
    Fault(
        "TRL: the ratio is dropped where the KL penalty is weighed by it",
        "integrations/trl.py",
        'if self.beta == 0 or not getattr(args, "use_bias_correction_kl", False):',
        "if True:",
        "trl_objectives::test_a_clip_in_the_place_of_trls_term_is_trls_loss",
    ),
    Fault(
        "TRL: a ratio that nothing reads may overflow",
        "integrations/trl.py",
        'if self.beta == 0 or not getattr(args, "use_bias_correction_kl", False):',
        "if False:",
        "trl_objectives::test_a_token_whose_ratio_overflows_has_a_finite_gradient",
    ),
    Fault(
        "TRL: the cap stays after an objective's loss",
        "integrations/trl.py",
        "self.epsilon_low, self.epsilon_high, args.delta = kept",
        "self.epsilon_low, self.epsilon_high, _ = kept",
        "trl_objectives::test_a_loss_that_raises_leaves_the_trainer_as_it_was",
    ),
    Fault(
        "TRL: shares of a clip that is not there are logged",
        "integrations/trl.py",
        'if name.startswith("clip_ratio/")]',
        'if name.startswith("clip_ratios/")]',
        "trl_objectives::test_every_objective_has_the_loss_gradient_and_metrics_of_policy_loss",
    ),
    Fault(
        "TRL: cispo's bound is an epsilon",
        "integrations/trl.py",
        "self.epsilon_high = 1 + clip.eps_high",
        "self.epsilon_high = clip.eps_high",
        "trl_objectives::test_what_trl_has_itself_is_trls_bit_for_bit",
    ),
    Fault(
        "TRL: cispo beside a lower bound, which it does not have",
        "integrations/trl_settings.py",
        " and isinstance(clip, Clip) and clip.eps_low == 1\n",
        " and isinstance(clip, Clip)\n",
        "trl_objectives::test_what_trls_settings_and_the_objective_say_differently_is_refused_by_name",
    ),
    Fault(
        "a rule of one's own writes a name that no other process knows",
        "trust_regions/base.py",
        'f"{cls.__module__}:{cls.__qualname__}" if is_found else self.kind',
        "self.kind",
        "own_rules::test_what_a_rule_writes_is_read_by_a_process_that_has_not_heard_of_it",
    ),
    # ---- losses/methods.py, and what reads it
    Fault(
        "a method that takes a loop of one's own is taken for its objective",
        "losses/objective.py",
        "return not (self.from_sampler or self.is_made_in_a_loop)",
        "return True",
        "methods::test_a_method_that_is_more_than_its_objective_takes_a_loop",
    ),
    Fault(
        "the ranges of GSPO swapped",
        "losses/methods.py",
        "Objective(Clip(3e-4, 4e-4)",
        "Objective(Clip(4e-4, 3e-4)",
        "methods::test_a_method_is_its_textbook",
    ),
    Fault(
        "a misspelt type is compared with those of rules only",
        "losses/nodes.py",
        '[*kinds(), "objective", "method"]',
        "kinds()",
        "methods::test_what_is_no_method_is_named_with_what_is_nearest",
    ),
    Fault(
        "an objective has the name of a method that is more",
        "losses/notation.py",
        "if each.is_complete and value.aggregation in",
        "if value.aggregation in",
        "methods::test_a_label_is_the_rules_or_the_methods_or_says_what_differs",
    ),
    Fault(
        "any gradient passes for the derivative of an objective's value",
        "testing.py",
        "<= 1e-5 * (1 + own.abs())",
        "<= 1e5 * (1 + own.abs())",
        "testing",
    ),
    Fault(
        "an objective that sees other responses passes",
        "testing.py",
        "1e-9 * sizes[0] * sizes[1]",
        "1e9 * sizes[0] * sizes[1]",
        "testing",
    ),
    Fault(
        "an objective of which padding reaches the value passes",
        "testing.py",
        "_all(padded[0] == value,",
        "_all(value == value,",
        "testing",
    ),
    Fault(
        "every trainer counts as one that shows a rule the step",
        "integrations/__init__.py",
        "shown = {*SHOWN.get(host, ()), *ALWAYS}",
        'shown = {*SHOWN["TRL"], *ALWAYS}',
        "methods",
    ),
    Fault(
        "a trainer that refuses a method counts as one that runs it",
        "integrations/__init__.py",
        "reasons[host] = str(error)",
        'reasons[host] = ""',
        "methods",
    ),
    Fault(
        "two names of one rule are two runs of the lab",
        "training/side_by_side.py",
        "same[0] if same else",
        "same[-1] if same else",
        "methods",
    ),
    Fault(
        "Band-TV is listed with the formula of chi-squared",
        "losses/methods.py",
        'Objective(Band("tv", 0.05), aggregation',
        'Objective(Band("chi2", 0.05), aggregation',
        "methods",
    ),
    Fault(
        "the ranges of DIS swapped",
        "losses/methods.py",
        'Clip(0.3, 5.0), apply="mask_two_sided"',
        'Clip(0.5, 3.0), apply="mask_two_sided"',
        "methods",
    ),
    Fault(
        "ABC-GRPO stops tokens as PPO does",
        "losses/methods.py",
        'Objective(BySign(Clip(0.2, 0.2), Clip(0.2, 0.2)), apply="mask_two_sided", aggregation',
        'Objective(BySign(Clip(0.2, 0.2), Clip(0.2, 0.2)), apply="mask", aggregation',
        "methods",
    ),
    Fault(
        "a trainer refuses a method without its name",
        "integrations/__init__.py",
        "named = method_of(node)",
        "named = None",
        "methods::test_a_trainer_takes_a_method_or_refuses_it_by_name",
    ),
    Fault(
        "what becomes of tokens outside is said of the other side",
        "explain/gradient.py",
        "above = (far if up else near)",
        "above = (near if up else far)",
        "methods::test_what_becomes_of_tokens_outside_is_said",
    ),
    # ---- losses/metrics.py
    Fault(
        "a bucket is closed on the left", "losses/metrics.py", "(old_logps > edge)", "(old_logps >= edge)", "metrics"
    ),
    Fault(
        "below and above swapped",
        "losses/metrics.py",
        "LOW * (log_ratio < clipped).to(small) + HIGH * (log_ratio > clipped)",
        "HIGH * (log_ratio < clipped).to(small) + LOW * (log_ratio > clipped)",
        "metrics",
    ),
    Fault(
        "tokens of A < 0 that are above count as cut",
        "losses/metrics.py",
        "count(sides=[LOW], signs=[NEGATIVE])",
        "count(sides=[HIGH], signs=[NEGATIVE])",
        "metrics",
    ),
    Fault(
        "extremes of micro-batches are added",
        "losses/metrics.py",
        "torch.maximum(self.maxima, other.maxima)",
        "self.maxima + other.maxima",
        "metrics",
    ),
    # ---- losses/aggregation.py
    Fault(
        "the mean over tokens counts padding",
        "losses/aggregation.py",
        "total, count = values.sum(), tokens.sum()",
        "total, count = values.sum(), torch.ones_like(mask).sum()",
        "policy",
    ),
    Fault(
        "an empty response counts",
        "losses/aggregation.py",
        '.sum(), (tokens > 0).sum()\n        case "seq-mean-token-sum":',
        '.sum(), (tokens >= 0).sum()\n        case "seq-mean-token-sum":',
        "policy",
    ),
    # ---- losses/kl.py
    Fault(
        "the KL penalty in the other direction",
        "losses/kl.py",
        "d = (ref_logps - logps)",
        "d = (logps - ref_logps)",
        "policy",
    ),
    # ---- losses/advantages.py
    Fault(
        "sigma with G in the denominator",
        "losses/advantages.py",
        "/ others).sqrt()",
        "/ count).sqrt()",
        "policy",
    ),
    Fault(
        "equal rewards are equal up to rounding",
        "losses/advantages.py",
        "torch.where(known, table - least, 0.0)",
        "torch.where(known, table, 0.0)",
        "policy",
    ),
    Fault(
        "a reward that is missing counts as 0 in the baseline of its group",
        "losses/advantages.py",
        "shifted.sum(1, keepdim=True) / count",
        "shifted.sum(1, keepdim=True) / table.shape[1]",
        "policy",
    ),
    Fault(
        "responses of a group that are not next to each other overwrite one another",
        "losses/advantages.py",
        "order = rows.argsort(stable=True)",
        "order = torch.arange(count)",
        "policy",
    ),
    # ---- losses/token_logps.py
    Fault(
        "the slope of the soft cap forgets the temperature",
        "losses/token_logps.py",
        "logits * (temperature / softcap)",
        "logits / softcap",
        "token_logps",
    ),
    Fault(
        "the gradient of the bias is that of the last chunk",
        "losses/token_logps.py",
        "grad_bias += grad.sum(0)",
        "grad_bias = grad.sum(0)",
        "token_logps",
    ),
    # ---- found by strangers
    Fault(
        "kl_old of the response's ratio",
        "losses/policy.py",
        "mask, sums, own=own)",
        "mask, sums)",
        "metrics",
    ),
    Fault(
        "a ratio far outside overflows under mask_two_sided",
        "losses/surrogates.py",
        "value = torch.where(mask, torch.exp(clipped) * weights, 0.0)",
        "value = torch.where(mask, torch.exp(limited) * weights, 0.0)",
        "surrogates",
    ),
    Fault(
        "a gradient for a log-ratio clamped under mask_two_sided",
        "losses/surrogates.py",
        "Slopes(value, value * _uncut(limited, log_ratio))",
        "Slopes(value, value)",
        "surrogates",
    ),
    Fault(
        "a second derivative of NaN at a probability of 0",
        "losses/surrogates.py",
        "finite = logps.to(slope.dtype).clamp(min=LOWEST)",
        "finite = logps.to(slope.dtype)",
        "surrogates",
    ),
    Fault(
        "divided by the longest response",
        "losses/aggregation.py",
        "(tokens > 0).sum() * mask.shape[-1]",
        "(tokens > 0).sum() * tokens.max()",
        "policy",
    ),
    Fault(
        "low_var_kl without verl's cut",
        "losses/kl.py",
        'k3.clamp(max=_VERL_MOST_OF_K3) if kind == "low_var_kl" else k3',
        "k3",
        "policy",
    ),
    # ---- locks, workers, training, the command line: killed, and two at once
    Fault(
        "the lock is not taken",
        "files/locks.py",
        "lock.acquire(timeout=timeout)",
        "lock.lock_file",
        "locks",
    ),
    Fault(
        "a process of multiprocessing stays when its parent is gone",
        "training/processes.py",
        "(parent.join(), os._exit(1))",
        "parent.join()",
        "workers::test_a_process_of_multiprocessing_ends_with_its_parent",
    ),
    Fault(
        "a damaged warm start is used",
        "toy/model.py",
        'return skill if skill.pop("files") == _hashes(folder) else None',
        'return skill if skill.pop("files") else None',
        "lab::test_what_is_damaged_in_the_cache_is_made_again",
    ),
    Fault(
        "a run does not lock its folder",
        "training/on_trl.py",
        'with locked(folder / ".lock") if processes.is_first() else contextlib.nullcontext():',
        "with contextlib.nullcontext():",
        "on_trl::test_a_folder_that_another_process_writes_to_is_refused_and_left_alone",
    ),
    Fault(
        "what fails on the way out hides the signal",
        "cli/ending.py",
        "raise KeyboardInterrupt(received[0]) from error",
        "raise",
        "cli::test_a_signal_ends_a_command_in_one_line_and_with_its_code",
    ),
    # ---- the command line
    Fault(
        "a list is split at the commas of a node too",
        "cli/arguments.py",
        'if letter == "," and not depth:',
        'if letter == ",":',
        "cli::test_lists_are_given_by_commas_and_again",
    ),
    Fault(
        "the last of an option's lists is all that counts",
        "cli/arguments.py",
        "lists and [value for values in lists for value in values]",
        "lists and lists[-1]",
        "cli::test_lists_are_given_by_commas_and_again",
    ),
    Fault(
        "a count may be 0",
        "cli/arguments.py",
        "or int(text) < 1:",
        "or int(text) < 0:",
        "cli::test_wrong_arguments_are_one_line",
    ),
    Fault(
        "values with spaces between them become arguments",
        "cli/arguments.py",
        "if closed and name in lists",
        "if not closed and name in lists",
        "cli::test_wrong_arguments_are_one_line",
    ),
    Fault(
        "an argument behind a list counts as one of its values",
        "cli/arguments.py",
        "if closed and name in lists",
        "if name in lists",
        "cli::test_words_behind_a_list_may_be_arguments",
    ),
    Fault(
        "the doctor's exit code says nothing",
        "cli/training.py",
        'return int(any(row["level"] == "problem" for row in rows))',
        'return int(any(row["level"] == "fault" for row in rows))',
        "doctor::test_the_command",
    ),
    Fault(
        "what stands behind an option is a setting, whatever it is",
        "cli/training.py",
        "@app.command(cls=Command)\ndef train(",
        '@app.command(cls=Command, context_settings={"allow_interspersed_args": False})\ndef train(',
        "cli::test_train_takes_a_recipe_and_settings_in_any_order",
    ),
    Fault(
        "the command that is recorded resumes",
        "cli/app.py",
        ' for text in argv if text != "--resume"',
        " for text in argv",
        "cli::test_the_command_is_recorded_so_that_it_can_be_repeated",
    ),
    # ---- rewards
    Fault(
        "thinking: all but the last block is read as the answer",
        "rewards/final_answer.py",
        "        text = text[closed.end() :] if closed else text\n",
        "        text = text\n",
        "final_answer::test_thinking_is_not_the_answer",
    ),
    Fault(
        "thinking: a block that is never closed holds an answer",
        "rewards/final_answer.py",
        "    return text[: opened.start()] if opened else text\n",
        "    return text\n",
        "final_answer::test_thinking_is_not_the_answer",
    ),
    Fault(
        "thinking: a block that the prompt opened needs no end",
        "rewards/final_answer.py",
        '    if closed is None and thinking == "opened":\n',
        "    if False:\n",
        "final_answer::test_a_block_that_the_prompt_opened_must_be_closed",
    ),
    Fault(
        "tokens that end a text are part of the answer",
        "rewards/final_answer.py",
        "        text = text[: end.start()]\n",
        "        pass\n",
        "final_answer::test_tokens_that_end_a_text_are_no_part_of_the_answer",
    ),
    Fault(
        "the first statement of an answer counts",
        "rewards/final_answer.py",
        "for mark in reversed(marks):",
        "for mark in marks:",
        "final_answer::test_the_last_statement_counts_whatever_its_kind",
    ),
    Fault(
        "a sentence about the answer takes back what was stated",
        "rewards/final_answer.py",
        '            if kind != "sentence" or at_once:\n',
        "            if True:\n",
        "final_answer::test_where_the_answers_of_tricky_texts_stand",
    ),
    Fault(
        "a note on the last line is the answer",
        "rewards/final_answer.py",
        "    if place >= 0 and not (label and",
        "    if False and not (label and",
        "final_answer::test_the_last_statement_counts_whatever_its_kind",
    ),
    Fault(
        "arithmetic that touches a box changes nothing",
        "rewards/boxes.py",
        " or _touched(before, after):\n",
        ":\n",
        "final_answer::test_where_the_answers_of_tricky_texts_stand",
    ),
    Fault(
        "a word that governs a box changes nothing",
        "rewards/boxes.py",
        "retracted or _GOVERN.search(clause) or",
        "retracted or",
        "final_answer::test_where_the_answers_of_tricky_texts_stand",
    ),
    Fault(
        "a box that is taken back stands",
        "rewards/boxes.py",
        "    if retracted or _GOVERN",
        "    if _GOVERN",
        "final_answer::test_where_the_answers_of_tricky_texts_stand",
    ),
    Fault(
        "boxes with or between them are any of them",
        "rewards/grading.py",
        "    if not found.each:\n",
        "    if True:\n",
        "final_answer::test_boxes_that_stand_together",
    ),
    Fault(
        "the unit beside a box is dropped",
        "rewards/boxes.py",
        "    return with_unit if name and value == content else content\n",
        "    return content\n",
        "final_answer::test_the_unit_beside_a_box_is_the_answer_s",
    ),
    Fault(
        "a word before the value that changes it does not matter",
        "rewards/answers.py",
        "    return text if related or (words and changes(words)) else value\n",
        "    return text if related else value\n",
        "grading::test_sentences_that_say_something_else_are_wrong",
    ),
    Fault(
        "nor one behind it",
        "rewards/answers.py",
        "        if words and (changes(",
        "        if False and (changes(",
        "grading::test_sentences_that_say_something_else_are_wrong",
    ),
    Fault(
        "numbers that agree in 20 digits are equal",
        "rewards/equivalence.py",
        " and _is_zero(values[0] - values[1], scale, bits))",
        ")",
        "grading::test_exact_values_are_equal_only_if_their_difference_is_zero",
    ),
    Fault(
        "parts of a set are not compared exactly",
        "rewards/equivalence.py",
        "        return all(any(_same(one, other) for other in others) for some, others in pairs for one in some)\n",
        "        return True\n",
        "grading::test_exact_values_are_equal_only_if_their_difference_is_zero",
    ),
    Fault(
        "an expression may have an infinite part",
        "rewards/equivalence.py",
        "    if not _defined(answer, gold) or not _same(one, other):\n",
        "    if not _same(one, other):\n",
        "grading::test_what_has_no_value_or_another_meaning_is_never_right",
    ),
    Fault(
        "a placeholder is a right answer",
        "rewards/grading.py",
        ".strip().casefold() in _NO_ANSWER:\n",
        ".strip().casefold() in ():\n",
        "grading::test_what_has_no_value_or_another_meaning_is_never_right",
    ),
    Fault(
        "what is said of a letter does not matter",
        "rewards/grading.py",
        "chosen[2] and not _OTHER_LETTER.search(chosen[2])",
        "chosen[2]",
        "grading::test_a_letter_with_its_text_is_the_letter",
    ),
    Fault(
        "what stands behind the end of a turn is read",
        "rewards/final_answer.py",
        "    text = _STOP.split(text, maxsplit=1)[0]\n",
        "",
        "final_answer::test_where_the_answers_of_tricky_texts_stand",
    ),
    Fault(
        "a note about the answer states one",
        "rewards/final_answer.py",
        " or _ABOUT.search(before):\n",
        ":\n",
        "final_answer::test_where_the_answers_of_tricky_texts_stand",
    ),
    Fault(
        "what is denied is stated",
        "rewards/final_answer.py",
        "            if denied or (",
        "            if (",
        "final_answer::test_where_the_answers_of_tricky_texts_stand",
    ),
    Fault(
        "an answer that the next words take back stands",
        "rewards/final_answer.py",
        "            if denied or (stands >= 0 and",
        "            if denied or (False and",
        "final_answer::test_where_the_answers_of_tricky_texts_stand",
    ),
    Fault(
        "one text is right for two choices",
        "rewards/grading.py",
        '        if wanted.kind != "choice" or _as_written("choice", answer) is None:\n',
        "        if True:\n",
        "final_answer::test_where_the_answers_of_tricky_texts_stand",
    ),
    Fault(
        "a thing that is counted behind the answer is the answer",
        "rewards/final_answer.py",
        "    if place < 0:\n        value_alone",
        "    if True:\n        value_alone",
        "final_answer::test_where_the_answers_of_tricky_texts_stand",
    ),
    Fault(
        "the line of a JSON field is the answer with its quotes",
        "rewards/final_answer.py",
        "    if mark[0].count('\"') == 1:\n",
        "    if False:\n",
        "final_answer::test_the_forms_of_a_statement",
    ),
    Fault(
        "a box within a point is the answer",
        "rewards/boxes.py",
        "    return bool(listed) or not (",
        "    return not (",
        "final_answer::test_where_the_answers_of_tricky_texts_stand",
    ),
    Fault(
        "what the parser misreads reaches it",
        "rewards/answers.py",
        "    if any(pattern.search(_END.sub",
        "    if False and any(pattern.search(_END.sub",
        "grading::test_what_has_no_value_or_another_meaning_is_never_right",
    ),
    Fault(
        "a tilde before an answer is a space",
        "rewards/notation.py",
        "(?<!^)~",
        "~",
        "grading::test_sentences_that_say_something_else_are_wrong",
    ),
    Fault(
        "conditions joined by or are intersected",
        "rewards/equivalence.py",
        '"and" in parts[1::2]',
        '"or" in parts[1::2]',
        "grading::test_sentences_and_words_are_read",
    ),
    Fault(
        "the number of a hundred and five ends at the hundred",
        "rewards/quantities.py",
        "return above * scale + below if",
        "return above * scale if",
        "grading::test_sentences_and_words_are_read",
    ),
    Fault(
        "what is read and written again has its keys in another order",
        "files/checks.py",
        "return value if found == value else found",
        "return found",
        "preparation::test_finished_files_are_not_made_again",
    ),
    # ---- gates
    Fault(
        "sapo: the slope is that of r, not of log r",
        "losses/surrogates.py",
        "4 * gate * closed * r * weights",
        "4 * gate * closed * weights",
        "surrogates",
    ),
    Fault(
        "sapo: each sign has the other's temperature",
        "losses/surrogates.py",
        "torch.where(up, positive, negative)",
        "torch.where(up, negative, positive)",
        "surrogates",
    ),
    Fault(
        "sapo: the second derivative of an exponential",
        "losses/surrogates.py",
        "torch.where(mask, slope * (1 + tau * r * (closed - gate)), 0.0)",
        "slope",
        "surrogates",
    ),
    Fault(
        "sapo beside a rule that it ignores",
        "losses/objective.py",
        "self.trust_region != Clip(1.0, math.inf)",
        "self.trust_region == Clip()",
        "objective",
    ),
    Fault(
        "decay: the power for above is used below",
        "losses/surrogates.py",
        "torch.where(up, -self.high * beyond, self.low * beyond)",
        "torch.where(up, -self.low * beyond, self.high * beyond)",
        "surrogates",
    ),
    Fault(
        "soft: the share of the way is that of the logs",
        "losses/surrogates.py",
        "kept = expm1(clipped) / -expm1(-limited)",
        "kept = torch.exp(limited) * clipped / limited",
        "surrogates",
    ),
    Fault(
        "quadratic: the distance to the other bound",
        "losses/surrogates.py",
        "torch.where(moved > 0, log_high, log_low)",
        "torch.where(moved > 0, log_low, log_high)",
        "surrogates",
    ),
    Fault(
        "quadratic: the penalty is a reward where A < 0",
        "losses/surrogates.py",
        "pull = weights.abs() / ",
        "pull = weights / ",
        "surrogates",
    ),
    Fault(
        "a pair: each sign has the other's second derivative",
        "losses/surrogates.py",
        "torch.where(up, first, second)",
        "torch.where(up, second, first)",
        "surrogates",
    ),
    Fault(
        "full: the divergence of the old policy from the new one",
        "losses/full_divergence.py",
        "kind.generator(log_q - held)",
        "kind.generator(held - log_q)",
        "full_divergence",
    ),
    Fault(
        "full: the temperature is the new policy's only",
        "losses/full_divergence.py",
        "_log_probs(old, old_weight, old_bias, temperature, softcap)",
        "_log_probs(old, old_weight, old_bias, 1.0, softcap)",
        "full_divergence",
    ),
    Fault(
        "full: both policies have the new output matrix",
        "losses/full_divergence.py",
        "old_weight, old_bias = weight if old_weight is None else old_weight,",
        "old_weight, old_bias = weight,",
        "full_divergence",
    ),
    Fault(
        "full: a token that neither policy allows costs infinitely much",
        "losses/full_divergence.py",
        "torch.where(log_p < LOG_P_MIN, log_q.clamp(min=LOG_P_MIN), log_q)",
        "log_q",
        "full_divergence",
    ),
    Fault(
        "full: what is masked is computed",
        "losses/full_divergence.py",
        "if response_mask is None else response_mask",
        "if True else response_mask",
        "full_divergence",
    ),
    Fault(
        "top-k: a token that is named twice counts twice",
        "losses/full_divergence.py",
        ".tril(-1).any(-1)",
        ".tril(-1).any(-1) & False",
        "full_divergence",
    ),
    Fault(
        "top-k: the rest holds the k too",
        "losses/full_divergence.py",
        "log_q.scatter(-1, some, -torch.inf).logsumexp",
        "log_q.logsumexp",
        "full_divergence",
    ),
    Fault(
        "top-k: rounding leaves a rest where there is none",
        "losses/full_divergence.py",
        "torch.where(is_all, -torch.inf, old_rest)",
        "old_rest",
        "full_divergence",
    ),
    Fault(
        "exact: on the radius is outside",
        "trust_regions/exact.py",
        "spent <= self.delta",
        "spent < self.delta",
        "full_divergence",
    ),
    Fault(
        "exact: what is stopped may fall",
        "trust_regions/exact.py",
        "torch.where(inside, stopped - torch.inf, stopped)",
        "stopped - torch.inf",
        "full_divergence",
    ),
    Fault(
        "exact: a divergence of NaN stops the token",
        "trust_regions/exact.py",
        "spent.detach().to(log_p).clamp(0, 0) + log_p.clamp(0, 0)",
        "log_p.clamp(0, 0)",
        "full_divergence",
    ),
    Fault(
        "check_objective: one micro-batch twice",
        "testing.py",
        "(slice(6), slice(2), slice(2, 6))",
        "(slice(6), slice(6), slice(0, 0))",
        "testing",
    ),
    Fault(
        "check_objective: two calls that are not compiled",
        "testing.py",
        "terms(new, old, function=compiled)",
        "terms(new, old)",
        "testing::test_a_fault_of_the_compiled_loss_is_found",
    ),
    # ---- trust_regions/budget.py, and more that answers questions: the explorer, explain, doctor
    Fault(
        "Budget: every token of the batch pays, padding too",
        "trust_regions/budget.py",
        "* mask.sum(-1, keepdim=True)\n        if",
        "* mask.shape[-1]\n        if",
        "budget",
    ),
    Fault(
        "Budget: a response within its budget is limited",
        "trust_regions/budget.py",
        "torch.where(within, torch.inf, log_high)",
        "log_high",
        "budget",
    ),
    Fault(
        "Budget by KL: a move down has the reach of one up",
        "trust_regions/budget.py",
        "torch.where(side < 0, down, up)",
        "up",
        "budget",
    ),
    Fault(
        "Budget by KL: what rounding overspends is not taken back",
        "trust_regions/budget.py",
        "torch.log1p(share * up)",
        "torch.log1p(up)",
        "budget::test_float32_leaves_little_of_the_budget_of_a_short_response",
    ),
    Fault(
        "Budget by chi2: the slope without its two",
        "trust_regions/budget.py",
        "reach = 0.5 * rest / p",
        "reach = rest / p",
        "budget",
    ),
    Fault(
        "Budget by TV: what cheaper tokens spent is forgotten",
        "trust_regions/budget.py",
        "(budget - before) / there",
        "budget / there",
        "budget",
    ),
    Fault(
        "PrefixBudget: what was saved widens the band",
        "trust_regions/budget.py",
        "balance.clamp(max=0)",
        "balance",
        "budget",
    ),
    Fault(
        "PrefixBudget: the last weight is not reached",
        "trust_regions/budget.py",
        "(mask.sum(-1, keepdim=True) - 1).clamp(min=1)",
        "mask.sum(-1, keepdim=True)",
        "budget::test_the_radius_of_a_prefix_is_the_papers_in_a_loop",
    ),
    Fault(
        "explorer: the others are rescaled the wrong way",
        "docs/explorer/operator.js",
        "p * f(ratio(p, t)) + (1 - p) * f(-Math.log1p(p * Math.expm1(t)))",
        "p * f(ratio(p, t)) + (1 - p) * f(Math.log1p(p * Math.expm1(t)))",
        "explorer::test_the_operator_is_bandpos",
    ),
    Fault(
        "explorer: a token is in a union if it is in both",
        "docs/explorer/operator.js",
        "a.contains(logP, logR) || b.contains(logP, logR)",
        "a.contains(logP, logR) && b.contains(logP, logR)",
        "explorer::test_a_token_is_inside_where_it_is_by_bandpo",
    ),
    Fault(
        "explorer: a clip stops a token that comes back",
        "docs/explorer/operator.js",
        "good ? r > high : r < low; // outside",
        "r > high || r < low; // outside",
        "explorer::test_surrogate_and_push_are_bandpos",
    ),
    Fault(
        "explorer: rare is what is not rare",
        "docs/explorer/tokens.js",
        "if (tokens.old[i] <= TAIL) count.rare",
        "if (tokens.old[i] > TAIL) count.rare",
        "explorer::test_counts_of_a_run_are_those_of_calibrate",
    ),
    Fault(
        "explorer: tokens of padding are read",
        "docs/explorer/tokens.js",
        "      if (mask && !mask[i]) return;\n",
        "",
        "explorer::test_files_are_read_as_calibrate_reads_them",
    ),
    Fault(
        "explain: where a rule leaves more room it is tighter",
        "explain/explanation.py",
        "return _sign(b - a)",
        "return _sign(a - b)",
        "explanation",
    ),
    Fault(
        "explain: what is infinite is a number in JSON",
        "explain/data.py",
        "float(x) if math.isfinite(x) else None",
        "float(x)",
        "explanation",
    ),
    Fault(
        "explain: the tighter half of an intersection is not named",
        "trust_regions/combinators.py",
        "return a.log_low >= b.log_low, a.log_high <= b.log_high",
        "return a.log_low <= b.log_low, a.log_high <= b.log_high",
        "explanation::test_what_stops_a_token_is_named",
    ),
    Fault(
        "a name of a method with capitals is unknown",
        "losses/methods.py",
        'return "-".join(text.lower().replace("_", " ").split())',
        'return "-".join(text.replace("_", " ").split())',
        "methods::test_a_name_is_known_whatever_its_capitals_and_as_its_paper_has_it",
    ),
    Fault(
        "a missing field of a node is named by Python",
        "trust_regions/base.py",
        "if missing := [name for name in needed if name not in values]:",
        "if missing := []:",
        "trust_regions",
    ),
    Fault(
        "a setting that is changed in a made trainer is followed by half",
        "integrations/trl_settings.py",
        "        if value != before.get(name):\n",
        "        if False:\n",
        "trl::test_a_setting_that_is_changed_in_a_made_trainer_is_refused_by_name_at_the_next_step",
    ),
    Fault(
        "an epsilon that looks like a bound is taken as it is",
        "trust_regions/rules.py",
        "if not 0.5 <= low < 1 < high <= 2:",
        "if not 0.5 <= low < 1 < high <= 1:",
        "methods::test_an_epsilon_that_looks_like_a_bound_is_doubted",
    ),
    Fault(
        "every process says what the rule allows",
        "integrations/__init__.py",
        'if os.environ.get("RANK", "0") == "0":',
        "if True:",
        "methods::test_what_a_rule_allows_is_said_once_and_by_the_first_process",
    ),
    Fault(
        "doctor: epsilon_high beside a rule passes",
        "integrations/trl_settings.py",
        " or args.epsilon_high is not None:",
        ":",
        "doctor_trl",
    ),
    Fault(
        "doctor: the rule that a script gives the trainer is not read",
        "training/doctor_scripts.py",
        "            rule = read(rules[0])\n",
        "            rule = None\n",
        "doctor_trl",
    ),
    Fault(
        "bandpo train starts the lab unasked",
        "cli/show_training.py",
        'in ("model", "scene") for text in settings):',
        'in ("model", "scene", "rounds") for text in settings):',
        "cli::test_wrong_arguments_are_one_line",
    ),
    Fault(
        "a row of the lab is wider than 80 columns",
        "cli/show_training.py",
        '"{:>22.22} {:>4}',
        '"{:>22} {:>4}',
        "show",
    ),
    Fault(
        "doctor: TRL's steps without the iterations",
        "doctor/on_trl.py",
        "if accumulation % (steps * iterations) == 0:",
        "if accumulation % steps == 0:",
        "doctor_trl",
    ),
    Fault(
        "doctor: a dead clip for a ratio of 1",
        "training/doctor_logs.py",
        "if max(ratios) <= _ROUNDING:",
        "if max(ratios) <= 0:",
        "doctor_trl",
    ),
    Fault(
        "doctor: names whose values are not known are judged",
        "doctor/on_trl.py",
        "if not unknown.isdisjoint(names):",
        "if False:",
        "doctor_trl",
    ),
    Fault(
        "doctor: its lines run on",
        "cli/training.py",
        'wrapped(f"{MARK[finding.level]}  {finding.what}", 6)',
        'f"{MARK[finding.level]}  {finding.what}"',
        "doctor::test_findings_are_as_wide_as_the_terminal",
    ),
    Fault(
        "score: a column of a folder is dropped in silence",
        "cli/evals.py",
        "if given and all(",
        "if given and not all(",
        "dumps",
    ),
    Fault(
        "calibrate: the number of a rule in a tuple is that of all",
        "trust_regions/numbers.py",
        "if str(i) == place else each",
        "if str(i) >= place else each",
        "calibrated_rules::test_the_number_of_a_rule_in_a_tuple_has_its_place_in_its_name",
    ),
    # ---- statistics/calibration.py, reports/calibration.py, trust_regions/numbers.py
    Fault(
        "calibrate: a count of tokens that is rounded loses one",
        "statistics/calibration.py",
        "math.floor(most * (1 + 1e-12) + 1e-9)",
        "math.floor(most)",
        "calibration",
    ),
    Fault(
        "calibrate: the error of the interval has a degree of freedom too many",
        "statistics/calibration.py",
        "0) * count / (count - 1)",
        "0)",
        "calibration",
    ),
    Fault(
        "calibrate: few tokens outside make a small error",
        "statistics/calibration.py",
        "    variance[:answer] = np.maximum(variance[:answer], variance[answer])\n",
        "",
        "calibration",
    ),
    Fault(
        "calibrate: the bisection forgets who is outside already",
        "statistics/calibration.py",
        "tokens[~is_outside], more + int(is_outside.sum())",
        "tokens[~is_outside], more",
        "calibration",
    ),
    Fault(
        "calibrate: a token that no number lets in counts as the last to come in",
        "statistics/calibration.py",
        "np.where(never, np.inf, np.where(held, high, 0.0))",
        "np.where(held, high, 0.0)",
        "calibration",
    ),
    Fault(
        "calibrate: a rule that widens counts as one that narrows",
        "statistics/calibration.py",
        "(now & ~before).sum()",
        "(before & ~now).sum()",
        "calibration",
    ),
    Fault(
        "calibrate: tokens on the side away from which A drives them are cut",
        "reports/calibration.py",
        "(cast(Floats, advantages) * np.sign(ratio)) > 0",
        "(cast(Floats, advantages) * np.sign(ratio)) < 0",
        "calibrated_rules",
    ),
    Fault(
        "calibrate: what is not cut has a number too",
        "reports/calibration.py",
        "np.where(moved if sample.counted is None else sample.counted, critical, 0.0)",
        "np.where(moved, critical, 0.0)",
        "calibrated_rules",
    ),
    Fault(
        "calibrate: the number is rounded to the nearest",
        "reports/calibration.py",
        "math.ceil(x / step - 1e-9) * step",
        "round(x / step) * step",
        "calibrated_rules",
    ),
    Fault(
        "calibrate: so many times another rule is as many",
        "reports/calibration.py",
        "wanted = times * np.bincount(",
        "wanted = np.bincount(",
        "calibrated_rules calibrate",
    ),
    Fault(
        "calibrate: a lower epsilon above 1 lets a token in",
        "trust_regions/rules.py",
        "return torch.where(moved.abs() > 1, torch.inf, moved.abs())",
        "return moved.abs()",
        "calibrated_rules",
    ),
    Fault(
        "calibrate: the cap of a rule lets go",
        "trust_regions/combinators.py",
        "torch.where(log_ratio > math.log(self.max_ratio), torch.inf, found)",
        "found",
        "calibrated_rules",
    ),
    # ---- blame, rewards of one's own, what a terminal gets, long logs
    Fault(
        "a fault of a library is one of ours",
        "cli/app.py",
        "if not frames or _is_ours(frames[-1].filename):",
        "if True:",
        "cli::test_what_a_library_raises_is_one_line_that_names_it_and_keeps_the_traceback",
    ),
    Fault(
        "a fault of ours is one of a library",
        "cli/app.py",
        "if not frames or _is_ours(frames[-1].filename):",
        "if not frames:",
        "cli::test_a_bug_is_not_hidden_behind_one_line",
    ),
    Fault(
        "what a chat template refuses is a fault of a library",
        "cli/app.py",
        'if any(frame.name == "apply_chat_template" for frame in frames):',
        "if False:",
        "cli::test_a_chat_template_that_refuses_the_messages_is_named",
    ),
    Fault(
        "what is printed may move the cursor",
        "cli/ending.py",
        "super().write(printable(text))",
        "super().write(text)",
        "cli::test_control_characters_of_others_do_not_reach_a_terminal",
    ),
    Fault(
        "what rich draws may move the cursor",
        "progress.py",
        "yield segment if segment.control else segment._replace(text=printable(segment.text))",
        "yield segment",
        "cli::test_control_characters_of_others_do_not_reach_a_terminal",
    ),
    Fault(
        "rich's own control characters are shown",
        "cli/ending.py",
        "self.rich_proxied_file = _Lenient(stream)",
        "pass",
        "cli::test_what_rich_draws_keeps_its_own_control_characters",
    ),
    Fault(
        "a run whose settings are lost holds no run",
        "config/run_folder.py",
        'if (folder / "run.json").exists() or (folder / "metrics.jsonl").exists():',
        "if False:",
        "cli::test_a_run_whose_settings_are_lost_is_not_sent_in_a_circle",
    ),
    Fault(
        "a lock fails where its folder is removed meanwhile",
        "files/locks.py",
        "if attempt == _ATTEMPTS - 1:",
        "if True:",
        "locks",
    ),
    Fault(
        "half a figure stays on a full disk",
        "reports/figures.py",
        "file = io.BytesIO()",
        'file: Any = (output / f"{name}.{kind}").open("wb")',
        "figures::test_a_figure_is_whole_or_not_there",
    ),
    Fault(
        "a mark of a checkpoint may count below 0",
        "training/checkpoints.py",
        "_Count = Annotated[int, pydantic.Field(ge=0, lt=2**63)]",
        "_Count = Annotated[int, pydantic.Field(lt=2**63)]",
        "on_trl::test_a_mark_with_numbers_that_nobody_writes_is_passed_over",
    ),
    Fault(
        "a reward ends the training without a word",
        "rewards/functions.py",
        "        except (Exception, SystemExit) as error:\n            reason",
        "        except Exception as error:\n            reason",
        "functions::test_a_reward_that_ends_the_process_is_one_that_raises",
    ),
    Fault(
        "a reward empties the trainer's lists",
        "rewards/functions.py",
        "list(value) if isinstance(value, list) else value for key",
        "value for key",
        "functions::test_a_reward_may_do_what_it_likes_with_the_lists_it_is_given",
    ),
    Fault(
        "each call of a reward that is waited for has a loop of its own",
        "rewards/functions.py",
        "return _loop().run(coroutine)",
        "return asyncio.run(coroutine)",
        "functions::test_a_coroutine_is_waited_for_and_guarded",
    ),
    Fault(
        "the running median of an even count is the lower one",
        "statistics/collapse.py",
        "medians.append(-low[0] if len(low) > len(high) else (high[0] - low[0]) / 2)",
        "medians.append(-low[0])",
        "collapse::test_the_running_median_is_the_median_of_each_beginning",
    ),
    Fault(
        "a collapse is put where the first part alone fits",
        "statistics/collapse.py",
        "(1 / before + 1 / (len(part) - before))",
        "(1 / before)",
        "collapse::test_the_break_is_where_two_levels_fit_best",
    ),
    Fault(
        "report: a round without a value has 0",
        "reports/logs.py",
        "np.where(count > 0, total, np.nan), count",
        "total, count",
        "report_of_logs::test_rows_of_a_round_are_summed_and_what_is_not_known_is_left_out",
    ),
    Fault(
        "report: a thinned curve loses its extremes",
        "reports/charts.py",
        "by_height[first], by_height[ends], ends",
        "ends",
        "report_of_logs::test_a_long_curve_is_drawn_from_fewer_points_and_keeps_its_extremes",
    ),
    Fault(
        "watch: a slow look is followed by the next one",
        "cli/show_watch.py",
        "pause = max(every, _PAUSE * (clock() - began))",
        "pause = every",
        "watch::test_what_takes_long_is_done_seldom",
    ),
    Fault(
        "watch: a slow page is drawn at each look",
        "cli/show_watch.py",
        "(began := clock()) >= page_due:",
        "(began := clock()):",
        "watch::test_what_takes_long_is_done_seldom",
    ),
    # ---- logs, reports of logs, watch, answers of other programs
    Fault(
        "report: TRL's last row is not its last step",
        "files/logs.py",
        "max(steps, default=0) >= self.last_step",
        "max(self.at, default=0) >= self.last_step",
        "report_of_logs::test_a_state_says_whether_its_run_is_finished",
    ),
    Fault(
        "report: what its state calls unfinished is in the tables",
        "reports/reading.py",
        "finished = log.ended or log.last_step is None",
        "finished = True",
        "report_of_logs::test_a_state_says_whether_its_run_is_finished",
    ),
    Fault(
        "report: logs of one file name are one method",
        "reports/reading.py",
        "unnamed.count(run.label) > 1",
        "unnamed.count(run.label) > 2",
        "report_of_logs::test_logs_of_one_file_name_are_not_one_method",
    ),
    Fault(
        "report: logs of one label are twins of seed 0",
        "reports/runs.py",
        "run.folder if run.seed is None else run.seed",
        "0 if run.seed is None else run.seed",
        "report_of_logs::test_a_run_is_given_its_methods_name_and_logs_of_one_name_are_runs_of_it",
    ),
    Fault(
        "logs: BandPOTrainer's clip rate is that of one side",
        "reports/logs.py",
        'out.setdefault("clip/fraction", high + low)',
        'out.setdefault("clip/fraction", high)',
        "report_of_logs::test_the_clip_rate_of_bandpo_trainer_is_the_sum_of_its_sides",
    ),
    Fault(
        "report: a verdict from two pairs",
        "reports/words.py",
        "    if n < MIN_SEEDS:",
        "    if n < 2:",
        "report_of_logs::test_two_pairs_are_counted_and_are_too_few",
    ),
    Fault(
        "report: a pair of which nothing is known is left out",
        "reports/words.py",
        "[-1.0] * (n - most)",
        "[-1.0] * min(below, above)",
        "report_of_logs::test_a_pair_of_which_nothing_is_known_speaks_against_a_difference",
    ),
    Fault(
        "report: an interval that holds 0 tells a difference",
        "reports/words.py",
        "interval.low <= 0 <= interval.high",
        "0 <= interval.low <= interval.high",
        "report_of_logs::test_the_interval_is_students_of_the_paired_differences",
    ),
    Fault(
        "report: a sum where runs without pairs are compared",
        "reports/words.py",
        "((1, a), (-1, b))",
        "((1, a), (1, b))",
        "report_of_logs::test_runs_of_logs_are_told_apart_without_pairs",
    ),
    Fault(
        "report: names at the ends leave the picture",
        "reports/charts.py",
        "min(places[i], 1 - gap *",
        "min(places[i], 9 - gap *",
        "page_script::test_names_at_the_ends_stand_apart_within_the_picture_in_the_order_of_the_curves",
    ),
    Fault(
        "report: a colour goes by the place on the page",
        "reports/charts.py",
        "(used[i % 7], (i - wanted) % 7)",
        "(used[i % 7], i % 7)",
        "page_script::test_a_method_keeps_its_look_on_another_page",
    ),
    Fault(
        "report: a head sorts up only",
        "reports/page.js",
        "return sign * (a - b) || i - j;",
        "return a - b || i - j;",
        "page_script::test_a_head_sorts_up_down_and_back",
    ),
    Fault(
        "report: a curve is read beside the pointer",
        "reports/page.py",
        "(46 + (314 - room) * (x - low)",
        "(46 + 314 * (x - low)",
        "page_script::test_a_slider_reads_the_thick_lines_by_key_and_by_pointer",
    ),
    Fault(
        "watch: half a line is damaged",
        "files/logs.py",
        "                        return  # it is being written\n",
        "                        pass\n",
        "logs",
    ),
    Fault(
        "watch: a row that comes again takes the place of none",
        "files/logs.py",
        "if self._begins or any(not name.startswith(_EVALUATION) for name in again):",
        "if self._begins:",
        "logs",
    ),
    Fault(
        "watch: a run that writes has stopped writing",
        "reports/watching.py",
        "elif age > self.silent:",
        "elif age <= self.silent:",
        "watch::test_a_run_that_was_killed_has_stopped_writing",
    ),
    Fault(
        "watch: it is never too early to tell a collapse",
        "reports/watching.py",
        "if self.points < 2 * WINDOW:",
        "if False:",
        "watch::test_it_says_collapsed_and_when_it_is_too_early_to_tell",
    ),
    Fault(
        "answers: each message of a conversation is a sample",
        "evals/texts.py",
        'if all("role" in part for part in each):',
        'if len(each) == 1 and all("role" in part for part in each):',
        "dumps",
    ),
    Fault(
        "answers: the first message of the assistant is the answer",
        "evals/texts.py",
        "for message in reversed(messages):",
        "for message in messages:",
        "dumps",
    ),
    Fault(
        "answers: a text is graded once for each filter of lm-eval",
        "evals/formats.py",
        "None, filters[0] if scorer else None",
        "None, None",
        "dumps",
    ),
    Fault(
        "compare: data sets of one name are renamed",
        "reports/comparison.py",
        "if not set(have[0]).isdisjoint(have[1]):",
        "if False:",
        "comparison",
    ),
    Fault(
        "eval: a limit is sent though it is to be left out",
        "evals/draw.py",
        'if limit_field != "max_tokens" and "max_tokens" in omit:',
        "if False:",
        "draw",
    ),
    Fault(
        "answers: what is left out is not told",
        "evals/results.py",
        "notes=tuple(left_out)",
        "notes=()",
        "dumps",
    ),
    Fault(
        "answers: verl's questions are told apart by their texts alone",
        "evals/dumps.py",
        '_hash([values[problem], row["gts"]] if of_verl else values[problem])',
        "_hash(values[problem])",
        "dumps",
    ),
    Fault(
        "answers: a wrong answer of verl's with a reward of 0 is right",
        "evals/dumps.py",
        "return float(number > 0)",
        "return float(number >= 0)",
        "dumps",
    ),
    # ---- numbers that are not finite
    Fault(
        "an infinite number is a number",
        "numerics.py",
        "both.isfinite().all(1)",
        "both.isnan().logical_not().all(1)",
        "numerics::test_tensors_that_are_not_finite_are_named",
    ),
    Fault(
        "a loss of NaN is nothing to end a training by",
        "integrations/trl_finite.py",
        '["the loss"] if lost and not skipped else []',
        "[]",
        "trl_finite::test_a_loss_alone_ends_training_also_in_the_first_of_two_micro_batches",
    ),
    Fault(
        "the loss of the last micro-batch alone is looked at",
        "integrations/trl_finite.py",
        "fine if self._fine is None else self._fine & fine",
        "fine",
        "trl_finite::test_a_loss_alone_ends_training_also_in_the_first_of_two_micro_batches",
    ),
    Fault(
        "weights are looked at before the first step only",
        "integrations/trl_finite.py",
        "names = not_finite(shards)",
        "names = not_finite(shards) if not state.global_step else []",
        "trl_finite::test_a_weight_is_seen_that_no_loss_reads",
    ),
    Fault(
        "a model that is broken from the start is trained",
        "integrations/trl_finite.py",
        "self._look(args, state, _shards(model, every=True), skipped=False, change=change)",
        "pass",
        "trl_finite::test_a_single_number_of_a_weight_is_seen_in_its_step",
    ),
    Fault(
        "ZeRO-3: the empty weight is looked at, not the shard",
        "integrations/trl_finite.py",
        'getattr(parameter, "ds_tensor", parameter)',
        "parameter",
        "trl_finite::test_the_part_of_a_weight_that_zero_3_leaves_a_process_is_looked_at",
    ),
    Fault(
        "each process ends by its own shard",
        "integrations/trl_finite.py",
        'self.accelerator.reduce(flags, reduction="sum").tolist()',
        "flags.tolist()",
        "trl_finite::test_each_process_looks_at_its_shard_and_all_end_together",
    ),
    Fault(
        "a step that a loss scaler skipped ends a training by its loss",
        "integrations/trl_finite.py",
        "if lost and not skipped else",
        "if lost else",
        "trl_finite::test_a_loss_that_is_not_finite_in_a_skipped_step_is_the_scalers",
    ),
    Fault(
        "what a fused optimizer skips is not counted",
        "integrations/trl_finite.py",
        " or self._scale < before",
        "",
        "trl_finite::test_skipped_steps_are_counted_in_the_rows_and_are_no_reason_to_stop",
    ),
    Fault(
        "skipped steps add up over those that were made",
        "integrations/trl_finite.py",
        "self._in_a_row = self._in_a_row + 1 if skipped else 0",
        "self._in_a_row += skipped",
        "trl_finite::test_twenty_skipped_steps_in_a_row_stop",
    ),
    Fault(
        "TRL deletes good checkpoints for broken ones",
        "integrations/trl_finite.py",
        "args.save_total_limit = None",
        "pass",
        "trl_finite::test_who_wants_to_goes_on_is_warned_once_and_keeps_the_checkpoints",
    ),
    Fault(
        "an infinite reward is learned from",
        "integrations/trl_finite.py",
        "if values.isinf().any()",
        "if values.isinf().all()",
        "trl_finite::test_rewards_that_nothing_can_be_learned_from_end_training",
    ),
    Fault(
        "a single missing reward ends a training",
        "integrations/trl_finite.py",
        "elif scores.isnan().all():",
        "elif scores.isnan().any():",
        "trl_finite::test_a_missing_reward_is_nobodys_baseline_and_has_no_advantage",
    ),
    Fault(
        "a deviation that overflows is not seen",
        "integrations/trl_finite.py",
        ".square().nansum(-1)",
        ".abs().nansum(-1)",
        "trl_finite::test_rewards_that_nothing_can_be_learned_from_end_training",
    ),
    Fault(
        "a loss of NaN is shown as 0",
        "integrations/trl.py",
        "kept.logging_nan_inf_filter = False",
        "kept.logging_nan_inf_filter = True",
        "trl_finite::test_who_wants_to_goes_on_is_warned_once_and_keeps_the_checkpoints",
    ),
    Fault(
        "TRL's clamp: tokens that are not finite are not counted",
        "integrations/trl.py",
        "((log_ratio.isnan() | ~advantages.isfinite()) & mask)",
        "(log_ratio.isnan() & mask)",
        "trl_finite::test_a_row_of_the_batch_that_is_not_finite_ends_training_in_its_step",
    ),
    Fault(
        "padding counts as tokens that are not finite",
        "losses/policy.py",
        "(broken & mask).sum(-1, keepdim=True)",
        "broken.sum(-1, keepdim=True)",
        "metrics::test_tokens_whose_loss_is_not_finite_are_counted",
    ),
    Fault(
        "a broken checkpoint is marked as whole",
        "training/on_trl.py",
        "not self.guard.sound",
        "False",
        "on_trl::test_a_broken_checkpoint_is_not_marked_and_none_is_deleted_for_it",
    ),
    Fault(
        "a run goes on from a broken checkpoint",
        "training/checkpoints.py",
        "return fault or _broken(folder)",
        "return fault",
        "on_trl::test_a_marked_checkpoint_whose_weights_are_not_finite_is_passed_over",
    ),
    Fault(
        "nothing says why a run was stopped",
        "training/on_trl.py",
        '{**facts, "stopped": str(error)}',
        "facts",
        "on_trl::test_a_run_that_breaks_ends_there_and_keeps_its_last_good_checkpoint",
    ),
    Fault(
        "a run that ended cannot go on without its guard",
        "config/run_folder.py",
        'free = {"output", "stop_if_not_finite"}',
        'free = {"output"}',
        "on_trl::test_a_broken_checkpoint_is_not_marked_and_none_is_deleted_for_it",
    ),
    Fault(
        "the fast lab goes on with weights of NaN",
        "fast_lab.py",
        "if not_finite(all_of_it):",
        "if not_finite(all_of_it[-1:]):",
        "fast_lab::test_a_run_that_breaks_ends_at_its_step_and_is_named",
    ),
    Fault(
        "a broken model gets a score",
        "evals/backends/transformers.py",
        "if names := not_finite(model.named_parameters()):",
        "if names := not_finite(()):",
        "transformers::test_a_model_that_a_training_broke_is_not_scored",
    ),
    Fault(
        "null in a log is nothing",
        "files/logs.py",
        "value is None or (isinstance(value, float)",
        "(isinstance(value, float)",
        "logs::test_what_is_not_finite_in_a_log_is_said_with_its_first_step",
    ),
    Fault(
        "a run that broke is waited for",
        "reports/watching.py",
        'return self.state in ("finished", "stopped")',
        'return self.state == "finished"',
        "watch::test_a_run_that_broke_is_said_to_have_and_is_not_waited_for",
    ),
    # ---- data/golds.py, data/problems.py
    Fault(
        "data: messages that end with the solution are asked as they are",
        "data/problems.py",
        "messages = messages[:asked]",
        "messages = messages[:]",
        "golds",
    ),
    Fault(
        "data: of several accepted answers the first is taken in silence",
        "data/golds.py",
        "if len(texts) > 1:",
        "if len(texts) > 99:",
        "golds",
    ),
    Fault(
        "data: the first box of a solution is its answer",
        "data/golds.py",
        "found[-1].start() : end], text[start",
        "found[0].start() : end], text[found[0].end()",
        "golds",
    ),
    Fault(
        "data: a placeholder is an answer",
        "data/golds.py",
        "if text.casefold() in _PLACEHOLDERS:",
        "if text in ():",
        "golds",
    ),
    Fault(
        "servers: a reply is read to its end, however long",
        "evals/backends/replies.py",
        "if len(content) > self.most:",
        "if False:",
        "server::test_what_fails_now_and_then_is_an_outcome_of_its_sample",
    ),
    Fault(
        "servers: a redirect is followed",
        "evals/backends/replies.py",
        "super().__init__(follow_redirects=False)",
        "super().__init__(follow_redirects=True)",
        "server::test_a_redirect_takes_nothing_with_it",
    ),
    Fault(
        "servers: a 200 without an answer is not tried again",
        "evals/backends/replies.py",
        'status = int(code) if re.fullmatch("[45][0-9][0-9]", code) else 502',
        'status = int(code) if re.fullmatch("[45][0-9][0-9]", code) else 400',
        "replies",
    ),
    Fault(
        "servers: a question that is too long is tried again where the server calls it an error of its own",
        "evals/backends/replies.py",
        'return Failure("context_length", said, 400)',
        'return Failure("context_length", said, status)',
        "replies",
    ),
    Fault(
        "servers: the prompt that an error repeats is read as its reason",
        "evals/backends/replies.py",
        'if name not in ("input", "flagged_input")',
        "if name",
        "replies",
    ),
    Fault(
        "servers: reasoning is thrown away",
        "evals/backends/replies.py",
        'message.get("reasoning") or message.get("reasoning_content")',
        'message.get("reasoning")',
        "replies",
    ),
    Fault(
        "servers: every sample of one question that fails counts towards the end",
        "evals/backends/server.py",
        "failed.add(request.key if reply.everyone else str(request.content))",
        "failed.add(request.key)",
        "server::test_a_question_that_never_passes_is_not_the_end_of_the_others",
    ),
    Fault(
        "servers: failures count towards the end though others are answered between them",
        "evals/backends/server.py",
        "failed.clear()",
        "pass",
        "server::test_failures_among_answers_are_not_the_end",
    ),
    Fault(
        "servers: what is on its way when the end comes is thrown away",
        "evals/backends/server.py",
        "                if not running:\n                    break",
        "                if stopped or not running:\n                    break",
        "server::test_a_server_that_goes_away_is_not_asked_for_all_the_rest_and_what_is_on_its_way_is_kept",
    ),
    Fault(
        "servers: failures are kept before anything was answered, and bind the settings",
        "evals/backends/server.py",
        "if self._answered:\n                        yield held.pop()",
        "if True:\n                        yield held.pop()",
        "server::test_a_server_that_answers_nothing_is_one_line_and_nothing_is_kept",
    ),
    Fault(
        "servers: a key in the query of an address is shown where the server repeats it",
        "evals/backends/server.py",
        "written = [self.key, *values, ",
        "written = [self.key, ",
        "server::test_a_key_in_the_address_is_sent_as_it_stands_and_shown_nowhere",
    ),
    Fault(
        "servers: a failure is graded, and its grade stays when the answer comes",
        "evals/grades.py",
        'if sample.finish != "error"]',
        "if True]",
        "draw::test_what_a_server_does_not_answer_is_wrong_and_what_may_pass_is_tried_again",
    ),
    Fault(
        "servers: what cannot pass is tried again",
        "evals/recording.py",
        'return self._where("error")',
        'return [each for kind in ("error", "context_length") for each in self._where(kind)]',
        "draw::test_what_a_server_does_not_answer_is_wrong_and_what_may_pass_is_tried_again",
    ),
    Fault(
        "worlds: a guess is always lucky",
        "worlds/kernel.py",
        "first == GUESS and uniform(for_luck, i) < sizes.luck",
        "first == GUESS and uniform(for_luck, i) < 1.0",
        "training",
    ),
    Fault(
        "worlds: the policy that draws never lags",
        "worlds/kernel.py",
        "at = max(round - sizes.stale, 0) % (sizes.stale + 1)",
        "at = round % (sizes.stale + 1)",
        "training",
    ),
    Fault(
        "worlds: no rewards are flipped",
        "worlds/kernel.py",
        "1.0 if right != (uniform(for_flips, i) < sizes.flip) else 0.0",
        "1.0 if right else 0.0",
        "training",
    ),
    Fault(
        "worlds: all minibatches are divided by the tokens of the first",
        "worlds/kernel.py",
        "made.tokens[g // part] += here",
        "made.tokens[0] += here",
        "training",
    ),
    Fault(
        "worlds: what is subtracted to balance advantages is that of one response",
        "worlds/kernel.py",
        "advantage = less(advantage, excess * made.count[e])",
        "advantage = less(advantage, excess)",
        "training",
    ),
    Fault(
        "worlds: the weight of an objective is forgotten",
        "worlds/learner.py",
        "self.positive_weight * objective.positive_weight)",
        "self.positive_weight)",
        "training",
    ),
    Fault(
        "contest: a third is cut off at each end of the interquartile mean",
        "statistics.py",
        "cut = flat.shape[-1] // 4",
        "cut = flat.shape[-1] // 3",
        "contest",
    ),
    Fault(
        "contest: a tie is an improvement",
        "statistics.py",
        "wins = (a > b) + 0.5 * (a == b)",
        "wins = (a >= b) * 1.0",
        "contest",
    ),
    Fault(
        "contest: a run that ended in NaN is not lost",
        "statistics.py",
        "k = int((~(found >= below)).sum())",
        "k = int((found < below).sum())",
        "contest",
    ),
    Fault(
        "contest: paired samples are drawn apart",
        "statistics.py",
        "if drawn is None or not paired:",
        "if True:",
        "contest",
    ),
    Fault(
        "contest: tasks with the same label are drawn apart",
        "statistics.py",
        "labels = list(range(len(array)) if groups is None else groups)",
        "labels = list(range(len(array)))",
        "contest",
    ),
    Fault(
        "contest: Bonferroni in the place of Holm",
        "statistics.py",
        "p[order] * np.arange(len(p), 0, -1)",
        "p[order] * len(p)",
        "contest",
    ),
    Fault(
        "bench: a cell's key knows nothing of the scene's fields",
        "bench/cells.py",
        "told = [_content(self.world), self.learner",
        "told = [self.world, self.learner",
        "cells",
    ),
    Fault(
        "bench: a row that was changed is taken",
        "bench/cells.py",
        "    if right != key:",
        "    if False:",
        "cells",
    ),
    Fault(
        "bench: a row that comes out otherwise is taken",
        "bench/running.py",
        "if now != then)",
        "if False)",
        "running",
    ),
    Fault(
        "bench: rows of other seeds are taken",
        "bench/choosing.py",
        'if row["seeds"] != [seeds.start, len(seeds)]:',
        "if False:",
        "choosing",
    ),
    Fault(
        "bench: settings are judged on seeds that chose them",
        "bench/choosing.py",
        "if max(part.start, one.seeds.start) < min(part.stop, one.seeds.stop):",
        "if False:",
        "choosing",
    ),
    Fault(
        "bench: more settings may be tried of one family",
        "bench/choosing.py",
        "if one.searched != base.searched:",
        "if False:",
        "choosing",
    ),
    Fault(
        "bench: the search decides, and not the second stage",
        "bench/choosing.py",
        "each.chosen = max(means, key=lambda place: (means[place], -place))",
        "each.chosen = each.best()[0]",
        "choosing",
    ),
    # ---- folders and recipes of strangers
    Fault(
        "strangers: report imports the rule of a run",
        "reports/reading.py",
        'own = None if trust else own_type(config["trust_region"])',
        "own = None",
        "strangers::test_no_command_that_reads_imports_what_is_named",
    ),
    Fault(
        "strangers: two rules that are not loaded are one",
        "reports/reading.py",
        'return (self.config or {}).get("trust_region") if self.own is not None else self.objective',
        "return self.objective",
        "strangers::test_two_rules_under_one_label_are_two_where_neither_is_loaded",
    ),
    Fault(
        "strangers: doctor imports the rule of TRL's settings",
        "doctor/on_trl.py",
        "elif not trust and (own := own_type(rule)) is not None:",
        "elif (own := None) is not None:",
        "strangers::test_no_command_that_reads_imports_what_is_named",
    ),
    Fault(
        "strangers: doctor imports the rule of verl's settings",
        "doctor/on_verl.py",
        "if not trust and (own := own_type(node)) is not None:",
        "if (own := None) is not None:",
        "strangers::test_no_command_that_reads_imports_what_is_named",
    ),
    Fault(
        "strangers: doctor's processes look into the working directory",
        "doctor/installed.py",
        '[sys.executable, "-P", "-c", script]',
        '[sys.executable, "-c", script]',
        "doctor::test_a_process_that_is_asked_imports_nothing_of_the_working_directory",
    ),
    Fault(
        "strangers: eval reads the rule of a run",
        "data/question_sets.py",
        'if key != "trust_region"})',
        "})",
        "strangers::test_no_command_that_reads_imports_what_is_named",
    ),
    Fault(
        "strangers: verl --print imports the rule",
        "training/on_verl.py",
        "if trust or own_type(rule) is None:",
        "if True:",
        "strangers::test_no_command_that_reads_imports_what_is_named",
    ),
    Fault(
        "strangers: a node that is written as text is not looked into",
        "trust_regions/notation.py",
        "            node = node_of_text(node)",
        "            pass",
        "own_rules::test_a_type_of_ones_own_is_found_in_a_text",
    ),
    Fault(
        "strangers: Python code that makes a rule imports its module",
        "losses/notation.py",
        "if make is trust_region and",
        "if make is None and",
        "own_rules::test_a_type_of_ones_own_is_found_in_a_text",
    ),
    Fault(
        "strangers: rules within rules are not looked into",
        "trust_regions/notation.py",
        'parts = cast("list[Any]", node) if isinstance(node, list | tuple) else []',
        "parts: list[Any] = []",
        "own_rules::test_a_type_of_ones_own_is_found_at_any_depth_without_an_import",
    ),
    Fault(
        "strangers: python -m keeps the working directory first",
        "path.py",
        "if is_module and not sys.flags.safe_path:",
        "if False:",
        "strangers::test_python_m_leaves_the_working_directory_out",
    ),
    Fault(
        "strangers: an empty entry of PYTHONPATH stays",
        "path.py",
        "if here not in map(os.path.abspath, named):",
        "if False:",
        "strangers::test_an_empty_entry_of_pythonpath_leaves_it_out",
    ),
    Fault(
        "strangers: the working directory goes before the libraries",
        "rewards/functions.py",
        "sys.path.append(here)",
        "sys.path.insert(0, here)",
        "functions::test_a_module_there_takes_the_place_of_no_other",
    ),
    Fault(
        "strangers: the trainer's mappings are not looked into",
        "config/recipe.py",
        "            check_mapping(key, value)\n",
        "            pass\n",
        "trust",
    ),
    Fault(
        "strangers: any argument may go to a loader",
        "config/trust.py",
        "if name not in allowed:",
        "if False:",
        "trust",
    ),
    Fault(
        "strangers: a kernel of the hub as the reference's attention",
        "config/trust.py",
        "if allowed[name] and given not in allowed[name]:",
        "if False:",
        "trust",
    ),
    Fault(
        "strangers: a kernel of the hub as a model's attention",
        "config/trust.py",
        'if "/" in str(kernel):',
        "if False:",
        "trust",
    ),
    Fault(
        "strangers: a part of a model is not looked into",
        "config/trust.py",
        'parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))]',
        "parts = [config]",
        "trust",
    ),
    Fault(
        "strangers: train loads a kernel that a model names",
        "training/on_trl.py",
        "check_attention(AutoConfig.from_pretrained(path, trust_remote_code=False))",
        "pass",
        "strangers::test_no_kernel_that_a_models_folder_names_is_loaded",
    ),
    Fault(
        "strangers: eval loads a kernel that a model names",
        "evals/backends/transformers.py",
        "check_attention(AutoConfig.from_pretrained(model, trust_remote_code=False))",
        "pass",
        "strangers::test_no_kernel_that_a_models_folder_names_is_loaded",
    ),
    Fault(
        "strangers: an upload is not said",
        "cli/show_training.py",
        "if sent := sent_away(config.trainer):",
        "if sent := []:",
        "strangers::test_a_recipe_that_sends_data_out_is_said_before_it_starts",
    ),
]


def copy_of_the_tree(where: Path) -> Path:
    """What the tests need, without bytecode, which could be older than a fault."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, where / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, where / name)
    return where


def place(fault: Fault, tree: Path = ROOT) -> Path:
    if fault.file.startswith("docs/"):
        return tree / fault.file
    (found,) = [path for each in PACKAGES if (path := tree / each / fault.file).exists()]
    return found


def faulty(fault: Fault) -> str:
    """The text of the fault's file with the fault; the end of the run if the list does not fit the source any more."""
    text = place(fault).read_text()
    if (times := text.count(fault.old)) != 1:
        raise SystemExit(f"{fault.name!r}: {fault.old!r} must occur once in {fault.file}, it occurs {times} times")
    return text.replace(fault.old, fault.new)


def run_tests(tree: Path, tests: list[str], output: Path) -> None:
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree / "src")
    sys.path.insert(0, str(tree / "src"))
    sys.exit(pytest.main(["-x", "-q", "-n", "0", "-m", "", "-p", "no:cacheprovider", "--deselect", SLOW, *tests]))


def first_to_fall(tests: list[str], fault: Fault | None = None) -> str:
    """The first test that fails on a copy with the fault, or SURVIVED. What cannot be run at all has caught nothing."""
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_the_tree(Path(folder))
        if fault is not None:
            place(fault, tree).write_text(faulty(fault))
            if fault.file.startswith("docs/explorer/"):  # the page is made of it anew
                subprocess.run([sys.executable, "docs/explorer.py"], cwd=tree, check=True, capture_output=True)
        # A fork has torch and pytest loaded, which takes longer than most of the tests; bandpo it loads from the tree.
        child = multiprocessing.get_context("fork").Process(target=run_tests, args=(tree, tests, tree / "output"))
        child.start()
        child.join()
        output = (tree / "output").read_text()
    if child.exitcode == 0:
        return SURVIVED
    # Without its parameters, which may be objects at an address.
    fell = re.search(r"^FAILED ((?:research/)?tests/\S+?::[\w:]+)", output, re.MULTILINE)
    if child.exitcode != 1 or fell is None:
        raise SystemExit(f"the tests did not run:\n{output[-5000:]}")
    return fell[1]


def test_of(name: str) -> str:
    """tests/losses/test_policy.py::test_x of policy::test_x."""
    stem, *rest = name.split("::")
    (file,) = [*(ROOT / "tests").rglob(f"test_{stem}.py"), *(ROOT / "research" / "tests").glob(f"test_{stem}.py")]
    return "::".join([str(file.relative_to(ROOT)), *rest])


def try_out(fault: Fault, commit: str) -> dict[str, str]:
    began = time.perf_counter()
    tests = [test_of(name) for name in fault.tests.split()]
    test = first_to_fall(tests, fault)
    values = fault.name, fault.file, test, f"{time.perf_counter() - began:.0f}", commit
    return dict(zip(COLUMNS, values, strict=True))


def write_rows(rows: list[dict[str, str]]) -> None:
    """These rows in the place of older ones of the same faults, in the order of the list."""
    known: dict[str, dict[str, str]] = {}
    if ROWS.exists():
        with ROWS.open(newline="") as file:
            known = {row["fault"]: row for row in csv.DictReader(file)}
    known |= {row["fault"]: row for row in rows}
    with ROWS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(known[fault.name] for fault in FAULTS if fault.name in known)


def common(a: str, b: str) -> int:
    """How many characters both begin with."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def shortened(fault: Fault) -> tuple[str, str]:
    """Old and new text on one line each, without most of what both have at their ends."""
    old, new = (" ".join(text.split()) for text in (fault.old, fault.new))
    before = common(old, new)
    behind = common(old[before:][::-1], new[before:][::-1])
    first, last = max(before - 25, 0), max(behind - 12, 0)

    def part(text: str) -> str:
        middle = text[first : len(text) - last].replace("|", "\\|")
        return f"`{'…' * (first > 0)}{middle}{'…' * (last > 0)}`"

    return part(old), part(new) if new else "nothing"


def page() -> str:
    with ROWS.open(newline="") as file:
        rows = {row["fault"]: row for row in csv.DictReader(file)}
    if missing := [fault.name for fault in FAULTS if fault.name not in rows]:
        raise SystemExit(f"no row for {missing}: run --only ... --write first")
    caught = sum(row["test"] != SURVIVED for row in rows.values())
    lines = [INTRODUCTION.format(planted=len(FAULTS), caught=caught)]
    for fault in FAULTS:
        old, new = shortened(fault)
        test = rows[fault.name]["test"].removeprefix("research/").removeprefix("tests/").replace(".py::", ": ")
        lines.append(f"| {fault.name} | {fault.file} | {old} | {new} | {test} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of faults, or files of the core")
    parser.add_argument("--write", action="store_true", help="write the rows")
    parser.add_argument("--page", action="store_true", help="write the page from the rows, and run nothing")
    arguments = parser.parse_args()
    for fault in FAULTS:
        faulty(fault)
    if arguments.page:
        PAGE.write_text(page())
        return
    faults = [f for f in FAULTS if not arguments.only or {f.name, f.file} & set(arguments.only)]
    if not faults:
        raise SystemExit(
            f"--only must name faults or files of {sorted({f.file for f in FAULTS})}, got {arguments.only}"
        )
    commit = subprocess.check_output(["git", "log", "-1", "--format=%h", "--", "src"], cwd=ROOT, text=True).strip()
    rows: list[dict[str, str]] = []
    for fault in faults:
        row = try_out(fault, commit)
        print(
            f"{len(rows) + 1:3}/{len(faults)} {row['seconds']:>4} s  {fault.file:15} {fault.name}: {row['test']}",
            flush=True,
        )
        rows.append(row)
        if arguments.write:
            write_rows(rows)
    fallen = sorted({row["test"] for row in rows} - {SURVIVED})
    if fallen and (test := first_to_fall(fallen)) != SURVIVED:
        raise SystemExit(f"{test} falls without a fault too")
    survivors = [row["fault"] for row in rows if row["test"] == SURVIVED]
    raise SystemExit(f"not noticed: {survivors}" if survivors else 0)


if __name__ == "__main__":
    main()
