"""Questions to evaluate on, by name: what `evaluation_set` knows, the held-out rows of a recipe or a run,
or the lab's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bandpo.errors import UserError
from bandpo.files.yaml import parse_yaml

from .. import toy
from ..config.recipe import RunConfig, build, read_recipe
from .evaluation_sets import evaluation_set
from .questions import Content, Question
from .rows import read_rows

# Of questions that are made: far from the seeds that training starts with. reasoning_gym's item i of seed s is item 0
# of seed s + i.
MADE_SEED, MADE_SIZE = 1_000_000_000, 128
LONGEST = 1_000_000  # characters of a question; to find the tokens of ten million takes more than a minute


@dataclass(frozen=True)
class QuestionSet:
    """The questions of one data set. `scorer`: the one that fits; `facts`: how they were made, for eval.json."""

    name: str
    questions: list[Question]
    scorer: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def read(
    spec: str,
    *,
    limit: int | None = None,
    chat: bool = True,
    template: str | None = None,
    copies: Path | None = None,
) -> QuestionSet:
    """Read the questions of one entry of --data.

    Args:
        spec: what `evaluation_set` takes (`aime24`, a file, ...), with options for a task as in
            `reasoning-gym:chain_sum:min_terms=2:size=64`; a recipe or the folder of a run (its held-out rows); `lab`.
        limit: take the first so many.
        chat: send problems as messages; False: the text of a sole user message as it is.
        template: see `evaluation_set`.
        copies: see `evaluation_set`.

    Raises:
        UserError: there is no such data, or it has no questions or two answers to one.
    """
    path = Path(spec)
    recipe = path if spec.endswith((".yaml", ".yml")) else path / "config.yaml"
    if spec == "lab":
        found = _lab()
    elif recipe == path or recipe.is_file():
        # Without its rule: that has nothing to do with the questions, and may be a module to import.
        node = {key: value for key, value in read_recipe(recipe).items() if key != "trust_region"}
        found = _held_out(build(node), spec)
    else:
        found = _of_set(spec, template, copies)
    questions = found.questions[:limit]
    return replace(found, questions=questions if chat else list(map(_as_text, questions)))


def _lab() -> QuestionSet:
    return _distinct("lab", [(row["prompt"], row["answer"], {}) for row in toy.prompts(MADE_SIZE, MADE_SEED)], "lab")


def _held_out(config: RunConfig, name: str) -> QuestionSet:
    """Read the rows that a training run holds out; for the lab, fresh ones.

    A reward that is a module is not run for its questions: name a scorer then.
    """
    data = config.data
    if data.source == "lab":
        return _lab()
    _, held_out, _ = read_rows(config)
    if held_out is None:
        raise UserError(f"{name} holds out no rows (data.eval_size is 0); name other --data")
    rows: list[Any] = [
        (row["prompt"], row["answer"], {"item": row["item"]} if "item" in row else {}) for row in held_out.to_list()
    ]
    facts: dict[str, Any] = {"path": data.path}
    if data.source == "reasoning_gym":
        size = data.size or config.rounds * config.prompts_per_round + data.eval_size
        facts = {"task": data.task, "options": data.options, "items": size}
    return _distinct(held_out_name(config), rows, config.reward, facts)


def held_out_name(config: RunConfig) -> str:
    """Name the held-out rows of a run: the task, or the file."""
    return str(config.data.task) if config.data.source == "reasoning_gym" else Path(config.data.path or "").stem


def _of_set(spec: str, template: str | None, copies: Path | None) -> QuestionSet:
    name, options = spec, {}
    made = spec.startswith("reasoning-gym:")
    if made:
        prefix, task, *settings = spec.split(":")
        name, options = f"{prefix}:{task}", {"seed": MADE_SEED, "size": MADE_SIZE}
        for setting in settings:
            key, equals, value = setting.partition("=")
            if not equals or not key:
                raise UserError(f"--data {spec}: {setting!r} is not an option; write reasoning-gym:TASK:key=value")
            options[key] = parse_yaml(value, f"--data {spec}: {key}")
    size = options.pop("size", None)
    found = evaluation_set(name, template=template, copies=copies, options=options, size=size)
    rows: list[Any] = [
        (row["messages"], row["answer"], {"item": i} if made else {"id": row["id"], "data_source": row["data_source"]})
        for i, row in enumerate(found.rows)
    ]
    label = found.name.removeprefix("reasoning-gym:")
    return _distinct(label, rows, "reasoning-gym" if made else "math", found.source, found.warnings)


def _distinct(
    name: str,
    rows: Iterable[tuple[Content, str, dict[str, Any]]],
    scorer: str,
    facts: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> QuestionSet:
    """Keep each question once: a repeated one would count as independent in every interval."""
    known: dict[str, Question] = {}
    repeated = 0
    for content, answer, more in rows:
        question = Question(name, len(known), content, str(answer), more)
        parts = [content] if isinstance(content, str) else [str(message.get("content")) for message in content]
        if (size := sum(map(len, parts))) > LONGEST:
            raise UserError(
                f"--data {name}: question {len(known) + 1} has {size:,} characters, more than any model reads; at most "
                f"{LONGEST:,} are taken"
            )
        repeated += question.id in known
        first = known.setdefault(question.id, question)
        if first.answer != question.answer:
            answers = f"{first.answer!r} and {question.answer!r}"
            raise UserError(f"--data {name}: two answers, {answers}, to the question {content!r:.200}")
    facts = {**(facts or {}), "repeated": repeated}
    return QuestionSet(name, list(known.values()), scorer, facts, list(warnings))


def _as_text(question: Question) -> Question:
    if isinstance(question.content, str):
        return question
    if [message["role"] for message in question.content] != ["user"]:
        raise UserError(f"--no-chat needs one user message a question, got {question.content!r:.200}")
    return replace(question, content=question.content[0]["content"])
