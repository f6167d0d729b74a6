"""Check settings of TRL's GRPOConfig. Some leave a rule without effect; the trainer refuses others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from types import SimpleNamespace
from typing import Any

from . import Finding, Level, absent, in_half, not_judged, of_sequences, spread
from .hosts import of_rule
from .installed import minor, version_of

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


def is_of_trl(config: Mapping[str, Any]) -> bool:
    """Return whether settings have a name of GRPOConfig."""
    others = {
        "trust_region",
        "top_k",
        "top_p",
        "max_completion_length",
        "per_device_train_batch_size",
        "scale_rewards",
    }
    others |= {"num_generations"}
    return not config.keys().isdisjoint({*JUDGED, *others})


def trl_settings(
    config: Mapping[str, Any],
    unknown: frozenset[str] = frozenset(),
    *,
    host: str = "TRL",
    trust: bool = False,
    whole: bool = True,
) -> Iterator[Finding]:
    """Find settings of a GRPOConfig that disable a rule or are refused.

    Args:
        config: the settings by name; TRL's own values hold for others. With the key `trust_region`, if only None, the
            trainer is BandPOTrainer.
        unknown: names whose values are not known; what depends on one of them is not judged.
        host: whose trainer has the GRPOConfig, "TRL" or "unsloth".
        trust: import the module of a user's rule, which runs what is in it.
        whole: whether these are all settings of a run, so that TRL's own values hold for the others.
    """
    settings = {**JUDGED, **config}
    if unknown.isdisjoint(_REUSE):
        yield _reuse(settings, config.keys(), whole)
    loaded, version = str(settings.get("model_init_kwargs")), version_of("trl") or "1.15"
    half = bool(settings.get("deepspeed")) if settings.get("bf16") is not False else "float16" in loaded
    if half and host == "TRL" and minor(version) < (1, 15):  # from which on its head computes in float32
        cure = "TRL 1.15 or later; or bf16=True without DeepSpeed, where accelerate's autocast returns float32"
        yield in_half(
            f"TRL {version} with {'deepspeed' if settings.get('deepspeed') else 'bf16=False'}", cure
        )
    from ..integrations import objective_for
    from ..integrations.trl_settings import refusals, suspicions

    if "trust_region" not in unknown | config.keys():
        for message in refusals(SimpleNamespace(**settings), objective_for(host, None), host=host):  # type: ignore[arg-type]
            what, _, cure = message.partition("; ")
            yield Finding("note", f"with BandPOTrainer: {what}", cure)
        if str(settings["importance_sampling_level"]).startswith("sequence"):
            names = [
                x for x in ("epsilon", "epsilon_high") if x not in unknown and settings[x] is not None
            ]
            level, what = of_sequences(settings[name] for name in names)
            limits = [
                f"{x} {settings[x]}" if x in config else absent(x, settings[x], host) for x in names
            ]
            yield Finding(
                level,
                f"importance_sampling_level sequence: {', '.join(limits) or 'the epsilons'} are {what}",
            )
        return
    args, rule = (
        SimpleNamespace(**settings),
        ... if "trust_region" in unknown else settings.get("trust_region"),
    )
    objective = None
    if rule is not ...:
        objective = yield from of_rule(
            host, rule, settings.get("anchor", "old"), settings["loss_type"], trust
        )
    for name in (name for name in ("use_vllm", "images", "fsdp", "deepspeed") if settings.get(name)):
        yield Finding(
            "note", f"{name}: BandPOTrainer was read with it, and not run", "compare a step under Clip"
        )
    messages: list[tuple[Level, str]] = [("problem", x) for x in refusals(args, objective, host=host)]  # type: ignore[arg-type]
    for level, message in [*messages, *(("warning", x) for x in suspicions(args))]:  # type: ignore[arg-type]
        what, _, cure = message.partition("; ")
        yield Finding(level, what, cure)


def _reuse(settings: Mapping[str, Any], chosen: Set[str], whole: bool) -> Finding:
    """Count the uses of an answer, and the optimizer steps of a batch."""
    accumulation, steps, generated, iterations = (settings[name] for name in _REUSE)
    if steps is None and generated is not None:
        return Finding(
            "note",
            "generation_batch_size: how many steps it is used for depends on the number of processes; not judged",
            "steps_per_generation says it alone",
        )
    values = {"steps_per_generation": accumulation if steps is None else steps}
    values |= {"num_iterations": iterations, "gradient_accumulation_steps": accumulation}
    sizes = ", ".join(f"{name} {x!r}{' by default' * (name not in chosen)}" for name, x in values.items())
    if not all(isinstance(value, int) and value > 0 for value in values.values()):
        return Finding("problem", f"not all of these are positive numbers: {sizes}", "correct them")
    if not whole and "gradient_accumulation_steps" not in chosen:
        return not_judged(
            absent("gradient_accumulation_steps", accumulation, "TRL"),
            iterations if "num_iterations" in chosen else None,
            "give it too, or the script",
        )
    steps = values["steps_per_generation"] * iterations
    several = max(1, steps / accumulation) if accumulation % steps else None
    return spread(
        iterations,
        several,
        sizes,
        f"steps_per_generation={4 * accumulation} for 4 optimizer steps per batch, or num_iterations=2 or more",
        settings.get("anchor"),
    )
