"""open-instruct, commit e6c3044: the bounds of each token for its own loss.

`open_instruct/grpo_utils.py` has `compute_grpo_loss`. It gets no old log-probabilities; they are log p - log r,
of the old policy or the sampler, as open-instruct is set.
Save this as bandpo_recipe.py where every worker can import it. Add to the end of that file:

    from bandpo_recipe import loss as compute_grpo_loss
"""

import copy

from open_instruct.grpo_utils import compute_grpo_loss

import bandpo

region = bandpo.Band("kl", 0.05)


def loss(new_logprobs, ratio, config, **named):
    bounds = region.bounds((new_logprobs - ratio.log()).detach().clamp(max=0))
    config = copy.copy(config)
    config.clip_lower, config.clip_higher = bounds.eps_low, bounds.eps_high
    return compute_grpo_loss(new_logprobs=new_logprobs, ratio=ratio, config=config, **named)
