"""Fixtures of contests; their rules that left the library are known by their kinds."""

from __future__ import annotations

import pytest
from contests import FakeWorlds, node_of

import bandpo.worlds
from bandpo.bench.reading import make_contest


@pytest.fixture
def small():
    return make_contest(node_of())


@pytest.fixture
def worlds(monkeypatch):
    fake = FakeWorlds()
    monkeypatch.setattr(bandpo.worlds, "train", fake.train)
    return fake
