"""The table of promises, where a page has `<!-- promises -->`: made from tests/promises.yaml at each build."""

from pathlib import Path

import yaml

LIST = Path(__file__).parents[2] / "tests" / "promises.yaml"
WHEN = {"tests": "", "weekly": " weekly", "gpu": " GPU"}


def setup(app):
    app.connect("source-read", replace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def replace(app, name, source):
    source[0] = source[0].replace("<!-- promises -->", table())


def table():
    lines = ["| promise | tests |", "|---|---|"]
    for each in yaml.safe_load(LIST.read_text(encoding="utf-8")):
        tests = (link(test) + when for kind, when in WHEN.items() for test in each.get(kind, ()))
        number = f"<br>*{each['number']}*" if "number" in each else ""
        lines.append(f"| {each['promise']}{number} | {'<br>'.join(tests)} |")
    return "\n".join(lines)


def link(test):
    """A link whose text is the test's name, which repository.py looks for; or its file."""
    file, *names = test.split("::")
    return f"[`{names[-1] if names else file}`](../{file})"
