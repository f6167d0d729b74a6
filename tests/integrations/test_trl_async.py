"""`AsyncBandPOTrainer` against TRL's own AsyncGRPOTrainer, its `compute_loss`, rows and training.

What runs on a GPU or elsewhere has a stand-in: the model of a loss; in a training vLLM, which is a copy of the model at
the start, and FlashAttention 3, which is plain attention.
"""

import collections
import queue
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trl
from hosts.trainers import Asking
from made import BANDS, around, assert_near, batch, gradient
from packaging.version import Version
from scripts import ROOT

import bandpo
import tiny
from bandpo import Band, Clip, Objective
from bandpo_runs import toy

if Version(trl.__version__) < Version("1.16"):
    pytest.skip("older releases have other rows", allow_module_level=True)

from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from bandpo.integrations.trl_async import AsyncBandPOTrainer

ON_CPU = {"use_cpu": True, "bf16": False, "activation_checkpointing": False, "report_to": "none", "disable_tqdm": True}
DTYPES = [torch.float32, torch.float64]


def rows(tensors):
    """Two packed rows as TRL makes them of a made batch, the shorter one padded: tools in some, a shared prefix. With
    the log-probabilities of their positions, and the place of each token in its response."""
    logps, old, advantages, mask = tensors
    given = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 9, mask.shape, generator=given)
    ids[1:3, :3] = torch.tensor([9, 10, 11])
    kept = mask & ((torch.arange(len(mask))[:, None] % 2 == 0) | (torch.arange(mask.shape[1]) % 4 < 3))
    third, places = torch.arange(len(mask)) % 3 == 0, kept.cumsum(-1) - 1
    parts = [x.nonzero().flatten() for x in (third, ~third)]
    trees = [packing.TreeRow(), packing.TreeRow()]
    for tree, part in zip(trees, parts, strict=True):
        for i in part.tolist():
            sample = {"input_ids": torch.cat([torch.tensor([1, 2, 3]), ids[i]]), "advantage": float(advantages[i, 0])}
            wide = {"completion_mask": kept[i].long(), "old_log_probs": old[i]}
            sample |= {name: torch.nn.functional.pad(x, (3, 0)) for name, x in wide.items()}
            tree.add(sample | {"group_id": i // 4, "metrics": {}})
    batch = async_grpo_trainer.DataCollatorForRollout(pad_token_id=0, num_processes=2).torch_call([trees])
    assert not batch["attention_mask"].all()
    assert not kept.any(-1).all()
    found = []
    for i, part in enumerate(parts):
        inputs = {name: x[i : i + 1] for name, x in batch.items()}
        chosen, inside = inputs["token_index"] >= 0, kept[part]
        for name, x in (("old_log_probs", old), ("advantages", advantages)):  # TRL packs in float32
            inputs[name] = inputs[name].to(old.dtype).masked_scatter(chosen, x[part][inside])
        new = torch.zeros(int(inputs["attention_mask"].sum()), dtype=old.dtype)
        new[inputs["token_index"][chosen]] = logps[part][inside]  # of a shared position the last one's
        found.append((inputs, new, places[part][inside]))
    return found


EPSILONS = ("epsilon_low", "epsilon_high")


def run(cls, row, rule=None):
    """Value and gradient of TRL's `compute_loss`, and what it logs."""
    inputs, logps, _ = row
    logps = logps.clone().requires_grad_()
    trainer = object.__new__(cls)
    device = SimpleNamespace(num_processes=2, reduce=lambda x, reduction: x, gather=lambda x: x)
    zeros = ("forward_tokens", "trained_tokens", "seq_len_weighted", "samples", "forward_s")
    epsilon = {"epsilon_low": 0.2, "epsilon_high": 0.28} if rule is None else dict.fromkeys(EPSILONS, "replaced")
    own = {f"_step_{name}": 0.0 for name in zeros} | {"_metrics": {"train": collections.defaultdict(list)}} | epsilon
    vars(trainer).update(own, accelerator=device, aux_loss_enabled=False, current_gradient_accumulation_steps=2)
    if rule is not None:
        trainer._limits = bandpo.integrations.Limits("AsyncGRPO", rule, *epsilon)
    out = SimpleNamespace(log_probs=logps[None], entropy=torch.ones_like(logps)[None])
    loss = trainer.compute_loss(lambda **named: out, dict(inputs))
    assert {name: getattr(trainer, name) for name in epsilon} == epsilon
    return loss.detach(), torch.autograd.grad(loss, logps)[0], trainer._metrics["train"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_clip_is_trls_own_loss_bit_for_bit(dtype):
    for row in rows(batch(dtype=dtype)):
        value, slope, logged = run(AsyncGRPOTrainer, row)
        ours = run(AsyncBandPOTrainer, row, Clip(0.2, 0.28))
        assert all(map(torch.equal, (ours[0], ours[1]), (value, slope)))
        assert ours[2] == logged
        assert min(logged["clip_ratio/low_mean"][0], logged["clip_ratio/high_mean"][0]) > 0.04
        assert slope.count_nonzero() > 50


class ByPlace(bandpo.Region):
    """A clip that narrows along a response."""

    required = ("response_mask",)

    def bounds(self, old_logps, context=None):
        half = 0.5 / context.response_mask.cumsum(-1).clamp(min=1).to(old_logps.dtype)
        return bandpo.Bounds(-half, half)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("region", [*BANDS, ByPlace()], ids=["kl", "tv", "chi2", "by place"])
def test_band_is_policy_loss(region, dtype):
    for row in rows(around(BANDS[0] if isinstance(region, ByPlace) else region, dtype=dtype)):
        found = run(AsyncBandPOTrainer, row, region)[:2]
        assert_near(found, expected(row, region), dtype)
        assert not torch.equal(found[1], run(AsyncGRPOTrainer, row)[1])


def expected(row, rule):
    inputs, logps, places = row
    chosen = inputs["token_index"] >= 0
    index, old, advantages = (inputs[name][chosen] for name in ("token_index", "old_log_probs", "advantages"))
    if isinstance(rule, ByPlace):  # of each token, by its place among those of its response
        half = 0.5 / (1 + places[None].to(old.dtype))
        rule = Fixed(bandpo.Bounds(-half, half))
    rest = old[None], advantages[None], torch.ones_like(old[None]), Objective(rule, aggregation="token-mean")
    normalizer = float(inputs["global_n_tokens"]) / 2 * 2  # by ranks, by accumulated steps
    return gradient(lambda x: bandpo.policy_loss(x[index][None], *rest, normalizer=normalizer)[0], logps)


class Fixed(bandpo.Region):
    def __init__(self, bounds):
        self.made = bounds

    def bounds(self, old_logps, context=None):
        return self.made


def test_the_epsilons_are_left_as_they_were_even_if_the_loss_raises():
    inputs = rows(batch())[0][0]
    trainer = object.__new__(AsyncBandPOTrainer)
    trainer.epsilon_low, trainer.epsilon_high, trainer.aux_loss_enabled = "as before", "as before", False
    trainer._limits = bandpo.integrations.Limits("AsyncGRPO", None, "epsilon_low", "epsilon_high")
    with pytest.raises(ZeroDivisionError):
        trainer.compute_loss(lambda **named: 1 / 0, inputs)
    assert (trainer.epsilon_low, trainer.epsilon_high) == ("as before", "as before")
    trainer.epsilon_high = 0.28
    with pytest.raises(ValueError, match=r"replaces epsilon_low, epsilon_high = .*0\.28.*, set since"):
        trainer.compute_loss(lambda **named: 1 / 0, inputs)


def not_trls(self, model, inputs):
    return model(**inputs).loss


@pytest.mark.parametrize(
    ("members", "rule", "settings", "message"),
    [
        ({}, Objective(Clip(0.2, 0.2), dual_clip=3.0), {}, "dual_clip must be None through AsyncGRPO"),
        ({}, Asking("entropies"), {}, "Asking needs entropies, which AsyncGRPO does not give a rule"),
        ({}, Band(), {"epsilon_high": 0.28}, "trust_region replaces epsilon = 0.2, epsilon_high = 0.28"),
        ({"compute_loss": not_trls}, Band(), {}, r"Made\.compute_loss is not known to clamp the ratio"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_is_loaded(tmp_path, members, rule, settings, message):
    made = type("Made", (AsyncBandPOTrainer,), members)
    with pytest.raises(ValueError, match=f"^{message}"):
        made("no/such-model", None, AsyncGRPOConfig(str(tmp_path), **settings, **ON_CPU), trust_region=rule)


# ---- a training


def attention(q, k, v, ends_q, ends_k, longest_q, longest_k, softmax_scale, causal, window_size):
    """Plain attention of each segment to its own path, in place of `flash_attn_varlen_func`."""
    assert causal
    out = []
    for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:], strict=False):
        size, whole = int(b - a), int(d - c)
        mask = torch.ones(size, whole, dtype=torch.bool).tril(whole - size)
        one, *two = (x.transpose(0, 1)[None] for x in (q[a:b], k[c:d], v[c:d]))
        part = torch.nn.functional.scaled_dot_product_attention(one, *two, attn_mask=mask, scale=softmax_scale)
        out.append(part[0].transpose(0, 1))
    return torch.cat(out)


class Worker:
    """Gives responses of a model that stays as it was, as if it were always up to date."""

    def __init__(self):
        self.rollout_buffer, self.metrics_queue, self.model = queue.Queue(), queue.Queue(), tiny.model().eval()
        self.generator = torch.Generator().manual_seed(0)

    def start(self, version=0):
        for group in range(version * 4, version * 4 + 4):
            prompt = [*torch.randint(0, toy.BASE, (4,), generator=self.generator).tolist(), toy.EQUALS]
            made = [self.respond(prompt) for _ in range(4)]
            scores = np.array([float(ids.count(0)) for ids, _ in made])
            for (ids, logps), score in zip(made, scores, strict=True):
                zeros, ones = [0] * len(prompt), [1] * len(ids)
                advantage = (score - scores.mean()) / (scores.std() + 1e-4)
                arrays = [np.array(x) for x in (prompt + ids, zeros + ones, zeros + logps)]
                self.rollout_buffer.put(RolloutSample([], [], *arrays, advantage, version, group, {}))

    @torch.no_grad()
    def respond(self, prompt):
        ids, logps = list(prompt), []
        for _ in range(6):
            law = self.model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            ids.append(int(torch.multinomial(law.exp(), 1, generator=self.generator)))
            logps.append(float(law[ids[-1]]))
        return ids[len(prompt) :], logps

    update_model_version = start

    def stop(self):
        pass

    def check_health(self, stale_after_s):
        raise RuntimeError("the queue is empty")


NO_TRANSFER = SimpleNamespace(
    init_weight_transfer=lambda: None,
    pause=lambda: None,
    send_weights=lambda weights: collections.deque(weights, maxlen=0),
    resume=lambda: None,
    destroy=lambda: None,
)


def train(cls, folder, **rule):
    tiny.model().save_pretrained(folder)
    args = {"per_device_train_batch_size": 16, "max_steps": 8, "learning_rate": 5e-3, "num_generations": 4}
    trainer = cls(
        str(folder),
        tiny.count_a,
        AsyncGRPOConfig(str(folder), token_budget=0, save_strategy="no", **ON_CPU, **args),
        tiny.rows(),
        toy.tokenizer(),
        rollout_worker=Worker(),
        weight_transfer=NO_TRANSFER,
        **rule,
    )
    trainer.train()
    return trainer


def test_a_training_under_clip_is_trls_own_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=attention))
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)  # it asks for a GPU's name
    theirs = train(AsyncGRPOTrainer, tmp_path)
    clip = train(AsyncBandPOTrainer, tmp_path, trust_region=Clip(0.2, 0.2))
    page = (ROOT / "docs" / "trl.md").read_text(encoding="utf-8")
    ((rule, of),) = re.findall(r"^`AsyncBandPOTrainer\(\.\.\., (.*)\)` of `(.*?)`", page, re.MULTILINE)
    assert of == AsyncBandPOTrainer.__module__
    band = train(AsyncBandPOTrainer, tmp_path, **eval(f"dict({rule})", {"Band": Band}))
    logs = [
        [{name: x for name, x in row.items() if "_ratio/" in name or name in ("loss", "kl", "ratio")} for row in log]
        for log in (trainer.state.log_history for trainer in (theirs, clip, band))
    ]
    assert logs[0] == logs[1] != logs[2]
    assert max(row.get("clip_ratio/region_mean", 0.0) for row in logs[0]) > 0.02
    weights = [list(trainer.model.parameters()) for trainer in (theirs, clip, band)]
    assert [all(map(torch.equal, weights[0], ours)) for ours in weights[1:]] == [True, False]
    assert clip.args.to_dict()["epsilon"] == "replaced by the trust region Clip(eps_low=0.2, eps_high=0.2)"
