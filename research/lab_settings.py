"""Settings of a scene of the lab, without the names of any trainer's other settings."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from bandpo_runs.toy import SCENES


@dataclass(frozen=True)
class Settings:
    """Settings of a run in a scene.

    Attributes:
        p_work: how often the warm start works step by step.
        rounds: sample, then learn, so many times.
        learning_rate: of AdamW, constant.
        prompts: in a round.
        num_generations: completions of each prompt, G.
        steps_per_generation: minibatches that a round's completions are split into, K.
        num_iterations: times that each of these is used, E; a round has K E optimizer steps.
        flip: share of the rewards that are inverted, chosen at random.
    """

    p_work: float
    rounds: int
    learning_rate: float
    prompts: int
    num_generations: int
    steps_per_generation: int
    num_iterations: int
    flip: float = 0.0

    def __post_init__(self) -> None:
        counts = ("rounds", "prompts", "num_generations", "steps_per_generation", "num_iterations")
        for name in counts:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {self.learning_rate!r}")
        if not 0 <= self.flip < 0.5:
            raise ValueError(f"flip must be at least 0 and below a half, got {self.flip!r}")
        if not 0 < self.p_work < 1:
            raise ValueError(f"p_work must be between 0 and 1, got {self.p_work!r}")
        if self.num_generations < 2:
            raise ValueError(f"num_generations must be at least 2, got {self.num_generations}")
        if self.prompts * self.num_generations % self.steps_per_generation:
            raise ValueError(
                f"steps_per_generation must divide the {self.prompts} x {self.num_generations} completions of a round, "
                f"got {self.steps_per_generation}"
            )

    @property
    def steps(self) -> int:
        """Return the number of optimizer steps in a round."""
        return self.steps_per_generation * self.num_iterations

    @classmethod
    def of(cls, scene: str, **changes: Any) -> Self:
        """Return the settings of a scene of the lab, with `changes` to the fields.

        Raises:
            ValueError: no such scene, or a value that cannot be.
        """
        if scene not in SCENES:
            raise ValueError(f"scene must be one of {sorted(SCENES)}, got {scene!r}")
        its_scene = SCENES[scene]
        trainer: Mapping[str, Any] = its_scene.defaults["trainer"]
        group, minibatches = trainer["num_generations"], trainer["steps_per_generation"]
        own = cls(
            p_work=its_scene.p_work,
            rounds=its_scene.defaults["rounds"],
            learning_rate=trainer["learning_rate"],
            prompts=trainer["per_device_train_batch_size"] * minibatches // group,
            num_generations=group,
            steps_per_generation=minibatches,
            num_iterations=trainer["num_iterations"],
            flip=its_scene.flip,
        )
        return dataclasses.replace(own, **changes)
