"""The lab's own loop: the transformer of transformers, a round of TRL's trainer, and what it refuses."""

import copy
import functools
import math
from typing import Any

import pytest
import torch
from datasets import Dataset

from bandpo import Band, Clip, Objective
from bandpo.integrations.trl import BandPOConfig, BandPOTrainer
from bandpo_runs import toy
from bandpo_runs.training import on_trl
from bandpo_runs.training.side_by_side import plan
from research import fast_lab
from research.fast_lab import Minibatch, learn, train
from research.lab_settings import Settings
from research.prefixes import Completions, load_weights, log_probs, prefixes, sample, side_by_side, stack_weights

SMALL = Settings(
    p_work=0.3,
    rounds=2,
    learning_rate=1e-3,
    prompts=4,
    num_generations=4,
    steps_per_generation=2,
    num_iterations=2,
)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """The folder of an untrained model."""
    folder = tmp_path_factory.mktemp("fast") / "start"
    toy.save_start(folder, toy.fresh_model(0), {})
    return folder


@pytest.fixture
def quick(start, monkeypatch):
    """Its own warm start costs 20 s; this one is untrained."""
    monkeypatch.setattr(fast_lab.toy, "warm_start", lambda p_work, seed, say: (start, {}))


def responses(count, seed=0):
    """Prompts that repeat, and completions of all lengths."""
    rng = torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, toy.BASE, (count // 4, toy.LENGTH), generator=rng).repeat_interleave(4, 0)
    prompts = torch.cat([prompts, torch.full((len(prompts), 1), toy.EQUALS)], 1)
    # Of three symbols, so that completions share beginnings; PAD may be among what a model says.
    tokens = torch.tensor([0, 1, toy.PAD])[torch.randint(0, 3, (count, toy.MAX_COMPLETION), generator=rng)]
    lengths = torch.randint(1, toy.MAX_COMPLETION + 1, (count, 1), generator=rng)
    return prompts, tokens, torch.arange(toy.MAX_COMPLETION) < lengths


def test_trees_of_prefixes_are_the_transformer_of_transformers(tmp_path):
    """Value and gradient of two models side by side, against forward passes over whole padded rows."""
    folders, expected, models = [], [], []
    batches = [responses(64), responses(32, seed=1)]
    for i, (prompts, tokens, _) in enumerate(batches):
        model = toy.fresh_model(i)
        toy.save_start(tmp_path / str(i), model, {})
        logits = model(input_ids=torch.cat([prompts, tokens], 1)[:, :-1]).logits[:, toy.LENGTH :]
        expected.append(logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0])
        folders.append(tmp_path / str(i))
        models.append(model)
    weights = load_weights(folders)
    trees = [prefixes(*batch) for batch in batches]
    for tree, (_, _, mask) in zip(trees, batches, strict=True):
        assert len(tree.tokens) < 0.7 * (mask.sum() + toy.LENGTH * len(mask))  # each once
    both = side_by_side(trees)
    tokens, masks = (torch.cat([batch[i] for batch in batches]) for i in (1, 2))
    logps = log_probs(weights, both)[both.at, tokens]
    torch.testing.assert_close(logps[masks], torch.cat(expected)[masks], atol=1e-5, rtol=0)
    slope = torch.randn(masks.shape, generator=torch.Generator().manual_seed(1))
    for each in (torch.cat(expected), logps):
        (each * slope)[masks].sum().backward()
    for i, model in enumerate(models):
        for name, parameter in model.named_parameters():
            gradient = weights[name].grad
            assert gradient is not None
            torch.testing.assert_close(gradient[i], parameter.grad, atol=2e-4, rtol=1e-5)


def test_samples_have_the_models_probabilities(start):
    """The first two tokens of 20,000 completions of one prompt, against all 400 probabilities; and their logps."""
    weights, count = load_weights([start]), 20_000
    prompt = torch.tensor([[1, 2, 3, 4, toy.EQUALS]])
    model = toy.fresh_model(0)
    with torch.no_grad():
        for head in (weights["lm_head.weight"], model.lm_head.weight):
            head *= 3  # untrained, it is so even that another temperature would not be seen
    (drawn,) = sample(weights, [prompt.expand(count, -1)], [torch.Generator().manual_seed(0)])
    vocabulary = len(toy.SYMBOLS)
    with torch.no_grad():
        both = torch.cat([prompt.expand(vocabulary, -1), torch.arange(vocabulary)[:, None]], 1)
        logps = model(input_ids=both).logits[:, -2:].log_softmax(-1)
        of_pairs = (logps[:1, 0, :, None].exp() * logps[None, :, 1].exp())[0]
    goes_on = drawn.tokens[:, 0] != toy.END
    pairs = torch.bincount(drawn.tokens[goes_on, 0] * vocabulary + drawn.tokens[goes_on, 1], minlength=vocabulary**2)
    expected = of_pairs.flatten()[torch.arange(vocabulary**2) // vocabulary != toy.END] * count
    seen = pairs[torch.arange(vocabulary**2) // vocabulary != toy.END]
    enough = expected >= 5
    chi2 = ((seen - expected) ** 2 / expected)[enough].sum().item()
    degrees = int(enough.sum())  # the rest of the probability is rare pairs and the completions that end at once
    assert abs(chi2 - degrees) < 5 * math.sqrt(2 * degrees)
    torch.testing.assert_close(drawn.logps[:, 0], logps[0, 0][drawn.tokens[:, 0]], atol=1e-5, rtol=0)
    first = logps[0, 0]
    mean = (first.exp() * first).sum()  # a sharper policy would say what is likely more often
    deviation = (first.exp() * (first - mean).square()).sum().sqrt() / count**0.5
    assert abs(drawn.logps[:, 0].mean() - mean) < 5 * deviation
    ended = drawn.mask & (drawn.tokens == toy.END)
    assert ((ended.sum(1) == 1) | drawn.mask.all(1)).all()
    assert (ended.int().cumsum(1)[:, :-1].bool() <= ~drawn.mask[:, 1:]).all()
    assert (drawn.tokens[~drawn.mask] == toy.PAD).all()


def low_symbols(completion_ids, **columns):
    """A reward that an untrained model gets now and then, and to different degrees."""
    return [sum(token < 7 for token in ids) / len(ids) for ids in completion_ids]


def weights_of(trainer: Any):
    return trainer.model.state_dict()


class Spied(BandPOTrainer):
    """Keeps the weights before each round, and its minibatches."""

    def _prepare_inputs(self, generation_batch):
        before = copy.deepcopy(weights_of(self))
        inputs = super()._prepare_inputs(generation_batch)
        if self._step % 6 == 0:
            vars(self).setdefault("kept", []).append((before, copy.deepcopy(self._buffered_inputs)))
        return inputs


RULES = {
    "clip": Clip(0.01, 0.02),
    "band": Band("kl", 1e-5),
    "an objective": Objective(Clip(0.01, 0.02), surrogate="weight"),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_two_rounds_of_trls_batches_give_trls_weights_and_rows(start, tmp_path, rule):
    """The completions, advantages and old log-probabilities of TRL's trainer, in its order of minibatches."""
    args = BandPOConfig(
        str(tmp_path), per_device_train_batch_size=8, num_generations=4, steps_per_generation=2, num_iterations=3,
        max_completion_length=toy.MAX_COMPLETION, learning_rate=2e-4, lr_scheduler_type="constant", max_steps=12,
        logging_steps=6, loss_type="dapo", shuffle_dataset=False, disable_tqdm=True, all_metrics=True, bf16=False,
        activation_checkpointing=False, use_cpu=True, report_to="none", save_strategy="no",
    )  # fmt: skip
    trainer: Any = Spied(str(start), low_symbols, args, Dataset.from_list(toy.prompts(8, seed=0)), trust_region=rule)
    trainer.train()
    weights = stack_weights([trainer.kept[0][0]])
    optimizer = fast_lab._optimizer(weights, 2e-4)
    after = [trainer.kept[1][0], weights_of(trainer)]
    for i, (before, batches) in enumerate(trainer.kept):
        minibatches = []
        for each in batches:
            mask, old = each["completion_mask"].bool(), each["old_per_token_logps"]
            # Entropies of the old policy are for rules that ask for them; TRL makes them for those alone.
            completions = Completions(each["completion_ids"], mask, old, torch.zeros(mask.shape))
            minibatches.append(Minibatch.of(each["prompt_ids"], completions, each["advantages"]))
        (row,) = learn(weights, optimizer, [minibatches], fast_lab.learnable(rule), 3, first_step=6 * i)
        for name, weight in after[i].items():
            torch.testing.assert_close(weights[name][0].detach(), weight, atol=1e-5, rtol=0, msg=name)
            assert (weight - before[name]).abs().max() > 1e-4  # it has moved much further than that
        theirs = trainer.state.log_history[i]
        assert row["clip/fraction"] > 0.05
        assert row["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        assert row["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
        ours = {name for name in row if f"bandpo/{name}" in theirs}
        assert ours == row.keys() - {"loss", "grad_norm"}
        # A token at the edge of its bound may fall to either side.
        assert {name: row[name] for name in ours} == pytest.approx(
            {name: theirs[f"bandpo/{name}"] for name in ours}, rel=2e-2, abs=2e-3
        )


@pytest.fixture(scope="module")
def half_taught(tmp_path_factory):
    """The folder of a model that knows how to answer, so that a few of its answers are right."""
    folder = tmp_path_factory.mktemp("fast") / "half-taught"
    taught = toy._supervised(toy.WarmStart(0.3, 0, batch=32), 100, lambda text: None)
    toy.save_start(folder, taught, {})
    return folder


@pytest.mark.parametrize(("scene", "rule"), [("storm", "grpo"), ("rare-and-noisy", "band-kl")])
def test_a_run_with_trls_samples_is_trls_run(half_taught, tmp_path, monkeypatch, scene, rule):
    """Prompts, rewards, advantages, minibatches, steps, rows: all of `bandpo lab` but the drawing of the tokens. The
    random numbers behind those, of wrong rewards and of minibatches, are TRL's, too."""
    monkeypatch.setattr(toy, "warm_start", lambda p_work, seed, say: (half_taught, {}))
    drawn, reward = [], toy.reward

    @functools.wraps(reward)
    def keeps(completions, completion_ids, *arguments, **columns):
        drawn.append((completion_ids, torch.get_rng_state()))
        return reward(completions, completion_ids, *arguments, **columns)

    (job,) = plan(scene, [rule], [3], tmp_path, {"rounds": 3, "save_every": 0, "trainer": {"learning_rate": 3e-4}})
    theirs: list[dict[str, Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(toy, "reward", keeps)
        on_trl.run(job.config, on_row=theirs.append)

    def samples(weights, prompts, rngs):
        """TRL's, with what the weights say of them."""
        ids, state = left.pop(0)
        rngs[0].set_state(state)
        tokens = torch.tensor([row + [toy.PAD] * (toy.MAX_COMPLETION - len(row)) for row in ids])
        mask = torch.arange(toy.MAX_COMPLETION) < torch.tensor([[len(row)] for row in ids])
        tree = prefixes(prompts[0], tokens, mask)
        with torch.no_grad():
            choices = log_probs(weights, tree)[tree.at]
        works.append(choices[:, 0, : toy.BASE].exp().sum(-1).mean().item())
        entropies = -(choices.exp() * choices).sum(-1)
        return [Completions(tokens, mask, choices.gather(-1, tokens[..., None])[..., 0], entropies)]

    left, works = list(drawn), []
    monkeypatch.setattr(fast_lab, "sample", samples)
    (ours,) = train(scene, rule, [3], rounds=3, learning_rate=3e-4)
    assert not left
    assert len(ours) == len(theirs) == 3
    assert ours[-1]["clip/fraction"] > 0.05
    assert 0.02 < sum(row["reward"] for row in ours) / 3 < 0.4  # some are right, which the prompts decide
    assert [row.pop("lab/p_work") for row in ours] == pytest.approx(works, rel=1e-5)
    for row, wanted in zip(ours, theirs, strict=True):
        wanted = {name: wanted[name] for name in row}
        exact = {name for name in row if name.startswith(("reward", "lab/", "completions/"))} | {"step", "round"}
        assert {name: row[name] for name in exact} == pytest.approx({name: wanted[name] for name in exact}, rel=1e-5)
        assert row == pytest.approx(wanted, rel=2e-2, abs=2e-3)  # tokens at the edge of a bound may fall to either side


@pytest.mark.parametrize("measure", [True, False])
def test_runs_side_by_side_are_the_runs_alone(quick, measure):
    """Up to rounding, which goes through 8 steps of Adam; the samples are the same."""
    alone = [train(SMALL, "clip-higher", [seed], flip=0.2)[0] for seed in (3, 4)]
    both = train(SMALL, "clip-higher", [3, 4], flip=0.2, measure=measure)
    assert alone[0] != alone[1]
    for ours, expected in zip(both, alone, strict=True):
        for row, wanted in zip(ours, expected, strict=True):
            assert row == pytest.approx({name: wanted[name] for name in row}, rel=1e-2, abs=2e-3)
            assert row["reward"] == wanted["reward"]
            assert ("clip/fraction" in row) == measure


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rounds": 0}, "rounds must be a positive integer, got 0"),
        ({"prompts": 2.0}, "prompts"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"learning_rate": math.inf}, "learning_rate must be positive and finite"),
        ({"p_work": 1.0}, "p_work must be between 0 and 1"),
        ({"flip": 0.5}, "flip must be at least 0 and below a half"),
        ({"num_generations": 1}, "num_generations must be at least 2"),
        ({"steps_per_generation": 3}, "must divide the 4 x 4 completions"),
    ],
)
def test_settings_that_cannot_be_are_named(changes, named):
    with pytest.raises(ValueError, match=named):
        train(SMALL, "grpo", **changes)
