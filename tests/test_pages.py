"""The blocks of README.md and docs/, which `.ci/readme.py run` runs; what is left out has a reason, and is there."""

import inspect
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import missing
from disk import write
from scripts import ROOT, load
from typer import TyperException

import bandpo
from bandpo_runs.cli.app import app, get_command
from bandpo_runs.cli.training import demo as command_demo
from bandpo_runs.statistics.intervals import clustered_error
from research.csv_rows import read_rows


@pytest.fixture(scope="module")
def readme():
    return load(".ci/readme.py")


def test_what_is_not_run_is_still_on_a_page(readme):
    blocks = [block for page in readme.PAGES for block in readme.blocks(page)]
    there = [each for kind, text in blocks for each in ([text] if kind == "python" else readme.commands(text))]
    assert [start for start in readme.NOT_RUN if not any(each.startswith(start) for each in there)] == []
    assert sum(not readme.why_not(each) for each in there) > len(there) / 2


def test_of_a_diff_the_script_after_it_runs_and_its_rule_must_act(readme, tmp_path, monkeypatch):
    """README's one is of a script of TRL's."""
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    out = tmp_path / "runs"
    out.mkdir()
    page = tmp_path / "page.md"
    page.write_text(
        f"```diff\n-from a import GRPOTrainer\n+class BandPOTrainer(str): pass\n+def GRPOConfig(path): pass\n"
        f' GRPOConfig("{out}")\n-GRPOTrainer()\n+BandPOTrainer()\n```\n',
        encoding="utf-8",
    )
    ((language, text),) = readme.blocks(page)
    assert language == "python"
    assert text.endswith(f'GRPOConfig("{out}")\nBandPOTrainer()\n')
    rows = out / "metrics.jsonl"
    rows.write_text('{"step": 4}\n{"bandpo/clip/high_fraction": 0.1}\n', encoding="utf-8")
    assert readme._python("x = 1\n", text) == f"x = 1\n{text}"
    rows.write_text('{"bandpo/clip/high_fraction": 0.0}\n', encoding="utf-8")
    with pytest.raises(AssertionError, match=r"must be above 0, got 0\.0"):
        readme._python("", text)


def test_commands_in_the_text_are_taken_by_the_command_line(readme):
    """Those with arguments, in a sentence or in an indented line, which are not run; a word in capitals stands for one
    of the reader's."""
    group, tried = get_command(app), 0
    for page in readme.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for match in re.finditer(r"`bandpo ([^`\n]+)`|^ {4,}bandpo (.+)$", text, re.MULTILINE):
            line = (match[1] or match[2]).split("  #")[0]
            if re.search(r"\.\.\.|[|\[*]|\b[A-Z][A-Z_]+\b|--help", line) or len(words := shlex.split(line)) < 2:
                continue
            tried += 1
            try:
                group.get_command(None, words[0]).make_context(words[0], words[1:])
            except TyperException as error:
                if type(error).__name__ != "MissingParameter":  # which the sentence leaves to the reader
                    pytest.fail(f"{page}: bandpo {line}: {error.format_message()}")
    assert tried >= 10


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_is_valid_and_holds_no_outputs(readme, path):
    text = path.read_text(encoding="utf-8")
    book = json.loads(text)
    assert text == json.dumps(book, indent=1, ensure_ascii=False) + "\n", "as Jupyter writes it: a diff is small"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert (book["nbformat"], book["nbformat_minor"], book["metadata"]["kernelspec"]) == (4, 5, kernel)
    empty = {"markdown": {"metadata": {}}, "code": {"metadata": {}, "execution_count": None, "outputs": []}}
    for cell in book["cells"]:
        rest = {name: value for name, value in cell.items() if name not in ("cell_type", "id", "source")}
        assert (rest, bool(re.fullmatch(r"[\w-]{1,64}", cell["id"]))) == (empty[cell["cell_type"]], True)
        links = re.findall(r"\]\((?!https?:)([^)#]+)", "".join(cell["source"]))
        assert [link for link in links if not (path.parent / link).exists()] == []
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    ((_, code),) = readme.blocks(path)
    assert missing(code, "subprocess.run(r'''bandpo ", "!bandpo") == ["!bandpo"]


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").split()
    assert {name.rpartition(".")[2] for name in page if name.startswith("bandpo.")} >= set(bandpo.__all__)


def test_the_readme_says_in_how_many_trainers_it_trained_ran_or_was_read():
    """By the best of a trainer's rows in docs/hosts.md. What trains by another one's trainer is that one's."""
    rank = {"trained": 2, "real function": 1, "from its source": 1}
    best: dict[str, int] = {}
    for line in load("docs/hosts.py").table().splitlines()[2:]:
        host, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        name = host.partition(", by ")[2] or host.partition(",")[0]
        name = {"Oumi": "TRL", "AsyncGRPO": "TRL", "TRL's SDPO": "TRL"}.get(name, name)
        best[name] = max(best.get(name, 0), rank.get(cells[1], 0))
    trained, ran, read = ([name for name in best if best[name] == level] for level in (2, 1, 0))
    assert trained == ["TRL", "verl", "axolotl"]
    assert read == ["agent-lightning", "rLLM", "tinker"]  # of the last its formula
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not missing(
        text, "trained in TRL, verl, axolotl", f"[{len(ran)} more](docs/hosts.md). Of three only the code was read."
    )


def test_both_pages_say_of_the_first_training_what_its_rows_say(readme):
    """They begin with the line that CI runs, shortened. What they show is seed 0."""
    rows = read_rows(ROOT / "research" / "measurements" / "smollm2_largest.csv")
    count, log = int(rows[0]["questions"]), (ROOT / "research" / "log.md").read_text(encoding="utf-8")
    right = [[int(row[name]) for row in rows] for name in ("right_before", "right_after")]
    spreads = [clustered_error([1.0] * n + [0.0] * (count - n)) for n, *_ in right]
    before, after = (
        f"{100 * spread.value:.1f} % [{', '.join(f'{100 * x:.1f}' for x in spread.interval(low=0.0, high=1.0))}]"
        for spread in spreads
    )
    gain = f"+{(right[1][0] - right[0][0]) / 4:.1f} points"
    result = f"Right on {count} held-out questions: {before} before, {after} after: {gain}"
    shares = [[f"{100 * n / count:.1f}" for n in each] for each in right]
    low, high = (f"{100 * limit(float(row['clipped']) for row in rows):.1f}".lstrip("0") for limit in (min, max))
    assert [row["seed"] for row in rows] == ["0", "1", "2"]
    clipped = f"Band-KL clipped {low} to {high} % of the tokens"
    assert missing(log, clipped, *(f"{', '.join(some)} and {last} %" for *some, last in shares)) == []
    (minutes,) = re.findall(r"7\.1 to ([\d.]+) minutes each", log)  # with loading
    assert 60 * float(minutes) > max(float(row["seconds_after_loading"]) for row in rows)
    main = readme.line("main")
    shorter = [readme._shorter(line) for line in (main, "bandpo train")]
    assert shorter == [f"{main} rounds=2 data.eval_size=16", "bandpo train"]
    for page in "README.md", "docs/train.md":
        text = (ROOT / page).read_text(encoding="utf-8")
        assert missing(text, f"```sh\n{main}\n```", result, f"{minutes} minutes on two cores") == []
    assert f"{90 * 89 * 88:,} such questions" in text  # three different numbers from 10 to 99


def test_the_picture_of_the_readme_is_that_of_the_rules_and_rows(tmp_path):
    load("docs/idea.py").write(tmp_path)
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(drawn) == 2
    assert drawn == {name: (ROOT / "docs" / name).read_bytes() for name in drawn}, "run python docs/idea.py"


def test_pages_say_of_the_picture_what_its_rows_say():
    idea = load("docs/idea.py")
    rows = idea.read_rows(idea.ROWS)
    text, pages = idea.alternative_text(rows), {"README.md": 'alt="{}"', "docs/idea.md": 'alt="{}"'}
    for page, form in (pages | {f"docs/idea-{theme}.svg": "{}" for theme in ("light", "dark")}).items():
        assert form.format(text) in (ROOT / page).read_text(encoding="utf-8"), page
    rounds = {row["rule"]: f"{float(row['rounds_to_half']):.1f}" for row in rows}
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Should you use it?")[2]
    names = {"GRPO": "GRPO", "Band-KL": "Band-KL", "`Clip(0.2, 1.0)`": "Clip(0.2, 1.0)"}
    assert missing(table, *(f"{name} {rounds[rule]}, " for name, rule in names.items())) == []


def test_the_rows_of_the_picture_are_what_the_demo_prints():
    """Another processor may round a policy's probabilities otherwise, so that some answers differ."""
    idea = load("docs/idea.py")
    rows, measured = idea.read_rows(idea.ROWS), idea.measure()
    assert [row["rule"] for row in rows] == [row["rule"] for row in measured]
    for row, now in zip(rows, measured, strict=True):
        for name, most in {"rounds_to_half": 0.3, "interval": 0.3, "forgot": 4, "seeds": 0}.items():
            assert float(row[name]) == pytest.approx(now[name], abs=most), name
    options = inspect.signature(command_demo).parameters
    assert (len(idea.SEEDS), idea.USES) == (int(options["seeds"].default), options["uses"].default)


def test_the_table_of_trainers_is_that_of_its_rows(tmp_path, monkeypatch):
    """`python docs/hosts.py` writes it from what scripts ran; what was only read has no result in it."""
    hosts = load("docs/hosts.py")
    assert hosts.PAGE.read_text(encoding="utf-8") == hosts.page()
    read = [row["host"] for row in hosts.read_rows(hosts.ROWS) if row["host"] not in hosts.results()]
    assert read == ["TRL, `use_vllm=True`", "TRL, ZeRO-3 or FSDP", "rLLM, v1"]
    assert hosts.table().count(" read | not run |") == 3
    for name in ("hosts", "host_installs", "verl_versions"):
        write(tmp_path / f"{name}.csv", (hosts.RUNS / f"{name}.csv").read_text().splitlines()[0] + "\n")
    monkeypatch.setattr(hosts, "RUNS", tmp_path)
    assert hosts.table().count(" | read | not run |") == len(hosts.read_rows(hosts.ROWS))
    skyrl = "host,installed,imports,tests,date,commit\nSkyRL,x==1,yes,"
    for text in ("1 failed", "2 passed, 1 error", "1 passed, 3 skipped", "1 passed, 3 deselected, 1 warning"):
        write(tmp_path / "host_installs.csv", f'{skyrl}"{text}",,\n')
        assert hosts.results()["SkyRL"][0]["band"] == ("equal" if "warning" in text else "failed")
    write(tmp_path / "verl_versions.csv", "verl,what,result\n0.9.1,a,passed 3\n0.10.0,a,failed: x\n0.10.0,b,passed 3\n")
    verl = [(row["version"], row["clip"]) for row in hosts.results()["verl"]]
    assert verl == [("0.10.0", "failed"), ("0.9.1", "bit for bit")]


def test_a_trainers_row_is_that_of_its_tests():
    """A test that failed is named, and one that was skipped leaves the row as it was."""
    hosts, file = load("research/measurements/hosts.py"), "hosts/test_conformance.py"
    clip, band = "test_clip_is_the_trainers_own_loss_bit_for_bit[liger grpo]", "test_band_is_policy_loss[{}-region0]"
    other, band = (file, band.format("torchrl none"), "failure"), band.format("liger grpo")
    ran = [(file, clip, "passed"), (file, band, "passed"), other]
    for rows, result in (
        (ran, {"run": "real function", "clip": "bit for bit", "band": "equal"}),
        ([*ran, (file, band, "failure")], {"band": f"failed: {band}"}),
        (ran[:1], {"clip": "failed: one of the two claims has no test"}),
    ):
        row = hosts.row("Liger", rows)
        assert {name: row[name] for name in result} == result
    assert (hosts.row("Liger", [*ran, (file, band, "skipped")]), hosts.row("tinker", ran)) == (None, None)


# ---- the examples of CONTRIBUTING.md run

PAGE = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```\n", PAGE, re.DOTALL), ids=["divergence", "trainer"])
@pytest.mark.slow
def test_an_example_runs(code):
    # In a process of its own: it registers names.
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
