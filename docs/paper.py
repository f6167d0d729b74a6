"""Write docs/paper.md, an index of the paper's statements, and research/pages/paper_statements.md, the derivations.

    python docs/paper.py

The pages are made of the table and the texts below, of numbers that bandpo computes, and of rows. `faults` says what
does not fit: a statement of the paper without a function or a test, a name that does not exist, a label that only a
docstring or only the page knows. tests/test_paper_page.py runs it, and compares the committed pages with new ones.
"""
# ruff: noqa: E501  (tables)

import ast
import csv
import inspect
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import bandpo
from bandpo import band, losses, trust_regions

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "paper.md"
DERIVATIONS = ROOT / "research" / "pages" / "paper_statements.md"
CLAIMS = ROOT / "research" / "grids" / "random_rewards_claims.csv"

# Every LaTeX label of arXiv 2603.04918v1.
LABELS = """
    sec:intro fig:3d-vis-compare fig:probability_variation fig:combined_comparison sec:preliminaries subsec:notation
    subsec:clipRL eq:grpo eq:token_objective sec:bottlenecks eq:fixed_ratio_range eq:fixed_variation_range_set
    eq:theoretical_variation_range_set eq:theory_ratio_range sec:method subsec:f_trust_region eq:f_divergence_def
    eq:f_trust_region_set subsec:band_def eq:ratio_func_def eq:upper_bound_opt eq:lower_bound_opt eq:band_operator
    subsec:reduction lem:complement_rescaling eq:q_star_structure eq:scalar_g_derivation thm:scalar_reduction
    eq:scalar_g_def eq:r_start_lower eq:r_start_upper subsec:properties fig:probability_ratio prop:limits eq:all_limits
    prop:monotonicity subsec:solving prop:saturation prop:closedform eq:tv_bounds eq:chi2_bounds subsec:bandpo
    eq:bandpo_full eq:bandpo_token_loss tab:main_results sec:relaxed_band_analysis sec:delta_radius fig:sub1 fig:sub2
    fig:sub3 fig:analysis_dynamics sec:analysis_tail sec:discussion app:proofs app:proof_lemma_scaling
    app:proof_thm_scalar app:proof_prop_limits app:proof_prop_monotonicity eq:bregman_identity app:proof_prop_saturation
    app:numerical_solver app:solver_proofs lem:gf_monotone_intervals thm:bisection_global app:solver_bisection_alg
    app:proof_prop_closedform eq:proof_binding_eq eq:clamp_final_bounds
""".split()  # noqa: SIM905
# What must have a function and a test; sections, figures and tables may.
STATED = ("lem", "thm", "prop", "eq")
A_LABEL = re.compile(r"\b(?:lem|thm|prop|eq|sec|subsec|fig|tab|app):[\w-]+")

DEFINITION, HOLDS, CORRECTED, FALSE = "definition", "holds", "holds with correction", "false as stated"
PARTLY, SEEN, NOT_SEEN = "holds in part", "holds in the public logs", "not so in the public logs"
IN_WORLDS, NOT_IN_WORLDS, UNSUPPORTED = "holds in small worlds", "not so in small worlds", "not supported"
IN_ONE_WORLD = "holds in one world"


@dataclass(frozen=True)
class Statement:
    labels: str
    claim: str
    verdict: str
    functions: str
    tests: str  # of tests/test_paper.py, or file.py::test
    section: str = ""  # with the proof: of research/pages/paper_statements.md, or one of `ELSEWHERE`
    correction: str = ""


STATEMENTS = (
    # -- the bottleneck
    Statement(
        "eq:fixed_ratio_range eq:fixed_variation_range_set",
        "A clip keeps $r$ in $[1-\\epsilon_-,1+\\epsilon_+]$: the rise of probability that it allows is linear in $p$.",
        HOLDS,
        "Clip Bounds.variation Bounds.eps_low Bounds.eps_high",
        "test_eq_fixed_variation_range_set "
        "trust_regions/test_trust_regions.py::test_clip_is_the_two_given_epsilons "
        "test_epsilons_of_a_bound_are_one_minus_and_plus_its_ratios",
    ),
    Statement(
        "eq:theoretical_variation_range_set eq:theory_ratio_range",
        "The simplex allows $-p\\le\\Delta p\\le1-p$, that is $0\\le r\\le1/p$.",
        HOLDS,
        "Bounds.variation band_bounds",
        "test_eq_theoretical_variation_range_set test_eq_theory_ratio_range",
    ),
    Statement(
        "sec:bottlenecks",
        "For a token of $p=0.08$ a clip allows $\\Delta p\\le0.016$, where exploration wants about $0.4$.",
        CORRECTED,
        "Clip band_bounds Capped",
        "test_worked_example_of_the_tail_token test_a_cap_on_the_ratio_brings_the_bottleneck_back "
        "test_where_a_cap_of_10_binds",
        "The tail token and the cap",
        correction="Band-KL allows [[rises]] at the paper's three radii, not 0.4.",
    ),
    # -- trust regions and bounds
    Statement(
        "eq:f_divergence_def eq:f_trust_region_set",
        "The ball of $D_f(Q\\Vert P)=\\sum P f(Q/P)$ is convex. $f=-\\log u+u-1$ is TRPO's $\\mathrm{KL}(P\\Vert Q)$.",
        HOLDS,
        "Divergence divergence_at",
        "test_eq_f_divergence_def test_every_registered_divergence_is_among_those_of_this_file "
        "test_eq_f_trust_region_set",
    ),
    Statement(
        "eq:ratio_func_def eq:upper_bound_opt eq:lower_bound_opt eq:band_operator",
        "The bounds are the extreme ratios $Q(a)/P(a)$ in the ball, a convex programme. Band clips $r$ to them.",
        HOLDS,
        "band_bounds Bounds.clamp Band",
        "test_thm_scalar_reduction test_eq_band_operator test_a_token_of_probability_zero_can_not_vary",
    ),
    Statement(
        "subsec:band_def subsec:bandpo",
        "So the ratio is strictly confined and the trust region enforced.",
        FALSE,
        "Bounds.contains surrogate",
        "test_all_tokens_inside_their_bands_and_the_policy_outside_the_ball "
        "losses/test_surrogates.py::test_the_table_of_the_surrogate",
        "Bands and the ball",
        correction="All tokens can be inside their bands, and the policy not in the ball.",
    ),
    # -- one variable
    Statement(
        "lem:complement_rescaling eq:q_star_structure",
        "The optimum must keep the proportions of all other tokens.",
        CORRECTED,
        "divergence_at",
        "test_lem_complement_rescaling test_lem_complement_rescaling_is_not_unique_for_tv "
        "test_lem_complement_rescaling_is_not_unique_once_the_bound_is_saturated",
        "Rescaling",
        correction="One optimum does. Others are as good under TV, and where a bound is saturated.",
    ),
    Statement(
        "app:proof_lemma_scaling",
        "For a small $\\delta$ the optimum has $Q(a)<1$.",
        FALSE,
        "band_bounds",
        "test_where_saturation_begins",
        "Saturation",
        correction="Where $f(0)$ is finite, likely tokens may reach 1 at any $\\delta$.",
    ),
    Statement(
        "thm:scalar_reduction eq:scalar_g_derivation eq:scalar_g_def eq:proof_binding_eq eq:r_start_lower "
        "eq:r_start_upper",
        "For any valid $\\delta$, $g_f(p,r)=\\delta$ has exactly two roots in $r$, and they are the bounds.",
        CORRECTED,
        "divergence_at band_bounds",
        "test_thm_scalar_reduction test_thm_scalar_reduction_has_at_most_two_roots "
        "test_g_is_the_same_for_a_token_and_for_all_others_together",
        "One variable",
        correction="At most one root on each side. Without one, the bound is the simplex limit.",
    ),
    Statement(
        "subsec:solving",
        "The singularity at $r=1$ keeps the two roots well apart.",
        FALSE,
        "divergence_at band_bounds",
        "test_subsec_solving",
        "One variable",
        correction="$r=1$ is the minimum of $g$, and the roots may be as close as one likes.",
    ),
    Statement(
        "app:proof_thm_scalar",
        "A strictly convex $f$ has $f''>0$.",
        FALSE,
        "Divergence",
        "band/test_operator.py::test_convex_generators_are_accepted_and_enclose_their_ball",
        "One variable",
        correction="$(u-1)^4$ has $f''(1)=0$. No derivative is needed.",
    ),
    Statement(
        "lem:gf_monotone_intervals",
        "$g_f$ is strictly convex in $r$, falls until $r=1$ and rises from there.",
        CORRECTED,
        "divergence_at",
        "test_lem_gf_monotone_intervals",
        "One variable",
        correction="TV's is not strictly convex, and falls and rises nevertheless.",
    ),
    Statement(
        "thm:bisection_global",
        "Where neither bound is saturated there are exactly two roots, and bisection finds them.",
        HOLDS,
        "Divergence band_bounds",
        "test_thm_bisection_global "
        "band/test_operator.py::test_every_divergence_agrees_with_its_definition_at_100_digits",
    ),
    Statement(
        "app:numerical_solver",
        "The KL equation is $-p\\log r-(1-p)\\log c=\\delta$.",
        HOLDS,
        "divergence_at band_bounds",
        "band/test_operator.py::test_divergence_at_is_the_definition_with_one_factor_for_all_other_tokens "
        "band/test_operator.py::test_bounds_agree_with_60_digit_arithmetic",
    ),
    Statement(
        "app:solver_bisection_alg",
        "Bisection until $\\lvert R-L\\rvert<10^{-6}$ gives the bounds.",
        FALSE,
        "band_bounds",
        "test_app_solver_bisection_alg_tolerance",
        "The tolerance of the bisection",
        correction="A tiny lower bound comes out as $10^{-6}$. For a wide upper one it never stops.",
    ),
    Statement(
        "sec:discussion",
        "The bounds are monotone in $p$, so a table makes them an $O(1)$ lookup.",
        HOLDS,
        "band_bounds",
        "band/test_table.py::test_a_table_has_what_the_solver_finds",
        correction="One table for each radius.",
    ),
    Statement(
        "sec:discussion",
        "KL has no closed form, so it has approximation errors that TV and Pearson do not have.",
        FALSE,
        "band_bounds",
        "band/test_operator.py::test_bounds_agree_with_60_digit_arithmetic",
        "The tolerance of the bisection",
        correction="Solved in logarithms, KL is as exact as the closed forms.",
    ),
    # -- properties
    Statement(
        "prop:limits eq:all_limits",
        "For $p\\to0$, $\\overline r\\to\\infty$ and $\\underline r\\to0$. For $p\\to1$, $\\overline r\\to1$.",
        HOLDS,
        "band_bounds",
        "test_prop_limits test_what_a_rare_token_may_reach test_lower_bound_of_a_certain_token "
        "test_the_ends_of_the_generators",
        "Limits",
        correction="A rare token may reach a fixed probability under KL and TV, none under Pearson.",
    ),
    Statement(
        "app:proof_prop_limits",
        "For $p\\to0$, $f(\\overline r)\\approx\\delta/p$ and $pf(0)\\to0$.",
        FALSE,
        "band_bounds",
        "test_app_proof_prop_limits",
        "Limits",
        correction="KL's $f(0)$ is infinite, and its $pf(\\overline{r})/\\delta$ tends to [[quotient]].",
    ),
    Statement(
        "fig:probability_ratio fig:probability_variation",
        "The lower bounds rise towards 1. All bands respect the simplex as drawn.",
        FALSE,
        "band_bounds",
        "test_fig_probability_ratio",
        "Limits",
        correction="KL's ends at $e^{-\\delta}$, TV's at $1-\\delta$. TV is drawn without its clamp.",
    ),
    Statement(
        "prop:monotonicity",
        "$\\overline r$ falls and $\\underline r$ rises strictly with $p$.",
        CORRECTED,
        "band_bounds divergence_at",
        "test_prop_monotonicity test_g_rises_with_p band/test_table.py::test_a_table_has_what_the_solver_finds",
        "Monotonicity",
        correction="The lower bound is 0 up to some $p_0$, and rises from there.",
    ),
    Statement(
        "eq:bregman_identity",
        "$\\partial g_f/\\partial p=f(r)-f(c)-f'(c)(r-c)>0$.",
        HOLDS,
        "divergence_at",
        "test_eq_bregman_identity",
        "Monotonicity",
    ),
    Statement(
        "prop:saturation",
        "A bound is the simplex limit if $g_f$ is at most $\\delta$ there, and else the root.",
        HOLDS,
        "band_bounds",
        "test_prop_saturation test_where_saturation_begins test_prop_saturation_at_the_very_point",
        "Saturation",
    ),
    Statement(
        "prop:closedform eq:tv_bounds eq:chi2_bounds",
        "The bounds of TV are $1\\pm\\delta/p$, those of Pearson $1\\pm\\sqrt{\\delta(1-p)/p}$.",
        CORRECTED,
        "band_bounds",
        "test_prop_closedform",
        "Closed forms",
        correction="Only with the clamp of the next row.",
    ),
    Statement(
        "eq:clamp_final_bounds",
        "Both are clamped to $[0,1/p]$.",
        HOLDS,
        "band_bounds",
        "test_prop_closedform",
        "Closed forms",
    ),
    Statement(
        "subsec:properties",
        "At one $\\delta$ KL allows a broader range than TV and Pearson.",
        FALSE,
        "band_bounds",
        "test_kl_is_not_the_widest_band_at_equal_delta test_half_width_near_one",
        "Radii",
        correction="At $p=0.001$ TV's upper bound is above KL's. Equal radii do not compare.",
    ),
    # -- the objective
    Statement(
        "eq:token_objective eq:bandpo_token_loss",
        "$\\min(rA,\\mathrm{clip}(r)A)$ less a KL penalty, written in two directions.",
        CORRECTED,
        "surrogate kl_penalty policy_loss",
        "test_eq_token_objective losses/test_policy.py::test_values_of_k1_and_k3_are_kl_of_the_policy_to_the_reference",
        "The KL penalty",
        correction="The estimator k3 has the value of one direction, the gradient of the other.",
    ),
    Statement(
        "eq:bandpo_full eq:grpo",
        "The mean over responses of the mean over their tokens.",
        DEFINITION,
        "Objective policy_loss aggregate",
        "losses/test_methods.py::test_a_method_is_its_textbook",
    ),
    Statement(
        "sec:preliminaries",
        "Advantages are rewards standardised within the group.",
        DEFINITION,
        "group_advantages",
        "losses/test_policy.py::test_group_advantages_are_rewards_standardised_within_their_group",
    ),
    Statement(
        "sec:relaxed_band_analysis",
        "Relaxed Band is the wider of Band and Clip-Higher.",
        DEFINITION,
        "Relaxed",
        "trust_regions/test_trust_regions.py::test_relaxed_is_the_wider_rule_on_each_side",
    ),
    Statement(
        "sec:relaxed_band_analysis sec:analysis_tail fig:3d-vis-compare",
        "Band-KL at 0.05 is stricter than Clip-Higher for likely tokens: above from $p=[[p high]]$ on, below from "
        "$p=[[p low]]$.",
        HOLDS,
        "Band Clip Relaxed",
        "test_sec_analysis_tail",
    ),
    Statement(
        "sec:delta_radius",
        "The recommended radius, KL at 0.05, is the default.",
        DEFINITION,
        "Band",
        "losses/test_objective.py::test_a_bare_region_is_the_papers_objective_with_it",
        correction="Whether it is the best was not tested.",
    ),
    Statement(
        "fig:analysis_dynamics sec:analysis_tail",
        "The clip fraction, and the share of rare tokens in it.",
        DEFINITION,
        "Metrics.compute",
        "losses/test_metrics.py::test_every_number_is_its_formula",
        correction="The paper's training runs were not repeated.",
    ),
    Statement(
        "fig:sub1 sec:analysis_tail",
        "Band's clip fraction is close to GRPO's. Clip-Higher's is about half.",
        NOT_SEEN,
        "",
        "test_sec_analysis_tail_in_the_public_logs",
        "Clip rates in the public logs",
        correction="Of GRPO's, Clip-Higher's is 40 to 57 %, Band's 1.5 to 5.2 %.",
    ),
    Statement(
        "fig:sub2 sec:analysis_tail",
        "Rare tokens above the upper bound are 60 % of what GRPO clips in its first steps, and nearly none of what Band clips.",
        SEEN,
        "",
        "test_sec_analysis_tail_in_the_public_logs",
        "Clip rates in the public logs",
        correction="Steps 1 to 4: 43 to 57 % under GRPO, 15 to 20 % under Clip-Higher, 0 to 7 % under Band.",
    ),
    Statement(
        "fig:sub3 sec:analysis_tail",
        "Band's entropy mirrors that of Clip-Higher.",
        NOT_SEEN,
        "",
        "test_fig_sub3_in_the_public_logs",
        "Clip rates in the public logs",
        correction="In steps 1 to 4 it goes with GRPO's.",
    ),
    Statement(
        "fig:sub3 sec:analysis_tail",
        "Band ends at ten times the entropy of GRPO.",
        NOT_IN_WORLDS,
        "",
        "test_sec_intro_random_rewards",
        "Entropy under random rewards",
        correction="Above no clip: Band-KL 0.05 [[band 4]] and [[band 8]] nats, GRPO's clip [[grpo 4]] and [[grpo 8]].",
    ),
    Statement(
        "sec:intro",
        "A lower bound raises entropy, an upper bound lowers it.",
        IN_WORLDS,
        "",
        "test_sec_intro_random_rewards",
        "Entropy under random rewards",
        correction="Above no clip: the lower side alone [[lower 4]] and [[lower 8]] nats, the upper [[upper 4]] and [[upper 8]].",
    ),
    Statement(
        "sec:intro",
        "Symmetric clipping lowers entropy, even under random rewards.",
        IN_ONE_WORLD,
        "",
        "test_sec_intro_random_rewards",
        "Entropy under random rewards",
        correction="GRPO's clip: [[grpo 4]], [[grpo 8]] nats in one, [[calibrated]] in the other.",
    ),
    Statement(
        "sec:intro",
        "A single radius makes tuning much simpler.",
        UNSUPPORTED,
        "",
        "test_sec_intro_single_radius",
        "One radius for all",
        correction="Our best radii go from [[least radius]] to [[largest radius]].",
    ),
    Statement(
        "sec:delta_radius",
        "Smaller models are more sensitive to the radius.",
        UNSUPPORTED,
        "",
        "test_sec_delta_radius_of_two_models",
        "One radius for all",
        correction="Two models, six single runs. In points of mean@32 both lose alike: 1.67 and 1.39.",
    ),
    Statement(
        "tab:main_results",
        "Of three repetitions, Band leads in mean@32 everywhere, by at least 2 points over GRPO, and in pass@32.",
        PARTLY,
        "",
        "test_tab_main_results_averages test_tab_main_results_are_of_single_runs test_tab_main_results_claims",
        "The table of results",
        correction='Cells are single evaluations. "pass@32" is verl\'s bootstrap. 2 points hold for averages.',
    ),
)


# ---- numbers


def at(p: float) -> torch.Tensor:
    return torch.tensor(p, dtype=torch.float64).log()


def reach(name: str, delta: float, log_p: float = -100.0) -> float:
    """The probability that a token of that log p may reach."""
    log_p_ = torch.tensor(log_p, dtype=torch.float64)
    return (bandpo.band_bounds(log_p_, name, delta).log_high + log_p_).exp().item()


def root(rises: Callable[[float], float], target: float) -> float:
    """x in (0, 1) with rises(x) = target, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rises(middle) <= target else (low, middle)
    return low


def cost(name: str, p: float, r: float) -> float:
    """g_f(p, r)."""
    return band.divergence_at(torch.tensor(r, dtype=torch.float64).log(), at(p), name).item()


NEVER = "never"
# name, f, f(0), C, p_0 and q with their formulas; None: computed only.
Formula = tuple[str, Callable[[float], float] | None]
ENDS: tuple[tuple[str, str, str, str, Formula, Formula], ...] = (
    (
        "kl",
        "u-1-\\log u",
        "\\infty",
        "1",
        (NEVER, None),
        ("1-e^{-\\delta}", lambda d: -math.expm1(-d)),
    ),
    (
        "neyman_chi2",
        "(u-1)^2/u",
        "\\infty",
        "1",
        (NEVER, None),
        ("\\delta/(1+\\delta)", lambda d: d / (1 + d)),
    ),
    ("tv", "\\lvert u-1\\rvert/2", "1/2", "1/2", ("\\delta", lambda d: d), ("\\delta", lambda d: d)),
    (
        "hellinger",
        "(\\sqrt u-1)^2/2",
        "1/2",
        "1/2",
        ("\\delta(2-\\delta)", lambda d: d * (2 - d)),
        ("\\delta(2-\\delta)", lambda d: d * (2 - d)),
    ),
    ("jensen_shannon", "(u\\log u-(u+1)\\log\\frac{u+1}2)/2", "\\log(2)/2", "\\log(2)/2", ("", None), ("", None)),
    (
        "reverse_kl",
        "u\\log u-u+1",
        "1",
        "\\infty",
        ("1-e^{-\\delta}", lambda d: -math.expm1(-d)),
        ("0", lambda d: 0.0),
    ),
    ("chi2", "(u-1)^2", "1", "\\infty", ("\\delta/(1+\\delta)", lambda d: d / (1 + d)), ("0", lambda d: 0.0)),
)


def formula(tex: str, of: Callable[[float], float] | None, computed: float, rough: float = 1e-9) -> str:
    """ "$formula$ = number", after a check that bandpo computes that number too."""
    if of is None:
        return tex or f"{computed:.4f}"
    if abs(of(0.05) - computed) > rough:
        raise ValueError(f"{tex} is {of(0.05)} at delta = 0.05, bandpo has {computed}")
    return f"${tex}$" if tex == "0" else f"${tex}$ = {computed:.4f}"


def table_of_ends() -> str:
    lines = [
        "| divergence | $f$ | $f(0)$ | $C$ | 0 is allowed for $p\\le p_0$ | $q$, which a rare token may reach "
        "| at $p=10^{-6}$ it may reach |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, f, at_zero, slope, (star_tex, star), (q_tex, q) in ENDS:
        point = 0.0 if star_tex == NEVER else root(lambda p, name=name: cost(name, p, 0.0), 0.05)
        told = formula(q_tex, q, reach(name, 0.05), rough=1e-9 if slope != "\\infty" else 1e-3)
        far = reach(name, 0.05, math.log(1e-6))
        lines.append(
            f"| `{name}` | ${f}$ | ${at_zero}$ | ${slope}$ | {formula(star_tex, star, point)} | {told} | {far:.2g} |"
        )
    return "\n".join(lines)


def three_of_forty(name: str) -> float:
    """The divergence, in radii, of a policy of which three of 40 equal tokens are at their upper bound."""
    high = bandpo.band_bounds(at(1 / 40), name, 0.05).log_high.exp().item()
    f = band.divergence(name).f
    u = torch.tensor([high, (40 - 3 * high) / 37], dtype=torch.float64)
    return (f(u) @ torch.tensor([3 / 40, 37 / 40], dtype=torch.float64)).item() / 0.05


def entropies() -> dict[str, str]:
    """What a rule adds to the entropy of no clip under random rewards, with the half width of its 95 % interval."""
    names = {"GRPO": "grpo", "Band-KL .05": "band", "upper .2 alone": "upper", "lower .2 alone": "lower"}
    names["Band-KL .005"] = "tight"
    worlds = {"1 use x 4": "1", "4 uses x 4": "4", "8 uses x 2": "8"}
    with CLAIMS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["outcome"] == "entropy" and row["world"] in worlds]
    told = {}
    for row in rows:
        name = names.get(row["a"]) if row["b"] == "no clip" else "sides"
        difference = f"{float(row['difference']):+.3f}"
        told[f"{name} {worlds[row['world']]}"] = difference
        told[f"{name} {worlds[row['world']]} ±"] = f"{difference} ± {float(row['half_width']):.3f}"
    with CLAIMS.with_name("random_rewards_rates.csv").open(encoding="utf-8", newline="") as file:
        at = {(row["world"], row["rule"]): row for row in csv.DictReader(file)}
    calibrated = at["calibrated, 4 uses x 4", "GRPO"]
    told["calibrated"] = f"{float(calibrated['entropy_minus_first']):+.3f}"
    told["calibrated ±"] = f"{told['calibrated']} ± {float(calibrated['entropy_half_width']):.3f}"
    return told


def best_radii() -> list[dict[str, str]]:
    """Return Band-KL's tuned rows in small worlds, by radius; of no other control, and not at the edge of a grid."""
    with (ROOT / "docs" / "report" / "rows.csv").open(encoding="utf-8", newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["rule"], row["control"], row["at an edge"]) == ("Band-KL", "none", "") and "delta" in row["setting"]
        ]
    return sorted(rows, key=radius_of)


def radius_of(row: dict[str, str]) -> float:
    return float(row["setting"].removeprefix("delta ").partition(",")[0])


def link_of_row(row: dict[str, str]) -> str:
    return f"[{row['reward']}](../../docs/report/rows.csv#{row['id']})"


def numbers() -> dict[str, str]:
    radii = best_radii()
    deltas = (0.03, 0.05, 0.1)
    rise = [bandpo.band_bounds(at(0.08), "kl", d).variation(at(0.08)).high.item() for d in deltas]
    caps = [root(lambda p: cost("kl", p, 10.0), d) for d in deltas]
    wide = {name: bandpo.band_bounds(at(1e-3), name, 0.1).log_high.exp().item() for name in ("kl", "tv")}
    deep = {name: bandpo.band_bounds(at(0.999), name, 0.1).log_low.exp().item() for name in ("kl", "tv")}
    return {
        "ends": table_of_ends(),
        "rises": ", ".join(f"{x:.3f}" for x in rise),
        "cost of 0.4": f"{cost('kl', 0.08, 6.0):.2f}",
        "caps": ", ".join(f"{x:.5f}" for x in caps),
        "kl wide": f"{wide['kl']:.1f}",
        "tv wide": f"{wide['tv']:.1f}",
        "kl deep": f"{deep['kl']:.4f}",
        "tv deep": f"{deep['tv']:.4f}",
        "forty kl": f"{three_of_forty('kl'):.2f}",
        "forty tv": f"{three_of_forty('tv'):.2f}",
        "forty chi2": f"{three_of_forty('chi2'):.2f}",
        "log low": f"{bandpo.band_bounds(at(1e-3), 'kl', 0.05).log_low.item():.1f}",
        "p high": f"{root(lambda p: cost('kl', p, 1.28), 0.05):.2f}",
        "p low": f"{root(lambda p: cost('kl', p, 0.8), 0.05):.2f}",
        "quotient": f"{-math.expm1(-0.05) / 0.05:.3f}",
        "least radius": f"{radius_of(radii[0]):.4f}",
        "largest radius": f"{radius_of(radii[-1]):.2f}",
        "least row": link_of_row(radii[0]),
        "largest row": link_of_row(radii[-1]),
        **entropies(),
    }


# ---- texts

INTRODUCTION = r"""
# The paper, statement by statement

The operator of BandPO ([ICML 2026, PMLR 306:70671-70692](https://proceedings.mlr.press/v306/li26gm.html)) is sound. Its main results on bounds
hold, some with a correction. Some sentences are false as stated. Statements on training were checked against the paper's digits, public logs and
[small worlds](../research/pages/worlds.md), which are not language models.

**Every verdict is about [version 1](https://arxiv.org/abs/2603.04918v1) on arXiv**, of March 2026. The proceedings' text could not be had, so a verdict
may be out of date.

*Holds* means: under the paper's assumptions, for all divergences of the library, and as tested. A verdict links to its proof or numbers.
[A table](../research/pages/paper_statements.md#the-paper-the-public-scripts-and-this-library) shows where the paper, its scripts and this library differ.

## The statements
"""

LOGS = r"""
## Clip rates in the public logs

The authors published logs of four training steps of Qwen2.5-3B-Instruct: single runs, by later code with a cap of 10 on the ratio. They count one of
eight GPUs, about 360,000 tokens a step.

| steps 1 to 4 | GRPO | Clip-Higher | Band-KL, 0.05 |
|---|---|---|---|
| tokens outside their bounds | 421, 535, 465, 463 | 239, 221, 186, 228 | 14, 28, 7, 10 |
| as a share of GRPO's | | 40 to 57 % | **1.5 to 5.2 %** |
| of these, above and $p\le0.2$ | 43 to 57 % | 15 to 20 % | 0 to 7 % |
| entropy, nats a token | .596 .579 .591 .522 | .596 .583 .608 .550 | .596 .583 .599 .525 |

*Outside* ignores the sign of the advantage: fewer tokens are clipped, that is, lose their gradient. Band is nearly no clip here; only a run without a
clip would tell them apart.

## Prior art

Some rules had other names: Relaxed Band is TRGPPO of 2019, and kl-UCB's and Wilson's intervals are bands.
[Each equality is a test](../research/pages/prior.md).
"""

HEAD = r"""
# The paper's statements: proofs and counterexamples

Behind the verdicts of [the index](../../docs/paper.md). `python docs/paper.py` computes the numbers.
"""

SECTIONS = {
    "Assumptions": r"""
The paper asks for a strictly convex $f$ with $f(1)=0$, and uses TV, which is not strictly convex. Less is needed:
$f:[0,\infty)\to(-\infty,\infty]$ is convex, finite for $u>0$, $f(1)=0$, $f(0)=\lim_{u\to0}f(u)$, and **$f$ is not affine on any
interval around 1**.

Adding $a(u-1)$ to $f$ changes no divergence, so with a supporting line at 1 subtracted $f\ge0$. By convexity
$C=\lim_{u\to\infty}f(u)/u\in[0,\infty]$ exists. $P$ has full support, $p=P(a)\in(0,1)$, $r=Q(a)/p$, $c=(1-rp)/(1-p)$ and
$g(p,r)=pf(r)+(1-p)f(c)$. As $pr+(1-p)c=1$, for $r\ne1$ the numbers $r$ and $c$ lie strictly on opposite sides of 1. And
$(p,r)\mapsto(1-p,c)$ leaves $g$ as it is.
""",
    "Rescaling": r"""
**False as stated** for TV: from $P=(0.2,0.4,0.4)$ the policy $(0.3,0.3,0.4)$ costs no more than the rescaled $(0.3,0.35,0.35)$.
False also for a strictly convex $f$ at saturation: for Pearson at $\delta=0.1$ and $P=(0.02,0.49,0.49)$ both $(0,0.5,0.5)$ and
$(0,0.52,0.48)$ attain $r=0$.

**Holds.** *Every $Q$ has $D_f(Q\Vert P)\ge g(p,r)$, with equality if $Q(b)=cP(b)$ for all $b\ne a$; hence both extremal problems have
an optimum of that form. If $f$ is strictly convex and the optimal $r$ has $g(p,r)=\delta$ or $r=1/p$, it is the only one.*

*Proof.* Jensen's inequality with the weights $w_b=P(b)/(1-p)$:
$\sum_{b\ne a}P(b)f(Q(b)/P(b))$ $\ge(1-p)f\big(\sum_bw_bQ(b)/P(b)\big)$ $=(1-p)f(c)$, with equality for constant ratios. The ball is
compact, so an optimum exists, and rescaling its others keeps $r$. If $g(p,r)=\delta$, then $\delta\ge D_f\ge g=\delta$, so for a strictly
convex $f$ constant ratios. For $r=1/p$ nothing is left to distribute. $\square$
""",
    "One variable": r"""
**As stated** there are exactly two roots for any valid $\delta>0$. Where a bound is saturated there is no root on that side.
For Pearson at $\delta=0.05$ and $p=0.04$, $g\le g(p,0)=p/(1-p)=0.042$ below 1. Nor does a strictly convex $f$ have
$f''>0$: $(u-1)^4$ has $f''(1)=0$. Nothing is singular at $r=1$.

**Holds.** *On $[0,1/p]$ $g$ is convex, 0 at $r=1$, strictly decreasing before and strictly increasing after, where it is finite. So the
$r$ with $g(p,r)\le\delta$ are an interval, its ends are the bounds, and each end is the one root on its side or, if there is none, the
simplex limit 0 or $1/p$.*

*Proof.* $c$ is affine in $r$, so $g$ is convex, and $g\ge0=g(p,1)$. If $g(p,r)=0$ for an $r\ne1$, then $f$ vanishes between $r$ and $c$, an
interval around 1: excluded. By "Rescaling" the ratios in the ball are those with $g\le\delta$. $\square$

This is `lem:gf_monotone_intervals`, for TV as well.
""",
    "Saturation": r"""
`prop:saturation` leaves open when a bound is saturated. Let $S(p)=g(p,0)=pf(0)+(1-p)f(1/(1-p))$.

**Holds.** *$\underline r=0$ iff $S(p)\le\delta$, and $\overline r=1/p$ iff $S(1-p)\le\delta$. If $f(0)=\infty$, neither ever happens. If
$f(0)<\infty$, $S$ rises strictly and continuously from 0 to $f(0)+C$: for $\delta<f(0)+C$ there is one $p_0$ with $S(p_0)=\delta$, and
the lower bound is 0 exactly for $p\le p_0$, the upper one $1/p$ exactly for $p\ge1-p_0$; for $\delta\ge f(0)+C$ the band is the whole
simplex for every $p$.*

*Proof.* $g(p,1/p)=pf(1/p)+(1-p)f(0)=S(1-p)$; the rest of the first sentence is "One variable". $S$ rises by "Monotonicity" with $r=0$.
For $p\to0$, $pf(0)\to0$ and $f(1/(1-p))\to f(1)=0$; for $p\to1$, $(1-p)f(1/(1-p))\to C$. $\square$

So for any fixed $\delta$ all tokens with $p\ge1-p_0$ may reach 1, unless $f(0)=\infty$: `app:proof_lemma_scaling` is wrong there. For
$\delta=0.05$, with the $q$ of "Limits":

[[ends]]
""",
    "Limits": r"""
`prop:limits` holds, but not by its proof. That needs $pf(0)\to0$, and $f(0)=\infty$ for KL; and its $f(\overline r)\approx\delta/p$ is wrong
for a finite $C$: for KL $pf(\overline r)/\delta\to(1-e^{-\delta})/\delta$, [[quotient]] at $\delta=0.05$, for TV 1/2.

**Holds.** *For $p\to0$: $\overline r\to\infty$, $\underline r\to0$, and $p\overline r$ tends to $q$, the root of*

$$qC+f(1-q)=\delta,$$

*to 1 if $C+f(0)\le\delta$, to 0 if $C=\infty$. For $p\to1$: $\overline r\to1$ and $\underline r\to1-q$.*

*Proof.* For a fixed $r>0$ and $p\to0$, $c\to1$ and $g(p,r)\to0$: $r$ comes into the band. For $p\to1$, $1\le\overline r\le1/p$. For
$x\in(0,1)$ and $r=x/p$, $pf(x/p)\to xC$ and $(1-p)f\big(\frac{1-x}{1-p}\big)\to f(1-x)$, so $g(p,x/p)\to\varphi(x)=xC+f(1-x)$. If
$C=\infty$, no $x>0$ stays in the band. Otherwise $\varphi$ is convex, $\varphi(0)=0$ and $\varphi(x)>0$ for $x>0$ (else $C=0$, and $f$ is affine
around 1), hence strictly increasing: for small $p$, $x/p$ is in the band if $\varphi(x)<\delta$ and not if $\varphi(x)>\delta$. Exchanging
the token with all others, $p\overline r(p)+(1-p)\underline r(1-p)=1$, so $\underline r\to1-q$ for $p\to1$. $\square$

- The bottleneck is *removed* iff $C<\infty$: only then does the allowed rise $\Delta p$ stay away from 0 for rare tokens. Pearson allows
  $\sqrt{\delta p(1-p)}$, reverse KL about $\delta/\log(1/p)$, the root of $q\log\frac qp+(1-q)\log(1-q)=\delta$.
- Pearson's lower bound rises to 1, KL's to $e^{-\delta}$, TV's to $1-\delta$.
""",
    "Monotonicity": r"""
**False as stated** for the lower bound, which is 0 for all $p\le p_0$. The proof needs derivatives that TV does not have.

**Holds.** *For every $r\ne1$, $g(p,r)$ rises strictly with $p$ where it is finite. Hence $\overline r$ falls strictly on all of $(0,1)$,
saturated or not, and $\underline r$ is 0 on $(0,p_0]$ and rises strictly from there.*

*Proof.* Let $p_1<p_2$ with $rp_2\le1$. Since $c-r=(1-r)/(1-p)$, $c_1$ lies strictly between $r$ and $c_2$. Take the coin that is $r$ with
probability $p_1$ and $c_1$ otherwise, and replace $c_1$ by a coin between $r$ and $c_2$ with that mean: it is then $r$ with probability
$p_2$. By Jensen's inequality $g(p_1,r)\le g(p_2,r)$, with equality only if $f$ is affine between $r$ and $c_2$; but 1 lies strictly between
them. So where $g(p_1,\underline r(p_1))=\delta$, $\underline r(p_2)>\underline r(p_1)$. For $\rho=\overline r(p_2)$,
$g(p_1,\rho)<\delta$ and $\rho<1/p_1$, so a little more than $\rho$ is allowed at $p_1$. $\square$

`eq:bregman_identity` holds wherever $f'(c)$ exists, and its right side is positive without strict convexity.
""",
    "Closed forms": r"""
**False as stated** beyond saturation: for $\delta=0.1$ and $p=0.95$, $1+\delta/p=1.105$, but $1/p=1.053$; at $p=0.05$ both lower bounds
are negative. `eq:clamp_final_bounds`, which only the appendix has, is right: $g$ is $p\lvert r-1\rvert$ for TV and $\frac p{1-p}(r-1)^2$
for Pearson on all of $[0,1/p]$, so the root is beyond a limit iff $g$ there is less than $\delta$.
""",
    "Radii": r"""
**False as stated** at $\delta=0.1$: at $p=0.001$ the upper bound of KL is [[kl wide]], that of TV [[tv wide]]; at $p=0.999$ the lower
bound of KL is [[kl deep]], that of TV [[tv deep]].

**Holds.** *If $\kappa=f''(1)>0$ exists, the bounds are $1\pm\sqrt{2\delta(1-p)/(p\kappa)}(1+o(1))$ for $\delta\to0$.*

*Proof.* $g(p,1+s)=pf(1+s)+(1-p)f\big(1-\frac{sp}{1-p}\big)$ $=\frac\kappa2s^2\big(p+\frac{p^2}{1-p}\big)+o(s^2)$
$=\frac{\kappa p}{2(1-p)}s^2+o(s^2)$. $\square$

So only $\delta/\kappa$ compares, near $r=1$. $\kappa$ is 1 for both KL and every power divergence, 2 for Pearson and Neyman, 1/4 for
Hellinger and Jensen-Shannon. TV has none: its half-width is $\delta/p$.
""",
    "Bands and the ball": r"""
**False as stated**, three times. A token at $r=1$ is inside its band however the others move. Nor is it enough that *every* token is
inside its own: with three of 40 equal tokens at their upper bound at $\delta=0.05$ and the others shrunk alike, the policy is
[[forty kl]] radii away in KL, [[forty chi2]] in Pearson, [[forty tv]] in TV. And $\min(rA,\mathrm{clip}(r)A)$ has a gradient for $A>0$
below the band and for $A<0$ above it, as in PPO.

**Holds.** *The band is the projection of the ball to the token's ratio: the smallest interval that no policy of the ball leaves. For two
tokens it is the ball.* This is "One variable".
""",
    "The tail token and the cap": r"""
A rise of about 0.4 at $p=0.08$ costs [[cost of 0.4]] in KL. The authors' scripts, not the paper, also cap $\overline r$ at 10. A cap $M$
allows $\Delta p\le(M-1)p$ for every $f$: the bottleneck itself, for all $p$ below the root of $g(p,M)=\delta$. For KL at the paper's radii
(0.03, 0.05, 0.1) it is [[caps]].
""",
    "The tolerance of the bisection": r"""
A tolerance of $10^{-6}$ on $r$ says nothing of a small $\underline r$: at $p=0.001$ and $\delta=0.05$ KL has
$\log\underline r=[[log low]]$, and the bisection returns about $10^{-6}$, which is $e^{-14}$. Where neighbouring floats near $\overline r$
are further apart than $10^{-6}$ it never stops: in float64 at $p=10^{-12}$, in float32 at $p=0.001$ already.

The library solves in logarithms, in a fixed number of steps, within 3e-7 of 60-digit arithmetic in float32 and 1e-13 in float64,
relative, of $\log r$ ([numerics](numerics.md)).
""",
    "The KL penalty": r"""
`eq:token_objective` writes $\mathrm{KL}(\pi\Vert\pi_\mathrm{ref})$, `eq:bandpo_token_loss` the other direction. The estimator in use, k3
of tokens drawn from $\pi$, has both: its mean *value* is $\mathrm{KL}(\pi\Vert\pi_\mathrm{ref})$, its mean *gradient* that of
$\mathrm{KL}(\pi_\mathrm{ref}\Vert\pi)$.

*Proof.* With $d=\log\pi_\mathrm{ref}-\log\pi$, $\mathrm E_\pi[e^d-d-1]=1+\mathrm{KL}(\pi\Vert\pi_\mathrm{ref})-1$; the gradient at fixed
tokens is $\mathrm E_\pi[(1-e^d)\nabla\log\pi]=-\sum\pi_\mathrm{ref}\nabla\log\pi$, as $\sum\pi\nabla\log\pi=0$. $\square$
""",
    "Entropy under random rewards": r"""
Entropy at the end minus no clip's, in nats, in our world [`ways`](worlds.md) with half of all rewards inverted, one learning rate,
192 paired seeds:

| sides, 0.2 each | 4 epochs, 4 steps each | 8 epochs, 2 steps each |
|---|---|---|
| upper alone | [[upper 4 ±]] | [[upper 8 ±]] |
| lower alone | [[lower 4 ±]] | [[lower 8 ±]] |
| both, GRPO's clip | [[grpo 4 ±]] | [[grpo 8 ±]] |
| Band-KL, 0.05 | [[band 4 ±]] | [[band 8 ±]] |

In the world `calibrated` GRPO's clip is [[calibrated ±]] at 4 epochs: there symmetric clipping lowers entropy.
At one epoch the sides do not differ ([[sides 1 ±]]), and GRPO's clip is [[grpo 1 ±]]
([claims](../grids/random_rewards_claims.csv), written before [the rows](../grids/random_rewards.csv)).
""",
    "One radius for all": r"""
*Tuning.* Tuned in each world, Band-KL's best radius goes from [[least radius]], with reward [[least row]], to [[largest radius]], with
[[largest row]].

*Size.* The worst of three radii costs 1.67 points of mean@32 on 3B (7.6 %) and 1.39 on 7B (2.7 %), in single runs. On 3B sampling alone
may move such a difference by 1.6.
""",
}

SCRIPTS = """
## The paper, the public scripts, and this library

Defaults here are the paper's text.

| | paper's text | public scripts | here |
|---|---|---|---|
| highest ratio of a band | none | 10 | none; `Capped(Band("kl", 0.05), 10)`, or `text=public` of a recipe |
| dual clip | none | 10 | none; `dual_clip=10`, or `text=public` |
| length of training | 800 steps (1.5B, 3B), 500 (7B, 8B) | 10 epochs, 1020 steps | as `text` says |
| clip fraction, tail | no formula | whatever the sign of A, p ≤ 0.2 | the scripts'; `cut/*` goes by the sign |
| scorer | not named | `math_dapo`, string equality | the same in recipes/paper, elsewhere `math`, by value |
| "pass@32" | named so | verl's best@32 | [pass@k, and best@32 by that name](../../docs/evaluate.md#what-is-measured) |

Data: [what differs](data.md#what-differs-from-the-public-scripts).
"""


# ---- the page


def public() -> dict[str, Any]:
    """Return every public name of the library, with what it names."""
    named = {name: getattr(module, name) for module in (band, losses, bandpo) for name in module.__all__}
    return named | {name: x for name, x in vars(trust_regions).items() if inspect.isclass(x) or inspect.isfunction(x)}


def anchor(section: str) -> str:
    return section.lower().replace(" ", "-")


# Sections that are not of the derivations' page.
ELSEWHERE = {
    "Clip rates in the public logs": "#clip-rates-in-the-public-logs",
    "The table of results": "../research/pages/paper_table.md",
}


def target(section: str) -> str:
    return ELSEWHERE.get(section) or f"../research/pages/{DERIVATIONS.name}#{anchor(section)}"


def link_of(function: str) -> str:
    """To the file it is in; lines would move."""
    module = sys.modules[public()[function.split(".")[0]].__module__]
    path = Path(module.__file__ or "").relative_to(Path(bandpo.__file__).parent).as_posix()
    return f"[`{function}`](../src/bandpo/{path})"


def link_of_test(test: str) -> str:
    file, name = where(test)
    return f"[`{name}`](../tests/{file})"


def where(test: str) -> tuple[str, str]:
    """(file, name) of a test."""
    file, _, name = test.rpartition("::")
    return file or "test_paper.py", name


def fill(text: str, computed: dict[str, str]) -> str:
    return re.sub(r"\[\[(.*?)\]\]", lambda match: computed[match[1]], text)


def page() -> str:
    """Return the index."""
    computed = numbers()
    rows = ["| statement | verdict | correction or numbers | code; tests |", "|---|---|---|---|"]
    for s in STATEMENTS:
        verdict = f"[{s.verdict}]({target(s.section)})" if s.section else s.verdict
        cells = (
            "<br>".join([*(f"`{label}`" for label in s.labels.split()), fill(s.claim, computed)]),
            verdict if s.verdict in (DEFINITION, HOLDS, SEEN, IN_WORLDS) else f"**{verdict}**",
            fill(s.correction, computed),
            "<br>".join([*map(link_of, s.functions.split()), *map(link_of_test, s.tests.split())]),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n\n".join([INTRODUCTION.strip(), "\n".join(rows), LOGS.strip()]) + "\n"


def derivations() -> str:
    """Return the page of proofs and counterexamples."""
    computed = numbers()
    texts = [HEAD.strip()]
    for name, text in SECTIONS.items():
        texts += [f"## {name}", fill(text.strip(), computed)]
    return "\n\n".join([*texts, SCRIPTS.strip()]) + "\n"


# ---- what does not fit


@cache
def tests_there_are() -> set[tuple[str, str]]:
    return {
        (path.relative_to(ROOT / "tests").as_posix(), node.name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@cache
def labels_of_docstrings() -> set[str]:
    return {
        label
        for path in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for label in A_LABEL.findall(ast.get_docstring(node) or "")
    }


def labels_of_public_functions() -> list[tuple[str, str]]:
    """(function or method, label in its docstring)."""
    things = public()
    for name, thing in list(things.items()):
        if inspect.isclass(thing):
            things |= {f"{name}.{k}": v for k, v in vars(thing).items() if inspect.isfunction(v) and k[0] != "_"}
    return [(name, label) for name, thing in things.items() for label in A_LABEL.findall(thing.__doc__ or "")]


def is_public(function: str) -> bool:
    first, *rest = function.split(".")
    if first not in public():
        return False
    thing = public()[first]
    for part in rest:
        if part.startswith("_") or not hasattr(thing, part):
            return False
        thing = getattr(thing, part)
    return True


def faults() -> list[str]:
    """What is wrong with the table, one line each; empty if nothing is."""
    found: list[str] = []
    of_page = {label for s in STATEMENTS for label in s.labels.split()}
    documented, existing = labels_of_docstrings(), tests_there_are()
    for label in LABELS:
        if label.split(":")[0] in STATED and label not in of_page:
            found.append(f"{label} of the paper has no row")
    for s in STATEMENTS:
        labels = s.labels.split()
        found += [f"{label} is not a label of the paper" for label in labels if label not in LABELS]
        found += [f"{labels[0]} has no function"] * (not s.functions.split() and labels[0].split(":")[0] in STATED)
        found += [f"{labels[0]} has no test"] * (not s.tests.split())
        found += [f"{f} of {labels[0]} is not public in bandpo" for f in s.functions.split() if not is_public(f)]
        found += [f"{t} of {labels[0]} does not exist" for t in s.tests.split() if where(t) not in existing]
        sections = {*SECTIONS, *ELSEWHERE}
        if s.section not in ({""} if s.verdict == DEFINITION else {"", *sections} if s.verdict == HOLDS else sections):
            found.append(f"{labels[0]} is told to be {s.verdict!r} and has the section {s.section!r}")
        if documented.isdisjoint(labels) and labels[0].split(":")[0] in STATED:
            found.append(f"{labels[0]} is on the page and named in no docstring")
    found += [f"{label} is named in a docstring and not on the page" for label in sorted(documented - of_page)]
    for function, label in labels_of_public_functions():
        if not any(label in s.labels.split() and function in s.functions.split() for s in STATEMENTS):
            found.append(f"{function} names {label}, whose row does not name {function}")
    told = {where(t) for s in STATEMENTS for t in s.tests.split()}
    own = {(file, name) for file, name in existing if file == "test_paper.py"}
    found += [f"{name} of test_paper.py is of no statement" for _, name in sorted(own - told)]
    return found


def main() -> int:
    if wrong := faults():
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    DERIVATIONS.write_text(derivations(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
