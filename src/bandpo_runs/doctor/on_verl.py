"""Check what only verl's settings have. Some do nothing, or something else than they say."""

from collections.abc import Callable, Iterator
from typing import Any

from bandpo.losses.objective import Objective

from ..provenance import version_of
from . import Finding, Level

_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"
_ROLLOUT = "algorithm.rollout_correction"
_WORKERS = "trainer.use_legacy_worker_impl"  # of verl 0.7


def more(get: Callable[..., Any], objective: Objective | None, ours: bool) -> Iterator[Finding]:
    """Find settings without effect, or with another one. `get` returns one; `objective` is the loss if known."""
    from bandpo.integrations import VERL_IN_FLOAT32

    version = version_of("verl") or ""
    older = version.startswith("0.7.") and get(_WORKERS, "auto") != "disable"
    engine = get(f"{_ACTOR}.strategy") or get("model_engine") or get("--config-name")
    # On Megatron log-probabilities are float32, whatever its dtype is (read in its code, not run).
    megatron = "megatron" in str(engine) or get(f"{_ACTOR}.megatron") is not None
    key = f"{_ACTOR}.fsdp_config.{'dtype' if older else 'mixed_precision.param_dtype'}"
    precision = "bf16" if version.startswith("0.7.") and not older else get(key, "bf16 by default")
    # Without verl here, it runs elsewhere.
    half: Level = "note" if version_of("flash-attn") else "problem" if version and ours else "warning"
    anchor = get(f"{_LOSS}.anchor")
    batch, mini = get("data.train_batch_size"), get(f"{_ACTOR}.ppo_mini_batch_size")
    findings = [
        (  # a check that verl leaves out with use_dynamic_bsz
            isinstance(batch, int)
            and isinstance(mini, int)
            and 0 < batch < mini
            and not get(f"{_ACTOR}.use_dynamic_bsz"),
            "problem",
            f"ppo_mini_batch_size {mini} is larger than train_batch_size {batch}: verl stops at the start",
            f"ppo_mini_batch_size={batch} or smaller",
        ),
        (
            anchor not in ("old", "sampler", None, ...),
            "problem",
            f"policy_loss.anchor must be 'old' or 'sampler', got {anchor!r}",
            "correct it",
        ),
        (
            older and ours and (anchor == "sampler" or get(f"{_LOSS}.tokens_path") is not None),
            "problem",
            "anchor=sampler and tokens_path need more than the older workers of verl 0.7 give, its default",
            f"{_WORKERS}=disable",
        ),
        (
            objective is not None and objective.surrogate == "clip" and objective.dual_clip is None,
            "note",
            "the loss has no dual clip; verl's own has one of 3 (clip_ratio_c, which bandpo does not read)",
            "to change the rule alone: {type: objective, trust_region: ..., dual_clip: 3} as the trust_region",
        ),
        (
            get(f"{_ROLLOUT}.bypass_mode"),
            "warning",
            "rollout_correction.bypass_mode=true: the old policy is what the sampler reported. verl's older trainer "
            f"(not the V1 one) calls its own loss in place of {get(f'{_LOSS}.loss_mode', 'vanilla')!r}",
            f"{_ROLLOUT}.bypass_mode=false",
        ),
        (
            not megatron and str(precision).lower() not in ("fp32", "float32"),
            half,
            f"the actor computes in {precision}: without flash-attn log-probabilities reach the loss as bfloat16, and "
            "ratios are off by several percent",
            f"{VERL_IN_FLOAT32}; actor/bandpo/half_precision in the log is 1 if it happens",
        ),
    ]
    yield from (Finding(level, what, cure) for holds, level, what, cure in findings if holds)
