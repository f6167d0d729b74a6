"""Put BandPO into torchtitan's `experiments.rl`. In the configuration of its `PolicyTrainer`:

    from bandpo.integrations.torchtitan import BandPOLoss
    loss=ChunkedLossWrapper.Config(loss_fn=BandPOLoss.Config(trust_region="band:kl:0.05"))

or the inner one alone. The text is as for `bandpo explain`, the loss `DAPOLoss`, the anchor the generator.
"""

from dataclasses import dataclass

from torchtitan.components.loss import BaseLoss  # pyright: ignore[reportMissingImports]
from torchtitan.experiments.rl.losses import DAPOLoss  # pyright: ignore[reportMissingImports]

from . import Limits


class BandPOLoss(DAPOLoss):
    """Compute torchtitan's DAPO loss with a trust region per token. ValueError for what torchtitan cannot do."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseLoss.Config):
        trust_region: str = "band:kl:0.05"

    def __init__(self, config: Config, **named: object) -> None:
        super().__init__(DAPOLoss.Config(), **named)
        self.limits = Limits("torchtitan", config.trust_region, "ratio_clip_low", "ratio_clip_high")

    def __call__(self, *logits, **named):
        tensors = (named[name] for name in ("generator_logprobs", "advantages", "loss_mask"))
        return super(BandPOLoss, self.limits(self, *tensors)).__call__(*logits, **named)
