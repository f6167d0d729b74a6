"""Check that each promise of tests/promises.yaml is kept by tests that ran and passed.

    promises.py run FOLDER       after .ci/run; FOLDER has the files of `pytest --junitxml`
    promises.py weekly FOLDER    after .ci/weekly

.ci/run must have run the tests under `tests`, .ci/weekly those under `weekly`; those under `gpu` need a machine that
neither asks for. A test is FILE::NAME, or FILE for all of a file. Each of its cases must have passed in one stage at
least and have failed in none.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

import yaml

LIST = Path(__file__).parent.parent / "tests" / "promises.yaml"
KINDS = {"run": "tests", "weekly": "weekly"}
Results = dict[tuple[str, str], set[str]]  # what became of a case, by its place in dots and its name


def read(folder: Path) -> Results:
    """Read the results of all runs of pytest."""
    results: Results = {}
    for path in sorted(folder.glob("*.xml")):
        try:
            cases = list(ElementTree.parse(path).iter("testcase"))
        except ElementTree.ParseError:
            print(f"{path.name}: pytest did not come to its end")
            continue
        for case in cases:
            outcome = next((kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None), "passed")
            results.setdefault((case.get("classname", ""), case.get("name", "")), set()).add(outcome)
    return results


def why_not(test: str, results: Results) -> str:
    """Say why a test keeps no promise, or nothing if it does."""
    file, *names = test.split("::")
    place = ".".join([file.removesuffix(".py").replace("/", "."), *names[:-1]])
    cases = {
        name: outcomes
        for (where, name), outcomes in results.items()
        if (where == place and name.partition("[")[0] == names[-1] if names else f"{where}.".startswith(f"{place}."))
    }
    for name, outcomes in cases.items():
        if outcomes & {"failure", "error"}:
            return f"failed: {name}"
        if "passed" not in outcomes:
            return f"was skipped: {name}"
    return "" if cases else "did not run"


def main(script: str, folder: str) -> None:
    results, tests, faults = read(Path(folder)), 0, []
    for promise in yaml.safe_load(LIST.read_text(encoding="utf-8")):
        for test in promise.get(KINDS[script], ()):
            tests += 1
            if why := why_not(test, results):
                faults.append(f"not kept: {promise['promise']}\n    {test} {why}")
    print("\n".join(faults or [f"all {tests} tests of promises ran and passed"]))
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main(*sys.argv[1:])
