"""Actor updates of verl's own TrainingWorker (FSDP 2, gloo) on a made batch: no Ray, no rollout, no reward.

usage: torchrun --standalone --nproc-per-node RANKS update_actor.py FOLDER

FOLDER holds `cases.json`, {name: {"settings": [overrides], ...}} with the arguments of `batch` or a `dump` of a run's
batch. Each rank writes FOLDER/<rank>.pt with, for each case, the metrics as the driver reduces them, the weights after
the last of its updates, and what the loss was called with.
"""

import ast
import json
import os
import pickle
import signal
import sys
from functools import partial
from pathlib import Path

import cloudpickle
import torch
import verl_rule
from hydra import compose, initialize_config_module
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding
from verl_toy import EPOCHS, MINI_BATCH, PROMPT, RESPONSE, SIZE, AsRLLM


def rllms_loss():
    """rLLM's own class if BANDPO_HOSTS has its source, of which the rest is not imported; else what stands for it."""
    file = Path(os.environ.get("BANDPO_HOSTS", "none"), "rllm/rllm/trainer/verl/verl_backend.py")
    if not file.exists():
        return lambda config: AsRLLM(ppo_loss, omega_conf_to_dataclass(config))
    (its,) = (x for x in ast.parse(file.read_text()).body if getattr(x, "name", None) == "CustomPPOLoss")
    names = {"__name__": "__main__"}
    exec(compile(ast.Module([its], []), str(file), "exec"), names)
    return names["CustomPPOLoss"]


def make_worker(settings, rllm=False):
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=settings)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    actor.model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    engine = actor.engine
    engine.use_dynamic_bsz = actor.use_dynamic_bsz
    engine.max_token_len_per_gpu = engine.infer_max_token_len_per_gpu = actor.ppo_max_token_len_per_gpu
    engine.micro_batch_size_per_gpu = engine.infer_micro_batch_size_per_gpu = actor.ppo_micro_batch_size_per_gpu
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=actor.model_config,
            engine_config=engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
        )
    )
    worker.reset()
    loss = rllms_loss()(config.actor_rollout_ref.actor) if rllm else partial(ppo_loss, config=actor)
    worker.set_loss_fn(pickle.loads(cloudpickle.dumps(loss)))  # as it comes from another process
    return worker


def batch(rank, world, weights=False, drop=0):
    """This rank's share of 16 sequences with uneven responses; mini-batch k of all ranks is the same for any world.

    Advantages are powers of two, so that a product with them is not rounded.

    Args:
        rank: as in torch.distributed.
        world: number of ranks.
        weights: with rollout importance weights.
        drop: so many sequences at the end of each mini-batch have no response token.
    """
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 40, (SIZE, PROMPT + RESPONSE), generator=generator)
    lengths = torch.randint(1, RESPONSE + 1, (SIZE,), generator=generator)
    lengths[0], lengths[1] = 1, RESPONSE
    if drop:
        lengths.view(-1, MINI_BATCH)[:, -drop:] = 0
    advantages = torch.tensor([2.0, -1.0, 0.5, -4.0])[torch.randint(0, 4, (SIZE, 1), generator=generator)]
    rollout = torch.rand(SIZE, RESPONSE, generator=generator) * 2
    share = torch.arange(SIZE).view(-1, world, MINI_BATCH // world)[:, rank].flatten()
    tensors = {
        "ids": ids[share],
        "response_mask": (torch.arange(RESPONSE) < lengths[share, None]).long(),
        "advantages": advantages[share].expand(-1, RESPONSE).contiguous(),
    }
    return tensors | ({"rollout_is_weights": rollout[share]} if weights else {})


def as_data(ids, response_mask, **more):
    data = TensorDict(
        {
            "prompts": ids[:, :PROMPT],
            "responses": ids[:, PROMPT:],
            "input_ids": ids.clone(),
            "attention_mask": torch.ones_like(ids),
            "position_ids": torch.arange(ids.shape[1]).expand_as(ids).contiguous(),
            "response_mask": response_mask,
            **more,
        },
        batch_size=len(ids),
    )
    data = left_right_2_no_padding(data)
    tu.assign_non_tensor(data, temperature=1.0, calculate_entropy=False, global_batch_size=MINI_BATCH)
    return data


def spy_on(calls, kill_at=None):
    """Record what verl's `ppo_loss` hands to the loss; with `kill_at` the process kills itself in that call."""
    inner = POLICY_LOSS_REGISTRY["bandpo"]

    def loss(**given):
        if len(calls) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        calls.append(
            {
                k: {"shape": tuple(v.shape), "dtype": str(v.dtype), "grad": v.requires_grad, "value": v.detach()}
                for k, v in given.items()
                if isinstance(v, torch.Tensor)
            }
            | {"arguments": list(given), "info": dict(given["config"].global_batch_info)}
            | {"config": type(given["config"].policy_loss).__name__, "mode": given["loss_agg_mode"]}
        )
        return inner(**given)

    POLICY_LOSS_REGISTRY["bandpo"] = loss
    return inner


def made_data(worker, rank, world, penalties=False, context=False, **options):
    """Of `batch`, with old log-probabilities; for penalties with a reference policy's, and a request for entropies.

    With the context there is what the V1 trainer and its agent loop leave in a batch; the sampler is 0.1 off.
    """
    tensors = batch(rank, world, **options)
    data = as_data(tensors["ids"], tensors["response_mask"])
    tu.assign_non_tensor(data, compute_loss=False, calculate_entropy=context)
    inferred = worker.infer_batch(data)
    old = no_padding_2_padding(inferred["log_probs"], data).detach()
    if context:
        mine = torch.arange(SIZE).view(-1, world, MINI_BATCH // world)[:, rank].flatten()
        tensors["entropy"] = no_padding_2_padding(inferred["entropy"], data).detach()
        tensors["rollout_log_probs"] = old - 0.1
        context = {"global_steps": [8 if i else 7 for i in mine.tolist()]}
    if penalties:
        tensors["ref_log_prob"] = old - 0.1 * torch.rand(old.shape, generator=torch.Generator().manual_seed(rank))
    data = as_data(old_log_probs=old, **tensors)
    tu.assign_non_tensor(data, calculate_entropy=penalties)
    for name, values in (context or {}).items():
        tu.assign_non_tensor_stack(data, name, values)
    tu.assign_non_tensor(data, mini_batch_size=MINI_BATCH, epochs=EPOCHS, seed=0, dataloader_kwargs={"shuffle": False})
    return data


def update(
    rank,
    world,
    settings,
    dump=None,
    updates=1,
    save=None,
    load=None,
    kill_at=None,
    rllm=False,
    **options,
):
    """One case.

    Args:
        rank: as in torch.distributed.
        world: number of ranks.
        settings: overrides.
        dump: a batch of a run, in the place of a made one.
        updates: so many, each with new old log-probabilities.
        save: [folder, n], the checkpoint made after n updates.
        load: the folder of the checkpoint that it begins with.
        kill_at: this call of the loss kills the process.
        rllm: the worker gets its loss as from rLLM.
        options: of `made_data`.
    """
    worker = make_worker(settings, rllm)
    if load:
        worker.load_checkpoint(load)
    calls = []
    verl_rule.SEEN.clear()  # of the trial
    inner = spy_on(calls, kill_at)
    try:
        for number in range(1, updates + 1):
            data = torch.load(dump, weights_only=False) if dump else made_data(worker, rank, world, **options)
            metrics = reduce_metrics(dict(tu.get(worker.train_mini_batch(data), "metrics")))
            if save and number == save[1]:
                worker.save_checkpoint(save[0])
    finally:
        POLICY_LOSS_REGISTRY["bandpo"] = inner
    state = worker.engine.module.state_dict()
    return {
        "metrics": {k: float(v) for k, v in metrics.items()},
        "weights": {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in state.items()},
        "calls": calls,
        "seen": list(verl_rule.SEEN),
    }


def main(folder):
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cases = json.loads((Path(folder) / "cases.json").read_text())
    torch.save({name: update(rank, world, **case) for name, case in cases.items()}, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
