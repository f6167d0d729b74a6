"""The data sets of the paper, small, on disk; and what is made of them."""

import pytest
from published import CHINESE, LEAKED, aime24, aime25, amc23, dapo, math, problem, put

from bandpo_runs.data.preparation import Settings, prepare
from bandpo_runs.data.sources import find


@pytest.fixture
def copies(tmp_path):
    """The five data sets of the paper, small: 30, 30 and 40 problems, 40 DAPO rows (8 Chinese), 20 MATH rows."""
    folder = tmp_path / "copies"
    answers = ["204", "025", "110"]
    put(folder, "aime24", [*(aime24(problem(i), answers[i % 3], i) for i in range(29)), LEAKED])
    put(folder, "aime25", [aime25(problem(100 + i), str(70 + i), i) for i in range(30)])
    put(folder, "amc23", [amc23(problem(200 + i), f"{i - 3}.0", i) for i in range(40)])
    english = [dapo(problem(300 + i), str(i), i) for i in range(32)]
    put(folder, "dapo-math-17k", [*english, *(dapo(CHINESE.format(i), "60", 50 + i) for i in range(8))])
    put(folder, "math-levels-3-5", [math(problem(400 + i), r"\frac{1}{2}", 1 + i % 5, i) for i in range(20)])
    return folder


@pytest.fixture
def make(tmp_path, copies):
    """prepare() of names into one folder, from the copies; returns the accounts and what was said."""

    def make(*names, output=None, columns=None, **settings):
        result = [source for name in names for source in find(name, **(columns or {}))]
        message = []
        settings = Settings(**{"copies": copies, **settings})
        return prepare(result, output or tmp_path / "out", settings, say=message.append), message

    return make
