"""`BandPOTrainer` of unsloth over a stand-in for its trainer: its epsilons, and what is refused."""

import os
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from hosts.trainers import CLIP, UNSLOTH, Opened
from made import executed

import bandpo
from bandpo.integrations import unsloth
from research.measurements.unsloth_loss import check


class Standing:
    """What of unsloth's trainer our class looks at."""

    def __init__(self, *arguments, **changes):
        self.args = SimpleNamespace(**UNSLOTH | changes)
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
        assert all(map(torch.equal, (low, high), (bounds.eps_low, bounds.eps_high)))
        assert (count, (trainer.epsilon_low, trainer.epsilon_high)) == (7, (0.2, 0.28))
    assert trainer.compute_loss(None, {"advantages": torch.ones(2)}) == (0.2, 0.28, None)  # on policy
    with pytest.raises(ArithmeticError):
        trainer.compute_loss("broken", {"old_per_token_logps": old, "advantages": torch.ones(2)})
    assert (trainer.epsilon_low, trainer.epsilon_high) == (0.2, 0.28)


WRONG = [
    ({"type": "bnd"}, {"loss_type": "grpo"}, "bnd"),
    (CLIP, {}, "unset UNSLOTH_GRPO_ROLLOUT_LOGPROBS_AS_OLD"),
    (CLIP, {"epsilon": 0.3}, "unsloth: Remove epsilon = 0.3"),
    (CLIP, {"epsilon_high": 0.28}, "unsloth: Remove epsilon_high = 0.28"),
    (CLIP, {"loss_type": "dapo", "epsilon_high": 0.3}, "unsloth: Remove epsilon_high = 0.3"),
    (CLIP, {"loss_type": "cispo"}, "unsloth: loss_type 'cispo' has no clip"),
    (CLIP, {"importance_sampling_level": "sequence"}, "unsloth: importance_sampling_level must be 'token'"),
    (CLIP, {"temperature": 0.0}, "unsloth: temperature must be positive"),
]


@pytest.mark.parametrize(("rule", "changes", "message"), WRONG)
def test_what_unsloth_cannot_do_is_refused_before_the_first_step(monkeypatch, rule, changes, message):
    Ours(trust_region=CLIP, loss_type="dapo", epsilon_high=0.28)  # which unsloth sets by itself
    monkeypatch.setenv("UNSLOTH_GRPO_ROLLOUT_LOGPROBS_AS_OLD", str(int(changes == {})))
    with pytest.raises(ValueError, match=message):
        Ours(trust_region=rule, **changes)


def test_the_trainer_stands_on_the_one_that_unsloth_has_put_into_trl(monkeypatch):
    monkeypatch.setitem(sys.modules, "unsloth", MagicMock())
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(GRPOTrainer=Standing))
    with pytest.raises(RuntimeError, match="unsloth: it has not replaced TRL's Standing"):
        unsloth.BandPOTrainer()
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(GRPOTrainer=type("UnslothGRPOTrainer", (Standing,), {})))
    trainer = executed("unsloth", **dict.fromkeys(("model", "reward", "dataset")), GRPOConfig=SimpleNamespace)[
        "trainer"
    ]
    assert (isinstance(trainer, Standing), trainer._limits.region) == (True, bandpo.Band("kl", 0.05))


def test_the_command_says_what_it_needs():
    own, command = (
        os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        [sys.executable, "-m", "research.measurements.unsloth_loss"],
    )
    done = subprocess.run(command, capture_output=True, text=True, env=own, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs a GPU that torch sees, and unsloth" in done.stderr


def test_the_check_of_a_gpu_runs(monkeypatch):
    opened = Opened("unsloth bnpo", monkeypatch)
    clip, band = check("cpu").split(", ")
    opened.close()
    assert (clip, float(band.removeprefix("Band within ")) < 1e-6) == ("Clip equal: True", True)
