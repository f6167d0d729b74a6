"""docs/report: what it says is what its rows say."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scripts import load

report = load("docs/report.py")
TEXT = report.TEXT.read_text(encoding="utf-8")


def test_every_number_of_the_text_is_that_of_its_rows():
    found = report.statements(TEXT)
    assert len(found) >= 20
    for said, name, one in found:
        assert said in report.forms(one), f"{name}: the report says {said!r}, its rows say {report.forms(one)}"


def test_tables_and_the_page_of_rows_are_those_of_the_rows():
    """If not: `python docs/report.py`."""
    assert report.filled(TEXT) == TEXT
    assert report.rows_page(TEXT) == report.ROWS.read_text(encoding="utf-8")


def test_the_figures_are_those_of_the_rows(tmp_path):
    """If not: `python docs/report.py`."""
    report.draw(tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(path.name for path in report.PAGES.glob("*.svg"))
    for name in drawn:
        assert (tmp_path / name).read_bytes() == (report.PAGES / name).read_bytes(), name


def test_a_number_that_is_not_its_rows_is_seen():
    one = report.kept()[0]
    ((said, name, of),) = report.statements(f"It ends at [9.999](rows.md#{one.id}).")
    assert (name, of) == (one.id, one)
    assert said not in report.forms(of)
    with pytest.raises(KeyError):
        report.statements("It ends at [0.9](rows.md#zzzzzz).".replace("z", "0"))


def test_some_rows_are_those_of_a_new_run():
    """The first seeds of a few cells, trained again."""
    rows = report.kept()
    for one in rows[:: max(1, len(rows) // 6)]:
        seeds = range(one.row["seeds"][0], one.row["seeds"][0] + 3)
        again = report.train(one.row["world"], [report.Learner(**one.row["learner"])], seeds)["final"][0]
        np.testing.assert_allclose(again, one.final[:3], rtol=1e-5)


def test_what_is_kept_of_a_contest_is_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "KEPT", tmp_path)
    one = next(each for each in report.kept() if each.told["control"] == "none")
    report.kept.cache_clear()
    point, key = one.told["point"], one.row["key"]
    family = {
        "family": "fixed clip", "point": point, "searched": 4, "more": 0, "edges": [], "chosen_with": 0.5,
        "p_adjusted": None, "keys": [key],
    }  # fmt: skip
    table = {"worlds": ["both"], "control": "plain", "families": [family]}
    results = {"contest": {"name": "a try"}, "commit": "abc", "tables": [table]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "rows.jsonl").write_text(json.dumps(dict(one.row)) + "\n")
    assert report.take(tmp_path).name == "a-try.jsonl.gz"
    (found,) = report.kept()
    assert found.row == one.row
    assert found.place == ("a try", "both", "plain")
    report.kept.cache_clear()


def test_a_difference_of_rows_of_other_seeds_is_refused():
    one = report.kept()[0]
    other = report.Kept(one.told, {**one.row, "seeds": [0, len(one.final)]})
    with pytest.raises(ValueError, match="rows of different seeds"):
        _ = report.Pair(one, other).difference
