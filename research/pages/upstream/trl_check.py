"""Runs what research/pages/upstream/trl.md says of its lines: python research/pages/upstream/trl_check.py CLONE_OF_TRL

The lines go into a copy of the installed TRL. The clone, with its tags, has the mask of DPPO that was removed.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copytree
from textwrap import dedent, indent
from types import SimpleNamespace

import torch

ROOT = Path(__file__).parents[3]
LINES = re.search(r"```python\n(scale = .*?)```", Path(__file__).with_name("trl.md").read_text(encoding="utf-8"), re.S)[
    1
]
TRAIN = """
import sys, tempfile
sys.path.insert(0, "tests")
import tiny, torch
from bandpo import Band
from bandpo.integrations.trl import BandPOTrainer
from bandpo_runs import toy
from trl import GRPOTrainer
name, epsilon, delta, which, file = sys.argv[1:]
torch.manual_seed(0)
own = {"own": {"epsilon": float(epsilon)}, "lines": {"epsilon": float(epsilon), "trust_region_method": name}}
settings = tiny.settings(tempfile.mkdtemp(), max_steps=6, **own.get(which, {}))
more = {"processing_class": toy.tokenizer(), "train_dataset": tiny.rows(32)}
if which == "rule":
    trainer = BandPOTrainer(tiny.model(), tiny.count_a, settings, trust_region=Band(name, float(delta)), **more)
else:
    trainer = GRPOTrainer(tiny.model(), tiny.count_a, settings, **more)
trainer.train()
clipped = max(row.get("clip_ratio/region_mean", 0) for row in trainer.state.log_history)
torch.save((clipped, [p.detach() for _, p in sorted(trainer.model.named_parameters())]), file)
"""


def masks(clone):
    """Count the tokens that the lines clip and DPPO does not mask, or the other way round."""
    file = "v1.8.0:trl/experimental/dppo/dppo_trainer.py"
    source = subprocess.check_output(["git", "-C", clone, "show", file], text=True)
    method = source[source.index("    def _compute_divergence_mask(") : source.index("    def _compute_loss(")]
    theirs = {"torch": torch}
    exec(dedent(method), theirs)
    torch.manual_seed(0)
    p = torch.where(torch.rand(2_000_000) < 0.5, 10 ** (-6 * torch.rand(2_000_000)), torch.rand(2_000_000))
    for dtype in (torch.float32, torch.float64):
        old = p.clamp(1e-6, 0.9999).to(dtype).log()
        new, advantages = (old + torch.randn_like(old)).clamp(max=-1e-5), torch.randn_like(old)
        for epsilon in (0.02, 0.2):
            dppo = SimpleNamespace(divergence_type="binary_tv", epsilon_low=epsilon, epsilon_high=epsilon)
            keeps = theirs["_compute_divergence_mask"](dppo, new, old, advantages, torch.ones_like(old)).bool()
            ours = {"torch": torch, "old_per_token_logps": old}
            ours["self"] = SimpleNamespace(args=SimpleNamespace(trust_region_method="tv"))
            exec(LINES, ours)
            ratio, scale = (new - old).exp(), ours["scale"]
            high, low = ratio > 1 + epsilon * scale, ratio < 1 - epsilon * scale
            clipped = (high & (advantages > 0)) | (low & (advantages < 0))
            print(
                dtype, epsilon, f"{clipped.float().mean():.2f} clipped, {(keeps == clipped).sum()} of {len(p)} differ"
            )


def trainings():
    """Train with TRL, with the lines in TRL, and with the library's rule."""
    import trl

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(copytree(Path(trl.__file__).parent, Path(folder) / "trl"))
        file, config = copy / "trainer/grpo_trainer.py", copy / "trainer/grpo_config.py"
        text, clamp = file.read_text(encoding="utf-8"), "            coef_2 = torch.clamp(coef_1, 1 - self.eps"
        assert text.count(clamp) == 1
        text = text.replace(clamp, indent(LINES, " " * 12) + clamp)
        for name in ("self.epsilon_low", "self.epsilon_high"):
            text = re.sub(rf"(1 [-+] {name})\b", r"\1 * scale", text)
        file.write_text(text, encoding="utf-8")
        field = "    epsilon_high: float | None = field("
        text = config.read_text(encoding="utf-8").replace(field, f'    trust_region_method: str = "clip"\n{field}')
        config.write_text(text, encoding="utf-8")

        def train(which, *arguments):
            paths = [folder] if which == "lines" else []
            paths += [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
            out = f"{folder}/weights"
            own = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
            command = [sys.executable, "-W", "ignore", "-c", TRAIN, *arguments, which, out]
            subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=own)
            return torch.load(out)

        for name, epsilon, delta, other in (
            ("clip", 0.2, 0, "own"),
            ("tv", 0.002, 0.002, "rule"),
            ("chi2", 0.02, 0.02**2, "rule"),
        ):
            (clipped, ours), (_, theirs) = (train(which, name, str(epsilon), str(delta)) for which in ("lines", other))
            same = all(map(torch.equal, ours, theirs))
            print(name, "the same weights" if same else "OTHER WEIGHTS", f"up to {clipped:.0%} clipped")


if __name__ == "__main__":
    masks(sys.argv[1])
    trainings()
