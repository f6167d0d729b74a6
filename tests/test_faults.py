"""37 faults that the mathematics suggests: each is planted in a process of its own, where its tests must fail.

A fault is found by the meaning of a callable, not by a line: the real one is wrapped, wherever bandpo holds it.
"""

import inspect
import math
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from bandpo import Bounds
from bandpo.band.divergences import _REGISTRY, divergence

TESTS = Path(__file__).parent
BAND, RULES, ALGEBRA = "bandpo.band.operator", "bandpo.trust_regions.rules", "bandpo.trust_regions.combinators"
SURROGATES, POLICY, METRICS = "bandpo.losses.surrogates", "bandpo.losses.policy", "bandpo.losses.metrics"
AGGREGATION, KL, ADVANTAGES = "bandpo.losses.aggregation", "bandpo.losses.kl", "bandpo.losses.advantages"
NUMERICS, CONTROL = "bandpo.numerics", "bandpo.control"
ON_BAND, ON_RULES = "band/test_operator.py", "trust_regions/test_trust_regions.py"
ON_SURROGATES, ON_POLICY, ON_METRICS = "losses/test_surrogates.py", "losses/test_policy.py", "losses/test_metrics.py"
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def given(**changes: Callable[[dict[str, Any]], Any]) -> Wrapper:
    """Change arguments by name, each to a function of all arguments."""

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(real)

        def faulty(*positional: Any, **named: Any) -> Any:
            bound = signature.bind(*positional, **named)
            bound.apply_defaults()
            old = dict(bound.arguments)
            bound.arguments.update({name: change(old) for name, change in changes.items()})
            return real(*bound.args, **bound.kwargs)

        return faulty

    return wrap


def found(change: Callable[[Any], Any]) -> Wrapper:
    return lambda real: lambda *positional, **named: change(real(*positional, **named))


def instead(other: Callable[..., Any]) -> Wrapper:
    return lambda real: other


def _token_alone(log_ratio: Any, old_logps: Any, kind: Any = "kl") -> Any:
    """Forget all other tokens in the divergence of a move."""
    return old_logps.exp() * divergence(kind).generator(log_ratio)


def _biased(real: Callable[..., Any]) -> Callable[..., Any]:
    """Divide the squares of a group by G."""

    def faulty(rewards: Any, group_size: int | None = None, *, normalize: bool = True, **more: Any) -> Any:
        scale = math.sqrt(group_size / (group_size - 1)) if group_size and normalize else 1.0
        return scale * real(rewards, group_size, normalize=normalize, **more)

    return faulty


def _first_maximum(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: type(self)(real(self, other).totals, self.maxima or other.maxima)


def _straight_through(real: Callable[..., Any]) -> Callable[..., Any]:
    """Leave a clipped token its gradient."""
    return lambda s, *more: s + (real(s, *more) - s).detach()


# Name: module, attribute, wrapper, the tests of which one must fail.
FAULTS: dict[str, tuple[str, str, Wrapper, str]] = {
    "upper bound takes the lower root": (BAND, "band_bounds", found(lambda b: Bounds(b.log_low, -b.log_low)), ON_BAND),
    "delta is doubled": (BAND, "band_bounds", given(delta=lambda x: 2 * x["delta"]), ON_BAND),
    "radii of the two sides are swapped": (
        BAND,
        "band_bounds",
        given(delta_low=lambda x: x["delta_high"], delta_high=lambda x: x["delta_low"]),
        ON_BAND,
    ),
    "KL is reversed": (
        BAND,
        "log_bounds",
        given(kind=lambda x: divergence("reverse_kl") if x["kind"].name == "kl" else x["kind"]),
        ON_BAND,
    ),
    "bounds may leave the simplex": (
        BAND,
        "band_bounds",
        found(lambda b: Bounds(b.log_low, b.log_high + 1e-3)),
        ON_BAND,
    ),
    "TV does not saturate at 1 / p": (
        "bandpo.band.closed_forms",
        "tv_log_bounds",
        lambda real: lambda p, delta: (real(p, delta)[0], torch.log1p(delta / p.double().exp())),
        ON_BAND,
    ),
    "chi2 has a factor 1/2": (
        "bandpo.band.closed_forms",
        "chi2_log_bounds",
        given(delta=lambda x: 2 * x["delta"]),
        ON_BAND,
    ),
    "divergence of a move counts its token alone": (BAND, "divergence_at", instead(_token_alone), ON_BAND),
    "table is read at a neighbour": (
        "bandpo.band.table",
        "BandTable.look_up",
        given(log_p=lambda x: x["log_p"] - 1e-3),
        "band/test_table.py",
    ),
    "interval is open": (
        "bandpo.bounds",
        "Bounds.contains",
        instead(lambda self, s: (self.log_low < s) & (s < self.log_high)),
        ON_RULES,
    ),
    "e^x - 1 cancels": (NUMERICS, "expm1", instead(lambda x: x.exp() - 1), ON_BAND),
    "log(1 - e^x) cancels": (NUMERICS, "log1mexp", instead(lambda x: torch.log(1 - x.exp())), ON_BAND),
    "half precision is not widened": (NUMERICS, "output_dtype", instead(lambda x: x.dtype), ON_POLICY),
    "clip is symmetric": (RULES, "Clip.bounds", found(lambda b: Bounds(b.log_low, -b.log_low)), ON_RULES),
    "DCPO does not see the probability": (
        RULES,
        "DCPO.bounds",
        given(old_logps=lambda x: 0 * x["old_logps"]),
        ON_RULES,
    ),
    "union is the intersection": (
        ALGEBRA,
        "Union.bounds",
        lambda real: lambda self, *more: import_module(ALGEBRA).Intersect(self.first, self.second).bounds(*more),
        "trust_regions/test_algebra.py",
    ),
    "rules by sign change places": (
        ALGEBRA,
        "BySign.bounds",
        given(self=lambda x: type(x["self"])(x["self"].negative, x["self"].positive)),
        ON_RULES,
    ),
    "cap is forgotten": (
        ALGEBRA,
        "Capped.bounds",
        instead(lambda self, old, context=None: self.region.bounds(old, context)),
        ON_RULES,
    ),
    "controlled number stays": (CONTROL, "replace_number", given(value=lambda x: 0.05), "test_control.py"),
    "controller moves the wrong way": (
        CONTROL,
        "Controller.step",
        given(numbers=lambda x: {name: -number for name, number in x["numbers"].items()}),
        "test_control.py",
    ),
    "sign of the advantage is lost": (
        SURROGATES,
        "surrogate_of",
        given(positive=lambda x: x["positive"] | True),
        ON_SURROGATES,
    ),
    "dual clip is missing": (SURROGATES, "surrogate_of", given(dual_clip=lambda x: None), ON_SURROGATES),
    "both sides are clipped": (SURROGATES, "clip_by_sign", instead(lambda s, up, b, dual: b.clamp(s)), ON_SURROGATES),
    "clipped token keeps its gradient": (SURROGATES, "clip_by_sign", _straight_through, ON_SURROGATES),
    "ratio is detached": (
        SURROGATES,
        "surrogate_of",
        given(log_ratio=lambda x: x["log_ratio"].detach()),
        ON_SURROGATES,
    ),
    "Preserve weighs both sides alike": (
        SURROGATES,
        "Preserve.weight",
        given(positive=lambda x: x["positive"] | True),
        ON_SURROGATES,
    ),
    "temperatures of SAPO change places": (
        SURROGATES,
        "Sapo.weight",
        given(positive=lambda x: ~x["positive"]),
        ON_SURROGATES,
    ),
    "k3 is k1": (KL, "kl_penalty", given(kind=lambda x: "k1" if x["kind"] == "k3" else x["kind"]), ON_POLICY),
    "policy and reference change places": (
        KL,
        "kl_penalty",
        given(logps=lambda x: x["ref_logps"], ref_logps=lambda x: x["logps"]),
        ON_POLICY,
    ),
    "sequence mean where the token mean is asked": (
        AGGREGATION,
        "aggregate",
        given(aggregation=lambda x: {"token-mean": "seq-mean-token-mean"}.get(x["aggregation"], x["aggregation"])),
        ON_POLICY,
    ),
    "normalizer is ignored": (AGGREGATION, "aggregate", given(normalizer=lambda x: None), ON_POLICY),
    "masked tokens are counted": (AGGREGATION, "as_mask", found(torch.ones_like), ON_POLICY),
    "loss has the wrong sign": (POLICY, "policy_loss", found(lambda pair: (-pair[0], pair[1])), ON_POLICY),
    "mean ratio of a response is its product": (POLICY, "_over_responses", given(mean=lambda x: False), ON_SURROGATES),
    "standard deviation of a group is the biased one": (ADVANTAGES, "group_advantages", _biased, ON_POLICY),
    "tail begins at twice its probability": (
        METRICS,
        "measure",
        given(old_logps=lambda x: x["old_logps"] - math.log(2)),
        ON_METRICS,
    ),
    "extremes of the second batch are lost": (METRICS, "Metrics.merge", _first_maximum, ON_POLICY),
}


def plant(module: str, attribute: str, wrapper: Wrapper) -> None:
    """Replace the callable in every module of bandpo that holds it, or in its class."""
    import_module("bandpo.testing")  # and so all of the core
    import_module("bandpo.control")
    owner, _, name = attribute.rpartition(".")
    holder = import_module(module)
    if owner:
        of = getattr(holder, owner)
        setattr(of, name, wrapper(getattr(of, name)))
        return
    real = getattr(holder, name)
    faulty = wrapper(real)
    holders = [x for n, x in sys.modules.items() if n.partition(".")[0] == "bandpo"]
    for each in (*holders, *_REGISTRY.values()):
        for at in [at for at, x in vars(each).items() if x is real]:
            object.__setattr__(each, at, faulty)


def test_there_are_37_faults_in_callables_that_exist():
    assert len(FAULTS) == 37
    for module, attribute, *_ in FAULTS.values():
        at: Any = import_module(module)
        for name in attribute.split("."):
            at = getattr(at, name)
        assert callable(at)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name):
    """One test that fails is enough; a collection error (2) would not be a test that fails (1)."""
    *_, tests = FAULTS[name]
    run = subprocess.run([sys.executable, __file__, name], cwd=TESTS.parent, capture_output=True, text=True)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED, f"no test of {tests} caught: {name}\n{run.stdout[-2000:]}"


if __name__ == "__main__":
    at, attribute, wrapper, files = FAULTS[sys.argv[1]]
    plant(at, attribute, wrapper)
    sys.exit(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", str(TESTS / files)]))
