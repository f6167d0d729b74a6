"""The explorer: small, and in a browser its numbers and lines are bandpo's."""

import html
import json
import re
import subprocess

import pytest
import torch
import yaml
from disk import write
from report_runs import CHROMIUM, with_script
from scripts import ROOT, load

import bandpo
from bandpo import Context
from bandpo.losses.surrogates import surrogate

PAGE = load("docs/explorer.py").page()
ASK = ROOT / "tests" / "explorer.js"
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
    asked = f"answer(ask({json.dumps(P)}, {json.dumps(R)}, {json.dumps(SETTINGS)}));"
    page = PAGE.replace("<main>", '<pre id="told"></pre><main>')
    copy = write(folder / "copy.html", with_script(page, f"{ASK.read_text(encoding='utf-8')}\n{asked}"))
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
def test_in_a_browser_its_numbers_and_lines_are_bandpos(seen):
    answer, complaints = seen
    # It may fetch nothing, and says nothing else.
    assert [line for line in complaints if "Content Security Policy" not in line] == []
    assert answer["pages"] == SETTINGS, "the address holds what is set"
    assert (len(complaints) >= 2, len(answer["rules"])) == (True, 2 * 20)
    log_p = torch.tensor(P, dtype=torch.float64).log()
    places, names = log_p[:, None].expand(-1, len(R)), vars(bandpo.trust_regions) | vars(bandpo.losses)
    for rule in answer["rules"]:
        objective = bandpo.objective(rule["node"])
        forms = yaml.safe_load(rule["yaml"]), rule["word"].strip("'"), eval(rule["python"], names | {"bandpo": bandpo})
        assert [bandpo.objective(form) for form in forms] == [objective] * 3
        logps = torch.log(torch.tensor([[0.3, 0.02]])).requires_grad_()
        space = {"logps": logps, "old_logps": logps.detach() - 0.1, "advantages": torch.ones(1)}
        space |= {"mask": torch.ones(1, 2)}
        exec(rule["loop"], space)
        assert space["loss"].isfinite()
        bounds = bounds_of(objective, log_p)
        pairs = [(rule["bounds"], torch.stack([bounds.log_low.exp(), bounds.log_high.exp()], -1))]
        for index, sign in enumerate((1.0, -1.0)):
            log_r = torch.tensor(R, dtype=torch.float64).log().expand_as(places).clone().requires_grad_()
            bounds = bounds_of(objective, places, sign)
            value = surrogate(log_r, torch.full_like(places, sign), bounds, surrogate=objective.surrogate)
            (slope,) = torch.autograd.grad(value.sum(), log_r)
            pairs += [(rule["value"][index], value.detach()), (rule["slope"][index], slope)]
        for shown, wanted in pairs:
            torch.testing.assert_close(numbers(shown), wanted, rtol=1e-9, atol=1e-12)
