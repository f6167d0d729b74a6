"""Limit a stranger's recipe or model. No code runs, no secret is shown, and what is sent is said."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from bandpo.errors import UserError, nearest

# What may stand in mappings whose keys go on to a loader or a sampler; with the values where these could name code. The
# keys of other mappings are those of a schedule, a chat template, or a plan of sharding.
_CHECKPOINTING = dict.fromkeys(
    ["use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop"], ()
)
ALLOWED: dict[str, dict[str, tuple[str, ...]]] = {
    "model_init_kwargs": {
        "dtype": ("auto", "float32", "bfloat16", "float16"),
        # Without flash attention: where it is not installed, transformers downloads code for it.
        "attn_implementation": ("eager", "sdpa", "flex_attention"),
    },
    "activation_checkpointing_kwargs": _CHECKPOINTING,
    "gradient_checkpointing_kwargs": _CHECKPOINTING,
    "accelerator_config": dict.fromkeys(
        ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking"), ()
    ),
    "transformers_continuous_batching_config": {},
    "generation_kwargs": dict.fromkeys(  # of transformers' GenerationConfig and vLLM's SamplingParams
        (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "typical_p",
            "do_sample",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
            "length_penalty",
            "no_repeat_ngram_size",
            "suppress_tokens",
            "logit_bias",
            "bad_words",
            "bad_words_ids",
            "allowed_token_ids",
            "eos_token_id",
            "pad_token_id",
            "bos_token_id",
            "min_length",
            "min_new_tokens",
            "min_tokens",
            "max_new_tokens",
            "max_time",
            "stop",
            "stop_strings",
            "stop_token_ids",
            "include_stop_str_in_output",
            "ignore_eos",
            "skip_special_tokens",
            "seed",
            "use_cache",
        ),
        (),
    ),
}


def check_mappings(trainer: Mapping[str, Any]) -> None:
    """Check the trainer's mappings. Raises UserError for a key or a value that is not in `ALLOWED`."""
    for key, allowed in ALLOWED.items():
        for name, value in (trainer.get(key) or {}).items():
            if name not in allowed:
                raise UserError(
                    f"trainer.{key}.{name} cannot be set, got {value!r}: it could load code"
                    f"{nearest(str(name), list(allowed))}"
                )
            if allowed[name] and value not in allowed[name]:
                raise UserError(
                    f"trainer.{key}.{name} must be one of {', '.join(allowed[name])}, got {value!r}"
                )


def check_attention(config: Any) -> None:
    """Refuse a model whose attention is a kernel of the hub. transformers would run its code. Raises ValueError."""
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        kernel = getattr(part, "_attn_implementation", None)
        if "/" in str(kernel):
            raise ValueError(
                f"its config.json has {kernel!r} as attn_implementation, a kernel of the Hugging Face hub, and bandpo "
                "runs no code from there; take it out"
            )


# Settings with which a run sends its data, its weights or its log to other machines.
_SENDING = (
    "push_to_hub",
    "hub_model_id",
    "report_to",
    "log_completions_hub_repo",
    "trackio_space_id",
    "vllm_server_host",
    "vllm_server_base_url",
)


def sent_away(trainer: Mapping[str, Any]) -> list[str]:
    """Return the settings with which a run may send data to other machines."""
    return [
        f"{key}={trainer[key]}"
        for key in _SENDING
        if trainer.get(key) not in (None, False, [], "none", ["none"])
    ]


# eos_token and pad_token are none.
_CLEARLY = r"(?:hub|auth|access|api|bearer)_token|api_?key|access_?key|secret(?:_?key)?|passw(?:or)?d"
_NAME = rf"(?:(?:[\w.-]*[._-])?(?:{_CLEARLY})|(?:[\w.]*\.)?token)"
_SECRET = re.compile(_NAME, re.I)
# key=value in a command, and what a URL has before its @.
_IN_TEXT = re.compile(rf"((?<![\w.-]){_NAME}\s*[=:]\s*)[^\s'\",}}]+|(?<=://)[^/\s]+(?=@)", re.I)


def secret_in(settings: Iterable[tuple[str, Any]]) -> str | None:
    """Return the first setting that looks like a secret.

    It does by its name, or as a URL with a password.
    """
    for name, value in settings:
        is_secret = _SECRET.fullmatch(name.rpartition(".")[2]) or re.search(r"://[^/\s]+@", str(value))
        if isinstance(value, str) and value and is_secret:
            return name
    return None


def blanked(node: Any) -> Any:
    """Replace what looks like a secret by ***, for pages and files that others read."""
    if isinstance(node, Mapping):
        return {
            key: "***"
            if isinstance(value, str) and value and _SECRET.fullmatch(str(key))
            else blanked(value)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [blanked(each) for each in node]
    return _IN_TEXT.sub(lambda match: f"{match[1] or ''}***", node) if isinstance(node, str) else node
