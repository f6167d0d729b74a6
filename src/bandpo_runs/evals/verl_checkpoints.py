"""Find the weights in a checkpoint of verl. Those that lie in parts are merged by verl's own merger."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from bandpo.errors import UserError

from ..files.locks import locked
from ..files.reading import read_json
from ..files.writing import write_atomically
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

    Parts are merged once, into a folder beside them that is there whole or not at all, and anew where they have
    changed. Raises UserError where one is missing or cut off, verl is not installed, or its merger fails.
    """
    actor, merged = Path(model), Path(model) / "merged_by_bandpo"
    own, mark = actor / "huggingface", merged / "made_from.txt"
    if not (actor / _CONFIG).is_file():
        return model
    lora = (actor / "lora_train_meta.json").is_file()  # the names in verl's hf_model are then no model's
    if not lora and any((own / f"model.safetensors{end}").is_file() for end in ("", ".index.json")):
        return str(own)
    ranks = read_json(actor / _CONFIG, dict[str, int]).get("world_size", 0)
    parts = [actor / f"model_world_size_{ranks}_rank_{rank}.pt" for rank in range(ranks)]
    broken = [part for part in parts if not zipfile.is_zipfile(part)]
    if broken:
        raise UserError(f"{broken[0]} is missing or cut off: {_STOPPED}")
    sums = "\n".join(
        f"{part.name} {entry.CRC:08x}" for part in parts for entry in zipfile.ZipFile(part).infolist()
    )
    if not mark.is_file() or mark.read_text() != sums:
        if importlib.util.find_spec("verl") is None:
            raise UserError(
                f"{actor} has its weights in parts, and verl is not installed here. Where it is, run "
                + (
                    "this command again"
                    if lora
                    else shlex.join([*_MERGER, model, "--target_dir", str(own)])
                )
            )
        with locked(actor / ".merge.lock", waiting=console.print):
            if not mark.is_file() or mark.read_text() != sums:
                _merge(actor, merged, mark.name, sums)
    console.print(f"weights: {merged}", soft_wrap=True)
    return str(merged)


def _merge(actor: Path, merged: Path, mark: str, sums: str) -> None:
    for left in actor.glob(".merged-*"):
        shutil.rmtree(left)
    console.print(f"merging the parts of {actor} by verl's merger ...", soft_wrap=True)
    began = time.monotonic()
    # The merger of one that was killed may still write to its own.
    new = actor / f".merged-{time.time_ns()}"
    command = [*_MERGER, str(actor), "--target_dir", str(new)]
    try:
        done = subprocess.run([sys.executable, *command[1:]], capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(
                f"verl's merger ended with code {done.returncode}: "
                f"{(done.stderr.strip().splitlines() or ['no message'])[-1]}; by {shlex.join(command)}"
            )
        adapter = new / "lora_adapter"
        if adapter.is_dir():  # beside the weights of the base
            from transformers import AutoModelForCausalLM

            model = AutoModelForCausalLM.from_pretrained(new, dtype="float32")
            model = (
                importlib.import_module("peft")
                .PeftModel.from_pretrained(model, adapter)
                .merge_and_unload()
            )
            model.save_pretrained(new)
            shutil.rmtree(adapter)
        write_atomically(new / mark, sums.encode())
        shutil.rmtree(merged, ignore_errors=True)  # of other parts
        new.rename(merged)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    console.print(f"merged in {time.monotonic() - began:.0f} s", soft_wrap=True)
