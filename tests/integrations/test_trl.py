"""BandPOTrainer against TRL's own GRPOTrainer, and against `policy_loss`."""

import copy
import dataclasses
import datetime
import faulthandler
import functools
import inspect
import json
import math
import os
import pickle
import re
import warnings
from pathlib import Path

import pytest
import torch
import trl.trainer.utils
from commands import missing
from packaging.version import Version
from transformers import HfArgumentParser, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import bandpo
import tiny
from bandpo import Band, BySign, Clip, Objective, Region, integrations
from bandpo.integrations.trl import MAIN_METRICS, BandPOConfig, BandPOTrainer
from bandpo.integrations.trl_settings import LOSS_TYPES
from bandpo.losses.metrics import Metrics
from bandpo_runs import toy

AGGREGATION = {
    "grpo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
    "dapo": "token-mean",
}
# Before 1.9.1 TRL divided by the tokens of all the steps of a generation, not of one.
DAPO_STEPS = 4 if Version(trl.__version__) >= Version("1.9.1") else 1


def build(cls, args, region=None, model=None, reward=tiny.count_a, **named):
    named |= {} if region is None else {"trust_region": region}
    trainer = cls(model or tiny.model(), reward, args, tiny.rows(), processing_class=toy.tokenizer(), **named)
    trainer.remove_callback(PrinterCallback)
    return trainer


def train(cls, args, region=None, model=None, **named):
    trainer = build(cls, args, region, model, **named)
    trainer.train()
    return trainer


def is_at_the_call(warning):
    """Whether a warning points at the line where a trainer is made, which is in `build`."""
    first, end = (function.__code__.co_firstlineno for function in (build, train))
    return warning.filename == __file__ and first < warning.lineno < end


full = functools.partial(tiny.settings, kind=BandPOConfig, all_metrics=True)


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


def same_run(a, b):
    """TRL's log and the weights at the end."""
    return (history(a), same_weights(a, b)) == (history(b), True)


def clipped_shares(trainer):
    """Shares of tokens cut below and above, over the whole run."""
    rows = [r for r in trainer.state.log_history if "bandpo/tokens" in r]
    tokens = sum(r["bandpo/tokens"] for r in rows)
    return [
        sum(r[f"bandpo/cut/{side}_fraction"] * r["bandpo/tokens"] for r in rows) / tokens for side in ("low", "high")
    ]


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.slow
def test_clip_equals_trl_bit_for_bit_where_it_binds(tmp_path, loss_type):
    args = {"loss_type": loss_type, "epsilon": 0.2, "max_grad_norm": 1.0}
    theirs = train(GRPOTrainer, tiny.settings(tmp_path, **args))
    ours = train(BandPOTrainer, full(tmp_path, **args), Clip(0.2, 0.2))
    other = train(BandPOTrainer, tiny.settings(tmp_path, **args), Clip(0.1, 0.1))
    assert min(clipped_shares(ours)) >= 0.02
    assert same_run(ours, theirs)
    assert not same_weights(other, theirs)


@pytest.mark.slow
def test_uneven_epsilons_accumulation_and_kl_equal_trl_bit_for_bit(tmp_path):
    args = {"gradient_accumulation_steps": 2, "beta": 0.04, "max_steps": 8}
    start = str(tmp_path / "start")  # TRL loads the reference model from where the model came from
    tiny.model().save_pretrained(start)
    theirs = train(GRPOTrainer, tiny.settings(tmp_path, epsilon_high=0.28, **args), model=start)
    ours = train(BandPOTrainer, full(tmp_path, **args), Clip(0.2, 0.28), model=start)
    assert "kl" in ours.state.log_history[0]
    assert min(clipped_shares(ours)) >= 0.02
    assert same_run(ours, theirs)


class Recording(BandPOTrainer):
    """Keeps what the loss saw and gave. Without an `__init__`, so that warnings point at who makes it."""

    def _compute_loss(self, model, inputs):
        self.seen = []
        loss = super()._compute_loss(model, inputs)
        vars(self).setdefault("records", []).append((inputs, self.seen, loss))
        return loss

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        out = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self.seen = out[0]
        if self.seen.requires_grad:
            self.seen.retain_grad()
        return out


def policy_losses(trainer, record, objective, of="old_per_token_logps"):
    """Return TRL's value and gradient of a recorded batch, those of `policy_loss` by TRL's average, and its metrics."""
    inputs, logps, theirs = record
    mask, loss_type = inputs["completion_mask"].bool(), trainer.args.loss_type
    normalizers = {"dr_grpo": len(mask) * trainer.max_completion_length}
    normalizers["dapo"] = inputs["num_items_in_batch"] / DAPO_STEPS
    objective = dataclasses.replace(objective, aggregation=AGGREGATION[loss_type])
    ours = logps.detach().clone().requires_grad_()
    named = {"normalizer": normalizers.get(loss_type)}
    loss, metrics = bandpo.policy_loss(ours, inputs[of], inputs["advantages"], mask, objective, **named)
    return (theirs.detach(), logps.grad), (loss.detach(), torch.autograd.grad(loss, ours)[0]), metrics


@pytest.mark.parametrize("rule", [Band(), Objective(Clip(1.0, 0.1), surrogate="weight")], ids=["clamp", "loss"])
def test_the_trainer_is_left_as_it_was_even_if_the_loss_raises(tmp_path, monkeypatch, rule):
    trainer = build(BandPOTrainer, tiny.settings(tmp_path, max_steps=2), rule)
    state = lambda: (trainer.epsilon_low, trainer.epsilon_high, trainer.args.delta, trainer._loss_inputs)  # noqa: E731
    before = state()
    trainer.train()
    assert state() == before

    def fail(self, model, inputs):
        assert (self.args.delta == -math.inf) == self._replaces
        self.epsilon_low = self.epsilon_high = torch.zeros(3)
        raise RuntimeError("lost")

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", fail)
    with pytest.raises(RuntimeError, match="lost"):
        trainer._compute_loss(trainer.model, {"completion_mask": torch.ones(2, 3)})
    assert state() == before


@pytest.mark.parametrize("rule", [Band(), Objective(Clip(0.2, 0.2), surrogate="mask")], ids=["clamp", "loss"])
def test_an_evaluation_is_in_no_number_of_the_training(tmp_path, rule):
    ours = ("bandpo/", "clip_ratio/") if rule != Band() else ("bandpo/",)  # TRL's, of a ratio that is not there

    def numbers(trainer):
        trainer.train()
        history = trainer.state.log_history
        keys = [key for row in history if "eval_reward" in row for key in row]
        assert not [key for key in keys if key.removeprefix("eval_").startswith(ours)]
        assert bool(keys) == (trainer.args.eval_strategy != "no")
        return [{k: v for k, v in row.items() if k.startswith("bandpo/")} for row in history if "loss" in row]

    more = {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 16}
    evaluated = numbers(build(BandPOTrainer, full(tmp_path, max_steps=8, **more), rule, eval_dataset=tiny.rows(4)))
    assert (len(evaluated), evaluated) == (8, numbers(build(BandPOTrainer, full(tmp_path, max_steps=8), rule)))


def test_eight_numbers_a_row_unless_all_are_asked_for(tmp_path):
    short, long = (
        train(BandPOTrainer, kind(tmp_path, max_steps=8), Band("kl", 0.05)).state.log_history[:-1]
        for kind in (tiny.settings, full)
    )
    assert {key for row in short for key in row if "bandpo/" in key} == {f"bandpo/{name}" for name in MAIN_METRICS}
    assert {f"bandpo/log_ratio/{name}" for name in ("min", "max", "saturated_fraction")} < long[0].keys()
    for row, kept in zip(long, short, strict=True):
        assert {key: row[key] for key in kept if key != "step_time"} == {k: kept[k] for k in kept if k != "step_time"}


class LogsByItself(TrainerCallback):
    """What a user's callback may do (not at the end of a step: transformers' own row would be left out there)."""

    def __init__(self, log):
        self.log = log

    def on_step_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            self.log({"mine": 1.0})


def join(rank, folder):
    """Make this process one of two. One that hangs says where."""
    faulthandler.dump_traceback_later(600, exit=True)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # asked for, but not used: the group is there
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{folder}/store", datetime.timedelta(minutes=10), world_size=2, rank=rank
    )


def _process(rank, folder, work, arguments):
    join(rank, folder)
    torch.save(work(folder, *arguments), Path(folder) / f"{rank}.pt")
    # `destroy_process_group` has no limit of time, and hung in a process that had finished (torch 2.13, gloo).
    os._exit(0)


def in_two_processes(work, folder, *arguments):
    """Return what `work(folder, ...)` returns in each of two processes."""
    torch.multiprocessing.spawn(_process, (str(folder), work, arguments), nprocs=2)
    return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(2)]


def recorded(folder):
    args = full(folder, max_steps=8, logging_steps=8, per_device_train_batch_size=8, ddp_find_unused_parameters=False)
    trainer = build(Recording, args, Band("kl", 0.05))
    trainer.add_callback(LogsByItself(trainer.log))
    trainer.train()
    names = ("old_per_token_logps", "advantages", "completion_mask")
    seen = [(logps.detach(), *(inputs[name] for name in names)) for inputs, logps, _ in trainer.records]
    return seen, trainer.state.log_history


@pytest.mark.slow
def test_one_of_two_processes_may_log_and_the_sums_are_over_both(tmp_path):
    (seen, log), (others, _) = in_two_processes(recorded, tmp_path)
    (row,) = [row for row in log if "bandpo/tokens" in row]
    assert (row["step"], "loss" in row, sum("mine" in row for row in log)) == (8, True, 8)
    batches = [bandpo.policy_loss(*batch[:3], batch[3].bool(), Band("kl", 0.05))[1] for batch in (*seen, *others)]
    expected = functools.reduce(Metrics.merge, batches).compute()
    assert {name: row[f"bandpo/{name}"] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert expected["clip/count"] > 0


def test_the_region_can_come_from_the_config_and_only_from_one_place(tmp_path):
    args = tiny.settings(tmp_path, BandPOConfig, trust_region='{"type": "band", "divergence": "tv", "delta": 0.1}')
    for rule in (None, Band("tv", 0.1)):  # the same is not a second one
        assert build(BandPOTrainer, args, rule).trust_region == Band("tv", 0.1)
    with pytest.raises(ValueError, match="twice"):
        build(BandPOTrainer, args, Band())
    assert build(BandPOTrainer, tiny.settings(tmp_path)).trust_region == Band("kl", 0.05)


def test_the_config_keeps_every_field_of_trl_and_has_a_help_text_for_each():
    names = lambda cls: {f: p.default for f, p in inspect.signature(cls).parameters.items()}  # noqa: E731
    ours, theirs = names(BandPOConfig), names(GRPOConfig)
    added = {"trust_region", "all_metrics", "anchor", "tokens_path", "tokens_share", "stop_if_not_finite"}
    assert (set(ours) - set(theirs), {k: v for k, v in ours.items() if k in theirs}) == (added, theirs)
    assert not ours.keys() & {each.dest for each in HfArgumentParser(BandPOConfig)._actions if not each.help}


GSPO = Objective(Clip(0.02, 0.02), ratio="sequence-mean")
CISPO = Objective(Clip(1.0, 0.1), surrogate="weight")
SEQUENCE = {"importance_sampling_level": "sequence"}
LEVEL = "importance_sampling_level must be 'token' with .*, got 'sequence': write ratio"
CISPO_LOSS = "loss_type 'cispo' needs trust_region='cispo'; with"
SAPO_LOSS = "loss_type 'sapo' has no clip .* set loss_type to .*, and trust_region='sapo' for SAPO's loss$"
TWO_SIDED = r"delta = {0} is TRL's two-sided clip .*; did you mean trust_region=Band\('kl', {0}\)\?$"
REFUSED = [
    (Band(), SEQUENCE | {"loss_type": "grpo"}, LEVEL),
    (Objective(Band(), ratio="sequence"), SEQUENCE, LEVEL),
    (Objective(BySign(Clip(), Clip()), ratio="sequence-mean"), SEQUENCE, LEVEL),
    (dataclasses.replace(GSPO, surrogate="mask"), SEQUENCE, LEVEL),
    (Band(), {"loss_type": "cispo"}, CISPO_LOSS),
    (Objective(Clip(1.0, 4.0)), {"loss_type": "cispo"}, CISPO_LOSS),
    (Objective(Clip(0.2, 4.0), surrogate="weight"), {"loss_type": "cispo"}, CISPO_LOSS),
    (Objective(Band(), surrogate="weight"), {"loss_type": "cispo"}, CISPO_LOSS),
    (Band(), {"loss_type": "sapo"}, SAPO_LOSS),
    (CISPO, {"loss_type": "sapo"}, SAPO_LOSS),
    (Band(), {"loss_type": "vespo"}, "loss_type 'vespo' has no clip"),
    (Objective(Clip()), {"loss_type": "luspo"}, "loss_type 'luspo' needs trust_region='luspo'"),
    (GSPO, {"loss_type": "luspo"}, "loss_type 'luspo' needs .*importance_sampling_level='sequence'"),
    (Band(), {"epsilon": 0.1}, 'Remove epsilon = 0.1: your Band."kl", 0.05. replaces it'),
    (Band(), {"epsilon_high": 0.28}, "Remove epsilon_high = 0.28"),
    (Band(), {"use_liger_kernel": True}, "use_liger_kernel must be False .*; .* by bandpo.integrations.liger"),
    (Band(), {"generation_kwargs": {"temperature": 0.7}}, "temperature must be .* 1.0, tokens sampled at 0.7"),
    (Band(), {"temperature": 0.0}, "temperature must be positive"),
    (Clip(0.2, 0.2), {"delta": 0.05}, TWO_SIDED.format(0.05)),
    (Clip(0.2, 0.2), {"delta": 1}, TWO_SIDED.format(1)),
    (Clip(0.2, 0.2), {"delta": 1.5}, r"delta must not be set with Clip\(0\.2, 0\.2\), got 1\.5: .*; write dual_clip=1"),
    (CISPO, {"loss_type": "cispo", "delta": 2.0}, "delta must not be set with .*dual_clip"),
    (CISPO, {"off_policy_mask_threshold": 1.0}, "off_policy_mask_threshold must not be set with .*mask"),
    (Objective(beta=0.1), {}, "beta must be .* through TRL, got 0.1: .+"),
    (Objective(beta=0.1, kl_penalty="k2"), {}, "beta must be .* through TRL, got 0.1: .+"),
    (Objective(aggregation="seq-mean-token-mean"), {}, "aggregation must be .* through TRL, got .*: .+"),
    (bandpo.losses.method("dis"), {}, "method 'dis': its .* sampler's policy; set anchor='sampler' of BandPOConfig"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "changes", "message"), REFUSED, ids=str)
def test_settings_without_bounds_per_token_are_refused_before_anything_is_loaded(tmp_path, rule, changes, message):
    if not changes.keys() <= GRPOConfig.__dataclass_fields__.keys():
        pytest.skip("this TRL does not have the setting")
    for each in (rule, rule.to_config()):
        with pytest.raises(ValueError, match=f"^{message}"):
            build(BandPOTrainer, tiny.settings(tmp_path, **changes), each, "no/such-model")
        with pytest.raises(ValueError, match=f"^{message}"):
            tiny.settings(tmp_path, BandPOConfig, trust_region=each, **changes)


NODE = {"type": "band", "divergence": "tv", "delta": 0.1}


ALONE = Objective(Band("tv", 0.1))
MASK = Objective(Band("tv", 0.1), surrogate="mask")
WRITTEN = [
    *((rule, ALONE, NODE) for rule in (Band("tv", 0.1), NODE, json.dumps(NODE))),
    *((rule, ALONE, NODE) for rule in (ALONE, ALONE.to_config(), json.dumps(ALONE.to_config()))),
    *((rule, MASK, MASK.to_config()) for rule in (MASK, json.dumps(MASK.to_config()))),
]


@pytest.mark.parametrize(("rule", "objective", "node"), WRITTEN, ids=str)
def test_a_config_keeps_a_rule_as_a_node_that_trackers_can_show(tmp_path, rule, objective, node):
    args = tiny.settings(tmp_path, BandPOConfig, trust_region=rule)
    shown = json.loads(args.to_json_string())  # what tensorboard's callback does
    assert shown["trust_region"] == args.trust_region == node
    assert "'tv'" in shown["epsilon"]
    assert "tv" in str(args.to_sanitized_dict()["trust_region"])
    assert pickle.loads(pickle.dumps(args)) == copy.deepcopy(args) == args
    trainer = build(BandPOTrainer, args)
    assert (trainer.objective, trainer.args.trust_region, trainer.args.delta) == (objective, node, None)


def test_a_config_takes_a_region_from_the_command_line(tmp_path):
    words = ["--trust_region", json.dumps(NODE), "--all_metrics", "--use_cpu", "--bf16", "false"]
    words += ["--output_dir", str(tmp_path), "--gradient_checkpointing", "false"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the parser passes every setting, deprecated ones too
        (args,) = HfArgumentParser(BandPOConfig).parse_args_into_dataclasses(words)
    assert (args.trust_region, args.all_metrics) == (NODE, True)


class OfMyOwn(Region):
    """A rule without a node."""

    def bounds(self, old_logps, context=None):
        return Clip(0.2, 0.2).bounds(old_logps)

    def __repr__(self):
        return "OfMyOwn()"


NO_RULE = {"bnd": "'bnd'", "{": "'{'", json.dumps({"type": "bend"}): "'bend'", 3: "3", OfMyOwn(): "OfMyOwn()"}
WRONG = [
    *(({"trust_region": rule}, rf"(must be .*got |is called |delta: 0.05}}, got |^){re.escape(named)}")
      for rule, named in NO_RULE.items()),
    *(({"tokens_path": "x", "tokens_share": share}, r"tokens_share must be .* \(0, 1\], got ")
      for share in (0, 1.5, True, "0.1", math.nan)),
    ({"tokens_path": ""}, "tokens_path must be .*, got ''"),
    ({"anchor": "rollout"}, "anchor must be 'old' or 'sampler', got 'rollout'"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=str)
def test_a_config_names_what_is_wrong(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        tiny.settings(tmp_path, BandPOConfig, **changes)


@pytest.mark.parametrize("rule", [{"trust_region": Band()}, {}], ids=["a rule", "none"])
def test_trls_trainer_does_not_ignore_a_region_in_silence(tmp_path, rule):
    with pytest.raises(TypeError, match=r"ignored: epsilon is .*BandPOConfig is for .*BandPOTrainer"):
        train(GRPOTrainer, tiny.settings(tmp_path, BandPOConfig, **rule))


@pytest.mark.parametrize(
    ("region", "node", "name", "paper"),
    [
        (Band("tv", 0.1), NODE, "BandPO", "2603.04918"),
        (Clip(0.2, 0.28), {"type": "clip", "eps_low": 0.2, "eps_high": 0.28}, "GRPO", "2402.03300"),
        (OfMyOwn(), "OfMyOwn()", "GRPO", "2402.03300"),
    ],
    ids=str,
)
def test_a_region_given_to_the_trainer_is_kept_with_what_it_made(tmp_path, region, node, name, paper):
    args = tiny.settings(tmp_path, max_steps=1, save_strategy="steps", save_steps=1)
    trainer = train(BandPOTrainer, args, region)
    saved = torch.load(tmp_path / "checkpoint-1" / "training_args.bin", weights_only=False)
    stored = json.loads(saved.to_json_string())["trust_region"], saved.epsilon
    assert stored == (node, f"replaced by the trust region {node}")
    card = (tmp_path / "README.md").read_text()
    assert not missing(card, f"was trained with {name} (trust region {node})", paper)
    assert ("- bandpo" in card) == (name == "BandPO")
    assert (type(args), args.epsilon) == (GRPOConfig, 0.2)  # the caller's, who may want it for another rule
    assert trainer.trust_region is region


def test_the_stored_log_probabilities_are_those_sampled_from(tmp_path):
    """TRL divides the logits by the temperature; a band at another temperature would be another band."""
    ((kept, *_),) = train(Recording, tiny.settings(tmp_path, temperature=0.5, max_steps=1)).records
    tokens, mask = torch.cat([kept["prompt_ids"], kept["completion_ids"]], 1), kept["completion_mask"].bool()
    with torch.no_grad():
        logps = (tiny.model()(input_ids=tokens).logits[:, :-1] / 0.5).log_softmax(-1)
    expected = logps.gather(-1, tokens[:, 1:, None])[..., 0][:, -mask.shape[1] :]
    torch.testing.assert_close(kept["old_per_token_logps"][mask], expected[mask], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("accumulation", "generation", "iterations", "rule"),
    [(*each, Band()) for each in ((3, 2, 1), (4, 2, 1), (2, 2, 1), (1, 1, 2), (1, 1, 1))]
    + [(1, 1, 1, Clip(1.0, math.inf))],  # no clip was asked for: no warning
    ids=str,
)
def test_no_effect_is_said_once_exactly_where_trl_is_on_policy(tmp_path, accumulation, generation, iterations, rule):
    """Also where the steps and the generations are out of step: a batch of two then serves two steps of three."""
    batches = {"steps_per_generation": generation, "num_iterations": iterations}
    args = tiny.settings(tmp_path, gradient_accumulation_steps=accumulation, max_steps=2, **batches)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = train(Recording, args, rule)
    cure = f"steps_per_generation to 4 x gradient_accumulation_steps ({4 * accumulation})"
    warned = [(is_at_the_call(w), cure in str(w.message)) for w in caught if "has no effect" in str(w.message)]
    on_policy = [not (logps - inputs.get("old_per_token_logps", logps)).any() for inputs, logps, _ in trainer.records]
    assert all(on_policy) == (accumulation % (generation * iterations) == 0)
    assert warned == [(True, True)] * (all(on_policy) and rule == Band())


def test_a_dual_clip_is_trl_delta_and_is_counted(tmp_path):
    ours = train(BandPOTrainer, tiny.settings(tmp_path, max_steps=8), Objective(Clip(0.2, 0.2), dual_clip=1.3))
    theirs, plain = (train(GRPOTrainer, tiny.settings(tmp_path, max_steps=8, delta=delta)) for delta in (1.3, None))
    weights = [[*trainer.model.parameters()] for trainer in (ours, theirs)]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
    assert history(theirs) != history(plain)
    assert max(row.get("bandpo/dual_clip/fraction", 0) for row in ours.state.log_history) > 0.01


@pytest.mark.parametrize("name", ["BandPOTrainer", "BandPOConfig", "trl", "verl"])
def test_the_package_says_where_the_trainer_is(name):
    line = f"import bandpo.integrations.{name}" if name.islower() else f"from bandpo.integrations.trl import {name}"
    with pytest.raises(ImportError, match=f"^use: {line}$"):
        exec(f"from bandpo import {name}")
    with pytest.raises(AttributeError, match=f"^use: {line}$"):
        getattr(bandpo, name)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"top_k": 5}, ["top_k = 5"]),
        ({"generation_kwargs": {"top_p": 0.9, "repetition_penalty": 1.2}}, ["top_p = 0.9, repetition_penalty = 1.2"]),
        ({"generation_kwargs": {"min_p": 0.1}}, ["min_p = 0.1"]),
        ({"generation_kwargs": {"do_sample": False}}, ["do_sample = False"]),
        ({"temperature": 0.7, "generation_kwargs": {"temperature": 0.7}}, []),  # the loss has it too
        (
            {"top_p": 0.9, "generation_kwargs": {"top_p": 1.0, "top_k": None, "max_new_tokens": 4}},
            [],
        ),  # the last counts
    ],
    ids=str,
)
def test_truncated_sampling_is_warned_about(tmp_path, changes, named):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build(BandPOTrainer, tiny.settings(tmp_path, **changes), Band())
    warned = [w for w in caught if ": tokens" in str(w.message)]
    assert [(str(w.message).partition(": tokens")[0], is_at_the_call(w)) for w in warned] == [(x, True) for x in named]


def test_token_logps_is_trls_fused_head():
    kernels = pytest.importorskip("trl.kernels")
    torch.manual_seed(0)
    inputs = [torch.randn(*size, requires_grad=True) for size in ((40, 16), (101, 16))]
    tokens, up = torch.randint(101, (40,)), [torch.randn(40), torch.randn(40)]
    apply = kernels.ChunkedLogProbFunction.apply
    theirs = apply(*inputs, None, tokens, 0.7, 32, None, 1.0, ("log_probs", "entropy"))[:2]
    ours = bandpo.losses.token_logps(*inputs, tokens, temperature=0.7, entropies=True, chunk=16)
    slopes = (torch.autograd.grad(out, inputs, up) for out in (ours, theirs))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(*slopes, rtol=1e-5, atol=5e-5)


def test_the_trainer_says_what_the_rule_allows_and_which_average_a_method_gets(tmp_path, caplog):
    integrations._SAID.clear()  # once in a process
    build(BandPOTrainer, tiny.settings(tmp_path, loss_type="dapo"), "gspo")
    average, allowed = (line for line in caplog.messages if "gspo" in line or "0.9997" in line)
    assert not missing(average + allowed, "gspo: ", "loss_type='dapo'", "loss_type='grpo'", "0.9997 to 1.0004; ")


def test_a_subclass_of_the_config_takes_its_own_settings(tmp_path):
    class Open(BandPOConfig):
        def __init__(self, *others, radius, **named):
            super().__init__(*others, **named, trust_region=Band("kl", radius))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of TRL's own default
        args = Open(str(tmp_path), radius=0.1, bf16=False)
    assert args.trust_region == copy.deepcopy(args).trust_region == Band("kl", 0.1).to_config()
