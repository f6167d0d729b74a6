"""The explorer: small, and in a browser its numbers and pictures are bandpo's."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess

import pytest
import torch
import yaml
from scripts import ROOT, load

import bandpo
from bandpo import Context
from bandpo.losses.surrogates import surrogate

PAGE = load("docs/explorer.py").page()
ASK = ROOT / "tests" / "explorer.js"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
P = [1e-4, 0.003, 0.08, 0.3, 0.5, 0.8333, 0.99, 0.9999]
R = [1e-3, 0.3, 0.75, 0.97, 1.0, 1.05, 1.3, 3.0, 25.0]
SETTINGS = [
    "#a=band-kl:0.05&b=grpo:0.2&p=0.003&r=1.5&push=up",
    "#a=band-relaxed:0.03:0.2:0.4&b=ripo:0.02&p=0.9&r=1.05&push=up",
    "#a=trgppo:0.1:0.2&b=ce-gppo:0.2:0.5:1&p=0.5&r=0.7&push=down",
]


def test_the_page_is_small_and_asks_for_nothing_from_elsewhere():
    assert len(PAGE.encode()) <= 150_000
    assert not re.search(r"\bsrc=|\bhref=|\burl\((?!#)|@import|\bfetch\(|XMLHttp|WebSocket|import\(", PAGE)
    assert set(re.findall(r"https?://[^\"' ]+", PAGE)) == {"http://www.w3.org/2000/svg"}, "a name, not an address"
    assert "default-src 'none'" in PAGE, "and the browser sees to it"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What the page answers in a browser, and what the browser complained of."""
    folder = tmp_path_factory.mktemp("browser")
    script = (
        f"{ASK.read_text(encoding='utf-8')}\nanswer(ask({json.dumps(P)}, {json.dumps(R)}, {json.dumps(SETTINGS)}));"
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = PAGE.replace("script-src ", f"script-src 'sha256-{digest}' ").replace(
        "<main>", '<pre id="told"></pre><main>'
    )
    copy = folder / "copy.html"
    copy.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
               "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
               f"--user-data-dir={folder / 'profile'}", "--window-size=1200,800"]  # fmt: skip
    command = [str(CHROMIUM), *options, "--dump-dom", copy.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    answer = re.search(r'<pre id="told">(.+?)</pre>', done.stdout, re.DOTALL)
    assert answer, done.stderr
    return json.loads(html.unescape(answer[1])), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def numbers(nested) -> torch.Tensor:
    return torch.tensor([[float(x) for x in row] for row in nested], dtype=torch.float64)


def bounds_of(objective, log_p, sign: float = 1.0):
    return objective.trust_region.bounds(log_p, Context(advantages=torch.full_like(log_p, sign)))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome found")
@pytest.mark.slow
def test_in_a_browser_its_numbers_lines_and_curves_are_bandpos(seen):
    answer, complaints = seen
    # It may fetch nothing, and says nothing else.
    assert len(complaints) >= 2
    assert all("Content Security Policy" in line for line in complaints)

    log_p = torch.tensor(P, dtype=torch.float64).log()
    assert len(answer["rules"]) == 2 * 20
    for rule in answer["rules"]:
        objective = bandpo.objective(rule["node"])
        assert bandpo.objective(yaml.safe_load(rule["yaml"])) == objective
        assert bandpo.objective(rule["word"].strip("'")) == objective
        names = vars(bandpo.trust_regions) | vars(bandpo.losses) | {"bandpo": bandpo}
        assert bandpo.objective(eval(rule["python"], names)) == objective
        logps = torch.log(torch.tensor([[0.3, 0.02]])).requires_grad_()
        space = {"logps": logps, "old_logps": logps.detach() - 0.1}
        space |= {"advantages": torch.ones(1), "mask": torch.ones(1, 2)}
        exec(rule["loop"], space)
        assert space["loss"].isfinite()
        bounds = bounds_of(objective, log_p)
        expected = torch.stack([bounds.log_low.exp(), bounds.log_high.exp()], -1)
        torch.testing.assert_close(numbers(rule["bounds"]), expected, rtol=1e-9, atol=1e-12)
        for index, sign in enumerate((1.0, -1.0)):
            places = log_p[:, None].expand(-1, len(R))
            log_r = torch.tensor(R, dtype=torch.float64).log().expand_as(places).clone().requires_grad_()
            advantages = torch.full_like(places, sign)
            value = surrogate(log_r, advantages, bounds_of(objective, places, sign), surrogate=objective.surrogate)
            (slope,) = torch.autograd.grad(value.sum(), log_r)
            torch.testing.assert_close(numbers(rule["value"][index]), value.detach(), rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(numbers(rule["slope"][index]), slope, rtol=1e-9, atol=1e-12)

    for setting, page in zip(SETTINGS, answer["pages"], strict=True):
        assert page["back"] == setting, "the address holds what is set"
        x, y = (scale_of(page["ticks"][name]) for name in "xy")
        assert [name for name, _ in page["curves"]] == [
            f"curve {side} {end}" for side in "ab" for end in ("low", "high")
        ]
        for name, points in page["curves"]:
            _, side, end = name.split()
            logits = torch.tensor([x(left) for left, _ in points], dtype=torch.float64)
            drawn = torch.tensor([y(top) for _, top in points], dtype=torch.float64)
            bounds = bounds_of(bandpo.objective(page[side]), torch.nn.functional.logsigmoid(logits))
            off = ((bounds.log_low if end == "low" else bounds.log_high) - drawn).abs()
            inner = (drawn.abs() < 3) & (logits.abs() < 9)
            assert inner.sum() > 100
            assert off[inner].median() < 0.01, name  # where a curve is steep, a pixel is much


def scale_of(ticks):
    """Pixels back to values, from two ticks; all others must be where these say."""
    (first, start), (last, end) = ticks[0], ticks[-1]
    slope = (last - first) / (end - start)
    for value, at in ticks:
        assert first + slope * (at - start) == pytest.approx(value, abs=2e-2 * abs(slope))
    return lambda pixel: first + slope * (pixel - start)
