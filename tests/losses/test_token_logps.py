"""token_logps against log_softmax and gather of the whole logits, and against the memory that these take."""

import math

import pytest
import torch
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

from bandpo import Band, Clip, policy_loss
from bandpo.losses import token_logps

SHAPE, HIDDEN, VOCABULARY = (3, 50), 16, 101


def make(dtype=torch.float32, shape=SHAPE, hidden=HIDDEN, vocabulary=VOCABULARY, seed=0):
    """(hidden, weight, tokens); logits spread over several units, as a model's are."""
    torch.manual_seed(seed)
    parameters = [
        torch.randn(size, dtype=torch.float64).to(dtype).requires_grad_()
        for size in ((*shape, hidden), (vocabulary, hidden))
    ]
    return *parameters, torch.randint(vocabulary, shape)


def plain(hidden, weight, tokens, temperature=1.0):
    logits = linear(hidden, weight).to(torch.promote_types(torch.float32, hidden.dtype))
    logps = (logits / temperature).log_softmax(-1)
    return logps.gather(-1, tokens[..., None])[..., 0], -(logps.exp() * logps).sum(-1)


def gradients(outputs, inputs, seed=1):
    """Of a random combination of all elements."""
    rng = torch.Generator().manual_seed(seed)
    up = [torch.randn(x.shape, generator=rng, dtype=torch.float64).to(x.dtype) for x in outputs]
    return torch.autograd.grad(outputs, inputs, up, retain_graph=True)


def assert_close(got, expected, rel):
    """Within `rel` of the largest element of each tensor."""
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=rel * y.abs().max().item())


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made; views of those given do not count."""

    def __init__(self, *given):
        super().__init__()
        self.given, self.size = {x.untyped_storage().data_ptr() for x in given}, 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        out = function(*arguments, **named or {})
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.given:
                self.size = max(self.size, x.numel())
        return out


@pytest.mark.parametrize("chunk", [1, 7, 149, 150, 151, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-5), (torch.float64, 1e-14)])
def test_values_and_gradients_are_those_of_the_whole_logits(temperature, dtype, rel, chunk):
    hidden, weight, tokens = make(dtype)
    expected = plain(hidden, weight, tokens, temperature)
    for entropies in (True, False):
        got = token_logps(hidden, weight, tokens, temperature=temperature, entropies=entropies, chunk=chunk)
        got, wanted = (got, expected) if entropies else ([got], expected[:1])
        assert {x.dtype for x in got} == {dtype}
        assert_close(got, wanted, rel)
        assert_close(gradients(got, (hidden, weight)), gradients(wanted, (hidden, weight)), rel)


def test_logits_take_the_place_of_hidden_states():
    hidden, weight, tokens = make()
    logits = linear(hidden, weight)
    expected = token_logps(hidden, weight, tokens, entropies=True)
    assert_close(token_logps(logits, None, tokens, entropies=True), expected, 1e-6)
    found = token_logps(logits.bfloat16(), None, tokens)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("entropies", [False, True])
def test_one_token_needs_no_batch(entropies):
    hidden, weight, tokens = make()
    one = token_logps(hidden[0, 0], weight, tokens[0, 0], entropies=entropies)
    torch.testing.assert_close(one[0] if entropies else one, token_logps(hidden, weight, tokens)[0, 0])
    assert token_logps(hidden[:, :0], weight, tokens[:, :0]).shape == (3, 0)


def test_no_tensor_is_as_large_as_tokens_times_a_fraction_of_the_vocabulary():
    hidden, weight, tokens = make(shape=(8, 64), vocabulary=997)
    sizes = []
    for call in (
        lambda: gradients([token_logps(hidden, weight, tokens, chunk=16)], (hidden, weight)),
        lambda: gradients(token_logps(hidden, weight, tokens, entropies=True, chunk=16), (hidden, weight)),
        lambda: plain(hidden, weight, tokens),
    ):
        with Largest() as mode:
            call()
        sizes.append(mode.size)
    assert 0 < min(sizes) <= max(sizes[:2]) <= max(16 * 997, weight.numel()) < 64 * 8 * 997 / 30
    assert sizes[2] == 64 * 8 * 997


@pytest.mark.parametrize("entropies", [False, True])
@pytest.mark.parametrize("token", [-100, -1, VOCABULARY])
def test_a_token_out_of_range_is_an_error(token, entropies):
    hidden, weight, tokens = make()
    tokens[1, 3] = token
    with pytest.raises(RuntimeError, match=f"index {token} is out of bounds"):
        token_logps(hidden, weight, tokens, entropies=entropies)


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_and_autocast_are_computed_in_float32_after_the_product(autocast):
    hidden, weight, tokens = make(torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        got = token_logps(hidden, weight, tokens, entropies=True, chunk=8)
        expected, alone = plain(hidden, weight, tokens), token_logps(hidden, weight, tokens)
    assert_close([*got, alone], [*expected, expected[0]], 1e-6)
    assert got[0].dtype == alone.dtype == torch.float32
    slopes, wanted = (gradients(x, (hidden, weight)) for x in (got, expected))
    assert [x.dtype for x in slopes] == [hidden.dtype] * 2
    assert_close([x.float() for x in slopes], [x.float() for x in wanted], 3e-2)


def test_tokens_that_a_model_forbids_leave_everything_finite():
    """Logits of -inf have probability 0 and no part in the entropy or its gradient."""
    hidden, weight, tokens = make()
    tokens = tokens % 90
    logits = linear(hidden, weight).masked_fill(torch.arange(VOCABULARY) >= 90, -math.inf)
    got, expected = token_logps(logits, None, tokens, entropies=True), plain(hidden, weight[:90], tokens)
    assert_close(got, expected, 2e-6)
    assert_close(gradients(got, (hidden, weight)), gradients(expected, (hidden, weight)), 2e-6)


@pytest.mark.parametrize("region", [Band("kl", 0.05), Clip(0.2, 0.28)], ids=repr)
def test_the_whole_step_is_that_of_the_logits(region):
    hidden, weight, tokens = make()
    mask = torch.arange(50) < torch.tensor([50, 31, 7])[:, None]
    old = plain(hidden + 0.5 * torch.randn(hidden.shape), weight, tokens)[0].detach()
    results = []
    chosen = token_logps(hidden[mask], weight, tokens[mask])
    for logps in (plain(hidden, weight, tokens)[0], torch.zeros(SHAPE).masked_scatter(mask, chosen)):
        loss, metrics = policy_loss(logps, old, torch.tensor([1.0, -1.0, 0.5]), mask, region)
        results.append((loss, torch.autograd.grad(loss, (hidden, weight)), metrics.compute()))
    (loss, slopes, numbers), (got, found, measured) = results
    assert 0 < numbers["clip/fraction"] < 1
    torch.testing.assert_close(got, loss, rtol=1e-5, atol=0)
    assert_close(found, slopes, 1e-5)
    assert measured == pytest.approx(numbers, rel=1e-4, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": torch.zeros(3, 50, 15)}, r"must fit together, got \[\(3, 50, 15\), \(101, 16\), \(3, 50\)\]"),
        ({"weight": torch.zeros(101)}, r"must fit together"),
        ({"tokens": torch.zeros(3, 49, dtype=torch.int64)}, r"must fit together"),
        ({"temperature": 0.0}, r"temperature and chunk must be positive, got 0.0 and 512"),
        ({"temperature": math.nan}, r"temperature and chunk must be positive, got nan"),
        ({"chunk": 0}, r"temperature and chunk must be positive, got 1.0 and 0"),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    hidden, weight, tokens = make()
    with pytest.raises(ValueError, match=message):
        token_logps(**{"hidden": hidden, "weight": weight, "tokens": tokens, **changes})
