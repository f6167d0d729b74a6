"""Render the templates of pages, and the tables in them."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .content_security import policy

# The colours of Okabe and Ito without yellow, which vanishes on white; DARK: the same hues for dark paper.
LIGHT = ("#0072b2", "#d55e00", "#008f68", "#b5558c", "#b97f00", "#2f93cc", "#6b6b6b")
DARK = ("#4aa8e8", "#ff8a4c", "#2cc79b", "#e79ac6", "#f2b632", "#8fd0f5", "#b5b5b5")
_PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


class Table(NamedTuple):
    """Rows of cells, each a text and small print."""

    caption: str
    head: list[tuple[str, str]]  # with small print
    rows: list[tuple[str, list[tuple[str, ...]]]]
    notes: Sequence[str] = ()
    defined: bool = False  # the last column holds definitions


def cell(text: str, *small: str) -> tuple[str, ...]:
    """Return a cell; brackets at the end of the text are small print."""
    text = re.sub("([<>±]) ", "\\1\xa0", text)  # "> 30" and "± 2" do not break
    main, bracket = re.fullmatch(r"(.*?)(?: (\(.*\)))?", text, re.DOTALL).groups("")  # type: ignore[union-attr]
    return (main, *filter(None, (bracket, *small)))


def rendered(template: str, script: str = "", **content: Any) -> str:
    """Render a template of this folder; the page may run `script` and nothing else."""
    return _PAGES.get_template(template).render(
        policy=Markup(policy(script)), script=Markup(script), light=LIGHT, dark=DARK, **content
    )


def rendered_text(template: str, filters: Mapping[str, Callable[..., str]], **content: Any) -> str:
    """Render a text. << >> and <% %> mark what is filled in, braces stand for themselves."""
    texts = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        comment_start_string="<#",
        comment_end_string="#>",
    )
    texts.filters |= filters
    return texts.get_template(template).render(content)
