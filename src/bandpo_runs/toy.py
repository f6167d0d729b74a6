"""Make the lab: a toy task, and a tiny model with half a skill. It shows in minutes how rules differ.

Running sum: the prompt is four symbols of an alphabet of 16 and `=`, the answer their sum modulo 16. A completion
answers at once (`A` answer, end: a blind guess, right 1 in 16) or writes the running sums first (`s2 s3 s4 A` answer,
end). The warm start knows both, writes a first working symbol with a small probability, and slips in a quarter of its
steps, so that working is right in about 40 %. The reward is 1 for a right answer. How fast the rare first token may
grow is what the clipping rule decides.

The warm start is trained once for all runs and kept in the user's cache.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bandpo.errors import UserError

from .files.writing import cache_folder, locked

BASE, LENGTH = 16, 4
ANSWER, END, EQUALS, PAD = BASE, BASE + 1, BASE + 2, BASE + 3
SYMBOLS = [*"abcdefghijklmnop", "A", "<end>", "=", "<pad>"]
MAX_COMPLETION = LENGTH + 2
SLIP = 0.25


@dataclass(frozen=True)
class Scene:
    """A starting point and settings of training on it.

    Attributes:
        p_work: how often the warm start works step by step.
        question: what the scene asks.
        defaults: of the run configuration.
        flip: share of the rewards that are inverted.
    """

    p_work: float
    question: str
    defaults: dict[str, Any] = field(hash=False)
    flip: float = 0.0


def _scene(p_work: float, question: str, rounds: int, *, flip: float = 0.0, **trainer: Any) -> Scene:
    return Scene(
        p_work,
        question,
        {
            "model": "lab",
            "data": {"source": "lab"},
            "reward": "lab",
            "rounds": rounds,
            "threads": 1,
            "trainer": {
                "max_completion_length": MAX_COMPLETION,
                "loss_type": "dapo",
                "lr_scheduler_type": "constant",
                "activation_checkpointing": False,
                "use_cpu": True,
                "bf16": False,
                "per_device_train_batch_size": 64,
                "logging_steps": trainer["steps_per_generation"] * trainer["num_iterations"],
                **trainer,
            },
        },
        flip,
    )


SCENES = {
    # 64 prompts x 16 completions a round, 16 minibatches x 4 epochs: the clip must bind inside a round.
    "tail": _scene(
        0.005, "what a clip costs a rare good strategy", 30,
        learning_rate=5e-6, num_generations=16, steps_per_generation=16, num_iterations=4,
    ),
    # 16 prompts x 8 completions a round, 2 minibatches x 8 epochs: small noisy batches used many times.
    "storm": _scene(
        0.3, "does a clip protect a skill from small noisy batches used many times?", 64,
        learning_rate=4e-4, num_generations=8, steps_per_generation=2, num_iterations=8,
    ),
    # 4 prompts x 8 completions a round, as often as in storm, and some rewards wrong, without which all runs learn:
    # found by research/measurements/fast_lab_search.py.
    "rare-and-noisy": _scene(
        0.01, "does a rare strategy live through small noisy batches used many times?", 64,
        learning_rate=1e-4, num_generations=8, steps_per_generation=2, num_iterations=8,
        per_device_train_batch_size=16, flip=0.05,
    ),
}  # fmt: skip


def prompts(count: int, seed: int, flip: float = 0.0) -> list[dict[str, Any]]:
    """Make rows `{prompt, answer}`, the same for every rule. They hold the `flip` that `reward` is told, if any."""
    symbols = torch.randint(
        0, BASE, (count, LENGTH), generator=torch.Generator().manual_seed(1000 + seed)
    )
    answers = symbols.sum(1) % BASE
    more = {"flip": flip} if flip else {}
    return [
        {"prompt": " ".join([*(SYMBOLS[i] for i in row), "="]), "answer": SYMBOLS[answer], **more}
        for row, answer in zip(symbols.tolist(), answers.tolist(), strict=True)
    ]


def reward(
    completions: list[str],
    completion_ids: list[list[int]],
    answer: list[str],
    log_metric: Callable[[str, float], None] | None = None,
    flip: list[float] | None = None,
    **columns: Any,
) -> list[float]:
    """Return 1 if the right answer and the end follow the first `A`, else 0. It logs how many completions work.

    Of each reward `flip` is the probability that it is inverted, by torch's own random numbers, which a run's seed
    sets and its checkpoints keep; how many were right is logged then.
    """
    if log_metric is not None:
        log_metric("lab/work", sum(ids[0] < BASE for ids in completion_ids) / len(completion_ids))
    wanted = [SYMBOLS.index(a) for a in answer]
    right = [
        float(ANSWER in ids and ids[ids.index(ANSWER) + 1 :][:2] == [symbol, END])
        for ids, symbol in zip(completion_ids, wanted, strict=True)
    ]
    if flip is None:
        return right
    if log_metric is not None:
        log_metric("lab/right", sum(right) / len(right))
    return [
        abs(value - (x < share))
        for value, x, share in zip(right, torch.rand(len(right)).tolist(), flip, strict=True)
    ]


@dataclass(frozen=True)
class WarmStart:
    """Settings of the supervised start; changing one makes a new entry in the cache."""

    p_work: float
    seed: int
    steps: int = 600
    batch: int = 256
    learning_rate: float = 3e-3
    version: int = 2

    @property
    def folder(self) -> Path:
        """Return the folder that keeps the model, in $BANDPO_CACHE or the user's cache."""
        key = hashlib.sha256(json.dumps([asdict(self), torch.__version__]).encode()).hexdigest()[:16]
        return cache_folder() / "lab" / key


def warm_start(
    p_work: float, seed: int, say: Callable[[str], None] = lambda text: None
) -> tuple[Path, dict[str, float]]:
    """Train, or find in the cache, the start of a scene.

    Where working is right in fewer than 30 % of the attempts, the skill was not acquired: it appears abruptly, at a
    step that depends on the seed. It is then trained again with 300 steps more, up to 1500. Damaged files are made
    again. A process that finds another one at the same start waits for it.

    Returns:
        The folder with model and tokenizer, and the measured skill; its `steps` are those that it took.

    Raises:
        UserError: the cache cannot be written.
    """
    start = WarmStart(p_work, seed)
    folder = start.folder
    skill = _cached_skill(folder)
    if skill is not None:
        return folder, skill
    try:
        with locked(
            folder.with_name(f".{folder.name}.lock"), waiting=lambda text: say(f"{text}; waiting for it")
        ):
            skill = _cached_skill(folder)
            if skill is None:  # nobody has made it while we waited
                if folder.exists():
                    say(f"the warm start in {folder} is damaged; it is made again")
                    shutil.rmtree(folder)
                skill = _make(start, folder, say)
    except OSError as error:
        raise UserError(
            f"the lab cannot keep its warm start: {error.filename or folder}: {error.strerror}; set BANDPO_CACHE to a "
            "folder for it"
        ) from error
    return folder, skill


def _cached_skill(folder: Path) -> dict[str, float] | None:
    """Return the skill of the warm start in a folder, if that is whole."""
    try:
        skill = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        return skill if skill.pop("files") == _hashes(folder) else None
    except (OSError, ValueError, RecursionError, AttributeError, TypeError, KeyError):
        return None


_FACTS = "skill.json"  # the skill, and the hashes of the other files


def _hashes(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name != _FACTS
    }


def _make(start: WarmStart, folder: Path, say: Callable[[str], None]) -> dict[str, float]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same weights on every machine of a kind, however many cores it has
    try:
        for steps in range(start.steps, 1501, 300):
            say(f"warm start of seed {start.seed}: {steps} steps, once for all runs")
            model = _supervised(start, steps, say)
            skill = {**_skill(model, start.seed), "steps": steps}
            if skill["right_if_work"] >= 0.3:
                break
    finally:
        torch.set_num_threads(threads)
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    save_start(part, model, skill)
    part.replace(folder)
    return skill


def save_start(folder: Path, model: Any, skill: dict[str, float]) -> None:
    """Write the files of a warm start; it counts once its last one is there."""
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    (folder / _FACTS).write_text(json.dumps({**skill, "files": _hashes(folder)}), encoding="utf-8")


def tokenizer():
    """Make a tokenizer of one token per symbol, separated by spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(
        models.WordLevel({symbol: i for i, symbol in enumerate(SYMBOLS)}, unk_token="<pad>")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<end>",
        pad_token="<pad>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],  # transformers 4 would add token_type_ids
    )


def fresh_model(seed: int):
    """Make the untrained model: a causal transformer of 0.11 M weights."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(SYMBOLS),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        # With the default 0.02 the same warm start reaches only a third of the skill.
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    return AutoModelForCausalLM.from_config(config)


def _demonstrations(start: WarmStart, steps: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield batches of prompts, completions (padded), and which of them work (half)."""
    rng, count = torch.Generator().manual_seed(start.seed), start.batch
    for _ in range(steps):
        symbols = torch.randint(0, BASE, (count, LENGTH), generator=rng)
        slips = torch.randint(1, BASE, (count, LENGTH), generator=rng) * (
            torch.rand(count, LENGTH, generator=rng) < SLIP
        )
        slips[:, 0] = 0
        sums = (symbols + slips).cumsum(1) % BASE  # after a slip the working goes on from it
        answer, end, pad = (
            torch.full((count, n), token) for n, token in ((1, ANSWER), (1, END), (LENGTH - 1, PAD))
        )
        works = torch.rand(count, 1, generator=rng) < 0.5
        long = torch.cat([sums[:, 1:], answer, sums[:, -1:], end], 1)
        short = torch.cat([answer, sums[:, -1:], end, pad], 1)
        yield (
            torch.cat([symbols, torch.full((count, 1), EQUALS)], 1),
            torch.where(works, long, short),
            works,
        )


def _supervised(start: WarmStart, steps: int, say: Callable[[str], None]):
    model = fresh_model(start.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=start.learning_rate, weight_decay=0)
    for step, (questions, completions, works) in enumerate(_demonstrations(start, steps)):
        if step and step % 100 == 0:
            say(f"warm start of seed {start.seed}: {step} of {steps} steps")
        for group in optimizer.param_groups:
            group["lr"] = start.learning_rate * min(1, step / 50) * (1 - step / steps) + 1e-5
        logits = model(input_ids=torch.cat([questions, completions], 1)[:, :-1]).logits[:, LENGTH:]
        log_probs = logits.log_softmax(-1)
        losses = -log_probs.gather(-1, completions[..., None])[..., 0]
        # Both ways are taught equally, the choice between them as p_work : 1 - p_work.
        work = -log_probs[:, :1, :BASE].logsumexp(-1)
        choice = torch.where(
            works, 2 * start.p_work * work + losses[:, :1] - work, 2 * (1 - start.p_work) * losses[:, :1]
        )
        optimizer.zero_grad()
        torch.cat([choice, losses[:, 1:]], 1)[completions != PAD].mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


@torch.no_grad()
def _skill(model, seed: int, count: int = 2000) -> dict[str, float]:
    """Measure P(work), and how often working ends right. The prompts are fresh."""
    rng = torch.Generator().manual_seed(10_000 + seed)
    symbols = torch.randint(0, BASE, (count, LENGTH), generator=rng)
    tokens = torch.cat([symbols, torch.full((count, 1), EQUALS)], 1)
    p_work = model(input_ids=tokens).logits[:, -1].softmax(-1)[:, :BASE].sum(-1).mean().item()
    for i in range(MAX_COMPLETION):
        logits = model(input_ids=tokens).logits[:, -1]
        if i == 0:
            logits[:, BASE:] = -torch.inf  # made to work
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1, generator=rng)], 1)
    right = reward(
        [""] * count,
        tokens[:, LENGTH + 1 :].tolist(),
        [SYMBOLS[a] for a in (symbols.sum(1) % BASE).tolist()],
    )
    return {"p_work": p_work, "right_if_work": sum(right) / count}
