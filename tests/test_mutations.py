"""The list of planted faults is about the source as it is, and its page is about the list."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def mutations():
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "benchmarks" / "mutations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutations"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutations"]


def test_every_fault_can_be_planted(mutations):
    """If one of its texts has changed, so may have what it shows: change the list and run that fault again."""
    for fault in mutations.FAULTS:
        ast.parse(mutations.faulty(fault))


def test_the_page_is_that_of_the_rows(mutations):
    assert (ROOT / "docs" / "mutations.md").read_text(encoding="utf-8") == mutations.page()
