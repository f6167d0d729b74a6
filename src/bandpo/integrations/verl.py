"""Put BandPO into verl, 0.7.1 to 0.9, as the policy loss `bandpo`. Three settings, here on a command line:

    actor_rollout_ref.actor.policy_loss._target_=bandpo.integrations.verl.BandPOLossConfig
    actor_rollout_ref.actor.policy_loss.loss_mode=bandpo
    '+actor_rollout_ref.actor.policy_loss.trust_region={type: band, divergence: kl, delta: 0.05}'

The entry point of group `verl.plugins` makes the loss known wherever verl 0.9 is imported, but verl tells of a plug-in
that does not load at debug level only. `_target_` does not depend on it, in no release: Hydra imports this module by
its name, before the workers start and in every worker, and a failing import or a wrong node ends the run there.

verl hands a policy loss no entropies and no step, but they are in the batch of an update. Only where a rule needs them,
or the ratio is to the sampler's policy, `TrainingWorker.train_mini_batch` is wrapped: see `_watch`.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler
from verl import __version__ as VERL
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.utils import tensordict_utils as tu
from verl.workers.config import PolicyLossConfig
from verl.workers.utils.padding import no_padding_2_padding

from ..losses.metrics import Metrics
from ..losses.policy import policy_loss
from ..numerics import output_dtype
from ..trust_regions.adaptive import Adaptive
from ..trust_regions.base import Context, Region, find_one
from ..trust_regions.control import Controlled
from . import HOSTS, objective_for, once, say_average, tell, verl_in_float32
from .run_state import NAME, SHARE, RadiusController, TokenWriter, check_tokens

HERE = "actor_rollout_ref.actor.policy_loss"  # where the options stand that errors name
# Where what is asked for is in verl's batch, and who puts it there.
SOURCES = {
    "old_entropies": ("entropy", "the pass that makes the old log-probabilities (V1 trainer, no bypass_mode)"),
    "step": ("global_steps", "the agent loop of the V1 trainer; tokens_path needs it, and a rule with a schedule"),
    "anchor": ("rollout_log_probs", "the rollout, with actor_rollout_ref.rollout.calculate_log_probs=true"),
}
_KNOWN: dict[str, Any] = {}  # what the loss of a micro-batch is shown besides the tensors that verl hands it
_COUNTS = {  # what is logged, and its name in `Metrics.numbers`
    "tokens": "tokens",
    "clip/high_count": "high",
    "clip/low_count": "low",
    "clip/tail_high_count": "tail_high",
    "clip/good_tail_tokens": "good_tail",
    "cut/high_count": "cut_high",
    "cut/low_count": "cut_low",
    "cut/good_tail_count": "good_tail_high",
    "not_finite/count": "not_finite",
    "kl_old/k1_nats": "kl_old_k1",
    "kl_old/k3_nats": "kl_old_k3",
}


@dataclass
class BandPOLossConfig(PolicyLossConfig):
    """Add a trust region to `actor_rollout_ref.actor.policy_loss`.

    Args:
        trust_region: the node of a rule or of an `Objective`, or the name of a method such as "gspo"; None is the
            paper's, `{"type": "band", "divergence": "kl", "delta": 0.05}`. verl's `clip_ratio*` are not read.
            Log-ratios are clamped to +-20, as in verl's own losses, unless an objective has a `max_log_ratio`.
        anchor: what ratio and bounds are taken against: "old", verl's old log-probabilities, or "sampler", the
            rollout's; with `rollout.calculate_log_probs=true`, and without weights of `algorithm.rollout_correction`.
        tokens_path: a folder, the same on all nodes, to write tokens to for `bandpo calibrate`: see `TokenWriter`.
        tokens_share: of the responses so many are written, each in all mini-batches that it is in.

    Raises ValueError for an option or a node that is none, with the key, and for an objective that verl cannot do.
    """

    trust_region: Any = None
    anchor: str = "old"
    tokens_path: str | None = None
    tokens_share: float = SHARE

    def __post_init__(self) -> None:
        if self.loss_mode != "bandpo":  # another loss reads none of the options
            raise ValueError(f"{HERE}.loss_mode must be 'bandpo', got {self.loss_mode!r}")
        if self.anchor not in ("old", "sampler"):
            raise ValueError(f"{HERE}.anchor must be 'old' or 'sampler', got {self.anchor!r}")
        check_tokens(self.tokens_path, self.tokens_share, f"{HERE}.")
        try:  # errors show now and not in the first update
            objective = tell(objective_for("verl", self.trust_region, anchor=cast(Any, self.anchor)))
        except ValueError as error:
            raise ValueError(f"{HERE}.trust_region: {error}") from error
        limit = objective.max_log_ratio or 20.0
        self.objective = dataclasses.replace(objective, aggregation="none", max_log_ratio=limit)
        self.controlled = find_one(objective.trust_region, Controlled)
        more = {
            "anchor": self.anchor == "sampler",
            "mean_weight": find_one(objective.trust_region, Adaptive) is not None,
            "entropies": self.controlled is not None and self.controlled.measure == "entropy",
            "step": self.tokens_path is not None,
        }
        needed = objective.trust_region.needed().keys() & {*HOSTS["verl"].shown} - {"logps", "mean_weight"}
        self.asked = frozenset(needed | {name for name, is_so in more.items() if is_so})
        if VERL.startswith(("0.7.", "0.8.")) and (lacking := sorted(self.asked & {"old_entropies", "step"})):
            raise ValueError(f"{HERE}: {lacking} is asked for, which verl's batches have from 0.9 on, got verl {VERL}")
        if self.asked:
            _watch(self.asked)


@register_policy_loss("bandpo")
def bandpo_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Compute the loss as verl calls it, and what it logs (`logged`).

    All tensors are (B, T). `config.policy_loss` holds the options (without a `BandPOLossConfig`: the defaults), and
    `config.global_batch_info` the numbers that verl's average over micro-batches and ranks needs.
    """
    options, known = config.policy_loss, dict(_KNOWN)
    if not isinstance(options, BandPOLossConfig):
        options = BandPOLossConfig(loss_mode="bandpo")
    say_average("verl", options.trust_region, loss_agg_mode, print)  # Ray's workers show no warnings of loggers
    if missing := options.asked - known.keys():
        where = (
            "verl called the loss outside of TrainingWorker.train_mini_batch, or by a loss without the actor's config"
        )
        raise RuntimeError(f"{HERE}: {sorted(missing)} must be known, but {where}")
    if options.anchor == "sampler":
        if rollout_is_weights is not None:
            raise ValueError(f"{HERE}.anchor = 'sampler' and algorithm.rollout_correction count the same ratio twice")
        old_log_prob = known.pop("anchor")
    controller, half = known.pop("controller", None), [x for x in (log_prob, old_log_prob) if x.dtype.itemsize < 4]
    if known.pop("writes", False):
        writer = _writer(cast(str, options.tokens_path), options.tokens_share)
        step = max(known["step"], writer.step)  # a batch of stragglers is not a resumed run
        writer.write(step, old_log_prob, log_prob, advantages, response_mask, batch=step)
    per_token, metrics = policy_loss(
        log_prob.to(output_dtype(log_prob)),  # of half precision this loss warns by itself, below
        old_log_prob.to(output_dtype(old_log_prob)),
        advantages,
        response_mask,
        options.objective,
        rollout_is_weights=rollout_is_weights,
        metrics="all",
        **known,
    )
    loss = agg_loss(per_token, response_mask, loss_agg_mode, **config.global_batch_info)
    out = {"actor/bandpo/half_precision": float(bool(half))}
    if half:
        once(
            warnings.warn,  # no logger: in Ray's workers the root logger shows errors only
            f"log-probabilities reach the loss as {half[0].dtype}, of two or three digits: ratios are off by percents. "
            f"What helps: {verl_in_float32(VERL)}",
        )
    if controller is not None:
        controller.add(metrics)
        out["actor/bandpo/controlled"] = known["controlled"]  # the same in all micro-batches: verl takes the mean
    return loss, out | logged(metrics)


def logged(metrics: Metrics) -> dict[str, float]:
    """Return counts and sums under `actor/bandpo/`, and three fractions of verl's.

    verl logs the mean of a number over micro-batches and ranks, whatever their tokens. So a fraction of all tokens is
    the ratio of two logged numbers, e.g. `clip/count` / `tokens`: exact if all mini-batches of a step have equally many
    micro-batches. Names hold no "max", "min", "sum" or "total": verl would reduce those in another way.
    """
    x = metrics.numbers()
    out = {f"actor/bandpo/{name}": x.get(number, 0.0) for name, number in _COUNTS.items()}
    tokens = max(x["tokens"], 1)
    return out | {
        "actor/bandpo/clip/count": x["high"] + x["low"],
        "actor/pg_clipfrac": (x["cut_high"] + x["cut_low"]) / tokens,
        "actor/pg_clipfrac_lower": x.get("dual_clipped", 0.0) / tokens,
        "actor/ppo_kl": x["kl_old_k1"] / tokens,
    }


def _watch(asked: frozenset[str]) -> None:
    """Show rules the contents of verl's batches from now on. Once in a process.

    An update of the actor is one call of `TrainingWorker.train_mini_batch` with all of a rank's responses, and the
    worker's own `loss_fn`, which has the actor's configuration, is called with each micro-batch and what the model
    gave. verl's driver has no worker. Where verl 0.7 has loaded only its older workers, which have no such call, raises
    ValueError.
    """
    worker: Any = getattr(sys.modules.get("verl.workers.engine_workers"), "TrainingWorker", None)
    if worker is None and {"verl.workers.fsdp_workers", "verl.workers.megatron_workers"} & sys.modules.keys():
        cannot = "the older workers of verl 0.7 cannot show a rule; set trainer.use_legacy_worker_impl=disable"
        raise ValueError(f"{HERE}: {sorted(asked)} is asked for, which {cannot}")
    if worker is None or hasattr(inner := worker.train_mini_batch, "shows_rules_the_batch"):
        return

    @functools.wraps(inner)  # with the attributes by which verl dispatches it
    def train_mini_batch(self: Any, data: Any) -> Any:
        loss = self.loss_fn
        # The actor's configuration is a keyword of verl's partial, and an attribute of rLLM's object.
        config = getattr(loss, "keywords", {}).get("config", getattr(loss, "config", None))
        options = getattr(config, "policy_loss", None)
        if not isinstance(options, BandPOLossConfig) or not options.asked:
            return inner(self, data)
        controller = None if options.controlled is None else Controller(options.controlled, self.engine)
        group = self.engine.get_data_parallel_group()
        of_update = known_of_update(data, options.asked, options.objective.trust_region, group)

        def watched(**named: Any) -> Any:
            try:
                if "model_output" in named:  # else distillation's, of logits
                    _KNOWN.update(of_update | _of_micro_batch(options.asked, named["model_output"], named["data"]))
                    if controller is not None:
                        _KNOWN.update(controlled=controller.value, controller=controller)
                    if options.tokens_path is not None:  # ranks that share responses have the same: one of them writes
                        _KNOWN["writes"] = self.engine.is_mp_src_rank_with_outputs()
                return loss(**named)
            finally:
                _KNOWN.clear()

        self.loss_fn = watched
        try:
            out = inner(self, data)
        finally:
            self.loss_fn = loss
        if controller is not None:
            controller.keep()
        return out

    cast(Any, train_mini_batch).shows_rules_the_batch = True
    worker.train_mini_batch = train_mini_batch


class Controller(RadiusController):
    """Keep the state of a `Controlled` rule in verl's checkpoints, for one update.

    The state is an attribute of the engine's learning-rate scheduler: what a scheduler of torch has as attributes is in
    its `state_dict`, and that is in verl's checkpoints, of each rank. Raises ValueError where it would not be.
    """

    def __init__(self, rule: Controlled, engine: Any) -> None:
        self._scheduler: Any = getattr(engine, "lr_scheduler", None)
        manager = getattr(engine, "checkpoint_manager", None)
        contents = {name: getattr(manager, f"checkpoint_{name}", ()) for name in ("save_contents", "load_contents")}
        is_kept = isinstance(self._scheduler, LRScheduler) and getattr(manager, "lr_scheduler", None) is self._scheduler
        if not is_kept or any("extra" not in each for each in contents.values()):
            raise ValueError(
                "the state of a controlled rule must be in verl's checkpoints: it needs the FSDP engine, and 'extra' "
                f"in actor.checkpoint.save_contents and load_contents, got {type(engine).__name__} with {contents}"
            )
        kept = getattr(self._scheduler, NAME, None)
        super().__init__(rule, kept, self._scheduler.last_epoch)  # verl steps it once in an update

    def keep(self) -> None:
        """Move the number by what all ranks measured, and keep the state."""
        setattr(self._scheduler, NAME, self.finish(self._scheduler.last_epoch, over_ranks=True))


def known_of_update(data: Any, asked: frozenset[str], region: Region, group: Any) -> dict[str, Any]:
    """Return the fields that all responses of all ranks share: step, mean weight."""
    known: dict[str, Any] = {}
    for name, (source, by) in SOURCES.items():
        if name in asked and source not in data:
            raise ValueError(f"{HERE}: {name} is made of {source!r}, which this batch lacks; it is put there by {by}")
    if "entropies" in asked:
        tu.assign_non_tensor(data, calculate_entropy=True)
    if "step" in asked:
        steps = tu.get(data, "global_steps")  # one for each response, or one for all
        every = _of_ranks(max(map(int, steps)) if isinstance(steps, list) else int(steps), group)
        known["step"] = max(every) - 1  # verl's from 1
    if "mean_weight" in asked:  # the divisor of an `Adaptive` radius: the mean weight of all tokens of all ranks
        mask = _padded(data, "response_mask").bool()
        entropies = _padded(data, "entropy") if "old_entropies" in asked else None
        context = Context(mask, positions=mask.cumsum(-1) - 1, step=known.get("step"), old_entropies=entropies)
        old = _padded(data, "rollout_log_probs" if "anchor" in asked else "old_log_probs")
        sums = cast(Adaptive, find_one(region, Adaptive)).sums(old, context).tolist()
        total, count = map(sum, zip(*_of_ranks(sums, group), strict=True))
        known["mean_weight"] = torch.tensor(total / max(count, 1))
    return known


def _of_ranks(mine: Any, group: Any) -> list[Any]:
    """Gather an object of each rank."""
    every = [mine] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(every, mine, group)
    return every


def _padded(data: Any, name: str) -> Tensor:
    """Return a column of tokens, (B, T), as `ppo_loss` has the old log-probabilities."""
    return data.select(name).to_padded_tensor()[name]


def _of_micro_batch(asked: frozenset[str], model_output: Any, data: Any) -> dict[str, Any]:
    """Return a micro-batch's fields for the loss."""
    known: dict[str, Any] = {name: _padded(data, SOURCES[name][0]) for name in asked & {"old_entropies", "anchor"}}
    if "entropies" in asked:
        known["entropies"] = no_padding_2_padding(model_output["entropy"], data)
    return known


@functools.cache
def _writer(folder: str, share: float) -> TokenWriter:
    """Return this process's writer."""
    return TokenWriter(folder, share, torch.distributed.get_rank() if torch.distributed.is_initialized() else 0)
