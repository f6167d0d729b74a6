"""The trainers whose loss has two numbers, in whose place the bounds of each token are put.

Their own functions run where they are installed, and with BANDPO_HOSTS=FOLDER: it has a checkout or an unpacked wheel
of each trainer, in a folder of its module's name (FOLDER/xtuner/xtuner/v1). Then what these import of others is a
stand-in, and torch.compile is off. The model's log-probabilities are put in. Else the helper and refusals are tested.
"""

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
import yaml
from made import BANDS, DECADES, around, assert_near, batch, docstring, executed, gradient, lines

import bandpo
from bandpo import integrations
from bandpo.integrations import RULE, Limits

FOLDER = os.environ.get("BANDPO_HOSTS")
CLIP = bandpo.Clip(0.2, 0.28)
PROBABILITIES = [p for p in DECADES if p >= 1e-7]


class Sources:
    """Find a host's modules in a folder. Packages run no `__init__` unless `whole`; `absent` ones are stand-ins."""

    def __init__(self, folder, package, absent=(), whole=()):
        self.folder, self.package, self.absent, self.whole = folder, package, absent, whole

    def find_spec(self, name, path=None, target=None):
        place, spec = self.folder / name.replace(".", "/"), importlib.util.spec_from_file_location
        if any(f"{name}.".startswith(f"{each}.") for each in self.absent):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        if name.split(".")[0] != self.package:
            return None
        if name in self.whole or not place.is_dir():
            return spec(name, place / "__init__.py" if place.is_dir() else place.with_suffix(".py"))
        hollow = importlib.machinery.ModuleSpec(name, None, is_package=True)
        hollow.submodule_search_locations = [str(place)]
        return hollow

    def create_module(self, spec):
        module = ModuleType(spec.name)
        module.__getattr__ = lambda name: MagicMock(name=name)
        return module

    def exec_module(self, module):
        pass


# ---- each host: the loss of log-probabilities, its own (None) or with a region, called as the host calls it


def xtuner(region, tensors, module):
    _, old, advantages, mask = tensors
    find = module("xtuner.v1.rl.loss.loss_fn").get_policy_loss_fn
    config = {"loss_type": "vanilla", "cliprange_low": 0.2, "cliprange_high": 0.28}
    if region is not None:
        config = executed("xtuner")["policy_loss_cfg"]
        config["trust_region"] = node(region, config)
    fn = find(config["loss_type"])
    return lambda x: fn(x, old, advantages, mask.to(old.dtype) / mask.sum(), config)


def trinity(region, tensors, module):
    _, old, advantages, mask = tensors
    registry = module("trinity.utils.registry").Registry("policy_loss_fn")
    name = "bandpo.integrations.trinity.BandPOLoss"
    named = {"trust_region": region and region.to_config()}
    if region is None:
        name, named = "trinity.algorithm.policy_loss_fn.ppo_policy_loss.PPOPolicyLossFn", {}
        named = {"clip_range_low": 0.2, "clip_range_high": 0.28}
    fn = registry.get(name)(backend="verl", **named)
    assert set(fn.select_keys) == {"old_log_probs", "response_mask", "advantages"}
    return lambda x: fn(logprob=x, old_log_probs=old, response_mask=mask, advantages=advantages)[0]


def rlinf(region, tensors, module):
    _, old, advantages, mask = tensors
    losses, registry = module("rlinf.algorithms.losses"), module("rlinf.algorithms.registry")
    if region is not None:
        module("bandpo.integrations.rlinf").register_bandpo_loss(region)
    named = {"task_type": "reasoning", "loss_type": "actor" if region is None else "bandpo", "clip_ratio_c": 3.0}
    named |= {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "fast_path_zero_loss_mask": True}
    named |= {"loss_agg_func": losses.masked_mean, "advantages": advantages, "loss_mask": mask, "old_logprobs": old}
    return lambda x: registry.policy_loss(logprobs=x, **named)[0]


def node(region, page):
    """What our page has where the region is the same, else the region's own node."""
    return page["trust_region"] if region == BANDS[0] else region.to_config()


def flags(host):
    """What the flags of our page set."""
    words = lines(host).split()
    return Namespace(**{flag[2:].replace("-", "_"): x for flag, x in zip(words[::2], words[1::2], strict=True)})


def megatron(host, losses, ours, region, tensors):
    """slime and miles: one sample a row, one list of tensors a field."""
    _, old, advantages, mask = tensors
    off = ("use_rollout_logprobs", "use_opsm", "get_mismatch_metrics", "use_tis", "use_kl_loss", "dump_details")
    args = Namespace(**dict.fromkeys(off), eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=3.0, advantage_estimator="grpo")
    args.calculate_per_token_loss, args.entropy_coef, args.skip_actor_forward_only = True, 0.0, False
    args.rollout_top_p = 1.0
    args.custom_pg_loss_reducer_function_path, args.qkv_format, args.observe_training_entropy = None, "thd", False
    args.trust_region = region and node(region, yaml.safe_load(re.search("holds `(.*?)`", docstring(host))[1]))
    lengths = [old.shape[1]] * len(old)
    rows = {"advantages": list(advantages), "log_probs": list(old), "loss_masks": list(mask.to(old.dtype))}
    rows |= {"response_lengths": lengths, "total_lengths": lengths, "unconcat_tokens": None}

    def mean(values):
        return (torch.stack(values.split(lengths)) * mask).sum() / mask.sum()

    def loss(x):
        made = {"log_probs": list(x), "entropy": list(torch.zeros_like(x))}
        return (losses.policy_loss_function if region is None else ours)(args, rows, made, mean)[0]

    return loss


def slime(region, tensors, module, monkeypatch):
    losses = module("slime.backends.megatron_utils.loss")
    monkeypatch.setattr(losses, "get_log_probs_and_entropy", lambda logits, **named: (None, logits))
    ours = region and losses.load_function(flags("slime").custom_loss_function_path)
    return megatron("slime", losses, ours, region, tensors)


def miles(region, tensors, module, monkeypatch):
    one = SimpleNamespace(cp=SimpleNamespace(size=1, rank=0))
    module("miles.backends.training_utils.parallel").set_parallel_state(one)
    losses = module("miles.backends.training_utils.loss_hub.losses")
    monkeypatch.setattr(losses, "get_log_probs_and_entropy", lambda logits, **named: logits)
    return megatron("miles", losses, region and losses.get_loss_function(flags("miles")), region, tensors)


def torchtitan(region, tensors, module, monkeypatch):
    _, old, advantages, mask = (x.flatten() for x in tensors)
    dapo = module("torchtitan.experiments.rl.losses.dapo")
    monkeypatch.setattr(dapo, "compute_logprobs", lambda logits, labels, **named: (logits, torch.zeros_like(logits)))
    if region is None:
        config = dapo.DAPOLoss.Config(ratio_clip_low=0.2, ratio_clip_high=0.28)
    else:
        config = module("bandpo.integrations.torchtitan").BandPOLoss.Config(trust_region=region)
    fn, named = config.build(), {"generator_logprobs": old, "advantages": advantages, "loss_mask": mask}
    return lambda x: fn(x.flatten(), None, mask.sum().item(), **named)[0]


TITAN = ["spmd_types", *(f"torchtitan.{name}" for name in ("distributed", "tools", "observability", "config.manager"))]
# What runs it, packages that are not here, `__init__`s that run, its dual clip, and its limit of the log-ratio.
RUNS = {
    "trinity": (trinity, ["trinity.utils.log"], [], 3.0, 20.0),
    "xtuner": (xtuner, [], [], 3.0, 20.0),
    "rlinf": (rlinf, ["rlinf.scheduler"], [], 3.0, None),
    "miles": (miles, ["ray", "miles.utils.http_utils", "miles.utils.ft_utils"], [], 3.0, 20.0),
    "slime": (slime, ["megatron", "slime.utils.http_utils"], [], 3.0, None),
    "torchtitan": (torchtitan, TITAN, ["torchtitan.config", "torchtitan.experiments.rl.losses"], None, 10.0),
}


def find(monkeypatch, sources):
    """Take a trainer's modules from BANDPO_HOSTS, else the installed ones, or skip."""
    if FOLDER is not None:
        if not sources.folder.is_dir():
            pytest.skip(f"BANDPO_HOSTS has no folder {sources.package}")
        monkeypatch.setattr(sys, "meta_path", [sources, *sys.meta_path])
        monkeypatch.setattr(torch, "compile", lambda fn=None, **named: fn or (lambda fn: fn))
    elif importlib.util.find_spec(sources.package) is None:
        pytest.skip(f"{sources.package} is not installed, and BANDPO_HOSTS names no folder")


def forget(before, *packages):
    """Let what came from BANDPO_HOSTS be imported anew."""
    for each in set(sys.modules) - before if FOLDER is not None else ():
        if each.split(".")[0] in packages:
            del sys.modules[each]


@pytest.fixture
def host(request, monkeypatch):
    """Return `loss(region, tensors)` of a host, from its own files."""
    name = request.param
    call, absent, whole, *_ = RUNS[name]
    before = set(sys.modules)
    find(monkeypatch, Sources(Path(FOLDER or "") / name, name, absent, whole))
    more = (monkeypatch,) if call in (slime, miles, torchtitan) else ()
    yield name, lambda region, tensors: call(region, tensors, importlib.import_module, *more)
    forget(before, name, *(x.split(".")[0] for x in absent))
    sys.modules.pop(f"bandpo.integrations.{name}", None)


def dtypes(name):
    """RLinf and the statistics of AReaL refuse float64, and miles and labs-molt compute ratios in float32."""
    return [torch.float32] if name in ("rlinf", "miles", "areal", "molt") else [torch.float32, torch.float64]


@pytest.mark.parametrize("host", RUNS, indirect=True)
def test_clip_is_the_hosts_own_loss_bit_for_bit(host):
    name, loss = host
    assert_clip_is_its_own(loss, dtypes(name))


@pytest.mark.parametrize("region", BANDS)
@pytest.mark.parametrize("host", RUNS, indirect=True)
def test_band_is_policy_loss(host, region):
    name, loss = host
    assert_band_is_policy_loss(loss, region, dtypes(name), *RUNS[name][3:])


def assert_clip_is_its_own(loss, dtypes):
    """Of a loss that is called with a region, or None for the trainer's own two numbers."""
    for dtype in dtypes:
        tensors = batch(PROBABILITIES, dtype=dtype)
        (value, slope), ours = (gradient(loss(region, tensors), tensors[0]) for region in (None, CLIP))
        assert torch.equal(ours[0], value)
        assert torch.equal(ours[1], slope)
        assert slope.count_nonzero() > 100


def assert_band_is_policy_loss(loss, region, dtypes, *limits):
    for dtype in dtypes:
        tensors = around(region, PROBABILITIES, dtype)
        assert_near(gradient(loss(region, tensors), tensors[0]), expected(region, tensors, *limits), dtype)


def expected(region, tensors, dual_clip=None, limit=None):
    logps, *rest = tensors
    objective = bandpo.Objective(region, dual_clip=dual_clip, max_log_ratio=limit, aggregation="token-mean")
    return gradient(lambda x: bandpo.policy_loss(x, *rest, objective)[0], logps)


# ---- the helper, on a loss of two numbers that is written here


def two_numbers(low, high, x, old, advantages, mask):
    ratio = (x - old).exp()
    least = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    return -(least * mask).sum() / mask.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("region", [CLIP, *BANDS])
def test_bounds_stand_where_two_numbers_stood(region, dtype):
    tensors = logps, old, advantages, mask = around(region, PROBABILITIES, dtype)
    limits = Limits("slime", region.to_config(), "low", "high")
    mine, theirs = {"low": 0.2, "high": 0.28}, Namespace(low=0.2, high=0.28, more=1)
    as_dict, as_object = (limits(owner, old, advantages, mask) for owner in (mine, theirs))
    assert (mine, theirs) == ({"low": 0.2, "high": 0.28}, Namespace(low=0.2, high=0.28, more=1))  # copies
    assert as_object.more == 1
    for given in (as_dict, vars(as_object)):
        found = gradient(lambda x, of=given: two_numbers(of["low"], of["high"], x, *tensors[1:]), logps)
        assert_near(found, expected(region, tensors), dtype)
    if region is CLIP:
        own = gradient(lambda x: two_numbers(0.2, 0.28, x, *tensors[1:]), logps)
        assert torch.equal(found[0], own[0])
        assert torch.equal(found[1], own[1])


@pytest.mark.parametrize("mask", [None, torch.ones(2, dtype=torch.bool)])
def test_a_nan_of_the_old_policy_has_bounds_without_nan(mask):
    old = torch.tensor([float("nan"), -1.0])
    found = Limits("miles", "band-kl", "low", "high")({}, old, torch.ones(2), mask)
    assert all(torch.isfinite(x).all() for x in found.values())


# ---- refusals: the host, the setting, the reason, what to write


class Asking(bandpo.Region):
    def __init__(self, field):
        self.required = (field,)

    def bounds(self, old_logps, context=None):
        return CLIP.bounds(old_logps)


NAMES = ("Trinity-RFT", "xtuner", "RLinf", "miles", "slime", "torchtitan")
NORM = bandpo.Objective(aggregation="seq-mean-token-sum-norm")
ANCHOR = "its ratio is to the sampler's policy"
LOOP = ANCHOR + ", which {0} does not have; call policy_loss in your own loop, "
WRONG = [
    *((name, Asking("entropies"), r"entropies, which {0} .* call policy_loss in your own loop") for name in NAMES),
    *((name, "gspo", "'gspo': ratio must be 'token' through {0}, got 'sequence-mean': {0} clamps") for name in NAMES),
    *((name, NORM, "aggregation must be None through {0}, got .*: the average is {0}'s own, ") for name in NAMES),
    *((name, "dppo", LOOP) for name in ("xtuner", "RLinf")),
    *((name, "dppo", ANCHOR + "; set --use-rollout-logprobs") for name in ("miles", "slime")),
    ("Trinity-RFT", bandpo.Objective(dual_clip=3.0), "the dual clip is {0}'s own, clip_ratio_c"),
    ("slime", Asking("response_mask"), r"Asking needs response_mask, which {0} does not give .* train with TRL or "),
]


@pytest.mark.parametrize(("name", "rule", "message"), WRONG)
def test_a_wrong_rule_is_refused_before_the_first_step(name, rule, message):
    with pytest.raises(ValueError, match=message.format(name)):
        Limits(name, rule, "low", "high")


def test_an_average_is_taken_where_it_is_the_hosts_and_a_methods_is_told(caplog):
    whole = bandpo.Objective(CLIP, aggregation="token-mean")
    assert Limits("slime", whole, "low", "high", average="True").region == CLIP
    assert Limits("xtuner", whole, "low", "high").region == CLIP  # its only one
    with pytest.raises(ValueError, match="of which calculate_per_token_loss='True' is that average"):
        Limits("slime", whole, "low", "high", average="False")
    with caplog.at_level("WARNING", RULE.name):
        integrations._SAID.clear()
        Limits("miles", "dapo", "low", "high", average="False")
    (line,) = [each for each in caplog.messages if each.startswith("dapo: ")]
    assert "miles averages by calculate_per_token_loss='False' (seq-mean-token-mean); its paper takes" in line


MEGATRON = {"slime": "slime.backends.megatron_utils.loss", "miles": "miles.backends.training_utils.loss_hub.losses"}


@pytest.fixture
def ours(monkeypatch):
    """Import a module of ours over a stand-in for the one of the host that it imports."""

    def opened(name, theirs, **names):
        module = ModuleType(theirs)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, theirs, module)
        monkeypatch.delitem(sys.modules, f"bandpo.integrations.{name}", raising=False)
        return importlib.import_module(f"bandpo.integrations.{name}")

    yield opened
    for name in RUNS:
        sys.modules.pop(f"bandpo.integrations.{name}", None)


def test_a_wrong_setting_is_refused_before_the_first_step(ours):
    x = torch.zeros(2)
    xtuner = ours("xtuner", "xtuner.v1.rl.loss.loss_fn", pg_loss_fn=None)
    with pytest.raises(ValueError, match=r"xtuner: trust_region .* replaces \['cliprange_low'\]; remove them"):
        xtuner.loss(x, x, x, x, {"cliprange_low": 0.2})
    trinity = ours("trinity", "trinity.algorithm.policy_loss_fn.ppo_policy_loss", PPOPolicyLossFn=object)
    for name in ("clip_range", "fallback_to_policy_gradient"):
        with pytest.raises(ValueError, match=rf"Trinity-RFT: remove \['{name}'\] from policy_loss_fn_args"):
            trinity.BandPOLoss(**{name: True})
    known = {"register_policy_loss": lambda name: registered.append, "get_policy_loss": None}
    registered = []
    ours("rlinf", "rlinf.algorithms.registry", **known).register_bandpo_loss()
    with pytest.raises(ValueError, match=r"RLinf: runner\.task_type must be .*, got 'embodied'"):
        registered[0](task_type="embodied")
    for name, path in MEGATRON.items():
        module = ours(name, path, policy_loss_function=None)
        with pytest.raises(ValueError, match=f"{name}: --advantage-estimator gspo has no clip per token; take grpo"):
            module.loss(Namespace(advantage_estimator="gspo"), {}, x, None)


@pytest.mark.parametrize("name", ["slime", "miles"])
@pytest.mark.parametrize("of", ["log_probs", "rollout_log_probs"])
def test_a_flag_makes_the_sampler_the_anchor(ours, name, of):
    module = ours(name, MEGATRON[name], policy_loss_function=lambda args, *_: args)
    args = Namespace(advantage_estimator="grpo", custom_pg_loss_reducer_function_path=None)
    args.use_rollout_logprobs, args.calculate_per_token_loss = of == "rollout_log_probs", False
    rows = {"log_probs": [torch.full((2,), -1.0)], "rollout_log_probs": [torch.full((2,), -2.0)]}
    found = module.loss(args, rows | {"advantages": [torch.ones(2)]}, None, None)
    assert torch.equal(found.eps_clip_high, bandpo.Band().bounds(rows[of][0]).eps_high)
