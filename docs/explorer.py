"""Make docs/explorer.html, one page that needs no network, from the files of docs/explorer.

    python docs/explorer.py
    python docs/explorer.py runs/tokens/tokens-0.jsonl  # and its example, of what examples/tokens.py wrote: 1 row in 50

The build of the site makes it too (docs/conf.py). tests/test_explorer.py compares its numbers with bandpo's, in a
browser.
"""

import base64
import hashlib
import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
PARTS, PAGE = HERE / "explorer", HERE / "explorer.html"
SCRIPTS = ("operator.js", "methods.js", "tokens.js", "drawing.js", "page.js")
EVERY = 50


def read(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def page() -> str:
    """Return the page. The browser is told to run its own scripts, by their hashes, and to fetch nothing."""
    scripts = [read(name) for name in SCRIPTS]
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; script-src "
    elements = [f'<script type="application/json" id="tokens">{read("example.jsonl")}</script>']
    elements += [f"<script>{text}</script>" for text in scripts]
    out = read("page.html").replace("{policy}", policy + " ".join(f"'sha256-{each}'" for each in hashes))
    return out.replace("{style}", read("style.css")).replace("{scripts}", "\n".join(elements))


def example(tokens: Path) -> str:
    """Return some of the responses of a run, to four digits."""
    lines = []
    for line in tokens.read_text(encoding="utf-8").splitlines()[::EVERY]:
        row = json.loads(line)
        short = {name: [round(x, 4) + 0.0 for x in row[name]] for name in ("old_logps", "logps")}
        lines.append(json.dumps(short | {"advantage": round(row["advantage"], 2)}, separators=(",", ":")) + "\n")
    return "".join(lines)


def write() -> Path:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    return PAGE


if __name__ == "__main__":
    if sys.argv[1:]:
        (PARTS / "example.jsonl").write_text(example(Path(sys.argv[1])), encoding="utf-8")
    print(write())
