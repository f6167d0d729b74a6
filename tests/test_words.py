"""The pages are read once: their words are the field's, their lines and themselves short.

CONTRIBUTING.md has the list of words; what is quoted in its last column is on no page, and in no text of a command.
"""

import ast
import re

import pytest
from scripts import ROOT

LIST = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("### Words")[2].partition("\n## ")[0]
DOCS = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
PAGES = DOCS | {"README.md": ROOT / "README.md"}
PAGES |= {f"research {path.stem}": path for path in (ROOT / "research" / "pages").glob("*.md")}
REWRITTEN = sorted(DOCS)
# What commands print. Those of the report and of data have tables with words of papers.
SOURCES = [
    path
    for place in ("bandpo", "bandpo_runs/cli", "bandpo_runs/config", "bandpo_runs/training", "bandpo_runs/statistics")
    for path in sorted((ROOT / "src" / place).rglob("*.py"))
] + [ROOT / "src/bandpo_runs/reports/calibration.py"]
N = r"(?:\[?[-+]?\d[\d.,]*|one|two|three|four|five|six|eight|ten|sixteen|many)"


def phrases() -> list[str]:
    """What the last column quotes."""
    rows = [line.split("|") for line in LIST.splitlines() if line.startswith("| ")]
    return [phrase for row in rows for phrase in re.findall("`([^`]+)`", row[3])]


def pattern(phrase: str) -> re.Pattern[str]:
    """The phrase in the running text, over the end of a line too; N is any number."""
    words = r"\s+".join(N if word == "N" else re.escape(word) for word in phrase.split())
    return re.compile(rf"(?<![\w-]){words}(?![\w-])", re.IGNORECASE)


def prose(text: str) -> str:
    """The page without its blocks, and without what is quoted as code."""
    return re.sub(r"`[^`\n]*`", "``", re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL))


def test_the_list_has_its_words():
    assert 40 <= LIST.count("\n| ") - 1 <= 50
    assert len(phrases()) > 60
    assert pattern("N uses").search("It is used: eight\nuses")
    assert not pattern("N use").search("one useful thing")


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_has_the_words_of_the_list(name):
    text = prose(PAGES[name].read_text(encoding="utf-8"))
    old = [match[0] for phrase in phrases() for match in pattern(phrase).finditer(text)]
    old += re.findall(r".*\boutside\b(?! (?:its|their) bounds| of |\s+\[).*", text)  # of what?
    assert not old, "CONTRIBUTING.md, Words, says what to write"


def messages(source: str, with_help: bool) -> str:
    """The texts of a module, without its docstrings; those of commands are their help."""
    nodes = list(ast.walk(ast.parse(source)))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = [ast.get_docstring(node, clean=False) for node in nodes if isinstance(node, documented)]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n\n".join(text for text in texts if with_help or text not in docs)


def test_a_message_is_what_a_module_holds_besides_its_docstrings():
    source = 'def f():\n    """No rule acts."""\n    raise ValueError(f"clip acts in {x}")\n'
    assert (messages(source, False), messages(source, True)) == ("clip acts in ", "No rule acts.\n\nclip acts in ")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_a_message_has_the_words_of_the_list(path):
    text = messages(path.read_text(encoding="utf-8"), path.parent.name == "cli")
    assert not [match[0] for phrase in phrases() for match in pattern(phrase).finditer(text)]


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_page_is_short_and_so_are_its_lines(name):
    text = DOCS[name].read_text(encoding="utf-8")
    assert len(text.split()) <= 1500 or name == "methods.md"
    long = [line for line in prose(text).splitlines() if len(line) > 160 and not re.match(r"\||\s*<img|!\[", line)]
    assert not long


def test_the_pages_together_are_short():
    assert sum(len(DOCS[name].read_text(encoding="utf-8").split()) for name in REWRITTEN) <= 18_000
