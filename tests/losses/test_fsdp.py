"""The page's lines for FSDP2, in two processes: the gradient of a sharded model is that of the whole one."""

import os
import subprocess
import sys

import pytest
from scripts import ROOT, load

# Each process has the same answers, and the normalizer is their sum, so the gradient is that of one.
CODE = """
import sys
import torch
*before, sharded = sys.argv[1:]
exec("\\n".join(before), globals())
loss, _ = bandpo.policy_loss(logps_of(model), first_logps, advantages, mask, "dapo")
wanted = torch.autograd.grad(loss, [*model.parameters()])
exec(sharded, globals())
assert type(model.lm_head.weight).__name__ == "DTensor"
for weight, gradient in zip(model.parameters(), wanted, strict=True):
    torch.testing.assert_close(weight.grad.full_tensor(), gradient, rtol=1e-4, atol=1e-7)
torch.distributed.destroy_process_group()
print("equal")
"""


@pytest.mark.slow
def test_the_gradient_of_a_sharded_model_is_that_of_the_whole_one(tmp_path):
    blocks = [text for _, text in load(".ci/readme.py").blocks(ROOT / "docs" / "own_loop.md")]
    first, model, sharded = (text for text in blocks if "def current" in text or "logps_of" in text)
    begin = 'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)'
    assert begin in sharded
    assert "MixedPrecisionPolicy(torch.bfloat16," in sharded
    sharded = sharded.replace(begin, 'dist.init_process_group("gloo")').replace("dist.destroy_process_group()", "")
    sharded = sharded.replace("MixedPrecisionPolicy(torch.bfloat16,", "MixedPrecisionPolicy(torch.float32,")
    old, steps = "first_logps, normalizer = policy().detach(), mask.sum()", "for _ in range(4):"
    assert old in sharded
    assert steps in sharded
    # One step, against the old log-probabilities of the block before, so that the clip acts.
    sharded = sharded.replace(old, "normalizer = mask.sum()").replace(steps, "for _ in range(1):")
    (tmp_path / "two.py").write_text(CODE)
    imports = "import torch.distributed as dist"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "two.py"]
    done = subprocess.run(
        [*command, first, model, imports, sharded],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("equal") == 2
