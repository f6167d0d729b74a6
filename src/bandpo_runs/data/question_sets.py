"""Read questions to evaluate on, by name. They are of data sets, files, held-out rows of runs, or the lab."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bandpo.errors import UserError, counted
from bandpo.files import shortened

from .. import toy
from ..config.recipe import DataConfig, RunConfig, build, read_recipe
from .problems import messages_of, problem_of, template_text
from .questions import Content, Question
from .readers import open_source, value_at
from .rows import read_rows
from .sources import SOURCES, find, warnings_of


@dataclass(frozen=True)
class QuestionSet:
    """Hold the questions of a data set. `scorer`: the one that fits; `metadata`: how they were made, for eval.json."""

    name: str
    questions: list[Question]
    scorer: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()


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
        spec: what `evaluation_set` takes (`aime24`, a file, ...); a recipe or the folder of a run (its held-out
            rows); `lab`.
        limit: take the first so many.
        chat: send problems as messages; False: the text of a sole user message as it is.
        template: see `evaluation_set`.
        copies: see `evaluation_set`.

    Raises:
        UserError: the data are not found, have no questions, or two answers to one; or have a template of their own.
    """
    path = Path(spec)
    recipe = path if spec.endswith((".yaml", ".yml")) else path / "config.yaml"
    if spec != "lab" and recipe != path and not recipe.is_file():
        question_set = evaluation_set(spec, template=template, copies=copies)
    elif template is not None:
        raise UserError(
            f"{spec} has a template of its own; --template is for other data, got {template!r}"
        )
    elif spec == "lab":
        question_set = _lab()
    else:
        # Without its rule: that has nothing to do with the questions, and may be a module to import.
        question_set = _held_out(
            build({key: value for key, value in read_recipe(recipe).items() if key != "trust_region"}),
            spec,
        )
    questions = question_set.questions[:limit]
    return replace(question_set, questions=questions if chat else list(map(_as_text, questions)))


def _lab() -> QuestionSet:
    made = toy.prompts(128, 1_000_000_000)  # far from the seeds that training starts with
    return _distinct("lab", [(row["prompt"], row["answer"], {}) for row in made], "lab")


def _held_out(config: RunConfig, name: str) -> QuestionSet:
    """Read the rows that a training run holds out; for the lab, fresh ones.

    A reward that is a module is not run for its questions: name a scorer then.
    """
    data = config.data
    if data.source == "lab":
        return _lab()
    _, held_out = read_rows(config)
    if held_out is None:
        raise UserError(f"{name} holds out no rows (data.eval_size is 0); name other --data")
    rows = [(row["prompt"], row["answer"], {}) for row in held_out.to_list()]
    return _distinct(held_out_name(data), rows, config.reward, {"path": data.path})


def held_out_name(data: DataConfig) -> str:
    """Name the held-out rows of a run by their file."""
    return Path(data.path or "").stem


def evaluation_set(name: str, *, template: str | None = None, copies: Path | None = None) -> QuestionSet:
    """Read a data set to evaluate on, by its name or from a file. It has all problems, in order, as chat messages.

    Integers are written as usual (033 is 33). Nothing is dropped but repetitions.

    Args:
        name: a known set (`aime24`, `aime25`, `amc23`, `gsm8k-test`; `gsm8k` is its test), a file that `bandpo data
            prepare` wrote, any other file with the columns `prompt` and `answer`, or a name on the hub.
        template: the text around a problem, by name (`paper`, `plain`, `boxed`) or as a text with {prompt} in it. By
            default `paper` for a known set and `plain` for others; problems that are messages stay as they are.
        copies: folder with copies of the hub's data sets, each in its folder ORG/NAME, to be read instead of the hub.

    Raises:
        UserError: it cannot be found or read, has a row without a problem or an answer, or two answers to a problem.
    """
    sources = find(name)
    sources = (
        [source for source in sources if source.use == "evaluation"] if len(sources) > 1 else sources
    )
    if len(sources) != 1:
        names = ", ".join(each.name for each in sources)
        raise UserError(f"{name} is {len(sources)} evaluation sets ({names}); name one")
    (source,) = sources
    text = template_text(template, source.name in SOURCES)
    read, where = open_source(source, copies)
    rows: list[tuple[Content, str, dict[str, Any]]] = []
    faults: Counter[str] = Counter()
    for index, row in enumerate(read):
        problem = problem_of(source, row, index)
        if problem.fault is not None:
            if not problem.usable:
                raise UserError(
                    f"{name}: row {index + 1}: {problem.fault}; its answer is {shortened(value_at(row, source.answer))}"
                )
            faults[problem.fault] += 1
        prepared = value_at(row, "extra_info.problem")  # of a file that `prepare` wrote
        if isinstance(prepared, str):
            problem = replace(
                problem, text=prepared, messages=problem.messages if template is None else None
            )
        more = {"data_source": row.get("data_source") or source.data_source}
        rows.append((messages_of(source, problem, text), problem.answer, more))
    if not rows:
        raise UserError(f"{name} has no rows")
    return _distinct(
        source.name if source.kind == "hub" else source.file,
        rows,
        "math",
        where,
        warnings_of(source, len(rows), faults),
    )


def _distinct(
    name: str,
    rows: Iterable[tuple[Content, str, dict[str, Any]]],
    scorer: str,
    metadata: Mapping[str, Any] | None = None,
    warnings: Sequence[str] = (),
) -> QuestionSet:
    """Keep each question once. A repeated one would count as independent in every interval."""
    questions: dict[str, Question] = {}
    repeated = 0
    for content, answer, more in rows:
        question = Question(name, len(questions), content, str(answer), more)
        repeated += question.id in questions
        first = questions.setdefault(question.id, question)
        if first.answer != question.answer:
            raise UserError(
                f"{name}: two answers, {first.answer!r} and {question.answer!r}, to the question {content!r:.200}"
            )
    return QuestionSet(
        name,
        list(questions.values()),
        scorer,
        {**(metadata or {}), "repeated": repeated},
        [*warnings, *[f"{name}: {counted(repeated, 'repeated question')} left out"] * bool(repeated)],
    )


def _as_text(question: Question) -> Question:
    if isinstance(question.content, str):
        return question
    if [message["role"] for message in question.content] != ["user"]:
        raise UserError(
            f"{question.data}: text prompts (--no-chat; in a recipe data.chat=false) need one user message a question, "
            f"got {question.content!r:.200}"
        )
    return replace(question, content=question.content[0]["content"])
