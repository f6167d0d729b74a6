"""What each trainer shows a rule, and what it takes the ratio against: known before a run, without the trainer."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest

from bandpo import Clip, Objective, Region
from bandpo.integrations import TRAINERS, objective_for
from bandpo.losses import method
from bandpo.losses.nodes import methods


@pytest.mark.parametrize("name", [each.name for each in methods() if each.arguments == "old_logps=rollout_logps"])
def test_a_method_of_the_sampler_is_taken_where_the_ratio_is_to_it(name):
    value = method(name).without_average
    assert method("dis").arguments == "old_logps=rollout_logps"
    for host in ("tinker", "prime-rl"):  # always
        assert objective_for(host, name) == objective_for(host, method(name).to_config()) == value
    told = {"TRL": "anchor='sampler'", "SkyRL": "anchor='rollout'", "verl": "actor.policy_loss.anchor=sampler"}
    for host, setting in told.items():
        assert objective_for(host, name, anchor="sampler") == value
        with pytest.raises(ValueError, match=f"method '{name}': its ratio is to the sampler's policy; set {setting}"):
            objective_for(host, name)
    with pytest.raises(ValueError, match=r"^method .* surrogate must be 'clip' through torchrl"):
        objective_for("torchrl", name)
    with pytest.raises(ValueError, match=f"^method '{name}': its ratio is to the sampler's policy, which Liger does"):
        objective_for("Liger", name, anchor="sampler")


FIELDS = ["response_mask", "advantages", "entropies", "step"]


@dataclass(frozen=True)
class Needing(Region):
    """A clip that looks at one thing of the context first."""

    kind: ClassVar[str] = "needing_of_tests"
    field: str

    @property
    def required(self):
        return (self.field,)

    def bounds(self, old_logps, context=None):
        assert context.require(self.field, self) is not None
        return Clip(0.2, 0.2).bounds(old_logps)


@pytest.mark.parametrize(("host", "field"), list(itertools.product(TRAINERS, FIELDS)))
def test_a_rule_that_needs_what_a_trainer_does_not_give_is_refused_before_a_run(host, field):
    if TRAINERS[host].provides(field):
        assert objective_for(host, Needing(field)) == Objective(Needing(field))
    else:
        others = " or ".join(name for name, its in TRAINERS.items() if its.provides(field))
        message = rf"^Needing needs {field}, which {host} does not give a rule; take another rule, or "
        message += f"train with {others}$" if others else "call policy_loss in your own loop$"
        with pytest.raises(ValueError, match=message):
            objective_for(host, Needing(field))
    assert TRAINERS[host].provides("advantages")
    assert TRAINERS[host].provides("response_mask") == (host not in ("unsloth", "miles", "slime"))
    assert not TRAINERS[host].provides("entropies")
