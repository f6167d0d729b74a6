"""AReaL 1.0.4: the bounds of each token for its own loss.

`areal/trainer/ppo/actor.py` calls `ppo_actor_loss_fn`. The anchor is the proximal policy.
Save this as bandpo_recipe.py where every worker can import it. Add to the end of that file:

    from bandpo_recipe import loss as ppo_actor_loss_fn
"""

import torch
from areal.utils.functional import ppo_actor_loss_fn

import bandpo

region = bandpo.Band("kl", 0.05)


def loss(proximal_logprobs, loss_mask, **named):
    bounds = region.bounds(torch.where(loss_mask, proximal_logprobs, -1.0))
    named |= {"eps_clip": bounds.eps_low, "eps_clip_higher": bounds.eps_high}
    return ppo_actor_loss_fn(proximal_logprobs=proximal_logprobs, loss_mask=loss_mask, **named)
