"""Train one scene under several rules side by side. Seeds and prompts are the same; all cores are used."""

import contextlib
import multiprocessing
import os
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass
from multiprocessing.managers import SyncManager
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo.integrations import objective_for
from bandpo.losses.nodes import methods
from bandpo.notation import label_of_objective, short_node
from bandpo_runs.toy import SCENES, warm_start

from ..config.recipe import RunConfig, build, merge
from ..config.run_folder import check_free, check_same_run, is_finished
from . import processes

DEFAULT_METHODS = ("grpo", "clip-higher", "clip-wide", "band-kl")


@dataclass(frozen=True)
class Job:
    """One run of a comparison."""

    name: str
    config: RunConfig

    @property
    def folder(self) -> Path:
        """Return the output folder."""
        return Path(self.config.output)


def plan(
    scene: str,
    methods: Sequence[str],
    seeds: Sequence[int],
    output: Path,
    overrides: Mapping[str, Any] | None = None,
) -> list[Job]:
    """Plan the runs of a comparison, seed by seed, so that whole seeds are done first.

    Args:
        scene: `tail`, `storm` or `rare-and-noisy`.
        methods: what `bandpo.objective` reads: names of methods such as "gspo", rules such as "clip:0.2:1", nodes such
            as "{type: clip}".
        seeds: each gives one warm start, one order of prompts, one stream of samples.
        output: run folders become output/scene/method/seed-N.
        overrides: further settings of the run configuration, the same for all.

    Raises:
        UserError: an unknown method or setting, or the same method twice.
    """
    trainer = merge(SCENES[scene].defaults, overrides or {}).get("trainer") or {}
    rules: dict[str, dict[str, Any]] = {}
    for method in methods:
        name, rule = _rule(method, trainer.get("loss_type", "dapo"))
        if name in rules:
            raise UserError(
                f"method {method!r} is given twice{'' if method == name else f', it is {name!r}'}"
            )
        rules[name] = rule
    jobs = []
    for seed in seeds:
        for name, rule in rules.items():
            node = {
                "scene": scene,
                "seed": seed,
                "save_every": 10,
                "trust_region": rule,
                "output": str(output / scene / name / f"seed-{seed}"),
            }
            jobs.append(Job(name, build(merge(node, overrides or {}))))
    return jobs


def _rule(text: str, average: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a run's folder and the node of its rule or objective.

    Methods that are the same have one name.
    """
    try:
        value = objective_for("TRL", text, average=average)
    except ValueError as error:
        raise UserError(str(error)) from None
    same = [each.name for each in methods() if not each.from_sampler and each.without_average == value]
    name = same[0] if same else label_of_objective(value).lower()
    return re.sub(r"[^\w.]+", "-", name).strip("-"), short_node(value)


def run_all(
    jobs: Sequence[Job],
    *,
    workers: int,
    resume: bool = False,
    command: str,
    on_row: Callable[[Job, dict[str, Any]], None],
    say: Callable[[str], None],
) -> list[Path]:
    """Run the jobs in processes of their own, `workers` at a time. It returns their folders.

    With `resume`, finished runs are left alone and interrupted ones go on. `on_row` gets each row of metrics as it
    comes.

    Raises:
        UserError: a folder holds a run already and `resume` is off, or one with other settings; a worker was killed.
    """
    if processes.count() > 1:
        raise UserError(
            "bandpo lab starts its own processes; start it without torchrun or accelerate launch"
        )
    for job in jobs:
        if not resume:
            check_free(job.folder)
        elif (job.folder / "run.json").exists():
            check_same_run(job.folder, job.config)
    left = [job for job in jobs if not is_finished(job.folder)]
    manager = SyncManager(ctx=multiprocessing.get_context("spawn"))
    manager.start(processes.end_with_parent)
    with manager, processes.workers(max(1, min(workers, len(left))), "--resume goes on") as pool:
        messages = manager.Queue()
        listener = threading.Thread(target=_listen, args=(messages, left, on_row, say), daemon=True)
        listener.start()
        starts = sorted({(SCENES[job.config.scene or "tail"].p_work, job.config.seed) for job in left})
        _gather([pool.submit(_warm, *start, messages) for start in starts])
        _gather([pool.submit(_train, job, command, i, messages) for i, job in enumerate(left)])
        messages.put(None)
        listener.join()
    return [job.folder for job in jobs]


def _gather(futures) -> None:
    for future in wait(futures, return_when=FIRST_EXCEPTION).done:
        future.result()


def _listen(messages, jobs, on_row, say) -> None:
    with contextlib.suppress(EOFError, OSError):  # of a manager that has ended
        for index, content in iter(messages.get, None):
            say(content) if index is None else on_row(jobs[index], content)


def _warm(p_work: float, seed: int, messages) -> None:
    _quiet()
    warm_start(p_work, seed, lambda text: messages.put((None, text)))


def _train(job: Job, command: str, index: int, messages) -> None:
    _quiet()
    from .on_trl import run

    run(
        job.config,
        resume=(job.folder / "config.yaml").exists(),
        command=command,
        on_row=lambda row: messages.put((index, row)),
        say=lambda text: messages.put((None, text)),
    )


def _quiet() -> None:
    """Hide deprecation notices of the libraries. They are for us, not for users of the lab."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    warnings.simplefilter("ignore", FutureWarning)
    warnings.simplefilter("ignore", DeprecationWarning)
