"""The scorers in verl: against its own math_dapo, through its reward loop, in a Ray actor."""

import asyncio
import os
import random

import numpy as np
import psutil
import pytest
import scripts
import torch
import verl_toy
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.trainer.ppo.reward import load_reward_manager
from verl.utils.reward_score import math_dapo

from bandpo import rewards
from bandpo.rewards.grading import grade
from bandpo_runs.evals.dumps import read_dump

# Of Ray and verl themselves, when their reward loop is imported.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

# ---- against verl's own

NUMBERS = ["42", "042", "42.0", "1,000", "1{,}000", "-7", "0.5", ".5", "١٢", "3²", "1,2", "10^6", "", " "]
FORMULAS = ["\\frac{1}{2}", "\\dfrac{1}{2}", "\\frac12", "frac12", "\\sqrt2", "\\sqrt{2}", "sqrt3x", "x=5", "a=b=c",
            "=", "\\pi", "\\text{m}", "\\text{yes}", "\\textbf{4}", "\\overline{AB}", "\\text{a}\\text{b}",
            "\\mbox{cm}", "\\mathrm{th}", "\\boxed{42}", "\\boxed{\\frac{1}{2}}", "\\boxed{1}\\boxed{2}",
            "\\text{\n}", "90^\\circ", "90^{\\circ}", "\\ldots", "\\dots", "(1, 2)", "\\{1,2\\}", "1,\\text{and}2",
            "1\\text{and}2", "5\\%", "\\;", ",\\!", "\"", "\\ ", "{", "}", "\\"]  # fmt: skip
WORDS = ["a ", "an ", "square", "ways", "units", "dollars", "km", "a dozen", "pan 3", "sue", "students",
         "children tickets", "mph", "digits", "$", "$$", "\\$", ".$", ".", "**", "\\(", "\\)", "\\[", "\\]", "\t",
         "Answer", "\xa0", "é"]  # fmt: skip
MARKS = ["Answer: ", "answer:", "ANSWER :", "Answer:\n", "Answer\n:\n\n", "The answer is ", "**Answer:** ",
         "answer\uff1a", ""]  # fmt: skip


def made(rng):
    """A text around an answer of up to five pieces, and a right answer, which is often one of them."""

    def pieces(most):
        return "".join(rng.choice(rng.choice([NUMBERS, FORMULAS, WORDS])) for _ in range(rng.randint(1, most)))

    answer = pieces(5)
    answer = f"${answer}$" if rng.random() < 0.3 else answer
    filling = rng.choice(["", "so\n", "x" * 290, "Answer: 1\n", "\\boxed{3} "])
    after = rng.choice(["", "", "\n", "\nthat is all", "." * 280, "\n\\boxed{42}"])
    return filling + rng.choice(MARKS) + answer + after, rng.choice([answer, pieces(2), "42"])


def test_dapo_and_dapo_strict_are_verls_own_on_made_answers():
    """verl 0.9.1 then takes a box where it finds no answer; what is before that, and all else, is the same."""
    rng = random.Random(0)
    count = dict.fromkeys(("right", "wrong", "no answer", "box"), 0)
    for _ in range(8_000):
        text, right = made(rng)
        ours = rewards.compute_score_dapo_strict("math_dapo", text, right)
        correct, read = math_dapo.is_correct_minerva(text[-300:], right)
        assert (ours["acc"], ours["pred"], ours["score"]) == (correct, read, 1.0 if correct else -1.0), (text, right)
        (graded,) = grade([text], [right], "dapo-strict")
        assert graded.score == correct
        theirs = math_dapo.compute_score(text, right)
        assert rewards.compute_score_dapo("math_dapo", text, right) == {**theirs, "dataset": "math_dapo"}, (text, right)
        if read == "[INVALID]" and theirs["pred"] != read:
            count["box"] += 1
            assert not correct
        else:
            assert {**theirs, "dataset": "math_dapo"} == ours
        count["no answer" if read == "[INVALID]" else "right" if correct else "wrong"] += 1
    assert min(count.values()) > 200, count


# ---- through the reward loop


class Characters:
    """A tokenizer of code points."""

    def decode(self, ids, skip_special_tokens):
        return "".join(map(chr, ids.tolist()))


def batch(texts, right, encode=lambda text: list(map(ord, text)), source="aime_2024"):
    """As the agent loop hands it over: right-padded answers after prompts of two tokens."""
    ids = [encode(text) for text in texts]
    longest = max(map(len, ids))
    responses = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1, 1] + [1] * len(row) + [0] * (longest - len(row)) for row in ids])
    columns = {
        "data_source": [source] * len(texts),
        "reward_model": [{"style": "rule", "ground_truth": answer} for answer in right],
        "extra_info": [{"index": i} for i in range(len(texts))],
    }
    columns = {name: np.array(values, dtype=object) for name, values in columns.items()}
    return DataProto(TensorDict({"responses": responses, "attention_mask": mask}, len(texts)), columns)


def config(*settings):
    return verl_toy.composed("paper", "llm=qwen2.5-3b", "rule=band-kl", *settings)


def scores(data, *settings):
    """By the reward manager that the recipe loads, in an event loop as in verl's worker."""

    async def run():
        manager = load_reward_manager(config(*settings), Characters())
        return await asyncio.gather(*(manager.run_single(data[i : i + 1]) for i in range(len(data))))

    return asyncio.run(run())


TEXTS = ["so Answer: 42", "Answer: 42.", "\\boxed{42}", "nothing", "Answer: 41"]


@pytest.mark.parametrize("manager", ["naive", "dapo"])
def test_the_recipes_reward_is_the_public_scorer(manager):
    results = scores(batch(TEXTS, ["42"] * 5), f"reward.reward_manager.name={manager}")
    assert [r["reward_score"] for r in results] == [1, -1, -1, -1, -1]
    infos = [(r["reward_extra_info"]["acc"], r["reward_extra_info"]["pred"]) for r in results]
    assert infos == [(True, "42"), *((False, text) for text in ("42.", "[INVALID]", "[INVALID]", "41"))]


def test_the_metrics_are_verls():
    """What becomes val-core/aime_2024/acc/mean@5, best@5/mean and maj@5/mean."""
    infos = [r["reward_extra_info"] for r in scores(batch(TEXTS, ["42"] * 5))]
    columns = {key: [info[key] for info in infos] for key in ("score", "acc", "pred", "dataset")}
    metrics = process_validation_metrics(["aime_2024"] * 5, ["one"] * 5, columns)["aime_2024"]
    assert {kind: each["mean@5"] for kind, each in metrics.items()} == pytest.approx({"score": -0.6, "acc": 0.2})
    assert {"best@5/mean", "maj@5/mean"} <= set(metrics["acc"])


@pytest.mark.filterwarnings("ignore:.* engine is not available")
def test_verls_dump_of_the_answers_names_their_data_set(tmp_path):
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    sources = ["aime_2024", "aime_2025", "aime_amc2023"]
    infos = [r["reward_extra_info"] for source in sources for r in scores(batch(TEXTS, ["42"] * 5, source=source))]
    extras = {key: [info[key] for info in infos] for key in infos[0]}
    inputs = [source for source in sources for _ in TEXTS]  # one question each
    PPOTrainer._write_generations(inputs, TEXTS * 3, ["42"] * 15, extras["score"], extras, tmp_path, 5)
    graded, by = read_dump(tmp_path / "5.jsonl")
    of = [(each.data, each.score.tolist()) for each in graded]
    assert (of, by) == ([(source, [[1.0, 0.0, 0.0, 0.0, 0.0]]) for source in sources], "verl's reward function")


def test_the_extra_goes_through_verls_older_trainers():
    """They make columns of a batch of what a reward returns, and it has one named data_source."""
    made = batch(TEXTS, ["42"] * 5)
    columns = {key: np.array([r["reward_extra_info"][key] for r in scores(made)]) for key in ("pred", "dataset")}
    whole = made.union(DataProto(TensorDict({}, 5), columns))
    assert whole.non_tensor_batch["dataset"].tolist() == ["aime_2024"] * 5


def test_the_scorer_by_value_is_one_setting_away():
    pytest.importorskip("math_verify")
    texts = [*TEXTS, "Answer: $\\frac{84}{\\sqrt{4}}$", "Answer: $9^{9^{9^9}}$"]
    results = scores(batch(texts, ["042"] * 7), "reward.custom_reward_function.name=compute_score")
    read = [(r["reward_score"], r["reward_extra_info"]["pred"]) for r in results]
    assert read == [*[(1, "42")] * 3, (-1, "[INVALID]"), (-1, "41"), (1, "42"), (-1, "[INVALID]")]


@pytest.mark.slow
def test_in_verls_reward_worker_and_gone_with_it(tmp_path):
    """verl's own Ray actor; `3+4` needs a parser, and so a process of ours. Killed, it leaves none behind."""
    pytest.importorskip("math_verify")
    import ray
    from transformers import AutoTokenizer
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    verl_toy.write(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    settings = [f"actor_rollout_ref.model.path={tmp_path}/model", "reward.custom_reward_function.name=compute_score"]
    paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    ray.init(num_cpus=1, include_dashboard=False, runtime_env={"env_vars": paths}, log_to_driver=False)
    try:
        worker = ray.remote(RewardLoopWorker).remote(config(*settings))
        data = batch(["answer is 3+4", "answer is 3+5", "answer is 7"], ["7"] * 3, encode=tokenizer.encode)
        results = ray.get(worker.compute_score_batch.remote(data), timeout=120)
        assert [r["reward_score"] for r in results] == [1, -1, 1]
        pid = ray.get(worker.__ray_call__.remote(lambda self: os.getpid()))
        family = psutil.Process(pid).children(recursive=True)
        mine = [p for p in family if "bandpo/rewards/workers/template.py" in " ".join(p.cmdline())]
        assert mine
        ray.kill(worker)
        _, alive = psutil.wait_procs(mine, timeout=10)
        assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    finally:
        ray.shutdown()


def test_the_recorded_rows_are_what_verls_scorers_say():
    """Of docs/evaluate.md; the others are tested where TRL is."""
    pytest.importorskip("math_verify")
    scorers = scripts.load("research/measurements/scorers.py")
    rows, found = scorers.read_rows(scorers.ROWS), scorers.scores()
    assert set(found) == {"math", "dapo-strict", "verl math_dapo", "verl math_verify"}
    for name, column in found.items():
        assert [int(row[name]) for row in rows] == column, name
