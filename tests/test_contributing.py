"""The examples of CONTRIBUTING.md run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```\n", PAGE, re.DOTALL), ids=["divergence", "trainer"])
@pytest.mark.slow
def test_an_example_runs(code):
    # In a process of its own: it registers names.
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
