"""Say what a clip did in a run. `BandPOTrainer` does so at the end, and `bandpo doctor LOG` of any log."""

from typing import Literal

# From research/log.md: reuse_once.yaml with its share of tokens, reuse_relaxed, reuse_more, reuse_eight, SmolLM2's.
OUTSIDE = "0.2 % of tokens were outside GRPO's bounds"
ONCE = "In a small world with one epoch over each batch {}, and 15 of 15 tuned rules scored within 0.02 of no clip"
MORE = (
    "with two to eight epochs GRPO's clip scored 0.008 to 0.043 lower than no clip, and Band-KL 0.05 up to 0.011 "
    "higher; SmolLM2-135M at eight epochs scored lower with both"
)
_DECIMALS = {2: "two", 3: "three", 4: "four"}
_ROUNDING = 1e-4  # a log-ratio of which kernels and precisions make that much
# What ONCE tells of, and its percent: of all tokens beyond a limit, and of those that lose their gradient, as most
# trainers log. What is no more than it is called few; that limit is ours.
_WITH_ONE_EPOCH = {False: (OUTSIDE, 0.2), True: ("0.12 % of tokens were clipped by GRPO's rule", 0.12)}
_MORE_STEPS = "take more optimizer steps per batch: bandpo doctor CONFIG names the setting"


def clip_in_words(
    percent: float,
    seen: str,
    farthest: float | None = None,
    *,
    cut: bool = False,
    decimals: int | None = None,
) -> tuple[Literal["ok", "warning", "problem"], str, str]:
    """Say what a share of clipped tokens means for a run.

    >>> level, what, cure = clip_in_words(2.5, "in 96 steps", farthest=0.4)
    >>> what
    'The rule clipped at most 2.5 % of tokens in 96 steps, so it can matter'

    Returns how bad it is, a sentence, and what to do.

    Args:
        percent: of all tokens, those beyond the rule's limits. A token beyond a limit is clipped if its advantage
            drives it farther out, so at most this share is. With `cut` it is the share that is clipped.
        seen: where, such as "in 96 steps".
        farthest: the largest log-ratio of a token, without its sign; None: not known.
        cut: see `percent`.
        decimals: of a share in a log that rounds; None: not rounded.
    """
    half = 0.0 if decimals is None else 50 / 10**decimals  # of the last decimal, in percent
    if percent > 0 or (half and farthest is None):
        by, few = _WITH_ONE_EPOCH[cut]
        share, once = float(f"{percent if percent > half else percent + half:.2g}"), ONCE.format(by)
        about = "below " if percent <= half else "" if cut else "at most "
        rounded = (
            f" (the log has {_DECIMALS.get(decimals, decimals)} decimals)" if decimals is not None else ""
        )
        seen = f"The rule clipped {about}{share:g} % of tokens{rounded} {seen}"
        if share <= few:
            what = f"{seen}, so it can hardly matter: without a clip this run would have been nearly the same"
            cure = f"tune the learning rate first: half the best one cost 0.065. {once}: docs/choose.md"
            return "ok", what, cure
        what = f"{seen}, so it {'has an effect on few tokens, and may matter' if share < 1 else 'can matter'}"
        cure = f"train once without a clip, too, with its own learning rate. In a small world {MORE}: docs/choose.md"
        return "ok", what, cure
    if farthest is None:
        what = f"The rule clipped no token {seen}: every ratio is 1 (one optimizer step per batch), or all limits are "
        return "warning", f"{what}wider than the ratios", _MORE_STEPS
    if farthest <= _ROUNDING:
        why = "Each batch gets one optimizer step, or no reward differs from its group's"
        what = f"Clipping had no effect {seen}: every ratio is 1. {why}"
        return "problem", what, _MORE_STEPS
    what = f"The rule clipped no token {seen}: any wider rule would have given this run"
    cure = f"log-ratios go as far as {farthest:.2g}; bandpo calibrate finds the number at which a rule clips some"
    return "warning", what, f"{cure}: docs/choose.md"
