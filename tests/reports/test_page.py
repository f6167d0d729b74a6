"""The report: numbers against values computed by hand, censoring, refusals, and the page itself in a browser."""
# ruff: noqa: RUF001  (minus signs and dashes are meant)

import json
import math
import re
import statistics
from pathlib import Path

import pytest
from commands import missing, refusal
from disk import write

pytest.importorskip("matplotlib")
from html import unescape

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from report_runs import BAND, CHROMIUM, CLIP, browse, cells, make_rows, ramp, report_of, with_script, write_run

from bandpo_runs.reports.charts import draw, method_styles
from bandpo_runs.reports.page import write_report
from bandpo_runs.reports.panels import PANELS, mean_curve
from bandpo_runs.reports.sections import make_sections, read_runs
from bandpo_runs.reports.texts import summarize
from bandpo_runs.reports.verdicts import LIMITS

HALF = "First round in which half work"


def make_page(tmp_path: Path, **options) -> str:
    return write_report([tmp_path / "runs"], tmp_path / "report.html", **options).read_text(encoding="utf-8")


@pytest.fixture
def three_seeds(tmp_path: Path) -> Path:
    return write_seeds(tmp_path, **{"Band-KL 0.05": (4, 5, 7), "GRPO": (9, 10, 11)})


def write_seeds(folder: Path, **halves) -> Path:
    """Runs in which half of the answers work from these rounds on, seed by seed; None: no run of that seed."""
    for label, rounds in halves.items():
        for seed, half in enumerate(rounds):
            if half is not None:
                write_run(folder / "runs", label, seed, make_rows(ramp(half)))
    return folder


def plus_minus(values, digits, sign=""):
    return f"{statistics.mean(values):{sign}.{digits}f} ± {statistics.stdev(values):.{digits}f}".replace("-", "−")


# ---- numbers


def test_final_numbers_are_those_computed_by_hand_and_differences_are_paired_by_seed(three_seeds):
    report = report_of(three_seeds / "runs")
    rows = cells(report, "Final numbers, mean ± standard deviation")
    assert list(rows["Reward over the run"])[:2] == ["GRPO", "Band-KL 0.05"], "the baseline comes first"
    clipped = sum(10 + i for i in range(12))
    clip, cut = 100 * clipped / sum(1000 * (i + 1) for i in range(12)), 100 * sum(4 + i for i in range(12)) / (12 * 50)
    for label, halves in (("Band-KL 0.05", (4, 5, 7)), ("GRPO", (9, 10, 11))):
        rewards = [[0.8 * p for p in ramp(half)] for half in halves]
        early = [100 * 5 * (half - 1) / sum(10 + i for i in range(half - 1)) for half in halves]
        assert {name: row[label] for name, row in rows.items()} == {
            "First round in which half work": plus_minus(halves, 1),
            "First round with reward 0.5": plus_minus(halves, 1),
            "Reward over the run": plus_minus([statistics.mean(r) for r in rewards], 3),
            "Reward at the end": plus_minus([statistics.mean(r[-3:]) for r in rewards], 3),
            "Entropy at the end": "0.25 ± 0.00",
            "Entropy at reward 0.5": "0.25 ± 0.00",
            "Clip rate, %": f"{clip:.2f} ± 0.00",
            "Early tail share, %": plus_minus(early, 1),
            "Good tail cut, %": f"{cut:.1f} ± 0.0",
        }
    rows = cells(report, "Minus GRPO")
    gaps = [statistics.mean(0.8 * p - 0.8 * q for p, q in zip(ramp(a), ramp(b), strict=True)) for a, b in
            ((4, 9), (5, 10), (7, 11))]  # fmt: skip
    assert [rows[name]["Band-KL 0.05"] for name in (HALF, "Reward over the run")] == [
        f"{plus_minus([4 - 9, 5 - 10, 7 - 11], 1, '+')} | −5 −5 −4",
        f"{plus_minus(gaps, 3, '+')} | {' '.join(f'{gap:+.3f}' for gap in gaps)}",
    ]


SEEDS = {"GRPO": (4, 5, 6, 7), "Band-KL 0.05": (None, None, 6, 7, 8), "Mine": (None, None, 9)}
CENSORED = {"Band-KL 0.05": (4, 5, 6, 99, 99), "GRPO": (99, 99, 10, 99, 11)}


@pytest.mark.parametrize(
    ("halves", "baseline", "caption", "cell"),
    [
        # Only seeds of both are paired.
        (SEEDS, "GRPO", "Minus GRPO", {"Band-KL 0.05": "+0.0 | +0 +0", "Mine": "+3.0"}),
        (SEEDS, "Mine", "Minus Mine", {"Band-KL 0.05": "−3.0", "GRPO": "−3.0"}),
        # A censored value is never averaged, and differences to a censored baseline have a sign.
        ({"GRPO": (4, 5, 6, 7, 8)}, "GRPO", "Final numbers", {"GRPO": "6.0 ± 1.6"}),
        ({"GRPO": (4, 99, 6, 7, 99)}, "GRPO", "Final numbers", {"GRPO": "median 7.0 | (2 of 5 not reached)"}),
        ({"GRPO": (4, 99, 99, 99, 6)}, "GRPO", "Final numbers", {"GRPO": "not reached | (3 of 5 not reached)"}),
        (CENSORED, "GRPO", "Minus GRPO", {
            "Band-KL 0.05": "– | (3 of 4 pairs not reached) (defined in 4 of 5) | < 0 < 0 −4 – > 0"}),
    ],
)  # fmt: skip
def test_the_first_round_in_which_half_work_is_paired_by_seed_and_may_be_censored(
    tmp_path, halves, baseline, caption, cell
):
    report = report_of(write_seeds(tmp_path, **halves) / "runs", baseline=baseline)
    row = cells(report, caption)[HALF]
    assert {label: text for label, text in row.items() if label != "definition"} == cell
    is_told = any(note.startswith("Not reached: ") for note in report.parts[0].tables[0].notes)
    assert is_told == any(99 in rounds for rounds in halves.values())


def test_nothing_is_said_of_rounds_without_the_metric(tmp_path):
    write_run(tmp_path, "GRPO", 0, make_rows(ramp(99), reward=[0.1] * 9 + [None] * 3))
    row = cells(report_of(tmp_path), "Final numbers")["First round with reward 0.5"]
    assert row["GRPO"] == "not reached | (1 of 1 not reached)"


def test_summaries_of_what_is_undefined():
    nan = math.nan
    values = [nan, nan, nan], [nan, 1.0, 2.0, 3.0], [nan, 1.0, 2.0]  # two values have no spread
    assert [summarize(each, 1) for each in values] == [
        "–", "2.0 ± 1.0 (defined in 3 of 4)", "1.5 (defined in 2 of 3)",
    ]  # fmt: skip


def test_fewer_than_three_seeds_have_no_spread(tmp_path):
    report = report_of(write_seeds(tmp_path, **{"GRPO": (4, 5), "Band-KL 0.05": (2, 2)}) / "runs")
    told = "GRPO and Band-KL 0.05: spread not estimated (fewer than 3 seeds)." in report.parts[0].tables[0].notes
    assert (cells(report, "Final numbers, mean over seeds")[HALF]["GRPO"], told) == ("4.5", True)
    write_run(tmp_path / "runs", "GRPO", 2, make_rows(ramp(6)))
    rows = cells(report_of(tmp_path / "runs"), "Final numbers, mean ± standard deviation over seeds")
    assert rows[HALF] == {"GRPO": "5.0 ± 1.0", "Band-KL 0.05": "2.0", "definition": "P(work) ≥ 0.5"}


def test_several_lines_of_a_round_are_one_round(tmp_path):
    rows = [{"round": 1, "step": i, "tokens": t, "clip/count": c, "reward": r, "clip/fraction": 0.9}
            for i, (t, c, r) in enumerate([(100, 50, 0.2), (900, 0, 0.4), (0, 0, None)])]  # fmt: skip
    (run,) = read_runs([write_run(tmp_path, rows=rows)])
    # 50 of 1000 tokens, not the mean of 50 % and 0 %
    assert {name: [*PANELS[name].curve(run)] for name in ("reward", "clipped")} == {
        "reward": [pytest.approx(0.3)],
        "clipped": [pytest.approx(5.0)],
    }


def test_rates_without_counts_are_means(tmp_path):
    rows = [{"round": i + 1, "step": i, "reward": 0.1, "clip/fraction": c, "cut/good_tail": g}
            for i, (c, g) in enumerate([(0.01, 0.5), (0.03, None), (0.02, 0.1)])]  # fmt: skip
    numbers = cells(report_of(write_run(tmp_path, rows=rows)), "Final numbers")
    assert [numbers[name]["GRPO"] for name in ("Clip rate, %", "Good tail cut, %")] == ["2.00", "30.0"]


def test_nulls_are_left_out_and_not_counted_as_zero(tmp_path):
    nothing = {"clip/count": 0, "clip/tail_high_count": 0, "clip/tail_high_share": None, "entropy": None}
    for seed in range(3):
        rows = make_rows(ramp(4), reward=[None] * 9 + [0.3, 0.4, None])
        write_run(tmp_path, "GRPO", seed, [row | nothing for row in rows])
    report = report_of(tmp_path)
    numbers = {name: row["GRPO"] for name, row in cells(report, "Final numbers").items()}
    assert numbers | dict.fromkeys(("Reward over the run", "Reward at the end"), "0.350 ± 0.000") == numbers
    assert not numbers.keys() & {"Early tail share, %", "Entropy at the end"}, "0 / 0 has no value"
    assert "Entropy (paper, Fig. 4c): no value in the log of GRPO." in report.parts[0].notes


def test_the_mean_curve_ends_where_the_first_seed_ends():
    nan = math.nan
    x, y = mean_curve([(np.arange(1, 5), np.array([1, nan, nan, 4])), (np.arange(1, 4), np.array([3, 5, nan]))])
    assert (x.tolist(), y.tolist()) == ([1, 2], [2, 5])


# ---- sections, settings, origin


def test_a_section_for_each_scene_and_learning_rate(three_seeds):
    runs = three_seeds / "runs"
    for rate in (3e-4, 1.5e-5):
        write_run(runs, "GRPO", 0, make_rows(ramp(3)), scene="storm", learning_rate=rate)
    write_run(runs, "Mine", 0, [{"step": x, "reward": 0.25} for x in (10, 20)], scene=None, learning_rate=None)
    report = report_of(runs)
    assert [part.title for part in report.parts] == [
        "The storm scene, learning rate 1.5e-5", "The storm scene, learning rate 3e-4",
        "The tail scene, learning rate 5e-6", "Training",
    ]  # fmt: skip
    (figure,) = report.parts[3].figures
    assert (figure.panel.key, figure.axis, [*figure.curves], report.limits) == (
        "reward", "step", ["Mine"], [LIMITS["storm"], LIMITS["tail"]],
    )  # fmt: skip
    assert cells(report, "Final", 3)["Reward at the end"]["definition"] == "mean over the last 3 steps"


def test_settings_that_differ(tmp_path):
    same = {"train": {"rounds": 30, "log_dir": "x"}, "data": {"options": {"seed": 0}}}
    other = {"train": {"rounds": 31, "log_dir": "y"}, "data": {"options": {"seed": 1}}}
    write_run(tmp_path, "GRPO", 0, make_rows(ramp(3)), same, versions={})
    write_run(tmp_path, "GRPO", 1, make_rows(ramp(3)), other)
    write_run(tmp_path, "Band-KL 0.05", 0, make_rows(ramp(3)), same, command="bandpo lab --steps 1")
    report = report_of(tmp_path)
    assert cells(report, "Settings that differ") == {
        "train.rounds": {"GRPO": "30, 31", "Band-KL 0.05": "30"},
        "data.options.seed": {"GRPO": "0, 1", "Band-KL 0.05": "0"},
        "trust_region.type": {"GRPO": "clip", "Band-KL 0.05": "band"},
        "trust_region.eps_low": {"GRPO": "0.2", "Band-KL 0.05": "–"},
        "trust_region.eps_high": {"GRPO": "0.2", "Band-KL 0.05": "–"},
        "trust_region.divergence": {"GRPO": "–", "Band-KL 0.05": "kl"},
        "trust_region.delta": {"GRPO": "–", "Band-KL 0.05": "0.05"},
    }
    origin = "commit abc1234; hardware x86_64, 2 cores; started 2026-11-21T14:00:00+00:00;"
    assert (len(report.commands), report.facts[0][: len(origin)]) == (3, origin)


# ---- what is wrong with the input


def test_unfinished_runs_are_drawn_and_not_counted(three_seeds):
    runs = three_seeds / "runs"
    before = cells(report_of(runs), "Final numbers")
    folder = write_run(runs, "GRPO", 3, make_rows(ramp(2, rounds=5)), finished=False, rounds=30)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 384, "rou')
    write_run(runs, "GRPO", 4, [], finished=False)
    write_run(runs, "GRPO", 5, [{"step": x, "reward": 0.5} for x in (10, 20)], finished=False, scene=None)
    report = report_of(runs)
    notes = [note.partition(".")[0] for part in report.parts for note in part.notes if "Unfinished" in note]
    assert notes == [f"Unfinished: GRPO, seed {x}" for x in ("3, 5 of 30 rounds", "4, 0 rounds", "5, 20 steps")]
    (note,) = report.parts[1].tables[0].notes
    assert (cells(report, "Final numbers"), "no final numbers yet" in note) == (before, True)
    (run,) = read_runs([folder])
    assert run.mean("lab/work").tolist() == [0.01, 0.75, 0.75, 0.75, 0.75]


def test_a_collapse_is_a_note_below_the_panels(tmp_path):
    write_run(tmp_path, "GRPO", 0, make_rows([0.6] * 40))
    write_run(tmp_path, "No clip", 0, make_rows([0.6] * 20 + [0.02] * 20))
    (note,) = [note for note in report_of(tmp_path).parts[0].notes if "seed 0: " in note]
    assert note.startswith("No clip, seed 0: collapsed at round 21: reward 0.48 before")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("run.json", '{"label": "GRPO"', "corrupt"),
        ("run.json", "[]", "corrupt"),
        ("run.json", '{"label": "GRPO", "finished": true, "learning_rate": 1}', "'seed' is missing"),
        ("run.json", '{"label": "GRPO", "seed": "0", "finished": true, "learning_rate": 1}', "'seed' is '0'"),
        ("config.yaml", None, "No such file"),
        ("config.yaml", "a: [", "is not YAML"),
        ("config.yaml", "a: 1", "'trust_region' is missing"),
        ("metrics.jsonl", None, "No such file"),
        ("metrics.jsonl", "", "no row of a log is in it"),
        ("metrics.jsonl", '{"reward": 1}\n', "'step' or 'round'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name_and_nothing_is_written(three_seeds, name, content, message):
    page, path = write(three_seeds / "report.html", "the page of yesterday"), three_seeds / "runs" / "GRPO-0-1" / name
    if content is None:
        path.unlink()
    else:
        write(path, content)
    why = refusal(make_page, three_seeds)
    assert (why.startswith(str(path)), message in why, "\n" in why) == (True, True, False), why
    assert page.read_text() == "the page of yesterday"


def test_what_is_missing_or_ambiguous_is_refused(three_seeds):
    runs, out = three_seeds / "runs", three_seeds / "out.html"

    def one_more(label="GRPO", seed=7, rule=CLIP):
        return write_run(three_seeds / f"{label}{seed}{rule}", label, seed, make_rows(ramp(2)), {"trust_region": rule})

    twin = one_more(seed=0)
    others = [one_more(rule={"type": "objective", "trust_region": CLIP, "surrogate": "weight"}), one_more(rule=BAND)]
    for sources, options, message in (
        ([runs, three_seeds / "nowhere"], {}, "nowhere: no run found"),
        ([runs], {"baseline": "PPO"}, "baseline 'PPO': no such run; expected one of Band-KL 0.05, GRPO"),
        ([runs, twin], {}, f"{twin}: same label and seed as "),
        *(([runs, other], {}, f"{other}: label 'GRPO' stands for another") for other in others),
    ):
        assert message in refusal(write_report, sources, out, **options)
    with pytest.raises(IsADirectoryError):
        write_report([runs], runs)
    assert not out.exists()


def test_a_method_without_a_value_draws_no_line(tmp_path):
    """An unclipped line without points would count in the layout as one in the corner of the picture."""
    never = {"clip/count": [0] * 12, "clip/tail_high_count": [0] * 12, "clip/tail_high_share": [None] * 12}
    for label, more in (("GRPO", {}), ("No clip", never)):
        for seed in (0, 1):
            write_run(tmp_path, label, seed, make_rows(ramp(5), **more))
    (section,) = make_sections(read_runs([tmp_path]))
    (panel,) = [panel for panel in section.panels if panel.key == "clip/tail_high_share"]
    axes, curves = Figure().subplots(), {m: [*runs.values()] for m, runs in section.methods.items()}
    draw(axes, panel.figure("round", curves), method_styles(section.methods))
    assert [len(line.get_xdata()) for line in axes.lines] == [12, 12, 12]  # two seeds of GRPO and their mean
    assert (axes.get_xticks() % 1 == 0).all()  # rounds are whole


@pytest.mark.parametrize(
    "again", ["runs/../runs", "runs/GRPO-0-1", "mine=runs/GRPO-0-1", "runs/GRPO-0-1/metrics.jsonl"]
)
def test_a_run_that_is_given_twice_does_not_count_as_two(three_seeds, monkeypatch, again):
    monkeypatch.chdir(three_seeds)
    assert (len(read_runs(["runs"])), ": given twice" in refusal(read_runs, ["runs", again])) == (6, True)


def test_a_failed_write_leaves_the_old_report_and_no_litter(three_seeds, monkeypatch):
    def fail(self, target):
        raise OSError("disk full")

    write(three_seeds / "report.html", "the page of yesterday")
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        make_page(three_seeds)
    left = {path.name: path.is_file() and path.read_text() for path in three_seeds.iterdir()}
    assert left == {"report.html": "the page of yesterday", "runs": False}


# ---- the page


def test_the_page_needs_nothing_from_elsewhere_and_trusts_no_file(tmp_path):
    nasty = '<script>alert("x")</script>'
    facts = {"scene": nasty, "command": nasty, "versions": {nasty: nasty}, "commit": nasty, "hardware": {nasty: nasty}}
    write_run(tmp_path / "runs", nasty, 0, make_rows(ramp(2)), {nasty: nasty}, **facts)
    write_run(tmp_path / "runs", "GRPO & 'co'", 0, make_rows(ramp(2)), {nasty: 1}, **facts, started=nasty)
    page = make_page(tmp_path)
    assert (page.count("<script>alert"), page.count("<script>")) == (0, 1), "ours"
    assert not missing(page, "&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;", "GRPO &amp; &#39;co&#39;")
    assert not re.search(r"https?:|@import|<link|<iframe|<img|//[a-z]", page)
    assert {*re.findall(r'(?:src|href)="(.)', page), *re.findall(r"url\((.)", page)} == {"#"}


def test_the_page_is_sound_html_for_all_readers(three_seeds):
    write_run(three_seeds / "runs", "GRPO", 0, make_rows(ramp(3)), learning_rate=1e-3)
    page = make_page(three_seeds)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids)), "an id twice: the second figure would use the marks of the first"
    assert {*re.findall(r'(?:href="|url\()#([^")]*)', page)} <= {*ids}
    assert not missing(page, '<html lang="en">', "<title>Trust regions compared: GRPO and Band-KL 0.05</title>")
    # Without a script there is nothing to press.
    assert not re.search("<button|<input|hidden>", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
    # Heads say what they are of; nothing of matplotlib is left over.
    assert not re.search(r"<th(?! scope=\"(row|col)\")[ >]|#00000[12]|DejaVu", page)
    svgs = re.findall(r"<svg([^>]*)>", page)
    assert all('role="img" aria-label="' in svg or 'aria-hidden="true"' in svg for svg in svgs)
    assert sum('role="img"' in svg for svg in svgs) == 5 + 5
    open_tags = []
    for slash, tag in re.findall(r"<(/?)(?!meta)([a-z][\w]*)[^>]*?(?<!/)>", page):
        if slash:
            assert open_tags.pop() == tag
        else:
            open_tags.append(tag)
    assert not open_tags


@pytest.mark.slow
def test_two_writes_are_the_same_bytes(three_seeds):
    first = make_page(three_seeds)
    with matplotlib.rc_context({"font.size": 30, "xtick.major.size": 20, "svg.hashsalt": "x"}):
        assert (make_page(three_seeds), matplotlib.rcParams["font.size"]) == (first, 30)


MEASURE = """
const seen = {width: innerWidth, needed: document.documentElement.scrollWidth,
  dark: matchMedia("(prefers-color-scheme: dark)").matches, text: 99, contrast: 99, plot: 999};
const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
const paper = light(getComputedStyle(document.body).backgroundColor);
const contrast = c => { const [a, b] = [light(c), paper].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05) };
for (const text of document.querySelectorAll("svg text"))
  seen.text = Math.min(seen.text, text.getBoundingClientRect().height);
for (const svg of document.querySelectorAll("svg[role]"))
  seen.plot = Math.min(seen.plot, svg.getBoundingClientRect().width);
for (const node of document.querySelectorAll("p, h1, h2, h3, th, td, li, figcaption, small, code"))
  seen.contrast = Math.min(seen.contrast, contrast(getComputedStyle(node).color));
for (const node of document.querySelectorAll("svg text"))
  seen.contrast = Math.min(seen.contrast, contrast(getComputedStyle(node).fill));
seen.lines = [...new Set([...document.querySelectorAll(".key path")].map(p => getComputedStyle(p).stroke))]
  .filter(stroke => stroke !== "none");
seen.lineContrast = Math.min(...seen.lines.map(contrast));
parent.document.getElementById("measured").textContent = JSON.stringify(seen);
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome found")
@pytest.mark.slow
def test_in_a_browser_no_script_runs_in_the_page(tmp_path):
    """Were something not escaped after all."""
    write_run(tmp_path / "runs", "GRPO", 0, make_rows(ramp(3)))
    page = make_page(tmp_path)
    assert "<title>Training under one rule: GRPO</title>" in page
    ran = "parent.document.getElementById('measured').textContent += 'ran '"
    page = page.replace("</body>", f'<script>{ran}</script><svg onload="{ran}"></svg></body>')
    (policy,) = re.findall('<meta http-equiv="Content-Security-Policy"[^>]*>', page)
    assert ">ran ran <" in browse(page.replace(policy, ""), tmp_path).stdout  # the test would notice
    assert '<pre id="measured"></pre>' in browse(page, tmp_path).stdout


def measured(done):
    """What the script of a test has told of a page, in which nothing went wrong."""
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line], done.stderr
    return json.loads(unescape(re.search(r'<pre id="measured">(.*?)</pre>', done.stdout)[1]))


LEAST = {
    "plot": 335,  # it fills the phone
    "text": 12,  # px, the height of a line of the smallest text in a plot
    "contrast": 4.5,  # WCAG AA for text
    "lineContrast": 3,  # and for graphics
}


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome found")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.slow
def test_in_a_browser_the_page_is_quiet_legible_and_fits_a_phone(three_seeds, dark):
    for index in range(5):  # seven methods with long names: all colours, and tables wider than a phone
        write_run(three_seeds / "runs", f"Method number {index} of a long name", 0, make_rows(ramp(3 + index)))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    seen = measured(browse(with_script(make_page(three_seeds), MEASURE), three_seeds, scheme))
    assert (seen["width"], seen["dark"], len(seen["lines"])) == (375, dark, 7)
    assert seen["needed"] <= 375, "the page scrolls sideways"
    assert {name: seen[name] for name, least in LEAST.items() if seen[name] < least} == {}


# ---- the report's script in a browser, which reads curves; and the looks of methods


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome found")
@pytest.mark.slow
def test_a_slider_reads_the_thick_lines_by_key_and_by_pointer(tmp_path):
    others = {"Band-KL 0.05": (4, 5), "No clip": (99, 99), "Clip-Higher 0.2/0.28": (7, 8)}
    page = make_page(write_seeds(tmp_path, GRPO=(9, 10), **others))
    done = browse(with_script(page, """const told = [];
      const plots = [...document.querySelectorAll(".read")], [plot] = plots, slider = plot.querySelector("input");
      const box = plot.querySelector(".told"), line = () => plot.querySelector("svg > line");
      told.push(plots.length, slider.getAttribute("aria-label"), box.hidden);
      slider.focus();
      told.push(box.hidden, slider.getAttribute("aria-valuetext"));
      slider.value = 3;
      slider.dispatchEvent(new Event("input"));
      told.push(box.textContent, line() !== null);
      slider.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}));
      told.push(box.hidden, line() === null);
      const {left, width} = plot.querySelector("svg").getBoundingClientRect();
      const ticks = [...plot.querySelectorAll("svg text")].filter(text => text.textContent === "8");
      const at = ticks[0].getBoundingClientRect();
      slider.dispatchEvent(new PointerEvent("pointermove", {clientX: at.left + at.width / 2}));
      told.push(box.querySelector("b").textContent);
      slider.blur();
      told.push(box.hidden);
      slider.dispatchEvent(new PointerEvent("pointerleave"));
      const inside = plots.every(plot => { plot.querySelector("input").focus();
        const a = plot.querySelector(".told").getBoundingClientRect(), b = plot.getBoundingClientRect();
        return a.left >= b.left - 1 && a.right <= b.right + 1; });
      told.push(inside);
      parent.document.getElementById("measured").textContent = JSON.stringify(told);
    """), tmp_path)  # fmt: skip
    assert measured(done) == [
        5, "P(work)", True, False,
        "round 12, GRPO: 0.750, Band-KL 0.05: 0.750, Clip-Higher 0.2/0.28: 0.750, No clip: 0.010",
        "round 4GRPO 0.010Band-KL 0.05 0.380Clip-Higher 0.2/0.28 0.010No clip 0.010",  # of two seeds one works
        True, True, True, "round 8", True, True,
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------- looks of a method
def test_no_two_methods_look_alike():
    labels = [f"Rule {i}" for i in range(20)] + ["Band-KL 0.1", "GRPO", "Band-KL 0.05", "Clip 0.2/1.0"]
    looks = [str(look) for look in method_styles(labels).values()]
    colours = {look["color"] for look in method_styles(labels[:3] + labels[-4:]).values()}
    assert (len({*looks}), len(colours), len(method_styles(map(str, range(40))))) == (len(labels), 7, 40)


def test_runs_that_only_began_have_a_page(tmp_path):
    for seed, rows in enumerate((make_rows(ramp(2)), [])):
        write_run(tmp_path / "runs", "GRPO", seed, rows, finished=False)
    assert "no final numbers yet" in make_page(tmp_path)
