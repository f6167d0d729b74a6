"""Limits of a stranger's recipe or model, and the places to which a run would send its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bandpo.errors import UserError, nearest

# What may stand in mappings whose keys go on to a loader or a sampler; with the values where these could name code. The
# keys of other mappings are those of a schedule, a chat template, or a plan of sharding.
_CHECKPOINTING = dict.fromkeys(["use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop"], ())
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
        ("temperature", "top_p", "top_k", "min_p", "typical_p", "do_sample", "repetition_penalty", "presence_penalty",
         "frequency_penalty", "length_penalty", "no_repeat_ngram_size", "suppress_tokens", "logit_bias", "bad_words",
         "bad_words_ids", "allowed_token_ids", "eos_token_id", "pad_token_id", "bos_token_id", "min_length",
         "min_new_tokens", "min_tokens", "max_new_tokens", "max_time", "stop", "stop_strings", "stop_token_ids",
         "include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "seed", "use_cache"), (),
    ),
}  # fmt: skip


def check_mappings(trainer: Mapping[str, Any]) -> None:
    """Refuse what could load code in the mappings among the trainer's settings.

    Raises:
        UserError: a key or a value that is not in `ALLOWED`.
    """
    for key, allowed in ALLOWED.items():
        for name, given in (trainer.get(key) or {}).items():
            if name not in allowed:
                known = f", which is {', '.join(allowed)}" if len(allowed) <= 8 else nearest(str(name), list(allowed))
                raise UserError(
                    f"trainer.{key}.{name} cannot be set, got {given!r}: only what can load no code is handed on{known}"
                )
            if allowed[name] and given not in allowed[name]:
                raise UserError(
                    f"trainer.{key}.{name} must be one of {', '.join(allowed[name])}, got {given!r}: bandpo runs no "
                    "code from a repository"
                )


def check_attention(config: Any) -> None:
    """Refuse the configuration of a model whose attention is a kernel of the hub: transformers would run its code.

    Raises:
        ValueError: it names such a kernel.
    """
    parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))]
    for part in parts:
        kernel = getattr(part, "_attn_implementation", None)
        if "/" in str(kernel):
            raise ValueError(
                f"its config.json has {kernel!r} as attn_implementation, a kernel of the Hugging Face hub, and bandpo "
                "runs no code from there; take it out"
            )


def sent_away(trainer: Mapping[str, Any]) -> list[str]:
    """Say what leaves this machine in training with these settings, and where it goes, as far as is known here."""
    sent: list[str] = []
    if trainer.get("push_to_hub"):
        name = trainer.get("hub_model_id") or "checkpoints in your account"
        private = trainer.get("hub_private_repo")
        seen = "public, unless the account says otherwise" if private is None else "private" if private else "public"
        when = "at the end" if trainer.get("hub_strategy") == "end" else "at every checkpoint and at the end"
        sent.append(f"the model to the Hugging Face hub, as {name} ({seen}; {when})")
    if trainer.get("log_completions") and (name := trainer.get("log_completions_hub_repo")):
        sent.append(f"the completions to the Hugging Face hub, as the data set {name}")
    given = trainer.get("report_to", "none")
    for name in given if isinstance(given, list) else [given]:
        if name not in ("none", None):
            space = trainer.get("trackio_space_id") if name == "trackio" else None
            to = "every tracker that is installed" if name == "all" else str(name)
            sent.append(f"the log to {to}" + (f" (space {space} of the Hugging Face hub)" if space else ""))
    for name, value in (trainer.get("deepspeed") or {}).items():
        if isinstance(value, Mapping) and value.get("enabled") and name in ("wandb", "comet", "tensorboard"):
            sent.append(f"the log to {name}, by DeepSpeed")
    if trainer.get("use_vllm") and trainer.get("vllm_mode") == "server":
        host, port = trainer.get("vllm_server_host", "0.0.0.0"), trainer.get("vllm_server_port", 8000)
        sent.append(f"prompts and weights to the vLLM server {trainer.get('vllm_server_base_url') or f'{host}:{port}'}")
    return sent
