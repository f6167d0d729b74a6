"""The list of planted faults is about the source as it is, and its page is about the list."""

import ast
from pathlib import Path

import pytest
from scripts import load

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def mutations():
    return load("benchmarks/mutations.py")


def test_every_fault_can_be_planted(mutations):
    """If one of its texts has changed, so may have what it shows: change the list and run that fault again."""
    for fault in mutations.FAULTS:
        text = mutations.faulty(fault)
        if fault.file.endswith(".py"):
            ast.parse(text)
        assert all((ROOT / mutations.test_of(name).partition("::")[0]).exists() for name in fault.tests.split())


def test_the_page_is_that_of_the_rows(mutations):
    assert (ROOT / "research" / "pages" / "mutations.md").read_text(encoding="utf-8") == mutations.page()
