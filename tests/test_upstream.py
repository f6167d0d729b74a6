"""The formulas in research/pages/upstream, which other projects would get, against the library's."""

import re

import torch
from scripts import ROOT

import bandpo

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
