"""A tiny model on disk, what draws from it, and a folder to work in."""

import pytest
import recipe

from bandpo_runs import toy
from bandpo_runs.evals.backends.local import Transformers


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """The model of the recipe, with a chat template that leaves a message as it is."""
    home = recipe.make(tmp_path_factory.mktemp("home"))
    tokenizer = toy.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(home / "model")
    return home


@pytest.fixture(scope="session")
def engine(home):
    return Transformers(str(home / "model"))


@pytest.fixture
def here(here, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return here
