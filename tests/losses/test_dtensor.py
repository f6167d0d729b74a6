"""Log-probabilities in DTensors, in two processes: loss, gradient and metrics are those of the whole batch."""

import os
import subprocess
import sys

CODE = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import bandpo

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
rows, columns = 3, 17  # neither can be halved
old = torch.log(torch.rand(rows, columns) * 0.9 + 0.05)
new = (old + 0.3 * torch.randn(rows, columns)).clamp(max=-1e-4)
advantages, mask = torch.randn(rows), torch.arange(columns) < torch.tensor([[17], [5], [9]])
objectives = ["gspo", *(bandpo.Band(name) for name in ("kl", "reverse_kl", "jensen_shannon", "tv"))]
for dim in (0, 1):
    def shared(x):
        return distribute_tensor(x, mesh, [Shard(dim) if dim < x.dim() else Replicate()])

    for objective in objectives:
        for level in (None, "main", "all"):
            leaf, whole = shared(new).requires_grad_(), new.clone().requires_grad_()
            inputs = [shared(x) for x in (old, advantages, mask)]
            loss, metrics = bandpo.policy_loss(leaf, *inputs, objective, normalizer=4.0, metrics=level)
            expected, numbers = bandpo.policy_loss(
                whole, old, advantages, mask, objective, normalizer=4.0, metrics=level
            )
            loss.backward()
            expected.backward()
            torch.testing.assert_close(loss.full_tensor(), expected)
            torch.testing.assert_close(leaf.grad.full_tensor(), whole.grad)
            for got in (metrics.compute(), metrics.all_reduce().compute()):
                torch.testing.assert_close(got, numbers.compute(), equal_nan=True)
radii = torch.rand(rows, columns, dtype=torch.float64) / 9
bounds = bandpo.band_bounds(shared(old), "reverse_kl", shared(radii))
assert isinstance(bounds.log_low, DTensor)
torch.testing.assert_close(bounds.log_low.full_tensor(), bandpo.band_bounds(old, "reverse_kl", radii).log_low)
dist.destroy_process_group()
print("equal")
"""


def test_log_probabilities_in_dtensors_are_those_of_the_whole_batch(tmp_path):
    (tmp_path / "two.py").write_text(CODE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "two.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2
