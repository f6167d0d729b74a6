"""A rule that keeps what it is shown, for workers that find it by name."""

from dataclasses import dataclass
from typing import ClassVar

import bandpo

SEEN = []


@dataclass(frozen=True)
class Watching(bandpo.Region):
    """Clip(0.2, 0.2) that keeps what it is shown."""

    kind: ClassVar[str] = "watching_of_cluster_tests"
    required: ClassVar[tuple[str, ...]] = ("response_mask", "advantages")

    def bounds(self, old_logps, context=None):
        shown = {name: context.require(name, self) for name in self.required} | {"old_logps": old_logps}
        SEEN.append({name: x.detach().clone() for name, x in shown.items()})
        return bandpo.Clip(0.2, 0.2).bounds(old_logps)
