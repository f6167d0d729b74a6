"""Find the weights in a checkpoint of verl. Those that lie in parts are for verl's own merger."""

import re
import shlex
from pathlib import Path

from bandpo.errors import UserError

from ..progress import console

_MERGER = ("python", "-m", "verl.model_merger", "merge", "--backend", "fsdp", "--local_dir")
_CONFIG = "fsdp_config.json"
_STOPPED = "verl was stopped while it wrote, or the copy is not whole; is there an earlier step?"


def find_actor(folder: Path) -> tuple[str, str, str] | None:
    """Find the actor in a checkpoint of verl. Return its folder, and names for a folder and for tables.

    `folder` is of an experiment, whose newest step is taken and named, of a step, of its actor, or the `huggingface` in
    it. Raises UserError for a step without an actor of FSDP.
    """
    folder = _newest(folder) or folder
    places = (folder / "actor", folder, folder.parent if folder.name == "huggingface" else folder)
    actor = next((at for at in places if at.name != "critic" and (at / _CONFIG).is_file()), None)
    at = (actor or folder).resolve()
    step = next((each for each in (at, at.parent) if each.name.startswith("global_step_")), None)
    if actor is None:
        if step is None or (folder / "config.json").is_file():
            return None
        raise UserError(f"{folder} holds no actor of verl's FSDP (no {_CONFIG}): {_STOPPED}")
    if step is None:
        return str(actor), at.name, at.name
    project, run, number = (
        step.parent.parent.name,
        step.parent.name,
        step.name.removeprefix("global_step_"),
    )
    label = re.sub(r"-seed\d+$", "", run)  # in a table they are runs of one method
    return str(actor), f"{project}/{run}-{number}", f"{project} / {label}, step {number}"


def _newest(run: Path) -> Path | None:
    """Return the last step that verl finished, or else the highest. Say which it is."""
    steps = [at.name.removeprefix("global_step_") for at in run.glob("global_step_*") if at.is_dir()]
    steps = sorted(filter(str.isdecimal, steps), key=int)
    if not steps:
        return None
    last = run / "latest_checkpointed_iteration.txt"  # verl writes it after a step
    finished = last.read_text(errors="replace").strip() if last.is_file() else None
    step = finished if finished in steps else steps[-1]
    doubt = (
        ""
        if step == finished
        else f"; {last.name} is missing or names another, so verl may not have finished it"
    )
    console.print(f"step {step} is the newest of {len(steps)} in {run}{doubt}", soft_wrap=True)
    return run / f"global_step_{step}"


def whole_weights(model: str) -> str:
    """Return the folder of an actor's whole weights; another model as it is.

    Raises UserError where the weights lie in parts; it names the command of verl that makes a model of them.
    """
    actor = Path(model)
    own = actor / "huggingface"
    if not (actor / _CONFIG).is_file():
        return model
    lora = (actor / "lora_train_meta.json").is_file()  # the names in verl's hf_model are then no model's
    if not lora and any((own / f"model.safetensors{end}").is_file() for end in ("", ".index.json")):
        return str(own)
    command = shlex.join([*_MERGER, model, "--target_dir", str(own)])
    then = f"; add {own}/lora_adapter to it by peft's merge_and_unload, and give the folder of both"
    raise UserError(
        f"{actor} has its weights in parts. Where verl is installed, this makes a model of them: {command}{then * lora}"
    )
