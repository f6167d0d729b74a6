"""Estimate memory, time and disk of a run of the paper's recipes on verl.

    python -m research.plan llm=qwen2.5-3b
    python -m research.plan llm=qwen2.5-3b text=public --seeds 3 plan.gpu=H100 plan.memory=79
    python -m research.plan --config-name smoke

Choices and settings are those of the run's own command. Neither verl nor a GPU is needed.
"""

import argparse
import functools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo_runs.config.recipe import leaves, merge, put, read_recipe, setting

PAPER = Path(__file__).parents[1] / "recipes" / "paper"
_GIB = 2**30


def recipe(name: str = "paper", words: Sequence[str] = ()) -> dict[str, Any]:
    """Read what a run sets, as Hydra composes it: not verl's defaults, and not the rule, which costs nothing.

    Args:
        name: of the recipe, as after `--config-name`.
        words: `llm=NAME`, `text=NAME`, and settings.

    Raises:
        UserError: a choice that does not exist, or what is not a setting.
    """
    settings = {"text": "paper"} | dict(map(setting, words))
    unknown = [key for key in settings if "." not in key and key not in ("llm", "rule", "text", "seed", "run")]
    if unknown:
        raise UserError(
            f"unknown choice {', '.join(unknown)}: there are llm, rule, text, seed and run, and verl's own settings"
        )
    if name != "smoke" and "llm" not in settings:
        raise UserError(f"llm= is missing: one of {', '.join(sorted(path.stem for path in PAPER.glob('llm/*')))}")
    if "rule" in settings:
        read_recipe(PAPER / f"rule/{settings['rule']}.yaml")  # which must be there
    choices = (f"{group}/{settings[group]}" for group in ("llm", "text") if group in settings)
    files = dict.fromkeys(["paper", *choices, name])  # paper once
    node = functools.reduce(merge, (read_recipe(PAPER / f"{file}.yaml") for file in files))
    for key, value in settings.items():
        if key.partition(".")[0] not in ("llm", "rule", "text"):
            put(node, key.lstrip("+"), value)
    return node


@dataclass(frozen=True)
class Plan:
    """An estimate; memory in GiB per GPU, times in seconds.

    Attributes:
        parameters: of the model.
        training, generation: the memory of the two phases, by what fills it.
        step: the phases of a step.
        validation: one validation.
        checkpoint, merged, answers: GiB on disk, of a checkpoint, of the model that is made of it to be evaluated (in
            bfloat16), and of one validation's answers.
    """

    parameters: int
    training: dict[str, float]
    generation: dict[str, float]
    step: dict[str, float]
    validation: float
    checkpoint: float
    merged: float
    answers: float


class _Numbers:
    """Dotted keys of a run whose values must be numbers."""

    def __init__(self, run: Mapping[str, Any]) -> None:
        self.values = dict(leaves(run))

    def __getitem__(self, key: str) -> float:
        value = self.values.get(key)
        if not isinstance(value, int | float):
            raise UserError(f"{key} must be a number, got {value!r}")
        return value

    def get(self, key: str, default: float) -> float:
        return default if self.values.get(key) is None else self[key]


def plan(run: Mapping[str, Any]) -> Plan:
    """Estimate memory and time of a run.

    research/pages/plan.md derives the formulas and compares them with the released logs.

    Raises:
        UserError: a number is missing.
    """
    of, actor, rollout = _Numbers(run), "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    layers, hidden, intermediate = (
        of[f"plan.shape.{x}"] for x in ("num_hidden_layers", "hidden_size", "intermediate_size")
    )
    heads, kv_heads = (of[f"plan.shape.num_{x}_heads"] for x in ("attention", "key_value"))
    vocabulary, tied = of["plan.shape.vocab_size"], bool(of["plan.shape.tie_word_embeddings"])
    kv, head = hidden / heads * kv_heads, vocabulary * hidden
    per_layer = 2 * hidden**2 + 2 * hidden * kv + 3 * hidden * intermediate
    multiplied = layers * per_layer + head  # the parameters that a token is multiplied with
    parameters = multiplied + layers * 2 * hidden + hidden + (0 if tied else head)
    rank = of.get("actor_rollout_ref.model.lora_rank", 0)
    adapter = rank * layers * (4 * hidden + 2 * (hidden + kv) + 3 * (hidden + intermediate))
    trained = adapter or parameters

    gpus = of.get("trainer.nnodes", 1) * of["trainer.n_gpus_per_node"]
    if gpus <= 0:
        raise UserError(f"trainer.nnodes x trainer.n_gpus_per_node must be positive, got {gpus:g}")
    longest = of["data.max_response_length"]
    tokens = of[f"{actor}.ppo_micro_batch_size_per_gpu"] * (of["data.max_prompt_length"] + longest)
    stored = 4 * (parameters + adapter) + 8 * trained
    training = {
        "weights, Adam": stored / gpus,
        "gradients": 4 * trained / gpus,
        "gathered": 6 * head * (1 if tied else 2),
        "activations": tokens * (2 * layers * hidden + 24 * hidden + 8 * intermediate),
        "logits": 2 * 2 * tokens * vocabulary,
    }

    mean = of.get("plan.response_tokens", longest)
    answers = of["data.train_batch_size"] * of[f"{rollout}.n"]
    forward = 2 * multiplied * answers * mean / (gpus * of["plan.flops"] * of["plan.train_efficiency"])

    def generate(answers: float) -> float:
        each = answers / gpus
        steps = max(longest, each * mean / of.get(f"{rollout}.max_num_seqs", 256))
        cache = each * mean * mean / 2 * 4 * layers * kv
        return (
            steps * (of["plan.decode_seconds"] + 2 * multiplied / of["plan.bandwidth"]) + cache / of["plan.bandwidth"]
        )

    step = {
        "generation": generate(answers),
        "old log-probs": forward,
        **({"reference": forward} if of.get(f"{actor}.use_kl_loss", False) else {}),
        # Forward, once more for the checkpointed layers, backward to the inputs, and to the weights unless they are
        # frozen.
        "update": (3 if rank else 4) * forward,
        "other": of["plan.other_seconds"],
    }
    validated = of["plan.validation_prompts"] * of[f"{rollout}.val_kwargs.n"]
    # Once more, in float32.
    whole = "hf_model" in (of.values.get(f"{actor}.checkpoint.save_contents") or ())
    return Plan(
        parameters=round(parameters),
        training={name: x / _GIB for name, x in training.items()},
        generation={
            "weights, Adam": stored / gpus / _GIB,
            "rollout": of[f"{rollout}.gpu_memory_utilization"] * of["plan.memory"],
        },
        step=step,
        validation=generate(validated),
        checkpoint=(stored + 4 * parameters * whole) / _GIB,
        merged=2 * parameters / _GIB,
        answers=validated * (4 * mean + 1024) / _GIB,  # 4 bytes a token, and 1 KiB for the question and the rest
    )


def plan_text(run: Mapping[str, Any], repetitions: int = 1) -> str:
    """Write the estimate for a terminal, with the time of several repetitions."""
    estimate, of = plan(run), _Numbers(run)
    memory, batch, shape = (
        of["plan.memory"],
        of["data.train_batch_size"],
        run["actor_rollout_ref"],
    )
    mean = of.get("plan.response_tokens", of["data.max_response_length"])
    bound = "" if "response_tokens" in run["plan"] else " at most: all are taken to be as long as allowed"
    lines = [
        f"{shape.get('model', {}).get('path', 'a model')}, {estimate.parameters / 1e9:.2f} billion parameters, on "
        f"{of.get('trainer.nnodes', 1)} x {of['trainer.n_gpus_per_node']} {run['plan'].get('gpu', 'GPU')}",
        f"{batch * of['actor_rollout_ref.rollout.n']:g} answers a step of {mean:g} tokens{bound}",
        "",
        f"memory of a GPU  GiB, of {memory:g}",
    ]
    for name, parts in (("training", estimate.training), ("generation", estimate.generation)):
        total, summed = sum(parts.values()), " + ".join(f"{part} {x:.1f}" for part, x in parts.items())
        lines.append(f"  {name:13}  {total:7.1f}  {'' if total < memory else 'DOES NOT FIT: '}{summed}")
    step = sum(estimate.step.values())
    lines += [
        "",
        "time of a step       s",
        *(f"  {name:13} {x:7.1f}" for name, x in estimate.step.items()),
    ]
    lines.append(f"  {'all':13} {step:7.1f}")
    every, gpus = (
        of.get("trainer.test_freq", -1),
        of.get("trainer.nnodes", 1) * of["trainer.n_gpus_per_node"],
    )
    if every > 0:
        lines.append(f"  validation    {estimate.validation:7.1f}  every {every:g} steps")
        step += estimate.validation / every
    an_epoch = of.get("plan.training_prompts", 0) // batch
    steps = of.get("trainer.total_training_steps", of.get("trainer.total_epochs", 0) * an_epoch)
    for number in sorted({1, repetitions}) if steps else ():
        hours, what = (
            number * steps * step / 3600,
            f"{steps:g} steps" if number == 1 else f"{number} such runs",
        )
        lines.append(f"  {what:13} {hours:7.1f}  hours, {hours * gpus:.0f} GPU hours")
    disk: list[str] = []
    saved = of.get("trainer.save_freq", -1)
    if saved > 0:
        number = min(of.get("trainer.max_actor_ckpt_to_keep", math.inf), math.ceil(steps / saved) or 1)
        disk.append(f"  checkpoints   {number * estimate.checkpoint:7.1f}  {number:g} of {estimate.checkpoint:.1f}")
        disk.append(f"  to evaluate   {estimate.merged:7.1f}  the last one merged to bfloat16")
    if every > 0 and of.values.get("trainer.validation_data_dir"):
        count, mib = math.ceil(steps / every) + 1, 1024 * estimate.answers
        disk.append(f"  validations   {count * estimate.answers:7.1f}  {count} of {mib:.0f} MiB, 4 bytes a token")
    lines += ["", "disk of a run      GiB", *disk] if disk else []
    lines += ["", "not counted: CUDA contexts and fragmentation"]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the estimate; returns the exit code, 2 for a mistake."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="key=value", help="as for the run: llm=NAME, text=NAME, settings")
    parser.add_argument("--config-name", default="paper", metavar="NAME", help="the recipe: paper, lora or smoke")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="how many such runs")
    options = parser.parse_args(argv)
    try:
        print(plan_text(recipe(options.config_name, options.words), options.seeds))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
