"""A controlled rule in verl: moved once in an update by what all of it measured, kept in verl's checkpoints."""

from functools import partial, reduce
from types import SimpleNamespace

import pytest
import torch
import verl_toy
from test_verl_loss import bandpo_actor, batch, module_of, run
from torch.optim.lr_scheduler import LambdaLR
from verl_toy import EPOCHS, SIZE, region

from bandpo import Band, Controlled, Objective, Quantile, policy_loss
from bandpo.integrations.run_state import NAME
from bandpo.integrations.verl import Controller
from bandpo.losses.metrics import Metrics

ACTOR = "actor_rollout_ref.actor"
RULE = Controlled(Band("kl", 0.001), "delta", "clip/fraction", 0.3, Quantile(0.5), 1e-5, 1.0, smoothing=0.5)


def controlled(law="{type:quantile,gain:0.5}", **changed):
    """RULE on the command line."""
    node = {"region": "{type:band,divergence:kl,delta:0.001}", "parameter": "delta", "measure": "clip/fraction"}
    node |= {"target": 0.3, "law": law, "low": 1e-5, "high": 1.0, "smoothing": 0.5}
    return [*verl_toy.OURS, region(type="controlled", **node | changed)]


FIXED = [*verl_toy.OURS, region(type="band", divergence="kl", delta=0.001)]
CLIP = [*verl_toy.OURS, region(type="objective", trust_region="{type:clip,eps_low:0.05,eps_high:0.08}", dual_clip=1.5)]
VERLS = [f"{ACTOR}.clip_ratio_low=0.05", f"{ACTOR}.clip_ratio_high=0.08", f"{ACTOR}.clip_ratio_c=1.5"]
BY_TOKENS = [f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=30"]
WITHOUT = f"{ACTOR}.checkpoint.{{}}_contents=[model,optimizer]"
CASES = {
    "whole": {"settings": controlled(), "updates": 4, "save": ["whole", 2]},
    "resumed": {"settings": controlled(), "updates": 2, "load": "whole"},
    "by tokens": {"settings": [*controlled(), *BY_TOKENS], "updates": 2},
    "entropy": {"settings": controlled(measure="entropy", target=1.0), "updates": 2},
    "still": {"settings": controlled("{type:'verl_rule:Still'}"), "updates": 2},
    "fixed": {"settings": FIXED, "updates": 2, "save": ["fixed", 1]},
    "verl's own": {"settings": VERLS, "updates": 2, "save": ["verls", 1]},
    "put in": {"settings": CLIP, "load": "verls"},
    "clip": {"settings": CLIP, "updates": 2, "save": ["ours", 1]},
    "taken out": {"settings": VERLS, "load": "ours"},
    "clip after a controlled rule": {"settings": CLIP, "load": "whole"},
    "verl's own after a controlled rule": {"settings": VERLS, "load": "whole"},
    "after a fixed rule": {"settings": controlled(), "load": "fixed", "refused": True},
    "after another rule": {"settings": controlled(target=0.2), "load": "whole", "refused": True},
    "not saved": {"settings": [*controlled(), WITHOUT.format("save")], "refused": True},
    "not loaded": {"settings": [*controlled(), WITHOUT.format("load")], "refused": True},
}


def settings_of(folder, case, out):
    base = [
        *verl_toy.actor_settings(folder),
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
        f"{ACTOR}.optim.lr=1e-2",
        f"{ACTOR}.optim.total_training_steps=10",
    ]
    case = {**case, "settings": [*base, *case["settings"]]}
    if "load" in case:
        case["load"] = f"{out}/{case['load']}"
    if "save" in case:
        case["save"] = [f"{out}/{case['save'][0]}", case["save"][1]]
    return case


@pytest.fixture(scope="module")
def updates(tmp_path_factory):
    """{ranks: [{case: result}, one per rank]}; the case "killed" goes on after a run that died in its third update."""
    folder = tmp_path_factory.mktemp("control")
    verl_toy.write(folder)
    calls = EPOCHS * SIZE // 4  # in an update
    dies = {"settings": controlled(), "updates": 3, "save": ["killed", 2], "kill_at": 2 * calls + 3}
    verl_toy.update_actor(folder, folder / "0", {"dies": settings_of(folder, dies, folder)}, dies=True)
    results = {}
    for ranks in (1, 2):
        out = folder / str(ranks)
        some = CASES if ranks == 2 else {name: CASES[name] for name in ("whole", "resumed")}
        cases = {name: settings_of(folder, case, out) for name, case in some.items()}
        if ranks == 1:
            killed = {"settings": controlled(), "updates": 2, "load": "killed"}
            cases["killed"] = settings_of(folder, killed, folder)
        results[ranks], _ = verl_toy.update_actor(folder, out, cases, ranks)
    return results


def measured(calls, rule, value):
    """What `policy_loss` measures in calls of the loss, under the rule that is in force at a value."""
    objective = Objective(rule.at(value), aggregation="none", max_log_ratio=20.0)
    names = ("log_prob", "old_log_prob", "advantages", "response_mask")
    batches = [[call[name]["value"] for name in names] for call in calls]
    return reduce(Metrics.merge, [policy_loss(*batch, objective)[1] for batch in batches])


def replayed(ranks, case, rule=RULE):
    """[(value in force, state after)] of each update, from the tensors that all of the ranks' calls saw."""
    state, out = rule.start(), []
    value, starts = state["value"], [0] * len(ranks)
    for number in range(len(ranks[0][case]["kept"])):
        ends = [rank[case]["kept"][number]["calls"] for rank in ranks]
        calls = [call for rank, a, b in zip(ranks, starts, ends, strict=True) for call in rank[case]["calls"][a:b]]
        in_force, starts = value, ends
        value, state = rule.radius(state, measured(calls, rule, value).compute())
        out.append((in_force, state))
    return out


@pytest.mark.parametrize(("case", "ranks"), [("whole", 1), ("whole", 2), ("by tokens", 2)])
def test_an_update_moves_the_number_by_what_all_its_micro_batches_on_all_ranks_measured(updates, case, ranks):
    expected = replayed(updates[ranks], case)
    for result in updates[ranks]:
        assert len({call["config"] for call in result[case]["calls"]}) == 1
        for kept, (value, state) in zip(result[case]["kept"], expected, strict=True):
            assert kept["logged"] == pytest.approx(value, rel=1e-12)
            assert kept["state"] == state
            assert kept["rule"] == repr(RULE)
    assert len({value for value, _ in expected}) == len(expected)


def test_what_one_rank_alone_measured_differs(updates):
    own = [replayed([result], "whole") for result in updates[2]]
    assert own[0] != own[1]
    assert replayed(updates[2], "whole") not in own


def test_entropies_are_made_where_they_are_what_is_held(updates):
    """verl logs their mean then; three decimals, because it is a mean of means."""
    for result in updates[2]:
        one, two = result["entropy"]["kept"]
        assert one["state"]["measured"] != 1.0
        last = two["state"]["measured"] * 2 - one["state"]["measured"]  # smoothing = 0.5
        assert last == pytest.approx(result["entropy"]["metrics"]["actor/entropy_loss"], rel=1e-2)
        assert two["logged"] != one["logged"] == pytest.approx(0.001)


def test_a_law_that_never_moves_is_the_fixed_rule_bit_for_bit(updates):
    for result in updates[2]:
        still, fixed = result["still"], result["fixed"]
        assert all(torch.equal(still["weights"][name], value) for name, value in fixed["weights"].items())
        assert still["metrics"]["loss"] == fixed["metrics"]["loss"]
        assert [kept["logged"] for kept in still["kept"]] == pytest.approx([0.001] * 2)
        assert [kept["logged"] for kept in fixed["kept"]] == [None] * 2
        assert "state" not in fixed["kept"][-1]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_goes_on_from_a_checkpoint_is_exact(updates, ranks):
    for result in updates[ranks]:
        whole, resumed = result["whole"], result["resumed"]
        assert [kept["state"] for kept in resumed["kept"]] == [kept["state"] for kept in whole["kept"][2:]]
        assert [kept["logged"] for kept in resumed["kept"]] == [kept["logged"] for kept in whole["kept"][2:]]
        assert all(torch.equal(resumed["weights"][name], value) for name, value in whole["weights"].items())


@pytest.mark.parametrize(
    ("case", "same"),
    [
        ("put in", "verl's own"),
        ("taken out", "clip"),
        ("verl's own after a controlled rule", "clip after a controlled rule"),
    ],
)
def test_a_run_may_change_its_loss_at_a_checkpoint(updates, case, same):
    """verl's own loss and bandpo's `clip` of the same numbers: two updates of one, or one of each, are the same."""
    for result in updates[2]:
        assert all(torch.equal(result[case]["weights"][name], value) for name, value in result[same]["weights"].items())
        assert any((result[case]["weights"][name] != value).any() for name, value in result["fixed"]["weights"].items())


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("after a fixed rule", "the checkpoint of step 1 has no state of a controlled rule"),
        ("after another rule", "the checkpoint has the state of another controlled rule, Controlled("),
        ("not saved", "'extra' in actor.checkpoint.save_contents and load_contents, got"),
        ("not loaded", "'extra' in actor.checkpoint.save_contents and load_contents, got"),
    ],
)
def test_what_cannot_go_on_exactly_is_refused_before_the_first_update(updates, case, message):
    for result in updates[2]:
        assert message in result[case]["error"]
        assert not result[case]["calls"]


def test_a_run_that_is_killed_in_an_update_goes_on_from_the_one_that_was_saved(updates):
    """In a new process, which makes what the whole run made."""
    whole, resumed = updates[1][0]["whole"], updates[1][0]["killed"]
    assert [kept["state"] for kept in resumed["kept"]] == [kept["state"] for kept in whole["kept"][2:]]
    assert all(torch.equal(resumed["weights"][name], value) for name, value in whole["weights"].items())


def engine_of():
    """What the controller has of verl's FSDP engine."""
    scheduler = LambdaLR(torch.optim.SGD([torch.zeros(1)], 0.1), lambda step: 1.0)
    contents = {f"checkpoint_{name}_contents": ["model", "optimizer", "extra"] for name in ("save", "load")}
    manager = SimpleNamespace(lr_scheduler=scheduler, **contents)
    return SimpleNamespace(lr_scheduler=scheduler, checkpoint_manager=manager, get_data_parallel_group=lambda: None)


@pytest.mark.parametrize("lacking", ["lr_scheduler", "checkpoint_manager", "torch's scheduler", "this scheduler"])
def test_an_engine_whose_checkpoints_would_not_have_the_state_is_refused(lacking):
    engine = engine_of()
    if lacking == "torch's scheduler":  # Megatron's has keys of its own in its state
        engine.lr_scheduler = engine.checkpoint_manager.lr_scheduler = SimpleNamespace(state_dict=dict)
    elif lacking == "this scheduler":
        engine.checkpoint_manager.lr_scheduler = None
    else:
        delattr(engine, lacking)
    with pytest.raises(ValueError, match="the state of a controlled rule must be in verl's checkpoints"):
        Controller(RULE, engine)


def test_an_update_without_a_measurement_is_an_update():
    """As in distillation without a policy loss, which is not refused in the second update."""
    engine = engine_of()
    controller = Controller(RULE, engine)
    engine.lr_scheduler.last_epoch = 1
    controller.keep()
    assert Controller(RULE, engine).state == RULE.start()
    engine.lr_scheduler.last_epoch = 2  # by an update without a controlled rule
    with pytest.raises(ValueError, match="the checkpoint of step 2 has no state of a controlled rule"):
        Controller(RULE, engine)
    setattr(engine.lr_scheduler, NAME, {"rule": repr(RULE), "state": {"value": 0.1}, "step": 2})
    with pytest.raises(ValueError, match=r"must have \['value', 'measured'\], got \['value'\]"):
        Controller(RULE, engine)


def test_an_update_that_fails_moves_nothing_and_other_losses_keep_nothing(monkeypatch):
    """In its second micro-batch; the next update measures its own only."""

    class Worker:
        def __init__(self, engine, loss_fn):
            self.engine, self.loss_fn = engine, loss_fn

        def train_mini_batch(self, data):
            return [self.loss_fn(model_output={}, data=part) for part in data]

    def loss(config, model_output, data):
        if not data:
            raise RuntimeError("lost")
        return run("bandpo", config, data)

    module_of(monkeypatch, Worker)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *given, **named: None)
    engine = engine_of()
    scheduler = engine.lr_scheduler
    controlled, fixed = (partial(loss, config=bandpo_actor(rule)) for rule in (RULE, Band("kl", 0.001)))
    one, two = batch([0.1], [1.0, -1.0]), batch([0.0], [1.0, -1.0])
    with pytest.raises(RuntimeError, match="lost"):
        Worker(engine, controlled).train_mini_batch([one, {}])
    for other in (fixed, lambda model_output, data: None):  # the second one is a critic's
        Worker(engine, other).train_mini_batch([one])
    assert not hasattr(scheduler, NAME)
    Worker(engine, controlled).train_mini_batch([two, one])
    calls = [{name: {"value": value} for name, value in each.items()} for each in (two, one)]
    expected = measured(calls, RULE, 0.001).compute()
    assert getattr(scheduler, NAME)["state"] == RULE.radius(RULE.start(), expected)[1]
    assert expected["clip/fraction"] not in (0, measured(calls[1:], RULE, 0.001).compute()["clip/fraction"])
