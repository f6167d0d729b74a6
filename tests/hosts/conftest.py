"""A case of trainers.py, by its key."""

import pytest
from hosts.trainers import Opened


@pytest.fixture
def trainer(request, monkeypatch):
    opened = Opened(request.param, monkeypatch)
    yield opened
    opened.close()
