"""The lines of our pages, through each trainer's own configuration, where it is installed as its README says.

`python -m research.measurements.host_installs` installs them, each in an environment of its own.
"""

import importlib
import pickle
import re
import textwrap
from types import SimpleNamespace

import pytest
import torch
from hosts.trainers import CASES, PROBABILITIES, RECIPES
from made import around, assert_near, gradient, lines

import bandpo

BAND = bandpo.Band("kl", 0.05)


def test_trinity_reads_validates_and_sends_it(tmp_path):
    config = pytest.importorskip("trinity.common.config")
    file = tmp_path / "run.yaml"
    file.write_text(f"algorithm:\n  algorithm_type: grpo\n{textwrap.indent(lines('trinity'), '  ')}", encoding="utf-8")
    run = config.load_config(str(file))
    importlib.import_module("trinity.common.config_validator").AlgorithmConfigValidator().validate(run)
    loss = importlib.import_module("trinity.trainer.verl.losses").TrinityPolicyLoss(run.algorithm)
    sent = pickle.loads(pickle.dumps(loss)).policy_loss_fn
    logps, old, advantages, mask = tensors = around(BAND, PROBABILITIES, torch.float32)
    named = {"old_log_probs": old, "advantages": advantages, "response_mask": mask}
    result = gradient(lambda x: sent(logprob=x, **named)[0], logps)
    assert_near(result, CASES["trinity"].expected(BAND, tensors), torch.float32)


def test_rlinf_loads_and_calls_it(tmp_path, monkeypatch):
    losses = pytest.importorskip("rlinf.algorithms.losses")
    (tmp_path / "my_rule.py").write_text(lines("rlinf"), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RLINF_EXT_MODULE", "my_rule")
    importlib.import_module("rlinf.scheduler.cluster.utils").load_user_extension_module()
    logps, old, advantages, mask = tensors = around(BAND, PROBABILITIES, torch.float32)
    named = {
        "task_type": "reasoning",
        "loss_type": "bandpo",
        "clip_ratio_c": 3.0,
        "loss_agg_func": losses.masked_mean,
        "old_logprobs": old,
        "advantages": advantages,
        "loss_mask": mask,
    }
    call = importlib.import_module("rlinf.algorithms.registry").policy_loss
    result = gradient(lambda x: call(logprobs=x, **named)[0], logps)
    assert_near(result, CASES["rlinf"].expected(BAND, tensors), torch.float32)


def test_torchtitan_builds_it_over_its_own_logits():
    """In chunks, as its trainer does: a head makes the logits, and its own function their log-probabilities."""
    rl = pytest.importorskip("torchtitan.experiments.rl.losses")
    names = {"ChunkedLossWrapper": importlib.import_module("torchtitan.components.loss").ChunkedLossWrapper}
    exec(lines("torchtitan").replace("loss=", "loss = ", 1), names)
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 20, bias=False)
    hidden, tokens = torch.randn(4, 16, 8), torch.randint(20, (4, 16))
    mask, advantages = torch.rand(4, 16) < 0.8, torch.randn(4, 1).expand(4, 16).contiguous()

    def logps(x):
        return head(x).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    old = logps(hidden).detach() + torch.randn(4, 16) / 2
    named = {"generator_logprobs": old, "advantages": advantages, "loss_mask": mask}

    def run(config):
        loss = config.build()
        loss.set_lm_head(head)
        x = hidden.clone().requires_grad_()
        value, _ = loss(x, tokens, mask.sum().item(), **named)
        value.backward()
        return value.detach(), x.grad

    wrapper, ours = names["ChunkedLossWrapper"].Config, names["BandPOLoss"].Config
    own = run(wrapper(loss_fn=rl.DAPOLoss.Config(ratio_clip_low=0.2, ratio_clip_high=0.28)))
    clip, band = run(wrapper(loss_fn=ours(trust_region="clip:0.2:0.28"))), run(names["loss"])
    assert all(map(torch.equal, clip, own))
    objective = bandpo.Objective(BAND, aggregation="token-mean")
    expected = gradient(lambda x: bandpo.policy_loss(logps(x), old, advantages, mask, objective)[0], hidden)
    torch.testing.assert_close(band, expected, rtol=1e-5, atol=1e-6)


def test_swift_loads_the_plugin(tmp_path, monkeypatch):
    factory = pytest.importorskip("swift.trainers").TrainerFactory
    monkeypatch.setitem(factory.TRAINER_MAPPING, "grpo", factory.TRAINER_MAPPING["grpo"])
    own = factory.get_trainer_cls(SimpleNamespace(rlhf_type="grpo"))
    file = tmp_path / "bandpo_recipe.py"
    file.write_text(RECIPES["swift"].text, encoding="utf-8")
    importlib.import_module("swift.utils").import_external_file(str(file))
    ours = factory.get_trainer_cls(SimpleNamespace(rlhf_type="grpo"))
    assert (ours.__name__, ours.__mro__[1]) == ("BandPOTrainer", own)


@pytest.mark.parametrize("host", ["liger", "rlinf", "skyrl", "tinker", "torchrl", "torchtitan"])
def test_the_lines_lean_on_no_import_that_they_do_not_make(host):
    assert not re.search(r"\bbandpo\.(?!integrations)", lines(host))
