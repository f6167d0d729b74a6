"""The report's script in a browser, which reads curves; and the looks of methods."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from report_runs import CHROMIUM, browse, make_rows, ramp, with_script, write_run

pytest.importorskip("matplotlib")
from bandpo_runs.reports.charts import method_styles
from bandpo_runs.reports.page import write_report

in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome found")
HALVES = {"GRPO": 9, "Band-KL 0.05": 4, "No clip": 99, "Clip-Higher 0.2/0.28": 7}


@pytest.fixture
def page(tmp_path):
    for label, half in HALVES.items():
        for seed in range(2):
            write_run(tmp_path / "runs", label, seed, make_rows(ramp(half + seed)))
    return write_report([tmp_path / "runs"], tmp_path / "report.html").read_text(encoding="utf-8")


def told(page, folder, script):
    """What the script of a test tells, which runs within the page."""
    wrapped = (
        f"const told = [];\n{script}\nparent.document.getElementById('measured').textContent = JSON.stringify(told);"
    )
    done = browse(with_script(page, wrapped), folder)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line], done.stderr
    return json.loads(unescape(re.search(r'<pre id="measured">(.*?)</pre>', done.stdout)[1]))


@in_a_browser
@pytest.mark.slow
def test_a_slider_reads_the_thick_lines_by_key_and_by_pointer(page, tmp_path):
    seen = told(page, tmp_path, """
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
    """)  # fmt: skip
    assert seen[:3] == [5, "P(work)", True]
    assert seen[3:5] == [
        False,
        "round 12, GRPO: 0.750, Band-KL 0.05: 0.750, Clip-Higher 0.2/0.28: 0.750, No clip: 0.010",
    ]
    at_four = "round 4GRPO 0.010Band-KL 0.05 0.380Clip-Higher 0.2/0.28 0.010No clip 0.010"  # of two seeds one works
    assert seen[5:] == [at_four, True, True, True, "round 8", True, True]


def test_without_a_script_all_numbers_are_there(page):
    """Heads are plain text, and there is nothing to press."""
    body = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "<button" not in body
    assert "<input" not in body
    assert "hidden>" not in body


# ---------------------------------------------------------------------------------------------------- looks of a method
def test_no_two_methods_look_alike():
    labels = [f"Rule {i}" for i in range(20)] + ["Band-KL 0.1", "GRPO", "Band-KL 0.05", "Clip 0.2/1.0"]
    found = method_styles(labels)
    assert len({str(look) for look in found.values()}) == len(labels)
    assert len({look["color"] for look in method_styles(labels[:3] + labels[-4:]).values()}) == 7
    assert len(method_styles(map(str, range(40)))) == 40
