"""token_logps against log_softmax and gather of the whole logits, and against the memory that these take."""

import math
from importlib import import_module

import pytest
import torch
from torch.nn.functional import linear
from torch.utils._python_dispatch import TorchDispatchMode

import bandpo
from bandpo import Band, Clip, policy_loss, token_logps

SHAPE, HIDDEN, VOCABULARY = (3, 50), 16, 101


def make(dtype=torch.float32, shape=SHAPE, hidden=HIDDEN, vocabulary=VOCABULARY, seed=0):
    """(hidden, weight, bias, tokens); logits spread over several units, as a model's are."""
    torch.manual_seed(seed)
    parameters = [
        torch.randn(size, dtype=torch.float64).to(dtype).requires_grad_()
        for size in ((*shape, hidden), (vocabulary, hidden), (vocabulary,))
    ]
    return *parameters, torch.randint(vocabulary, shape)


def plain(hidden, weight, tokens, bias=None, temperature=1.0, softcap=None):
    logits = linear(hidden, weight, bias).to(torch.promote_types(torch.float32, hidden.dtype))
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
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


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("dtype", "rel"), [(torch.float32, 1e-5), (torch.float64, 1e-14)])
def test_values_and_gradients_are_those_of_the_whole_logits(temperature, softcap, biased, dtype, rel):
    hidden, weight, bias, tokens = make(dtype)
    inputs = (hidden, weight, bias) if biased else (hidden, weight)
    given = {"temperature": temperature, "softcap": softcap, "bias": bias if biased else None}
    expected = plain(hidden, weight, tokens, **given)
    got = token_logps(hidden, weight, tokens, chunk=7, **given)
    assert got[0].dtype == got[1].dtype == dtype
    assert_close(got, expected, rel)
    assert_close(gradients(got, inputs), gradients(expected, inputs), rel)
    for one in 0, 1:  # the other output unused
        assert_close(gradients([got[one]], inputs), gradients([expected[one]], inputs), rel)


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_gradcheck(softcap):
    hidden, weight, bias, tokens = make(torch.float64, (2, 3), 4, 5)
    mask = torch.tensor([[True, True, False], [False, True, True]])

    def function(hidden, weight, bias):
        return token_logps(
            hidden, weight, tokens, bias=bias, temperature=0.7, softcap=softcap, response_mask=mask, chunk=3
        )

    assert torch.autograd.gradcheck(function, (hidden, weight, bias))


@pytest.mark.parametrize("chunk", [1, 149, 150, 151, 10_000])
def test_the_chunk_changes_nothing_but_rounding(chunk):
    hidden, weight, bias, tokens = make()
    expected = token_logps(hidden, weight, tokens, bias=bias, chunk=32)
    got = token_logps(hidden, weight, tokens, bias=bias, chunk=chunk)
    assert_close(got, expected, 1e-6)
    inputs = hidden, weight, bias
    assert_close(gradients(got, inputs), gradients(expected, inputs), 1e-6)


def test_no_tensor_is_as_large_as_tokens_times_a_fraction_of_the_vocabulary():
    """In forward and backward, with and without a mask."""
    tokens_and_vocabulary = 64 * 8 * 997

    hidden, weight, bias, tokens = make(shape=(8, 64), vocabulary=997)
    for mask in None, torch.rand(tokens.shape) < 0.5:
        with Largest() as mode:
            gradients(token_logps(hidden, weight, tokens, bias=bias, response_mask=mask, chunk=16), (hidden, weight))
        assert 0 < mode.size <= max(16 * 997, weight.numel()) < tokens_and_vocabulary / 30
    with Largest() as mode:
        plain(hidden, weight, tokens)
    assert mode.size == tokens_and_vocabulary


@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_what_is_masked_is_neither_looked_at_nor_computed(kind, monkeypatch):
    hidden, weight, bias, tokens = make()
    mask = torch.rand(SHAPE) < 0.4
    expected = [torch.where(mask, x, 0.0) for x in plain(hidden, weight, tokens, bias)]
    wanted = gradients(expected, (hidden, weight, bias))
    dirty = torch.where(mask[..., None], hidden.detach(), math.nan).requires_grad_()
    rows = []
    monkeypatch.setattr(
        import_module(bandpo.token_logps.__module__),
        "linear",
        lambda x, *rest: (rows.append(len(x)), linear(x, *rest))[1],
    )
    got = token_logps(dirty, weight, tokens.masked_fill(~mask, -100), bias=bias, response_mask=mask.to(kind), chunk=10)
    assert sum(rows) == mask.sum()
    assert_close(got, expected, 2e-6)
    got = gradients(got, (dirty, weight, bias))
    assert_close(got, wanted, 2e-6)
    assert (got[0][~mask] == 0).all()
    assert sum(rows) == 2 * mask.sum()


def test_nothing_to_look_at_gives_zeros():
    hidden, weight, bias, tokens = make()
    got = token_logps(hidden, weight, tokens, bias=bias, response_mask=torch.zeros(SHAPE))
    assert not any(x.any() for x in (*got, *gradients(got, (hidden, weight, bias))))
    logps, _ = token_logps(hidden[:, :0], weight, tokens[:, :0])
    assert logps.shape == (3, 0)


def test_only_the_gradients_that_are_needed():
    hidden, weight, bias, tokens = make()
    frozen = weight.detach()
    (got,) = gradients(token_logps(hidden, frozen, tokens, bias=bias.detach())[:1], (hidden,))
    (expected,) = gradients(plain(hidden, weight, tokens, bias)[:1], (hidden,))
    assert_close([got], [expected], 2e-6)
    assert_close(
        gradients(token_logps(hidden.detach(), weight, tokens), (weight,)),
        gradients(plain(hidden, weight, tokens), (weight,)),
        2e-6,
    )
    few = hidden[0, :5].detach().requires_grad_()
    with Largest(frozen) as mode:
        gradients(token_logps(few, frozen, tokens[0, :5]), (few,))
    assert mode.size < frozen.numel()
    with torch.no_grad():
        assert not token_logps(hidden, weight, tokens)[0].requires_grad


def test_half_precision_sums_the_gradient_of_the_weight_in_float32():
    """Over 512 chunks; summed in bfloat16 the error would be 30 times as large."""
    hidden, weight, bias, tokens = make(torch.bfloat16, (8, 512))
    got = token_logps(hidden, weight, tokens, bias=bias, chunk=8)
    assert got[0].dtype == torch.float32
    # In float64, from the logits as rounded to bfloat16: the product itself is the model's.
    logits = linear(hidden, weight, bias)
    inputs = hidden, weight, bias
    exact = [x.detach().double().requires_grad_() for x in inputs]
    straight = linear(*exact)
    logps = (straight + (logits.double() - straight).detach()).log_softmax(-1)
    expected = logps.gather(-1, tokens[..., None])[..., 0], -(logps.exp() * logps).sum(-1)
    assert_close([x.double() for x in got], expected, 1e-6)
    got, expected = gradients(got, inputs), gradients(expected, exact)
    assert [x.dtype for x in got] == [torch.bfloat16] * 3
    assert_close([x.double() for x in got], expected, 4e-3)


def test_under_autocast_the_product_is_in_its_dtype_and_parameters_stay_float32():
    hidden, weight, bias, tokens = make()
    with torch.autocast("cpu", torch.bfloat16):
        expected = plain(hidden, weight, tokens, bias)
        got = token_logps(hidden, weight, tokens, bias=bias, chunk=7)
    assert_close(got, expected, 1e-6)
    got, expected = (gradients(x, (hidden, weight, bias)) for x in (got, expected))
    assert [x.dtype for x in got] == [torch.float32] * 3
    assert_close(got, expected, 1e-2)


def test_a_backward_under_autocast_stays_in_float32():
    hidden, weight, _, tokens = make()
    got = token_logps(hidden, weight, tokens)
    expected = gradients(got, (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(gradients(got, (hidden, weight)), expected, 1e-6)


def test_tokens_that_a_model_forbids_leave_everything_finite():
    """Logits of -inf: probability 0, no part in the entropy or its gradient."""
    hidden, weight, bias, tokens = make()
    forbidden = torch.arange(VOCABULARY) >= 90
    tokens = tokens % 90
    got = token_logps(hidden, weight, tokens, bias=bias.masked_fill(forbidden, -math.inf))
    expected = plain(hidden, weight[:90], tokens, bias[:90])
    assert_close(got, expected, 2e-6)
    assert_close(gradients(got, (hidden, weight)), gradients(expected, (hidden, weight)), 2e-6)


@pytest.mark.parametrize("region", [Band("kl", 0.05), Clip(0.2, 0.28)], ids=repr)
def test_the_whole_step_is_that_of_the_logits(region):
    hidden, weight, bias, tokens = make()
    mask = torch.arange(50) < torch.tensor([50, 31, 7])[:, None]
    old = plain(hidden + 0.5 * torch.randn(hidden.shape), weight, tokens, bias)[0].detach()
    results = []
    for logps, entropies in (
        plain(hidden, weight, tokens, bias),
        token_logps(hidden, weight, tokens, bias=bias, response_mask=mask),
    ):
        loss, metrics = policy_loss(logps, old, torch.tensor([1.0, -1.0, 0.5]), mask, region, entropies=entropies)
        slopes = torch.autograd.grad(loss - 0.01 * entropies[mask].mean(), (hidden, weight, bias))
        results.append((loss, slopes, metrics.compute()))
    (loss, slopes, numbers), (got, found, measured) = results
    assert 0 < numbers["cut/fraction"] < 1
    torch.testing.assert_close(got, loss, rtol=1e-5, atol=0)
    assert_close(found, slopes, 1e-5)
    assert measured == pytest.approx(numbers, rel=1e-4, abs=1e-6, nan_ok=True)


def test_there_is_no_second_derivative():
    hidden, weight, _, tokens = make()
    logps, _ = token_logps(hidden, weight, tokens)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(logps.sum(), hidden, create_graph=True)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.slow
def test_a_compiled_step_leaves_it_as_it_is():
    """One graph break, the same numbers, and still no large tensor."""
    torch._dynamo.reset()
    hidden, weight, _, tokens = make(shape=(4, 64))
    mask = torch.rand(tokens.shape) < 0.8
    old = plain(hidden, weight, tokens)[0].detach() + 0.1 * torch.randn(tokens.shape)

    def step(hidden, mask):
        logps, entropies = token_logps(hidden, weight, tokens, response_mask=mask, chunk=16)
        return policy_loss(logps, old, torch.ones(4), mask, Band(), normalizer=100.0, entropies=entropies)[0]

    for part in mask, torch.rand(tokens.shape) < 0.5:
        expected, got = step(hidden, part), torch.compile(step, backend="aot_eager")(hidden, part)
        torch.testing.assert_close(got, expected)
        assert_close(torch.autograd.grad(got, (hidden, weight)), torch.autograd.grad(expected, (hidden, weight)), 1e-6)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(step, backend="eager", fullgraph=True)(hidden, mask)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": torch.zeros(3)}, r"hidden must be .* got \(3,\) and \(101, 16\)"),
        ({"weight": torch.zeros(101, 15)}, r"weight \(V, H\), got \(3, 50, 16\) and \(101, 15\)"),
        ({"hidden": torch.zeros(3, 50, 16, dtype=torch.int64)}, r"hidden must be floating point, got torch.int64"),
        ({"weight": torch.zeros(101, 16).half()}, r"weight must be torch.float32 like hidden, got torch.float16"),
        ({"bias": torch.zeros(16)}, r"bias must be \(101,\), .* got \(16,\)"),
        ({"bias": torch.zeros(101).double()}, r"bias must be torch.float32 like hidden, got torch.float64"),
        ({"tokens": torch.zeros(3, 49, dtype=torch.int64)}, r"tokens must be \(3, 50\) like hidden, got \(3, 49\)"),
        ({"tokens": torch.zeros(3, 50)}, r"tokens must be int64, got torch.float32"),
        ({"tokens": torch.full((3, 50), 101)}, r"tokens must be in \[0, 101\), the rows of weight, got 101"),
        ({"tokens": torch.full((3, 50), -100)}, r"tokens must be in \[0, 101\), the rows of weight, got -100"),
        ({"temperature": 0.0}, r"temperature must be positive and finite, got 0.0"),
        ({"temperature": math.nan}, r"temperature must be positive and finite, got nan"),
        ({"softcap": -1.0}, r"softcap must be positive and finite or None, got -1.0"),
        ({"chunk": 0}, r"chunk must be an int of at least 1, got 0"),
        ({"chunk": 2.5}, r"chunk must be an int of at least 1, got 2.5"),
        ({"response_mask": torch.ones(3)}, r"response_mask must be \(3, 50\) like tokens, got \(3,\)"),
        ({"response_mask": torch.full((3, 50), 2)}, r"response_mask must be bool or hold 0 and 1 only, got a 2"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_errors_name_the_argument_the_value_and_what_is_allowed(changes, message):
    hidden, weight, _, tokens = make()
    given = {"hidden": hidden, "weight": weight, "tokens": tokens, **changes}
    with pytest.raises(ValueError, match=message):
        token_logps(given.pop("hidden"), given.pop("weight"), given.pop("tokens"), **given)
