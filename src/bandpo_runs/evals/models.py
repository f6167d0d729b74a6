"""Say which model is meant. It is a folder, a run, an id of the hub, or a name on a server."""

import hashlib
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from bandpo.errors import UserError

from ..config.run_folder import read_info


@dataclass(frozen=True)
class Model:
    """Describe a model to evaluate. `path` is for the back end, `name` for the folder, `label` for tables."""

    path: str
    name: str
    label: str
    data: str | None = None


def find_model(text: str, base_url: str | None = None) -> Model:
    """Find a model's folder, hub id or name on a server. A run stands for its model."""
    folder = Path(text)
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
    if not (folder / "config.json").is_file() or not [
        *folder.glob("*.safetensors"),
        *folder.glob("*model*.bin"),
    ]:
        raise UserError(
            f"{folder} holds no model (config.json and weights) or run (run.json){_of_verl(folder)}"
        )
    if (folder / "lora_adapter").is_dir() or (folder.parent / "lora_train_meta.json").is_file():
        raise UserError(  # verl's merger leaves it there, and its hf_model has names that are no model's
            f"{folder} holds a base's weights, and its LoRA apart; add that by peft's merge_and_unload, and save it in "
            "another folder"
        )
    return Model(text, folder.resolve().name, folder.resolve().name)


def _of_verl(folder: Path) -> str:
    """Name the command that makes a model of a checkpoint of verl's FSDP. It is empty for other folders."""
    steps = sorted(folder.glob("global_step_*/actor"), key=lambda actor: (len(str(actor)), actor))
    for actor in (folder, folder / "actor", folder.parent, *steps[-1:]):
        if (actor / "fsdp_config.json").is_file() and actor.name != "critic":
            return (
                "; it is a checkpoint of verl: make a model of it by python -m verl.model_merger merge --backend fsdp "
                f"--local_dir {shlex.quote(str(actor))} --target_dir MODEL, then bandpo eval MODEL --label NAME"
            )
    return ""


def weights_of(model: str) -> str | None:
    """Return an identity of a model's weights. It is the hub's revision or, of a folder, a hash of its files' ends."""
    folder = Path(model)
    if not folder.is_dir():
        from transformers import AutoConfig

        try:
            return getattr(
                AutoConfig.from_pretrained(model, trust_remote_code=False), "_commit_hash", None
            )
        except Exception as error:
            raise cannot_load(model, error) from error
    digest = hashlib.sha256()
    # Training changes every tensor.
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin"), folder / "config.json"]):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 2**20))
            digest.update(f"{path.name} {size} ".encode() + file.read())
    return digest.hexdigest()[:16]


def cannot_load(model: str, error: Exception) -> UserError:
    return UserError(f"model {model!r} cannot be loaded: {' '.join(str(error).split())}")
