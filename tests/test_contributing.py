"""The examples of CONTRIBUTING.md run as they stand there, and are as short as it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
PARTS = re.split(r"^## (.*)\n", PAGE, flags=re.MULTILINE)
EXAMPLES = [
    (title, code)
    for title, text in zip(PARTS[1::2], PARTS[2::2], strict=True)
    for code in re.findall(r"```python\n(.*?)```\n", text, re.DOTALL)
]
WORDS = {"five": 5, "ten": 10, "thirty": 30}


@pytest.mark.parametrize(("title", "code"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
@pytest.mark.slow
def test_the_example_runs_and_is_short(title, code):
    imports = re.findall(r"^(?:import|from) .*\n", code, re.MULTILINE)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) - len(imports) <= WORDS[re.search(r"in (\w+)", title)[1]]
    # In a process of its own: it registers names.
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
