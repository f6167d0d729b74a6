"""Check a setup. `installed` looks at packages, a module each at the settings of a trainer."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bandpo.errors import counted

Level = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """Hold one line of the report: the case (`what`) and its `cure`."""

    level: Level
    what: str
    cure: str = ""


def split(level: Level, message: str, cure: str = "") -> Finding:
    """Make a finding of an error's message. Its own cure stands behind the first semicolon."""
    what, _, own = message.partition("; ")
    return Finding(level, what, own or cure)


def spread(epochs: int, steps: float | None, sizes: str, more: str, anchor: object = "old") -> Finding:
    """Say how many epochs and optimizer steps each batch gets. None is one step: ratios to the trainer are 1."""
    if steps is None and anchor != "sampler":
        what = f"clipping has no effect: every ratio is 1, with one optimizer step per batch ({sizes})"
        return Finding("problem", what, more)
    number = "1 optimizer step" if steps is None else f"{steps:.3g} optimizer steps"
    what = f"{over(epochs)}, in {number} ({sizes}){'; ratios are to the sampler' * (anchor == 'sampler')}"
    cure = "bandpo doctor LOG says what share of tokens the rule clips; docs/choose.md says when that matters"
    return Finding("ok", what, cure)


def over(epochs: int) -> str:
    """Say how often a batch is trained on."""
    return f"{counted(epochs, 'epoch')} over each batch"


def not_judged(why: str, epochs: object = None, cure: str = "") -> Finding:
    """Say that the optimizer steps per batch depend on what is not there. The epochs may be known."""
    often = f"{over(epochs)}; " if isinstance(epochs, int) and epochs > 0 else ""
    return Finding("note", f"{often}the optimizer steps per batch are not judged: {why}", cure)


def absent(name: str, own: object, host: str) -> str:
    """Say that a setting is not given. The trainer's own value is named as that."""
    return f"{name} is not given here" + (f"; {host}'s default would be {own}" if own is not None else "")


# The geometric mean over an answer moves some hundred times less than the ratio of a token.
_GSPO = "for the mean ratio of an answer, where GSPO's paper has 0.0003 and 0.0004"


def of_sequences(limits: Iterable[object]) -> tuple[Level, str]:
    """Say what limits of GSPO's ratio are, and whether they are those of a token's."""
    least = min((x for x in limits if isinstance(x, int | float)), default=0)
    return ("warning", f"{_GSPO}; {least:g} clips nothing") if least >= 0.01 else ("note", _GSPO)


def in_half(what: str, cure: str) -> Finding:
    """Warn of log-probabilities that are not float32 with a model in half precision."""
    return Finding(
        "warning",
        f"{what}: log-probabilities have the precision of the model. In bfloat16 ratios are off by several percent",
        cure,
    )
