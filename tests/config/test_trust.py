"""What a recipe hands on to libraries, what a model of a stranger may name, and where a run would send its data."""

import pytest
import recipe
from transformers import Qwen2Config, Qwen2VLConfig

from bandpo.errors import UserError
from bandpo.integrations.trl import BandPOConfig
from bandpo_runs.config.recipe import build
from bandpo_runs.config.trust import ALLOWED, check_attention, sent_away

TEXTS = ("model_init_kwargs", "generation_kwargs", "chat_template_kwargs", "accelerator_config", "deepspeed",
         "fsdp_config", "lr_scheduler_kwargs", "gradient_checkpointing_kwargs", "liger_kernel_config",
         "activation_checkpointing_kwargs", "transformers_continuous_batching_config")  # fmt: skip


@pytest.fixture
def node(tmp_path):
    return recipe.node(tmp_path, tmp_path / "run")


def test_the_mappings_of_the_trainer_are_these():
    """Those that take text as well, which TRL reads as JSON or as the name of a file: a new one is met here first."""
    hints = {key: str(field.type) for key, field in BandPOConfig.__dataclass_fields__.items()}
    assert {key for key, hint in hints.items() if "dict" in hint} - {"trust_region"} == set(TEXTS)
    assert set(ALLOWED) <= set(TEXTS)


@pytest.mark.parametrize("key", TEXTS)
def test_a_mapping_of_the_trainer_is_no_text(node, key):
    """As text nothing would have checked it: '{"trust_remote_code": true}' ran the code of a model's folder."""
    for text in ('{"trust_remote_code": true}', "settings.json"):
        node["trainer"][key] = text
        with pytest.raises(UserError) as caught:
            build(node)
        assert str(caught.value) == f"trainer.{key}: Input should be a valid dictionary, got {text!r}"
    node["trainer"][key] = None
    assert build(node).trainer[key] is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_init_kwargs", {"trust_remote_code": True},
         "trainer.model_init_kwargs.trust_remote_code cannot be set, got True: it could load code"),
        ("model_init_kwargs", {"dtype": "float32", "use_kernels": True}, "model_init_kwargs.use_kernels cannot be set"),
        ("model_init_kwargs", {"attn_implementation": "kernels-community/flash-attn2"},
         "trainer.model_init_kwargs.attn_implementation must be one of eager, sdpa, flex_attention, got "
         "'kernels-community/flash-attn2'"),
        ("model_init_kwargs", {"attn_implementation": {"": "evil/kernel"}}, "attn_implementation must be one of eager"),
        ("model_init_kwargs", {"dtype": ["float32"]}, "dtype must be one of auto, float32, bfloat16, float16, got ['f"),
        ("generation_kwargs", {"custom_generate": "evil/repository"},
         "trainer.generation_kwargs.custom_generate cannot be set, got 'evil/repository'"),
        ("generation_kwargs", {"top_pp": 0.9}, "it could load code, did you mean 'top_p'?"),
        ("accelerator_config", {"splitbatches": True}, "cannot be set, got True: it could load code"),
        ("gradient_checkpointing_kwargs", {"context_fn": "evil:f"}, "context_fn cannot be set"),
        ("transformers_continuous_batching_config", {"page_size": 1}, "page_size cannot be set"),
    ],
)  # fmt: skip
def test_what_could_load_code_is_handed_on_to_no_library(node, key, value, message):
    node["trainer"][key] = value
    with pytest.raises(UserError) as caught:
        build(node)
    assert message in str(caught.value)


def test_what_is_harmless_is_handed_on(node):
    passed = {
        "model_init_kwargs": {"dtype": "bfloat16", "attn_implementation": "eager"},
        "generation_kwargs": {"top_k": 5, "seed": 1},
        "accelerator_config": {"even_batches": False},
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "chat_template_kwargs": {"enable_thinking": False},
        "lr_scheduler_kwargs": {"min_lr": 1e-7},
    }
    node["trainer"] |= passed
    assert build(node).trainer.items() >= passed.items()


@pytest.mark.parametrize(
    ("trainer", "sent"),
    [
        ({}, []),
        ({"report_to": "none", "push_to_hub": False}, []),
        ({"report_to": None, "vllm_mode": "server"}, []),
        ({"push_to_hub": True, "hub_model_id": "evil/x", "report_to": ["wandb"]},
         ["push_to_hub=True", "hub_model_id=evil/x", "report_to=['wandb']"]),
        ({"log_completions_hub_repo": "evil/c"}, ["log_completions_hub_repo=evil/c"]),
        ({"vllm_server_base_url": "http://evil:1"}, ["vllm_server_base_url=http://evil:1"]),
    ],
)  # fmt: skip
def test_settings_that_send_data_away_are_listed(node, trainer, sent):
    node["trainer"] |= trainer
    assert sent_away(build(node).trainer) == sent


def test_a_kernel_of_the_hub_is_not_loaded_for_a_model():
    for name in (None, "eager", "sdpa", "flash_attention_2"):
        check_attention(Qwen2Config(attn_implementation=name))
    kernel = "evil/kernel@main:f"
    of_a_part = Qwen2VLConfig(attn_implementation={"text_config": kernel})
    for config in (Qwen2Config(attn_implementation=kernel), of_a_part):
        with pytest.raises(ValueError, match=rf"config\.json has '{kernel}' as attn_implementation, a kernel of"):
            check_attention(config)
