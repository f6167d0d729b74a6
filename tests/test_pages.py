"""The blocks of README.md and docs/, which `.ci/readme.py run` runs; what is left out has a reason, and is there."""

from __future__ import annotations

import inspect
import json
import re
import shlex

import pytest
from scripts import ROOT, load
from typer import TyperException

from bandpo_runs.cli.app import app, get_command
from bandpo_runs.cli.training import demo as command_demo
from bandpo_runs.statistics.intervals import clustered_error
from research.csv_rows import read_rows


@pytest.fixture(scope="module")
def readme():
    return load(".ci/readme.py")


def every(readme):
    return [
        each
        for page in readme.PAGES
        for language, text in readme.blocks(page)
        for each in ([text] if language == "python" else readme.commands(text))
    ]


def test_what_is_not_run_is_still_on_a_page(readme):
    there = every(readme)
    for start in readme.NOT_RUN:
        assert any(each.startswith(start) for each in there), start
    assert set(readme.NOT_RUN_WHOLE) <= set(there)
    assert sum(not readme.why_not(each) for each in there) > len(there) / 2


def test_python_on_the_pages_is_python(readme):
    for each in every(readme):
        if "\n" in each:
            compile(each, "a block", "exec")


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
    assert tried > 10


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_is_valid_and_holds_no_outputs(readme, path):
    text = path.read_text(encoding="utf-8")
    book = json.loads(text)
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert book["metadata"]["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
    names = {"markdown": {"cell_type", "id", "metadata", "source"}}
    names["code"] = names["markdown"] | {"execution_count", "outputs"}
    for cell in book["cells"]:
        assert set(cell) == names[cell["cell_type"]]
        assert cell["metadata"] == {}
        assert re.fullmatch(r"[\w-]{1,64}", cell["id"])
        assert (cell.get("outputs", []), cell.get("execution_count")) == ([], None)
        for link in re.findall(r"\]\((?!https?:)([^)#]+)", "".join(cell["source"])):
            assert (path.parent / link).exists(), link
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    assert text == json.dumps(book, indent=1, ensure_ascii=False) + "\n", (
        "as Jupyter writes it, so that a diff is small"
    )
    ((_, code),) = readme.blocks(path)
    assert "!bandpo" not in code
    assert "subprocess.run(r'''bandpo " in code


def test_every_page_has_its_place_in_the_navigation():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8").splitlines()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.stem in index or page.stem == "index", page.name


def test_every_public_name_is_in_the_reference():
    import bandpo

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
    assert "trained in TRL, verl, axolotl" in text
    assert f"[{len(ran)} more](docs/hosts.md) ran its loss, three were read." in text


def test_both_pages_say_of_the_first_training_what_its_rows_say(readme):
    """They begin with the line that CI runs, shortened. What they show is seed 0."""
    rows = read_rows(ROOT / "research" / "measurements" / "smollm2_largest.csv")
    first, count = rows[0], int(rows[0]["questions"])
    right = [int(first[name]) for name in ("right_before", "right_after")]
    shares = [clustered_error([1.0] * n + [0.0] * (count - n)) for n in right]
    before, after = (
        f"{100 * share.value:.1f} % [{', '.join(f'{100 * x:.1f}' for x in share.interval(low=0.0, high=1.0))}]"
        for share in shares
    )
    result = (
        f"Right on {count} held-out questions: {before} before, {after} after: +{(right[1] - right[0]) / 4:.1f} points"
    )
    assert [row["seed"] for row in rows] == ["0", "1", "2"]
    log = (ROOT / "research" / "log.md").read_text(encoding="utf-8")
    for name in "right_before", "right_after":
        *some, last = (f"{100 * int(row[name]) / count:.1f}" for row in rows)
        assert f"{', '.join(some)} and {last} %" in log
    low, high = (f"{100 * limit(float(row['clipped']) for row in rows):.1f}".lstrip("0") for limit in (min, max))
    assert f"Band-KL clipped {low} to {high} % of the tokens" in log
    (minutes,) = re.findall(r"7\.1 to ([\d.]+) minutes each", log)  # with loading
    assert 60 * float(minutes) > max(float(row["seconds_after_loading"]) for row in rows)
    main = readme.line("main")
    assert readme._shorter(main) == f"{main} rounds=2 data.eval_size=16"
    assert readme._shorter("bandpo train") == "bandpo train"
    for page in "README.md", "docs/train.md":
        text = (ROOT / page).read_text(encoding="utf-8")
        assert f"```sh\n{main}\n```" in text
        assert result in text
        assert f"{minutes} minutes on two cores" in text
    assert f"{90 * 89 * 88:,} such questions" in text  # three different numbers from 10 to 99


def test_the_picture_of_the_readme_is_that_of_the_rules_and_rows(tmp_path):
    load("docs/idea.py").write(tmp_path)
    for drawn in tmp_path.iterdir():
        assert drawn.read_bytes() == (ROOT / "docs" / drawn.name).read_bytes(), "run python docs/idea.py"
    assert len([*tmp_path.iterdir()]) == 2


def test_pages_say_of_the_picture_what_its_rows_say():
    idea = load("docs/idea.py")
    text = idea.alternative_text(idea.read_rows(idea.ROWS))
    for page in "README.md", "docs/idea.md":
        assert f'alt="{text}"' in (ROOT / page).read_text(encoding="utf-8"), page
    rounds = {row["rule"]: f"{float(row['rounds_to_half']):.1f}" for row in idea.read_rows(idea.ROWS)}
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Should you use it?")[2]
    for name, rule in {"GRPO": "GRPO", "Band-KL": "Band-KL", "`Clip(0.2, 1.0)`": "Clip(0.2, 1.0)"}.items():
        assert f"{name} {rounds[rule]}, " in table
    for theme in "light", "dark":
        assert text in (ROOT / "docs" / f"idea-{theme}.svg").read_text(encoding="utf-8")


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
        (tmp_path / f"{name}.csv").write_text((hosts.RUNS / f"{name}.csv").read_text().splitlines()[0] + "\n")
    monkeypatch.setattr(hosts, "RUNS", tmp_path)
    assert hosts.table().count(" | read | not run |") == len(hosts.read_rows(hosts.ROWS))
    skyrl = "host,installed,imports,tests,date,commit\nSkyRL,x==1,yes,"
    for text in ("1 failed", "2 passed, 1 error", "1 passed, 3 skipped", "1 passed, 3 deselected, 1 warning"):
        (tmp_path / "host_installs.csv").write_text(f'{skyrl}"{text}",,\n')
        assert hosts.results()["SkyRL"][0]["band"] == ("equal" if "warning" in text else "failed")
    (tmp_path / "verl_versions.csv").write_text(
        "verl,what,result\n0.9.1,a,passed 3\n0.10.0,a,failed: x\n0.10.0,b,passed 3\n"
    )
    assert [(row["version"], row["clip"]) for row in hosts.results()["verl"]] == [
        ("0.10.0", "failed"),
        ("0.9.1", "bit for bit"),
    ]


def test_a_trainers_row_is_that_of_its_tests():
    """A test that failed is named, and one that was skipped leaves the row as it was."""
    hosts = load("research/measurements/hosts.py")
    file, clip, band = (
        "hosts/test_conformance.py",
        "test_clip_is_the_trainers_own_loss_bit_for_bit[liger grpo]",
        "test_band_is_policy_loss[liger grpo-region0]",
    )
    ran = [
        (file, clip, "passed"),
        (file, band, "passed"),
        (file, "test_band_is_policy_loss[torchrl none-region0]", "failure"),
    ]
    row = hosts.row("Liger", ran)
    assert (row["run"], row["clip"], row["band"]) == ("real function", "bit for bit", "equal")
    assert hosts.row("Liger", [*ran, (file, band, "skipped")]) is None
    assert hosts.row("Liger", [*ran, (file, band, "failure")])["band"] == f"failed: {band}"
    assert hosts.row("Liger", ran[:1])["clip"] == "failed: one of the two claims has no test"
    assert hosts.row("tinker", ran) is None
