"""Put BandPO into TRL. `BandPOTrainer` is `GRPOTrainer` with a trust region or an objective instead of two epsilons.

TRL's loss of a token is -min(r A, clamp(r, 1 - self.epsilon_low, 1 + self.epsilon_high) A). For the length of one loss
these two attributes hold the bounds of each token; everything else, the loss included, is TRL's own.

What is more than a clamp (`Objective.changed`) replaces that term: both bounds are set to our loss of the token, with
its gradient, and A to -1, so that the term is max(r, our loss); and r is capped at -inf by TRL's `delta`. The KL
penalty, the weights of the sampler, the entropy mask and the average stay TRL's, whatever its release does.
"""

import copy
import dataclasses
import inspect
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from ..losses.metrics import Metrics
from ..losses.objective import Objective
from ..losses.policy import policy_loss
from ..notation import as_python
from ..trust_regions.base import Region
from . import Rule, bounds_of, log_rule
from .run_state import TokenWriter, check_tokens
from .trl_context import ControlCallback as ControlCallback
from .trl_context import FiniteGuard
from .trl_log import RunLog
from .trl_settings import (
    SETTLED,
    BoundAsEpsilon,
    UnusedEpsilon,
    check_losses,
    is_trls_own,
    node_of,
    settle,
    warn_of,
)

GENERATED_AT = "bandpo/generated_at"  # among TRL's outputs
TOKENS_BYTES = 20_000_000  # that the sample of a run's tokens takes, of all processes together
# What is logged unless `all_metrics` is set; `tokens` is the weight of the others, for a mean over rows.
MAIN_METRICS = (
    "tokens",
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
@inproceedings{{li2026bandpo,
    title     = {{{{{TITLE}}}}},
    author    = {{Yuan Li and Bo Wang and Yufei Gao and Yuqian Yao and Xinyuan Wang and Zhangyue Yin and Xipeng Qiu}},
    booktitle = {{Proceedings of the 43rd International Conference on Machine Learning}},
    series    = {{Proceedings of Machine Learning Research}},
    volume    = 306,
    pages     = {{70671--70692}},
    year      = 2026,
    url       = {{https://proceedings.mlr.press/v306/li26gm.html}},
    eprint    = {{arXiv:2603.04918}},
}}"""


@dataclass
class BandPOConfig(GRPOConfig):
    """Add a trust region to `GRPOConfig`, for `BandPOTrainer`. `GRPOTrainer` refuses it.

        args = BandPOConfig("runs/mine", trust_region="band:kl:0.05", steps_per_generation=4)
        trainer = BandPOTrainer(model, reward, args, rows)

    Args:
        trust_region: as for `BandPOTrainer`, or the JSON text of a node; kept as the node.
        all_metrics: log everything in docs/run.md, some 20 numbers a row, instead of `MAIN_METRICS`.
        anchor: what ratio and bounds are taken against: "old", the policy before the updates on a batch, by the
            trainer; or "sampler", as vLLM or a `rollout_func` gave its log-probabilities.
        tokens_path: the folder that tokens are written to while training, for `bandpo calibrate` (see `TokenWriter`);
            by default `tokens` in `output_dir`, where the next run replaces them.
        tokens_share: of the responses so many are written; by default all, and ever fewer as 20 MB a run are
            reached; 0 writes none.
        stop_if_not_finite: end at weights that are not finite, and at rewards that are infinite or all missing; else
            warn and go on.

    Raises ValueError for an option or a node that is none, and as `BandPOTrainer`.
    """

    trust_region: dict | str | Region | Objective | None = field(
        default=None,
        metadata={"help": "The rule: a method's name, a short word, or the JSON text of a node."},
    )
    all_metrics: bool = field(
        default=False, metadata={"help": "Log everything instead of the main numbers."}
    )
    anchor: str = field(
        default="old", metadata={"help": "Take ratio and bounds against this policy: old or sampler."}
    )
    tokens_path: str | None = field(
        default=None, metadata={"help": "Write tokens to this folder while training."}
    )
    tokens_share: float | None = field(
        default=None,
        metadata={"help": "Write the tokens of so many of the responses. By default 20 MB; 0: none."},
    )
    stop_if_not_finite: bool = field(
        default=True, metadata={"help": "End at weights or rewards that are not finite."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchor not in ("old", "sampler"):
            raise ValueError(f"anchor must be 'old' or 'sampler', got {self.anchor!r}")
        # 0 writes nowhere.
        is_share = self.tokens_share is not None and (self.tokens_share != 0 or self.tokens_path)
        check_tokens(self.tokens_path, self.tokens_share if is_share else 1.0)
        if self.trust_region is not None:
            settle(self, cast(Any, self.trust_region))
            if isinstance(self.trust_region, str):  # its repr
                raise ValueError(
                    f"{self.trust_region} has no config node: pass it to BandPOTrainer(trust_region=...)"
                )
        # The rule of BandPOTrainer, or else its default.
        elif self.epsilon == 0.2 and self.epsilon_high is None:
            cast(Any, self).epsilon = UnusedEpsilon("that of BandPOTrainer")


class BandPOTrainer(GRPOTrainer):
    """Train by GRPO with a trust region (eq:bandpo_full) or any `Objective`.

        trainer = BandPOTrainer(model, reward, args, rows, trust_region=Band("kl", 0.05))     # was: GRPOTrainer(

    A rule has an effect only with several optimizer steps per batch: set `steps_per_generation` (or `num_iterations`)
    so that their product exceeds `gradient_accumulation_steps`. Metrics are logged under `bandpo/`, and each row of the
    log is written to `metrics.jsonl` in `output_dir`, too; at the end one line says what the clip did. A
    `ControlCallback` steers a number of the rule.

    Args:
        model: as for `GRPOTrainer`, like everything not named here.
        args: a `GRPOConfig` or `BandPOConfig`, of which a copy is kept, with the rule in it; `epsilon` and
            `epsilon_high` must keep their defaults.
        trust_region: the rule, an `Objective`, the config node of either, a short word such as "band:kl:0.05", or a
            method's name such as "gspo"; by default that of `BandPOConfig`, else `Band("kl", 0.05)`. The average and
            the KL penalty are TRL's own (`loss_type`, `beta`). A rule alone is applied by TRL's clamp; an objective
            with more in it replaces the clamp, and TRL's `clip_ratio/*`, which are then about nothing, are not logged.

    Raises ValueError, by name, for two rules, and for settings of TRL that do not go with the objective: another loss,
    unless it is the objective itself (cispo, luspo, `importance_sampling_level="sequence"`), which TRL then computes;
    Liger kernels; `delta`; a sampler's temperature other than that of the log-probabilities; and what the objective
    replaces.
    """

    args: Any  # with the settings of `BandPOConfig`
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
        check_losses(type(self), GRPOTrainer)
        # A copy, because the caller's may serve another trainer, with another rule.
        if args is None:  # as TRL does, by the model
            name = model if isinstance(model, str) else cast(Any, model).config._name_or_path
            args = BandPOConfig(f"{name.split('/')[-1]}-BandPO")
        settings = cast(Any, copy.copy(args))
        for each in dataclasses.fields(BandPOConfig):
            vars(settings).setdefault(each.name, each.default)
        if settings.__class__ is GRPOConfig:
            settings.__class__ = BandPOConfig
        node = settings.trust_region
        self.objective = settle(settings, node if trust_region is None else trust_region)
        if not (node is None or trust_region is None or node == node_of(self.objective)):
            raise ValueError(
                f"trust_region is given twice, as {as_python(trust_region)} and in args, {node}; keep one"
            )
        self.trust_region = self.objective.trust_region
        self._settled = {name: getattr(settings, name, None) for name in SETTLED}
        self._settled |= {"epsilon_low": settings.epsilon, "epsilon_high": settings.epsilon}
        self._settled |= {"objective": self.objective, "trust_region": self.trust_region}
        self._replaces = bool(self.objective.changed()) and not is_trls_own(settings, self.objective)
        steps = warn_of(settings, self.trust_region)
        log_rule(self.objective, f"; {steps:g} step{'' if steps == 1 else 's'} a batch")
        # It shows the mean of other losses, 0 at first, for one that is not finite.
        settings.logging_nan_inf_filter = False
        rule = str(settings.trust_region)
        if "band" not in rule.lower():  # the method, of the paper that the model card cites, is GRPO then
            vars(self).update(
                {name: getattr(GRPOTrainer, name) for name in ("_tag_names", "_name", "_paper")}
            )
        self._name = f"{self._name} (trust region {rule})"
        self._measured = Metrics({}, {})
        self._loss_inputs: dict[str, Any] | None = None
        self.row_of_rule: dict[str, float] = {}  # what a `ControlCallback` logs
        self.last_metrics: dict[str, float] = {}  # of the last row, for a `ControlCallback`
        self._token_writer, share = None, settings.tokens_share
        if share != 0:
            self._token_writer = TokenWriter(
                settings.tokens_path or Path(settings.output_dir, "tokens"),
                1.0 if share is None else share,
                settings.process_index,
                limit=TOKENS_BYTES / settings.world_size if share is None else math.inf,
                replaces=settings.tokens_path is None,
            )
        bound = (
            inspect.signature(GRPOTrainer).bind_partial(model, reward_funcs, settings, *others).arguments
        )
        super().__init__(**bound, **named)  # by name: a class in between may have arguments of its own
        self.finite_guard = FiniteGuard(self.accelerator, settings.stop_if_not_finite)
        self.add_callback(self.finite_guard)
        self.run_log = RunLog(self.trust_region, settings.tokens_path is None)
        self.add_callback(self.run_log)

    def replace_rule(self, region: Region) -> None:
        """Take another rule from the next loss on."""
        self.trust_region = region
        self.objective = dataclasses.replace(self.objective, trust_region=region)
        self._settled |= {"objective": self.objective, "trust_region": region}

    def _send_telemetry(self) -> None:
        """Send nothing; TRL would tell the model hub of every run."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        for name, settled in self._settled.items():
            now = getattr(self, name, getattr(self.args, name, None))
            if now != settled:
                raise ValueError(
                    f"{name} is {now!r}, and was {settled!r} when the rule was checked: set it in the args of a "
                    "new trainer"
                )
        before = self.epsilon_low, self.epsilon_high, self.args.delta
        self._loss_inputs = inputs = self._anchored(inputs)
        if self._replaces:
            # -min(min(r, -inf) (-1), clamp(r, loss, loss) (-1)) = max(-inf, loss)
            self.args.delta = -math.inf
            inputs = inputs | {
                "advantages": -torch.ones_like(inputs["completion_mask"][:, 0], dtype=torch.float32)
            }
            if self.beta == 0 or not getattr(self.args, "use_bias_correction_kl", False):
                # The ratio is not used; set it to 1, else its gradient can be NaN.
                inputs["old_per_token_logps"] = None
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self._loss_inputs = None
            self.epsilon_low, self.epsilon_high, self.args.delta = before
        for metrics in self._metrics.values() if self._replaces else ():
            for name in [name for name in metrics if name.startswith("clip_ratio/")]:
                del metrics[name]
        return loss

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        out = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self._loss_inputs is not None:  # asked for by the loss, which reads the epsilons next
            # (log-probabilities, entropies); TRL 1.7 appended a third item.
            self._set_bounds(self._loss_inputs, out[0], out[1])
        return out

    def _set_bounds(self, inputs: dict[str, Any], logps: Tensor, entropies: Tensor | None) -> None:
        advantages = inputs["advantages"]
        mask = (
            inputs["completion_mask"] * inputs.get("tool_mask", 1)
        ).bool()  # not at the tokens of tools
        # Without stored log-probabilities the batch is on policy: TRL takes the current ones, and so do we.
        stored = inputs.get("old_per_token_logps")
        if stored is not None and self.args.anchor == "sampler":
            # Tokens of which the sampler told nothing, where no other pass was made; in place, for TRL reads them too.
            stored.copy_(torch.where(stored.isnan(), logps.detach(), stored))
        old_logps = logps.detach() if stored is None else stored
        trains = cast(torch.nn.Module, self.model).training
        if self._token_writer and trains:
            batch = int(inputs.get(GENERATED_AT, 0))  # a subclass may have made the batch by itself
            self._token_writer.write(
                self.state.global_step, old_logps, logps, advantages, mask, batch=batch
            )
        # For the loss of each token the inputs are checked, which waits for the device; where TRL has the loss, the
        # value is not used. The metrics "all" count NaN, and do not refuse it: the guard ends the run, with its step.
        average: Any = ("none", None) if self._replaces else ("token-mean", 1.0)
        with torch.set_grad_enabled(self._replaces and torch.is_grad_enabled()):
            loss, metrics = policy_loss(
                logps,
                old_logps,
                advantages,
                mask,
                dataclasses.replace(self.objective, aggregation=average[0]),
                normalizer=average[1],
                metrics="all" if self.args.all_metrics or self._replaces else "main",
                extra={} if entropies is None else {"entropies": entropies},
            )
        if self._replaces:
            # If low > high, clamp returns high; so TRL's clamp returns our loss and its gradient.
            self.epsilon_low, self.epsilon_high = (
                BoundAsEpsilon(torch.full_like(loss, math.inf)),
                BoundAsEpsilon(loss),
            )
        else:
            bounds = bounds_of(self.trust_region, old_logps, advantages.view(len(mask), -1), mask)
            self.epsilon_low, self.epsilon_high = bounds.eps_low, bounds.eps_high
            if self.loss_type == "cispo":  # there it is the bound itself
                self.epsilon_high += 1
        if trains:
            # Where every process passes; a log may be one process's own.
            metrics = metrics.all_reduce() if torch.distributed.is_initialized() else metrics
            self._measured = metrics.merge(self._measured)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add our metrics since the last row to the trainer's own rows."""
        if {"loss", "learning_rate"} <= logs.keys() or "train_runtime" in logs:
            self.last_metrics = values = self._measured.compute()
            self._measured = Metrics({}, {})
            dual = [] if self.objective.dual_clip is None else ["dual_clip/fraction"]
            names = values if self.args.all_metrics else [*MAIN_METRICS, *dual]
            # Undefined values (a share of nothing) are left out: trackers warn about NaN.
            logs |= {f"bandpo/{name}": x for name, x in values.items() if name in names and x == x}
            logs |= self.row_of_rule
            if self.finite_guard.skipped:
                logs["bandpo/skipped_steps"], self.finite_guard.skipped = self.finite_guard.skipped, 0
        super().log(logs, start_time)

    def _calculate_rewards(self, *args: Any, **named: Any) -> Tensor:
        rewards = cast(Tensor, super()._calculate_rewards(*args, **named))  # of all processes
        missing, names = bool(rewards.isnan().all()), self.reward_func_names
        # Beyond 1e19 squares overflow: all advantages would be 0, and nothing learned in silence.
        sizes = rewards if self.args.scale_rewards == "none" else rewards.square()
        bad = [name for name, x in zip(names, sizes.T, strict=True) if missing or x.isinf().any()]
        if bad and cast(torch.nn.Module, self.model).training:
            size = "infinite" if rewards.isinf().any() else "so large that their deviation is infinite"
            size = "None or NaN for all completions" if missing else f"{size} in float32"
            what, change = (
                f"rewards of {', '.join(bad)} are {size}",
                "Fix the reward function, or scale it near 1",
            )
            self.finite_guard.stop(self.args, self.state, self.state.global_step + 1, what, change)
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        outputs = super()._generate_and_score_completions(inputs)
        # Among TRL's outputs, so that it comes with the responses to each loss.
        return outputs | {GENERATED_AT: torch.tensor(self.state.global_step)}

    def _anchored(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of a loss, with the ratio's anchor as the old policy."""
        if self.args.anchor == "old":
            return inputs
        old, sampled = inputs.get("old_per_token_logps"), inputs.get("sampling_per_token_logps")
        if sampled is None:
            raise ValueError(
                "anchor = 'sampler' needs the sampler's log-probabilities, which TRL (0.27 and later) has of vLLM "
                "(use_vllm=True) and of a rollout_func that returns logprobs"
            )
        # vLLM gives NaN where it has none, which TRL counts as no difference.
        sampled = sampled if old is None else torch.where(sampled.isnan(), old, sampled)
        inputs = inputs | {"old_per_token_logps": sampled}
        # Pi_old over the sampler's policy: it is in the ratio already.
        if "importance_sampling_ratio" in inputs:
            inputs["importance_sampling_ratio"] = torch.ones_like(inputs["importance_sampling_ratio"])
        return inputs
