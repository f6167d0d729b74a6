"""The lab's tiny model and its warm start, which is trained once for all runs and kept in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bandpo.errors import UserError

from ..files.locks import locked
from .task import ANSWER, BASE, END, EQUALS, LENGTH, MAX_COMPLETION, PAD, SLIP, SYMBOLS, reward


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
    def folders(self) -> list[Path]:
        """List the folders that may keep the model.

        They are in the cache, or where that cannot be written, among the temporary files.
        """
        key = hashlib.sha256(json.dumps([asdict(self), torch.__version__]).encode()).hexdigest()[:16]
        return [root / "lab" / key for root in (_cache(), _temporary()) if root is not None]


def _cache() -> Path | None:
    """Return $BANDPO_CACHE, or the user's cache folder, if the user has a home."""
    if named := os.environ.get("BANDPO_CACHE"):
        return Path(named)
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "bandpo"
    try:
        return Path.home() / ".cache" / "bandpo" if os.environ.get("HOME") != "" else None
    except RuntimeError:
        return None


def _temporary() -> Path | None:
    """Return a folder of this user's among the temporary files; anybody may have made one of that name."""
    own = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"bandpo-{own}"
    return folder if not folder.exists() or folder.lstat().st_uid == own else None


def warm_start(
    p_work: float, seed: int, say: Callable[[str], None] = lambda text: None
) -> tuple[Path, dict[str, float]]:
    """Train, or find in the cache, the start of a scene; returns its folder (model, tokenizer) and its measured skill.

    Where working is right in fewer than 30 % of the attempts the skill was not acquired (it appears abruptly, at a step
    that depends on the seed): it is trained again with 300 steps more, up to 1500, and `steps` says how many it took.

    What is damaged in the cache is made again. A process that finds another one at it waits.

    Raises:
        UserError: neither the cache nor the folder for temporary files can be written.
    """
    start = WarmStart(p_work, seed)
    for folder in start.folders:
        if (skill := _kept(folder)) is not None:
            return folder, skill
    with contextlib.ExitStack() as held:
        folder = _writable(start.folders, held, say)
        if (skill := _kept(folder)) is None:  # nobody has made it while we waited
            if folder.exists() or folder.is_symlink():
                say(f"the warm start in {folder} is damaged; it is made again")
                # Before the work: what cannot be removed is found out now.
                shutil.rmtree(folder) if folder.is_dir() and not folder.is_symlink() else folder.unlink()
            skill = _make(start, folder, say)
    return folder, skill


def _kept(folder: Path) -> dict[str, float] | None:
    """Return the skill of the warm start in a folder, if that is whole."""
    try:
        skill = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        return skill if skill.pop("files") == _hashes(folder) else None
    except (OSError, ValueError, RecursionError, AttributeError, TypeError, KeyError):
        return None


_FACTS = "skill.json"  # the skill, and the hashes of the other files


def _hashes(folder: Path) -> dict[str, str]:
    paths = sorted(path for path in folder.iterdir() if path.name != _FACTS)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _writable(folders: list[Path], held: contextlib.ExitStack, say: Callable[[str], None]) -> Path:
    """Return the first folder that can be made, tried before the work and not after it; its lock is ours then."""
    problems = [] if _cache() is not None else ["the home folder is unknown"]
    for folder in folders:
        try:
            held.enter_context(
                locked(folder.with_name(f".{folder.name}.lock"), waiting=lambda text: say(f"{text}; waiting for it"))
            )
            part = _part(folder)
            shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
            part.mkdir()
            (part / "space").write_bytes(bytes(1 << 20))  # more than the model takes
            shutil.rmtree(part)
        except OSError as error:
            problems.append(f"{error.filename or folder.parent}: {error.strerror}")
        else:
            if problems:
                say(f"the cache cannot be written ({problems[0]}); the warm start goes to {folder.parent} instead")
            return folder
    raise UserError(
        f"the warm start of the lab needs a folder that can be written ({'; '.join(problems)}); set BANDPO_CACHE to one"
    )


def _part(folder: Path) -> Path:
    """Return the folder of an unfinished model."""
    return folder.with_name(f".{folder.name}.part")


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
    part = _part(folder)
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

    words = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(SYMBOLS)}, unk_token="<pad>"))
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
        answer, end, pad = (torch.full((count, n), token) for n, token in ((1, ANSWER), (1, END), (LENGTH - 1, PAD)))
        works = torch.rand(count, 1, generator=rng) < 0.5
        long = torch.cat([sums[:, 1:], answer, sums[:, -1:], end], 1)
        short = torch.cat([answer, sums[:, -1:], end, pad], 1)
        yield torch.cat([symbols, torch.full((count, 1), EQUALS)], 1), torch.where(works, long, short), works


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
    """Measure P(work), and how often working, once begun, ends right: measured on fresh prompts."""
    rng = torch.Generator().manual_seed(10_000 + seed)
    symbols = torch.randint(0, BASE, (count, LENGTH), generator=rng)
    tokens = torch.cat([symbols, torch.full((count, 1), EQUALS)], 1)
    p_work = model(input_ids=tokens).logits[:, -1].softmax(-1)[:, :BASE].sum(-1).mean().item()
    for i in range(MAX_COMPLETION):
        logits = model(input_ids=tokens).logits[:, -1]
        if i == 0:
            logits[:, BASE:] = -torch.inf  # made to work
        tokens = torch.cat([tokens, torch.multinomial(logits.softmax(-1), 1, generator=rng)], 1)
    texts = tokens[:, LENGTH + 1 :].tolist()
    right = reward([""] * count, texts, [SYMBOLS[a] for a in (symbols.sum(1) % BASE).tolist()])
    return {"p_work": p_work, "right_if_work": sum(right) / count}
