"""Resolve, and do not install, each `pip install` that the scripts of .ci and the pages give.

    installs.py UV PYTHON...    print the lines with their outcomes; UV is its command, PYTHON what they are for

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
# The Python of a list that names builds; other lines are for every Python of pyproject.toml.
PYTHONS = {"constraints-verl.txt": "3.11", "constraints-hosts.txt": "3.11", "constraints-gpu.txt": "3.12"}


def variables() -> dict[str, list[str]]:
    """The values that the variables of the scripts take."""
    wheel = (ROOT / ".ci" / "wheel").read_text(encoding="utf-8")
    stages = (ROOT / ".ci" / "stages").read_text(encoding="utf-8")
    extras = re.search(r"extras=\(base (.*)\)", wheel)[1].split()
    torch = re.search("^torch==.*", (ROOT / "constraints-verl.txt").read_text(encoding="utf-8"), re.MULTILINE)[0]
    return {
        "$wheel": ["."],
        "${wheel}[$extra]": [f".[{extra}]" for extra in extras],
        "$torch": [torch],
        "$each": re.search(r"for each in (\S+==.*); do", stages)[1].split(),
    }


def lines() -> dict[tuple[str, ...], str]:
    """The arguments of every `pip install`, and the first place that has them."""
    out = {}
    for place in PLACES:
        for path in sorted(ROOT.glob(place)):
            if path.suffix == ".py" or "_site" in path.parts:
                continue
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".ipynb":
                text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
            for line in re.findall(r'\bpip"? install ([^`\n]+)', text):
                for arguments in commands(line):
                    out.setdefault(arguments, str(path.relative_to(ROOT)))
    return out


def commands(line: str) -> list[tuple[str, ...]]:
    """The arguments in what follows `pip install` on a line, once for each value of a variable."""
    lexer = shlex.shlex(re.sub(r"2>\S+", "", line), posix=True, punctuation_chars=True)
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
        subprocess.run([uv, "venv", "--quiet", "--python", python, f"{folder}/env"], check=True)
        command = [uv, "pip", "install", "--dry-run", "--python", f"{folder}/env/bin/python", *asked]
        # As pip does: the wheels of a folder, and the best version of any index.
        own = os.environ | {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
        done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()


def without_addresses(name: str, folder: str) -> str:
    """A copy of a list without the packages that it takes from an address; their file would be downloaded."""
    text = (ROOT / name).read_text(encoding="utf-8")
    copy = Path(folder) / name
    copy.write_text("".join(line for line in text.splitlines(keepends=True) if " @ " not in line), encoding="utf-8")
    return str(copy)


def main(uv: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = [each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r"Python :: 3\.\d", each)]
    passed = failed = skipped = 0
    for arguments, place in lines().items():
        shown = f"pip install {shlex.join(arguments)}  ({place})"
        if why := next((why for word, why in NOT_RESOLVED.items() if word in arguments), ""):
            print(f"not resolved, {why}: {shown}")
            skipped += 1
            continue
        pythons = next(([python] for name, python in PYTHONS.items() if name in arguments), every)
        for python in pythons:
            why = resolve(uv, python, arguments)
            print(f"Python {python}, {'failed' if why else 'resolves'}: {shown}{why and chr(10) + why}", flush=True)
            failed, passed = failed + bool(why), passed + (not why)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main(sys.argv[1])
