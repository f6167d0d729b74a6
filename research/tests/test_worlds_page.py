"""research/pages/worlds.md: its tables are those of the rows and of the scenes."""

from __future__ import annotations

import re
from pathlib import Path

from scripts import load

from research.worlds.scenes import SCENES

PAGE = Path(__file__).parents[1] / "pages" / "worlds.md"


def test_the_table_of_the_page_is_that_of_the_rows():
    """If not: `python -m research.measurements.worlds --page`."""
    script = load("research/measurements/worlds.py")
    assert script.page() == script.PAGE.read_text(encoding="utf-8")


def test_the_scenes_in_numbers_are_those_of_the_code():
    lines = re.findall(r"^\| `([\w ]+)` \| (0\..*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    told = {name: numbers.split(" | ") for name, numbers in lines}
    assert told == {
        name: [
            f"{s.p_work:g}", f"{s.p_bad:g}", f"{s.luck:g}", f"{s.flip:g}",
            f"{s.prompts_per_round} x {s.responses_per_prompt}", f"{s.minibatches * s.epochs}", f"{s.rounds}",
            f"{s.sharpness:g}", f"{s.tokens}",
        ]
        for name, s in SCENES.items()
        if not s.ways
    }  # fmt: skip
