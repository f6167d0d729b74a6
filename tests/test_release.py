"""What goes with a release: how to cite it, and what is tried of its wheel."""

import importlib.util
import re
import textwrap
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def test_the_citation_is_the_one_of_the_model_cards():
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["preferred-citation"]
    authors = " and ".join(f"{author['given-names']} {author['family-names']}" for author in paper["authors"])
    card = Path(importlib.util.find_spec("bandpo").origin).with_name("integrations") / "trl.py"  # needs no TRL
    text = card.read_text(encoding="utf-8")
    assert f'TITLE = "{paper["title"]}"' in text
    eprint, url = paper["identifiers"][0]["value"], paper["url"]
    pages, number = f"{paper['start']}--{paper['end']}", eprint.removeprefix("arXiv:")
    given = {"author": authors, "booktitle": paper["collection-title"], "series": paper["volume-title"]}
    for name, value in {**given, "pages": pages, "url": url, "eprint": eprint}.items():
        assert f"    {name:9} = {{{{{value}}}}}," in text
    for name in ("volume", "year"):
        assert f"    {name:9} = {paper[name]}," in text
    for page in ("README.md", "docs/index.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert f"({url})" in text
        assert f"(https://arxiv.org/abs/{number})" in text


def test_the_model_card_on_the_page_cites_as_the_trainer_does():
    card = (ROOT / "src" / "bandpo" / "integrations" / "trl.py").read_text(encoding="utf-8")
    title = re.search('TITLE = "(.*)"', card)[1]
    cited = re.search(r'CITATION = f"""\\\n(.*?)"""', card, re.DOTALL)[1].replace("{TITLE}", title)
    page = (ROOT / "docs" / "trl.md").read_text(encoding="utf-8")
    assert textwrap.indent(cited.replace("{{", "{").replace("}}", "}"), " " * 4) in page


def test_every_extra_and_every_python_is_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    script = (ROOT / ".ci" / "wheel").read_text(encoding="utf-8")
    tried = re.search(r"extras=\((base .*)\)", script)[1].split()
    extras = set(project["optional-dependencies"]) - {"verl"}  # .ci/run has a stage for it
    assert set(tried) == extras | {"base"}
    assert set(tried) == set(re.findall(r"^    ([\w-]+)\)", script, re.MULTILINE))
    named = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.", each)]
    assert project["requires-python"] == f">={named[0]}"
    assert named == sorted(named, key=lambda each: int(each.partition(".")[2]))
