"""Do arithmetic with log-probabilities. This is the domain, the working precision, and e^x - 1 without cancellation."""

import math
import warnings
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

# Solvers stop at p = e^-300, where squares of p are still normal numbers, and continue by the limit p -> 0.
LOG_P_MIN = -300.0
# log p = 0 is the common case (a confident token rounds to it) and +1e-7 happens: the other tokens together then count
# as e^-300 too.
LOG_P_MAX = -math.exp(LOG_P_MIN)
# What a log-probability of -inf counts as where two are subtracted: -inf minus -inf is 0 then, not NaN.
LOWEST = torch.finfo(torch.float32).min
# What else may have been passed where a log-probability is above 0.
MISTAKEN = (
    "Is it the negative log-likelihood, as cross_entropy returns it? Then pass its negative. Is it a probability? Then "
    "pass its logarithm"
)
_SURE = ContextVar("the log-probabilities were looked at, or are not to be", default=False)


def is_number(x: Any) -> bool:
    """Tell numbers of Python and numpy from bool, strings, tensors."""
    return isinstance(x, Real) and x is not True and x is not False


def listed(x: Any) -> list[Any]:
    """Return the items of a tuple or a list of YAML; anything else as a list of one."""
    return list(cast(Any, x)) if isinstance(x, tuple | list) else [x]


@torch.no_grad()
def not_finite(named: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Name the tensors that hold a number that is not finite. Integers and floats of a single byte do not count."""
    floats = (
        (name, x) for name, x in named if x.numel() and x.is_floating_point() and x.dtype.itemsize > 1
    )
    # NaN where a number is. All are looked at before the device is waited for.
    fine = [(name, torch.stack(torch.aminmax(x)).isfinite().all()) for name, x in floats]
    return [name for name, each in fine if not each]


@contextmanager
def outside_torch_modes() -> Generator[None]:
    """Make plain numbers on the CPU that may be kept. The torch mode of their first user does not matter.

    A fake tensor that was kept would break every later call, and one of inference mode the gradients of some.
    """
    with torch.inference_mode(False), torch.no_grad(), _disable_current_modes(), torch.device("cpu"):
        yield


def is_traced(x: Tensor) -> bool:
    """Tell a tensor whose numbers cannot be looked at. It is in a compiled graph, fake, or on the meta device."""
    return torch.compiler.is_compiling() or x.is_meta or type(x) not in (Tensor, torch.nn.Parameter)


def holds_somewhere(condition: Tensor) -> bool:
    """Look whether a condition holds. It is False where there is nothing to look at."""
    try:
        return not is_traced(condition) and bool(condition.any())
    except RuntimeError:  # of vmap, or of a graph that is traced with real numbers
        return False


def local(x: Any) -> Any:
    """Return this process's part of a DTensor; anything else as it is."""
    return x.to_local() if hasattr(x, "to_local") else x


def whole(x: Tensor) -> Tensor:
    """Return a DTensor as the tensor of all its processes; another as it is."""
    return cast(Any, x).full_tensor() if hasattr(x, "full_tensor") else x


@contextmanager
def _sure() -> Generator[None]:
    token = _SURE.set(True)
    try:
        yield
    finally:
        _SURE.reset(token)


def without_looking() -> AbstractContextManager[None]:
    """Let `check_old_logps` look at nothing.

    A loss checks by itself, and a trainer's must not wait for the device.
    """
    return nullcontext() if torch.compiler.is_compiling() else _sure()


def check_tensor(name: str, x: Any) -> None:
    """Refuse anything but a tensor, with a TypeError."""
    if not isinstance(x, Tensor):
        cure = f"; torch.as_tensor({name}) makes one of it" if hasattr(x, "__len__") else ""
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}{cure}")


def check_old_logps(old_logps: Any) -> None:
    """Refuse anything but a tensor of log-probabilities. In a compiled graph, or `without_looking`, it does nothing."""
    if torch.compiler.is_compiling() or _SURE.get():
        return
    check_tensor("old_logps", old_logps)
    output_dtype(old_logps)
    if holds_somewhere(old_logps > 1.02e-6):  # samplers round up to 1e-6, which float16 rounds up
        highest = float(old_logps.nan_to_num(-math.inf).max())
        raise ValueError(
            f"old_logps must be log-probabilities, at most 0; the largest is {highest:.4g}. {MISTAKEN}"
        )


def _series(x: Tensor, order: int) -> Tensor:
    """Return 1 + x / (order + 1) + x^2 / ((order + 1) (order + 2)) + ..., of 14 terms."""
    total, one = torch.ones_like(x), x.new_ones(())
    for n in range(order + 13, order, -1):
        total = torch.addcmul(one, total, x, value=1 / n)
    return total


def expm1(x: Tensor) -> Tensor:
    """Return e^x - 1 without cancellation.

    Up to torch 2.13 inductor makes exp(x) - 1 of torch.expm1 on a CPU, which is 0 from x = 1e-16 down
    (pytorch/pytorch#189803).
    """
    if not torch.compiler.is_compiling() or x.device.type != "cpu":
        return torch.expm1(x)
    return torch.where(x.abs() < 0.5, x * _series(x, 1), torch.exp(x) - 1)


def expm1_minus_x(x: Tensor) -> Tensor:
    """Return e^x - 1 - x >= 0 without cancellation, for x in [-inf, 700]. It is KL's generator of log u."""
    return torch.where(x.abs() < 0.5, 0.5 * x * x * _series(x, 2), expm1(x) - x)


def log1mexp(x: Tensor) -> Tensor:
    """Return log(1 - e^x) for x <= 0, accurate at both ends (Maechler 2012). It is -inf at 0."""
    return torch.where(x > -math.log(2), torch.log(-expm1(x)), torch.log1p(-torch.exp(x)))


def output_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of results: that of `x`, at least float32. Raises ValueError for integers."""
    if not x.is_floating_point():
        raise ValueError(f"log-probabilities must be floating point, got {x.dtype}")
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def warn_of_half(**named: Tensor) -> None:
    """Warn once in a process of log-probabilities in half precision. A compiled graph cannot."""
    if not torch.compiler.is_compiling():
        half = {
            name: str(x.dtype).removeprefix("torch.") for name, x in named.items() if x.dtype.itemsize < 4
        }
        if half:
            _warn(f"{' and '.join(half)} {'is' if len(half) == 1 else 'are'} {next(iter(half.values()))}")


@cache
def _warn(what: str) -> None:
    warnings.warn(
        f"{what}: half precision rounds them (bfloat16 by up to 0.03), so ratios are wrong from the first step on; "
        "compute them in float32, as bandpo.token_logps does",
        stacklevel=4,
    )


def working_device(x: Tensor) -> torch.device:
    """Return where float64 is computed: where `x` is. Apple's GPUs have no float64, so there it is the CPU."""
    return torch.device("cpu") if x.device.type == "mps" else x.device


def working_copy(x: Tensor) -> Tensor:
    """Return `x` in float64. In it textbook forms may cancel without a trace in float32."""
    return x.to(working_device(x), torch.float64)


def clamp_log_p(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p in float64 within [LOG_P_MIN, LOG_P_MAX], and how far it is below. That is at most 0, and finite."""
    log_p = working_copy(log_p)
    return log_p.clamp(LOG_P_MIN, LOG_P_MAX), log_p.clamp(-1e300, LOG_P_MIN) - LOG_P_MIN
