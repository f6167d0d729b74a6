"""ROLL, commit 8eb27cc: the bounds of each token for its own loss.

`roll/pipeline/base_worker.py` has `get_old_log_probs_with_cache`, which all five actors call, RLVR's and the agentic
ones. Their dual clip stays at 1 + 2 `pg_clip`. Only the `pg_variant` "ppo" uses the bounds.
Save this as bandpo_recipe.py where every worker can import it. Add to the end of that file:

    import bandpo_recipe
"""

import torch
from roll.pipeline.base_worker import ActorWorker

import bandpo

region, own = bandpo.Band("kl", 0.05), ActorWorker.get_old_log_probs_with_cache


def with_bounds(self, data, log_probs):
    old, config = own(self, data, log_probs), self.pipeline_config
    bounds = region.bounds(torch.where(data.batch["response_mask"][:, 1:].bool(), old, -1.0))
    config.use_pg_clip_range, config.pg_clip_low, config.pg_clip_high = True, bounds.eps_low, bounds.eps_high
    return old


ActorWorker.get_old_log_probs_with_cache = with_bounds
