"""A run of verl that goes on from a checkpoint, after a kill within an update too, and with another loss."""

import pytest
import torch
import verl_toy
from verl_toy import EPOCHS, SIZE, region

ACTOR = "actor_rollout_ref.actor"
BAND = [*verl_toy.OURS, region(type="band", divergence="kl", delta=0.001)]
CLIP = [*verl_toy.OURS, region(type="objective", trust_region="{type:clip,eps_low:0.05,eps_high:0.08}", dual_clip=1.5)]
VERLS = [f"{ACTOR}.clip_ratio_low=0.05", f"{ACTOR}.clip_ratio_high=0.08", f"{ACTOR}.clip_ratio_c=1.5"]
CASES = {
    "whole": {"settings": BAND, "updates": 4, "save": ["whole", 2]},
    "resumed": {"settings": BAND, "updates": 2, "load": "whole"},
    "verl's own": {"settings": VERLS, "updates": 2, "save": ["verls", 1]},
    "put in": {"settings": CLIP, "load": "verls"},
    "clip": {"settings": CLIP, "updates": 2, "save": ["ours", 1]},
    "taken out": {"settings": VERLS, "load": "ours"},
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
    folder = tmp_path_factory.mktemp("resume")
    verl_toy.write(folder)
    calls = EPOCHS * SIZE // 4  # in an update
    dies = {"settings": BAND, "updates": 3, "save": ["killed", 2], "kill_at": 2 * calls + 3}
    verl_toy.update_actor(folder, folder / "0", {"dies": settings_of(folder, dies, folder)}, dies=True)
    results = {}
    for ranks in (1, 2):
        out = folder / str(ranks)
        some = CASES if ranks == 2 else {name: CASES[name] for name in ("whole", "resumed")}
        cases = {name: settings_of(folder, case, out) for name, case in some.items()}
        if ranks == 1:
            cases["killed"] = settings_of(folder, {"settings": BAND, "updates": 2, "load": "killed"}, folder)
        results[ranks], _ = verl_toy.update_actor(folder, out, cases, ranks)
    return results


def same(one, other):
    ours, theirs = one["weights"], other["weights"]
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_goes_on_from_a_checkpoint_is_exact(updates, ranks):
    for result in updates[ranks]:
        assert same(result["resumed"], result["whole"])


def test_a_run_that_is_killed_in_an_update_goes_on_from_the_one_that_was_saved(updates):
    """In a new process, which makes what the whole run made."""
    (result,) = updates[1]
    assert same(result["killed"], result["whole"])


@pytest.mark.parametrize(("case", "other"), [("put in", "verl's own"), ("taken out", "clip")])
def test_a_run_may_change_its_loss_at_a_checkpoint(updates, case, other):
    """verl's own loss and bandpo's `clip` of the same numbers: two updates of one, or one of each, are the same."""
    for result in updates[2]:
        assert [same(result[case], result[each]) for each in (other, "whole")] == [True, False]
