"""A rule in words: what becomes of the gradient of a token, inside its interval and outside."""

from __future__ import annotations

from ..losses.objective import Objective
from ..losses.surrogates import Sapo, by_sign, has_bounds

# What `apply` does with tokens outside, on the side to which A drives them, and on the other.
_OUTSIDE = {
    "clip": ("none (value {bound} A)", "as inside"),
    "mask": ("none (value 0)", "as inside"),
    "mask_two_sided": ("none (value 0)", "none (value 0)"),
    "weight": ("{bound} A", "{bound} A"),
    "soft": ("({bound} - 1) r / (r - 1) A", "as inside"),
    "preserve": ("{kept:g} {bound} A", "as inside"),
    "decay": ("({quotient})^{kept:g} r A", "as inside"),
}


def gradient_of(found: Objective) -> list[str]:
    """Describe the gradient of a token."""
    pair = by_sign(found.apply, found.dual_clip)
    if found.ratio == "mean-of-clipped":
        lines = [
            "  gradient of the surrogate in log pi: G A / T inside, G the geometric mean of a response's T clipped "
            "ratios; none outside, where A drives r further out"
        ]
    else:
        inside = [] if all(each == "quadratic" or not has_bounds(each) for each in pair) else ["r A inside"]
        of_all = "for each of the tokens" + (" 1 / T of it" if found.ratio == "sequence-mean" else "")
        parts = inside if found.ratio == "token" else [*inside, of_all]
        lines = [f"  gradient of the surrogate in log pi: {', '.join(parts)}".rstrip()]
        signs = zip((">=", "<"), pair, strict=True)
        lines += [f"    where A {sign} 0: {_by_sign(apply, up=sign == '>=')}" for sign, apply in signs]
    if found.dual_clip is not None:
        lines.append(f"    where A < 0 and r > {found.dual_clip:g} (dual clip): none (value {found.dual_clip:g} A)")
    if found.positive_weight != 1:
        lines.append(f"    where A > 0: all of it times {found.positive_weight:g} (positive_weight)")
    return lines


def _by_sign(apply: object, *, up: bool) -> str:
    if isinstance(apply, Sapo):
        return f"4 s (1 - s) r A at every r, s = sigmoid({apply.tau_positive if up else apply.tau_negative:g} (r - 1))"
    if apply == "quadratic":
        side, other = ("r_high", "r_low") if up else ("r_low", "r_high")
        return (
            f"r A (1 - (r - 1) / ({side} - 1)) on the side of {side}, beyond it too, and "
            f"r A (1 + (r - 1) / ({other} - 1)) on the other"
        )
    far, near = _OUTSIDE[apply if isinstance(apply, str) else getattr(apply, "kind", "")]
    kept = getattr(apply, "high" if up else "low", 0)
    above = (far if up else near).format(bound="r_high", quotient="r_high / r", kept=kept)
    below = (near if up else far).format(bound="r_low", quotient="r / r_low", kept=kept)
    return f"{above} above the interval, {below} below it"
