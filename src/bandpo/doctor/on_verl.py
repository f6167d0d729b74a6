"""The doctor of settings of a verl run: which of them do nothing, or something else than they say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ..trust_regions.notation import not_loaded, own_type
from .findings import Finding, Level
from .installed import version_of

LOSS = "actor_rollout_ref.actor.policy_loss"
_TARGET = "bandpo.integrations.verl.BandPOLossConfig"
# What BandPOLossConfig has beyond verl's own settings there.
ADDED = ("trust_region", "diagnostics", "diagnostics_by_probability", "anchor", "tokens_path", "tokens_share")
ABSENT: Any = object()


def verl_settings(config: Mapping[str, Any], *, trust: bool = False) -> Iterator[Finding]:
    """Find settings of a verl run that do nothing, or something else than they say.

    Only keys that are given are judged.

    With `trust`, the module of a user's rule is imported, which runs what is in it.
    """

    get = partial(setting, config)
    if get("actor_rollout_ref") is ABSENT:
        what = "no key actor_rollout_ref: this is not a configuration of verl, and no name of TRL's GRPOConfig is there"
        cure = "give verl's overrides, the file .hydra/config.yaml of a run, or settings of GRPOConfig"
        yield Finding("warning", what, cure)
        return
    yield from _loss_settings(get, trust)
    yield from _clip_settings(get)
    yield from _data_settings(get)


def setting(config: Mapping[str, Any], key: str, default: Any = ABSENT) -> Any:
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def _loss_settings(get: Any, trust: bool) -> Iterator[Finding]:
    mode, target = get(f"{LOSS}.loss_mode", "vanilla"), get(f"{LOSS}._target_", "")
    ours = mode == "bandpo"
    node = get(f"{LOSS}.trust_region", None)
    if ours and target != _TARGET:
        cure = f"{LOSS}._target_={_TARGET}"
        what = f"loss_mode is bandpo, but {LOSS}._target_ is {target or 'not set'}: no option reaches the loss"
        yield Finding("problem", f"{what}; the rule is Band KL 0.05", cure)
    elif target == _TARGET and not ours:
        what = f"the loss is {mode!r}, which reads none of the options of {_TARGET.rpartition('.')[2]}"
        yield Finding("problem", what, f"{LOSS}.loss_mode=bandpo")
    elif node is not None and not ours:
        what = f"trust_region under {LOSS}, but the loss is {mode!r}"
        yield Finding("problem", what, f"{LOSS}.loss_mode=bandpo {LOSS}._target_={_TARGET}")
    if ours and target == _TARGET:
        yield from _rule(node, get, trust)
    if get("algorithm.rollout_correction.bypass_mode", False):
        what = (
            "rollout_correction.bypass_mode=true: the old policy is what the sampler reported, and verl's older trainer"
        )
        cure = "algorithm.rollout_correction.bypass_mode=false"
        yield Finding("warning", f"{what} (not the V1 one) calls its own loss in place of {mode!r}", cure)


def _rule(node: Any, get: Any, trust: bool) -> Iterator[Finding]:
    from bandpo.integrations import objective_for
    from bandpo.integrations.tokens import SHARE, check_tokens

    if (anchor := get(f"{LOSS}.anchor", "old")) not in ("old", "sampler"):
        yield Finding("problem", f"{LOSS}.anchor must be 'old' or 'sampler', got {anchor!r}", "correct it")
        return
    try:
        check_tokens(get(f"{LOSS}.tokens_path", None), get(f"{LOSS}.tokens_share", SHARE))
    except ValueError as error:
        yield Finding("problem", f"{LOSS}.{error}", "correct it")
    if not trust and (own := own_type(node)) is not None:
        yield Finding("note", f"{LOSS}.trust_region: {not_loaded(own)}")
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


def _clip_settings(get: Any) -> Iterator[Finding]:
    actor = "actor_rollout_ref.actor"
    mode = get(f"{LOSS}.loss_mode", "vanilla")
    plain, low, high = (get(f"{actor}.clip_ratio{end}") for end in ("", "_low", "_high"))
    cap = get(f"{actor}.clip_ratio_c", 3.0)
    if mode == "bandpo":
        changed = {"clip_ratio": (plain, 0.2), "clip_ratio_low": (low, 0.2), "clip_ratio_high": (high, 0.2)}
        dead = [name for name, (value, default) in changed.items() if value not in (ABSENT, None, default)]
        if dead:
            cure = "write {type: clip, eps_low: ..., eps_high: ...} as the trust_region, or drop them"
            it = "it" if len(dead) == 1 else "them"
            yield Finding("warning", f"{', '.join(dead)}: the loss bandpo does not read {it}", cure)
        if get(f"{actor}.clip_ratio_c") not in (ABSENT, 3.0):
            what = f"clip_ratio_c={cap} is not read by the loss bandpo, whose dual clip is its objective's"
            cure = f"write {{type: objective, trust_region: ..., dual_clip: {cap}}} as the trust_region"
            yield Finding("warning", what, cure)
        return
    shadow = {"clip_ratio_low": 0.2 if low is ABSENT else low, "clip_ratio_high": 0.2 if high is ABSENT else high}
    if plain is not ABSENT and all(value is not None and value != plain for value in shadow.values()):
        what = f"clip_ratio={plain} is dead: clip_ratio_low={shadow['clip_ratio_low']} and clip_ratio_high="
        cure = f"{actor}.clip_ratio_low={plain} {actor}.clip_ratio_high={plain}"
        yield Finding("problem", f"{what}{shadow['clip_ratio_high']} win", cure)
    if mode in ("dppo_kl", "dppo_tv") and isinstance(cap, int | float) and cap < 20:
        what = f"clip_ratio_c={cap} holds tokens of negative advantage under {mode} too"
        yield Finding("warning", what, f"{actor}.clip_ratio_c=20 or more")
    elif mode == "vanilla" and isinstance(cap, int | float) and cap < 10:
        what = f"clip_ratio_c={cap}: a dual clip, of which PPO, GRPO and the BandPO paper know nothing"
        yield Finding("note", what, f"the public BandPO scripts set 10; {actor}.clip_ratio_c=1e9 is none")


def _data_settings(get: Any) -> Iterator[Finding]:
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    batch, mini = get("data.train_batch_size"), get(f"{actor}.ppo_mini_batch_size")
    epochs = get(f"{actor}.ppo_epochs", 1)
    if ABSENT not in (batch, mini) and batch == mini and epochs == 1:
        what = f"one optimizer step per batch (train_batch_size = ppo_mini_batch_size = {batch}, ppo_epochs = 1)"
        cure = "a smaller ppo_mini_batch_size, or more ppo_epochs"
        yield Finding("problem", f"{what}: every ratio is 1 and no rule acts", cure)
    precision = get(f"{actor}.fsdp_config.mixed_precision.param_dtype", "bf16")
    if str(precision).lower() not in ("fp32", "float32"):
        what = (
            f"the actor computes in {precision}: without flash-attn's cross-entropy log-probabilities reach the loss "
        )
        cure = (
            f"install flash-attn, or +{actor}.fsdp_config.mixed_precision.param_dtype=fp32; "
            "actor/bandpo/half_precision in the log is 1 if it happens"
        )
        level: Level = "note" if version_of("flash-attn")[0] is not None else "warning"
        yield Finding(level, f"{what}as bfloat16, and ratios are wrong by percents", cure)
    temperature = get(f"{rollout}.temperature", 1.0)
    if isinstance(temperature, int | float) and not math.isclose(temperature, 1.0):
        what = f"rollout.temperature={temperature}: the policy of ratios and bands is the one at that temperature"
        cure = "keep it in mind when radii are compared: a band depends on p, a fixed clip does not"
        yield Finding("note", what, cure)
