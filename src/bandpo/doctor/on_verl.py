"""Check what only verl's settings have. Some do nothing, or something else than they say."""

from collections.abc import Callable, Iterator
from typing import Any

from ..losses.objective import Objective
from . import Finding, Level
from .installed import version_of

_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"
_ROLLOUT = "algorithm.rollout_correction"
_WORKERS = "trainer.use_legacy_worker_impl"  # of verl 0.7


def more(get: Callable[..., Any], objective: Objective | None, ours: bool) -> Iterator[Finding]:
    """Find settings without effect, or with another one. `get` returns one; `objective` is the loss if known."""
    from ..integrations import VERL_IN_FLOAT32
    from ..integrations.run_state import SHARE, check_tokens

    version, anchor, tokens = (
        version_of("verl") or "",
        get(f"{_LOSS}.anchor", "old"),
        get(f"{_LOSS}.tokens_path"),
    )
    older = version.startswith("0.7.") and get(_WORKERS, "auto") != "disable"
    try:
        if anchor not in ("old", "sampler"):
            raise ValueError(f"anchor must be 'old' or 'sampler', got {anchor!r}")
        check_tokens(tokens, get(f"{_LOSS}.tokens_share", SHARE))
    except ValueError as error:
        yield Finding("problem", f"{_LOSS}.{error}", "correct it")
    batch, mini = get("data.train_batch_size"), get(f"{_ACTOR}.ppo_mini_batch_size")
    # The check is left out with use_dynamic_bsz; rLLM's trainer has none.
    stops = "" if get(f"{_ACTOR}.use_dynamic_bsz") else ": verl stops at the start"
    engine = get(f"{_ACTOR}.strategy") or get("model_engine") or get("--config-name")
    megatron = "megatron" in str(engine) or get(f"{_ACTOR}.megatron") is not None
    key = f"{_ACTOR}.fsdp_config.{'dtype' if older else 'mixed_precision.param_dtype'}"
    precision = "bf16" if version.startswith("0.7.") and not older else get(key, "bf16 by default")
    # Without verl here, it runs elsewhere.
    half: Level = "note" if version_of("flash-attn") else "problem" if version and ours else "warning"
    findings = [
        (
            older and ours and (anchor == "sampler" or tokens is not None),
            "problem",
            "it needs more than log-probabilities, which the older workers of verl 0.7, its default, cannot show",
            f"{_WORKERS}=disable",
        ),
        (
            objective is not None and objective.surrogate == "clip" and objective.dual_clip is None,
            "note",
            "the loss has no dual clip, where verl's own has one of 3 (clip_ratio_c, which the loss bandpo ignores)",
            "to change the rule alone: {type: objective, trust_region: ..., dual_clip: 3} as the trust_region",
        ),
        (
            get(f"{_ROLLOUT}.bypass_mode"),
            "warning",
            "rollout_correction.bypass_mode=true: the old policy is what the sampler reported, and verl's older "
            f"trainer (not the V1 one) calls its own loss in place of {get(f'{_LOSS}.loss_mode', 'vanilla')!r}",
            f"{_ROLLOUT}.bypass_mode=false",
        ),
        (
            isinstance(batch, int) and isinstance(mini, int) and 0 < batch < mini,
            "problem" if stops else "note",
            f"ppo_mini_batch_size {mini} is larger than train_batch_size {batch}{stops}",
            f"ppo_mini_batch_size={batch} or smaller",
        ),
        (
            megatron,
            "note",
            f"the actor runs on Megatron, whose cross-entropy is in float32, whatever {_ACTOR}.megatron.dtype is: "
            "log-probabilities reach the loss as float32 (read in its code, not run)",
            "",
        ),
        (
            not megatron and str(precision).lower() not in ("fp32", "float32"),
            half,
            f"the actor computes in {precision}: without flash-attn's cross-entropy log-probabilities reach the loss "
            "as bfloat16, and ratios are wrong by percents",
            f"{VERL_IN_FLOAT32}; actor/bandpo/half_precision in the log is 1 if it happens",
        ),
    ]
    yield from (Finding(level, what, cure) for holds, level, what, cure in findings if holds)
