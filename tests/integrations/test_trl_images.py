"""A tiny LLaVA that is trained on images: under `Clip` by BandPOTrainer to the weights of GRPOTrainer, bit for bit."""

import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset
from PIL import Image
from test_trl import Recording, policy_losses, same_weights
from tokenizers import Tokenizer, models, pre_tokenizers
from trl import GRPOConfig, GRPOTrainer

import tiny
from bandpo import Band, Clip, Objective
from bandpo.integrations.trl import BandPOTrainer

pytestmark = pytest.mark.slow
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "[UNK]"]
WORDS = [*SPECIAL, "user", "assistant", "a", "b", "c", "d", "what", "is", "this"]
TEMPLATE = """{% for m in messages %}<|im_start|> {{ m.role }} {% if m.content is string %}{{ m.content }}{% else %}
{% for c in m.content %}{{ '<image>' if c.type == 'image' else c.text }} {% endfor %}{% endif %}<|im_end|>{% endfor %}
{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"""


def processor():
    """Words as tokens, and images of 28 x 28 in four patches."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessorPil(
            size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}
        ),
        tokenizer=transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            eos_token="<|im_end|>",
            pad_token="<|endoftext|>",
            unk_token="[UNK]",
            additional_special_tokens=["<|im_start|>", "<image>"],
            padding_side="left",
        ),
        patch_size=14,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE.replace("\n", ""),
        image_token="<image>",
        num_additional_image_tokens=1,
    )


def model():
    """One layer of a language model, with large weights, behind two of a vision model."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    more = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0, "max_position_embeddings": 64}
    text = transformers.Qwen2Config(
        vocab_size=len(WORDS), num_hidden_layers=1, num_key_value_heads=2, initializer_range=0.3, **sizes, **more
    )
    vision = transformers.CLIPVisionConfig(num_hidden_layers=2, image_size=28, patch_size=14, **sizes)
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=3, vision_feature_layer=-2
    )
    return transformers.LlavaForConditionalGeneration(config).float()


def rows():
    """Sixteen images of two sizes, each with the same question."""
    pixels = np.random.default_rng(0)
    sizes = [(28 * (1 + i % 2), 56, 3) for i in range(16)]
    question = [{"role": "user", "content": "what is this"}]
    images = [Image.fromarray(pixels.integers(0, 255, size, dtype=np.uint8)) for size in sizes]
    return Dataset.from_list([{"prompt": question, "image": image} for image in images])


def reward(completions, **columns):
    words = [str(each[0]["content"]).split() for each in completions]
    return [each.count("a") + len(each) / 10 for each in words]


def trained(folder, rule, ours=BandPOTrainer, **changes):
    sizes = {"per_device_train_batch_size": 8, "num_generations": 4, "steps_per_generation": 2, "max_steps": 4}
    args = tiny.settings(folder, GRPOConfig, **sizes | {"max_completion_length": 5} | changes)
    named = {"reward_funcs": reward, "args": args, "train_dataset": rows(), "processing_class": processor()}
    trainer = GRPOTrainer(model(), **named) if rule is None else ours(model(), **named, trust_region=rule)
    trainer.train()
    return trainer


@pytest.mark.parametrize("changes", [{}, {"loss_type": "grpo", "gradient_accumulation_steps": 2}], ids=str)
def test_clip_trains_to_trls_weights_bit_for_bit(tmp_path, changes):
    if changes:
        changes = changes | {"steps_per_generation": 4}
    rules = (None, Clip(0.2, 0.2), Band("kl", 0.05), Objective(Band("kl", 0.05), dual_clip=3.0))
    theirs, clip, *others = (trained(tmp_path, rule, **changes) for rule in rules)
    clipped = [row["clip_ratio/region_mean"] for row in theirs.state.log_history if "loss" in row]
    assert max(clipped) > 0.02
    assert [same_weights(theirs, ours) for ours in (clip, *others)] == [True, False, False]


def test_band_is_policy_loss(tmp_path):
    region, clipped = Band("kl", 0.001), []
    trainer = trained(tmp_path, region, Recording, loss_type="bnpo")
    for record in trainer.records:
        theirs, ours, metrics = policy_losses(trainer, record, Objective(region))
        torch.testing.assert_close(theirs, ours)
        clipped.append(metrics.compute()["clip/fraction"])
    assert len(clipped) == 4
    assert max(clipped) > 0.02
