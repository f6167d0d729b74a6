"""Read the folder of a run: `run.json`, what ran, and `config.yaml`, the settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pydantic
import yaml
from typing_extensions import TypedDict

from bandpo.errors import UserError

from ..files.reading import checked, read_json, read_yaml
from ..files.writing import check_own
from .recipe import RunConfig, leaves

_MORE = pydantic.ConfigDict(extra="allow", allow_inf_nan=False)
_Count = Annotated[int, pydantic.Field(ge=0, lt=2**53)]


class Info(TypedDict):
    """Hold the fields of run.json that are used."""

    __pydantic_config__ = _MORE  # pyright: ignore[reportGeneralTypeIssues]
    label: str
    seed: _Count
    finished: bool
    learning_rate: float | None
    scene: NotRequired[str | None]
    rounds: NotRequired[_Count | None]
    steps_per_round: NotRequired[_Count | None]
    wall_seconds: NotRequired[float | None]
    command: NotRequired[str | None]
    data: NotRequired[dict[str, str]]  # SHA-256 of each file of the data, or of rows from elsewhere
    stopped: NotRequired[str | None]  # why, where numbers that are not finite ended it


def read_info(folder: Path) -> Info:
    """Read the run.json of a run's folder."""
    return read_json(folder / "run.json", Info)


def check_same_run(folder: Path, config: RunConfig) -> None:
    """Check that a folder holds a run of this configuration. `output` may differ. Raises UserError."""
    path = folder / "config.yaml"
    if not path.exists():
        how = "put it back" if (folder / "run.json").exists() else "start one without --resume"
        raise UserError(f"{folder} holds no run to resume (no config.yaml); {how}")
    stored = dict(leaves(checked(read_yaml(path), dict[str, Any], str(path))))
    now = dict(leaves(yaml.safe_load(config.to_yaml())))
    compared = {*stored, *now} - {"output", "stop_if_not_finite"}
    different = sorted(key for key in compared if stored.get(key, {}) != now.get(key, {}))
    if different:
        raise UserError(
            f"{folder} was started with other settings ({', '.join(different)}); resume with the same ones"
        )


def check_same_data(folder: Path, now: Mapping[str, str]) -> None:
    """Check that a run's data are those of its start. Raises UserError for others."""
    before = read_info(folder).get("data", {}) if (folder / "run.json").exists() else now
    different = ", ".join(sorted(name for name in {*before, *now} if before.get(name) != now.get(name)))
    if different:
        raise UserError(
            f"{different} changed since {folder} was started, so it would go on as another training; put back what was "
            f"there, or begin another run, with model={folder}/checkpoints/checkpoint-STEP and another output"
        )


def check_free(folder: Path) -> None:
    """Check that a folder holds no run yet, and nothing else that was written here. Raises UserError."""
    if (folder / "run.json").exists() or (folder / "metrics.jsonl").exists():
        instead = ", which is finished;" if is_finished(folder) else "; continue it with --resume, or"
        raise UserError(f"{folder} already holds a run{instead} choose another output")
    check_own(folder)


def is_finished(folder: Path) -> bool:
    """Check that the folder holds a finished run."""
    return (folder / "run.json").exists() and read_info(folder)["finished"]
