"""bandpo_runs/training/shared_prompts.py: its sampling and its log-probabilities against TRL's and transformers'."""

from types import SimpleNamespace

import pytest
import recipe
import torch
from datasets import Dataset
from peft import LoraConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import tiny
from bandpo.integrations.trl import BandPOConfig, BandPOTrainer
from bandpo_runs import toy
from bandpo_runs.training.shared_prompts import SharedPrompts, sample, why_not


def settings(folder, **changes):
    ours = {
        "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 6, "steps_per_generation": 2,
        "use_cpu": True, "bf16": False, "report_to": "none", "activation_checkpointing": False, "temperature": 0.7,
    }  # fmt: skip
    return BandPOConfig(str(folder / "out"), **{**ours, **changes})


@pytest.fixture(params=["clip:0.2:0.2", "weighted-clip"])
def trainer(tmp_path, request):
    recipe.make(tmp_path)
    rows, model = Dataset.from_list(toy.prompts(4, seed=0)), str(tmp_path / "model")
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False) if request.param == "lora" else None
    rule = "band:kl:0.05" if lora else request.param
    return SharedPrompts(model, recipe.share_of_even, settings(tmp_path), rows, trust_region=rule, peft_config=lora)


def batch():
    """Return prompts of two lengths that begin alike, each twice or more, with answers of all lengths."""
    draw = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 10, (3, 5), generator=draw)
    prompts[:, :3] = prompts[0, :3]
    prompts = prompts[[2, 0, 1, 1, 0, 2, 2, 0]]
    answers = torch.randint(0, 10, (8, 6), generator=draw)
    lengths = torch.tensor([1, 6, 2, 3, 1, 4, 2, 1])
    prompt_mask = (torch.arange(5) >= torch.tensor([0, 1, 0, 0, 1, 0, 0, 1])[:, None]).long()  # padded on the left
    return prompts * prompt_mask, prompt_mask, answers, (torch.arange(6) < lengths[:, None]).long()


@pytest.mark.parametrize("trainer", ["clip:0.2:0.2", "weighted-clip", "lora"], indirect=True)
def test_answers_that_share_prompts_have_trls_loss_and_gradient(trainer):
    prompts, prompt_mask, answers, mask = batch()
    old = -torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)) * 3
    inputs = {
        "prompt_ids": prompts, "prompt_mask": prompt_mask, "completion_ids": answers, "completion_mask": mask,
        "old_per_token_logps": old, "drawn_logps": old, "drawn_entropies": torch.rand(mask.shape),
        "num_items_in_batch": mask.sum(), "advantages": torch.tensor([1.0, 0.0, -0.5, 2.0, 0.0, 0.3, 0.0, -1.0]),
    }  # fmt: skip
    results = []
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    for kind in (BandPOTrainer, SharedPrompts):
        trainer.__class__ = kind
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        gradients = {name: x.grad.clone() for name, x in trainer.model.named_parameters() if x.grad is not None}
        results.append((loss.detach(), gradients))
    (loss, grads), (our_loss, our_grads) = results
    largest = max(float(x.abs().max()) for x in grads.values())
    assert (float(loss), largest > 1e-3) == (pytest.approx(float(our_loss), abs=1e-6), True)
    assert our_grads.keys() == grads.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(our_grads[name], grad, rtol=0, atol=1e-5 * largest, msg=name)
    nothing = inputs | {"advantages": torch.zeros(8)}
    trainer.model.zero_grad()
    trainer.compute_loss(trainer.model, nothing).backward()
    assert all(not x.grad.any() for x in trainer.model.parameters() if x.grad is not None)


def test_old_log_probabilities_and_entropies_are_the_samplers(trainer):
    torch.manual_seed(0)
    trainer.model.train()
    rows = [trainer.train_dataset[i // 4] for i in range(8)]
    rows[4:] = [{**row, "prompt": f"{row['prompt']} {row['prompt']}"} for row in rows[4:]]
    out = trainer._generate_and_score_completions(rows)
    mask, prompts = out["completion_mask"], out["prompt_ids"]
    ids, attention = torch.cat((prompts, out["completion_ids"]), 1), torch.cat((out["prompt_mask"], mask), 1)
    logps, entropies, _ = GRPOTrainer._get_per_token_logps_and_entropies(
        trainer, trainer.model, ids, attention, mask.shape[1], compute_entropy=True
    )
    lengths = [{*each.sum(1).tolist()} for each in (out["prompt_mask"], mask)]
    assert (len(lengths[0]), len(lengths[1]) > 1) == (2, True)
    torch.testing.assert_close(out["old_per_token_logps"] * mask, logps.detach() * mask, rtol=0, atol=1e-5)
    torch.testing.assert_close(out["drawn_entropies"] * mask, entropies.detach() * mask, rtol=0, atol=1e-5)


def test_tokens_are_drawn_with_the_models_probabilities(trainer):
    prompt = batch()[0][0]
    torch.manual_seed(0)
    answers, logps, _ = sample(trainer.model, [prompt.tolist()] * 20_000, [-1], 2, temperature=0.7)
    for prefix in ([], [3]):
        of_prefix = [i for i, x in enumerate(answers) if x[: len(prefix)] == prefix]
        drawn = torch.tensor([answers[i][len(prefix)] for i in of_prefix])
        with torch.no_grad():
            logits = trainer.model(torch.cat((prompt, torch.tensor(prefix, dtype=torch.long)))[None]).logits
        chances = (logits[0, -1] / 0.7).softmax(-1)
        shares = drawn.bincount(minlength=len(chances)) / len(drawn)
        assert len(drawn) > 500
        assert ((shares - chances).abs() < 5 * (chances / len(drawn)).sqrt()).all()
        drawn_logps = torch.stack([logps[i][len(prefix)] for i in of_prefix[:50]])
        torch.testing.assert_close(drawn_logps, chances.log()[drawn[:50]], rtol=0, atol=1e-5)


def test_an_answer_ends_with_an_end(trainer):
    torch.manual_seed(0)
    answers, logps, entropies = sample(trainer.model, [[1, 2, 3]] * 200, [4, 7], 6)
    assert all(set(answer[:-1]).isdisjoint({4, 7}) for answer in answers)
    assert {answer[-1] for answer in answers if len(answer) < 6} == {4, 7}
    assert [*map(len, answers)] == [*map(len, logps)] == [*map(len, entropies)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"beta": 0.1}, "beta"),
        ({"top_k": 5}, "top_k"),
        ({"generation_kwargs": {"min_p": 0.1}}, "generation_kwargs"),
        ({"bf16": True}, "half precision"),
        ({"activation_checkpointing": True}, "activation_checkpointing"),
        ({"entropy_coef": 0.01}, "entropy"),
        ({"top_entropy_quantile": 0.5}, "entropy"),
        ({"pad_to_multiple_of": 8}, "pad_to_multiple_of"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions"),
    ],
)
def test_what_it_cannot_do_as_trl_does_is_said(tmp_path, changes, reason):
    message = why_not(settings(tmp_path, **changes), tiny.model())
    assert (reason in message) if reason else (message == "")


def test_a_model_that_changes_its_logits_is_left_to_trl(tmp_path):
    scaled, windowed = tiny.model(), tiny.model()
    head = scaled.forward
    scaled.forward = lambda *some, **named: SimpleNamespace(logits=2 * head(*some, **named).logits)
    windowed.config.layer_types = ["sliding_attention", "full_attention"]
    for model, why in ((scaled, "do not give its logits"), (windowed, "plain attention")):
        assert why in why_not(settings(tmp_path), model)
