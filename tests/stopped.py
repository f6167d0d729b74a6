"""Runs of recipes that are stopped where they are, like a process that is killed."""

from pathlib import Path
from typing import Any

import pytest

from bandpo_runs import config
from bandpo_runs.training import on_trl


class Killed(BaseException):
    """Nothing catches it."""


def run(node: dict[str, Any], **options: Any) -> tuple[Path, list[str]]:
    """The folder of the run, and what was told."""
    notices: list[str] = []
    return on_trl.run(config.build(node), say=notices.append, **options), notices


def run_until(node: dict[str, Any], step: int, *, resume: bool = False, event: str = "on_step_end") -> Path:
    """Run, and stop for good when the event comes at that step. A step's row is written after it has ended."""
    handle = getattr(on_trl._Recorder, event)

    def stop(self: Any, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.global_step == step:
            raise Killed
        handle(self, args, state, control, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_trl._Recorder, event, stop)
        with pytest.raises(Killed):
            run(node, resume=resume)
    return Path(node["output"])
