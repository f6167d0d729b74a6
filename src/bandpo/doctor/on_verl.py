"""Check settings of a verl run. Some do nothing, or something else than they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ..trust_regions.adaptive import Adaptive
from ..trust_regions.base import find_one
from ..trust_regions.nodes import not_loaded, own_type
from . import Finding, spread
from .installed import version_of

_ACTOR = "actor_rollout_ref.actor"
_LOSS = f"{_ACTOR}.policy_loss"
_TARGET = "bandpo.integrations.verl.BandPOLossConfig"
_ROLLOUT = "algorithm.rollout_correction"
_WORKERS = "trainer.use_legacy_worker_impl"  # of verl 0.7


def verl_settings(config: Mapping[str, Any], *, trust: bool = False) -> Iterator[Finding]:
    """Find settings of a verl run without effect, or with another one.

    Only keys that are given are judged; where one of the sizes of a batch is, verl's own values hold for the others.
    With `trust`, the module of a user's rule is imported, which runs what is in it.
    """
    from ..integrations import verl_in_float32

    get = partial(_setting, config)
    if get("actor_rollout_ref") is None:
        what = "no key actor_rollout_ref: this is not a configuration of verl, and no name of TRL's GRPOConfig is there"
        cure = "give verl's overrides, the file .hydra/config.yaml of a run, or settings of GRPOConfig"
        yield Finding("warning", what, cure)
        return
    mode, target = get(f"{_LOSS}.loss_mode", "vanilla"), get(f"{_LOSS}._target_", "")
    if mode == "bandpo" and target == _TARGET:
        yield from _rule(get, trust)
    elif mode == "bandpo" or target == _TARGET or get(f"{_LOSS}.trust_region") is not None:
        loss = "Band KL 0.05, whatever is set" if mode == "bandpo" else "verl's own"
        what = f"loss_mode is {mode!r} and _target_ is {target or 'not set'}: the loss is {loss}, and no option is read"
        yield Finding("problem", what, f"{_LOSS}.loss_mode=bandpo {_LOSS}._target_={_TARGET}")
    if get(f"{_ROLLOUT}.bypass_mode"):
        what = "rollout_correction.bypass_mode=true: the old policy is what the sampler reported, and verl's older"
        what += f" trainer (not the V1 one) calls its own loss in place of {mode!r}"
        yield Finding("warning", what, f"{_ROLLOUT}.bypass_mode=false")
    own = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    given = {name: get(f"{_ACTOR}.{name}", default) for name, default in own.items()}
    if mode == "bandpo" and (dead := [f"{name}={x}" for name, x in given.items() if x not in (None, own[name])]):
        cure = "write {type: objective, trust_region: {type: clip, eps_low: ..., eps_high: ...}, dual_clip: ...}"
        yield Finding("warning", f"{', '.join(dead)}: not read by the loss bandpo", f"{cure} as the trust_region")
    sizes = {"data.train_batch_size": 1024, f"{_ACTOR}.ppo_mini_batch_size": 256, f"{_ACTOR}.ppo_epochs": 1}
    batch, mini, epochs = (get(key, own) for key, own in sizes.items())
    if any(get(key) for key in sizes) and all(isinstance(size, int) and size > 0 for size in (batch, mini, epochs)):
        said = f"train_batch_size {batch}, ppo_mini_batch_size {mini}, ppo_epochs {epochs}"
        anchor = "sampler" if get(f"{_ROLLOUT}.bypass_mode") else get(f"{_LOSS}.anchor")
        several = batch * epochs / mini if batch * epochs > mini else None
        yield spread(epochs, several, said, "a smaller ppo_mini_batch_size, or more ppo_epochs", anchor)
    version, older = version_of("verl") or "", _older_workers(get)
    key = f"{_ACTOR}.fsdp_config.{'dtype' if older else 'mixed_precision.param_dtype'}"
    precision = "bf16" if version.startswith("0.7.") and not older else get(key, "bf16")
    if str(precision).lower() not in ("fp32", "float32"):
        what = f"the actor computes in {precision}: without flash-attn's cross-entropy log-probabilities reach the loss"
        cure = f"{verl_in_float32(version)}; actor/bandpo/half_precision in the log is 1 if it happens"
        level = "warning" if version_of("flash-attn") is None else "note"
        yield Finding(level, f"{what} as bfloat16, and ratios are wrong by percents", cure)


def _setting(config: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return config["a"]["b"] for "a.b"."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def _older_workers(get: Any) -> bool:
    """Tell whether the actor would be one of the older workers of verl 0.7."""
    return (version_of("verl") or "").startswith("0.7.") and get(_WORKERS, "auto") != "disable"


def _rule(get: Any, trust: bool) -> Iterator[Finding]:
    """Name the loss, or what is wrong with its options."""
    from ..integrations import HOSTS, objective_for
    from ..integrations.run_state import SHARE, check_tokens
    from ..losses.notation import as_python

    node, anchor, key = get(f"{_LOSS}.trust_region"), get(f"{_LOSS}.anchor", "old"), ""
    try:
        if anchor not in ("old", "sampler"):
            raise ValueError(f"anchor must be 'old' or 'sampler', got {anchor!r}")
        check_tokens(get(f"{_LOSS}.tokens_path"), get(f"{_LOSS}.tokens_share", SHARE))
        if not trust and (own := own_type(node)) is not None:
            yield Finding("note", f"{_LOSS}.trust_region: {not_loaded(own)}")
            return
        key = "trust_region: "
        found = objective_for("verl", node, anchor=anchor)
    except ValueError as error:
        yield Finding("problem", f"{_LOSS}.{key}{error}", "correct it")
        return
    if node is None:
        cure = f"'+{_LOSS}.trust_region={{type: ...}}' for another rule"
        yield Finding("note", f"no trust_region is given, so the loss is the default, {as_python(found)}", cure)
    else:
        yield Finding("ok", f"the loss is {as_python(found)}")
    asked = found.trust_region.needed().keys() & {*HOSTS["verl"].shown} - {"logps"}
    asked = asked or find_one(found.trust_region, Adaptive) is not None  # whose mean weight is of all ranks
    if _older_workers(get) and (asked or anchor == "sampler" or get(f"{_LOSS}.tokens_path") is not None):
        what = "it needs more than log-probabilities, which the older workers of verl 0.7, its default, cannot show"
        yield Finding("problem", what, f"{_WORKERS}=disable")
    if found.apply == "clip" and found.dual_clip is None:
        what = "the loss has no dual clip, where verl's own has one of 3 (clip_ratio_c, which the loss bandpo ignores)"
        cure = "to change the rule alone: {type: objective, trust_region: ..., dual_clip: 3} as the trust_region"
        yield Finding("note", what, cure)
