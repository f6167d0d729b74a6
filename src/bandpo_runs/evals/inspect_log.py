"""Write an evaluation as logs of inspect_ai. Its viewer opens them: `inspect view --log-dir FOLDER`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bandpo.errors import UserError

from ..data.questions import Question
from ..files.writing import check_own
from .folder import read_graded, read_metadata, read_questions, read_samples
from .samples import Sample

_STOPS = {"stop": "stop", "length": "max_tokens", "content_filter": "content_filter"}


def write_inspect(folder: Path, to: Path, scorer: str, ks: Sequence[int] = ()) -> Iterator[Path]:
    """Write a log of each data set of an evaluation folder, and yield its path.

    A sample is an epoch of its question. So its reducer `mean` gives mean@n, and `pass_at_k` pass@k, for n and `ks`.

    Raises:
        UserError: inspect_ai is not installed, or the evaluation is not finished, not graded, or damaged.
    """
    try:
        from inspect_ai.log import (  # pyright: ignore[reportMissingImports]
            EvalLog,
            recompute_metrics,
            write_eval_log,
        )
    except ImportError:
        raise UserError("--inspect needs the package inspect_ai: pip install 'bandpo[inspect]'") from None
    check_own(to)
    metadata: Mapping[str, Any] = read_metadata(folder)
    questions, samples, n = read_questions(folder, metadata), read_samples(folder), metadata["sampling"]["n"]
    named = ("temperature", "top_p", "top_k", "max_tokens", "seed")
    began = datetime.fromisoformat(metadata.get("started", "1970-01-01T00:00:00+00:00"))
    for graded in read_graded(folder, scorer):
        own = [question for question in questions if question.data == graded.data]
        spec = {
            "created": began, "task": graded.data, "model": metadata["model"],
            "dataset": {"name": graded.data, "samples": len(own), "sample_ids": [*range(1, len(own) + 1)]},
            "config": {"epochs": n, "epochs_reducer": ["mean", *(f"pass_at_{k}" for k in ks or [n] if k > 1)]},
            "model_generate_config": {
                name: value
                for name, value in metadata["sampling"].items()
                if name in named and value not in (None, -1)
            },
            "metadata": {"label": metadata["label"]},
        }  # fmt: skip
        rows = [_row(s, own[s.prompt], graded, scorer, metadata["model"]) for s in samples if s.data == graded.data]
        used = sum(sample.tokens or 0 for sample in samples if sample.data == graded.data)
        usage = {metadata["model"]: {"output_tokens": used, "total_tokens": used}} if used else {}
        log = EvalLog.model_validate(
            {
                "status": "success",
                "eval": spec,
                "samples": rows,
                "stats": {
                    "started_at": began,
                    "completed_at": began + timedelta(seconds=metadata.get("wall_seconds", 0.0)),
                    "model_usage": usage,
                },
            }
        )
        recompute_metrics(log)
        path = to / (re.sub(r"[^\w.@+-]+", "-", f"{metadata['label']}_{graded.data}") + ".eval")
        write_eval_log(log, str(path))
        yield path


def _row(sample: Sample, question: Question, graded: Any, scorer: str, model: str) -> dict[str, Any]:
    at, content = (sample.prompt, sample.sample), question.content
    parts = [{"type": "reasoning", "reasoning": sample.reasoning}, {"type": "text", "text": sample.text}]
    answer = {"role": "assistant", "content": parts if sample.reasoning else sample.text, "source": "generate"}
    choice = {"message": answer, "stop_reason": _STOPS.get(sample.finish, "unknown")}
    messages: Sequence[Any] = content if isinstance(content, list) else [{"role": "user", "content": content}]
    usage = None if sample.tokens is None else {"output_tokens": sample.tokens, "total_tokens": sample.tokens}
    return {
        "id": sample.prompt + 1, "epoch": sample.sample + 1, "input": content, "target": question.answer,
        "messages": [*messages, answer],
        "scores": {
            scorer: {
                "value": "C" if graded.score[at] else "I", "answer": graded.answers[at],
                "explanation": graded.status[at],
            }
        },
        "output": {"model": model, "choices": [choice], "error": sample.error, "usage": usage},
        "model_usage": {model: usage} if usage else {},
    }  # fmt: skip
