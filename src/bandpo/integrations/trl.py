"""BandPO in TRL: `BandPOTrainer` is `GRPOTrainer` with a trust region, or an objective, instead of two epsilons.

TRL's loss of a token is -min(r A, clamp(r, 1 - self.epsilon_low, 1 + self.epsilon_high) A). For the length of one loss
these two attributes hold the bounds of each token; everything else, the loss included, is TRL's own.

What is more than a clamp (`Objective.changed`) replaces that term: both bounds are set to our loss of the token, with
its gradient, and A to -1, so that the term is max(r, our loss); and r is capped at -inf by TRL's `delta`. The KL
penalty, the weights of the sampler, the entropy mask and the average stay TRL's, whatever its release does.

Metrics go to TRL's log under `bandpo/`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from ..bounds import Bounds
from ..losses.metrics import Metrics
from ..losses.objective import Objective
from ..losses.policy import policy_loss
from ..trust_regions.base import Context, Region, find_one
from ..trust_regions.control import Controlled
from . import SHOWN, Rule, asked_for, tell
from .tokens import SHARE, TokenWriter, check_tokens
from .trl_context import PREFIX, ContextTrainer, Controller
from .trl_finite import FiniteGuard
from .trl_settings import (
    LOSS_TYPES,
    REPLACED,
    Instead,
    Replaced,
    check_unchanged,
    is_trls_own,
    node_of,
    read_once,
    settle,
    steps_a_batch,
    warn_of,
)  # fmt: skip

__all__ = ["LOSS_TYPES", "MAIN_METRICS", "REPLACED", "BandPOConfig", "BandPOTrainer"]

# What is logged unless `all_metrics` is set: how often the rule acts, on which side and on whom, and how far the policy
# moved.
MAIN_METRICS = (
    "tokens",  # the weight of the others, for a mean over rows
    "clip/high_fraction",
    "clip/low_fraction",
    "clip/tail_high_share",
    "cut/good_tail",
    "kl_old/k3",
    "log_ratio/max",
    "log_ratio/min",
)
TITLE = "BandPO: Bridging Trust Regions and Ratio Clipping via Probability-Aware Bounds for LLM Reinforcement Learning"
CITATION = f"""\
@article{{li2026bandpo,
    title  = {{{{{TITLE}}}}},
    author = {{Yuan Li and Bo Wang and Yufei Gao and Yuqian Yao and Xinyuan Wang and Zhangyue Yin and Xipeng Qiu}},
    year   = 2026,
    eprint = {{arXiv:2603.04918}},
}}"""


@dataclass
class BandPOConfig(GRPOConfig):
    """`GRPOConfig` with a trust region, for `BandPOTrainer`; in `GRPOTrainer` it ends the first loss with an error.

    Args:
        trust_region: a rule, an `Objective`, the node of either such as
            `{"type": "band", "divergence": "kl", "delta": 0.05}`, the node's JSON text, a short word, "band:kl:0.05",
            or a method's name such as "gspo"; kept as the node of it. Not to be confused with `delta`, which in TRL is
            the upper clip of the two-sided GRPO loss (arXiv 2505.07291) and keeps that meaning.
        all_metrics: log everything in docs/run.md, some 50 numbers a row, instead of `MAIN_METRICS`.
        anchor: what ratio and bounds are taken against: "old", the policy before the updates on a batch, by the
            trainer; or "sampler", as vLLM or a `rollout_func` gave its log-probabilities. DIS and KPop are meant for
            the latter. TRL's correction for the sampler is in the ratio then, and counts as 1.
        tokens_path: a folder to write tokens to while training, for `bandpo calibrate`: the old and the current
            log-probability of each, in `tokens-0.jsonl`, of each process a file. None: nothing is written.
        tokens_share: of the responses so many are written, each in all steps that it is used in. At 0.1 a batch of 512
            responses of 1,000 tokens takes some 2 MB for each time that it is used.
        stop_if_not_finite: end with an error at the first step after which a loss or a weight is not finite, and at
            rewards that are infinite or all missing. False: warn and go on.

    Raises:
        ValueError: an anchor that is neither, a share outside (0, 1], a node that is none, a rule that has no node
            (pass it to `BandPOTrainer`), or settings that it does not go with; see `BandPOTrainer`.
    """

    trust_region: dict | str | Region | Objective | None = field(
        default=None,
        metadata={"help": "Node of the trust region, e.g. {'type': 'band', 'divergence': 'kl', 'delta': 0.05}."},
    )
    all_metrics: bool = field(
        default=False, metadata={"help": "Log everything in docs/run.md instead of eight numbers a row."}
    )
    anchor: str = field(
        default="old", metadata={"help": "What the ratio is taken against: 'old', the trainer's policy, or 'sampler'."}
    )
    tokens_path: str | None = field(
        default=None, metadata={"help": "Folder to write tokens to, which bandpo calibrate reads."}
    )
    tokens_share: float = field(default=SHARE, metadata={"help": "Share of the responses whose tokens are written."})
    stop_if_not_finite: bool = field(
        default=True, metadata={"help": "End at the first loss, weight or reward that is not finite; False: go on."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchor not in ("old", "sampler"):
            raise ValueError(f"anchor must be 'old' or 'sampler', got {self.anchor!r}")
        check_tokens(self.tokens_path, self.tokens_share)
        if self.trust_region is not None:
            settle(self, cast(Any, self.trust_region))
            if isinstance(self.trust_region, str):
                raise ValueError(
                    f"trust_region of BandPOConfig must have a config node to be kept as, got {self.trust_region}; "
                    "pass it to BandPOTrainer(trust_region=...), or derive it from bandpo.Region with fields of plain "
                    "data"
                )
        elif self.epsilon == 0.2 and self.epsilon_high is None:  # the rule of BandPOTrainer, or else its default
            cast(Any, self).epsilon = Replaced("that of BandPOTrainer")


@dataclass(frozen=True)
class _Seen(Region):
    """A rule that keeps the bounds it made."""

    rule: Region
    made: list[Bounds] = field(default_factory=list)

    def bounds(self, old_logps: Tensor, context: Context | None = None) -> Bounds:
        self.made.append(self.rule.bounds(old_logps, context))
        return self.made[-1]


class BandPOTrainer(ContextTrainer):
    """GRPO with a trust region (eq:bandpo_full) or any `Objective`, for the loss types grpo, bnpo, dr_grpo and dapo.

        trainer = BandPOTrainer(model, reward, args, rows, trust_region=Band("kl", 0.05))     # was: GRPOTrainer(

    A rule acts only where a batch is used for several optimizer steps: set `steps_per_generation` (or `num_iterations`)
    so that their product exceeds `gradient_accumulation_steps`; the paper takes 4 steps a batch. With TRL's defaults
    there is one step, the ratio is 1, and no rule does anything: the trainer says so at start.

    The metrics, under `bandpo/` in every row of the trainer's own: the eight of `MAIN_METRICS`, with
    `BandPOConfig(all_metrics=True)` all of docs/run.md; summed over micro-batches and processes. Under
    `eval_bandpo/` in those of an evaluation, and in what `evaluate` returns.

    A `Controlled` rule is steered here: after every optimizer step its number is moved by what was measured in it, over
    all micro-batches and processes, and logged in every row as `bandpo/controlled/value`, with the smoothed measurement
    and what the law remembers. Its state is in every checkpoint, so that `train(resume_from_checkpoint=...)` is exact.

    The rule is kept as `trust_region` in `trainer.args`, a copy of the `args` given, and so in `training_args.bin` and
    in what trackers show of the settings; `epsilon` there names it too. The model card has it.

    Args:
        model: as for `GRPOTrainer`, like everything not named here.
        args: a `GRPOConfig` or `BandPOConfig`; `epsilon` and `epsilon_high` must keep their defaults.
        trust_region: the rule, an `Objective`, the config node of either, a short word such as "band:kl:0.05", or a
            method's name such as "gspo"; by default that of `BandPOConfig`, else `Band("kl", 0.05)`. The average and
            the KL penalty are TRL's own (`loss_type`, `beta`): an objective with another average or a penalty is
            refused, and of a method the trainer says at start which average it gets, and whether that is its paper's. A
            rule alone is applied by TRL's clamp; an objective with more in it replaces the clamp, and TRL's
            `clip_ratio/*`, which are then about nothing, are not logged.

    Raises:
        ValueError: two rules are given, or a setting does not go with the rule: a loss of another form (sapo, vespo),
            Liger kernels, a sampler's temperature that is not that of the log-probabilities; or says what the objective
            does not: `importance_sampling_level="sequence"` (and with it luspo) unless the objective is
            `Objective(Clip(...), ratio="sequence-mean")`, cispo unless it is `Objective(Clip(1, ...), apply="weight")`,
            which TRL then does itself; or reads what the objective replaces (`REPLACED`).
    """

    # For the model card.
    _tag_names: ClassVar = ["trl", "grpo", "bandpo"]
    _name = "BandPO"
    _paper: ClassVar = {"title": TITLE, "id": "2603.04918", "citation": CITATION}

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: GRPOConfig | None = None,
        *others: Any,
        trust_region: Rule | None = None,
        **named: Any,
    ) -> None:
        if args is None:
            name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "")
            args = BandPOConfig(f"{name.split('/')[-1]}-BandPO")
        node = cast(Any, getattr(args, "trust_region", None))
        kept = copy.copy(args)  # the caller's may serve another trainer, with another rule
        if type(kept) is GRPOConfig:
            kept.__class__ = BandPOConfig
        self.objective = settle(kept, node if trust_region is None else trust_region)
        if not (node is None or trust_region is None or node == node_of(self.objective)):
            raise ValueError(
                f"trust_region is given twice, to BandPOTrainer as {trust_region!r} and in its args as {node}; keep one"
            )
        self.trust_region = self.objective.trust_region
        self._asked = asked_for(self.objective, SHOWN["TRL"])
        self._rewards = self._old_pass = None
        self._replaces = bool(self.objective.changed()) and not is_trls_own(kept, self.objective)
        tell(self.objective, f"; {steps_a_batch(kept):g} steps a batch")
        warn_of(kept, self.trust_region)
        kept.logging_nan_inf_filter = False  # it shows the mean of other losses, 0 at first, for one that is not finite
        rule = str(cast(Any, kept).trust_region)
        if "band" not in rule.lower():  # the method, of the paper that the model card cites, is GRPO then
            vars(self).update({name: getattr(GRPOTrainer, name) for name in ("_tag_names", "_name", "_paper")})
        self._name = f"{self._name} (trust region {rule})"
        self._clip_metrics: dict[str, Metrics] = {}
        self._loss_inputs: dict[str, Any] | None = None
        controlled = find_one(self.trust_region, Controlled)
        self._controller = None if controlled is None else Controller(controlled)
        folder = getattr(kept, "tokens_path", None)
        self._token_writer = folder and TokenWriter(folder, cast(Any, kept).tokens_share, kept.process_index)
        super().__init__(model, reward_funcs, kept, *others, **named)
        self.finite_guard = FiniteGuard(self.accelerator, getattr(kept, "stop_if_not_finite", True))
        self.add_callback(self.finite_guard)
        if self._controller is not None:
            self.add_callback(self._controller)
        self._made_with = read_once(self)

    def _send_telemetry(self) -> None:
        """Send nothing: TRL would tell the model hub of every run, with the kind of its model and device."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        check_unchanged(self, self._made_with)
        return super()._prepare_inputs(generation_batch)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        args = cast(GRPOConfig, self.args)
        kept = self.epsilon_low, self.epsilon_high, args.delta
        self._loss_inputs = inputs = self._anchored(inputs)
        if self._replaces:
            # -min(min(r, -inf) (-1), clamp(r, loss, loss) (-1)) = max(-inf, loss)
            args.delta = -math.inf
            inputs = inputs | {"advantages": -torch.ones_like(inputs["completion_mask"][:, 0], dtype=torch.float32)}
            if self.beta == 0 or not getattr(args, "use_bias_correction_kl", False):
                inputs["old_per_token_logps"] = None  # nothing reads r, whose gradient may be 0 times inf: 1 then
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self._loss_inputs = None
            self.epsilon_low, self.epsilon_high, args.delta = kept
        for metrics in self._metrics.values() if self._replaces else ():
            for name in [name for name in metrics if name.startswith("clip_ratio/")]:
                del metrics[name]
        if cast(torch.nn.Module, self.model).training:
            self.finite_guard.add(loss)
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        out = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._loss_inputs is not None:  # asked for by the loss, which reads the epsilons next
            # (log-probabilities, entropies); TRL 1.7 appended a third item.
            self._set_bounds(self._loss_inputs, out[0], out[1])
        return out

    def _set_bounds(self, inputs: dict[str, Any], logps: Tensor, entropies: Tensor | None) -> None:
        mask, advantages = self._response_mask(inputs), inputs["advantages"]
        # Without stored log-probabilities the batch is on policy: TRL takes the current ones, and so do we.
        stored = inputs.get("old_per_token_logps")
        if stored is not None and getattr(self.args, "anchor", "old") == "sampler":
            # Tokens of which the sampler told nothing, where no other pass was made; in place, for TRL reads them too.
            stored.copy_(torch.where(stored.isnan(), logps.detach(), stored))
        old_logps = (logps.detach() if stored is None else stored).float()
        trains, known = cast(torch.nn.Module, self.model).training, self._known(inputs, entropies)
        if self._token_writer and trains:
            batch = int(inputs[f"{PREFIX}generated_at"])
            self._token_writer.write(known["step"], old_logps, logps, advantages, mask, batch=batch)
        if self._controller is not None:
            known["controlled"] = self._controller.value
        seen = _Seen(self.trust_region)
        objective = self.objective if self.objective.changed() else Objective(seen)
        # For the loss of each token the inputs are checked, which waits for the device; where TRL has the loss, the
        # value is not used.
        average: Any = ("none", None) if self._replaces else ("token-mean", 1.0)
        with torch.set_grad_enabled(self._replaces and torch.is_grad_enabled()):
            loss, metrics = policy_loss(
                logps,
                old_logps,
                advantages,
                mask,
                dataclasses.replace(objective, aggregation=average[0]),
                normalizer=average[1],
                metrics="all" if getattr(self.args, "all_metrics", False) or self._controller is not None else "main",
                **known,
            )
        if self._replaces:
            # A lower bound above the upper one gives the upper one, and all of the gradient to it.
            self.epsilon_low, self.epsilon_high = Instead(torch.full_like(loss, math.inf)), Instead(loss)
        else:  # the bounds of each token; or the numbers of a Clip, for a loss that is TRL's own
            bounds: Any = seen.made[-1] if seen.made else self.trust_region
            self.epsilon_low, self.epsilon_high = bounds.eps_low, bounds.eps_high
            if self.loss_type == "cispo":  # there it is the bound itself
                self.epsilon_high += 1
        if torch.distributed.is_initialized():  # here, where every process passes; a log may be one process's own
            metrics = metrics.all_reduce()
        mode = "train" if trains else "eval"
        self._clip_metrics[mode] = metrics.merge(self._clip_metrics.get(mode, Metrics({}, {})))
        if self._controller is not None and trains:
            self._controller.add(metrics)

    def _take(self, mode: str, prefix: str) -> dict[str, float]:
        values = self._clip_metrics.pop(mode, Metrics({}, {})).compute()
        names = values if getattr(self.args, "all_metrics", False) else MAIN_METRICS
        # Undefined values (a share of nothing) are left out: trackers warn about NaN.
        return {prefix + name: value for name, value in values.items() if name in names and value == value}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add our metrics since the last row, under `bandpo/`, to the trainer's own rows; rows of yours are left alone.

        Nothing waits for the other processes here, so a callback may log on one of them.
        """
        if {"loss", "learning_rate"} <= logs.keys() or "train_runtime" in logs:
            logs |= self._take("train", "bandpo/") | ({} if self._controller is None else self._controller.row)
            if self.finite_guard.skipped:
                logs["bandpo/skipped_steps"], self.finite_guard.skipped = self.finite_guard.skipped, 0
        super().log(logs, start_time)

    def evaluation_loop(self, *args: Any, **named: Any) -> Any:
        """Run TRL's evaluation loop, and log our metrics with its loss."""
        output: Any = super().evaluation_loop(*args, **named)
        output.metrics.update(self._take("eval", f"{named.get('metric_key_prefix', 'eval')}_bandpo/"))
        return output
