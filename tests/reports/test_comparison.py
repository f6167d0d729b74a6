"""`bandpo compare` and `bandpo table`: the numbers in them, against the arrays that the files were made of; every note
and every refusal; and the formats."""
# ruff: noqa: RUF001  (dashes are meant)

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bandpo_runs.cli import main
from bandpo_runs.data.questions import Question, fingerprint
from bandpo_runs.evals.results import read_result
from bandpo_runs.reports.comparison import compare_results, comparison_text
from bandpo_runs.reports.table import FORMATS, make_table
from bandpo_runs.statistics.estimators import best_at_k_bootstrap, pass_at_k
from bandpo_runs.statistics.intervals import clustered_error, training_runs


def evaluation(folder: Path, label: str, scores: dict[str, np.ndarray], cut=0, silent=0, **facts) -> Path:
    """An evaluation folder as bandpo eval leaves it; its first `cut` samples are too long, `silent` have no answer."""
    folder.mkdir(parents=True)
    n = next(iter(scores.values())).shape[1]
    sampling = {"n": n, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 64, "seed": 0}
    asked = {name: [Question(name, i, f"{name} {i}", "7") for i in range(len(score))] for name, score in scores.items()}
    data = {name: {"rows": len(rows), "sha256": fingerprint(rows)} for name, rows in asked.items()}
    known = {"label": label, "model": "made", "backend": "made", "sampling": sampling, "data": data, "finished": True}
    (folder / "eval.json").write_text(json.dumps({**known, "scorer": "math", "command": "bandpo eval", **facts}))
    prompts, samples, grades = [], [], []
    for name, score in scores.items():
        for i, row in enumerate(score):
            prompts.append(asked[name][i].row())
            for j, right in enumerate(row):
                at = {"data": name, "prompt": i, "sample": j}
                end = "length" if len(samples) < cut else "stop"
                samples.append({**at, "seed": j, "text": "x", "tokens": 10 + j, "finish": end})
                quiet = len(grades) < silent
                status = "unparsed" if quiet else "ok"
                grades.append({**at, "score": float(right), "answer": None if quiet else "7", "status": status})
    for name, rows in (("prompts", prompts), ("samples", samples), ("grades-math", grades)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def scores(seed, shift=0.0, sizes=(("aime24", 30), ("amc23", 40)), n=8):
    rng = np.random.default_rng(seed)
    of_problems = np.random.default_rng(7)
    return {
        name: (rng.random((size, n)) < np.clip(of_problems.beta(0.5, 1, size) + shift, 0, 1)[:, None]).astype(float)
        for name, size in sizes
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """GRPO and Band in three runs each under one heading; under another, one of each."""
    home = tmp_path_factory.mktemp("made")
    arrays = {}
    for method, shift in (("GRPO", 0.0), ("Band_KL 0.05", 0.2)):
        for run in range(3):
            name = f"3b-{method[:4]}-{run}"
            arrays[name] = scores(run + (10 if shift else 0), shift)
            evaluation(home / name, f"Qwen & 3B / {method}", arrays[name])
        name = f"7b-{method[:4]}"
        arrays[name] = scores(50 + bool(shift), shift)
        evaluation(home / name, f"7B / {method}", arrays[name], cut=7 if shift else 0, silent=14 if shift else 0)
    return home, arrays


def run(capsys, *argv):
    assert main([str(a) for a in argv]) == 0
    return capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------------ comparing


def test_compare_says_who_is_better_by_how_much_and_how_sure(made, capsys):
    home, arrays = made
    out = run(capsys, "compare", home / "7b-GRPO", home / "7b-Band")
    a, b = arrays["7b-GRPO"], arrays["7b-Band"]
    row = next(line for line in out.splitlines() if line.startswith("aime24")).split()
    assert row[1] == "30"
    assert row[2:4] == [f"{100 * x['aime24'].mean():.1f}" for x in (a, b)]
    gap = np.mean([b[name].mean() - a[name].mean() for name in a])
    assert f"On problems like these on average over 2 data sets: yes, B is better by {100 * gap:.1f} points" in out
    assert "Of the method: nothing." in out
    assert "B: scorer math, 1.2% cut at the length limit, 2.5% without an answer that could be read" in out
    assert "Nothing more is needed" in out


def test_compare_says_what_would_settle_it(tmp_path, capsys):
    a = evaluation(tmp_path / "a", "A", scores(0))
    b = evaluation(tmp_path / "b", "B", scores(4, 0.02))
    out = run(capsys, "compare", a, b)
    assert "On problems like these on average over 2 data sets: not settled. B - A is" in out
    assert re.search(r"these problems: (about )?[\d,]+ samples per prompt of each \(now 8\)", out)
    assert re.search(r"problems like these: (about )?[\d,]+ problems with 8 samples each \(now 70\)", out)


def test_when_problems_differ_too_much_no_number_of_samples_settles_it(tmp_path, capsys):
    rng = np.random.default_rng(0)
    moved = np.where(np.arange(30) % 2 == 0, 0.45, -0.35)
    first = (rng.random((30, 64)) < 0.5).astype(float)
    second = (rng.random((30, 64)) < (0.5 + moved)[:, None]).astype(float)
    a = evaluation(tmp_path / "a", "A", {"aime24": first})
    b = evaluation(tmp_path / "b", "B", {"aime24": second})
    out = run(capsys, "compare", a, b)
    assert "On these problems: yes, B is better" in out
    assert "On these problems: no, B is worse by" in run(capsys, "compare", b, a)
    assert "On problems like these: not settled" in out
    assert "no number of samples of these problems; the problems differ too much in it" in out


def test_compare_as_json_has_the_same_numbers(made, capsys):
    home, _ = made
    data = json.loads(run(capsys, "compare", home / "7b-GRPO", home / "7b-Band", "--json"))
    (expected, *_, mean) = compare_results(read_result(str(home / "7b-GRPO")), read_result(str(home / "7b-Band")))
    assert data["results"][0]["difference"] == expected.difference
    assert data["results"][-1]["data"] == "average"
    assert data["results"][-1]["clustered_error"]["interval"] == list(mean.clustered_error.interval)
    assert data["b"]["truncated"] == pytest.approx(7 / 560)
    assert data["metric"] == "mean@n"


def test_compare_of_pass_at_k(made, capsys):
    home, arrays = made
    out = run(capsys, "compare", home / "7b-GRPO", home / "7b-Band", "-k", "4")
    expected = pass_at_k(8, arrays["7b-GRPO"]["aime24"].sum(-1), 4).mean()
    head = out.splitlines()[3]
    assert head.startswith("pass@4")
    assert head.split().count("p") == 1  # that of the clustered error
    assert "pass@k has no such test" in out
    assert "reshuffling" not in out
    assert "What would settle it is computed for mean@n only: leave out -k." in out
    assert next(line for line in out.splitlines() if line.startswith("aime24")).split()[2] == f"{100 * expected:.1f}"


def test_a_copy_of_an_evaluation_is_level_with_it(made, tmp_path, capsys):
    home, _ = made
    out = run(capsys, "compare", home / "7b-GRPO", shutil.copytree(home / "7b-GRPO", tmp_path / "copy"))
    assert "not settled. B - A is +0.0 points" in out
    assert "nothing can be said, the difference measured is 0" in out


def test_samples_of_a_folder_that_could_not_be_read_are_told(tmp_path, capsys):
    arrays = scores(0, sizes=(("aime24", 30),))
    for silent, told in ((47, False), (48, True)):  # of 240
        folder = evaluation(tmp_path / str(silent), "A", arrays, silent=silent)
        assert main(["score", str(folder)]) == 0
        said = " ".join("".join(capsys.readouterr()).split())
        assert ("the scorer math read no answer in 20% of the samples" in said) == told


def test_a_file_is_named_once(tmp_path, capsys):
    for name in "ab":
        rows = [{"prompt": x, "score": int(x == name)} for x in "abc"]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = run(capsys, "compare", tmp_path / "a.jsonl", f"new={tmp_path / 'b.jsonl'}")
    assert out.startswith(f"A = {tmp_path / 'a.jsonl'}\nB = new ({tmp_path / 'b.jsonl'})\n")


def test_what_does_not_compare_is_said(tmp_path, capsys):
    a = evaluation(tmp_path / "a", "A", scores(0))
    fewer = scores(1, sizes=(("aime24", 20), ("math", 5)))
    b = evaluation(tmp_path / "b", "B", fewer, sampling={"n": 8, "temperature": 0.6, "max_tokens": 64})
    out = run(capsys, "compare", a, b)
    assert "aime24: 20 prompts in common, of 30 of A and 20 of B; the others do not count." in out
    assert "Only one of the two has amc23, math." in out
    assert "Sampled differently: temperature (1.0, 0.6)" in out


def answers_of(path, array, **more):
    rows = [{"prompt": f"aime24 {i}", "score": x, **more} for i, row in enumerate(array) for x in row]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_file_without_a_data_set_compares_with_the_only_one_of_a_folder(tmp_path, capsys):
    array = scores(0)["aime24"]
    folder = evaluation(tmp_path / "a", "A", {"aime24": array})
    same = answers_of(tmp_path / "b.jsonl", array)
    named = json.loads(
        run(capsys, "compare", folder, answers_of(tmp_path / "c.jsonl", array, dataset="aime24"), "--json")
    )
    (found,) = json.loads(run(capsys, "compare", folder, same, "--json"))["results"]
    assert found == {**named["results"][0], "data": "aime24 | answers"}
    out = run(capsys, "compare", folder, same)
    assert "\nB: its data set answers is compared with A's aime24, as each has no other.\n" in out
    assert "Only one of the two" not in out
    assert "data set" not in run(capsys, "compare", folder, tmp_path / "c.jsonl")
    other = answers_of(tmp_path / "d.jsonl", array)
    other.write_text(other.read_text().replace("aime24 ", "problem "))
    assert main(["compare", str(folder), str(other)]) == 2
    assert "no prompt of 'aime24 | answers' in common" in capsys.readouterr().err
    both = evaluation(tmp_path / "both", "B", scores(0))
    assert main(["compare", str(both), str(same)]) == 2
    assert "no data set in common: A has aime24; amc23, B has answers" in capsys.readouterr().err


def test_other_numbers_of_samples_are_told_side_by_side(tmp_path, capsys):
    a = evaluation(tmp_path / "a", "A", scores(0))
    b = evaluation(tmp_path / "b", "B", scores(4, 0.02, n=4))
    out = run(capsys, "compare", a, b)
    assert re.search(r"these problems: (about )?[\d,]+ samples per prompt of each \(now 8 of A, 4 of B\)", out)
    assert re.search(r"problems like these: (about )?[\d,]+ problems with as many samples each \(now 70\)", out)


def test_the_collapse_of_the_run_is_told(tmp_path, capsys):
    """Beside the model, up to two folders above it."""
    model = tmp_path / "run" / "checkpoints" / "step-90"
    model.mkdir(parents=True)
    rewards = [0.5] * 60 + [0.01] * 40
    lines = [{"step": i, "reward": r, "entropy": 0.3 if r > 0.1 else 2.0} for i, r in enumerate(rewards)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    a = evaluation(tmp_path / "a", "A", scores(0), model=str(model))
    b = evaluation(tmp_path / "b", "B", scores(1))
    told = "its training run collapsed at step 60: reward 0.50 before, 0.01 after, entropy rose."
    out = run(capsys, "compare", a, b)
    assert f"A: {told}" in out
    assert f"B: {told}" not in out
    assert "its run collapsed at step 60" in run(capsys, "table", a, b)


# ---------------------------------------------------------------------------------------------------------------- table


def read(home, *names):
    return [read_result(str(home / name)) for name in names]


def every(home):
    return read(home, *sorted(path.name for path in home.iterdir()))


def test_the_cells_are_means_with_the_interval_they_name(made):
    home, arrays = made
    table = make_table(every(home))
    assert table.columns == ("AMC2023", "AIME2024", "Average")
    assert table.measures == ("mean@8", "best@8 (verl)", "pass@8")
    rows = {(row.heading, row.method): row for row in table.rows}
    runs = [arrays[f"3b-Band-{i}"]["aime24"] for i in range(3)]
    per_prompt = (lambda x: x.mean(-1), lambda x: best_at_k_bootstrap(x, 8), lambda x: x.max(-1))
    for value, of in zip(rows["Qwen & 3B", "Band_KL 0.05"].cells[1], per_prompt, strict=True):
        spread = training_runs([of(array).mean() for array in runs])
        assert value.value == pytest.approx(spread.value)
        assert value.interval == pytest.approx(spread.interval(high=2))
    array = arrays["7b-GRPO"]["amc23"]
    for value, of in zip(rows["7B", "GRPO"].cells[0], per_prompt, strict=True):
        assert value.interval == pytest.approx(clustered_error(of(array)).interval())
    mean, *_ = rows["7B", "GRPO"].cells[2]
    assert mean.value == pytest.approx(np.mean([arrays["7b-GRPO"][name].mean() for name in ("aime24", "amc23")]))


def test_half_of_the_interval_over_runs_is_not_cut_at_zero(tmp_path):
    for i, score in enumerate((np.eye(20)[:, :4] * 0, np.ones((20, 4)) * (np.arange(20)[:, None] < 4))):
        evaluation(tmp_path / str(i), "A", {"aime24": score})
    text = FORMATS["markdown"](make_table(read(tmp_path, "0", "1")))
    assert "10.0 ± 127.1 /" in text  # 12.706 standard errors of 10 points


def test_the_best_of_each_heading_is_bold(made):
    table = make_table(every(made[0]))
    for row in table.rows:
        assert [cell[0].is_best for cell in row.cells] == [row.method.startswith("Band")] * 3


def test_equal_ones_are_both_best_and_a_single_one_is_not(tmp_path):
    a = evaluation(tmp_path / "a", "A", {"aime24": np.eye(4)})
    b = evaluation(tmp_path / "b", "B", {"aime24": np.eye(4)[::-1]})
    assert all(row.cells[0][0].is_best for row in make_table(read(tmp_path, "a", "b")).rows)
    assert not make_table([read_result(str(a))]).rows[0].cells[0][0].is_best
    assert make_table(read(tmp_path, "a", "b")).columns == ("AIME2024",)
    assert b.is_dir()


def test_a_data_set_that_is_missing_leaves_a_dash(tmp_path):
    evaluation(tmp_path / "a", "A", scores(0))
    evaluation(tmp_path / "b", "B", {"aime24": scores(1)["aime24"]})
    table = make_table(read(tmp_path, "a", "b"))
    assert [cell == (None,) * 3 for cell in table.rows[1].cells] == [True, False, True]
    line = next(line for line in FORMATS["markdown"](table).splitlines() if line.startswith("| B "))
    assert line.startswith("| B | – | ")
    assert line.endswith(" | – |")


def test_the_notes_say_what_the_numbers_are(made):
    text = FORMATS["markdown"](make_table(every(made[0]))).replace("\\", "")
    assert "Problems: AMC2023 40, AIME2024 30; 8 samples each. Scorer: math." in text
    assert "half of the 95% interval over training runs" in text
    assert "of one training run: what another run would give is not in it" in text
    assert "<sup>1</sup> 1.2% of the samples cut at the length limit, 2.5% without an answer" in text
    assert "may be noise" in text


def test_other_problems_and_scorers_are_noted(tmp_path):
    evaluation(tmp_path / "a", "A", scores(0))
    evaluation(tmp_path / "b", "B", scores(1, sizes=(("aime24", 20),)))
    text = "\n".join(make_table(read(tmp_path, "a", "b")).notes)
    assert "Not all rows have the same problems of AIME2024." in text


def test_markdown_is_a_table(made):
    lines = [line for line in FORMATS["markdown"](make_table(every(made[0]))).splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {5}
    assert "| **Qwen & 3B** | | | |" in lines
    assert any("**" in line and "± " in line and "(3 runs)" in line for line in lines)
    assert any("Band\\_KL" in line for line in lines)


def test_latex_escapes_what_it_must_and_is_balanced(made):
    text = FORMATS["latex"](make_table(every(made[0])))
    assert "Qwen \\& 3B" in text
    assert "Band\\_KL 0.05" in text
    assert "1.2\\% of the samples" in text
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    body = text[text.index("\\toprule") : text.index("\\bottomrule")]
    for line in body.splitlines()[1:]:
        if line.endswith("\\\\") and "multicolumn" not in line:
            assert line.replace("\\&", "").count("&") == 3, line
    for character in ("±", "–", "<", "#"):
        assert character not in text


def test_the_table_goes_to_a_file_by_its_name(made, tmp_path, capsys, monkeypatch):
    home, _ = made
    for name, begin in (("t.tex", "% \\usepackage"), ("t.md", "| Method")):
        assert run(capsys, "table", home / "7b-GRPO", "-o", tmp_path / "out" / name).strip().endswith(name)
        assert (tmp_path / "out" / name).read_text().startswith(begin)
    assert run(capsys, "table", home / "7b-GRPO", "--format", "latex").startswith("% \\usepackage")
    monkeypatch.chdir(tmp_path)
    assert run(capsys, "table", home / "7b-GRPO", "-o", "-").startswith("| Method")
    assert not Path("-").exists()
    assert main(["table", str(home / "7b-GRPO"), "-o", str(tmp_path / "t.html")]) == 2
    assert "--output must be Markdown (.md) or LaTeX (.tex), got " in capsys.readouterr().err
    assert not (tmp_path / "t.html").exists()


def log(path, *means, step=800, first=0.01):
    """A log of verl with two validations of AIME24 and AMC23, the last with these means."""
    rows = [{"step": 0, "data": {"val-core/aime_2024/acc/mean@4": first}}, {"step": step, "data": {"actor/entropy": 1}}]
    for data, mean in zip(("aime_2024", "aime_amc2023"), means, strict=False):
        numbers = {"mean@4": mean, "best@4/mean": 2 * mean}
        rows[1]["data"] |= {f"val-core/{data}/acc/{name}": value for name, value in numbers.items()}
        rows[1]["data"] |= {f"val-aux/{data}/acc/best@2/mean": 1.5 * mean, f"val-aux/{data}/acc/std@4": 9.0}
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def dump(folder, shift, step=40, **more):
    """verl's folder of dumps, with AIME24 and AMC23."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {"gts": "7", "step": step}
    rows = [
        known | {"input": f"{name} {i}", "score": right, "acc": bool(right), "data_source": name} | more
        for name, array in scores(step, shift).items() for i, row in enumerate(array) for right in row
    ]  # fmt: skip
    (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_row_of_a_log_has_what_verl_logged_and_no_interval(tmp_path, capsys):
    a, b = log(tmp_path / "grpo.jsonl", 0.1, 0.2), log(tmp_path / "band.jsonl", 0.2, 0.4)
    out = run(capsys, "table", f"M / GRPO={a}", f"M / Band={b}")
    assert "| | mean@4 / best@4 (verl) | mean@4 / best@4 (verl) |" in out
    assert "| GRPO | 20.0 / 40.0 | 10.0 / 20.0 | 15.0 / 30.0 |" in out
    assert "| Band | **40.0** / **80.0** |" in out
    assert "A row of one log has no interval: a log holds means and no answers." in out
    assert "Validation at step 800." in out
    assert "| grpo | 20.0 / 30.0 | 10.0 / 15.0 | 15.0 / 22.5 |" in run(capsys, "table", a, "-k", "2")
    assert "| grpo | 1.0 |" in run(capsys, "table", a, "--step", "0")
    assert "{20.0 \\\\ 40.0}" in run(capsys, "table", a, "--format", "latex")


def test_repetitions_are_one_row_with_the_runs_that_would_settle_it(tmp_path, capsys):
    for seed, (x, y) in enumerate([(0.10, 0.13), (0.12, 0.16), (0.14, 0.15)], 1):
        log(tmp_path / f"grpo-seed{seed}.jsonl", x, x)
        log(tmp_path / f"band-kl-seed{seed}.jsonl", y, y)
    out = run(capsys, "table", *sorted(tmp_path.iterdir()))
    half = 100 * stats.t.ppf(0.975, 2) * stats.sem([0.10, 0.12, 0.14])
    assert f"| grpo (3 runs) | 12.0 ± {half:.1f} / 24.0" in out
    a, b = [0.10, 0.12, 0.14], [0.13, 0.16, 0.15]
    degrees = np.floor(stats.ttest_ind(b, a, equal_var=False).df)
    half = stats.t.ppf(0.975, degrees) * np.hypot(stats.sem(a), stats.sem(b))
    low, high = (f"{100 * (0.08 / 3 + sign * half):+.1f}" for sign in (-1, 1))
    assert f"band-kl minus grpo: +2.7 [{low}, {high}], not settled; 9 runs of each would settle such" in out


def test_methods_of_several_models_are_no_repetitions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("3b", "7b"):
        log(Path("logs") / name / "grpo.jsonl", 0.1)
    out = run(capsys, "table", "logs/3b/grpo.jsonl", "logs/7b/grpo.jsonl")
    assert "| **logs/3b** | |" in out
    assert out.count("| grpo | ") == 2


def test_a_folder_of_dumps_is_read_at_its_last_step(tmp_path, capsys):
    a, b = (dump(tmp_path / f"{name}-seed1", shift) for name, shift in (("a", 0.0), ("b", 0.2)))
    dump(a, 0.0, 5)
    out = run(capsys, "compare", a, b)
    assert out.startswith(f"A = a ({a / '40.jsonl'})\n")
    assert re.search(r"average\s+70 ", out)
    table = make_table([read_result(str(a)), read_result(f"GRPO={log(tmp_path / 'x.jsonl', 0.1, 0.2, step=40)}")])
    assert table.measures == ("mean@n", "best@4 (verl)", "pass@4")
    assert table.rows[1].cells[0][2] is None
    right = scores(40)["aime24"]
    assert table.rows[0].cells[1][2].value == pytest.approx(pass_at_k(8, right.sum(-1), 4).mean())
    assert "Validation at step 5." in run(capsys, "table", a, "--step", "5")
    out = run(capsys, "table", dump(tmp_path / "plain", 0, data_source=None))
    assert "| Method | validation |" in out
    assert "its dump names no data sets, so all problems are one column" in out


def test_where_the_table_is_wide_names_have_their_own_lines(made, monkeypatch, capsys):
    home, _ = made
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(capsys, "compare", home / "7b-GRPO", home / "7b-Band").splitlines()
    place = lines.index("aime24")
    assert lines[place + 1].split()[0] == "30"
    assert max(map(len, lines)) <= 80


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["compare", "gone", "gone"],
            "gone: no such file or folder; expected a folder of bandpo eval, or a file of answers",
        ),
        (["compare", "empty", "empty"], "holds no evaluation"),
        (["compare", "a", "b", "-k", "9"], "k must be from 1 to the number of samples 8, got 9"),
        (["compare", "a", "other"], "no data set in common: A has aime24; amc23, B has math"),
        (["compare", "a", "bad.jsonl"], "bad.jsonl has no column of the prompt; looked for prompt, question"),
        (["compare", "a", "uneven.jsonl"], "problems of 'validation' have from 1 to 2 answers"),
        (["compare", "a", "a", "--scorer", "dapo-strict"], "560 of 560"),
        (["table", "a", "a"], "a: given twice"),
        (["table", "M-seed1=a", "M-seed2=other/../a"], "a: given twice"),
        (["compare", "a", "x=a"], "a: given twice"),
        (["score", "a", "x=a"], "a: given twice"),
        (["score", "uneven.jsonl", "uneven.jsonl"], "uneven.jsonl: given twice"),
        (["table", "log.jsonl", "--step", "7"], "log.jsonl: no validation of step 7; the nearest is of 0"),
        (["table", "dumps", "--step", "7"], "dumps: no validation of step 7; the nearest is of 40"),
        (["table", "a", "--step", "7"], "--step is for logs and dumps of verl, got only a"),
        (["table", "signs.jsonl"], "val-core/aime_2024/acc/mean@4 is -0.5; a share of right answers, 0 to 1,"),
        (["table", "log.jsonl", "--scorer", "math"], "log.jsonl: a log has no answers that --scorer math could grade"),
        (["table", "log.jsonl", "--column", "score=x"], "got only folders of bandpo eval or logs: log.jsonl"),
        (["table", "logs"], "logs holds no evaluation"),
        (["table", "metrics.jsonl"], "metrics.jsonl: no validation in it; expected numbers such as val-core/"),
        (["compare", "a", "log.jsonl"], "log.jsonl: a log has no answers, but their means, which bandpo table shows"),
        (["score", "log.jsonl"], "log.jsonl: a log has no answers"),
        (["table", "a", "-k", "20"], "k must be from 1 to the smallest number of samples 8, got 20"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        evaluation(Path(name), "A", scores(0))
    evaluation(Path("other"), "B", scores(0, sizes=(("math", 3),)))
    Path("empty").mkdir()
    Path("run.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    Path("metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n')
    Path("bad.jsonl").write_text("{}\n")
    log(Path("signs.jsonl"), -0.5)
    for name in ("log.jsonl", "logs/a.jsonl", "logs/b.jsonl"):
        log(Path(name), 0.1)
    dump(Path("dumps"), 0.0)
    lines = [{"input": i, "gts": "7", "score": 1.0} for i in ("x", "x", "y")]
    Path("uneven.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_small_p_is_said_without_a_second_sign(made):
    home, _ = made
    a, b = read(home, "7b-GRPO", "7b-Band")
    found = [
        replace(each, sampling_error=replace(each.sampling_error, p=1e-6),
                clustered_error=replace(each.clustered_error, p=0.034))
        for each in compare_results(a, b)
    ]  # fmt: skip
    text = comparison_text(a, b, found)
    assert ", p < 0.0001" in text
    assert ", p = 0.034" in text
