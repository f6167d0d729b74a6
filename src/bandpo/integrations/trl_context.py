"""Context of a rule from TRL's batches, and the sampler as the policy that the ratio is taken against.

What is known when responses have been scored goes among TRL's outputs under the prefix `bandpo/`, so that TRL shuffles
it and splits it with the responses.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch
from torch import Tensor
from transformers import TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from ..losses.objective import Objective
from ..trust_regions.adaptive import Adaptive
from ..trust_regions.base import Context, find_one
from ..trust_regions.batch import GroupClip
from .control import NAME, RadiusController
from .trl_finite import FiniteGuard

PREFIX = "bandpo/"


class Controller(RadiusController, TrainerCallback):
    """Keeps the state of a `Controlled` rule in TRL's trainer_state.json; `row` is what is logged of the last step.

    The trainer adds the metrics of each micro-batch, summed over all processes, so that every process keeps the same
    state.
    """

    row: dict[str, float]

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        self.begin(cast(Any, state.stateful_callbacks).get(NAME), state.global_step)
        self.row = {}

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Move the number; TRL logs and saves after this."""
        in_force = self.value
        cast(Any, state.stateful_callbacks)[NAME] = self.finish(state.global_step)
        # Sorted, as a state is that comes from a checkpoint: else the rows of a resumed run would have another order.
        logged = {**self.state, "value": in_force}
        self.row = {f"bandpo/controlled/{name}": logged[name] for name in sorted(logged)}


class ContextTrainer(GRPOTrainer):
    """`GRPOTrainer` that keeps of each generation what a rule may ask for; `BandPOTrainer` is one."""

    objective: Objective
    finite_guard: FiniteGuard
    _asked: frozenset[str]  # what is made only where the rule needs it
    _rewards: Any
    _old_pass: Any  # while responses are scored: what the first pass gave, () before it; else None

    def _calculate_rewards(self, *args: Any, **named: Any) -> Tensor:
        self._rewards = super()._calculate_rewards(*args, **named)  # of all processes
        if cast(torch.nn.Module, self.model).training:
            rewards = dict(zip(self.reward_func_names, self._rewards.unbind(1), strict=True))
            size = cast(int, self.num_generations)
            self.finite_guard.check_rewards(self.args, self.state, rewards, self._scores(), size)
        return self._rewards

    def _scores(self) -> Tensor:
        """Sum the rewards of each completion, (B,); NaN where no function gave one."""
        scores = (self._rewards * self.reward_weights.to(self._rewards.device)).nansum(1)
        scores[self._rewards.isnan().all(1)] = torch.nan  # no part of its group
        return scores

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **named: Any) -> Any:
        if self._old_pass != () or model is not self.model:
            return super()._get_per_token_logps_and_entropies(model, *args, **named)
        if "old_entropies" in self._asked:
            named["compute_entropy"] = True
        self._old_pass = super()._get_per_token_logps_and_entropies(model, *args, **named)
        return self._old_pass

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._old_pass = ()
        try:
            outputs = super()._generate_and_score_completions(inputs)
            return outputs | {PREFIX + name: value for name, value in self._of_generation(outputs).items()}
        except RuntimeError as error:
            if "probability tensor contains" in str(error):  # torch's sampler; weights may be finite and too large
                what = "the probabilities to sample from are not finite"
                self.finite_guard.stop(self.args, self.state, what, step=self.state.global_step + 1, must=True)
            raise
        finally:
            self._old_pass = None

    @torch.no_grad()
    def _of_generation(self, outputs: dict[str, Any]) -> dict[str, Tensor]:
        """Return the context's fields for the responses of a generation: (B, ...), or a number, on the CPU.

        B are the responses of this process for all steps until the next generation, and every process passes here: so
        this is the place for a mean over all micro-batches and processes.
        """
        known = {"generated_at": torch.tensor(self.state.global_step)}
        is_evaluation = not cast(torch.nn.Module, self.model).training
        size = getattr(self, "num_generations_eval", self.num_generations) if is_evaluation else self.num_generations
        scores = self._scores()
        is_right_or_wrong = ((scores == 0) | (scores == 1) | scores.isnan()).all()
        if find_one(self.objective.trust_region, GroupClip) and not is_right_or_wrong:
            warnings.warn(
                "GroupClip takes a group's mean reward for its share of right answers, which it is of rewards that are "
                "0 or 1; here there are others",
                stacklevel=2,
            )
        groups = scores.view(-1, cast(int, size))
        mean = groups.nanmean(1, keepdim=True)
        outcomes = {"group_mean": mean, "group_std": (groups - mean).square().nanmean(1, keepdim=True).sqrt()}
        count = len(outputs["completion_ids"])
        mine = slice(self.accelerator.process_index * count, (self.accelerator.process_index + 1) * count)
        for name, value in outcomes.items():
            # Of a group without any score nothing is known, and its advantages are 0: NaN would go into the loss.
            known[name] = value.nan_to_num(0.0).expand_as(groups).flatten()[mine]
        if "old_entropies" in self._asked and "old_per_token_logps" in outputs:
            if not self._old_pass or self._old_pass[0] is not outputs["old_per_token_logps"]:
                raise RuntimeError("TRL makes its old log-probabilities in another way: the old entropies are unknown")
            known["old_entropies"] = self._old_pass[1]
        return known | self._mean_weight(outputs, known)

    def _mean_weight(self, outputs: dict[str, Any], known: dict[str, Any]) -> dict[str, Tensor]:
        """Return the divisor of an `Adaptive` radius: the mean weight of all tokens until the next generation.

        It is missing where TRL makes no pass for what the weights are made of, as on policy, where ratios are 1.
        """
        rule, old = find_one(self.objective.trust_region, Adaptive), None
        if rule is not None and not ("old_entropies" in self._asked and "old_entropies" not in known):
            old = self._anchored(outputs).get("old_per_token_logps")
        if rule is None or old is None:
            return {}
        old, mask = old.float(), self._response_mask(outputs)
        columns = {name: known[name] for name in ("group_mean", "group_std", "old_entropies") if name in known}
        columns = {name: (x[:, None] if x.dim() == 1 else x).to(old.device) for name, x in columns.items()}
        context = Context(response_mask=mask, positions=mask.cumsum(-1) - 1, step=self.state.global_step, **columns)
        sums = rule.sums(torch.where(mask, old, -1.0), context)
        total, count = cast(Tensor, self.accelerator.reduce(sums, reduction="sum")).tolist()
        return {"mean_weight": torch.tensor(total / max(count, 1))}

    def _response_mask(self, inputs: dict[str, Any]) -> Tensor:
        """Return True at the tokens that the policy wrote."""
        mask = inputs["completion_mask"].bool()
        return mask & inputs["tool_mask"].bool() if "tool_mask" in inputs else mask

    def _known(self, inputs: dict[str, Any], entropies: Tensor | None) -> dict[str, Any]:
        """Return the context's fields for the responses of a loss."""
        known = {name.removeprefix(PREFIX): x for name, x in inputs.items() if name.startswith(PREFIX)}
        if "generated_at" in known:
            known["staleness"] = self.state.global_step - int(known.pop("generated_at"))
        if "old_entropies" in self._asked and entropies is not None:  # without a pass of its own the batch is on policy
            known.setdefault("old_entropies", entropies.detach())
        return known | {"entropies": entropies, "step": self.state.global_step}

    def _anchored(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of a loss, with the ratio's anchor as the old policy."""
        if getattr(self.args, "anchor", "old") == "old":
            return inputs
        old, sampled = inputs.get("old_per_token_logps"), inputs.get("sampling_per_token_logps")
        if sampled is None:
            raise ValueError(
                "anchor = 'sampler' needs the sampler's log-probabilities, which TRL (0.27 and later) has of vLLM "
                "(use_vllm=True) and of a rollout_func that returns logprobs; there are none in the inputs of the loss"
            )
        # vLLM gives NaN where it has none, which TRL counts as no difference.
        sampled = sampled if old is None else torch.where(sampled.isnan(), old, sampled)
        inputs = inputs | {"old_per_token_logps": sampled}
        if "importance_sampling_ratio" in inputs:  # pi_old over the sampler's policy: it is in the ratio already
            inputs["importance_sampling_ratio"] = torch.ones_like(inputs["importance_sampling_ratio"])
        return inputs
