"""Band-KL in Tunix: its own GRPO loss clips each token by the band in place of its two epsilons.

Import it before the learner is made. Apache-2.0.
"""

import copy

import jax.numpy as jnp
from anywhere_jax import band_kl
from tunix.rl.function_registry import get_policy_loss_fn, register_policy_loss_fn


@register_policy_loss_fn("band_kl")
def loss(model, train_example, algo_config, pad_id, eos_id, **more):
    if algo_config.loss_algo != "grpo":
        raise ValueError(f"loss_algo must be 'grpo', whose ratios are of tokens, got {algo_config.loss_algo!r}")
    if train_example.old_per_token_logps is not None:  # else every ratio is 1
        log_low, log_high = band_kl(train_example.old_per_token_logps.astype(jnp.float32), 0.05)
        algo_config = copy.copy(algo_config)
        algo_config.epsilon, algo_config.epsilon_high = -jnp.expm1(log_low), jnp.expm1(log_high)
    return get_policy_loss_fn("grpo")(model, train_example, algo_config, pad_id, eos_id, **more)
