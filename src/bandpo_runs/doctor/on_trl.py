"""Check settings of TRL's GRPOConfig. Some leave a rule without effect; the trainer refuses others."""

from collections.abc import Iterator, Mapping, Set
from types import SimpleNamespace
from typing import Any

from bandpo.integrations import objective_for
from bandpo.integrations.trl_settings import refusals, suspicions

from ..provenance import version_of
from . import Finding, absent, in_half, not_judged, of_sequences, split, spread
from .hosts import of_rule
from .installed import minor

# The settings that are judged, with TRL's own values.
JUDGED: dict[str, Any] = {
    "gradient_accumulation_steps": 1,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "num_iterations": 1,
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "off_policy_mask_threshold": None,
    "temperature": 1.0,
    "generation_kwargs": None,
}
_REUSE = (
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "num_iterations",
)


_READ = {*JUDGED, "trust_region", "anchor"}
# Names that show that settings are TRL's.
NAMES = JUDGED.keys() | {
    "trust_region",
    "top_k",
    "top_p",
    "max_completion_length",
    "per_device_train_batch_size",
    "scale_rewards",
    "num_generations",
}


def trl_settings(
    config: Mapping[str, Any], *, host: str = "TRL", trust: bool = False, whole: bool = True
) -> Iterator[Finding]:
    """Find settings of a GRPOConfig that disable a rule or are refused.

    >>> finding = next(trl_settings({"steps_per_generation": 1, "trust_region": "band:kl:0.05"}))
    >>> finding.level, finding.what[:43]
    ('problem', 'clipping has no effect: every ratio is 1, w')

    Args:
        config: the settings by name; TRL's own values hold for others. With the key `trust_region`, if only None, the
            trainer is BandPOTrainer. What depends on a value of `...` is not judged, and with a name of `**` nothing
            is that is not given.
        host: whose trainer has the GRPOConfig, "TRL" or "unsloth".
        trust: import the module of a user's rule, which runs what is in it.
        whole: whether these are all settings of a run, so that TRL's own values hold for the others.
    """
    hidden = sorted(
        name for name, x in config.items() if x is ... and (name in _READ or name[:2] == "**")
    )
    if hidden:
        what = f"{', '.join(hidden)}: not a plain value here; what depends on it is not judged"
        yield Finding("note", what, "add the value: bandpo doctor FILE key=value")
    unknown = {*hidden, *(JUDGED.keys() - config.keys() if any("**" in name for name in hidden) else ())}
    values = JUDGED | {name: value for name, value in config.items() if value is not ...}
    if unknown.isdisjoint({*_REUSE, "anchor"}):
        yield _steps(values, config.keys(), whole)
    version = version_of("trl") or "1.15"
    no_autocast = values.get("bf16") is False
    half = "float16" in str(values.get("model_init_kwargs")) if no_autocast else values.get("deepspeed")
    if half and host == "TRL" and minor(version) < (1, 15):  # from which on its head computes in float32
        yield in_half(
            f"TRL {version} with {'deepspeed' if values.get('deepspeed') else 'bf16=False'}",
            "TRL 1.15 or later; or bf16=True without DeepSpeed, where accelerate's autocast returns float32",
        )
    settings: Any = SimpleNamespace(**values)
    if "trust_region" not in config:
        for message in refusals(settings, objective_for(host, None), host=host):
            yield split("note", f"with BandPOTrainer: {message}")
        if str(values["importance_sampling_level"]).startswith("sequence"):
            limits = {
                x: values[x]
                for x in ("epsilon", "epsilon_high")
                if x not in unknown and values[x] is not None
            }
            level, what = of_sequences(limits.values())
            text = ", ".join(
                f"{x} {limit}{' by default' * (x not in config)}" for x, limit in limits.items()
            )
            yield Finding(
                level, f"importance_sampling_level sequence: its limits ({text or 'epsilon'}) are {what}"
            )
        return
    objective, anchor = None, values.get("anchor", "old")
    if "trust_region" not in unknown:
        objective = yield from of_rule(host, values["trust_region"], anchor, values["loss_type"], trust)
    for name in ("use_vllm", "fsdp", "deepspeed"):
        if values.get(name):
            yield Finding(
                "note", f"{name}: BandPOTrainer was not run with it", "compare a step under Clip"
            )
    yield from (split("problem", message) for message in refusals(settings, objective, host=host))
    yield from (split("warning", message) for message in suspicions(settings))


def _steps(values: Mapping[str, Any], names: Set[str], whole: bool) -> Finding:
    """Count the epochs over a batch, and its optimizer steps."""
    accumulation, steps, generated, iterations = (values[name] for name in _REUSE)
    epochs = iterations if "num_iterations" in names else None
    if steps is None and generated is not None:
        return not_judged(
            "under generation_batch_size they depend on the number of processes",
            epochs,
            "set steps_per_generation instead",
        )
    sizes = {
        "steps_per_generation": accumulation if steps is None else steps,
        "num_iterations": iterations,
        "gradient_accumulation_steps": accumulation,
    }
    text = ", ".join(f"{name} {x!r}{' by default' * (name not in names)}" for name, x in sizes.items())
    if not all(isinstance(size, int) and size > 0 for size in sizes.values()):
        return Finding("problem", f"not all of these are positive integers: {text}", "correct them")
    if not whole and "gradient_accumulation_steps" not in names:
        return not_judged(
            absent("gradient_accumulation_steps", accumulation, "TRL"),
            epochs,
            "add it, or give the script",
        )
    steps = sizes["steps_per_generation"] * iterations
    return spread(
        iterations,
        max(1, steps / accumulation) if accumulation % steps else None,
        text,
        f"steps_per_generation={4 * accumulation} for 4 optimizer steps per batch, or num_iterations=2 or more",
        values.get("anchor"),
    )
