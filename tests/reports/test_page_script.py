"""The report's script in a browser, which sorts tables and reads curves; and the looks of methods."""
# ruff: noqa: RUF001  (minus signs are meant)

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from report_runs import CHROMIUM, browse, make_rows, ramp, with_script, write_run

pytest.importorskip("matplotlib")
from bandpo_runs.reports.charts import LIGHT, method_styles
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
def test_the_usual_methods_look_the_same_on_every_page():
    names = ["GRPO 0.2/0.2", "Band-KL 0.05", "Clip-Higher 0.2/0.28", "Clip 0.2/1.0", "No clip"]
    for labels in (names, names[::-1], ["Mine", *names]):
        looks = method_styles(labels)
        assert [*looks] == labels
        assert [looks[name]["color"] for name in names] == [*LIGHT[:5]]


def test_no_two_methods_look_alike():
    labels = [f"Rule {i}" for i in range(20)] + ["Band-KL 0.1", "GRPO", "Band-KL 0.05", "Clip 0.2/1.0"]
    found = method_styles(labels)
    assert len({str(look) for look in found.values()}) == len(labels)
    assert len({look["color"] for look in method_styles(labels[:3] + labels[-4:]).values()}) == 7
    assert len(method_styles(map(str, range(40)))) == 40
