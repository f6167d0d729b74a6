"""Check settings of TRL's GRPOConfig. Some leave a rule without effect; the trainer refuses others."""

from collections.abc import Iterator, Mapping, Set
from types import SimpleNamespace
from typing import Any

from . import Finding, absent, in_half, not_judged, of_sequences, split, spread
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
        "num_generations",
    }
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

    >>> finding = next(trl_settings({"steps_per_generation": 1, "trust_region": "band:kl:0.05"}))
    >>> finding.level, finding.what[:27]
    ('problem', 'the ratio is 1 by design: e')

    Args:
        config: the settings by name; TRL's own values hold for others. With the key `trust_region`, if only None, the
            trainer is BandPOTrainer.
        unknown: names whose values are not known; what depends on one of them is not judged.
        host: whose trainer has the GRPOConfig, "TRL" or "unsloth".
        trust: import the module of a user's rule, which runs what is in it.
        whole: whether these are all settings of a run, so that TRL's own values hold for the others.
    """
    values = {**JUDGED, **config}
    if unknown.isdisjoint(_REUSE):
        yield _reuse(values, config.keys(), whole)
    version = version_of("trl") or "1.15"
    no_autocast = values.get("bf16") is False
    half = "float16" in str(values.get("model_init_kwargs")) if no_autocast else values.get("deepspeed")
    if half and host == "TRL" and minor(version) < (1, 15):  # from which on its head computes in float32
        yield in_half(
            f"TRL {version} with {'deepspeed' if values.get('deepspeed') else 'bf16=False'}",
            "TRL 1.15 or later; or bf16=True without DeepSpeed, where accelerate's autocast returns float32",
        )
    from ..integrations import objective_for
    from ..integrations.trl_settings import refusals, suspicions

    settings: Any = SimpleNamespace(**values)
    if "trust_region" not in unknown | config.keys():
        messages = refusals(settings, objective_for(host, None), host=host)
        yield from (split("note", f"with BandPOTrainer: {message}") for message in messages)
        if str(values["importance_sampling_level"]).startswith("sequence"):
            names = [x for x in ("epsilon", "epsilon_high") if x not in unknown and values[x] is not None]
            level, what = of_sequences(values[name] for name in names)
            limits = [f"{x} {values[x]}" if x in config else absent(x, values[x], host) for x in names]
            yield Finding(
                level,
                f"importance_sampling_level sequence: {', '.join(limits) or 'the epsilons'} are {what}",
            )
        return
    objective = None
    if "trust_region" not in unknown:
        objective = yield from of_rule(
            host,
            values.get("trust_region"),
            values.get("anchor", "old"),
            values["loss_type"],
            trust,
        )
    names = [name for name in ("use_vllm", "images", "fsdp", "deepspeed") if values.get(name)]
    read = "BandPOTrainer was read with it, and not run"
    yield from (Finding("note", f"{name}: {read}", "compare a step under Clip") for name in names)
    yield from (split("problem", message) for message in refusals(settings, objective, host=host))
    yield from (split("warning", message) for message in suspicions(settings))


def _reuse(values: Mapping[str, Any], names: Set[str], whole: bool) -> Finding:
    """Count the uses of an answer, and the optimizer steps of a batch."""
    accumulation, steps, generated, iterations = (values[name] for name in _REUSE)
    if steps is None and generated is not None:
        return Finding(
            "note",
            "generation_batch_size: how many steps it is used for depends on the number of processes; not judged",
            "steps_per_generation says it alone",
        )
    sizes = {
        "steps_per_generation": accumulation if steps is None else steps,
        "num_iterations": iterations,
        "gradient_accumulation_steps": accumulation,
    }
    text = ", ".join(f"{name} {x!r}{' by default' * (name not in names)}" for name, x in sizes.items())
    if not all(isinstance(size, int) and size > 0 for size in sizes.values()):
        return Finding("problem", f"not all of these are positive numbers: {text}", "correct them")
    if not whole and "gradient_accumulation_steps" not in names:
        return not_judged(
            absent("gradient_accumulation_steps", accumulation, "TRL"),
            iterations if "num_iterations" in names else None,
            "give it too, or the script",
        )
    steps = sizes["steps_per_generation"] * iterations
    return spread(
        iterations,
        max(1, steps / accumulation) if accumulation % steps else None,
        text,
        f"steps_per_generation={4 * accumulation} for 4 optimizer steps per batch, or num_iterations=2 or more",
        values.get("anchor"),
    )
