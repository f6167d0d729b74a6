"""Given as `actor_rollout_ref.model.external_lib`: saves the batch of a run's first actor update to VERL_TEST_DUMP."""

import functools
import os
from pathlib import Path

import torch
from verl.workers.engine_workers import TrainingWorker

_train_mini_batch = TrainingWorker.train_mini_batch


@functools.wraps(_train_mini_batch)  # with the attributes by which verl dispatches it
def train_mini_batch(self, data):
    path = Path(os.environ["VERL_TEST_DUMP"])
    if not path.exists():
        torch.save(data, path)
    return _train_mini_batch(self, data)


TrainingWorker.train_mini_batch = train_mini_batch
