"""Hold the loss as one value. An `Objective` is all of eq:bandpo_full except the tensors, a `Method` a named one."""

# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ..trust_regions.base import (
    Context,
    Region,
    check_numbers,
    check_part,
    depends_on_probability,
    node_of,
)
from ..trust_regions.rules import Band, Clip
from .aggregation import Aggregation
from .kl import KLPenalty
from .surrogates import Surrogate, as_pair

_INTERVALS = {
    "dual_clip": "(1, inf)",
    "beta": "[0, inf)",
    "max_log_ratio": "(0, 60]",
    "positive_weight": "[0, inf)",
}
Ratio = Literal["token", "sequence", "sequence-mean", "mean-of-clipped"]


@dataclass(frozen=True, repr=False)
class Objective:
    """Describe what is maximised. It is the paper's (eq:bandpo_full) with another part for each field that is given.

    >>> from bandpo import Clip, Objective, objective
    >>> from bandpo.losses import Preserve
    >>> Objective(Clip(0.2, 0.2), surrogate=Preserve(0.5, 1))
    Objective(Clip(eps_low=0.2, eps_high=0.2), surrogate=Preserve(low=0.5, high=1.0))
    >>> objective({"type": "band", "delta": 0.05}) == Objective()
    True

    The paper's is 1/G sum_i 1/T_i sum_t [ min(r A, clip(r, r_low, r_high) A) - beta KL_t ]. An objective is frozen,
    hashable, and its own node in a config file: `Objective(Clip(1, 4), surrogate="weight")` is `{type: objective,
    trust_region: {type: clip, eps_low: 1, eps_high: 4}, surrogate: weight}`. `bandpo.objective(node)` and `to_config()`
    go there and back.

    Args:
        trust_region: the rule; the paper's is `Band("kl", 0.05)`.
        surrogate: what becomes of tokens outside: clip, mask, mask_two_sided, weight, quadratic,
            `Preserve(low, high)`, `Decay(low, high)`, or a pair of them for A >= 0 and A < 0; see `surrogate` for
            formulas, gradients and papers. `Sapo()` and `Vespo()` have no bounds: alone they go with the rule
            `Clip(1, inf)` only, and in a pair the rule is that of the other sign.
        ratio: what r is the ratio of. "token", the paper's: pi / pi_old of each token. The others are for one advantage
            per response, whose tokens all have the same r and surrogate, and all get every term's gradient:
            - sequence: of the whole response, the product over its tokens. It is one action with one probability, so a
              band is defined (but hardly binds from above: the probability of a long response is near 0). Each token
              has 1 / T of the surrogate, so that "seq-mean-token-sum" is the mean over responses;
            - sequence-mean: their geometric mean (GSPO, arXiv 2507.18071), for `Clip` and combinations of it only;
            - mean-of-clipped: the geometric mean of the clipped ratios (GMPO, arXiv 2507.20673), for "clip" only.
            Metrics still count tokens, each with its own old probability and estimate of KL(pi_old || pi); "outside"
            and `log_ratio/*` are about the ratio of the response for the two sequence ratios.
        dual_clip: c > 1; where A < 0, r counts as at most c (arXiv 1912.09729); not for one that bounds r there.
        beta: weight of the KL penalty to a reference policy.
        kl_penalty: the estimate of the KL penalty; see `kl_penalty`.
        aggregation: see `aggregate`. None, the default, is the paper's in `policy_loss`, "seq-mean-token-mean", and
            the trainer's own where a trainer averages.
        max_log_ratio: clamp log r to +- this before anything else (verl: 20); None is 60.
        positive_weight: what the surrogate of tokens with A > 0 is multiplied by, after clipping. 0.1 is the lambda of
            W-REINFORCE (arXiv 2506.01347); at 0 only failures are learned from. Metrics do not see it.

    Raises:
        ValueError: a value that is not allowed, or two that contradict each other, with the field's name.
    """

    trust_region: Region = field(default_factory=Band)
    surrogate: Surrogate | tuple[Surrogate, Surrogate] = "clip"
    ratio: Ratio = "token"
    dual_clip: float | None = None
    beta: float = 0.0
    kl_penalty: KLPenalty = "k3"
    aggregation: Aggregation | None = None
    max_log_ratio: float | None = None
    positive_weight: float = 1.0

    def __post_init__(self) -> None:
        check_part(self, "trust_region")
        check_numbers(self, _INTERVALS)
        positive, negative = as_pair(self.surrogate, self.dual_clip)
        object.__setattr__(self, "surrogate", positive if positive == negative else (positive, negative))
        for name, allowed in (("ratio", Ratio), ("kl_penalty", KLPenalty), ("aggregation", Aggregation)):
            if getattr(self, name) not in (*get_args(allowed), getattr(Objective, name)):
                raise ValueError(
                    f"{name} of Objective must be one of {list(get_args(allowed))}, got {getattr(self, name)!r}"
                )
        if self.ratio == "sequence-mean" and depends_on_probability(self.trust_region):
            raise ValueError(
                f"trust_region must be made of Clip for ratio 'sequence-mean', got {self.trust_region!r}: a mean of "
                "ratios has no probability, and so no divergence ball; take ratio 'sequence' or 'token'"
            )
        if not any(
            getattr(kind, "has_bounds", True) for kind in (positive, negative)
        ) and self.trust_region != Clip(1.0, math.inf):
            raise ValueError(
                f"trust_region must be Clip(1, inf), no clip, for surrogate = {self.surrogate!r}, got "
                f"{self.trust_region!r}: it does not read a rule's bounds; 'quadratic' and Decay() are soft, too, and "
                "read them"
            )
        if self.ratio == "mean-of-clipped" and self.surrogate != "clip":
            raise ValueError(
                f"surrogate must be 'clip' for ratio 'mean-of-clipped', got {self.surrogate!r}"
            )
        if self.beta == 0 and self.kl_penalty != Objective.kl_penalty:
            raise ValueError(
                f"kl_penalty = {self.kl_penalty!r} and beta = 0 do not go together: the penalty is off"
            )

    @property
    def is_per_token(self) -> bool:
        """Tell an interval of each token's ratio from one of a response's."""
        return self.ratio in ("token", "mean-of-clipped")

    def changed(self) -> dict[str, Any]:
        """Return the fields that are not the paper's, by name, without the trust region."""
        names = (field.name for field in dataclasses.fields(self)[1:])
        return {
            name: getattr(self, name) for name in names if getattr(self, name) != getattr(Objective, name)
        }

    def __repr__(self) -> str:
        return f"Objective({', '.join([repr(self.trust_region), *(f'{k}={v!r}' for k, v in self.changed().items())])})"

    def to_config(self) -> dict[str, Any]:
        """Return the YAML node: the trust region and the fields that are not the paper's.

        Raises ValueError for a divergence or a rule without a name in YAML.
        """
        node = node_of(self, "objective")
        return {key: node[key] for key in ("type", "trust_region", *self.changed())}


@dataclass(frozen=True)
class Method:
    """Name an objective that has a paper's values.

    >>> from bandpo.losses import method
    >>> method("dppo").formula
    'sg(r) A log pi, r = pi / pi_rollout; 0 where |pi - pi_rollout| > 0.15 and A drives it further'
    >>> method("dppo").arguments                                  # besides the objective, in `policy_loss`
    'old_logps=rollout_logps'

    The KL penalty and the advantages are separate choices. Its node is `{type: method, name: gspo}`; for other values
    write the objective, beginning with `bandpo.losses.method("gspo").without_average.to_config()`.

    Args:
        name: as it is written in nodes and on the command line.
        title: as the paper writes it.
        objective: with the paper's values, and its average over tokens where it names one.
        formula: what is maximised per token; r is pi / pi_old, A the advantage, sg stops the gradient.
        source: where the formula and the values were read.
        unchecked: what of them was not compared with the paper.
        arxiv: number of the paper; None if there is none, or it is not known which.
        from_sampler: the ratio is to the sampler's policy, which a trainer has to be told.
    """

    name: str
    title: str
    objective: Objective
    formula: str
    source: str
    unchecked: str = ""
    arxiv: str | None = None
    from_sampler: bool = False

    @property
    def without_average(self) -> Objective:
        """Return the objective for a trainer that averages over tokens itself."""
        return dataclasses.replace(self.objective, aggregation=None)

    @property
    def arguments(self) -> str:
        """Return the arguments of `policy_loss` besides the objective, written as Python."""
        required = self.objective.trust_region.all_required()
        own = [f"{name!r}: {name}" for name in required if name not in Context.__dataclass_fields__]
        arguments = {"old_logps=rollout_logps": self.from_sampler, f"extra={{{', '.join(own)}}}": own}
        return ", ".join(text for text, is_needed in arguments.items() if is_needed)

    def to_config(self) -> dict[str, Any]:
        return {"type": "method", "name": self.name}
