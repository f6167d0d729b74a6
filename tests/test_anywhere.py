"""The files of docs/anywhere.md: the operator in NumPy, JAX and MLX, and in one function of PyTorch.

JAX, MLX and Tunix are tested where they are installed, as in the stage `arrays` of .ci/stages.
"""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from scripts import ROOT, load

import bandpo

DIVERGENCES = ("kl", "tv", "chi2")
DELTAS = (1e-3, 0.005, 0.02, 0.05, 0.2, 0.5, 0.9, 1.0)


class Language:
    """A file of examples/, called with arrays of NumPy."""

    def __init__(self, name, dtype):
        self.name, self.dtype, self.file = name, dtype, load(f"examples/anywhere_{name}.py")

    def bounds(self, divergence, log_p, delta):
        low, high = self.call(getattr(self.file, f"band_{divergence}"), log_p, delta)
        return np.asarray(low), np.asarray(high)

    def loss(self, divergence, delta, logps, old_logps, advantages, mask):
        """The loss and its gradient; NumPy has none."""
        bounds = self.bounds(divergence, old_logps, delta)
        return self.call(self.file.clipped_loss, logps, old_logps, advantages, mask, *bounds), None

    def call(self, function, *arguments):
        return function(*arguments)


class InTorch(Language):
    def bounds(self, divergence, log_p, delta):
        log_p = torch.tensor(log_p)
        ones = torch.ones_like(log_p)
        return [x.numpy() for x in self.file.band_loss(log_p, log_p, ones, ones.bool(), divergence, delta)[1:]]

    def loss(self, divergence, delta, logps, *batch):
        logps = torch.tensor(logps, requires_grad=True)
        loss = self.file.band_loss(logps, *map(torch.tensor, batch), divergence, delta)[0]
        return loss.item(), torch.autograd.grad(loss, logps)[0].numpy()


class InJax(Language):
    """Everything in jit, as it is used there."""

    def call(self, function, *arguments):
        import jax

        numbers = [i for i, each in enumerate(arguments) if isinstance(each, float)]
        with jax.enable_x64(self.dtype == "float64"):
            return jax.jit(function, static_argnums=numbers)(*arguments)

    def loss(self, divergence, delta, logps, old_logps, advantages, mask):
        import jax

        def whole(logps, old_logps, advantages, mask):
            bounds = getattr(self.file, f"band_{divergence}")(old_logps, delta)
            return self.file.clipped_loss(logps, old_logps, advantages, mask, *bounds)

        return self.call(jax.value_and_grad(whole), logps, old_logps, advantages, mask)


class InMlx(Language):
    def call(self, function, *arguments):
        import mlx.core as mx

        kinds = {"float64": mx.float64, "float32": mx.float32, "bool": mx.bool_}
        arrays = [
            each if isinstance(each, float) else mx.array(each, dtype=kinds[str(each.dtype)]) for each in arguments
        ]
        mx.set_default_device(mx.cpu)  # GPUs have no float64
        out = function(*arrays)
        return out.item() if isinstance(out, mx.array) else [np.array(each) for each in out]

    def loss(self, divergence, delta, logps, old_logps, advantages, mask):
        import mlx.core as mx

        bounds = self.bounds(divergence, old_logps, delta)
        whole = mx.value_and_grad(self.file.clipped_loss)
        return self.call(whole, logps, old_logps, advantages, mask, *bounds)


KINDS = {"numpy": Language, "torch": InTorch, "jax": InJax, "mlx": InMlx}
KINDS = {name: kind for name, kind in KINDS.items() if find_spec(name)}
CELLS = [(name, dtype) for name in KINDS for dtype in ("float64", "float32")]


@pytest.fixture(params=CELLS, ids="-".join)
def language(request):
    name, dtype = request.param
    return KINDS[name](name, dtype)


def probabilities(divergence, delta):
    """From 1e-6 to 0.9999, closely around 1/2 and the point up to which r_low is 0."""
    point = {"kl": 0.5, "tv": delta, "chi2": delta / (1 + delta)}[divergence]
    away = np.logspace(-15, -1, 60)
    near = point * np.concatenate([1 - away, [1.0], 1 + away])
    p = np.concatenate([np.logspace(-6, np.log10(0.9999), 20001), 1 - np.logspace(-4, -0.3, 400), near])
    return p[(p >= 1e-6) & (p <= 0.9999)]


# As docs/anywhere.md says: the error of log r is absolute up to a |log r|, from there on a share of it. An r below 1e-9
# counts as 0, but for KL, whose r_low is never 0.
ABSOLUTE = {"float64": 1e-11, "float32": 1e-6}
UPPER = {"float64": (16, 0), "float32": (16, 0)}
LOWER = dict.fromkeys(CELLS, (1e4, 1e-15)) | {
    ("numpy", "float32"): (16, 1.2e-7),
    ("torch", "float32"): (16, 1.2e-7),
    ("jax", "float32"): (-np.log(0.01), 4e-7),
    ("mlx", "float32"): (-np.log(0.01), 4e-7),
}


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_bounds_are_the_librarys(language, divergence):
    name, dtype = language.name, language.dtype
    smallest = (1e-5,) if divergence == "kl" and dtype == "float64" else ()
    for delta in (*smallest, *DELTAS):
        log_p = np.log(probabilities(divergence, delta)).astype(dtype)
        bounds = bandpo.band_bounds(torch.tensor(log_p), divergence, delta)
        log_low, log_high = bounds.log_low.double().numpy(), bounds.log_high.double().numpy()
        low, high = (x.astype("float64") for x in language.bounds(divergence, log_p, delta))
        if divergence != "kl":
            low, log_low = (np.maximum(x, np.log(1e-9)) for x in (low, log_low))
        for mine, theirs, (until, share) in ((low, log_low, LOWER[name, dtype]), (high, log_high, UPPER[dtype])):
            allowed = np.where(np.abs(theirs) <= until, ABSOLUTE[dtype], share * np.abs(theirs))
            assert (np.abs(mine - theirs) <= allowed).all(), delta


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_extreme_log_probabilities_have_bounds(language, divergence):
    """Confident tokens, whose log p rounds to 0 or above it, and padding."""
    log_p = np.array([0.0, 1e-7, -1e-12, -100.0, -1e4, -np.inf], dtype=language.dtype)
    low, high = language.bounds(divergence, log_p, 0.05)
    assert ((low <= 0) & (high >= 0)).all()  # and none is NaN
    bounds = bandpo.band_bounds(torch.tensor(log_p[:3]), divergence, 0.05)
    theirs = [bounds.log_low.numpy(), bounds.log_high.numpy()]
    np.testing.assert_allclose([low[:3], high[:3]], theirs, atol=1e-6)


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_loss_and_gradient_are_the_librarys(language, divergence):
    generator = np.random.default_rng(0)
    old_logps = np.log(generator.uniform(0.01, 0.99, (8, 32))).astype(language.dtype)
    logps = (old_logps + generator.normal(0, 0.5, old_logps.shape)).clip(max=-1e-3).astype(language.dtype)
    advantages = generator.normal(size=(8, 1)).astype(language.dtype)
    mask = generator.random(old_logps.shape) < 0.8
    theirs = torch.tensor(logps, requires_grad=True)
    objective = bandpo.Objective(bandpo.Band(divergence, 0.05), aggregation="token-mean")
    batch = [torch.tensor(each) for each in (old_logps, advantages[:, 0], mask)]
    expected, metrics = bandpo.policy_loss(theirs, *batch, objective)
    assert 0.1 < metrics.compute()["clip/fraction"] < 0.9
    loss, gradient = language.loss(divergence, 0.05, logps, old_logps, advantages, mask)
    # The exp(x) of MLX is off by 1e-6 of its value, in float64 too.
    near = 1e-12 if language.dtype == "float64" and language.name != "mlx" else 2e-6
    np.testing.assert_allclose(float(loss), expected.item(), rtol=near, atol=near)
    if gradient is not None:
        wanted = torch.autograd.grad(expected, theirs)[0].numpy()
        np.testing.assert_allclose(gradient, wanted, atol=near * np.abs(wanted).max(), rtol=0)


def test_an_unknown_divergence_is_refused():
    x = torch.zeros(1)
    with pytest.raises(ValueError, match="divergence must be 'kl', 'tv' or 'chi2', got 'js'"):
        load("examples/anywhere_torch.py").band_loss(x, x, x, x.bool(), "js")


def test_the_page_shows_the_files():
    page = (ROOT / "docs" / "anywhere.md").read_text(encoding="utf-8")
    for name in ("numpy", "torch", "jax", "tunix", "mlx"):
        assert f"```{{literalinclude}} ../examples/anywhere_{name}.py\n" in page, name


@pytest.fixture
def tunix(monkeypatch):
    """Its own loss and registry, imported alone: the rest of Tunix, flax and logging are stand-ins."""
    found = {name: find_spec(name) for name in ("jax", "tunix")}
    if not all(found.values()):
        pytest.skip("jax or google-tunix is not installed")
    for name in [each for each in sys.modules if each.partition(".")[0] == "tunix"]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("flax", "flax.nnx", "absl", "absl.logging", "tunix.sft", "tunix.sft.utils"):
        monkeypatch.setitem(sys.modules, name, MagicMock(name=name))
    folder = Path(found["tunix"].origin).parent
    for name, path in (("tunix", folder), ("tunix.rl", folder / "rl")):
        package = ModuleType(name)
        package.__path__ = [str(path)]
        monkeypatch.setitem(sys.modules, name, package)
    from tunix.rl import algo_core

    sys.modules["flax"].nnx.split.return_value = (None, None)
    return algo_core


def test_in_tunix_its_own_loss_has_the_bounds_of_each_token(tunix, monkeypatch):
    import jax.numpy as jnp

    monkeypatch.setitem(sys.modules, "anywhere_jax", load("examples/anywhere_jax.py"))
    ours = load("examples/anywhere_tunix.py").loss
    generator = np.random.default_rng(0)
    old = np.log(generator.uniform(0.01, 0.99, (4, 16))).astype("float32")
    new = (old + generator.normal(0, 0.5, old.shape)).clip(max=-1e-3).astype("float32")
    advantages, mask = generator.normal(size=4).astype("float32"), generator.random(old.shape) < 0.8
    monkeypatch.setattr(
        tunix.common, "compute_per_token_logps", lambda *_, **__: (jnp.array(new), jnp.zeros((4, 16, 2)))
    )
    example = SimpleNamespace(prompt_ids=None, completion_ids=None, completion_mask=jnp.array(mask, dtype="float32"))
    example.advantages, example.ref_per_token_logps = jnp.array(advantages), None
    config = SimpleNamespace(beta=0.0, epsilon=0.2, loss_algo="grpo", loss_agg_mode="token-mean", temperature=1.0)

    def of(loss, old_logps, config):
        example.old_per_token_logps = old_logps
        return float(loss(None, example, config, pad_id=0, eos_id=1)[0])

    def library(region):
        objective = bandpo.Objective(region, aggregation="token-mean")
        return bandpo.policy_loss(*map(torch.tensor, (new, old, advantages, mask)), objective)[0].item()

    assert of(tunix.grpo_loss_fn, jnp.array(old), config) == pytest.approx(library(bandpo.Clip(0.2, 0.2)), abs=1e-6)
    assert of(ours, jnp.array(old), config) == pytest.approx(library(bandpo.Band("kl", 0.05)), abs=1e-6)
    assert (config.epsilon, of(ours, None, config)) == (0.2, of(tunix.grpo_loss_fn, None, config))
    with pytest.raises(ValueError, match="loss_algo must be 'grpo', whose ratios are of tokens, got 'gspo-token'"):
        of(ours, jnp.array(old), SimpleNamespace(loss_algo="gspo-token"))


# ---- the formulas in research/pages/upstream, which other projects would get, against the library's

UPSTREAM = ROOT / "research" / "pages" / "upstream"
LOG_P = torch.cat([torch.logspace(-6, -0.001, 2000), 1 - torch.logspace(-4, -1, 200)]).log()


def test_the_lines_for_trl_clip_what_the_library_clips_and_dppo_masks():
    (lines,) = re.findall(r"```python\n(scale = .*?)```", (UPSTREAM / "trl.md").read_text(encoding="utf-8"), re.DOTALL)
    generator = torch.Generator().manual_seed(0)
    moved = (LOG_P + torch.randn(LOG_P.shape, generator=generator)).clamp(max=-1e-5)
    ratio = (moved - LOG_P).exp()
    for method, epsilon, divergence, delta in (("tv", 0.05, "tv", 0.05), ("chi2", 0.2, "chi2", 0.04)):
        args = type("Args", (), {"trust_region_method": method})
        scope = {"torch": torch, "old_per_token_logps": LOG_P, "self": type("Trainer", (), {"args": args})}
        exec(lines, scope)
        low, high = 1 - epsilon * scope["scale"], 1 + epsilon * scope["scale"]
        bounds = bandpo.band_bounds(LOG_P, divergence, delta)
        # No ratio is below 0 or above 1 / p, where the library's bounds end.
        torch.testing.assert_close(low.clamp(min=0), bounds.log_low.exp(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(torch.minimum(high, (-LOG_P).exp()), bounds.log_high.exp(), rtol=1e-5, atol=1e-6)
        outside = (ratio < low) | (ratio > high)
        moves = moved.exp() - LOG_P.exp()
        limit = epsilon if method == "tv" else epsilon * (LOG_P.exp() * -torch.expm1(LOG_P)).sqrt()
        assert 0.05 < outside.float().mean() < 0.95
        assert (outside != (moves.abs() > limit)).sum() <= 2  # by rounding


def test_the_patch_for_verl_has_the_librarys_ratios():
    patch = (UPSTREAM / "verl-band.patch").read_text(encoding="utf-8")
    (lines,) = re.findall(
        r"^\+(@torch\.no_grad\(\)\n\+def band_clip_ratios.*?)\n\+\n\+\n", patch, re.DOTALL | re.MULTILINE
    )
    scope = {"torch": torch}
    exec(lines.replace("\n+", "\n"), scope)
    for divergence in ("kl", "tv", "chi2"):
        for delta in (0.001, 0.05, 1.0):
            low, high = scope["band_clip_ratios"](LOG_P, divergence, delta)
            bounds = bandpo.band_bounds(LOG_P, divergence, delta)
            torch.testing.assert_close((1 - low).clamp(min=0), bounds.log_low.exp(), rtol=0, atol=8e-7)
            ratio = torch.minimum(1 + high, (-LOG_P).exp())
            torch.testing.assert_close(ratio, bounds.log_high.exp(), rtol=2e-6, atol=0)
