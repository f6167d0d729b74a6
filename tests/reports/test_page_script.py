"""The report's script in a browser: it sorts tables and reads curves; and the looks and names that a method keeps."""
# ruff: noqa: RUF001  (minus signs are meant)

from __future__ import annotations

import json
import math
import re
from html import unescape

import numpy as np
import pytest
from report_runs import CHROMIUM, browse, make_rows, ramp, with_script, write_run

pytest.importorskip("matplotlib")
import matplotlib
from matplotlib.figure import Figure

from bandpo_runs.reports.charts import LIGHT, draw_panel, end_names, method_styles
from bandpo_runs.reports.page import write_report
from bandpo_runs.reports.runs import PANELS, read_sections

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
def test_a_head_sorts_up_down_and_back(page, tmp_path):
    """What is "> 12" comes after all numbers, and the definitions stay at the end."""
    seen = told(page, tmp_path, """
      const table = document.querySelector("table[data-sort=columns]"), button = table.querySelector("tbody button");
      const look = () => told.push([[...table.tHead.rows[0].cells].map(cell => cell.firstChild.textContent),
        [...table.tBodies[0].rows[0].cells].map(cell => cell.childNodes[0].textContent.trim()),
        button.parentNode.getAttribute("aria-sort"), table.querySelectorAll("[aria-sort]").length]);
      look();
      for (const _ of "123") { button.click(); look(); }
      button.click();
      table.querySelectorAll("tbody button")[4].click();
      look();
      const other = document.querySelector("table[data-sort=rows]");
      other.querySelectorAll("thead button")[0].click();
      told.push([...other.tBodies[0].rows].map(row => row.cells[0].textContent + " " + row.cells[1].textContent));
    """)  # fmt: skip
    first, up, down, back, another, rows = seen
    assert first[0][1:-1] == ["GRPO", "Band-KL 0.05", "Clip-Higher 0.2/0.28", "No clip"]
    assert up[0] == ["measure", "Band-KL 0.05", "Clip-Higher 0.2/0.28", "GRPO", "No clip", "definition"]
    assert [cell.split("\xa0")[0] for cell in up[1][1:-1]] == ["4.5", "7.5", "9.5", ">"]
    assert up[2:] == ["ascending", 1]
    assert down[0] == ["measure", "No clip", "GRPO", "Clip-Higher 0.2/0.28", "Band-KL 0.05", "definition"]
    assert down[2:] == ["descending", 1]
    assert back == first
    assert first[2:] == [None, 0]
    assert another[2:] == [None, 1], "one order at a time"
    lows = [float(re.search(r" ([\d.]+)–", row)[1]) for row in rows]
    assert lows == sorted(lows)


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
class _Section:
    def __init__(self, *labels):
        self.methods = dict.fromkeys(labels)


def looks(*labels):
    return method_styles([_Section(*labels)])


def test_a_method_keeps_its_look_on_another_page():
    one = looks("GRPO 0.2/0.2", "Band-KL 0.05", "Mine")
    for others in (("Band-KL 0.05", "Mine"), ("Mine", "GRPO 0.2/0.2"), ("No clip", "Mine", "Band-KL 0.05")):
        for label, look in looks(*others).items():
            assert look == one.get(label, look)
    names = ["GRPO 0.2/0.2", "Band-KL 0.05", "Clip-Higher 0.2/0.28", "Clip 0.2/1.0", "No clip"]
    assert [look["color"] for look in looks(*reversed(names)).values()] == [*reversed(LIGHT[:5])]


def test_no_two_methods_look_alike():
    labels = [f"Rule {i}" for i in range(20)] + ["Band-KL 0.1", "GRPO", "Band-KL 0.05", "Clip 0.2/1.0"]
    found = looks(*labels)
    assert [*found] == labels
    assert len({str(look) for look in found.values()}) == len(labels)
    assert len({look["color"] for look in looks(*labels[:3], *labels[-4:]).values()}) == 7
    assert looks("Band-KL 0.05", "Band-KL 0.1", "Clip-Higher")["Clip-Higher"]["color"] == LIGHT[2]
    assert len(looks(*map(str, range(40)))) == 40


def test_the_name_at_the_end_is_short_and_is_one_methods():
    assert end_names(["GRPO 0.2/0.2", "Band-KL 0.05", "No clip"]) == {
        "GRPO 0.2/0.2": "GRPO", "Band-KL 0.05": "Band-KL", "No clip": "No clip"
    }  # fmt: skip
    assert [*end_names(["Band-KL 0.05", "Band-KL 0.1"]).values()] == ["Band-KL 0.05", "Band-KL 0.1"]
    assert [*end_names(["A name of many words", "B"]).values()] == ["A name of ma…", "B"]
    logs = ["Band-KL 0.05 by entropy +0.5", "Band-KL 0.05", "qwen-math-1.5b-grpo", "qwen-math-1.5b-band"]
    assert [*end_names(logs).values()] == ["…entropy +0.5", "Band-KL", "…th-1.5b-grpo", "…th-1.5b-band"]
    assert end_names(["alone"]) == {}
    assert end_names(map(str, range(8))) == {}


@pytest.mark.parametrize("ends", [(1.0, 0.99, 0.98, 0.5), (0.0, 0.001, 0.002, 0.003), (0.5, 0.5, 0.5, 0.5)])
def test_names_at_the_ends_stand_apart_within_the_picture_in_the_order_of_the_curves(tmp_path, ends):
    labels = ["a", "b", "c", "d"]
    for label, end in zip(labels, ends, strict=True):
        write_run(tmp_path, label, 0, make_rows([0.5, end]))
    (section,) = read_sections([tmp_path])
    styles = method_styles([section])
    with matplotlib.rc_context({"font.size": 12}):
        axes = Figure(figsize=(5, 240 / 72)).add_axes((0.1, 38 / 240, 0.6, 1 - 66 / 240))
        draw_panel(axes, PANELS[0], section, styles, ends=True)
    names = {text.get_text(): text for text in axes.texts}
    assert set(names) == set(labels)
    height = 240 * (1 - 66 / 240)
    places = sorted((text.xyann[1] * height, end, text.get_text()) for (label, end) in zip(labels, ends, strict=True)
                    for text in [names[label]])  # fmt: skip
    assert np.diff([place for place, _, _ in places]).min() >= 12 * 1.1
    assert places[0][0] >= 0
    assert places[-1][0] <= height * (1 + 1e-9)
    assert [end for _, end, _ in places] == sorted(ends)
    for label, end in zip(labels, ends, strict=True):
        assert names[label].xy == (2.0, end), "it leads to the end of its curve"
        assert names[label].arrow_patch.get_edgecolor()[:3] == matplotlib.colors.to_rgb(styles[label]["color"])
    assert not math.isnan(places[0][0])
