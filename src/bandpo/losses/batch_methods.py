"""Methods whose rules see more of a batch than old log-probabilities and the step; a part of `methods.METHODS`."""

from __future__ import annotations

from ..trust_regions.adaptive import Adaptive, Tilt
from ..trust_regions.batch import ByEntropy, EntropyRatio, GroupClip, PrefixBudget, Stale
from ..trust_regions.combinators import BySign
from ..trust_regions.rules import Band, Clip
from .objective import Method, Objective

OF_BATCHES: tuple[Method, ...] = (
    Method(
        "cppo",
        "CPPO",
        "2606.10968",
        Objective(
            PrefixBudget("tv", delta=0.15, budget=0.015, least_weight=0.8),
            apply="mask",
            aggregation="seq-mean-token-sum-norm",
        ),
        "sg(min(r, 20)) A log pi, r = pi / pi_rollout; 0 where A drives it further and w D > min(0.15, 0.15 + sum over "
        "the tokens before of (0.015 w - w D)), D = |pi - pi_rollout|, w from 1 to 0.8 along the response",
        "the paper, version 2, eq. 8 to 11 and its values for dense models; 20 and the binary D from its authors' code "
        "in verl, which counts w to the end of the padding",
        "its values for base models, where the budget is a quantile of D; its D over the 20 likeliest tokens",
        from_sampler=True,
        weights="(log(20) + rollout_logps - logps.detach()).clamp(max=0).exp()",
    ),
    Method(
        "band-entropy",
        "Band by entropy",
        None,
        Objective(Adaptive(Band("kl", 0.05), Tilt("entropy", 0.5))),
        "BandPO with delta_t = 0.05 w / mean(w), w = e^(H / 2) but at most 10, H the entropy of the old policy there",
        "no paper; what the BandPO paper leaves as future work, with a law and a gain of ours",
    ),
    Method(
        "aspo",
        "ASPO",
        "2510.06062",
        Objective(ByEntropy(0.8, Clip(0.2, 0.2), Clip(0.4, 0.4)), apply=("mask", "clip"), aggregation="token-mean"),
        "sg(min(1 / r, 3)) A log pi where A > 0, 0 for r > 1 + eps; sg(min(r, 3)) A log pi where A < 0, 0 for "
        "r < 1 - eps; eps 0.2, above the quantile 0.8 of its response's entropies 0.4",
        "its abstract, and its authors' public code: weight min(1 / r, 3) where A > 0, dropped above 1 + eps; "
        "min(r, 3) where A < 0, dropped below 1 - eps; both eps and the quantile; the average is that of its scripts",
        "the paper's own pages",
        weights="minimum(2 * (d := (old_logps - logps.detach()).clamp(-60, 60)) * (advantages[:, None] > 0), "
        "d + log(3)).exp()",
    ),
    Method(
        "gapo",
        "GAPO",
        "2609.00444",
        Objective(GroupClip(3e-3, 5e-3, 8), ratio="sequence-mean", aggregation="seq-mean-token-mean"),
        "min(s A, clip(s, 1 - 3e-3, 1 + eps) A), s the geometric mean of r over the response, eps = 3e-3 + 2e-3 "
        "(8 - c) / 7 for c right answers among 8",
        "a digest of the whole paper with its formulas and values, and two implementations that agree with it",
        "the paper's own pages; its advantages, which are not divided by the standard deviation, are a separate choice",
    ),
    Method(
        "erc",
        "ERC",
        "2512.05591",
        Objective(
            EntropyRatio(BySign(Clip(1, 0.28), Clip(0.2, 9)), 0.95, 1.05),
            apply="mask_two_sided",
            aggregation="token-mean",
        ),
        "min(r A, clip(r, 0.8, 1.28) A), where A < 0 at least 10 A; no gradient where H / H_old, the entropies of the "
        "token's distribution, is outside (0.95, 1.05)",
        "its authors' repository: README, loss and the script of its run with DAPO's ranges, the dual clip at 10 "
        "and the average included",
        "the paper's equations. Its code drops a token whose entropy ratio is outside also where r is 1, as in the "
        "first step on a batch; here such a token keeps its gradient",
    ),
    Method(
        "a-3po",
        "A-3PO",
        "2512.06547",
        Objective(Stale(Clip(0.2, 0.2)), aggregation="token-mean"),
        "(prox / mu) min(s A, clip(s, 0.8, 1.2) A), s = pi / prox, log prox = log mu / d + (1 - 1 / d) sg(log pi), mu "
        "the sampler, d updates behind",
        "a digest of the paper with all its formulas, and AReaL, which has it; that this is PPO against the sampler "
        "with the ranges 0.8^d to 1.2^d was derived and tested here",
        "the paper's own pages; the range, which is AReaL's default",
        from_sampler=True,
    ),
)
