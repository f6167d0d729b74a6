"""Define inputs and outputs of every back end, and what some of them share."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bandpo.errors import UserError

from ...data.questions import Content


@dataclass(frozen=True)
class Request:
    """Describe one sample to generate; `key` is the caller's."""

    key: Any
    content: Content
    seed: int


@dataclass(frozen=True)
class Completion:
    """Hold the outcome of a request; the fields are those of `samples.Sample`."""

    text: str
    tokens: int | None
    finish: str
    reasoning: str | None = None
    error: str | None = None


Keep = Callable[[Request, Completion], None]


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
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin"), *folder.glob("config.json")])
    for path in files:  # training changes every tensor
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 2**20))
            digest.update(f"{path.name} {size} ".encode() + file.read())
    return digest.hexdigest()[:16] if files else None


def cannot_load(model: str, error: Exception) -> UserError:
    return UserError(f"model {model!r} cannot be loaded: {' '.join(str(error).split())}")


def opens_thinking(content: Content, tokenizer: Any) -> bool:
    """Check that a prompt ends with an open thinking block, as the model sees it. False without a chat template."""
    if not isinstance(content, str):
        if tokenizer is None or tokenizer.chat_template is None:
            return False
        content = str(tokenizer.apply_chat_template(content, tokenize=False, add_generation_prompt=True))
    return content.rstrip().endswith(("<think>", "[THINK]"))


def token_ids(tokenizer: Any, content: Content, model: str) -> list[int]:
    """Return a prompt as tokens. Messages go through the model's chat template, text as it is (as TRL in training)."""
    if isinstance(content, str):
        ids = tokenizer(content)["input_ids"]
    elif tokenizer.chat_template is not None:
        ids = tokenizer.apply_chat_template(content, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
    else:
        raise UserError(
            f"the tokenizer of {model!r} has no chat template; --no-chat sends the messages' text as it is"
        )
    if not ids:
        raise UserError(f"the tokenizer of {model!r} makes no token of {content!r}; are its files there?")
    return list(ids)
