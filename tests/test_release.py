"""What goes with a release: how to cite it."""

import importlib.util
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def test_the_citation_is_the_one_of_the_model_cards():
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["preferred-citation"]
    authors = " and ".join(f"{author['given-names']} {author['family-names']}" for author in paper["authors"])
    card = Path(importlib.util.find_spec("bandpo").origin).with_name("integrations") / "trl.py"  # needs no TRL
    text = card.read_text(encoding="utf-8")
    assert f'TITLE = "{paper["title"]}"' in text
    assert f"author = {{{{{authors}}}}}," in text
    assert f"eprint = {{{{{paper['identifiers'][0]['value']}}}}}," in text
    assert paper["url"].rpartition("/")[2] == paper["identifiers"][0]["value"].removeprefix("arXiv:")
