"""Scenes: how large a world is, how hard, and in which batches a policy is trained there."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bandpo.errors import nearest
from bandpo.numerics import listed
from bandpo.trust_regions.base import check_number
from bandpo.trust_regions.nodes import made_of

# What a sampler may compute in, in torch's words.
SAMPLERS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True)
class Scene:
    """A world and a training regime.

    A response begins with a token that chooses: "work" (token 0), "guess" (token 1) or one of the other tokens, which
    are bad. After "work" it has `steps` more tokens, each right or wrong; any other response is that one token. The
    reward is 1 if all steps that matter are right, or by luck if the response is a guess, else 0.

    Where `ways` is above 0, diversity is worth something: a response is one token, several of which are right for a
    prompt, by a linear teacher of its features. `sharpness` is then how sure the first policy is of what it knows
    nothing about, and nothing else of the choice above is used.

    Args:
        tokens: size of the vocabulary, at least 3.
        steps: tokens that follow "work".
        free_steps: how many of them, the first ones, do not matter.
        prompts: how many there are.
        features: random features of a state, beside two constant ones.
        spread: length of the random features at the first token, so how far prompts differ in the choice.
        sharpness: logits at the start are sharpness (teacher + noise) features: how sure the skill is.
        noise: standard deviation of that noise, where the teacher's is 1.
        p_work: P("work") at the start, in the mean over prompts.
        p_bad: that of all bad tokens together, with shares 1, 1/2, 1/3, ...
        luck: probability that a guess is rewarded.
        flip: probability that a reward is seen as 1 - reward.
        prompts_per_round: different prompts in a round.
        responses_per_prompt: the size of a group, at least 2.
        minibatches: of a round, in prompts; divides `prompts_per_round`.
        epochs: passes over the minibatches of a round, one optimizer step each.
        rounds: how often responses are drawn.
        stale: by how many rounds the policy that draws them lags behind.
        sampler: the dtype, of `SAMPLERS`, to which the logits of the policy that draws are rounded; None: it is the
            trainer's.
        hidden: the features are tanh(U x) with a square U that is learned too, at the same rate.
        sgd: plain gradient steps in the place of Adam's.
        betas: Adam's two, each in [0, 1).
        ways: the share of the tokens that are right for a prompt; 0: "work" and what follows it.
        unseen: prompts that are never trained on, measured at the end; goes with `ways`.

    Raises:
        ValueError: a value that is not allowed, with its name.
    """

    tokens: int = 16
    steps: int = 4
    free_steps: int = 0
    prompts: int = 16
    features: int = 16
    spread: float = 0.1
    sharpness: float = 5.0
    noise: float = 0.1
    p_work: float = 0.01
    p_bad: float = 0.05
    luck: float = 0.06
    flip: float = 0.0
    prompts_per_round: int = 8
    responses_per_prompt: int = 16
    minibatches: int = 4
    epochs: int = 4
    rounds: int = 40
    stale: int = 0
    sampler: str | None = None
    hidden: bool = False
    sgd: bool = False
    betas: tuple[float, float] = (0.9, 0.99)
    ways: float = 0.0
    unseen: int = 0

    def __post_init__(self) -> None:
        least = {"tokens": 3, "responses_per_prompt": 2, "free_steps": 0, "stale": 0, "unseen": 0}
        counts = ("steps", "prompts", "features", "prompts_per_round", "minibatches", "epochs", "rounds")
        for name in (*least, *counts):
            number = getattr(self, name)
            check_number(self, name, f"[{least.get(name, 1)}, inf)")
            if getattr(self, name) % 1:
                raise ValueError(f"{name} of Scene must be an integer, got {number!r}")
            object.__setattr__(self, name, int(getattr(self, name)))
        for name in ("spread", "sharpness", "noise"):
            check_number(self, name, "[0, inf)")
        for name in ("p_work", "p_bad"):
            check_number(self, name, "(0, 1)")
        for name in ("luck", "flip"):
            check_number(self, name, "[0, 1]")
        if self.sampler is not None and self.sampler not in SAMPLERS:
            raise ValueError(f"sampler of Scene must be one of {list(SAMPLERS)} or null, got {self.sampler!r}")
        for name in ("hidden", "sgd"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} of Scene must be true or false, got {getattr(self, name)!r}")
        try:
            betas = tuple(float(b) for b in listed(self.betas) if not isinstance(b, bool))
        except (TypeError, ValueError):
            betas = ()
        if len(betas) != 2 or not all(0 <= b < 1 for b in betas):
            raise ValueError(f"betas of Scene must be two numbers in [0, 1), got {self.betas!r}")
        object.__setattr__(self, "betas", betas)
        check_number(self, "ways", "[0, 1)")
        if self.unseen and not self.ways:
            raise ValueError(f"unseen of Scene goes with ways above 0, got {self.unseen} and ways = {self.ways}")
        if self.p_work + self.p_bad >= 1:
            raise ValueError(f"p_work + p_bad of Scene must be below 1, got {self.p_work} + {self.p_bad}")
        if self.free_steps > self.steps:
            raise ValueError(f"free_steps of Scene must be at most steps = {self.steps}, got {self.free_steps}")
        if self.prompts_per_round > self.prompts:
            raise ValueError(
                f"prompts_per_round of Scene must be at most prompts = {self.prompts}, got {self.prompts_per_round}"
            )
        if self.prompts_per_round % self.minibatches:
            raise ValueError(
                f"minibatches of Scene must divide prompts_per_round = {self.prompts_per_round}, got {self.minibatches}"
            )

    @property
    def length(self) -> int:
        """Tokens of the longest response."""
        return 1 if self.ways else 1 + self.steps

    @property
    def responses(self) -> int:
        """Responses of a round."""
        return self.prompts_per_round * self.responses_per_prompt


_SMALL = Scene(prompts_per_round=4, responses_per_prompt=8, minibatches=2, epochs=8, rounds=64)
_RARE_AND_NOISY = dataclasses.replace(_SMALL, flip=0.05)

# tail: a rare strategy. storm: small noisy batches that are used often. rare and noisy: a rare strategy in such
# batches. calibrated: each answer is used once, and GRPO's clip acts on nearly as few tokens as in public logs. trap: a
# guess is right more often. rare: P("work") is a thousandth. many: 256 tokens. long: 16 steps, of which 4 matter. fork:
# half a skill. ways: a third of 48 tokens is right for a prompt.
SCENES: dict[str, Scene] = {
    "tail": Scene(),
    "storm": dataclasses.replace(_SMALL, prompts_per_round=2, p_work=0.3, flip=0.1),
    "rare and noisy": _RARE_AND_NOISY,
    "calibrated": Scene(
        p_work=0.03,
        sharpness=4.0,
        spread=0.5,
        flip=0.2,
        prompts_per_round=16,
        responses_per_prompt=8,
        minibatches=4,
        epochs=1,
        rounds=120,
    ),
    "hidden": dataclasses.replace(_RARE_AND_NOISY, hidden=True),
    "many": dataclasses.replace(
        _RARE_AND_NOISY,
        tokens=256,
        steps=2,
        prompts=8,
        sharpness=7.0,
        p_bad=0.4,
        responses_per_prompt=16,
        epochs=6,
        rounds=40,
    ),
    "long": dataclasses.replace(_RARE_AND_NOISY, steps=16, free_steps=12, sharpness=6.0, p_work=0.02, rounds=50),
    "trap": dataclasses.replace(_RARE_AND_NOISY, luck=0.35, p_work=0.02),
    "rare": dataclasses.replace(_RARE_AND_NOISY, p_work=0.001, responses_per_prompt=32),
    "fork": dataclasses.replace(_SMALL, sharpness=2.5, steps=3, p_work=0.3, flip=0.1),
    "stale": dataclasses.replace(_RARE_AND_NOISY, stale=2),
    "ways": Scene(
        tokens=48,
        ways=0.33,
        prompts=64,
        unseen=64,
        features=24,
        sharpness=1.6,
        prompts_per_round=16,
        responses_per_prompt=8,
        minibatches=2,
        epochs=8,
        rounds=40,
    ),
}


def scene(node: Scene | str | Mapping[str, Any]) -> Scene:
    """A scene by its name, or as a mapping of `base`, a name (`tail` if it is left out), and what is different.

    Raises ValueError for an unknown name or field, with the nearest known one, and for what `Scene` does not allow.

    >>> scene({"base": "rare and noisy", "flip": 0.1}).flip
    0.1
    """
    if isinstance(node, Scene):
        return node
    if isinstance(node, Mapping):
        values = {str(key): value for key, value in node.items()}
        base = scene(values.pop("base", "tail"))
        fields = {field.name: getattr(base, field.name) for field in dataclasses.fields(base)}
        return made_of(Scene, {**fields, **values}, "scene", lambda _, value: value)
    if not isinstance(node, str) or node not in SCENES:
        raise ValueError(f"scene must be one of {list(SCENES)}, got {node!r}{nearest(str(node), list(SCENES))}")
    return SCENES[node]
