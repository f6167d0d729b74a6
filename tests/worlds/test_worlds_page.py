"""docs/worlds.md: its table is that of the rows."""

from __future__ import annotations

from scripts import load


def test_the_table_of_the_page_is_that_of_the_rows():
    """If not: `python benchmarks/worlds.py --page`."""
    script = load("benchmarks/worlds.py")
    assert script.page() == script.PAGE.read_text(encoding="utf-8")
