"""Context of a rule from verl's updates, of all ranks and of each micro-batch; and the state of a `Controlled` rule.

verl itself is imported where it is used, so that the controller is tested without it.
"""

# verl is not installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import functools
import warnings
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from ..trust_regions.adaptive import Adaptive
from ..trust_regions.base import Context, Region, find_one
from ..trust_regions.control import Controlled
from .control import NAME, RadiusController

HERE = "actor_rollout_ref.actor.policy_loss"  # where the options stand that errors name
# Where what is asked for is in verl's batch, and who puts it there.
SOURCES = {
    "old_entropies": ("entropy", "the pass that makes the old log-probabilities (V1 trainer, no bypass_mode)"),
    "group_mean": ("rm_scores", "the reward loop of the V1 trainer"),
    "group_std": ("rm_scores", "the reward loop of the V1 trainer"),
    "step": ("global_steps", "the agent loop of the V1 trainer; tokens_path needs it, and a rule with a schedule"),
    "staleness": ("extra_fields", "the agent loop of the V1 trainer"),
    "anchor": ("rollout_log_probs", "the rollout, with actor_rollout_ref.rollout.calculate_log_probs=true"),
}
_OURS = "bandpo_"  # before the names of what is added to the batch


class Controller(RadiusController):
    """Keeps the state of a `Controlled` rule in verl's checkpoints; one is made for each update of the actor.

    The state is an attribute of the engine's learning-rate scheduler: what a scheduler of torch has as attributes is in
    its `state_dict`, and that is in verl's checkpoints, of each rank.

    Raises:
        ValueError: verl's checkpoints would not have the state; or as `RadiusController`.
    """

    def __init__(self, rule: Controlled, engine: Any) -> None:
        scheduler, manager = getattr(engine, "lr_scheduler", None), getattr(engine, "checkpoint_manager", None)
        if not isinstance(scheduler, LRScheduler) or getattr(manager, "lr_scheduler", None) is not scheduler:
            raise ValueError(
                "a controlled rule needs verl's FSDP engine, whose checkpoints have its state; those of "
                f"{type(engine).__name__} would not"
            )
        for name in ("save_contents", "load_contents"):
            contents = getattr(manager, f"checkpoint_{name}")
            if "extra" not in contents:
                raise ValueError(
                    f"actor_rollout_ref.actor.checkpoint.{name} must have 'extra', where verl keeps the state of a "
                    f"controlled rule, got {list(contents)}"
                )
        self._scheduler = scheduler
        super().__init__(rule, getattr(scheduler, NAME, None), scheduler.last_epoch)  # verl steps it once in an update

    def keep(self) -> None:
        """Move the number after the update, and keep the state.

        What was measured is summed over all ranks. Those of a Ulysses group have the same tokens, which are counted as
        often then; that changes no share and no mean.
        """
        setattr(self._scheduler, NAME, self.finish(self._scheduler.last_epoch, over_ranks=True))


def add_columns(data: Any, asked: frozenset[str], group: Any) -> int | None:
    """Add to the responses of a rank what is of all ranks' responses, as (B,) tensors; returns the step."""
    from verl.utils import tensordict_utils as tu

    for name, (source, by) in SOURCES.items():
        if name in asked and source not in data:
            raise ValueError(f"{HERE}: {name} is made of {source!r}, which this batch lacks; it is put there by {by}")
    if "entropies" in asked:
        tu.assign_non_tensor(data, calculate_entropy=True)
    if not asked & {"group_mean", "group_std", "step", "staleness"}:
        return None

    def column(name: str) -> list[Any]:
        values = tu.get(data, name)
        return values if isinstance(values, list) else [values] * len(data)

    mine: dict[str, list[Any]] = {}
    if asked & {"step", "staleness"}:
        mine["steps"] = column("global_steps")
    if asked & {"group_mean", "group_std"}:
        scores = data.select("rm_scores").to_padded_tensor()["rm_scores"].sum(-1)
        mine |= {"uids": column("uid"), "scores": scores.tolist()}
    every: list[Any] = [mine] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(every, mine, group)
    if "scores" in mine:
        groups: dict[Any, list[float]] = {}
        for rank in every:
            for uid, score in zip(rank["uids"], rank["scores"], strict=True):
                groups.setdefault(uid, []).append(score)
        outcomes = {uid: torch.tensor(scores) for uid, scores in groups.items()}
        data[f"{_OURS}group_mean"] = torch.stack([outcomes[uid].mean() for uid in mine["uids"]])
        data[f"{_OURS}group_std"] = torch.stack([outcomes[uid].std(correction=0) for uid in mine["uids"]])
    if "steps" not in mine:
        return None
    step = max(int(each) for rank in every for each in rank["steps"]) - 1  # verl counts from 1
    if "staleness" in asked:
        versions = [fields.get("max_global_steps") for fields in column("extra_fields")]
        if None in versions:
            raise ValueError(f"{HERE}: staleness is made of 'max_global_steps', which this rollout does not report")
        data[f"{_OURS}staleness"] = (step - torch.tensor(versions)).clamp(min=0)
    return step


def add_mean_weight(data: Any, region: Region, asked: frozenset[str], step: int | None, group: Any) -> None:
    """Add the divisor of an `Adaptive` radius: the mean weight of all tokens of all ranks in this update."""
    names = ["old_log_probs", "response_mask"]
    names += [SOURCES[name][0] for name in ("anchor", "old_entropies") if name in asked]
    padded = data.select(*names).to_padded_tensor()
    old, mask = padded["old_log_probs"], padded["response_mask"].bool()
    old = padded["rollout_log_probs"] if "anchor" in asked else old
    columns = {name: data[_OURS + name][:, None] for name in asked if _OURS + name in data}
    if "old_entropies" in asked:
        columns["old_entropies"] = padded["entropy"]
    context = Context(response_mask=mask, positions=mask.cumsum(-1) - 1, step=step, **columns)
    rule = cast(Adaptive, find_one(region, Adaptive))
    goes_by_age = rule.law.needs == ("staleness",)
    ages: set[int] = set(columns["staleness"].flatten().tolist()) if goes_by_age else set()
    mine = *rule.sums(old, context).tolist(), ages
    every: list[Any] = [mine] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(every, mine, group)
    totals, counts, every_age = zip(*every, strict=True)
    if len(set().union(*every_age)) == 1:
        _warn_of_one_age()
    total, count = sum(totals), sum(counts)
    data[f"{_OURS}mean_weight"] = torch.full((len(data),), total / max(count, 1))


@functools.cache
def _warn_of_one_age() -> None:
    """Warn of one age, once in each process."""
    warnings.warn(
        "Tilt of staleness: all responses of this update are of one age, so that every token has the mean radius, as "
        "under the band alone. In verl's synchronous mode (trainer.v1.trainer_mode=sync) this is so in every update",
        stacklevel=2,
    )


def known_of(asked: frozenset[str], model_output: Any, data: Any, step: int | None) -> dict[str, Any]:
    """Return the fields of a micro-batch that the loss is shown."""
    from verl.workers.utils.padding import no_padding_2_padding

    def of_tokens(name: str) -> Tensor:
        return data.select(name).to_padded_tensor()[name]  # as `ppo_loss` has the old log-probabilities

    known: dict[str, Any] = {name: data[_OURS + name] for name in asked if _OURS + name in data}
    if "step" in asked:
        known["step"] = step
    if "entropies" in asked:
        known["entropies"] = no_padding_2_padding(model_output["entropy"], data)
    if "old_entropies" in asked:
        known["old_entropies"] = of_tokens("entropy")
    if "anchor" in asked:
        known["anchor"] = of_tokens("rollout_log_probs")
    return known
