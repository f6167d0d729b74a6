"""The explorer: its numbers, those in its pictures too, are bandpo's."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("numpy")
import numpy as np
import torch
import yaml
from scripts import load

import bandpo
from bandpo import Context
from bandpo.integrations import trainers_that_run
from bandpo.losses.nodes import methods
from bandpo.losses.surrogates import surrogate

ROOT = Path(__file__).parent.parent
PAGE = load("docs/explorer.py").page()
EXAMPLE = ROOT / "docs" / "explorer" / "example.jsonl"
ASK = ROOT / "tests" / "explorer.js"
TELL = """
parent.document.getElementById("told").textContent = JSON.stringify(QUESTION, (key, value) =>
  typeof value === "number" && !Number.isFinite(value) ? String(value) : value);
"""
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome found")


def test_the_page_is_small_and_asks_for_nothing_from_elsewhere():
    page = PAGE
    assert len(page.encode()) <= 150_000
    assert not re.search(r"\bsrc=|\bhref=|\burl\((?!#)|@import|\bfetch\(|XMLHttp|WebSocket|import\(", page)
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}, "a name, not an address"
    assert "default-src 'none'" in page, "and the browser sees to it"


# ------------------------------------------------------------------------------------------------------- in a browser
def ask(function: str, *arguments) -> str:
    """What a function of tests/explorer.js returns."""
    return f"{function}({', '.join(map(json.dumps, arguments))})"


def browse(question: str, folder: Path, *options: str, address: str = "", phone: bool = False):
    """What the page answers, and what the browser complained of."""
    script = ASK.read_text(encoding="utf-8") + TELL.replace("QUESTION", question)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = PAGE.replace("script-src ", f"script-src 'sha256-{digest}' ")
    page = page.replace("</body>", f"<script>{script}</script></body>")
    told = '<pre id="told"></pre>'
    if phone:  # a window of chromium is at least 500 px wide
        frame = f'<iframe width="390" height="800" style="border:0" srcdoc="{html.escape(page)}"></iframe>'
        page = f'<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark">{told}{frame}'
    else:
        page = page.replace("<main>", f"{told}<main>")
    copy = folder / "copy.html"
    copy.write_text(page, encoding="utf-8")
    general = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
               "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
               f"--user-data-dir={folder / 'profile'}", "--window-size=1200,800"]  # fmt: skip
    command = [str(CHROMIUM), *general, *options, "--dump-dom", copy.as_uri() + address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert found, done.stderr
    assert found[1], complaints
    return json.loads(html.unescape(found[1])), complaints


P = [1e-4, 0.003, 0.08, 0.3, 0.5, 0.8333, 0.99, 0.9999]
LOG_P = [-1000.0, -30.0, *map(math.log, P), -1e-9, 0.0]
LOG_R = [-30.0, -3.0, -0.8, -0.25, -0.2, -1e-3, 0.0, 1e-9, 1e-3, 0.17, 0.2, 0.5, 1.5, 6.0, 30.0]
R = [1e-3, 0.3, 0.75, 0.97, 1.0, 1.05, 1.3, 3.0, 25.0]


@pytest.fixture(scope="module")
def operator(tmp_path_factory):
    rules, complaints = browse(ask("askOperator", P, R, LOG_P, LOG_R), tmp_path_factory.mktemp("operator"))
    assert not complaints
    assert len(rules) == 2 * 20
    return [(each, bandpo.objective(each["node"])) for each in rules]


def numbers(nested) -> torch.Tensor:
    return torch.tensor(np.array(nested, dtype=np.float64))


def close(got, expected, **tolerance):
    torch.testing.assert_close(numbers(got), expected, **({"rtol": 1e-9, "atol": 1e-12} | tolerance))


def bounds_of(objective, log_p, sign: float = 1.0):
    return objective.trust_region.bounds(log_p, Context(advantages=torch.full_like(log_p, sign)))


@in_a_browser
@pytest.mark.slow
def test_the_operator_is_bandpos(operator):
    log_p = torch.tensor(P, dtype=torch.float64).log()
    for each, objective in operator:
        bounds = bounds_of(objective, log_p)
        close(each["bounds"], torch.stack([bounds.log_low.exp(), bounds.log_high.exp()], -1))


@in_a_browser
@pytest.mark.slow
def test_a_token_is_inside_where_it_is_by_bandpo(operator):
    log_p, log_r = torch.meshgrid(numbers(LOG_P), numbers(LOG_R), indexing="ij")
    # One probability cannot be told from another below e^-300, where bandpo keeps r p instead of r.
    kept = log_p > -300
    for each, objective in operator:
        seen = kept & (log_r + log_p != 0)  # at a new probability of 1 both round, not alike
        expected = objective.trust_region.bounds(log_p, Context(advantages=torch.ones_like(log_p))).contains(log_r)
        assert torch.equal(torch.tensor(each["inside"])[seen], expected[seen]), each["word"]


@in_a_browser
@pytest.mark.slow
def test_surrogate_and_push_are_bandpos(operator):
    for each, objective in operator:
        for index, sign in enumerate((1.0, -1.0)):
            log_p, r = torch.meshgrid(numbers(P).log(), numbers(R), indexing="ij")
            log_r = r.log().requires_grad_()
            bounds = bounds_of(objective, log_p, sign)
            value = surrogate(log_r, torch.full_like(log_p, sign), bounds, surrogate=objective.surrogate)
            (slope,) = torch.autograd.grad(value.sum(), log_r)
            close(each["value"][index], value.detach())
            close(each["slope"][index], slope)


@in_a_browser
@pytest.mark.slow
def test_names_and_lines_are_the_rule_that_is_shown(operator):
    known = {method.name: method for method in methods()}
    for each, objective in operator:
        if each["name"] in known and each is next(one for one, _ in operator if one["name"] == each["name"]):
            assert objective == known[each["name"]].without_average, "the paper's values come first"
        assert (
            bandpo.objective(
                eval(each["python"], vars(bandpo.trust_regions) | vars(bandpo.losses) | {"bandpo": bandpo})
            )
            == objective
        )
        assert bandpo.objective(yaml.safe_load(each["yaml"])) == objective
        assert bandpo.objective(each["word"].strip("'")) == objective
        lines = dict(each["lines"])
        assert f"trust_region={each['python']})" in lines["TRL"]
        assert f"trust_region={each['yaml']}'" in lines["verl"]
        assert f"bandpo explain {each['word']}\n" in lines["Command line"]
        imported = ", ".join(re.findall(r"from bandpo\S* import (.*)\n", lines["Your own loop"])).split(", ")
        assert set(imported) == set(re.findall(r"([A-Z]\w*)\(", each["python"]))
        refused = trainers_that_run(objective)
        assert (refused["TRL"], refused["verl"]) == ("", ""), each["word"]
    assert (
        not {each["name"] for each, _ in operator} - known.keys() - {"band-hellinger", "band-reverse-kl", "band-capped"}
    )


@in_a_browser
@pytest.mark.slow
def test_the_lines_of_ones_own_loop_run(operator):
    logps = torch.log(torch.tensor([[0.3, 0.02]])).requires_grad_()
    given = {"logps": logps, "old_logps": logps.detach() - 0.1, "advantages": torch.ones(1), "mask": torch.ones(1, 2)}
    for each, _ in operator:
        exec(dict(each["lines"])["Your own loop"], space := dict(given))
        assert space["loss"].isfinite()


@in_a_browser
@pytest.mark.slow
def test_counts_of_a_run_are_those_of_calibrate(operator):
    pytest.importorskip("scipy")
    from bandpo_runs.reports.calibration import calibrate
    from bandpo_runs.reports.tokens import read_tokens

    tokens = read_tokens([EXAMPLE])
    old, log_r, advantages = map(numbers, (tokens.old, tokens.log_ratio, tokens.advantages))
    for each, objective in operator:
        outside = ~objective.trust_region.bounds(old, Context(advantages=advantages)).contains(log_r)
        counts, share = each["counts"], outside.double().mean().item()
        assert counts["outside"] == pytest.approx(share), each["word"]
        assert counts["cut"] == pytest.approx((outside & (advantages * log_r > 0)).double().mean().item())
        if each["word"] in ("clip:0.2:0.2", "band:kl:0.05"):
            for cut in (False, True):
                match = calibrate(tokens, match=objective.trust_region, cut=cut, rules=[bandpo.Band("kl")]).reference
                assert counts["cut" if cut else "outside"] == pytest.approx(match.rate)
                if not cut:
                    assert [counts[name] for name in ("above", "below", "rare")] == pytest.approx(
                        [match.high, match.low, match.rare]
                    )


ROW = {"old_logps": [-1.0], "logps": [-1.0]}
FILES = {
    "a row for each response": [
        {"old_logps": [-1, -2.5], "logps": [-1.25, -2], "advantage": 0.5},
        {"old_logps": [-3], "logps": [-3], "advantage": -1},
    ],
    "a row for each token": [{"old_logps": -1, "logps": -2}],
    "a blank line": [ROW, "", ROW],
    "names of TRL": [{"old_per_token_logps": [-1, 0, -2], "per_token_logps": [-1, 0, -3], "advantages": [1, 2, 3]}],
    "a mask": [{"old_logps": [-1, 0, -2], "logps": [-1, 0.5, -3], "completion_mask": [1, 0, 1]}],
    "rounding above 0": [{"old_log_probs": [0.0005], "log_probs": [0.0001]}],
    "nothing": [],
    "no column": [{"old_logps": [-1], "text": "a"}],
    "what verl writes": [{"input": "a", "output": "b", "score": 1}],
    "not JSON": [ROW, '{"old_logps": [-1', ROW],
    "half a line at the end": [ROW, '{"old_logps": [-1'],
    "half a line": ['{"old_logps": [-1'],
    "probabilities": [ROW, {"old_logps": [0.5], "logps": [0.4]}],
    "other lengths": [ROW | {"logps": [-1, -2]}],
    "other lengths of advantages": [ROW | {"advantages": [1, 2]}],
    "no number": [ROW | {"logps": ["a"]}],
    "null": [ROW | {"logps": [None]}],
    "a column is missing later": [ROW, {"old_logps": [-1]}],
    "an empty mask": [ROW | {"mask": [0]}],
    "a list": [[1]],
}


@in_a_browser
@pytest.mark.slow
def test_files_are_read_as_calibrate_reads_them(tmp_path):
    from bandpo.errors import UserError
    from bandpo_runs.reports.tokens import read_tokens

    texts = {}
    for name, rows in FILES.items():
        texts[name] = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    read, _ = browse(ask("askFiles", texts), tmp_path)
    for name, tokens, error in read:
        (path := tmp_path / "tokens.jsonl").write_text(texts[name])
        if tokens is None:
            assert error.startswith(name), "the message names the file"
            with pytest.raises(UserError) as refusal:
                read_tokens([path])
            assert re.findall(r"row \d+", error) == re.findall(r"row \d+", str(refusal.value))
            continue
        expected = read_tokens([path])
        assert tokens["old"] == pytest.approx(expected.old)
        assert tokens["logRatio"] == pytest.approx(expected.log_ratio)
        assert (tokens["advantage"] is None) == (expected.advantages is None)
        assert tokens["advantage"] is None or tokens["advantage"] == pytest.approx(expected.advantages)


# ----------------------------------------------------------------------------------------------------- what is drawn
SETTINGS = [
    "#a=band-kl:0.05&b=grpo:0.2&p=0.003&r=1.5&push=up",
    "#a=band-tv:0.1&b=dcpo:0.16:0.2:10&p=0.3&r=0.4&push=down",
    "#a=band-relaxed:0.03:0.2:0.4&b=ripo:0.02&p=0.9&r=1.05&push=up",
    "#a=cfpo:0.3&b=band-chi2:0.2&p=0.08&r=2&push=up",
    "#a=trgppo:0.1:0.2&b=ce-gppo:0.2:0.5:1&p=0.5&r=0.7&push=down",
]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    pages, complaints = browse(ask("askDrawn", SETTINGS), tmp_path_factory.mktemp("drawn"))
    assert not complaints
    return pages


def axis(ticks, scale):
    """Pixels back to what `scale` makes of values, from two of the ticks; all others must be where these say."""
    (a, at_a), (b, at_b) = ticks[0], ticks[-1]
    slope = (scale(b) - scale(a)) / (at_b - at_a)
    for value, at in ticks:
        assert scale(a) + slope * (at - at_a) == pytest.approx(scale(value), abs=2e-2 * abs(slope))
    return lambda pixel: scale(a) + slope * (pixel - at_a), abs(slope)


def logit(p):
    return math.log(p / (1 - p))


@in_a_browser
@pytest.mark.slow
@pytest.mark.parametrize("plot", ["map", "cloud"])
def test_the_limits_in_the_map_are_bandpos(drawn, plot):
    for page in drawn:
        shown = page["plots"][plot]
        (x, wide), (y, pixel) = axis(shown["x"], logit), axis(shown["y"], math.log)
        assert [kind for kind, _ in shown["curves"]] == ["curve a low", "curve a high", "curve b low", "curve b high"]
        for kind, points in shown["curves"]:
            logits, found = numbers([x(left) for left, _ in points]), numbers([y(top) for _, top in points])
            # A curve may be steep: where it is a hundredth of a pixel to the left and to the right.
            beside = torch.stack([logits - 0.01 * wide, logits + 0.01 * wide])
            bounds = bounds_of(bandpo.objective(page[kind.split()[1]]), torch.nn.functional.logsigmoid(beside))
            expected = bounds.log_low if "low" in kind else bounds.log_high
            near = (expected.abs() < 3.4).all(0) & (logits.abs() < 9)  # the others are out of the picture
            assert near.sum() > 150
            low, high = expected.aminmax(dim=0)
            assert ((low - 0.02 * pixel <= found) & (found <= high + 0.02 * pixel))[near].all()


@in_a_browser
@pytest.mark.slow
def test_the_changes_in_the_picture_are_bandpos(drawn):
    for page in drawn:
        shown = page["plots"]["change"]
        (x, _), (y, pixel) = axis(shown["x"], float), axis(shown["y"], float)
        for kind, points in shown["curves"]:
            if "limit" in kind:
                continue
            p = numbers([x(left) for left, _ in points]).clamp(1e-6, 1 - 1e-6)
            log_p = p.log()
            variation = bounds_of(bandpo.objective(page[kind.split()[1]]), log_p).variation(log_p)
            expected = variation.low if "low" in kind else variation.high
            inner = (p > 0.01) & (p < 0.99)  # at the ends a hundredth of a pixel is much
            torch.testing.assert_close(
                numbers([y(top) for _, top in points])[inner], expected[inner], rtol=0, atol=0.3 * pixel
            )


@in_a_browser
@pytest.mark.slow
@pytest.mark.parametrize("plot", ["value", "slope"])
def test_surrogate_and_push_in_the_pictures_are_bandpos(drawn, plot):
    for page in drawn:
        shown, sign = page["plots"][plot], 1.0 if page["good"] else -1.0
        (x, wide), (y, pixel) = axis(shown["x"], float), axis(shown["y"], float)
        for side, (kind, points) in zip("ab", shown["curves"], strict=True):
            assert kind == f"curve {side}"
            objective = bandpo.objective(page[side])
            r = numbers([x(left) for left, _ in points]).clamp(min=1e-9)
            log_r = r.log().requires_grad_()
            bounds = bounds_of(objective, torch.full_like(r, math.log(page["p"])), sign)
            value = surrogate(log_r, torch.full_like(r, sign), bounds, surrogate=objective.surrogate)
            expected = value.detach() if plot == "value" else torch.autograd.grad(value.sum(), log_r)[0]
            jump = (r - bounds.log_low.exp()).abs().minimum((r - bounds.log_high.exp()).abs()) < 0.1 * wide
            found = numbers([y(top) for _, top in points])
            shown_part = ~jump & (expected > -11)
            assert shown_part.sum() > 100
            steep = expected.diff(prepend=expected[:1]).abs().max()
            torch.testing.assert_close(
                found[shown_part], expected[shown_part], rtol=1e-3, atol=float(0.05 * pixel + 0.01 * steep)
            )


@in_a_browser
@pytest.mark.slow
def test_the_numbers_in_the_table_are_bandpos(drawn):
    for page in drawn:
        sign, p = (1.0 if page["good"] else -1.0), page["p"]
        log_p = torch.tensor([p], dtype=torch.float64).log()
        for index, side in enumerate("ab"):
            objective = bandpo.objective(page[side])
            bounds = bounds_of(objective, log_p, sign)
            low, high = bounds.log_low.exp().item(), bounds.log_high.exp().item()
            change = bounds.variation(log_p)
            log_r = torch.tensor([page["r"]], dtype=torch.float64).log().requires_grad_()
            push = torch.autograd.grad(
                surrogate(log_r, torch.tensor([sign]), bounds, surrogate=objective.surrogate).sum(), log_r
            )[0]
            expected = [low * p, min(high * p, 1), low, high, change.low.item(), change.high.item(), push.item()]
            values, texts = zip(*(row[index] for row in page["numbers"]), strict=True)
            assert values == pytest.approx(expected, rel=1e-9, abs=1e-12)
            shown = [float(text.replace("\u2212", "-").replace("\u221e", "inf")) for text in texts]
            assert shown == pytest.approx(expected, rel=0.051, abs=1e-6)


@in_a_browser
@pytest.mark.slow
def test_the_address_holds_what_is_set_and_says_what_it_cannot_mean(drawn, tmp_path):
    assert [page["back"] for page in drawn] == SETTINGS
    wrong = ["#a=bandkl", "#b=grpo:7", "#b=grpo:0.1:0.1", "#b=grpo:", "#p=2", "#p=", "#r=abc", "#push=left", "#what=1"]
    wrong.append("#p=0.08&r=20")
    told, _ = browse(ask("askAddresses", wrong), tmp_path, address="#p=0.08&a=ripo:0.01")
    assert told["first"] == {"p": 0.08, "a": "ripo", "notice": True}, "the address that the page is opened with"
    for address, hidden, text in told["wrong"]:
        assert not hidden
        assert address in text
    assert told["rest"] == [0.08, "grpo", [0.2], 12.5], (
        "what cannot be meant changes nothing, a probability above 1 is 1"
    )
    assert all(was == now for was, now in told["all"])


@in_a_browser
@pytest.mark.slow
def test_mouse_finger_and_keys_move_the_token_and_the_rule(tmp_path):
    out, complaints = browse(ask("askMoves"), tmp_path)
    assert not complaints
    assert out["press"] == pytest.approx([0.1, 2], rel=0.01)
    assert out["drag"] == out["free"] == pytest.approx([0.01, 5], rel=0.01), "a mouse that is let go moves nothing"
    assert out["scroll"] == out["drag"], "a finger beside the handle scrolls"
    assert out["finger"] == pytest.approx([0.001, 2], rel=0.01)
    assert out["fingerDrag"] == pytest.approx([0.1, 0.5], rel=0.01)
    assert out["tap"] == pytest.approx([0.5, 2], rel=0.01), "no further than to a probability of 1"
    at, tick, width = out["handle"]
    assert at == pytest.approx(tick, abs=1)
    assert width >= 44, "px, what a finger needs"
    assert out["slider"] == [2, "2"]
    assert out["box"] == [0.25, True]
    value, message, hidden = out["refused"]
    assert (value, hidden) == (0.25, False)
    assert message == "delta must be a number from 0.001 to 2, got -1"
    assert out["select"] == ["dcpo", 3]
    assert out["down"] == [False, pytest.approx(0.5, rel=0.01)]
    assert out["card"] == [0.003, "true"]
    assert out["verl"] == 3


@in_a_browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_quiet_legible_and_fits_a_phone(tmp_path, dark):
    seen, complaints = browse(
        ask("askSight"), tmp_path, f"--blink-settings=preferredColorScheme={0 if dark else 1}", phone=True
    )
    assert not complaints
    assert (seen["width"], seen["dark"]) == (390, dark)
    assert seen["needed"] <= 390, "the page scrolls sideways"
    assert seen["plot"] >= 335, "a plot fills the phone"
    assert seen["text"] >= 12, "px, the height of a line of the smallest text in a plot"
    assert seen["contrast"] >= 4.5, "WCAG AA for text"
    assert seen["line"] >= 3, "WCAG AA for graphics"
    assert seen["apart"] > 0, "labels of an axis touch"
    assert seen["controls"] >= 36, "px, for fingers"
    assert seen["unnamed"] == 0


@in_a_browser
@pytest.mark.slow
def test_the_browser_lets_the_page_fetch_nothing(tmp_path):
    _, complaints = browse(ask("askElsewhere"), tmp_path)
    assert sum("Content Security Policy" in line for line in complaints) >= 2
