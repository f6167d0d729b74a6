"""`BandPOTrainer` of unsloth: its epsilons, what is refused, and unsloth's own loss on a CPU.

unsloth itself cannot train here. With BANDPO_HOSTS=FOLDER, which has its wheel and that of unsloth_zoo unpacked in
FOLDER/unsloth and FOLDER/unsloth_zoo, its own `compute_loss`, `grpo_accumulated_loss`, `UnslothEfficientGRPO` and
`grpo_compute_loss` run, uncompiled, over a model that only has logits. Without it, a stand-in for its trainer.
"""

import importlib
import inspect
import os
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from made import BANDS, around, assert_near, batch, executed
from test_limits import CLIP, FOLDER, Asking, Sources

import bandpo
from bandpo.integrations import unsloth

SETTINGS = {"loss_type": "bnpo", "epsilon": 0.2, "epsilon_high": None, "generation_kwargs": None, "temperature": 1.0}
SETTINGS |= {"importance_sampling_level": "token", "delta": None}
NAMES = ("epsilon_low", "epsilon_high")


class Standing:
    """What of unsloth's trainer our class looks at."""

    def __init__(self, *given, **changes):
        self.args = SimpleNamespace(**SETTINGS | changes)
        self.epsilon_low, self.epsilon_high = 0.2, 0.28

    def compute_loss(self, model, inputs, num_items_in_batch=None):
        if model == "broken":
            raise ArithmeticError
        return self.epsilon_low, self.epsilon_high, num_items_in_batch


class Ours(unsloth._Bounded, Standing):
    pass


def test_the_epsilons_are_the_bounds_of_each_token_for_one_loss():
    trainer, old = Ours(trust_region="band:kl:0.05"), torch.tensor([[-1.0, -3.0], [0.0, -9.0]])
    for advantages in (torch.ones(2), torch.ones(2, 1), torch.ones(2, 2)):
        low, high, count = trainer.compute_loss(None, {"old_per_token_logps": old, "advantages": advantages}, 7)
        bounds = bandpo.Band("kl", 0.05).bounds(old)
        assert torch.equal(low, bounds.eps_low)
        assert torch.equal(high, bounds.eps_high)
        assert count == 7
        assert (trainer.epsilon_low, trainer.epsilon_high) == (0.2, 0.28)
    assert trainer.compute_loss(None, {"advantages": torch.ones(2)}) == (0.2, 0.28, None)  # on policy
    with pytest.raises(ArithmeticError):
        trainer.compute_loss("broken", {"old_per_token_logps": old, "advantages": torch.ones(2)})
    assert (trainer.epsilon_low, trainer.epsilon_high) == (0.2, 0.28)


WRONG = [
    (Asking("response_mask"), {}, "Asking needs response_mask, which unsloth does not give a rule"),
    ("gspo", {}, "ratio must be 'token' through unsloth, got 'sequence-mean': unsloth clamps the ratio"),
    ("dppo", {}, "its ratio is to the sampler's policy, which unsloth does not have"),
    (bandpo.Objective(dual_clip=3.0), {}, "the dual clip is unsloth's own, delta"),
    (bandpo.Objective(beta=0.1), {}, "the KL penalty is unsloth's own, beta"),
    ({"type": "bnd"}, {}, "bnd"),
    (CLIP, {"epsilon": 0.3}, "unsloth: Remove epsilon = 0.3"),
    (CLIP, {"epsilon_high": 0.28}, "unsloth: Remove epsilon_high = 0.28"),
    (CLIP, {"loss_type": "dapo", "epsilon_high": 0.3}, "unsloth: Remove epsilon_high = 0.3"),
    (CLIP, {"loss_type": "cispo"}, "unsloth: loss_type 'cispo' has no clip"),
    (CLIP, {"importance_sampling_level": "sequence"}, "unsloth: importance_sampling_level must be 'token'"),
    (CLIP, {"temperature": 0.0}, "unsloth: temperature must be positive"),
]


@pytest.mark.parametrize(("rule", "changes", "message"), WRONG)
def test_what_unsloth_cannot_do_is_refused_before_the_first_step(rule, changes, message):
    with pytest.raises(ValueError, match=message):
        Ours(trust_region=rule, **changes)


def test_what_unsloth_sets_by_itself_is_taken_and_a_sampler_as_old_policy_is_not(monkeypatch):
    Ours(trust_region=CLIP, loss_type="dapo", epsilon_high=0.28)
    monkeypatch.setenv("UNSLOTH_GRPO_ROLLOUT_LOGPROBS_AS_OLD", "1")
    with pytest.raises(ValueError, match="unset UNSLOTH_GRPO_ROLLOUT_LOGPROBS_AS_OLD"):
        Ours(trust_region=CLIP)


def test_the_trainer_stands_on_the_one_that_unsloth_has_put_into_trl(monkeypatch):
    monkeypatch.setitem(sys.modules, "unsloth", MagicMock())
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(GRPOTrainer=Standing))
    with pytest.raises(RuntimeError, match="unsloth: it has not replaced TRL's Standing"):
        unsloth.BandPOTrainer()
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(GRPOTrainer=type("UnslothGRPOTrainer", (Standing,), {})))
    trainer = executed("unsloth", **dict.fromkeys(("model", "reward", "dataset")), GRPOConfig=SimpleNamespace)[
        "trainer"
    ]
    assert isinstance(trainer, Standing)
    assert trainer._limits.region == bandpo.Band("kl", 0.05)


def test_the_command_says_what_it_needs():
    own = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "bandpo.integrations.unsloth"]
    done = subprocess.run(command, capture_output=True, text=True, env=own, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs a GPU that torch sees, and unsloth" in done.stderr


# ---- unsloth's own loss, from its source


@pytest.fixture(scope="module")
def host():
    """Return the module of unsloth_zoo's loss, and unsloth's `compute_loss`."""
    pytest.importorskip("trl")
    if FOLDER is None:
        pytest.skip("BANDPO_HOSTS names no folder")
    before, read = set(sys.modules), inspect.getsource
    with pytest.MonkeyPatch.context() as patch:
        off = ("UNSLOTH_GRPO_SEQ_PACKING", "UNSLOTH_GRPO_PREFIX_GROUPER")
        on = ("UNSLOTH_ALLOW_CPU", "UNSLOTH_COMPILE_DISABLE", "UNSLOTH_IS_PRESENT")
        own = dict.fromkeys(on, "1") | dict.fromkeys(off, "0") | {"ACCELERATE_MIXED_PRECISION": "no"}
        for name, value in own.items():
            patch.setenv(name, value)
        packages = {"unsloth_zoo": [], "unsloth": ["unsloth.device_type", "unsloth.models._utils"]}
        found = [Sources(Path(FOLDER) / name, name, absent) for name, absent in packages.items()]
        patch.setattr(sys, "meta_path", [*found, *sys.meta_path])
        patch.setattr(inspect, "getsource", lambda of: "" if isinstance(of, MagicMock) else read(of))
        zoo = importlib.import_module("unsloth_zoo.rl_replacements")
        patch.setattr(zoo, "device_synchronize", lambda: None)
        theirs = importlib.import_module("unsloth.models.rl_replacements")
        space = {**vars(theirs), **vars(zoo), "nanmin": torch.min, "nanmax": torch.max}
        exec(textwrap.dedent(theirs.grpo_trainer_compute_loss("compute_loss", "")), space)
        yield zoo, space["compute_loss"]
    for name in set(sys.modules) - before:
        if name.split(".")[0] in packages:
            del sys.modules[name]


class Logits(torch.nn.Module):
    """A model of three tokens, of which the last is padding; its logits are what it learns."""

    def __init__(self, logps):
        super().__init__()
        logps = logps.double().clamp(max=-1e-9)
        logits = torch.stack([logps, torch.log(-torch.expm1(logps)), torch.full_like(logps, -60.0)], -1)
        self.logits = torch.nn.Parameter(torch.nn.functional.pad(logits, (0, 0, 0, 1)).float())
        self.head, self.device, self.config = torch.nn.Linear(7, 3), torch.device("cpu"), SimpleNamespace()
        self.taken = 0

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, **named):
        first, self.taken = self.taken, self.taken + len(input_ids)
        return SimpleNamespace(logits=self.logits[first : self.taken])


def wide(x, left):
    """Move rows without a token of left padding by one, as unsloth does."""
    nothing = torch.zeros_like(x[:, :1])
    return torch.where(left[:, None], torch.cat([x, nothing], 1), torch.cat([nothing, x], 1))


def train_on(host, tensors, region, loss_type="bnpo"):
    """Value, gradient of the logits and clip ratios of unsloth's trainer, its own (None) or with a region."""
    logps, old, advantages, mask = tensors
    left = torch.arange(len(mask)) % 2 == 0
    accelerator = SimpleNamespace(num_processes=1, scaler=None, gather=lambda x: x[None])
    accelerator.unwrap_model = lambda model, **named: model
    args = SETTINGS | {"loss_type": loss_type, "max_completion_length": 20, "unsloth_num_chunks": -1}
    args |= {"unsloth_grpo_mini_batch": 4, "unsloth_logit_chunk_multiplier": 2, "steps_per_generation": None}

    class Theirs:
        compute_loss = host[1]

        def __init__(self):
            self.args, self.accelerator, self.beta, self.use_vllm = SimpleNamespace(**args), accelerator, 0.0, False
            self.epsilon_low, self.epsilon_high, self.loss_type = 0.2, 0.28, loss_type
            self.processing_class, self._metrics = SimpleNamespace(pad_token_id=2), {"train": defaultdict(list)}
            self.model, self.current_gradient_accumulation_steps = Logits(wide(logps, left)), 1

        def _get_per_token_logps(self, *arguments):
            return None

    trainer = Theirs() if region is None else type("Ours", (unsloth._Bounded, Theirs), {})(trust_region=region)
    prompts = torch.where(left[:, None], torch.tensor([[2, 0]]), torch.tensor([[0, 0]]))
    inputs = {"prompt_ids": prompts, "prompt_mask": (prompts != 2).long(), "completion_mask": mask.long()}
    inputs |= {"completion_ids": torch.where(mask, 0, 2), "advantages": advantages[:, 0].float()}
    inputs |= {"old_per_token_logps": wide(old, left).float(), "max_left_pad": 1}
    loss = trainer.compute_loss(trainer.model, inputs)
    (slope,) = torch.autograd.grad(loss, trainer.model.logits)
    ratios = {name: x for name, x in trainer._metrics["train"].items() if name.startswith("clip_ratio")}
    return loss.detach(), slope, ratios


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo"])
def test_clip_is_unsloths_own_loss_bit_for_bit(host, loss_type):
    tensors = batch()
    (value, slope, ratios), ours = (train_on(host, tensors, region, loss_type) for region in (None, CLIP))
    assert torch.equal(ours[0], value)
    assert torch.equal(ours[1], slope)
    assert ours[2] == ratios
    assert slope.count_nonzero() > 100
    assert min(*ratios["clip_ratio/low_mean"], *ratios["clip_ratio/high_mean"]) > 0


@pytest.mark.parametrize("region", BANDS)
def test_band_is_policy_loss(host, region):
    tensors = around(region)
    value, slope, _ = train_on(host, tensors, region)
    logps, old, advantages, mask = tensors
    left = torch.arange(len(mask)) % 2 == 0
    model = Logits(wide(logps, left))
    new = model.logits[:, :-1].log_softmax(-1)[..., 0]
    objective, advantages = bandpo.Objective(region, aggregation="token-mean"), advantages[:, :1].float()
    loss = bandpo.policy_loss(new, wide(old, left).float(), advantages, wide(mask, left), objective)[0]
    assert_near((value, slope), (loss.detach(), torch.autograd.grad(loss, model.logits)[0]), torch.float32)


def test_the_check_of_a_gpu_runs(host):
    clip, band = unsloth.check("cpu").split(", ")
    assert clip == "Clip equal: True"
    assert float(band.removeprefix("Band within ")) < 1e-6
