"""The list of promises names tests that exist, and a test that did not run and pass is seen."""

import ast
import functools
import re
import subprocess
import sys

import pytest
import yaml
from commands import missing
from disk import write
from scripts import ROOT, load

PROMISES = yaml.safe_load((ROOT / "tests" / "promises.yaml").read_text(encoding="utf-8"))
KINDS = ("tests", "weekly", "gpu")
TESTS = [(kind, test) for promise in PROMISES for kind in KINDS for test in promise.get(kind, ())]


@pytest.fixture(scope="module")
def script():
    return load(".ci/promises.py")


@functools.cache
def module_of(path):
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def fault_of(kind, test):
    """Why no script runs the test for its promise."""
    path, *names = test.split("::")
    if not (ROOT / path).exists():
        return "no such file"
    module = node = module_of(path)
    for name in names:
        node = next((each for each in node.body if getattr(each, "name", "") == name), None)
        if node is None:
            return "no such test"
    marks = [ast.unparse(each.value) for each in module.body if ast.unparse(each).startswith("pytestmark")]
    marks += map(ast.unparse, node.decorator_list if names else [])
    if kind == "tests" and "pytest.mark.slow" in marks:
        return "is slow, and so of .ci/weekly"
    if kind == "weekly" and not any("pytest.mark.slow" in mark for mark in marks):  # of a case, perhaps
        return "is not slow, and so of .ci/run"
    return ""


def test_each_test_of_a_promise_is_there_and_under_the_script_that_runs_it():
    assert not {test: why for kind, test in TESTS if (why := fault_of(kind, test))}


@pytest.mark.parametrize(
    ("kind", "test", "why"),
    [
        ("tests", "tests/test_gone.py", "no such file"),
        ("weekly", "tests/test_promises.py::test_gone", "no such test"),
        ("tests", "tests/cli/test_damage.py::test_garbage_is_one_line", "is slow, and so of .ci/weekly"),
        ("tests", "tests/test_faults.py::test_a_planted_fault_is_caught", "is slow, and so of .ci/weekly"),
        ("weekly", "tests/cli/test_train.py", "is not slow, and so of .ci/run"),
    ],
)
def test_a_test_that_is_elsewhere_is_named(kind, test, why):
    assert fault_of(kind, test) == why


def test_each_promise_is_a_sentence_with_a_test():
    faults = [
        each for each in PROMISES
        if not each.keys() <= {"promise", "number", *KINDS} or not re.fullmatch(r"[A-Z`].+\.", each["promise"])
        or not any(each.get(kind) for kind in KINDS)
    ]  # fmt: skip
    assert faults == []
    assert len({promise["promise"] for promise in PROMISES}) == len(PROMISES)
    for name in "run", "weekly":
        assert (ROOT / ".ci" / name).read_text(encoding="utf-8").splitlines()[-2] == "stage promises"


SUITE = """
import pytest

def test_passes(): ...
def test_fails(): assert False
@pytest.mark.skip
def test_is_skipped(): ...
@pytest.mark.xfail
def test_is_expected_to_fail(): assert False
@pytest.fixture
def broken(): assert False
def test_has_no_fixture(broken): ...
@pytest.mark.parametrize("x", [1, 2])
def test_passes_twice(x): ...
@pytest.mark.parametrize("x", [1, 2])
def test_fails_once(x): assert x == 1
@pytest.mark.parametrize("x", [1, 2])
def test_is_skipped_once(x):
    if x == 2: pytest.skip("one")
class TestClass:
    def test_of_it(self): ...
    def test_fails_in_it(self): assert False
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A folder with the files of three runs of pytest: of the suite, of a part, and of one that was killed."""
    folder = tmp_path_factory.mktemp("ran")
    write(folder / "pytest.ini", "[pytest]\n")
    write(folder / "tests" / "test_good.py", "def test_passes(): ...\ndef test_more(): ...\n")
    again = SUITE.replace("@pytest.mark.skip\n", "").replace("def test_passes(): ...", "def test_passes(): assert 0")
    part = ["-k", "test_is_skipped or (test_passes and not twice and not good)"]
    for name, text, options in (("one", SUITE, []), ("two", again, part)):
        write(folder / "tests" / "deep" / "test_it.py", text)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "tests", f"--junitxml=results/{name}.xml"]
        subprocess.run([*command, *options], cwd=folder, capture_output=True, check=False)
    return write(folder / "results" / "killed.xml", "").parent


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("tests/deep/test_it.py::test_passes_twice", ""),
        ("tests/deep/test_it.py::TestClass::test_of_it", ""),
        ("tests/test_good.py::test_passes", ""),
        ("tests/test_good.py", ""),
        ("tests/deep/test_it.py::test_is_skipped", ""),  # it passed in the second run
        ("tests/deep/test_it.py::test_fails", "failed: test_fails"),
        ("tests/deep/test_it.py::test_passes", "failed: test_passes"),  # in the second run
        ("tests/deep/test_it.py::test_has_no_fixture", "failed: test_has_no_fixture"),
        ("tests/deep/test_it.py::test_is_expected_to_fail", "was skipped: test_is_expected_to_fail"),
        ("tests/deep/test_it.py::test_fails_once", "failed: test_fails_once[2]"),
        ("tests/deep/test_it.py::test_is_skipped_once", "was skipped: test_is_skipped_once[2]"),
        ("tests/deep/test_it.py::TestClass::test_fails_in_it", "failed: test_fails_in_it"),
        ("tests/deep/test_it.py::test_passed_under_another_name", "did not run"),
        ("tests/deep/test_it.py::test_of_it", "did not run"),
        ("tests/test_gone.py::test_passes", "did not run"),
        ("tests/test_goo.py", "did not run"),
        ("tests/deep/test_it.py", "failed: test_passes"),
    ],
)
def test_a_test_that_did_not_run_and_pass_is_seen(script, ran, test, said, capsys):
    assert script.why_not(test, script.read(ran)) == said
    assert capsys.readouterr().out == "killed.xml: pytest did not come to its end\n"


def test_the_last_stage_fails_where_a_promise_is_not_kept(script, ran, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "LIST", tmp_path / "promises.yaml")
    good = {"promise": "It holds.", "tests": ["tests/test_good.py"], "gpu": ["tests/test_gone.py"]}
    for weekly, code, said in (
        (["tests/deep/test_it.py::test_passes_twice"], 0, "all 1 tests of promises ran and passed\n"),
        (["tests/test_gone.py::test_a"], 1, "not kept: It holds.\n    tests/test_gone.py::test_a did not run\n"),
    ):
        script.LIST.write_text(yaml.safe_dump([{**good, "weekly": weekly}]))
        for kind, expected in (("run", 0), ("weekly", code)):
            with pytest.raises(SystemExit) as end:
                script.main(kind, str(ran))
            assert end.value.code == expected
        assert capsys.readouterr().out.endswith(said)


def test_the_page_of_the_api_shows_each():
    table = load("docs/_site/promises.py").table()
    assert len(table.splitlines()) == len(PROMISES) + 2
    shown = [f"](../{test.partition('::')[0]})" for _, test in TESTS]
    assert missing(table, *(f"| {each['promise']}" for each in PROMISES), *shown) == []
    assert table.count("weekly") == sum(kind == "weekly" for kind, _ in TESTS)
    assert "<!-- promises -->" in (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
