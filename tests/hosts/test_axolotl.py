"""axolotl's plug-in: its settings, and trainings through axolotl's own `load_cfg` and `train` where it is installed.

`python -m research.measurements.axolotl_versions` makes such an environment.
"""

import functools
import hashlib
import importlib
import json
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest
import torch
import yaml
from hosts.trainers import Asking
from made import assert_near, lines

import bandpo
from bandpo_runs import toy

tiny = pytest.importorskip("tiny", reason="TRL is not installed", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")  # of axolotl and what it imports
here = pytest.mark.skipif(find_spec("axolotl") is None, reason="axolotl is not installed")
PAGE, CLIP = yaml.safe_load(lines("axolotl")), {"type": "clip", "eps_low": 0.2, "eps_high": 0.2}
(PLUGIN,) = PAGE["plugins"]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Without a network axolotl's telemetry tries again for minutes."""
    monkeypatch.setenv("AXOLOTL_DO_NOT_TRACK", "1")


@pytest.fixture
def ours(monkeypatch):
    """Import our module, over a stand-in for axolotl where that is not installed."""
    if find_spec("axolotl") is None:
        base = ModuleType("axolotl.integrations.base")
        base.BasePlugin, base.PluginManager = object, None
        monkeypatch.setitem(sys.modules, "axolotl.integrations.base", base)
        monkeypatch.delitem(sys.modules, "bandpo.integrations.axolotl", raising=False)
    return importlib.import_module("bandpo.integrations.axolotl")


def cfg(**changes):
    return PAGE | {"rl": "grpo", "trl": {}} | changes


WRONG = [
    ({"rl": "dpo"}, "axolotl: rl must be 'grpo' or 'gdpo', got 'dpo'"),
    ({"rl": None}, "axolotl: rl must be 'grpo' or 'gdpo', got None"),
    ({"context_parallel_size": 2}, "axolotl: context_parallel_size must be 1"),
    ({"trainer_cls": "mine.Trainer"}, "axolotl: remove trainer_cls, got 'mine.Trainer'"),
    ({"trl": {"epsilon": 0.2}}, r"axolotl: remove trl\.epsilon, got 0\.2: trust_region replaces it"),
    ({"trl": {"epsilon_high": 0.28}}, r"axolotl: remove trl\.epsilon_high, got 0\.28: trust_region replaces it"),
    ({"trl": {"async_prefetch": True}}, r"axolotl: remove trl\.async_prefetch, got True: a rule has no effect there"),
    (
        {"trl": {"use_data_producer": True}},
        r"axolotl: remove trl\.use_data_producer, got True: a rule has no effect there",
    ),
    ({"trl": {"use_liger_loss": True}}, r"axolotl: remove trl\.use_liger_loss, got True: a rule has no effect there"),
    ({"rl": "dpo", "trl": {"epsilon": 0.2}}, r"remove trl\.epsilon, .*; rl must be 'grpo' or 'gdpo', got 'dpo'"),
    ({"trust_region": {"type": "bnd"}}, "no trust region type is called 'bnd'"),
    ({"trust_region": "dppo"}, "its ratio is to the sampler's policy; set anchor: sampler in its YAML"),
    ({"trust_region": Asking("nothing")}, "Asking needs nothing, which axolotl does not give a rule"),
    (
        {"trust_region": {"type": "objective", "trust_region": CLIP, "aggregation": "token-mean"}},
        r"aggregation must be None through axolotl.*, of which trl\.loss_type='dapo' is that average",
    ),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_a_wrong_setting_is_refused_before_the_model_is_loaded(ours, changes, message):
    with pytest.raises(ValueError, match=message):
        ours.Plugin().register(cfg(**changes))


def test_the_trainer_is_ours_where_the_yaml_names_the_plug_in(ours):
    settings, other = cfg(trust_region="dppo", anchor="sampler"), {"rl": "dpo"}  # left in the process by another YAML
    for each in (settings, settings, other):  # axolotl's workers under Ray do it again
        ours.Plugin().register(each)
    assert (settings["trainer_cls"], other) == ("bandpo.integrations.axolotl.BandPOTrainer", {"rl": "dpo"})


def test_the_options_are_those_of_bandpoconfig(ours):
    trl = pytest.importorskip("trl")
    from bandpo.integrations.trl import BandPOConfig

    assert {*ours.Options.model_fields} == {*BandPOConfig.__dataclass_fields__} - {*trl.GRPOConfig.__dataclass_fields__}
    assert ours.Options(anchor="sampler").anchor == "sampler"
    with pytest.raises(ValueError, match="'old' or 'sampler'"):
        ours.Options(anchor="samplr")
    with pytest.raises(ValueError, match="less than or equal to 1"):
        ours.Options(tokens_share=2)


@here
def test_registering_leaves_trls_trainer_to_axolotl():
    """axolotl replaces functions of TRL after plug-ins are registered, before TRL's trainer takes them."""
    code = f"""
import sys
from axolotl.integrations.base import PluginManager
PluginManager.get_instance().register({PLUGIN!r})
PluginManager.get_instance().plugins[{PLUGIN!r}].register({cfg()!r})
print('trl.trainer.grpo_trainer' in sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split()[-1] == "False"


def longer(completions, **columns):
    """A reward that axolotl takes by its path."""
    return [text.count("a") + len(text) / 10 for text in completions]


def trained(folder, **changes):
    """Train through axolotl's own steps; return its trainer."""
    from axolotl.cli.args import TrainerCliArgs
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import load_preference_datasets
    from axolotl.train import train
    from axolotl.utils.dict import DictDefault

    tiny.model().save_pretrained(folder / "model")
    toy.tokenizer().save_pretrained(folder / "model")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in toy.prompts(64, seed=0)))
    trl = {"num_generations": 8, "max_completion_length": 6, "reward_funcs": [f"{__name__}.longer"]} | {
        "num_iterations": 2,
        "generation_batch_size": 64,
        "loss_type": "bnpo",
        **changes.pop("trl", {}),
    }
    values = {
        "base_model": str(folder / "model"),
        "rl": "grpo",
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "datasets": [{"path": str(folder / "rows.jsonl"), "ds_type": "json"}],
        "dataset_num_proc": 1,
        "micro_batch_size": 16,
        "gradient_accumulation_steps": 1,
        "max_steps": 12,
        "learning_rate": 5e-3,
        "optimizer": "adamw_torch",
        "lr_scheduler": "constant",
        "sequence_len": 64,
        "val_set_size": 0.0,
        "bf16": False,
        "fp16": False,
        "tf32": False,
        "seed": 42,
        "save_strategy": "no",
        "logging_steps": 1,
        "attn_implementation": "eager",
        "gradient_checkpointing": False,
        "warmup_steps": 0,
        "dataset_prepared_path": str(folder / "prepared"),
        "num_epochs": 1,
        "dataloader_num_workers": 0,
        "trl": trl,
    }
    settings = load_cfg(DictDefault(values | changes))
    return train(cfg=settings, dataset_meta=load_preference_datasets(cfg=settings, cli_args=TrainerCliArgs()))[2]


def weights(trainer):
    state = sorted(trainer.model.state_dict().items())
    return hashlib.sha256(b"".join(x.numpy().tobytes() for _, x in state)).hexdigest()


@here
@pytest.mark.parametrize("rl", ["grpo", "gdpo"])
def test_clip_trains_axolotls_own_weights_bit_for_bit(tmp_path, rl):
    from axolotl.core.trainers.grpo.trainer import AxolotlGRPOTrainer

    own = trained(tmp_path / "own", rl=rl)
    mine = trained(tmp_path / "ours", rl=rl, plugins=[PLUGIN], trust_region=CLIP, all_metrics=True)
    assert (type(own), isinstance(mine, AxolotlGRPOTrainer)) == (AxolotlGRPOTrainer, True)
    assert mine.trust_region == bandpo.Clip(0.2, 0.2)
    assert weights(mine) == weights(own) != weights(SimpleNamespace(model=tiny.model()))
    last, theirs = mine.state.log_history[-2], own.state.log_history[-2]
    shared = theirs.keys() - {"step_time"}
    assert {name: last[name] for name in shared} == {name: theirs[name] for name in shared}
    assert theirs["clip_ratio/region_mean"] > 0.1
    assert "bandpo/sequences" in last  # of all_metrics


@here
def test_band_is_policy_loss_and_trains_other_weights(tmp_path, ours, monkeypatch):
    seen = []
    trainer = ours.BandPOTrainer
    made, loss_of = trainer._get_per_token_logps_and_entropies, trainer._compute_loss

    def logps_of(self, *arguments, **named):
        out = made(self, *arguments, **named)
        if self._loss_inputs is not None:
            seen.append([out[0]])
        return out

    @functools.wraps(loss_of)
    def watched(self, model, inputs):
        loss = loss_of(self, model, inputs)
        (logps,) = seen[-1]
        slope = torch.autograd.grad(loss, logps, retain_graph=True)[0]
        seen[-1] = [x.detach().clone() for x in (loss, slope, logps, inputs["old_per_token_logps"])]
        seen[-1] += [inputs["advantages"].clone(), inputs["completion_mask"].clone()]
        return loss

    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", logps_of)
    monkeypatch.setattr(trainer, "_compute_loss", watched)
    band = trained(tmp_path / "band", **PAGE)
    objective, clipped = bandpo.Objective(bandpo.Band("kl", 0.05), aggregation="token-mean"), 0.0
    assert len(seen) == 12
    for loss, slope, logps, old, advantages, mask in seen:
        logps.requires_grad_()
        expected, metrics = bandpo.policy_loss(logps, old, advantages, mask, objective)
        assert_near((loss, slope), (expected.detach(), torch.autograd.grad(expected, logps)[0]), torch.float32)
        clipped += metrics.compute()["clip/high_fraction"]
    assert clipped > 0.1
    clip = trained(tmp_path / "clip", plugins=[PLUGIN], trust_region=CLIP)
    assert weights(band) != weights(clip)


@here
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trust_region": {"type": "bnd"}}, "'bnd'"),
        ({"trust_region": {"type": "gspo-token"}}, "gspo-token"),
        ({"trl": {"epsilon": 0.2}}, r"remove trl\.epsilon"),
        ({"trl": {"temperature": -1.0}}, "temperature must be positive"),
        ({"anchor": "samplr"}, "anchor"),
    ],
)
def test_what_is_wrong_through_axolotls_own_steps_is_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        trained(tmp_path, plugins=[PLUGIN], **changes)


@here
def test_another_plug_ins_trainer_is_refused(ours):
    settings = SimpleNamespace(trainer_cls=ours.TRAINER)
    with pytest.raises(ValueError, match="axolotl: remove the plug-in of SimpleNamespace, which takes no trust_region"):
        ours.Plugin().post_trainer_create(settings, SimpleNamespace())
    ours.Plugin().post_trainer_create(SimpleNamespace(trainer_cls=None), SimpleNamespace())
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        ours.nothing  # noqa: B018
