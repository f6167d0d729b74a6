"""Limits of a stranger's recipe or model, and the places to which a run would send its data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bandpo.errors import UserError, nearest

_DTYPES = ("auto", "float32", "bfloat16", "float16")
# Without flash attention: where it is not installed, transformers downloads code for it.
_ATTENTION = ("eager", "sdpa", "flex_attention")
_CHECKPOINTING = ("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop")
# What may stand in the trainer's mappings whose keys go on to a loader or a sampler; with their values, where these
# could name code. The keys of others are those of a schedule, a chat template, or a plan of sharding.
ALLOWED: dict[str, Mapping[str, tuple[str, ...]]] = {
    "model_init_kwargs": {"dtype": _DTYPES, "attn_implementation": _ATTENTION},
    "activation_checkpointing_kwargs": dict.fromkeys(_CHECKPOINTING, ()),
    "gradient_checkpointing_kwargs": dict.fromkeys(_CHECKPOINTING, ()),
    "accelerator_config": dict.fromkeys(
        ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking",
         "gradient_accumulation_kwargs", "use_configured_state"), (),
    ),
    "transformers_continuous_batching_config": dict.fromkeys(
        ("page_size", "num_blocks", "max_batch_tokens", "max_memory_percent", "max_requests_per_batch",
         "max_blocks_per_request", "allow_block_sharing", "use_async_batching", "use_cuda_graph",
         "q_padding_interval_size", "kv_padding_interval_size", "scheduler_type", "safety_margin"), (),
    ),
    # Of transformers' GenerationConfig and vLLM's SamplingParams.
    "generation_kwargs": dict.fromkeys(
        ("temperature", "top_p", "top_k", "top_h", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "do_sample",
         "repetition_penalty", "presence_penalty", "frequency_penalty", "encoder_repetition_penalty",
         "length_penalty", "no_repeat_ngram_size", "num_beams", "guidance_scale", "renormalize_logits",
         "remove_invalid_values", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "logit_bias",
         "bad_words_ids", "bad_words", "allowed_token_ids", "structured_outputs", "forced_bos_token_id",
         "forced_eos_token_id", "eos_token_id", "pad_token_id", "bos_token_id", "min_length", "min_new_tokens",
         "min_tokens", "max_new_tokens", "max_time", "exponential_decay_length_penalty", "stop", "stop_strings",
         "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens",
         "spaces_between_special_tokens", "seed", "use_cache", "cache_implementation"), (),
    ),
}  # fmt: skip


def check_mapping(key: str, value: Any) -> None:
    """Refuse forbidden values in a mapping among the trainer's settings.

    Raises:
        UserError: text, which would be JSON or the name of a file, with settings that nothing has checked; or a key or
            a value that is not in `ALLOWED`.
    """
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise UserError(
            f"trainer.{key} must be a mapping of settings, got {value!r}; what JSON or a file has in it is written in "
            "the recipe itself, where it is checked and kept with the run"
        )
    allowed = ALLOWED.get(key, {})
    for name, given in value.items() if allowed else ():
        if name not in allowed:
            known = f", which is {', '.join(allowed)}" if len(allowed) <= 8 else ""
            known += nearest(str(name), list(allowed))
            raise UserError(
                f"trainer.{key}.{name} cannot be set, got {given!r}: only what can load no code is handed on{known}"
            )
        if allowed[name] and given not in allowed[name]:
            raise UserError(
                f"trainer.{key}.{name} must be one of {', '.join(allowed[name])}, got {given!r}: bandpo runs no code "
                "from a repository"
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
    trackers = [each for each in (given if isinstance(given, list) else [given]) if each not in ("none", None)]
    sent += [f"the log to {_tracker(str(name), trainer)}" for name in trackers]
    for name, value in (trainer.get("deepspeed") or {}).items():
        if isinstance(value, Mapping) and value.get("enabled") and name in ("wandb", "comet", "tensorboard"):
            sent.append(f"the log to {name}, by DeepSpeed")
    if trainer.get("use_vllm") and trainer.get("vllm_mode") == "server":
        host, port = trainer.get("vllm_server_host", "0.0.0.0"), trainer.get("vllm_server_port", 8000)
        sent.append(f"prompts and weights to the vLLM server {trainer.get('vllm_server_base_url') or f'{host}:{port}'}")
    return sent


def _tracker(name: str, trainer: Mapping[str, Any]) -> str:
    """Name a tracker, with the project, the account and the run if these are known."""
    if name == "all":
        return "every tracker that is installed"
    project = trainer.get("project") or "huggingface"
    facts: list[str | None] = []
    if name == "wandb":
        entity = os.environ.get("WANDB_ENTITY")
        facts = [f"project {os.environ.get('WANDB_PROJECT') or 'huggingface'}", entity and f"account {entity}"]
    elif name == "trackio":
        space = trainer.get("trackio_space_id")
        facts = [f"project {project}", space and f"space {space} of the Hugging Face hub"]
    elif name in ("mlflow", "dagshub"):
        facts = [os.environ.get("MLFLOW_TRACKING_URI")]
    elif name == "tensorboard":
        facts = ["files on this machine"]
    run = trainer.get("run_name")
    told = ", ".join(fact for fact in (*facts, run and f"run {run}") if fact)
    return f"{name} ({told})" if told else name
