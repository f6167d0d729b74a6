"""What goes with a release: how to cite it, and what is tried of its wheel."""

import importlib.util
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import bandpo

ROOT = Path(__file__).parent.parent


def test_the_citation_is_the_one_of_the_model_cards():
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["preferred-citation"]
    authors = " and ".join(f"{author['given-names']} {author['family-names']}" for author in paper["authors"])
    card = Path(importlib.util.find_spec("bandpo").origin).with_name("integrations") / "trl.py"  # needs no TRL
    text = card.read_text(encoding="utf-8")
    assert f'TITLE = "{paper["title"]}"' in text
    eprint, url = paper["identifiers"][0]["value"], paper["url"]
    pages, number = f"{paper['start']}--{paper['end']}", eprint.removeprefix("arXiv:")
    cited = {"author": authors, "booktitle": paper["collection-title"], "series": paper["volume-title"]}
    for name, value in {**cited, "pages": pages, "url": url, "eprint": eprint}.items():
        assert f"    {name:9} = {{{{{value}}}}}," in text
    for name in ("volume", "year"):
        assert f"    {name:9} = {paper[name]}," in text
    for page in ("README.md", "docs/index.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert f"({url})" in text
        assert f"(https://arxiv.org/abs/{number})" in text


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


WORKFLOWS = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")}


@pytest.mark.parametrize("name", ["quick", "release"])
def test_a_workflow_runs_what_is_here(name):
    text = WORKFLOWS[name]
    for script in re.findall(r"- run: (\.ci/\w+)", text):
        assert os.access(ROOT / script, os.X_OK)
    for path in re.findall(r"^ +([\w./-]+\.(?:txt|toml))$", text, re.MULTILINE):  # the cache depends on them
        assert (ROOT / path).is_file()
    for action in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v[\d.]+", action)  # a tag may move
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    (matrix,) = [job["strategy"]["matrix"] for job in yaml.safe_load(text)["jobs"].values() if "strategy" in job]
    assert matrix == {"python": named}


def test_only_the_last_job_of_a_release_may_publish():
    jobs = yaml.safe_load(WORKFLOWS["release"])["jobs"]
    assert {name: job["permissions"] for name, job in jobs.items() if "permissions" in job} == {
        "publish": {"id-token": "write"}
    }
    assert {*jobs["publish"]["needs"], "publish"} == set(jobs)
    assert yaml.safe_load(WORKFLOWS["release"])["permissions"] == {"contents": "read"}


@pytest.mark.parametrize(("tag", "code"), [(f"v{bandpo.__version__}", 0), (f"v{bandpo.__version__}.1", 1), ("v", 1)])
def test_a_release_needs_the_tag_of_its_version(tag, code):
    steps = yaml.safe_load(WORKFLOWS["release"])["jobs"]["build"]["steps"]
    (script,) = [step["run"] for step in steps if step.get("name") == "the tag is the version"]
    variables = os.environ | {"GITHUB_REF_NAME": tag}
    assert subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, env=variables, check=False).returncode == code
