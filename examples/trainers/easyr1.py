"""EasyR1, commit b44b311: the bounds of each token for its own loss.

`verl/workers/actor/dp_actor.py` calls `compute_policy_loss`, which takes two numbers only. EasyR1's package is called
verl too, but is another one: `bandpo.integrations.verl` does not work there.
Save this as bandpo_recipe.py where every worker can import it. Add to the end of that file:

    from bandpo_recipe import loss as compute_policy_loss
"""

import bandpo

region, averages = bandpo.Band("kl", 0.05), {"token": "token-mean", "seq": "seq-mean-token-mean"}


def loss(old_log_probs, log_probs, advantages, response_mask, clip_ratio_dual, loss_avg_mode, loss_type, **named):
    assert loss_type == "default", loss_type
    average = averages[loss_avg_mode]
    objective = bandpo.Objective(region, dual_clip=clip_ratio_dual, max_log_ratio=20.0, aggregation=average)
    value, metrics = bandpo.policy_loss(log_probs, old_log_probs, advantages, response_mask, objective)
    return value, metrics.compute()
