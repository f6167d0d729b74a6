"""Fixtures of contests, and what holds for every test of research."""

import os
from pathlib import Path

import pytest
import torch
from contests import FakeWorlds, node_of

import research.rules
import research.worlds
from research.bench.reading import make_contest

os.environ.pop("COLUMNS", None)  # as in tests/conftest.py
torch.set_num_threads(1)
# Of one name with those of tests/, beside which it is looked through for doctests in the weekly stage of slow tests.
collect_ignore_glob = ["conftest.py"]
# What a test starts in another folder finds research too.
root = str(Path(__file__).parents[2])
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


@pytest.fixture
def small():
    return make_contest(node_of())


@pytest.fixture
def worlds(monkeypatch):
    fake = FakeWorlds()
    monkeypatch.setattr(research.worlds, "train", fake.train)
    return fake
