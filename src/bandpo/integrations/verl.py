"""Put BandPO into verl, 0.7.1 to 0.9, as the policy loss `bandpo`. Three settings, here on a command line:

    actor_rollout_ref.actor.policy_loss._target_=bandpo.integrations.verl.BandPOLossConfig
    actor_rollout_ref.actor.policy_loss.loss_mode=bandpo
    '+actor_rollout_ref.actor.policy_loss.trust_region={type: band, divergence: kl, delta: 0.05}'

The entry point of group `verl.plugins` makes the loss known wherever verl 0.9 is imported, but verl tells of a plug-in
that does not load at debug level only. `_target_` does not depend on it, in no release: Hydra imports this module by
its name, before the workers start and in every worker, and a failing import or a wrong node ends the run there.

verl hands a policy loss neither the sampler's log-probabilities nor the step, but they are in the batch of an update.
Only where the ratio is to the sampler's policy or tokens are written, `TrainingWorker.train_mini_batch` is wrapped.
"""

# pyright: reportMissingImports=false

import dataclasses
import functools
import sys
import warnings
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from verl import __version__ as VERL
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.utils import tensordict_utils as tu
from verl.workers.config import PolicyLossConfig

from ..losses.metrics import Metrics
from ..losses.policy import policy_loss
from ..numerics import output_dtype
from . import VERL_IN_FLOAT32, log_rule, objective_for, once, say_average
from .run_state import SHARE, TokenWriter, check_tokens

HERE = "actor_rollout_ref.actor.policy_loss"  # where the options stand that errors name
# Where what is asked for is in verl's batch, and who puts it there.
SOURCES = {
    "step": ("global_steps", "the agent loop of the V1 trainer; tokens_path needs it"),
    "anchor": (
        "rollout_log_probs",
        "the rollout, with actor_rollout_ref.rollout.calculate_log_probs=true",
    ),
}
# What the loss of a micro-batch needs besides the tensors that verl hands it.
_OF_BATCH: dict[str, Any] = {}
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

        BandPOLossConfig(loss_mode="bandpo", trust_region={"type": "clip", "eps_low": 0.2, "eps_high": 0.28})

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
            objective = log_rule(objective_for("verl", self.trust_region, anchor=cast(Any, self.anchor)))
        except ValueError as error:
            raise ValueError(f"{HERE}.trust_region: {error}") from error
        limit = objective.max_log_ratio or 20.0
        self.objective = dataclasses.replace(objective, aggregation="none", max_log_ratio=limit)
        uses = {"anchor": self.anchor == "sampler", "step": self.tokens_path is not None}
        self.of_batch = frozenset(name for name, is_used in uses.items() if is_used)
        if "step" in self.of_batch and VERL.startswith(("0.7.", "0.8.")):
            raise ValueError(
                f"{HERE}.tokens_path needs the step, in verl's batches from 0.9 on, got verl {VERL}"
            )
        if self.of_batch:
            patch_train_mini_batch(self.of_batch)


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
    options, of_batch = config.policy_loss, dict(_OF_BATCH)
    if not isinstance(options, BandPOLossConfig):
        options = BandPOLossConfig(loss_mode="bandpo")
    # Ray's workers show no warnings of loggers.
    say_average("verl", options.trust_region, loss_agg_mode, print)
    missing = options.of_batch - of_batch.keys()
    if missing:
        raise RuntimeError(
            f"{HERE}: {sorted(missing)} of the batch is missing: verl called the loss outside of "
            "TrainingWorker.train_mini_batch, or by a loss without the actor's config"
        )
    if options.anchor == "sampler":
        if rollout_is_weights is not None:
            raise ValueError(
                f"{HERE}.anchor = 'sampler' and algorithm.rollout_correction count the same ratio twice"
            )
        old_log_prob = of_batch["anchor"]
    half = [x for x in (log_prob, old_log_prob) if x.dtype.itemsize < 4]
    if of_batch.get("writes", False):
        writer = _writer(cast(str, options.tokens_path), options.tokens_share)
        step = max(of_batch["step"], writer.step)  # a batch of stragglers is not a resumed run
        writer.write(step, old_log_prob, log_prob, advantages, response_mask, batch=step)
    per_token, metrics = policy_loss(
        log_prob.to(output_dtype(log_prob)),  # of half precision this loss warns by itself, below
        old_log_prob.to(output_dtype(old_log_prob)),
        advantages,
        response_mask,
        options.objective,
        rollout_is_weights=rollout_is_weights,
        metrics="all",
    )
    loss = agg_loss(per_token, response_mask, loss_agg_mode, **config.global_batch_info)
    out = {"actor/bandpo/half_precision": float(bool(half))}
    if half:
        once(
            warnings.warn,  # no logger: in Ray's workers the root logger shows errors only
            f"log-probabilities reach the loss as {half[0].dtype}, of two or three digits: ratios are off by "
            f"several percent. What helps: {VERL_IN_FLOAT32}",
        )
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


def patch_train_mini_batch(names: frozenset[str]) -> None:
    """Hand the loss the sampler's log-probabilities or the step from now on. Once in a process.

    An update of the actor is one call of `TrainingWorker.train_mini_batch` with all of a rank's responses, and the
    worker's own `loss_fn`, which has the actor's configuration, is called with each micro-batch and what the model
    gave. verl's driver has no worker. Where verl 0.7 has loaded only its older workers, which have no such call, raises
    ValueError.
    """
    worker: Any = getattr(sys.modules.get("verl.workers.engine_workers"), "TrainingWorker", None)
    if (
        worker is None
        and {"verl.workers.fsdp_workers", "verl.workers.megatron_workers"} & sys.modules.keys()
    ):
        raise ValueError(
            f"{HERE}: {sorted(names)} of the batch is needed, which the older workers of verl 0.7 do not hand a loss; "
            "set trainer.use_legacy_worker_impl=disable"
        )
    if worker is None or hasattr(worker.train_mini_batch, "hands_the_batch"):
        return
    inner = worker.train_mini_batch

    @functools.wraps(inner)  # with the attributes by which verl dispatches it
    def train_mini_batch(self: Any, data: Any) -> Any:
        loss = self.loss_fn
        # The actor's configuration is a keyword of verl's partial, and an attribute of rLLM's object.
        config = getattr(loss, "keywords", {}).get("config", getattr(loss, "config", None))
        options = getattr(config, "policy_loss", None)
        if not isinstance(options, BandPOLossConfig) or not options.of_batch:
            return inner(self, data)
        for name in sorted(options.of_batch):
            source, by = SOURCES[name]
            if source not in data:
                raise ValueError(
                    f"{HERE}: {name} is made of {source!r}, which this batch lacks: {by} puts it there"
                )
        step = _step(data, self.engine.get_data_parallel_group()) if "step" in options.of_batch else None

        def with_batch(**named: Any) -> Any:
            try:
                if "model_output" in named:  # else distillation's, of logits
                    if "anchor" in options.of_batch:
                        _OF_BATCH["anchor"] = _padded(named["data"], SOURCES["anchor"][0])
                    if step is not None:  # ranks that share responses have the same: one of them writes
                        _OF_BATCH.update(step=step, writes=self.engine.is_mp_src_rank_with_outputs())
                return loss(**named)
            finally:
                _OF_BATCH.clear()

        self.loss_fn = with_batch
        try:
            return inner(self, data)
        finally:
            self.loss_fn = loss

    cast(Any, train_mini_batch).hands_the_batch = True
    worker.train_mini_batch = train_mini_batch


def _step(data: Any, group: Any) -> int:
    """Return the step of an update, of all ranks."""
    steps = tu.get(data, "global_steps")  # one for each response, or one for all
    mine = max(map(int, steps)) if isinstance(steps, list) else int(steps)
    every = [mine] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(every, mine, group)
    return max(every) - 1  # verl's from 1


def _padded(data: Any, name: str) -> Tensor:
    """Return a column of tokens, (B, T), as `ppo_loss` has the old log-probabilities."""
    return data.select(name).to_padded_tensor()[name]


@functools.cache
def _writer(folder: str, share: float) -> TokenWriter:
    """Return this process's writer."""
    return TokenWriter(
        folder, share, torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    )
