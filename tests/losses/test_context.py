"""What a rule is shown of a batch: `policy_loss` passes on what it is given, and makes the rest of its own tensors."""

import math

import pytest
import torch
from regions import NO_CLIP
from textbook import ragged

from bandpo import Bounds, Context, Region, policy_loss

SEEN: list[tuple[torch.Tensor, Context]] = []


class Watching(Region):
    """Keeps what it is shown; allows everything."""

    def bounds(self, old_logps, context=None):
        SEEN.append((old_logps, context))
        return NO_CLIP.bounds(old_logps)


class Aged(Region):
    """Asks for what the library has no name for."""

    required = ("age",)

    def bounds(self, old_logps, context=None):
        wide = 0 * old_logps + 0.1 * (context or Context()).require("age", self)
        return Bounds(-wide, wide)


def shown(*tensors, extra=None):
    SEEN.clear()
    policy_loss(*tensors, Watching(), extra=extra)
    return SEEN[0]


def test_a_rule_is_shown_the_mask_the_advantages_and_what_the_loss_is_given():
    new, old, advantages, mask = ragged(3, 4).values()
    tokens, responses = torch.rand(3, 4), torch.rand(3)
    extra = {
        "entropies": tokens,
        "step": 7,
        "group": torch.tensor([0, 1, 2]),
        "rate": responses.requires_grad_(),
        "far": tokens + 2,
        "age": 3,
        "scale": torch.tensor(2.0),
    }
    old_logps, context = shown(new, torch.where(mask, old, math.nan), advantages, mask, extra=extra)
    assert old_logps.isfinite().all()  # a rule may take means over the batch
    assert torch.equal(old_logps[mask], old[mask])
    wanted = {name: torch.as_tensor(x) for name, x in extra.items()} | {"mask": mask, "advantages": advantages}
    seen = context.extra | {"mask": context.response_mask, "advantages": context.advantages}
    assert seen.keys() == wanted.keys()
    for name, x in wanted.items():
        assert torch.equal(torch.as_tensor(seen[name]), x[:, None] if x.dim() == 1 else x), name
    assert not any(torch.as_tensor(x).requires_grad for x in seen.values())
    assert shown(new, old, advantages, mask)[1].extra == {}


def test_a_rule_may_need_what_has_no_name_here():
    new, old, advantages, mask = ragged(3, 4).values()
    ages, a = torch.tensor([1, 2, 0]), advantages[:, None]
    loss, _ = policy_loss(new, old, advantages, mask, Aged(), extra={"age": ages})
    clipped = (new - old).clamp(min=-0.1 * ages[:, None], max=0.1 * ages[:, None]).exp()
    terms = torch.where(mask, torch.minimum((new - old).exp() * a, clipped * a), 0.0)
    torch.testing.assert_close(loss, -(terms.sum(1) / mask.sum(1).clamp(min=1)).sum() / 2)  # one response is empty
    assert mask.any(1).sum() == 2
    message = r"Aged needs age, which was not given; pass extra=\{'age': \.\.\.\} to policy_loss, or a Context"
    with pytest.raises(ValueError, match=message):
        policy_loss(new, old, advantages, mask, Aged())
