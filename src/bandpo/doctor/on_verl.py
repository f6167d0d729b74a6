"""The doctor of settings of a verl run: which of them do nothing, or something else than they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ..trust_regions.nodes import not_loaded, own_type
from . import Finding
from .installed import version_of

_ACTOR = "actor_rollout_ref.actor"
LOSS = f"{_ACTOR}.policy_loss"
_TARGET = "bandpo.integrations.verl.BandPOLossConfig"
# What BandPOLossConfig has beyond verl's own settings there.
ADDED = ("trust_region", "anchor", "tokens_path", "tokens_share")
ABSENT: Any = object()


def verl_settings(config: Mapping[str, Any], *, trust: bool = False) -> Iterator[Finding]:
    """Find settings of a verl run that do nothing, or something else than they say.

    Only keys that are given are judged. With `trust`, the module of a user's rule is imported, which runs what is in
    it.
    """
    get = partial(setting, config)
    if get("actor_rollout_ref") is ABSENT:
        what = "no key actor_rollout_ref: this is not a configuration of verl, and no name of TRL's GRPOConfig is there"
        cure = "give verl's overrides, the file .hydra/config.yaml of a run, or settings of GRPOConfig"
        yield Finding("warning", what, cure)
        return
    mode, target = get(f"{LOSS}.loss_mode", "vanilla"), get(f"{LOSS}._target_", "")
    is_given = get(f"{LOSS}.trust_region", None) is not None
    if mode == "bandpo" and target == _TARGET:
        yield from _rule(get, trust)
    elif mode == "bandpo" or target == _TARGET or is_given:
        loss = "Band KL 0.05, whatever is set" if mode == "bandpo" else "verl's own"
        what = f"loss_mode is {mode!r} and _target_ is {target or 'not set'}: the loss is {loss}, and no option is read"
        yield Finding("problem", what, f"{LOSS}.loss_mode=bandpo {LOSS}._target_={_TARGET}")
    if get("algorithm.rollout_correction.bypass_mode", False):
        what = (
            "rollout_correction.bypass_mode=true: the old policy is what the sampler reported, and verl's older trainer"
            f" (not the V1 one) calls its own loss in place of {mode!r}"
        )
        yield Finding("warning", what, "algorithm.rollout_correction.bypass_mode=false")
    yield from _clips_of_bandpo(get) if mode == "bandpo" else _clips_of_verl(get, mode)
    yield from _one_step(get)
    yield from _precision(get)


def setting(config: Mapping[str, Any], key: str, default: Any = ABSENT) -> Any:
    """Return config["a"]["b"] for "a.b"."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def _rule(get: Any, trust: bool) -> Iterator[Finding]:
    from ..integrations import objective_for
    from ..integrations.run_state import SHARE, check_tokens

    node, anchor = get(f"{LOSS}.trust_region", None), get(f"{LOSS}.anchor", "old")
    try:
        if anchor not in ("old", "sampler"):
            raise ValueError(f"anchor must be 'old' or 'sampler', got {anchor!r}")
        check_tokens(get(f"{LOSS}.tokens_path", None), get(f"{LOSS}.tokens_share", SHARE))
        if not trust and (own := own_type(node)) is not None:
            yield Finding("note", f"{LOSS}.trust_region: {not_loaded(own)}")
            return
    except ValueError as error:
        yield Finding("problem", f"{LOSS}.{error}", "correct it")
        return
    given = {"type": "band", "divergence": "kl", "delta": 0.05} if node is None else node
    try:
        found = objective_for("verl", given, anchor=anchor)
    except ValueError as error:
        yield Finding("problem", f"{LOSS}.trust_region: {error}", "correct the node")
        return
    if node is None:
        cure = f"'+{LOSS}.trust_region={{type: ...}}' for another rule"
        yield Finding("note", f"no trust_region is given, so the loss is the default, {found!r}", cure)
    else:
        yield Finding("ok", f"the loss is {found!r}")
    if found.apply == "clip" and found.dual_clip is None:
        what = "the loss has no dual clip, where verl's own has one of 3 (clip_ratio_c, which the loss bandpo ignores)"
        cure = "to change the rule alone: {type: objective, trust_region: ..., dual_clip: 3} as the trust_region"
        yield Finding("note", what, cure)


def _clips_of_bandpo(get: Any) -> Iterator[Finding]:
    own = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    given = {name: get(f"{_ACTOR}.{name}") for name in own}
    if dead := [f"{name}={x}" for name, x in given.items() if x not in (ABSENT, None, own[name])]:
        cure = "write {type: objective, trust_region: {type: clip, eps_low: ..., eps_high: ...}, dual_clip: ...}"
        yield Finding("warning", f"{', '.join(dead)}: not read by the loss bandpo", f"{cure} as the trust_region")


def _clips_of_verl(get: Any, mode: str) -> Iterator[Finding]:
    plain = get(f"{_ACTOR}.clip_ratio")
    low, high = (get(f"{_ACTOR}.clip_ratio_{end}", 0.2) for end in ("low", "high"))
    if plain not in (ABSENT, low, high) and None not in (low, high):
        what = f"clip_ratio={plain} is dead: clip_ratio_low={low} and clip_ratio_high={high} win"
        yield Finding("problem", what, f"{_ACTOR}.clip_ratio_low={plain} {_ACTOR}.clip_ratio_high={plain}")
    cap = get(f"{_ACTOR}.clip_ratio_c", 3.0)
    if mode in ("dppo_kl", "dppo_tv") and isinstance(cap, int | float) and cap < 20:
        what = f"clip_ratio_c={cap} holds tokens of negative advantage under {mode} too"
        yield Finding("warning", what, f"{_ACTOR}.clip_ratio_c=20 or more")


def _one_step(get: Any) -> Iterator[Finding]:
    batch, mini = get("data.train_batch_size"), get(f"{_ACTOR}.ppo_mini_batch_size")
    if batch is not ABSENT and batch == mini and get(f"{_ACTOR}.ppo_epochs", 1) == 1:
        what = f"one optimizer step per batch (train_batch_size = ppo_mini_batch_size = {batch}, ppo_epochs = 1)"
        cure = "a smaller ppo_mini_batch_size, or more ppo_epochs"
        yield Finding("problem", f"{what}: every ratio is 1 and no rule acts", cure)


def _precision(get: Any) -> Iterator[Finding]:
    key = f"{_ACTOR}.fsdp_config.mixed_precision.param_dtype"
    precision = get(key, "bf16")
    if str(precision).lower() not in ("fp32", "float32"):
        what = (
            f"the actor computes in {precision}: without flash-attn's cross-entropy log-probabilities reach the loss "
            "as bfloat16, and ratios are wrong by percents"
        )
        cure = f"install flash-attn, or +{key}=fp32; actor/bandpo/half_precision in the log is 1 if it happens"
        yield Finding("warning" if version_of("flash-attn")[0] is None else "note", what, cure)
