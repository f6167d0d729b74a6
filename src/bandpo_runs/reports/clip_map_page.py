"""The clip map on a page of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from bandpo.trust_regions.base import Region

from ..files.writing import write_atomically
from .calibration import Calibration
from .charts import DARK, LIGHT
from .clip_map import cells_of, clip_map, head_of
from .content_security import POLICY
from .page import PAGES
from .tokens import Tokens


def write_clip_map(path: Path, tokens: Tokens, found: Calibration, regions: Sequence[Region], about: str) -> None:
    """Write a page about what was calibrated.

    It has the maps of two rules, of that to match and the first that has a number, and
    the numbers of all.

    Args:
        path: of the page.
        tokens: that it was calibrated with.
        found: the answer.
        regions: the rule to match, if there is one, and those that were found, in their order.
        about: the answer in words.
    """
    maps = [clip_map(tokens, region, among=found.among, cut=found.cut) for region in regions]
    rows = [(one.label, cells_of(found.looked_at, one)) for _, one in maps]
    content = PAGES.get_template("clip_map_page.html.jinja").render(
        policy=Markup(POLICY), light=LIGHT, dark=DARK, about=about,
        maps={
            "figures": [figure for figure, _ in maps[:2]], "head": head_of("cut" if found.cut else "outside"),
            "rows": rows, "notes": found.warnings,
        },
    )  # fmt: skip
    write_atomically(path, content.encode())
