"""`bandpo demo`: independent runs, a verdict that equals its curves, and a page that stands alone."""

import math
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from commands import missing
from scipy.stats import t, ttest_1samp

from bandpo_runs import demo

ROOT = Path(__file__).parent.parent
# What the base installation lacks.
EXTRAS = ("scipy", "rich", "matplotlib", "jinja2", "transformers", "trl", "numba")
BARE = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS}))  # importing them fails as if they were not installed
from bandpo_runs.cli import main
sys.exit(main(sys.argv[1:]))
"""


def measured(seeds=range(8), uses=8, rounds=8, task=demo.RARE):
    return demo.Result.of(demo.RULES, uses, list(demo.train(demo.RULES, seeds, uses, rounds, task)))


@pytest.fixture(scope="module")
def result():
    return measured(rounds=16)


@pytest.fixture(scope="module")
def noisy():
    return measured(rounds=12, task=demo.NOISY)


def test_a_seed_or_a_rule_alone_has_the_curve_that_it_has_among_others():
    many, rules = measured(seeds=[3, 5, 11], rounds=4).curves, {"Band-KL": demo.RULES["Band-KL"]}
    torch.testing.assert_close(measured(seeds=[5], rounds=4).curves, many[:, 1:2], rtol=1e-4, atol=1e-5)
    alone = torch.stack([right for right, _ in demo.train(rules, [3, 5], 8, 4)], -1)
    torch.testing.assert_close(alone[0], many[-1, :2], rtol=1e-4, atol=1e-5)
    assert not torch.equal(many[:, 0], many[:, 1])


def test_the_verdict_and_the_table_equal_a_recomputation_from_the_curves(result):
    curves = result.curves.double().numpy()
    until = [[next((i for i, x in enumerate(run) if x >= 0.5), 16) for run in rule] for rule in curves]
    half, mean = t.ppf(0.975, 7) / math.sqrt(8), torch.tensor(until).double()
    for row, own in zip(result.rows()[1:], mean, strict=True):
        found = [float(x) for x in re.search(r"(-?[\d.]+) ± ([\d.]+)", row[1]).groups()]
        assert found == pytest.approx([own.mean().item(), own.std().item() * half], abs=0.06)
    verdict = result.verdict()
    assert verdict.startswith("With each answer used 8 times, Band-KL needs ")
    for name, own in zip(result.names[:-1], mean, strict=False):
        difference = own - mean[-1]
        differs = difference.std() > 0 and ttest_1samp(difference.numpy(), 0).pvalue < 0.05
        told = re.search(rf"([\d.]+) ± [\d.]+ (fewer|more) than {re.escape(name)}", verdict)
        expected = f"{abs(difference.mean().item()):.1f}", "fewer" if difference.mean() > 0 else "more"
        assert (told and told.groups()) == (expected if differs else None)


def test_a_narrow_clip_is_slower_and_a_wide_one_ties(result):
    assert re.search(r"fewer than GRPO, .* fewer than Clip-Higher, .*a tie with Clip\(0\.2, 1\.0\)", result.verdict())


def test_under_noise_no_clip_forgets_and_every_limit_keeps_the_skill(noisy):
    counts = ((noisy.curves[..., -1] - noisy.curves[..., 0]) < 0).sum(-1).tolist()
    forgot = noisy.forgot()
    assert forgot == dict(zip(noisy.names, counts, strict=True))
    assert (forgot.pop("No clip") >= 2, {*forgot.values()}) == (True, {0})


def test_a_run_that_never_gets_half_right_counts_as_all_rounds():
    assert measured(rounds=2).until_half().unique().tolist() == [2]


def test_the_page_is_well_formed_and_loads_nothing(result, noisy):
    text = demo.page(result, noisy, "bandpo demo --out '<a>.html'")
    assert "<a>" not in text
    page = ElementTree.fromstring(re.sub("<!doctype html>|<meta[^>]*>", "", text))  # an error where a tag is not closed
    seen = [(each.tag.rpartition("}")[2], each.attrib) for each in page.iter()]
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in seen}
    addresses = [(tag, attrs.get("href")) for tag, attrs in seen if {"src", "href"} & set(attrs)]
    # a page in runs/ has no way to the documentation's files
    assert addresses == [("a", "https://arxiv.org/abs/2603.04918")]
    assert not re.search(r"url\(|@import", text)
    areas = [len(attrs["points"].split()) for tag, attrs in seen if tag == "polygon"]
    assert areas == [2 * 17] * 5 + [2 * 13] * 5
    words = result.verdict(), noisy.verdict(), demo.headline(result, noisy)[1]
    assert missing(text, *map(demo.html.escape, words)) == []
    assert [name for name in re.findall(r"docs/\w+\.md", text) if not (ROOT / name).is_file()] == []


def bare(folder, *arguments):
    """Run a command without extras and return the lines that it printed to a pipe."""
    command = [sys.executable, "-c", BARE, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    return done.stdout.splitlines()


def test_it_runs_without_extras_and_keeps_a_page_for_each_number_of_uses(tmp_path):
    lines = bare(tmp_path, "demo", "--seeds", "8", "--uses", "2")
    assert (max(map(len, lines)) <= 80, lines[-1]) == (True, "page: runs/demo-uses-2.html")
    assert (tmp_path / "runs/demo-uses-2.html").read_text().startswith("<!doctype html>")


def test_other_commands_run_without_extras_too(tmp_path):
    assert bare(tmp_path, "explain", "band-kl")[0].startswith('Band("kl", 0.05): a token of probability')


@pytest.mark.parametrize("task", [demo.RARE, demo.NOISY])
def test_the_task_tells_the_first_shares(monkeypatch, task):
    """They are means over the first policies, (rules, seeds, questions, places, tokens)."""
    tables, own = [], demo._log_probabilities
    monkeypatch.setattr(demo, "_log_probabilities", lambda *given: tables.append(given[0]) or own(*given))
    measured(seeds=range(64), rounds=1, task=task)
    first = tables[0].exp().mean((0, 1, 2))
    work, guess, right = first[0, demo.WORK], first[0, demo.GUESS], first[1:, demo.RIGHT].mean()
    shares = (
        [f"{guess:.0%} of the answers guess, {work:.0%} work, and {1 - guess - work:.0%} are nonsense",
         f"each right {right:.0%} of the time"]
        if task is demo.RARE
        else [f"{work:.0%} of the answers work at first, {task.wrong:.0%} of the rewards are wrong"]
    )  # fmt: skip
    assert missing(task.text, *shares) == []
    assert task is demo.RARE or task.rate == pytest.approx(10 * demo.RARE.rate)


def test_a_terminal_gets_rows_and_ctrl_c_ends_them(tmp_path):
    main_end, its_end = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30", "NO_COLOR": "1"}
    more = {"cwd": tmp_path, "env": env, "stdout": its_end, "stderr": its_end}
    shown = b""

    def heed_ctrl_c():  # a shell ignores it for what it runs in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen([sys.executable, "-c", BARE, "demo"], **more, preexec_fn=heed_ctrl_c) as process:
        os.close(its_end)
        while b"  0" not in shown:
            shown += os.read(main_end, 4096)
        process.send_signal(signal.SIGINT)
        while b"interrupted; the same command begins anew" not in shown:  # else reading is an OSError once it has ended
            shown += os.read(main_end, 4096)
        assert process.wait(60) == 130
    os.close(main_end)
    assert (b"\x1b" in shown, [*tmp_path.iterdir()]) == (False, [])


def test_few_seeds_are_an_error(cli):
    assert cli.error("demo", "--seeds", "3") == "error: --seeds must be at least 8, for an interval; got 3\n"
