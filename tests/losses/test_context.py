"""What a rule is shown of a batch: `policy_loss` passes on what it is given, and makes the rest of its own tensors."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from bandpo import Bounds, Clip, Context, Objective, Region, policy_loss

SEEN: list[Context] = []


@dataclass(frozen=True)
class Watching(Region):
    """Keeps what it is shown; allows everything."""

    kind: ClassVar[str] = "watching_of_tests"
    needs: ClassVar[tuple[str, ...]] = ("logps", "positions")

    def bounds(self, old_logps, context=None):
        SEEN.append(context)
        wide = torch.full_like(old_logps, math.inf)
        return Bounds(-wide, wide)


class Aged(Region):
    """Asks for what the library has no name for."""

    needs = ("age",)

    def bounds(self, old_logps, context=None):
        wide = 0 * old_logps + 0.1 * (context or Context()).require("age", self)
        return Bounds(-wide, wide)


def batch():
    rng = torch.Generator().manual_seed(0)
    old = -2 * torch.rand(3, 4, generator=rng, dtype=torch.float64)
    new = (old + 0.3).clamp(max=0)
    mask = torch.arange(4) < torch.tensor([[4], [2], [3]])
    return new, old, torch.tensor([1.0, -1.0, 0.5]), mask


def shown(*tensors, ratio="token", **known):
    SEEN.clear()
    policy_loss(*tensors, Objective(Watching() if ratio != "sequence-mean" else Clip(), ratio=ratio), **known)
    return SEEN[0]


def test_a_rule_is_shown_what_the_loss_is_given():
    new, old, advantages, mask = batch()
    tokens, responses = torch.rand(3, 4), torch.rand(3)
    given = {
        "entropies": tokens,
        "old_entropies": tokens + 1,
        "step": 7,
        "mean_weight": 1.5,
        "controlled": 0.04,
    }
    more = {"group": torch.tensor([0, 1, 2]), "rate": responses.requires_grad_(), "far": tokens + 2, "age": 3}
    context = shown(new.requires_grad_(), old, advantages, mask, **given, more=more)
    assert context.more.keys() == more.keys()
    for name, value in (given | more).items():
        found = context.more[name] if name in more else getattr(context, name)
        if isinstance(value, torch.Tensor):
            value = value[:, None] if value.dim() == 1 else value
            assert torch.equal(found, value), name
            assert found.dim() == 2, name
            assert not found.requires_grad, name
        else:
            assert found == value, name
    assert context.logps is not None
    assert torch.equal(context.logps[mask], new[mask])
    assert not context.logps.requires_grad


def test_a_rule_may_need_what_has_no_name_here():
    new, old, advantages, mask = batch()
    ages = torch.tensor([1, 2, 0])
    loss, _ = policy_loss(new, old, advantages, mask, Aged(), more={"age": ages})
    ratio = (new - old).exp()
    clipped = (new - old).clamp(min=-0.1 * ages[:, None], max=0.1 * ages[:, None]).exp()
    a = advantages[:, None]
    terms = torch.where(mask, torch.minimum(ratio * a, clipped * a), 0.0)
    torch.testing.assert_close(loss, -(terms.sum(1) / mask.sum(1)).mean())
    message = r"Aged needs context\.age, which was not given; pass more=\{'age': \.\.\.\} to policy_loss, or a Context"
    with pytest.raises(ValueError, match=message):
        policy_loss(new, old, advantages, mask, Aged())


def test_the_ratio_of_whole_responses_is_shown_as_that():
    new, old, advantages, mask = batch()
    context = shown(new, old, advantages, mask, ratio="sequence")
    total = torch.where(mask, new, 0.0).sum(-1, keepdim=True).expand(3, 4)
    torch.testing.assert_close(context.logps, total)


@pytest.mark.parametrize(
    ("known", "error", "message"),
    [
        ({"stap": 1}, TypeError, "unexpected keyword argument 'stap'"),
        ({"positions": None}, TypeError, "unexpected keyword argument 'positions'"),
        ({"entropies": torch.rand(3)}, ValueError, r"entropies must be \(3, 4\) like logps, got \(3,\)"),
        ({"mean_weight": torch.rand(4)}, ValueError, r"mean_weight must be \(3, 4\), \(3, 1\) or \(3,\), got \(4,\)"),
        ({"entropies": torch.ones(3, 4, dtype=torch.int64)}, ValueError, "entropies must be floating point"),
        ({"old_entropies": [1.0]}, TypeError, r"old_entropies must be a torch.Tensor, got list; torch.as_tensor\("),
        ({"entropies": torch.tensor(1.0)}, ValueError, r"entropies must be \(3, 4\) like logps, got \(\)"),
        ({"more": [3]}, TypeError, r"more must map names that Context does not have to values, got \[3\]"),
        ({"more": {"step": 3}}, TypeError, r"names that Context does not have to values, got \{'step': 3\}"),
        (
            {"more": {"age": torch.rand(4)}},
            ValueError,
            r"more\['age'\] must be \(3, 4\), \(3, 1\) or \(3,\), got \(4,\)",
        ),
    ],
)
def test_what_is_no_context_is_refused(known, error, message):
    with pytest.raises(error, match=message):
        policy_loss(*batch(), Watching(), **known)
