"""Rules and a law that keep what they are shown, and a law that never moves, for workers that find them by name."""

from dataclasses import dataclass, fields
from typing import ClassVar

import torch

import bandpo

SEEN = []


@dataclass(frozen=True)
class Watching(bandpo.Region):
    """Clip(0.2, 0.2) that needs the fields of the context that it names, separated by dots, and keeps all of it."""

    kind: ClassVar[str] = "watching_of_cluster_tests"
    fields: str

    @property
    def needs(self):
        return tuple(self.fields.split("."))

    def bounds(self, old_logps, context=None):
        for name in self.needs:
            context.require(name, self)
        keep(old_logps, context)
        return bandpo.Clip(0.2, 0.2).bounds(old_logps)


@dataclass(frozen=True)
class Stepped(bandpo.Region):
    """A band that needs the step."""

    kind: ClassVar[str] = "stepped_of_cluster_tests"
    needs: ClassVar[tuple[str, ...]] = ("step",)
    delta: float = 0.0001

    def bounds(self, old_logps, context=None):
        assert context.require("step", self) >= 0
        return bandpo.Band("kl", self.delta).bounds(old_logps)


@dataclass(frozen=True)
class Spread(bandpo.trust_regions.TokenLaw):
    """e^H of the old policy, and keeps what it is shown."""

    kind: ClassVar[str] = "spread_of_cluster_tests"
    needs: ClassVar[tuple[str, ...]] = ("old_entropies",)

    def weights(self, old_logps, context):
        keep(old_logps, context)
        return context.require("old_entropies", self).exp()


@dataclass(frozen=True)
class Still(bandpo.trust_regions.ControlLaw):
    """Never moves."""

    kind: ClassVar[str] = "still_of_cluster_tests"

    def step(self, state, gap, target, low, high):
        return state


def keep(old_logps, context):
    values = {each.name: getattr(context, each.name) for each in fields(context)} | {"old_logps": old_logps}
    SEEN.append({k: v.detach().clone() if isinstance(v, torch.Tensor) else v for k, v in values.items()})
