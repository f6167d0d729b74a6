"""Train one run on TRL: a `RunConfig` becomes a folder.

The folder holds `config.yaml`, `run.json` (versions, times, state), `metrics.jsonl` (one line per log step),
`held_out.jsonl` (one line per evaluation: each question's score, and three answers), `checkpoints/`, `model/` and
`tokens/`.
"""

import contextlib
import ctypes
import functools
import json
import logging
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PrinterCallback, TrainerCallback

from bandpo.errors import UserError, counted
from bandpo.integrations import RULE
from bandpo.integrations.trl import BandPOConfig, BandPOTrainer
from bandpo.integrations.trl_context import FiniteGuard, NotFiniteError

from .. import signals, toy
from ..config.recipe import RunConfig
from ..config.run_folder import check_free, check_same_data, check_same_run, is_finished
from ..data.rows import checksums, rows_and_reward
from ..files.reading import read_json_lines
from ..files.writing import locked, write_atomically
from ..provenance import hardware, source_commit, versions
from . import checkpoints, models, processes
from .shared_prompts import SharedPrompts, why_not
from .validation import ACCURACIES, Validation, validation_rows

Row = dict[str, Any]
HELD_OUT = "held_out.jsonl"
# What TRL's summary at the end has besides times.
_SUMMARY = ("train_loss", "total_flos")


def run(
    config: RunConfig,
    *,
    resume: bool = False,
    command: str | None = None,
    on_row: Callable[[Row], None] = lambda row: None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Train as `config` says; returns the folder of the run.

    With `resume`, an interrupted run goes on after its last checkpoint exactly as if it had not been interrupted: the
    same weights, the same rows. TRL keeps neither its generated batch nor the step within it, so checkpoints are taken
    only where the next step generates, and only on a logged step; rows logged after the checkpoint are cut off. A
    checkpoint that lacks anything, or whose rows are gone, is passed over for the one before.

    Several processes, started by `torchrun` or `accelerate launch`, share the batch of the recipe. All of them call
    this; the first one alone writes, and calls `on_row` and `say`.

    Args:
        config: from `bandpo_runs.config.load`.
        resume: go on with the run in `config.output`.
        command: how to repeat the run, for the report.
        on_row: called with every row of metrics.
        say: called with every notice.

    Raises:
        UserError: the folder holds a run already (without `resume`), or none or a different one (with it); data, model
            or reward cannot be had; no checkpoint is whole; another process writes to the folder. Nothing has been
            written then.
        NotFiniteError: a weight or reward is not finite; run.json has it as `stopped`.
    """
    folder = Path(config.output)
    if not processes.is_first():
        say, on_row = (lambda text: None), (lambda row: None)  # the first speaks for all
    with contextlib.ExitStack() as stack:
        stack.callback(RULE.setLevel, RULE.level)
        RULE.setLevel(logging.ERROR)  # the command has told the rule
        if processes.is_first():
            stack.enter_context(locked(folder / ".lock"))
        if resume:
            check_same_run(folder, config)
        else:
            check_free(folder)
        if is_finished(folder):
            say(f"{folder} is finished; nothing to resume")
            return folder
        return _run(folder, config, resume, command, on_row, say)


def _run(
    folder: Path,
    config: RunConfig,
    resume: bool,
    command: str | None,
    on_row: Callable[[Row], None],
    say: Callable[[str], None],
) -> Path:
    """Run in a folder that is ours."""
    arguments = _trainer(BandPOConfig, **_trainer_settings(config, folder, processes.count()))
    lora, state = _lora(config.lora), _meet()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    resumes = resume and state.is_main_process
    mark = checkpoints.mark_to_resume(folder, state.num_processes, say) if resumes else None
    (mark,) = broadcast_object_list([mark])
    # One process of each machine goes first, and fills the caches for the others.
    with state.local_main_process_first():
        rows, held_out, reward = rows_and_reward(config)
        data = checksums(config.data, rows)
        if resume:
            check_same_data(folder, data)
        chat = isinstance(rows[0]["prompt"], list)
        held_out = validation_rows(config.data, held_out, chat)
        if config.model == "lab":
            start, skill = toy.warm_start(toy.SCENES[config.scene or "tail"].p_work, config.seed, say)
        else:
            start, skill = models.locate(config.model, say), None
    model, tokenizer = models.load(str(start), config.model)
    if chat and tokenizer.chat_template is None:
        raise UserError(
            f"the prompts are chat messages, but the tokenizer of {config.model!r} has no chat template"
        )
    if mark is not None:
        arguments.eval_on_start = False  # it was done, and its row is in the file
    reason = why_not(arguments, model) if config.shared_prompts else ""
    if reason:
        say(f"TRL samples and scores the answers, which takes longer: {reason}")
    validation = Validation(reward, accuracy=config.reward in ACCURACIES)
    try:
        trainer = _trainer(
            SharedPrompts if config.shared_prompts and not reason else BandPOTrainer,
            model=model,
            args=arguments,
            processing_class=tokenizer,
            train_dataset=rows,
            eval_dataset=held_out,
            reward_funcs=validation.reward,
            peft_config=lora,
        )
    except UserError:
        with contextlib.suppress(OSError):  # the trainer makes its folder before it has seen all settings
            (folder / "checkpoints").rmdir()
        raise
    info = {**_info(config, command, skill, state.num_processes), "data": data}
    began = time.monotonic() - (mark.wall_seconds if mark else 0.0)
    trainer.finite_guard.last_whole = functools.partial(_newest_whole, folder)
    if state.is_main_process:
        if resume:
            checkpoints.rewind(folder, mark)
            if (folder / HELD_OUT).exists():  # a kill may have left half a line
                os.truncate(folder / HELD_OUT, read_json_lines(folder / HELD_OUT)[1])
        write_atomically(folder / "config.yaml", config.to_yaml().encode())
        _write_json(folder / "run.json", info)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(trainer.run_log)  # the recorder writes the rows
    trainer.add_callback(_Recorder(folder, config, began, validation, trainer.finite_guard, on_row, say))
    try:
        trainer.train(resume_from_checkpoint=str(checkpoints.place(folder, mark.step)) if mark else None)
    except NotFiniteError as error:
        if state.is_main_process:
            _write_json(folder / "run.json", {**info, "stopped": str(error)})
            (folder / "metrics.jsonl").touch()  # for reports, before its first row
        raise NotFiniteError(
            f"{folder}, {error}. (--resume does the same steps again; other settings need another output, where "
            "model=CHECKPOINT begins from that one.)"
        ) from error
    trainer.save_model(str(folder / "model"))
    if state.is_main_process:
        for path in (folder / "model").iterdir():
            checkpoints.sync(path)
        seconds = round(time.monotonic() - began, 1)
        _write_json(folder / "run.json", {**info, "finished": True, "wall_seconds": seconds})
    return folder


def _meet() -> PartialState:
    """Return the state of the processes, which have met. Raises UserError where some are missing."""
    state = PartialState()
    if state.num_processes != processes.count():
        raise UserError(
            f"{processes.count()} processes were started (WORLD_SIZE), but {state.num_processes} have met; start them "
            "by torchrun or accelerate launch, or unset WORLD_SIZE for one process"
        )
    if torch.distributed.is_initialized():
        # Their group is never taken down: torch (2.13) would wait for gloo's threads and hold Python's lock meanwhile,
        # for which one of them may be waiting to forget its last tensor. A process that was done hung for ever.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch.distributed.group.WORLD))
    return state


def _newest_whole(folder: Path, *unused: object) -> Path | None:
    mark, _ = checkpoints.newest_whole(folder)
    return mark and checkpoints.place(folder, mark.step)


class _Recorder(TrainerCallback):
    """Writer of metrics.jsonl. It also marks whole checkpoints and deletes old ones."""

    def __init__(
        self,
        folder: Path,
        config: RunConfig,
        began: float,
        validation: Validation,
        guard: FiniteGuard,
        on_row: Callable[[Row], None],
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.began, self.validation, self.guard = folder, began, validation, guard
        self.on_row, self.say, self.steps_per_round = on_row, say, config.steps_per_round
        self.keep = config.trainer.get("save_total_limit", 2)

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        """End the run on a signal whose KeyboardInterrupt was swallowed."""
        signals.check()

    on_prediction_step = on_step_begin

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        """Write one line per log step.

        Values of the clock are left out, so that a repeated run writes the same file.
        """
        logs = logs or {}
        # All processes evaluate and come here, each with the scores of its own samples.
        scores = self.validation.take() if any(key.startswith("eval_") for key in logs) else {}
        # The summary also holds what came after the last log step, if anything did.
        is_empty = "train_runtime" in logs and "bandpo/tokens" not in logs
        if not state.is_world_process_zero or not logs or is_empty:
            return
        row: Row = {
            "step": state.global_step,
            "round": math.ceil(state.global_step / self.steps_per_round),
        }
        # Ours last: they are sums over counts where TRL has a mean of means.
        for key in sorted(logs, key=lambda key: "bandpo/" in key):
            if not key.endswith(("step_time", "runtime", "per_second")) and key not in _SUMMARY:
                name = re.sub("^eval_", "eval/", key).replace("bandpo/", "")
                is_finite = isinstance(logs[key], int | float) and math.isfinite(logs[key])
                row[name] = logs[key] if is_finite else None
        if scores:
            # A resumed run may write an evaluation twice; the last one counts.
            answers = [self.validation.answers[number] for number in sorted(self.validation.answers)]
            scored = {"scores": self.validation.by_question, "answers": answers}
            self._append(HELD_OUT, {"step": row["step"], **scored})
        row |= scores
        self._append("metrics.jsonl", row)
        self.on_row(row)

    def _append(self, name: str, row: Row) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=name == HELD_OUT) + "\n")  # a score may be anything

    def on_save(self, args, state, control, **kwargs) -> None:
        """Count the checkpoint from here on; only then may older ones go."""
        if not self.guard.sound:
            self.say(
                f"checkpoint-{state.global_step} has weights that are not finite: it does not count, and none is "
                "deleted for it"
            )
            return
        PartialState().wait_for_everyone()  # each process writes its random state
        if state.is_world_process_zero:
            checkpoints.write_mark(
                self.folder, state.global_step, round(time.monotonic() - self.began, 1), args.world_size
            )
            best = state.best_model_checkpoint
            checkpoints.rotate(self.folder, state.global_step, self.keep, best and Path(best).name)


def _trainer(make: Callable[..., Any], **settings: Any) -> Any:
    """Make TRL's config or trainer; settings that it refuses are the user's to change."""
    try:
        return make(**settings)
    except (ValueError, ImportError, RuntimeError) as error:
        # A tracker that is missing.
        if isinstance(error, RuntimeError) and "Callback requires" not in str(error):
            raise
        raise UserError(f"trainer: {' '.join(str(error).split())}") from error


def _trainer_settings(config: RunConfig, folder: Path, count: int = 1) -> dict[str, Any]:
    """Return arguments of BandPOConfig for one of `count` processes."""
    logging = config.trainer.get("logging_steps", 1)
    save = config.save_every * config.steps_per_round
    if logging < 1 or logging != int(logging) or save % logging:
        raise UserError(
            f"trainer.logging_steps must be a positive integer that divides save_every = {config.save_every} rounds of "
            f"{counted(config.steps_per_round, 'step')}, as a checkpoint must be on a logged step; got {logging:g}: "
            "change it, or save_every"
        )
    settings = {
        "report_to": "none",
        # Otherwise torch rearranges its buckets of gradients after the first step, whichever that is: sums over four
        # processes are then rounded in another way in a resumed run.
        **({"ddp_find_unused_parameters": True} if count > 1 else {}),
        **config.trainer,
        "trust_region": config.trust_region,
        "stop_if_not_finite": config.stop_if_not_finite,
        "tokens_share": config.tokens_share,
        "logging_steps": int(logging),
        "output_dir": str(folder / "checkpoints"),
        "seed": config.seed,
        "max_steps": config.rounds * config.steps_per_round,
        "save_strategy": "steps" if save else "no",
        "save_steps": save or 1,
        "save_total_limit": None,  # old ones are deleted here: the trainer goes by their times, and before the mark
        "shuffle_dataset": False,
        "disable_tqdm": True,
        "all_metrics": True,
        **({} if config.tokens_share == 0 else {"tokens_path": str(folder / "tokens")}),
    }
    if count > 1 and not torch.cuda.is_available():
        settings.setdefault("use_cpu", True)  # else each would train alone
    for key in ("per_device_train_batch_size", "per_device_eval_batch_size"):
        if "eval" in key and not config.data.eval_size and config.data.eval_path is None:
            continue
        batch = config.trainer.get(key, 8)
        if batch % count:
            raise UserError(
                f"trainer.{key} is {batch}, the batch of all processes together, which {count} processes cannot share; "
                f"start a number of processes that divides it, or set a multiple of {count}"
            )
        settings[key] = batch // count
    return settings


def _lora(rank: int | None) -> Any:
    """Return the settings of LoRA; None trains all weights."""
    if rank is None:
        return None
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")


def _info(
    config: RunConfig, command: str | None, skill: dict[str, float] | None, count: int
) -> dict[str, Any]:
    command = command or shlex.join(["bandpo", *sys.argv[1:]])
    return {
        "label": config.label,
        "seed": config.seed,
        "scene": config.scene,
        "learning_rate": config.trainer.get("learning_rate"),
        "rounds": config.rounds,
        "steps_per_round": config.steps_per_round,
        "warm_start": skill,
        "processes": count,
        "command": f"torchrun --nproc-per-node {count} -m {command}" if count > 1 else command,
        "versions": versions(("torch", "transformers", "trl", "accelerate", "datasets")),
        "hardware": hardware(gpu=torch.cuda.is_available() and not config.trainer.get("use_cpu", False)),
        "commit": source_commit(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "finished": False,
    }


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False).encode() + b"\n")


# The trainer's own chatter would break the progress display; warnings still come through.
transformers.utils.logging.set_verbosity_warning()
transformers.utils.logging.disable_progress_bar()
