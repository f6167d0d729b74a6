"""Links to files of the repository: each such file gets a page of its own in the site, and a test opens at its line.

A page may link to `../tests/test_paper.py` as it does where the repository is browsed. Where the text of the link is a
name that the file defines, the link goes to the line of its definition. A folder becomes a list of its files.
"""

import json
import re
import subprocess
from pathlib import Path

import rows
from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
LANGUAGES = {".py": "python", ".ipynb": "python", ".yaml": "yaml", ".md": "markdown", ".toml": "toml", ".sh": "bash"}


def setup(app):
    app.connect("doctree-read", link_files, priority=400)  # before downloads are collected
    app.connect("html-collect-pages", pages)
    return {"parallel_read_safe": False}  # what one process has read, another would not know


def link_files(app, doctree):
    """What MyST takes for a page that is missing, or for a download, and is in the repository."""
    name = app.env.docname
    for node in [*doctree.findall(addnodes.download_reference), *doctree.findall(addnodes.pending_xref)]:
        if node.get("reftype") != "myst" or node["reftarget"].startswith("#"):
            continue
        target = Path(app.env.doc2path(name)).parent / node["reftarget"].partition("#")[0]
        if node["refdomain"] == "doc":
            target = (DOCS / node["reftarget"]).with_suffix(".md")
            node["refexplicit"] = not node.astext().endswith(".md")  # [idea.md](idea.md) reads as that page's title
        if not target.exists():  # as in CONTRIBUTING.md, which is a page of docs/ by inclusion
            target = ROOT / node["reftarget"]
        target = target.resolve()
        if not target.is_relative_to(ROOT) or (target.suffix == ".md" and target.is_relative_to(DOCS)):
            continue
        if not target.exists():
            continue
        if target.name in app.config.html_extra_path:
            uri = target.name
        elif target == rows.ROWS:
            wanted = node["reftarget"].partition("#")[2]
            uri = app.builder.get_relative_uri(name, rows.PAGE) + (f"?rows={wanted}" if wanted else "")
        else:
            line = line_of(target, node.astext())
            if not line and node.astext().startswith("test_"):
                logging.getLogger(__name__).warning("%s has no %s", target, node.astext(), location=node)
            uri = app.builder.get_relative_uri(name, page_of(target)) + line
            app.env.__dict__.setdefault("repository_files", set()).add(target.relative_to(ROOT).as_posix())
        children = [child.deepcopy() for child in node.children[0].children]
        node.replace_self(nodes.reference("", "", *children, internal=True, refuri=uri))


def line_of(target, text):
    if target.suffix != ".py" or not re.fullmatch(r"[\w.]+", text):
        return ""
    wanted = re.compile(rf"\s*(def|class) {text.rpartition('.')[2]}\b")
    lines = target.read_text(encoding="utf-8").splitlines()
    return next((f"#line-{at}" for at, line in enumerate(lines, 1) if wanted.match(line)), "")


def page_of(target):
    return f"files/{target.relative_to(ROOT).as_posix().replace('.', '-')}"


def source_of(cell):
    """A cell of a notebook in a Python file."""
    text = "".join(cell["source"])
    return text if cell["cell_type"] == "code" else re.sub("^", "# ", text, flags=re.MULTILINE)


def pages(app):
    """The page of each file that is linked to, and of each in a folder that is."""
    kept = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    wanted = set(app.env.__dict__.get("repository_files", ()))
    inside = {path: [each for each in kept if each.startswith(f"{path}/")] for path in wanted}
    for path in sorted(wanted.union(*inside.values())):
        here = page_of(ROOT / path)
        if (ROOT / path).is_dir():
            uris = [(app.builder.get_relative_uri(here, page_of(ROOT / each)), each) for each in inside[path]]
            body = "".join(f'<li><a href="{uri}">{each}</a></li>' for uri, each in uris)
            body = f"<ul>{body}</ul>"
        elif path.endswith((".gz", ".xz")):
            body = f"<p>Compressed, {(ROOT / path).stat().st_size:,} bytes; see the repository.</p>"
        else:
            text = (ROOT / path).read_text(encoding="utf-8")
            language = LANGUAGES.get(Path(path).suffix, "text")
            if path.endswith(".ipynb"):
                text = "\n\n".join(map(source_of, json.loads(text)["cells"]))
            body = app.builder.highlighter.highlight_block(
                text, language, force=True, linenos="inline", lineanchors="line"
            )
        yield here, {"title": path, "body": f"<h1>{path}</h1>{body}"}, "page.html"
