"""BandPOTrainer against TRL's own GRPOTrainer, and against `policy_loss`."""

import inspect
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
import trl.trainer.utils
from packaging.version import Version
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

import bandpo
import tiny
from bandpo import Band, Capped, Clip, lab
from bandpo.integrations.trl import LOSS_TYPES, BandPOConfig, BandPOTrainer, check_config

AGGREGATION = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "dapo": "token-mean",
}
# Before 1.9 TRL divided by the tokens of all the steps of a generation, not of one.
DAPO_STEPS = 4 if Version(trl.__version__) >= Version("1.9") else 1


def train(cls, args, region=None, model=None):
    named = {} if region is None else {"trust_region": region}
    trainer = cls(model or tiny.model(), tiny.count_a, args, tiny.rows(), processing_class=lab.tokenizer(), **named)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


def history(trainer):
    """TRL's own log, without what depends on the clock and without our metrics."""
    clock = ("step_time", "runtime", "per_second")
    return repr(
        [
            {k: v for k, v in row.items() if not k.startswith("bandpo/") and not k.endswith(clock)}
            for row in trainer.state.log_history
        ]
    )


def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.model.parameters(), b.model.parameters(), strict=True))


def clipped_shares(trainer):
    """Shares of tokens cut below and above, over the whole run."""
    rows = [r for r in trainer.state.log_history if "bandpo/tokens" in r]
    tokens = sum(r["bandpo/tokens"] for r in rows)
    return [
        sum(r[f"bandpo/cut/{side}_fraction"] * r["bandpo/tokens"] for r in rows) / tokens for side in ("low", "high")
    ]


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_clip_equals_trl_bit_for_bit_where_it_binds(tmp_path, loss_type):
    args = {"loss_type": loss_type, "epsilon": 0.2, "max_grad_norm": 1.0}
    theirs = train(GRPOTrainer, tiny.settings(tmp_path, **args))
    ours = train(BandPOTrainer, tiny.settings(tmp_path, **args), Clip(0.2, 0.2))
    other = train(BandPOTrainer, tiny.settings(tmp_path, **args), Clip(0.1, 0.1))
    assert min(clipped_shares(ours)) >= 0.02
    assert history(ours) == history(theirs)
    assert same_weights(ours, theirs)
    assert history(other) != history(theirs)
    assert not same_weights(other, theirs)


def test_uneven_epsilons_accumulation_and_kl_equal_trl_bit_for_bit(tmp_path):
    args = {"gradient_accumulation_steps": 2, "beta": 0.04, "max_steps": 8}
    start = str(tmp_path / "start")  # TRL loads the reference model from where the model came from
    tiny.model().save_pretrained(start)
    theirs = train(GRPOTrainer, tiny.settings(tmp_path, epsilon_high=0.28, **args), model=start)
    ours = train(BandPOTrainer, tiny.settings(tmp_path, **args), Clip(0.2, 0.28), model=start)
    assert "kl" in ours.state.log_history[0]
    assert min(clipped_shares(ours)) >= 0.02
    assert history(ours) == history(theirs)
    assert same_weights(ours, theirs)


class Recording(BandPOTrainer):
    """Keeps what the loss saw and gave."""

    def _compute_loss(self, model, inputs):
        self.seen = []
        loss = super()._compute_loss(model, inputs)
        self.records.append((inputs, self.seen, loss))
        return loss

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        out = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.seen = out[0]
        if self.seen.requires_grad:
            self.seen.retain_grad()
        return out


@pytest.mark.parametrize(
    "region", [Band("kl", 0.05), Band("tv", 0.05), Band("chi2", 0.05), Capped(Band(), 2.0)], ids=str
)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_band_has_the_loss_and_gradient_of_policy_loss(tmp_path, capsys, loss_type, region):
    trainer = Recording(
        tiny.model(),
        tiny.count_a,
        tiny.settings(tmp_path, loss_type=loss_type, max_steps=8),
        tiny.rows(),
        processing_class=lab.tokenizer(),
        trust_region=region,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.records = []
    trainer.train()
    left_out = tokens = 0
    assert sum(clipped_shares(trainer)) > 0.02
    for inputs, logps, theirs in trainer.records:
        mask = inputs["completion_mask"].bool()
        old = inputs["old_per_token_logps"]
        ours = logps.detach().clone().requires_grad_()
        normalizer = {
            "dapo": inputs["num_items_in_batch"] / DAPO_STEPS,
            "dr_grpo": len(mask) * trainer.max_completion_length,
        }.get(loss_type)
        loss, _ = bandpo.policy_loss(
            ours, old, inputs["advantages"], mask, region, aggregation=AGGREGATION[loss_type], normalizer=normalizer
        )
        assert abs(loss.item() - theirs.item()) <= 1e-6 * max(1.0, abs(loss.item()))
        loss.backward()
        bounds = region.bounds(torch.where(mask, old, -1.0))
        ratio = (ours - old).detach()
        near = torch.minimum((ratio.exp() - bounds.log_low.exp()).abs(), (ratio.exp() - bounds.log_high.exp()).abs())
        far = mask & (near > 2**-22)
        torch.testing.assert_close(ours.grad[far], logps.grad[far], rtol=1e-5, atol=1e-7)
        left_out += int((mask & ~far).sum())
        tokens += int(mask.sum())
    with capsys.disabled():
        print(f" left out {left_out} of {tokens}", end="")
    assert left_out / tokens < 1e-3


def test_the_trainer_is_left_as_it_was_even_if_the_loss_raises(tmp_path, monkeypatch):
    trainer = BandPOTrainer(
        tiny.model(),
        tiny.count_a,
        tiny.settings(tmp_path),
        tiny.rows(),
        processing_class=lab.tokenizer(),
        trust_region=Band(),
    )
    trainer.remove_callback(PrinterCallback)
    before = {k for k in vars(trainer)}
    trainer.train()
    assert (trainer.epsilon_low, trainer.epsilon_high) == (0.2, 0.2)
    assert trainer._loss_inputs is None
    assert {k for k in vars(trainer)} - before <= {k for k in vars(train(GRPOTrainer, tiny.settings(tmp_path)))}

    def fail(self, model, inputs):
        self.epsilon_low = self.epsilon_high = torch.zeros(3)
        raise RuntimeError("lost")

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", fail)
    with pytest.raises(RuntimeError, match="lost"):
        trainer._compute_loss(trainer.model, {})
    assert (trainer.epsilon_low, trainer.epsilon_high, trainer._loss_inputs) == (0.2, 0.2, None)


def test_metrics_are_sums_over_the_whole_log_window(tmp_path):
    each = train(BandPOTrainer, tiny.settings(tmp_path, max_steps=8), Band("kl", 0.05))
    once = train(BandPOTrainer, tiny.settings(tmp_path, max_steps=8, logging_steps=8), Band("kl", 0.05))
    rows = [r for r in each.state.log_history if "bandpo/tokens" in r]
    (total,) = [r for r in once.state.log_history if "bandpo/tokens" in r]
    assert total["bandpo/tokens"] == sum(r["bandpo/tokens"] for r in rows)
    assert total["bandpo/clip/count"] == sum(r["bandpo/clip/count"] for r in rows) > 0
    expected = total["bandpo/clip/count"] / total["bandpo/tokens"]
    assert total["bandpo/clip/fraction"] == expected
    assert not any(math.isnan(v) for v in total.values() if isinstance(v, float))


def test_evaluation_metrics_are_kept_apart(tmp_path):
    args = tiny.settings(
        tmp_path,
        max_steps=8,
        eval_strategy="steps",
        eval_steps=8,
        per_device_eval_batch_size=16,
    )
    trainer = BandPOTrainer(
        tiny.model(),
        tiny.count_a,
        args,
        tiny.rows(),
        tiny.rows(4),
        processing_class=lab.tokenizer(),
        trust_region=Band(),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    (row,) = [r for r in trainer.state.log_history if "eval_reward" in r]
    assert row["eval_bandpo/tokens"] > 0
    assert row["eval_bandpo/clip/count"] == 0  # on policy
    assert "bandpo/tokens" not in row


def test_a_region_gets_the_context_that_trl_has(tmp_path):
    @dataclass(frozen=True)
    class Curious(bandpo.Region):
        kind: ClassVar[str] = "curious"
        seen: ClassVar[list] = []

        def bounds(self, old_logps, context=None):
            self.seen.append(context)
            return Clip(0.2, 0.2).bounds(old_logps)

    train(BandPOTrainer, tiny.settings(tmp_path, max_steps=8), Curious())
    last = Curious.seen[-1]
    assert last.step == 7
    assert last.entropies.shape == last.response_mask.shape == last.advantages.shape == last.positions.shape
    assert last.entropies[last.response_mask].min() > 0
    assert last.positions[0, 1] == 1


def test_a_decaying_rule_follows_the_trainers_step(tmp_path, monkeypatch):
    seen = []
    at = bandpo.Decaying.at
    monkeypatch.setattr(bandpo.Decaying, "at", lambda self, step: seen.append(step) or at(self, step))
    region = bandpo.Decaying(Clip(0.2, 0.2), ["eps_low", "eps_high"], end=0.01, steps=8)
    trainer = train(BandPOTrainer, tiny.settings(tmp_path, max_steps=8), region)
    assert sorted(set(seen)) == [*range(9)]  # 8 once, when the rule was made
    assert trainer.trust_region == region


def test_the_region_can_come_from_the_config_and_only_from_one_place(tmp_path):
    args = tiny.settings(tmp_path, BandPOConfig, trust_region='{"type": "band", "divergence": "tv", "delta": 0.1}')
    trainer = BandPOTrainer(tiny.model(), tiny.count_a, args, tiny.rows(), processing_class=lab.tokenizer())
    assert trainer.trust_region == Band("tv", 0.1)
    with pytest.raises(ValueError, match="twice"):
        BandPOTrainer(tiny.model(), tiny.count_a, args, tiny.rows(), trust_region=Band())
    plain = BandPOTrainer(
        tiny.model(), tiny.count_a, tiny.settings(tmp_path), tiny.rows(), processing_class=lab.tokenizer()
    )
    assert plain.trust_region == Band("kl", 0.05)


def test_the_config_keeps_every_field_of_trl():
    names = lambda cls: {f: p.default for f, p in inspect.signature(cls).parameters.items()}  # noqa: E731
    ours, theirs = names(BandPOConfig), names(GRPOConfig)
    assert set(ours) - set(theirs) == {"trust_region"}
    assert {k: v for k, v in ours.items() if k in theirs} == theirs


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"importance_sampling_level": "sequence", "loss_type": "grpo"}, "importance_sampling_level"),
        ({"loss_type": "cispo"}, "loss_type"),
        ({"loss_type": "sapo"}, "loss_type"),
        ({"loss_type": "vespo"}, "loss_type"),
        ({"loss_type": "luspo"}, "loss_type"),
        ({"epsilon": 0.1}, "epsilon = 0.1"),
        ({"epsilon_high": 0.28}, "epsilon_high = 0.28"),
        ({"use_liger_kernel": True}, "use_liger_kernel"),
        ({"generation_kwargs": {"temperature": 0.7}}, "temperature"),
        ({"temperature": 0.0}, "temperature"),
    ],
    ids=lambda x: str(x),
)
def test_settings_without_bounds_per_token_are_refused_before_anything_is_loaded(tmp_path, changes, named):
    with pytest.raises(ValueError, match=named):
        BandPOTrainer(
            "no/such-model", tiny.count_a, tiny.settings(tmp_path, **changes), tiny.rows(), trust_region=Band()
        )


def test_a_temperature_that_sampler_and_log_probabilities_share_is_fine(tmp_path):
    check_config(tiny.settings(tmp_path, temperature=0.7, generation_kwargs={"temperature": 0.7}), Band())


def test_the_stored_log_probabilities_are_those_sampled_from(tmp_path):
    """TRL divides the logits by the temperature; a band at another temperature would be another band."""

    class Keep(BandPOTrainer):
        def _compute_loss(self, model, inputs):
            self.kept = inputs
            return super()._compute_loss(model, inputs)

    model = tiny.model()
    trainer = Keep(
        model,
        tiny.count_a,
        tiny.settings(tmp_path, temperature=0.5, max_steps=1),
        tiny.rows(),
        processing_class=lab.tokenizer(),
    )
    trainer.remove_callback(PrinterCallback)
    logits = tiny.model()
    trainer.train()
    kept = trainer.kept
    tokens = torch.cat([kept["prompt_ids"], kept["completion_ids"]], 1)
    with torch.no_grad():
        expected = (logits(input_ids=tokens).logits[:, :-1] / 0.5).log_softmax(-1)
    expected = expected.gather(-1, tokens[:, 1:, None])[..., 0][:, -kept["completion_ids"].shape[1] :]
    mask = kept["completion_mask"].bool()
    torch.testing.assert_close(kept["old_per_token_logps"][mask], expected[mask], rtol=1e-4, atol=1e-5)


def test_one_step_a_batch_is_called_a_no_op_once(tmp_path):
    on_policy = {"steps_per_generation": 1, "num_iterations": 1}
    with pytest.warns(UserWarning, match="no rule acts.*steps_per_generation") as caught:
        trainer = train(BandPOTrainer, tiny.settings(tmp_path, max_steps=3, **on_policy), Band())
    assert sum("no rule acts" in str(w.message) for w in caught) == 1
    rows = [r for r in trainer.state.log_history if "bandpo/tokens" in r]
    assert all(r["bandpo/clip/count"] == 0 and r["bandpo/log_ratio/max"] == 0 for r in rows)
    check_config(tiny.settings(tmp_path, **on_policy), Clip(1.0, math.inf))  # no clip was asked for: no warning


def test_trl_delta_keeps_its_meaning_and_is_named(tmp_path, caplog):
    args = {"delta": 1.5, "max_steps": 8}
    with caplog.at_level("WARNING"):
        ours = train(BandPOTrainer, tiny.settings(tmp_path, **args), Clip(0.2, 0.2))
    assert "delta = 1.5" in caplog.text
    assert "two-sided" in caplog.text
    assert history(ours) == history(train(GRPOTrainer, tiny.settings(tmp_path, **args)))
    assert history(ours) != history(train(GRPOTrainer, tiny.settings(tmp_path, max_steps=8)))


def test_truncated_sampling_is_warned_about(tmp_path):
    with pytest.warns(UserWarning, match="top_k = 5"):
        check_config(tiny.settings(tmp_path, top_k=5), Band())


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_loss_never_sees_logits_because_trl_has_a_fused_head(tmp_path, monkeypatch, loss_type):
    """Log-probabilities and entropies of the loss come from TRL's kernel; the output layer itself only generates."""
    calls, layers = [], []
    kernel = getattr(trl.trainer.utils, "_ChunkedLogProbFunction", None)
    if kernel is None:
        pytest.skip("before TRL 1.14 the loss was of logits")

    def apply(*arguments):
        calls.append(arguments[-1])
        return kernel.apply(*arguments)

    original = GRPOTrainer._compute_loss

    def loss(trainer, *arguments):
        before = len(calls), len(layers)
        out = original(trainer, *arguments)
        assert (len(calls), len(layers)) == (before[0] + 1, before[1])
        return out

    monkeypatch.setattr(trl.trainer.utils, "_ChunkedLogProbFunction", SimpleNamespace(apply=apply))
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", loss)
    model = tiny.model()
    model.lm_head.register_forward_hook(lambda *_: layers.append(1))
    train(BandPOTrainer, tiny.settings(tmp_path, loss_type=loss_type, max_steps=2), Band(), model)
    assert layers
    assert set(calls) == {("log_probs", "entropy")}


@pytest.mark.parametrize("softcap", [None, 4.0])
def test_token_logps_is_trls_fused_head(softcap):
    kernels = pytest.importorskip("trl.kernels")
    torch.manual_seed(0)
    inputs = [torch.randn(*size, requires_grad=True) for size in ((40, 16), (101, 16), (101,))]
    tokens, up = torch.randint(101, (40,)), [torch.randn(40), torch.randn(40)]
    hidden, weight, bias = inputs
    theirs = kernels.ChunkedLogProbFunction.apply(*inputs, tokens, 0.7, 32, softcap, 1.0, ("log_probs", "entropy"))[:2]
    ours = bandpo.token_logps(hidden, weight, tokens, bias=bias, temperature=0.7, softcap=softcap, chunk=16)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, up), torch.autograd.grad(theirs, inputs, up), rtol=1e-5, atol=1e-5
    )


def test_trl_still_has_the_private_names_that_we_lean_on():
    loss = inspect.getsource(GRPOTrainer._compute_loss)
    assert "torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)" in loss
    assert loss.index("self._get_per_token_logps_and_entropies(") < loss.index("self.epsilon_low")
    assert 'inputs.get("old_per_token_logps")' in loss
    assert "epsilon" not in inspect.getsource(GRPOTrainer._get_per_token_logps_and_entropies)
    assert "self._step % generate_every == 0" in inspect.getsource(GRPOTrainer._prepare_inputs)
