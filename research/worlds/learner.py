"""What is trained: an objective, a learning rate, and the controls that a rule is compared with."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from bandpo.losses.nodes import method_or_objective
from bandpo.losses.objective import Method, Objective
from bandpo.losses.surrogates import as_pair
from bandpo.trust_regions.base import Region, check_number
from bandpo.trust_regions.rules import Clip

# The average over tokens is the world's: that of the objective is a trainer's, or was not chosen.
_AVERAGE = "token-mean"
# By the names of anchors: what bounds the weights pi_old / pi_rollout and how, or None where there are none.
ANCHORS: dict[str, tuple[Region, Literal["mask", "weight"]] | None] = {
    "sampler": None,
    "trainer": None,
    "tis": (Clip(1, 1), "weight"),
    "icepop": (Clip(0.5, 4), "mask"),
}


@dataclass(frozen=True)
class Learner:
    """An objective with a learning rate, and controls.

    The loss is averaged over the tokens of a minibatch.

    Args:
        objective: what `bandpo.objective` takes: an `Objective` or its node, a trust region or its node, a method or
            its name. It is kept as the `Objective`. Methods that take the ratio to the sampler's policy run too; those
            that need other tensors of a trainer do not.
        learning_rate: Adam's, or that of plain gradient steps.
        positive_weight: multiplies the positive advantages of tokens whose old probability is at least `positive_from`;
            that of an objective is multiplied to it.
        positive_from: see there, in [0, 1]; goes with a positive_weight other than 1.
        entropy_bonus: weight of the exact entropy of the states at the tokens of a minibatch, in their mean, which is
            maximised too.
        beta: weight of the KL penalty to the first policy; it becomes that of the objective, or is taken from there.
        balanced: at each optimizer step, sum r A / sum r over the tokens of the minibatch that have a gradient is
            subtracted from their advantages, so that those that are pushed up and those that are pushed down weigh the
            same, as they nearly do before the first step. An advantage that would change its sign is 0 then.
        by_chance: cut random tokens in the place of those that the rule cuts: at each optimizer step as large a share
            of |A| as the rule would, for each sign of A and octave of the old probability. What is left of a rule's
            effect then is not due to which tokens it cuts.
        anchor: where old log-probabilities come from. "sampler": from the policy that drew the responses. "trainer":
            from the trainer's as a round begins, as if its sampler were that. "tis", "icepop": from the trainer's too,
            with the weights of `ANCHORS`.

    Raises:
        ValueError: a value that is not allowed; a method that needs what a world has not; `by_chance` with an objective
            that does not cut tokens one by one.

    >>> Learner("grpo", 0.02).objective
    Objective(Clip(eps_low=0.2, eps_high=0.2), aggregation='token-mean')
    """

    objective: Any
    learning_rate: float
    positive_weight: float = 1.0
    positive_from: float = 0.0
    entropy_bonus: float = 0.0
    beta: float = 0.0
    balanced: bool = False
    by_chance: bool = False
    anchor: str = "sampler"

    def __post_init__(self) -> None:
        check_number(self, "learning_rate", "(0, inf)")
        check_number(self, "positive_from", "[0, 1]")
        for name in ("positive_weight", "entropy_bonus", "beta"):
            check_number(self, name, "[0, inf)")
        if self.positive_from > 0 and self.positive_weight == 1:
            raise ValueError(
                f"positive_from of Learner is {self.positive_from!r}, which without a positive_weight other than 1 "
                "does nothing; give both"
            )
        for name in ("balanced", "by_chance"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} of Learner must be true or false, got {getattr(self, name)!r}")
        if self.balanced and self.by_chance:
            raise ValueError("balanced and by_chance of Learner do not go together: give one")
        if self.anchor not in ANCHORS:
            raise ValueError(f"anchor of Learner must be one of {list(ANCHORS)}, got {self.anchor!r}")
        objective = _objective(self.objective)
        if objective.aggregation not in (None, _AVERAGE):
            raise ValueError(
                f"aggregation of a Learner's objective must be {_AVERAGE!r}, as the world has it, got "
                f"{objective.aggregation!r}"
            )
        if objective.positive_weight != 1:
            if self.positive_from > 0:
                raise ValueError(
                    f"positive_from of Learner must be 0 for an objective with a positive_weight, which is one of all "
                    f"probabilities, got {self.positive_from} and {objective.positive_weight}"
                )
            object.__setattr__(self, "positive_weight", self.positive_weight * objective.positive_weight)
            objective = dataclasses.replace(objective, positive_weight=1.0)
        if self.beta > 0:
            if objective.beta not in (0.0, self.beta):
                raise ValueError(
                    f"beta of Learner and of its objective: give one, got {self.beta} and {objective.beta}"
                )
            objective = dataclasses.replace(objective, beta=self.beta)
        if self.by_chance:
            _check_cuts(objective)
        object.__setattr__(self, "beta", objective.beta)
        object.__setattr__(self, "objective", dataclasses.replace(objective, aggregation=_AVERAGE))


def _objective(node: Any) -> Objective:
    value = method_or_objective(node)
    return value.without_average if isinstance(value, Method) else value


def _check_cuts(objective: Objective) -> None:
    applies = as_pair(objective.surrogate, objective.dual_clip)
    if objective.ratio != "token" or not set(applies) <= {"clip", "mask"} or objective.dual_clip is not None:
        raise ValueError(
            "by_chance of Learner goes with an objective that cuts tokens one by one, of surrogate 'clip' or 'mask', "
            f"ratio 'token' and no dual clip, got {objective!r}"
        )
