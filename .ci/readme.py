"""Run what the README, the pages of docs/ and the notebook give their readers to run, in the order of the text.

A block marked diff changes a Python script of the reader's: what runs is the script after it.

    readme.py line main|test    print the line that runs the main job, or the tests
    readme.py readme            run the main line and the README's blocks marked sh or python
    readme.py run               the same of every page, and the notebook
    readme.py run NOTEBOOK      run this notebook only

What takes minutes is shortened by the arguments in SHORTER, and what cannot run here is in NOT_RUN; both are printed.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.ipynb"))]
SHORTER = {
    "bandpo lab": " --rounds 3 --seeds 1",
    "&& bandpo train": " rounds=2 data.eval_size=16",  # of 400 questions, each of three evaluations takes as a round
    "bandpo train recipes/lab/band-kl.yaml": " rounds=2",
}
# What a command or a block begins with, and why it is not run.
NOT_RUN = {
    "pip install '.[eval]'": "the environment has what it brings",
    "pip install --no-deps .": "verl has an environment of its own, with tests of its own",
    "python -m verl": "verl has an environment of its own, with tests of its own",
    "vllm serve": "needs vLLM",
    "bandpo eval Qwen": "the model is on the hub",
    "bandpo eval MODEL": "the model is the reader's",
    "bandpo data prepare paper": "the data are on the hub",
    "bandpo data prepare my.csv": "the file is the reader's",
    "bandpo train recipe.yaml": "the recipe is the reader's",
    "from bandpo import Band\nfrom bandpo.integrations.trl": "the script is the reader's; README.md has a whole one",
}
_OF_VERL = "needs verl; tests/cluster/test_reproduce.py runs the ten minutes of docs/reproduce.md, with a toy"
_AFTER_VERL = """
    bandpo report paper-; bandpo doctor paper-; bandpo table paper-; bandpo table checkpoints/
    bandpo table runs/eval/smoke; bandpo compare before=checkpoints/; bandpo compare checkpoints/
    bandpo eval runs/merged; ls paper-smoke; at=checkpoints/
"""
NOT_RUN |= dict.fromkeys(map(str.strip, re.split("[;\n]", _AFTER_VERL.strip())), _OF_VERL)

_SHELL = r"import subprocess; subprocess.run(r'''\1''', shell=True, check=True)"  # what `!` does in a notebook


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of every fenced block that is to be run, also within a list; all cells of a notebook are one.

    A diff is the script after it.
    """
    if page.suffix == ".ipynb":
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        return [("python", re.sub("^!(.*)", _SHELL, code, flags=re.MULTILINE))]
    page_text, out = page.read_text(encoding="utf-8"), []
    for indent, language, text in re.findall(r"^( *)```(sh|python|diff)\n(.*?)^ *```$", page_text, re.M | re.S):
        text = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
        out.append(("python", side(text, "+")) if language == "diff" else (language, text))
    return out


def side(diff: str, sign: str) -> str:
    """The script before a diff (sign "-") or after it ("+")."""
    return "".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] in (" ", sign))


def commands(block: str) -> list[str]:
    """The commands of a block, each in one line and without the comment behind it."""
    joined = re.sub(r"\\\n\s*", "", block)
    return [line for line in (re.sub(r"(^|\s+)# .*$", "", line).strip() for line in joined.splitlines()) if line]


def why_not(text: str) -> str:
    """Why a command or a block is not run; "" if it is."""
    reasons = [why for start, why in NOT_RUN.items() if text.startswith(start)]
    return next(iter(reasons), "")


def line(kind: str) -> str:
    """The one line that installs and then runs the main job, or the tests."""
    wanted = {"main": "bandpo train", "test": "pytest"}[kind]
    lines = {text for page in PAGES for _, block in blocks(page) for text in block.splitlines()}
    (found,) = [text for text in lines if re.search(rf"^pip install .* && {wanted}$", text)]
    return found


def run(pages: list[Path]) -> None:
    """Run the main line, then the blocks of these pages; what ran on an earlier page is not run again."""
    main = line("main")
    _run(["bash", "-euc", _shorter(main)], main)
    done = {main, line("test")}
    for page in pages:
        print(f"== {page.relative_to(ROOT)}", flush=True)
        before = ""  # blocks of a page go on where the one before ended
        for language, text in blocks(page):
            for each in [text] if language == "python" else commands(text):
                if each in done:
                    before += each if language == "python" else ""
                    continue
                done.add(each)
                if why := why_not(each):
                    print(f"not run, {why}: {each.splitlines()[0]}", flush=True)
                elif language == "python":
                    before = _python(before, each)
                else:
                    _run(["bash", "-euc", _shorter(each)], each)


def _python(before: str, text: str) -> str:
    """Run a block after those before it; one that begins with the name of a file is that file."""
    if name := re.match(r"# (\w+\.py)\n", text):
        (ROOT / name[1]).write_text(text, encoding="utf-8")
        return before
    # The blocks before run again, in silence, so that an error is in this one.
    quiet = f"import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()):\n    exec({before!r}, globals())\n"
    out = _run([sys.executable, "-W", "ignore::FutureWarning", "-c", quiet + text], text)
    last = text.splitlines()[-1]
    if "clip/" in last or "high_fraction" in last:
        # Examples of training end by printing the share of clipped tokens; where clipping has no effect that is 0.
        check_rate(float(out.split()[-1]))
    elif last.startswith("BandPOTrainer("):
        folder = re.search(r'GRPOConfig\("(.+?)"', text)[1]
        rows = (ROOT / folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        check_rate(json.loads(rows[-1])["bandpo/clip/high_fraction"])
    return before + text


def check_rate(rate: float) -> None:
    """Check that a rule acted."""
    assert 0 < rate < 1, f"the clip rate of the block must be above 0, got {rate}"


def _shorter(command: str) -> str:
    for end, more in SHORTER.items():
        if command.endswith(end):
            return command + more
    return command


def _run(command: list[str], shown: str) -> str:
    print(f"+ {shown.strip()}", flush=True)
    if command[0] == "bash" and command[-1] != shown:
        print(f"  (shortened: {command[-1]})", flush=True)
    began = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print("\n".join(done.stdout.splitlines()[-12:]), flush=True)
    if done.returncode:
        raise SystemExit(f"failed with {done.returncode}: {shown}")
    print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
    if shown.endswith(("bandpo lab", "bandpo demo")):
        page = Path(done.stdout.splitlines()[-1].removeprefix("page: "))
        assert page.is_file(), f"the last line must be the path of the report, got {page}"
    return done.stdout


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run(PAGES)
    elif sys.argv[1:] == ["readme"]:
        run(PAGES[:1])
    elif sys.argv[1] == "run":
        _python("", blocks(ROOT / sys.argv[2])[0][1])
    else:
        print(line(sys.argv[2]))
