"""NeMo-RL, commit 7ea279a: the bounds of each token for its own loss.

`nemo_rl/algorithms/loss/__init__.py` imports `ClippedPGLossFn`, which grpo.py, ppo.py and the single controller
build.
Save this as bandpo_recipe.py where every worker can import it. Add to the end of that file:

    import bandpo_recipe
"""

import torch
from nemo_rl.algorithms.loss import ClippedPGLossFn

import bandpo

region, own = bandpo.Band("kl", 0.05), ClippedPGLossFn.__call__


def loss(self, next_token_logprobs, data, *args, **named):
    mask, old = data["token_mask"][:, 1:].bool(), data["prev_logprobs"][:, 1:]
    bounds = region.bounds(torch.where(mask, old, -1.0))
    self.ratio_clip_min, self.ratio_clip_max = bounds.eps_low, bounds.eps_high
    return own(self, next_token_logprobs, data, *args, **named)


ClippedPGLossFn.__call__ = loss
