"""The loss for tinker's API with a stand-in for a server of another, by what the API says and without its client.

The server knows `cross_entropy` only. `forward_backward_custom` asks it for log-probabilities, calls the loss where the
user is, and sends minus its gradient back as weights.
"""

from types import SimpleNamespace

import pytest
import torch
from made import BANDS

import bandpo
from bandpo.integrations.tinker import bandpo_loss


class Server:
    """A table of logits as the model, by the last token."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Embedding(20, 20, dtype=torch.float64)

    def logprobs(self, tokens, targets):
        return (3 * self.model(tokens)).log_softmax(-1).gather(-1, targets[:, None])[:, 0]

    def forward(self, data):
        with torch.no_grad():
            return [self.logprobs(each.model_input, inputs(each, "target_tokens")) for each in data]

    def forward_backward(self, data, weights):
        for each, weight in zip(data, weights, strict=True):
            (-self.logprobs(each.model_input, inputs(each, "target_tokens")) * weight).sum().backward()

    def forward_backward_custom(self, data, loss_fn):
        leaves = [each.requires_grad_() for each in self.forward(data)]
        loss, metrics = loss_fn(data, leaves)
        self.forward_backward(data, [-each for each in torch.autograd.grad(loss, leaves)])
        return loss.item(), metrics


def inputs(datum, name):
    return datum.loss_fn_inputs[name].to_torch()


def datums(server):
    """Answers of 1 to 12 tokens behind a prompt of three, with the sampler's log-probabilities."""
    data = []
    for length in range(1, 13):
        tokens, targets = torch.randint(20, (2, 3 + length))
        targets = torch.where(torch.rand(3 + length) < 0.5, server.model(tokens).argmax(-1), targets)
        mask = (torch.arange(3 + length) >= 3).double()
        old = (server.logprobs(tokens, targets).detach() + 2 * torch.randn(3 + length)).clamp(max=-1e-3)
        rows = {"target_tokens": targets, "logprobs": old, "mask": mask, "advantages": mask * torch.randn(1).item()}
        rows = {name: SimpleNamespace(to_torch=lambda row=row: row) for name, row in rows.items()}
        data.append(SimpleNamespace(model_input=tokens, loss_fn_inputs=rows))
    return data


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("region", [bandpo.Clip(0.2, 0.28), *BANDS])
def test_a_server_gets_the_gradient_of_policy_loss(region, calls):
    server = Server()
    data = datums(server)
    expected = torch.zeros_like(server.model.weight)
    for each in data:
        old, advantages, mask = (inputs(each, name)[None] for name in ("logprobs", "advantages", "mask"))
        logps = server.logprobs(each.model_input, inputs(each, "target_tokens"))[None]
        per_token, _ = bandpo.policy_loss(logps, old, advantages, mask, bandpo.Objective(region, aggregation="none"))
        expected += torch.autograd.grad(per_token.sum(), server.model.weight)[0]
    size = len(data) // calls
    parts = [data[i : i + size] for i in range(0, len(data), size)]
    counted = [server.forward_backward_custom(part, bandpo_loss(region))[1]["bandpo/clip/count"] for part in parts]
    torch.testing.assert_close(server.model.weight.grad, expected, rtol=1e-9, atol=1e-12)
    assert sum(counted) > 5
