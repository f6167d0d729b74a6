"""What a rule is shown of a batch: `policy_loss` passes on what it is given, and makes the rest of its own tensors."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from bandpo import Bounds, Context, Region, policy_loss

SEEN: list[tuple[torch.Tensor, Context]] = []


@dataclass(frozen=True)
class Watching(Region):
    """Keeps what it is shown; allows everything."""

    kind: ClassVar[str] = "watching_of_tests"

    def bounds(self, old_logps, context=None):
        SEEN.append((old_logps, context))
        wide = torch.full_like(old_logps, math.inf)
        return Bounds(-wide, wide)


class Aged(Region):
    """Asks for what the library has no name for."""

    required = ("age",)

    def bounds(self, old_logps, context=None):
        wide = 0 * old_logps + 0.1 * (context or Context()).require("age", self)
        return Bounds(-wide, wide)


def batch():
    rng = torch.Generator().manual_seed(0)
    old = -2 * torch.rand(3, 4, generator=rng, dtype=torch.float64)
    new = (old + 0.3).clamp(max=0)
    mask = torch.arange(4) < torch.tensor([[4], [2], [3]])
    return new, old, torch.tensor([1.0, -1.0, 0.5]), mask


def shown(*tensors, extra=None):
    SEEN.clear()
    policy_loss(*tensors, Watching(), extra=extra)
    return SEEN[0]


def test_a_rule_is_shown_the_mask_the_advantages_and_what_the_loss_is_given():
    new, old, advantages, mask = batch()
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
    old_logps, context = shown(new.requires_grad_(), torch.where(mask, old, math.nan), advantages, mask, extra=extra)
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
    new, old, advantages, mask = batch()
    ages, a = torch.tensor([1, 2, 0]), advantages[:, None]
    loss, _ = policy_loss(new, old, advantages, mask, Aged(), extra={"age": ages})
    clipped = (new - old).clamp(min=-0.1 * ages[:, None], max=0.1 * ages[:, None]).exp()
    terms = torch.where(mask, torch.minimum((new - old).exp() * a, clipped * a), 0.0)
    torch.testing.assert_close(loss, -(terms.sum(1) / mask.sum(1)).mean())
    message = r"Aged needs age, which was not given; pass extra=\{'age': \.\.\.\} to policy_loss, or a Context"
    with pytest.raises(ValueError, match=message):
        policy_loss(new, old, advantages, mask, Aged())


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"stap": 1}, TypeError, "unexpected keyword argument 'stap'"),
        ({"entropies": torch.rand(3, 4)}, TypeError, "unexpected keyword argument 'entropies'"),
        ({"extra": {"entropies": torch.rand(3)}}, ValueError, r"entropies must be \(3, 4\) like logps, got \(3,\)"),
        ({"extra": {"entropies": torch.ones(3, 4).long()}}, ValueError, "entropies must be floating point"),
        ({"extra": {"entropies": [1.0]}}, TypeError, r"entropies must be a torch.Tensor, got list; torch.as_tensor\("),
        ({"extra": {"entropies": torch.tensor(1.0)}}, ValueError, r"entropies must be \(3, 4\) like logps, got \(\)"),
        ({"extra": [3]}, TypeError, r"extra must map names that Context does not have to values, got \[3\]"),
        (
            {"extra": {"advantages": 3}},
            TypeError,
            r"Context does not have to values, got \{'advantages': 3\}",
        ),
        (
            {"extra": {"age": torch.rand(4)}},
            ValueError,
            r"extra\['age'\] must be \(3, 4\) or .* or \(\) like logps, got \(4,\)",
        ),
    ],
)
def test_what_is_no_context_is_refused(given, error, message):
    with pytest.raises(error, match=message):
        policy_loss(*batch(), Watching(), **given)
