"""The sampler as the old policy in TRL."""

import inspect
import math

import pytest
import torch
from test_trl import Recording, full, policy_losses, train
from trl import GRPOTrainer

import bandpo
import tiny
from bandpo import Band, Clip, Objective
from bandpo.integrations import objective_for
from bandpo.integrations.trl import BandPOConfig, BandPOTrainer
from bandpo_runs import toy

# Before 0.29 a rollout_func was vLLM's business; before 0.27 nothing of its log-probabilities was kept.
SAMPLED = "self.rollout_func is not None" in inspect.getsource(GRPOTrainer._generate)
with_sampler = pytest.mark.skipif(not SAMPLED, reason="this TRL samples by a rollout_func under vLLM only, if at all")


# ---- the sampler's anchor


def rollout(prompts, trainer):
    """Responses of the model as it is, and log-probabilities of them by a sampler that is a little off."""
    tokenizer, model = toy.tokenizer(), trainer.accelerator.unwrap_model(trainer.model)
    ids = tokenizer(list(prompts), padding=True, padding_side="left", return_tensors="pt")
    with torch.no_grad():
        tokens = model.generate(**ids, max_new_tokens=6, do_sample=True, top_k=0)[:, ids["input_ids"].shape[1] :]
        both = torch.cat([ids["input_ids"], tokens], 1)
        mask = torch.cat([ids["attention_mask"], torch.ones_like(tokens)], 1)
        logits = model(input_ids=both, attention_mask=mask).logits[:, -tokens.shape[1] - 1 : -1]
    noise = 0.2 * torch.randn(tokens.shape, generator=torch.Generator().manual_seed(trainer.state.global_step))
    logps = (logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0] + noise).clamp(max=0)
    lengths = [(row.tolist().index(toy.END) + 1 if toy.END in row else len(row)) for row in tokens]
    return {
        "prompt_ids": [row[kept.bool()].tolist() for row, kept in zip(*ids.values(), strict=True)],
        "completion_ids": [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)],
        "logprobs": [row[:n].tolist() for row, n in zip(logps, lengths, strict=True)],
    }


def anchored(folder, objective, sampler=rollout, **changes):
    args = full(folder, **{"max_steps": 6, "anchor": "sampler"} | changes)
    return train(Recording, args, objective, rollout_func=sampler)


@pytest.fixture
def _silenced(monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")  # it warns of rollout_func


AT_SAMPLER = {
    "dis": "dis",
    "dppo": Objective(Band("tv", 0.05), surrogate="mask"),
    "clip": Objective(Clip(0.2, 0.2)),
    "gspo": Objective(Clip(0.05, 0.05), ratio="sequence-mean"),
}


@with_sampler
@pytest.mark.usefixtures("_silenced")
@pytest.mark.parametrize("name", AT_SAMPLER)
@pytest.mark.parametrize("steps", [1, 4], ids=["on policy", "off policy"])
def test_with_the_sampler_as_anchor_the_loss_is_policy_losses_of_its_log_probabilities(tmp_path, name, steps):
    """Also on policy, where the ratio is what sampler and trainer differ by; no rule is said to do nothing there."""
    changes = {"steps_per_generation": steps, "num_iterations": 1, "loss_type": "grpo"}
    trainer, cut = anchored(tmp_path, AT_SAMPLER[name], **changes), 0.0
    assert trainer.objective == objective_for("TRL", AT_SAMPLER[name], anchor="sampler")
    for record in trainer.records:
        assert ("old_per_token_logps" in record[0]) == (steps > 1)
        theirs, ours, metrics = policy_losses(trainer, record, trainer.objective, "sampling_per_token_logps")
        torch.testing.assert_close(theirs[0], ours[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(theirs[1], ours[1], rtol=1e-5, atol=1e-8)
        cut += metrics.compute()["clip/count"]
    assert cut > 0 or name == "dis"
    assert sum(row.get("bandpo/clip/count", 0) for row in trainer.state.log_history) == cut


@with_sampler
@pytest.mark.usefixtures("_silenced")
@pytest.mark.parametrize("objective", [Clip(0.2, 0.2), Objective(Clip(0.2, 0.2), surrogate="mask")], ids=str)
def test_trls_correction_is_not_counted_a_second_time_and_missing_tokens_are_the_trainers(tmp_path, objective):
    trainer = anchored(tmp_path, objective, max_steps=1)
    inputs = trainer._buffered_inputs[0]
    old, sampled = inputs["old_per_token_logps"], inputs["sampling_per_token_logps"]
    plain = trainer._compute_loss(trainer.model, inputs)
    trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    for shape in (old.shape, (len(old), 1)):
        corrected = trainer._compute_loss(trainer.model, inputs | {"importance_sampling_ratio": torch.rand(shape)})
        assert torch.equal(corrected, plain)
    trainer.use_vllm = False
    hole = torch.arange(old.shape[1]) == 1
    filled, missing = (
        trainer._compute_loss(trainer.model, inputs | {"sampling_per_token_logps": torch.where(hole, other, sampled)})
        for other in (old, torch.full_like(old, math.nan))
    )
    assert [torch.equal(filled, other) for other in (missing, plain)] == [True, False]


@with_sampler
@pytest.mark.usefixtures("_silenced")
@pytest.mark.parametrize(
    "objective",
    [Clip(0.2, 0.2), Objective(Band("tv", 0.05), surrogate="mask")],
    ids=lambda value: type(value).__name__,
)
def test_tokens_that_the_sampler_tells_nothing_of_are_the_trainers_also_on_policy(tmp_path, objective):
    def with_holes(prompts, trainer):
        out = rollout(prompts, trainer)
        return out | {"logprobs": [[math.nan, *row[1:]] for row in out["logprobs"]]}

    trainer = anchored(tmp_path, objective, with_holes, max_steps=1, steps_per_generation=1, num_iterations=1)
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    ((inputs, logps, loss),) = trainer.records
    assert loss.isfinite()
    assert torch.equal(inputs["sampling_per_token_logps"][:, 0], logps.detach()[:, 0])


def test_a_method_of_the_sampler_is_taken_where_that_is_the_anchor(tmp_path):
    args = tiny.settings(tmp_path, BandPOConfig, trust_region="dis", anchor="sampler")
    assert args.trust_region == bandpo.losses.method("dis").without_average.to_config()


def test_an_anchor_that_is_not_there_is_told_at_the_first_loss(tmp_path):
    with pytest.raises(ValueError, match=r"anchor = 'sampler' needs the sampler's log-probabilities"):
        train(BandPOTrainer, full(tmp_path, anchor="sampler"), Band())
