"""Methods by name: objectives that papers propose, with their values.

The index docs/methods.md is made from `METHODS` by `python docs/methods.py`.
"""

from __future__ import annotations

import math

from ..errors import unknown
from ..trust_regions.combinators import ByProbability, BySign, Decaying, Intersect, Relaxed, Union
from ..trust_regions.nodes import kinds
from ..trust_regions.rules import DCPO, RIPO, Band, Clip
from .aggregation import AVERAGE
from .batch_methods import OF_BATCHES
from .objective import Method, Objective
from .surrogates import Decay, Preserve, Sapo

# The averages over tokens: of each response first, of all alike, of sums over a length that is the same for all.
_RESPONSES, _TOKENS, _LENGTH = AVERAGE, "token-mean", "seq-mean-token-sum-norm"
_PPO = "min(r A, clip(r, {}, {}) A)"
_BAND = "min(r A, clip(r, r_low, r_high) A), the two roots of {} = 0.05, p old"
_THE_PAPER = "the paper, statement by statement in docs/paper.md"
_NOT_THE_PAPER = "the paper itself"

METHODS: tuple[Method, ...] = (
    Method(
        "grpo",
        "GRPO",
        "2402.03300",
        Objective(Clip(0.2, 0.2), aggregation=_RESPONSES),
        _PPO.format("0.8", "1.2"),
        "the BandPO paper, which quotes it",
        "the paper's epsilon: 0.2 is what trainers take; its KL penalty is the field `beta`",
    ),
    Method(
        "ppo",
        "PPO",
        "1707.06347",
        Objective(Clip(0.2, 0.2), aggregation=_TOKENS),
        _PPO.format("0.8", "1.2"),
        "the BandPO paper, which quotes it",
        f"{_NOT_THE_PAPER}; its average is one over time steps, which are tokens here",
    ),
    Method(
        "clip-higher",
        "Clip-Higher, the clip of DAPO",
        "2503.14476",
        Objective(Clip(0.2, 0.28)),
        _PPO.format("0.8", "1.28"),
        "the BandPO paper, which quotes it; it names a clip alone, DAPO with its average is `dapo`",
        _NOT_THE_PAPER,
    ),
    Method(
        "dapo",
        "DAPO",
        "2503.14476",
        Objective(Clip(0.2, 0.28), aggregation=_TOKENS),
        _PPO.format("0.8", "1.28"),
        "documentation of TRL, which quotes the paper, and verl's recipe: the ranges, and the mean over all tokens",
        f"{_NOT_THE_PAPER}; verl's recipe has a dual clip at 10 too",
    ),
    Method(
        "dr-grpo",
        "Dr. GRPO",
        "2503.20783",
        Objective(Clip(0.2, 0.2), aggregation=_LENGTH),
        _PPO.format("0.8", "1.2"),
        "its authors' code: sums over tokens are divided by one length, the longest that may be generated, which is T "
        "here unless `normalizer` is given",
        f"{_NOT_THE_PAPER}; the ranges, which its scripts do not set; its advantages, which are not divided by the "
        "standard deviation, are a separate choice",
    ),
    Method(
        "dual-clip",
        "Dual clip",
        "1912.09729",
        Objective(Clip(0.2, 0.2), dual_clip=3.0),
        f"{_PPO.format('0.8', '1.2')}; where A < 0, at least 3 A",
        "verl's `clip_ratio_c` and its default",
        _NOT_THE_PAPER,
    ),
    Method(
        "two-sided-grpo",
        "Two-sided GRPO (INTELLECT-2)",
        "2505.07291",
        Objective(Clip(0.2, 0.2), dual_clip=4.0),
        "min(min(r, 4) A, clip(r, 0.8, 1.2) A)",
        "documentation of TRL: its argument `delta`, and 4 and 0.2 as the paper's values",
        _NOT_THE_PAPER,
    ),
    Method(
        "clip-wide",
        "Clip with a wide upper side",
        None,
        Objective(Clip(0.2, 1.0)),
        _PPO.format("0.8", "2"),
        "no paper; asks whether a plain clip would not do as well",
    ),
    Method(
        "weighted-clip",
        "Wide clip, good tokens weighted less",
        None,
        Objective(Clip(0.02, 1.0), positive_weight=0.85),
        "min(r A, clip(r, 0.98, 2) A), 0.85 times that where A > 0",
        "no paper; values of the kind that the contest in docs/report chose in most worlds; the weight is an idea of "
        "2506.01347, which has 0.1",
    ),
    Method(
        "two-level-clip",
        "Clip with two levels",
        None,
        Objective(ByProbability(0.5, Clip(0.05, 0.7), Clip(0.05, 0.005))),
        "min(r A, clip(r, 0.95, 1 + up) A), up 0.7 where p <= 0.5 and 0.005 elsewhere, p old",
        "no paper; values that the contest in docs/report chose",
    ),
    Method(
        "no-clip",
        "No clip",
        None,
        Objective(Clip(1.0, math.inf)),
        "r A",
        "no paper; shows what a clip is for",
    ),
    Method(
        "decaying-clip",
        "Clip that decays",
        None,
        Objective(Decaying(Clip(0.2, 0.2), ("eps_low", "eps_high"), end=0.05, steps=1000)),
        "min(r A, clip(r, 1 - eps, 1 + eps) A), eps from 0.2 to 0.05 in a straight line over 1000 steps",
        "no paper; an example of `Decaying`",
    ),
    Method(
        "decaying-band",
        "Band that decays",
        None,
        Objective(Decaying(Band("kl", 0.2), "delta", end=0.02, steps=1000, shape="cosine")),
        "BandPO with delta from 0.2 to 0.02 along a cosine over 1000 steps",
        "no paper; an example of `Decaying`",
    ),
    Method(
        "dcpo",
        "DCPO",
        "2509.02333",
        Objective(DCPO(0.16, 0.2), aggregation=_RESPONSES),
        "PPO with (1 + sqrt(max(1 - 4 0.16 / p, 0))) / 2 <= r <= min((1 + sqrt(1 + 4 0.2 / p)) / 2, 10), p old",
        "its authors' repository: formula, values and cap. The BandPO paper's scripts have the same for this "
        "baseline, its average, and a dual clip at 10: `Objective(DCPO(0.16, 0.2), dual_clip=10.0)`",
        "the paper itself, whose sum over responses is not divided by their number, by two transcriptions; its "
        "authors' function always has a dual clip at 10, and their run script 0.2, 0.28 and a mean over tokens",
    ),
    Method(
        "trgppo",
        "TRGPPO",
        "1901.10314",
        Objective(Union(Band("kl", 0.03), Clip(0.2, 0.2))),
        "PPO with the wider of the KL band of 0.03 and [0.8, 1.2] on each side",
        "its public code for discrete actions, for the ball",
        "that it is widened by min and max, which that code does not do; delta, which is 0.001 there",
    ),
    Method(
        "band-kl",
        "BandPO",
        "2603.04918",
        Objective(Band("kl", 0.05), aggregation=_RESPONSES),
        _BAND.format("KL(coin of p || coin of r p)"),
        _THE_PAPER,
    ),
    Method(
        "band-tv",
        "BandPO by total variation",
        "2603.04918",
        Objective(Band("tv", 0.05), aggregation=_RESPONSES),
        _BAND.format("|r p - p|"),
        _THE_PAPER,
    ),
    Method(
        "band-chi2",
        "BandPO by chi-squared",
        "2603.04918",
        Objective(Band("chi2", 0.05), aggregation=_RESPONSES),
        _BAND.format("(r p - p)^2 / (p (1 - p))"),
        _THE_PAPER,
    ),
    Method(
        "band-relaxed",
        "Relaxed Band",
        "2603.04918",
        Objective(Relaxed(Band("kl", 0.05), Clip(0.2, 0.28)), aggregation=_RESPONSES),
        "PPO with the wider of the KL band of 0.05 and [0.8, 1.28] on each side",
        _THE_PAPER,
    ),
    Method(
        "band-sequence",
        "BandPO for whole responses",
        None,
        Objective(Band("kl", 0.05), ratio="sequence"),
        "BandPO, r and p of the whole response",
        "no paper; a response is one action with one probability",
    ),
    Method(
        "dppo",
        "DPPO, binary",
        "2602.04879",
        Objective(Band("tv", 0.15), apply="mask", aggregation=_LENGTH),
        "sg(min(r, 20)) A log pi, r = pi / pi_rollout; 0 where |pi - pi_rollout| > 0.15 and A drives it further",
        "its authors' code and their example in verl (0.15), verl's by running it; CPPO's paper prints the mask",
        "the paper itself; the average is the example's; 20 is that code's default, the example has 10,000",
        from_sampler=True,
        weights="(log(20) + rollout_logps - logps.detach()).clamp(max=0).exp()",
    ),
    Method(
        "ripo",
        "RIPO",
        "2607.10169",
        Objective(RIPO(0.05), aggregation=_TOKENS),
        "PPO with |r - 1| <= sqrt(0.05 / p), p old",
        "two summaries of the paper that agree on its eq. 15, on 0.05 and on DAPO's average",
        "the paper's own pages",
    ),
    Method(
        "cispo",
        "CISPO",
        "2506.13585",
        Objective(Clip(1.0, 4.0), apply="weight", aggregation=_TOKENS),
        "sg(min(r, 5)) A log pi",
        "the paper's eq. 4 and 5 as four readers quote them: an upper bound only, hence `Clip(1.0, 4.0)`",
        "the bound 5, which is the implementers': the paper gives none; the mean over all tokens, from which one "
        "reader of seven differs",
    ),
    Method(
        "topr",
        "TOPR",
        "2503.14286",
        Objective(BySign(Clip(0, 0), Clip(1, 0)), apply="weight", ratio="sequence", aggregation=_RESPONSES),
        "A log pi where A > 0, sg(min(r, 1)) A log pi where A < 0; r and pi of the whole response",
        "its gradient as three independent summaries quote it, of whole responses: weight 1 for R >= 0, "
        "clip(pi / mu, 0, 1) for R < 0",
        "the paper's own pages; there mu is the sampler, and the sign that of the reward",
    ),
    Method(
        "up",
        "UP",
        "2607.06987",
        Objective(BySign(Clip(0, 0), Clip(0.2, math.inf)), apply=("weight", "clip"), aggregation=_TOKENS),
        "A pi / sg(pi) where A > 0, max(r, 0.8) A where A < 0",
        "its authors' code in verl, and documentation of TRL: pi / sg(pi) for A > 0, the clipped surrogate else",
        "the average, which is that of its eq. 14 (UP-DAPO); whether its eq. 15 has the dual clip at 3 that its "
        "authors' code has where A < 0",
    ),
    Method(
        "ce-gppo",
        "CE-GPPO",
        "2509.20712",
        Objective(Clip(0.2, 0.2), apply=Preserve(0.5, 1.0), aggregation=_TOKENS),
        "r A; where PPO clips, beta sg(bound / r) r A, beta 0.5 below and 1 above [0.8, 1.2]",
        "the paper, version 5, eq. 8 to 10 and table 1: (0.5, 1), (0.75, 1); the average of eq. 24. All scripts of "
        "its authors have a dual clip at 10 too, which the paper has not: `dual_clip=10.0`",
    ),
    Method(
        "gppo",
        "GPPO of Klear-Reasoner",
        "2508.07629",
        Objective(Clip(0.2, 0.28), apply=Preserve(1.0, 1.0), dual_clip=10.0, aggregation=_TOKENS),
        "r A; where PPO clips at 0.8 and 1.28, sg(bound / r) r A; where A < 0, at least 10 A",
        "its authors' README, which shows the changed line of code; CE-GPPO with beta 1 and 1. Ranges, dual clip and "
        "average are those of all its scripts",
        "the paper itself; the scripts weigh good tokens by 0.1 too",
    ),
    Method(
        "abc-grpo",
        "ABC-GRPO",
        "2601.03895",
        Objective(BySign(Clip(0.2, 0.2), Clip(0.2, 0.2)), apply="mask_two_sided", aggregation=_RESPONSES),
        "clip(r, 0.8, 1.2) A, for either sign: no minimum with r A, so that tokens are stopped on both sides",
        "the paper: eq. 5 and 6, and section 5.1, by which all four ranges are 0.2",
        "the average of its runs: its fork of TRL takes the mean over tokens unless told otherwise",
    ),
    Method(
        "gspo",
        "GSPO",
        "2507.18071",
        Objective(Clip(3e-4, 4e-4), ratio="sequence-mean", aggregation=_RESPONSES),
        "min(s A, clip(s, 1 - 3e-4, 1 + 4e-4) A), s the geometric mean of r over the response",
        "the paper's sentence on eq. 5 and its ranges, as three readers quote it",
        "GSPO-token, which has the same gradient where all tokens of a response have one advantage",
    ),
    Method(
        "gmpo",
        "GMPO",
        "2507.20673",
        Objective(Clip(1 - math.exp(-0.4), math.exp(0.4) - 1), ratio="mean-of-clipped", aggregation=_RESPONSES),
        "A times the geometric mean over the response of min(r, e^0.4) where A > 0, of max(r, e^-0.4) where A < 0",
        "its authors' code, and documentation of TRL: clip in log space by sign before the geometric mean, 0.4",
        _NOT_THE_PAPER,
    ),
    Method(
        "dis",
        "DIS of SAO and GLM-5",
        "2607.07508",
        Objective(Clip(0.3, 5.0), apply="mask_two_sided", aggregation=_TOKENS),
        "sg(r) A log pi, 0 outside [0.7, 6], r = pi / pi_rollout",
        "GLM-5's text (2602.15763, eq. 3 to 5) for the formula; three transcriptions of SAO, which agree, for the "
        "values of its runs on reasoning (those on code have 0.8 and 3)",
        "SAO's own pages; the average, which is written as an expectation over tokens; its interval is open, this one "
        "closed",
        from_sampler=True,
    ),
    Method(
        "atr-grpo",
        "ATR-GRPO (KL3)",
        "2602.05494",
        Objective(Clip(0.18689488478688432, 0.2135497071517296)),
        "PPO with r - 1 - log r <= 0.02, which is 0.813 <= r <= 1.214",
        "two summaries of the paper with its symbols",
        "the paper's own pages; its delta, which neither summary has: 0.02 is ours, the one nearest to GRPO's 0.2",
    ),
    Method(
        "kpop",
        "KPop",
        "2606.15079",
        Objective(
            Intersect(Band("kl", 0.75), Band("reverse_kl", 0.75)), apply="mask_two_sided", aggregation=_RESPONSES
        ),
        "sg(r) A log pi, r = pi / pi_rollout; 0 where the KL of the coins of pi and pi_rollout, in either direction, "
        "is above 0.75",
        "the report's text for the mask; verl's and AReaL's implementations",
        "which policy it masks: the current one in AReaL and here, the old one in verl (see `rollout_weights`); "
        "whether PPO's clip stands beside it; the radius, which the report does not give: its authors' blog, by a "
        "digest, tried 0.1, 0.5, 0.75 and 2, and found 0.75 best for mathematics and 2 for logic and code; AReaL has "
        "2, a proposal for prime-rl 0.1; the average, which is IcePop's",
        from_sampler=True,
    ),
    Method(
        "wilson",
        "Wilson's interval",
        None,
        Objective(Band("neyman_chi2", 0.05)),
        "PPO with Wilson's score interval around p, |r p - p| <= sqrt(0.05 r p (1 - r p)), p old; z^2 / n is 0.05",
        "no paper; scipy, by running it",
    ),
    Method(
        "sapo",
        "SAPO",
        "2511.20347",
        Objective(Clip(1.0, math.inf), apply=Sapo(1.0, 1.05), aggregation=_RESPONSES),
        "(4 / tau) sigmoid(tau (r - 1)) A, tau 1 where A > 0, 1.05 where A < 0; no interval",
        "TRL's and verl's losses, by running them; documentation of ms-swift, which calls 1 and 1.05 the paper's",
        _NOT_THE_PAPER,
    ),
    Method(
        "dgpo",
        "DGPO",
        "2603.14389",
        Objective(Clip(0.2, 0.2), apply=Decay(1.0, 0.5), aggregation=_TOKENS),
        "r A; where PPO clips, sg((r / 0.8)^1) r A below and sg((1.2 / r)^(1 / 2)) r A above",
        "its authors' README: the weights by cases and n = 1, m = 2; a reader's copy of its constants, which make the "
        "weights continuous, as the README says they do",
        "the paper's own pages; the two ranges, which are those of trainers",
    ),
    Method(
        "cfpo",
        "CFPO",
        "2601.22801",
        Objective(Clip(0.2, 0.2), apply="quadratic"),
        "r A - |A| (r - 1)^2 / (2 0.2); SPO's (2401.16025)",
        "two implementers who quote its eq. 7; the authors of DRPO, who write SPO's in the same way",
        "the paper itself; the range 0.2, which is that of trainers",
    ),
    Method(
        "drpo",
        "DRPO",
        "2606.09821",
        Objective(Clip(1.0, math.inf), aggregation=_LENGTH),
        "r A - |A| p (r - 1)^2 / (2 12.5), r = pi / pi_rollout, p of the sampler",
        "its authors' code, which quotes the paper's eq. 5 and 9 and 12.5 as its section 4",
        "the paper itself",
        from_sampler=True,
        weights="1 - sign(advantages)[:, None] * (logps.detach().exp() - rollout_logps.exp()) / 12.5",
    ),
    *OF_BATCHES,
)


def find_method(name: object) -> Method | None:
    """The method of that name, or whose paper calls it so, whatever the capitals."""
    key = _key(str(name))
    return next((each for each in METHODS if key in (each.name, _key(each.title))), None)


def _key(text: str) -> str:
    return "-".join(text.lower().replace("_", " ").split())


def method(name: str) -> Method:
    """The method of that name.

    Raises ValueError with the nearest name.

    >>> import bandpo
    >>> bandpo.method("gspo").objective
    Objective(Clip(eps_low=0.0003, eps_high=0.0004), ratio='sequence-mean', aggregation='seq-mean-token-mean')
    >>> bandpo.objective("gspo") == bandpo.method("gspo").objective
    True
    """
    if (found := find_method(name)) is not None:
        return found
    rule = str(name).partition(":")[0].lower()
    if rule in kinds():
        raise ValueError(f"{name!r} is not a method but a rule, which bandpo.objective({name!r}) takes")
    known = [*(each.name for each in METHODS), *kinds()]
    words = _key(str(name)).split("-")
    meant = f"band:{name}" if find_method(f"band-{rule}") else words[0] if {*words} <= {*known} else None
    raise ValueError(unknown("method or rule", name, known, meant=meant))
