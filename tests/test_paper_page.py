"""docs/paper.md and its proofs are what `python docs/paper.py` writes: a row for every statement, and real names."""

import math
from dataclasses import replace

import pytest
from commands import missing
from mpmath import mp, mpf
from scripts import load

from oracle import GENERATORS, exact_bounds_of


@pytest.fixture(scope="module")
def paper():
    return load("docs/paper.py")


def test_nothing_of_the_page_is_missing_or_made_up(paper):
    assert paper.faults() == []


def test_the_committed_page_is_the_one_that_the_script_writes(paper):
    """If not: `python docs/paper.py`."""
    assert paper.PAGE.read_text(encoding="utf-8") == paper.page()
    assert paper.DERIVATIONS.read_text(encoding="utf-8") == paper.derivations()


def test_a_verdict_links_to_its_proof(paper):
    linked = {s.section for s in paper.STATEMENTS} & {*paper.SECTIONS}
    assert not missing(paper.derivations(), *(f"\n## {name}\n" for name in paper.SECTIONS))
    assert not missing(paper.page(), *(f"](../research/pages/paper_statements.md#{paper.anchor(x)})" for x in linked))
    assert "\n## Clip rates in the public logs\n" in paper.page()


def test_the_table_of_results_has_one_verdict_on_both_pages(paper):
    (row,) = (s for s in paper.STATEMENTS if s.labels == "tab:main_results")
    page = paper.ROOT / "research" / "pages" / "paper_table.md"
    assert f"In all: **{row.verdict}**." in page.read_text(encoding="utf-8")
    assert f"| **[{row.verdict}](../research/pages/{page.name})** |" in paper.PAGE.read_text(encoding="utf-8")


def test_the_table_of_divergences_agrees_with_60_digit_arithmetic(paper):
    """What a token may reach at p = e^-100, for p -> 0, and at p = 10^-6; and p_0, where the lower bound leaves 0."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in paper.table_of_ends().splitlines()[2:]]
    assert len(rows) == 7
    for name, _, _, slope, point, share, far in rows:
        f = GENERATORS[name.strip("`")]
        q_low, q_far = (float(mp.exp(mpf(x) + exact_bounds_of(f, x, 0.05).log_high)) for x in (-100.0, math.log(1e-6)))
        assert far == f"{q_far:.2g}"
        assert share.split()[-1] == ("$0$" if "infty" in slope else f"{q_low:.4f}")
        if point == "never":
            assert mp.isinf(f(mpf(0)))
        else:
            p = mpf(point.split()[-1])
            below, above = (x * f(mpf(0)) + (1 - x) * f(1 / (1 - x)) for x in (p - 6e-5, p + 6e-5))
            assert below < 0.05 < above


@pytest.mark.parametrize(
    ("label", "fields", "fault"),
    [
        ("prop:limits", None, "eq:all_limits of the paper has no row"),
        ("prop:limits", {"functions": "solver"}, "solver of prop:limits is not public in bandpo"),
        ("prop:limits", {"tests": "test_prop_limit"}, "test_prop_limit of prop:limits does not exist"),
        ("prop:limits", {"claim": "No limits."}, ""),
    ],
)
def test_a_row_that_is_wrong_writes_no_page_and_another_one_another_page(
    paper, monkeypatch, capsys, tmp_path, label, fields, fault
):
    rows = [s for s in paper.STATEMENTS if label not in s.labels.split()]
    (row,) = set(paper.STATEMENTS) - set(rows)
    before = paper.page()
    monkeypatch.setattr(paper, "STATEMENTS", (*rows, replace(row, **fields)) if fields else tuple(rows))
    monkeypatch.setattr(paper, "PAGE", tmp_path / "paper.md")
    monkeypatch.setattr(paper, "DERIVATIONS", tmp_path / "paper_statements.md")
    assert paper.main() == bool(fault)
    assert fault in capsys.readouterr().err
    assert paper.PAGE.exists() == (not fault)
    assert fault or paper.page() != before
