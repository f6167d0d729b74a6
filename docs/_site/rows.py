"""A page of the site that shows docs/report/rows.csv and filters it; a link to one of its rows opens it there."""

import base64
import csv
import hashlib
import json
from pathlib import Path

HERE = Path(__file__).parent
ROWS = HERE.parent / "report" / "rows.csv"
PAGE = "report/rows"  # in the site, without .html


def setup(app):
    app.connect("build-finished", write, priority=400)  # before links are checked
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write(app, exception):
    if exception is None and app.builder.format == "html":
        path = Path(app.outdir, f"{PAGE}.html")
        path.parent.mkdir(exist_ok=True)
        path.write_text(page(), encoding="utf-8")
        path.with_suffix(".csv").write_bytes(ROWS.read_bytes())


def page():
    """Return the page. The browser is told to run its own script, by its hash, and to fetch nothing."""
    with ROWS.open(encoding="utf-8", newline="") as file:
        rows = json.dumps(list(csv.reader(file)), separators=(",", ":")).replace("<", "\\u003c")
    script = (HERE / "rows.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    made = (HERE / "rows.html").read_text(encoding="utf-8").replace("{digest}", digest)
    return made.replace("{script}", script).replace("{rows}", rows)
