"""Run what the README tells its readers to paste, in the order in which it stands there.

    readme.py line main|test    print the line that runs the main job, or the tests
    readme.py run               run the main line and every block marked sh or python

What takes minutes is shortened by the arguments in SHORTER, which are printed with the command.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
SHORTER = {"bandpo lab": " --rounds 3 --seeds 1", "bandpo train recipes/lab/band-kl.yaml": " rounds=2"}


def blocks() -> list[tuple[str, str]]:
    """(language, text) of every fenced block that is to be run."""
    found = re.findall(r"^```(sh|python)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [(language, text) for language, text in found]


def line(kind: str) -> str:
    """The one line that installs and then runs the main job, or the tests."""
    wanted = {"main": "bandpo lab", "test": "pytest"}[kind]
    lines = [text for _, block in blocks() for text in block.splitlines()]
    (found,) = [text for text in lines if re.search(rf"^pip install .* && {wanted}$", text)]
    return found


def run() -> None:
    """Run the main line, then the other blocks."""
    main, test = line("main"), line("test")
    _run(["bash", "-euc", _shorter(main)], main)
    for language, text in blocks():
        if language == "python":
            out = _run([sys.executable, "-W", "ignore::FutureWarning", "-c", text], text)
            # Both examples end by printing the share of clipped tokens; where no rule acts that is 0.
            rate = float(out.split()[-1])
            assert 0 < rate < 1, f"the clip rate that the block prints must be above 0, got {rate}"
        else:
            for command in text.splitlines():
                if command and not command.startswith("#") and command not in (main, test):
                    _run(["bash", "-euc", _shorter(command)], command)


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
    if "bandpo lab" in shown:
        page = Path(done.stdout.splitlines()[-1])
        assert page.is_file(), f"the last line must be the path of the report, got {page}"
    return done.stdout


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        run()
    else:
        print(line(sys.argv[2]))
