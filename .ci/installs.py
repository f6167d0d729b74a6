"""Resolve, and do not install, each `pip install` that the scripts of .ci and the pages give.

    installs.py UV    print the lines with their outcomes; UV is the command

uv stands for pip: it has the result in seconds and downloads metadata alone. A variable of a script must stand in
`variables`, or the line is an error.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACES = ["README.md", "CONTRIBUTING.md", "docs/**/*.md", "research/pages/*.md", "examples/*.ipynb"]
PLACES += ["recipes/**/Dockerfile", ".ci/*"]
# What a line holds that cannot be asked for here, and why.
NOT_RESOLVED = {"--index-url": "another index"}


def variables() -> dict[str, list[str]]:
    """The values that the variables of the scripts take."""
    wheel = (ROOT / ".ci" / "wheel").read_text(encoding="utf-8")
    stages = (ROOT / ".ci" / "stages").read_text(encoding="utf-8")
    extras = re.search(r"extras=\(base (.*)\)", wheel)[1].split()
    torch, newest = (
        re.search("^torch==.*", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)[0]
        for name in ("constraints/verl.txt", "constraints/base.txt")
    )
    return {
        "$wheel": ["."],
        "${wheel}[$extra]": [f".[{extra}]" for extra in extras],
        "$torch": [torch],
        "$newest": [newest],
        "$each": re.search(r"for each in (\S+==.*); do", stages)[1].split(),
    }


def lines() -> dict[tuple[str, ...], str]:
    """The arguments of every `pip install`, and the first place that has them."""
    out = {}
    for place in PLACES:
        for path in sorted(ROOT.glob(place)):
            if path.is_dir() or path.suffix == ".py" or "_site" in path.parts:
                continue
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".ipynb":
                text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
            for line in re.findall(r'(?<!installed; )\bpip"? install ([^`\n]+)', text):  # not in a message
                for arguments in commands(line):
                    if not all(each.startswith("-") for each in arguments):  # a page may speak of an option
                        out.setdefault(arguments, str(path.relative_to(ROOT)))
    return out


def commands(line: str) -> list[tuple[str, ...]]:
    """The arguments in what follows `pip install` on a line, once for each value of a variable."""
    lexer = shlex.shlex(re.sub(r'2>("[^"]*"|[^\s;]+)', "", line), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    arguments = []
    for word in lexer:
        if set(word) <= set("();<>|&"):
            break
        arguments.append(word)
    if "$work/docs.txt" in arguments:  # what the extra names
        arguments[arguments.index("$work/docs.txt") - 1 :] = [".[docs]"]
    if "--target" in arguments:
        del arguments[arguments.index("--target") : arguments.index("--target") + 2]
    kept = [each for each in arguments if not re.fullmatch("-q+", each)]
    named = [re.sub(r"^bandpo\b", ".", each) for each in kept]
    values = variables()
    free = [each for each in named if "$" in each]
    if not free:
        return [tuple(named)]
    if len(free) > 1 or free[0] not in values:
        raise SystemExit(f"a variable of `pip install {line}` is not in {Path(__file__).name}")
    return [tuple(value if each == free[0] else each for each in named) for value in values[free[0]]]


def resolve(uv: str, python: str, arguments: tuple[str, ...]) -> str:
    """Ask uv for a line; "" if it resolves, or why not."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [without_addresses(each, folder) if each.endswith(".txt") else each for each in arguments]
        # Into an empty folder, as into an empty environment; lists ask for a patch of 3.11, so it is not the first.
        command = [uv, "pip", "install", "--dry-run", "--python", sys.executable, "--python-version", f"{python}.9"]
        command += ["--target", folder, *asked]
        # As pip does: the wheels of a folder, and the best version of any index.
        own = os.environ | {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
        done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()


def without_addresses(name: str, folder: str) -> str:
    """A copy of a list without the packages that it takes from an address; their file would be downloaded."""
    text = (ROOT / name).read_text(encoding="utf-8")
    copy = Path(folder) / Path(name).name
    copy.write_text("".join(line for line in text.splitlines(keepends=True) if " @ " not in line), encoding="utf-8")
    return str(copy)


def pythons(arguments: tuple[str, ...]) -> list[str]:
    """The Pythons of a line: all that pyproject.toml names where it resolves what bandpo needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.\d", each)]
    if "constraints/gpu.txt" in arguments:
        return ["3.12"]  # it names builds
    return every if any(each.startswith(".") for each in arguments) else every[:1]


def main(uv: str) -> None:
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for arguments, place in lines().items():
        for python in pythons(arguments):
            why = next((why for word, why in NOT_RESOLVED.items() if word in arguments), "")
            error = "" if why else resolve(uv, python, arguments)
            if "+cpu" in error:
                why = "no index has the CPU build of torch that the stage verl needs"
            outcome = "skipped" if why else "failed" if error else "passed"
            counts[outcome] += 1
            print(f"{outcome}, Python {python}: pip install {shlex.join(arguments)}  ({place})", flush=True)
            if why or error:
                print(f"  {why or error}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    raise SystemExit(counts["failed"] > 0)


if __name__ == "__main__":
    main(sys.argv[1])
