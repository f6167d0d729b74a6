"""The lab: its task, its warm start, and the effect that it is there to show."""

import json
import math

import pytest
import torch

from bandpo import lab
from bandpo.compare import METHODS, estimate, plan, run_all
from bandpo.config import UserError


def ids(text):
    return [lab.SYMBOLS.index(symbol) for symbol in text.split()]


def test_prompts_are_sums_and_the_same_for_the_same_seed():
    rows = lab.prompts(200, seed=3)
    assert rows == lab.prompts(200, seed=3) != lab.prompts(200, seed=4)
    for row in rows:
        *symbols, equals = row["prompt"].split()
        assert equals == "="
        assert len(symbols) == 4
        assert row["answer"] == lab.SYMBOLS[sum(map(lab.SYMBOLS.index, symbols)) % 16]


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("A c <end>", 1),  # a guess at once
        ("a b c A c <end>", 1),  # worked
        ("p p p A c <end>", 1),  # only the answer counts
        ("a b c A d <end>", 0),
        ("A c A c <end>", 0),  # the first A must be followed by answer and end
        ("A c", 0),  # no end
        ("a b c d e f", 0),  # no answer
        ("A", 0),
        ("<end>", 0),
    ],
)
def test_reward_is_exact_match_after_the_first_a(completion, right):
    assert lab.reward([""], [ids(completion)], ["c"]) == [right]


def test_reward_logs_the_share_that_works():
    logged = {}
    lab.reward(
        [""] * 4, [ids(t) for t in ("A c <end>", "a A c <end>", "p A a <end>", "<end>")], ["c"] * 4, logged.__setitem__
    )
    assert logged == {"lab/work": 0.5}


def test_the_tokenizer_gives_one_token_per_symbol():
    tokenizer = lab.tokenizer()
    assert tokenizer("a p A <end> = <pad>")["input_ids"] == [0, 15, lab.ANSWER, lab.END, lab.EQUALS, lab.PAD]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (lab.END, lab.PAD)


def test_demonstrations_are_right_up_to_slips_in_a_quarter_of_the_steps():
    start = lab.WarmStart(0.005, seed=0, batch=4096)
    ((prompts, completions, works),) = lab._demonstrations(start, 1)
    works = works[:, 0]
    assert 0.45 < works.float().mean() < 0.55
    symbols, long = prompts[works, :4], completions[works]
    running = symbols[:, 0]
    wrong = []
    for i in range(1, 4):
        running = (running + symbols[:, i]) % 16
        written = long[:, i - 1]
        wrong.append((written != running).float().mean().item())
        running = written  # the working goes on from a slip
    assert all(0.2 < w < 0.3 for w in wrong)
    assert torch.equal(long[:, 4], long[:, 2])  # the answer is the last sum
    short = completions[~works]
    assert (short[:, 0] == lab.ANSWER).all()
    assert (short[:, 2] == lab.END).all()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The default cache where it can be kept between runs of the tests is not used: a test must not depend on it."""
    patch = pytest.MonkeyPatch()
    patch.setenv("BANDPO_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.mark.slow
def test_the_tail_scene_shows_its_effect_in_15_rounds(cache, tmp_path):
    """P(work) under Band over 3 times GRPO's; early clips are in the tail: over half under GRPO, under 20 % under Band.

    The thresholds are those of the design of the task; measured over five seeds in benchmarks/lab.csv.
    """
    jobs = plan("tail", ["grpo", "band-kl"], [0], tmp_path, {"rounds": 15})
    said = []
    run_all(jobs, workers=2, command="test", on_row=lambda job, row: None, say=said.append)
    assert said.count("warm start of seed 0: 600 steps, once for all runs") == 1
    work, share = {}, {}
    for job in jobs:
        rows = [json.loads(line) for line in (job.folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["round"] for row in rows] == list(range(1, 16))
        early = [row for row in rows if row["lab/work"] < 0.05]
        work[job.name] = rows[-1]["lab/work"]
        share[job.name] = sum(r["clip/tail_high_count"] for r in early) / sum(r["clip/count"] for r in early)
        skill = json.loads((job.folder / "run.json").read_text())["warm_start"]
        assert 0.003 < skill["p_work"] < 0.008
        assert 0.3 < skill["right_if_work"] < 0.5
    assert work["band-kl"] > 3 * work["grpo"]
    assert share["grpo"] > 0.5
    assert share["band-kl"] < 0.2


def test_a_plan_pairs_methods_by_seed(tmp_path):
    jobs = plan("storm", ["grpo", "{type: clip, eps_low: 0.2, eps_high: .inf}"], [0, 2], tmp_path, {"rounds": 3})
    assert [(job.name, job.config.seed) for job in jobs] == [
        ("grpo", 0),
        ("clip-0.2-inf", 0),
        ("grpo", 2),
        ("clip-0.2-inf", 2),
    ]
    assert {job.config.trainer["learning_rate"] for job in jobs} == {4e-4}
    assert {job.config.rounds for job in jobs} == {3}
    assert len({job.folder for job in jobs}) == 4
    assert all(job.folder.is_relative_to(tmp_path) for job in jobs)


@pytest.mark.parametrize(
    ("methods", "named"),
    [
        (["grppo"], "did you mean 'grpo'"),
        (["grpo", "grpo"], "twice"),
        (["band-kl", "{type: band, delta: 0.05}"], "twice"),  # the report would refuse it when all is done
        ([], "at least one"),
        (["{type: clop}"], "clip"),
    ],
)
def test_a_plan_names_what_is_wrong_with_a_method(tmp_path, methods, named):
    with pytest.raises(UserError, match=named):
        plan("tail", methods, [0], tmp_path)


def test_a_method_in_words_is_the_same_rule_as_its_node(tmp_path):
    (word,), (node,) = (plan("tail", [m], [0], tmp_path) for m in ("clip:0.2:1", "{type: clip, eps_high: 1.0}"))
    assert (word.name, word.config) == (node.name, node.config)
    assert word.config.trust_region == {"type": "clip", "eps_low": 0.2, "eps_high": 1.0}


def test_resuming_a_comparison_with_other_settings_is_refused(tmp_path):
    (job,) = plan("tail", ["grpo"], [0], tmp_path)
    job.folder.mkdir(parents=True)
    (job.folder / "config.yaml").write_text(job.config.to_yaml())
    (job.folder / "run.json").write_text('{"finished": true}')
    again = {"command": "", "workers": 1, "on_row": lambda job, row: None, "say": lambda text: None}
    other = plan("tail", ["grpo"], [0], tmp_path, {"trainer": {"learning_rate": 1e-3}})
    with pytest.raises(UserError, match=r"other settings \(trainer.learning_rate\)"):
        run_all(other, resume=True, **again)
    with pytest.raises(UserError, match="--resume"):
        run_all([job], resume=False, **again)
    assert run_all([job], resume=True, **again) == [job.folder]


def test_every_method_is_planned_with_its_own_rule(tmp_path):
    jobs = plan("tail", list(METHODS), [0], tmp_path)
    assert len({job.config.region for job in jobs}) == len({job.config.label for job in jobs}) == len(METHODS)
    no_clip = next(job.config.region for job in jobs if job.name == "no-clip")
    assert no_clip.bounds(torch.zeros(1)).log_high.item() == math.inf


def test_the_estimate_grows_with_the_work_and_shrinks_with_the_cores(cache, tmp_path):
    jobs = plan("tail", ["grpo", "band-kl"], [0, 1], tmp_path, {"rounds": 10})
    more = plan("tail", ["grpo", "band-kl"], [0, 1], tmp_path, {"rounds": 20})
    assert estimate(more, 1) - estimate(jobs, 1) == pytest.approx(4 * 10 * lab.SCENES["tail"].seconds_per_round)
    assert estimate(jobs, 2) < estimate(jobs, 1)
