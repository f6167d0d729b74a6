"""`bandpo compare` and `bandpo table`: the numbers in them, against the arrays that the files were made of; every note
and every refusal; and the formats."""
# ruff: noqa: RUF001  (dashes are meant)

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import missing
from disk import write
from scipy import stats

from bandpo_runs.data.questions import Question, fingerprint
from bandpo_runs.evals.results import read_result
from bandpo_runs.reports.comparison import compare_results, comparison_text
from bandpo_runs.reports.table import FORMATS, make_table
from bandpo_runs.statistics.estimators import best_at_k_bootstrap, pass_at_k
from bandpo_runs.statistics.intervals import clustered_error, training_runs


def evaluation(folder: Path, label: str, scores: dict[str, np.ndarray], cut=0, silent=0, **facts) -> Path:
    """An evaluation folder as bandpo eval leaves it; its first `cut` samples are too long, `silent` have no answer."""
    n = next(iter(scores.values())).shape[1]
    sampling = {"n": n, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 64, "seed": 0}
    asked = {name: [Question(name, i, f"{name} {i}", "7") for i in range(len(score))] for name, score in scores.items()}
    data = {name: {"rows": len(rows), "sha256": fingerprint(rows)} for name, rows in asked.items()}
    known = {"label": label, "model": "made", "backend": "made", "sampling": sampling, "data": data, "finished": True}
    at = [({"data": name, "prompt": i, "sample": j}, float(right)) for name, score in scores.items()
          for i, row in enumerate(score) for j, right in enumerate(row)]  # fmt: skip
    write(folder / "eval.json", {**known, "scorer": "math", "command": "bandpo eval", **facts})
    write(folder / "prompts.jsonl", [question.row() for rows in asked.values() for question in rows])
    write(folder / "samples.jsonl", [
        {**each, "seed": each["sample"], "text": "x", "tokens": 10 + each["sample"],
         "finish": "length" if k < cut else "stop"} for k, (each, _) in enumerate(at)
    ])  # fmt: skip
    write(folder / "grades-math.jsonl", [
        {**each, "score": right, "answer": None if k < silent else "7", "status": "unparsed" if k < silent else "ok"}
        for k, (each, right) in enumerate(at)
    ])  # fmt: skip
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
    home, arrays = tmp_path_factory.mktemp("made"), {}
    for method, shift in (("GRPO", 0.0), ("Band_KL 0.05", 0.2)):
        for run in range(3):
            arrays[f"3b-{method[:4]}-{run}"] = scores(run + (10 if shift else 0), shift)
            evaluation(home / f"3b-{method[:4]}-{run}", f"Qwen & 3B / {method}", arrays[f"3b-{method[:4]}-{run}"])
        name, more = f"7b-{method[:4]}", {"cut": 7, "silent": 14} if shift else {}
        arrays[name] = scores(50 + bool(shift), shift)
        evaluation(home / name, f"7B / {method}", arrays[name], **more)
    return home, arrays


# ------------------------------------------------------------------------------------------------------------ comparing


def compared(a, b):
    """The lines of a comparison, and its last row."""
    sides = read_result(str(a)), read_result(str(b))
    comparisons = compare_results(*sides)
    return comparison_text(*sides, comparisons).splitlines(), comparisons[-1]


def test_compare_says_who_is_better_by_how_much_and_how_sure(made, cli, monkeypatch):
    home, arrays = made
    lines = cli.out("compare", home / "7b-GRPO", home / "7b-Band").splitlines()
    a, b = arrays["7b-GRPO"], arrays["7b-Band"]
    row = next(line for line in lines if line.startswith("aime24")).split()
    assert row[1:4] == ["30", *(f"{100 * x['aime24'].mean():.1f}" for x in (a, b))]
    gap = np.mean([b[name].mean() - a[name].mean() for name in a])
    assert not missing(
        " ".join(" ".join(lines).split()),
        f"On problems like these on average over 2 data sets: yes, by {100 * gap:.1f} points, ",
        "], p < 0.0001. ",
        "B: scorer math; 1.2% cut at the length limit; 2.5% without an answer that could be read.",
    )
    monkeypatch.setenv("COLUMNS", "80")  # where names have lines of their own
    lines = cli.out("compare", home / "7b-GRPO", home / "7b-Band").splitlines()
    assert (lines[lines.index("aime24") + 1].split()[0], max(map(len, lines)) <= 80) == ("30", True)


def test_when_problems_differ_samples_settle_it_for_these_problems_alone(tmp_path):
    rng = np.random.default_rng(0)
    moved = np.where(np.arange(30) % 2 == 0, 0.45, -0.35)[:, None]
    a, b = (
        evaluation(tmp_path / name, name, {"aime24": (rng.random((30, 64)) < p).astype(float)})
        for name, p in (("a", 0.5), ("b", 0.5 + moved))
    )
    lines, last = compared(a, b)
    assert (last.sampling_error.settled, last.clustered_error.settled) == (True, False)
    assert any("On problems like these: not settled. B - A is +" in line for line in lines)
    assert any("On these problems: no, B is worse by" in line for line in compared(b, a)[0])


def test_compare_as_json_has_the_same_numbers(made, cli):
    sides = [made[0] / name for name in ("7b-GRPO", "7b-Band")]
    data, (_, mean) = cli.json("compare", *sides, "--json"), compared(*sides)
    last = data["results"][-1]
    assert (last["data"], last["difference"], data["metric"]) == ("average", mean.difference, "mean@n")
    interval = list(mean.clustered_error.interval)
    assert (last["clustered_error"]["interval"], data["b"]["truncated"]) == (interval, pytest.approx(7 / 560))


def test_a_copy_of_an_evaluation_is_level_with_it(made, tmp_path):
    home, _ = made
    lines, last = compared(home / "7b-GRPO", shutil.copytree(home / "7b-GRPO", tmp_path / "copy"))
    assert (last.difference, last.sampling_error.settled) == (0, False)
    assert not missing("\n".join(lines), "not settled. B - A is +0.0 points", ", p = 1.00")


def test_the_two_are_named_with_their_files(tmp_path, cli):
    a, b = (write(tmp_path / f"{name}.jsonl", [{"prompt": x, "score": int(x == name)} for x in "abc"]) for name in "ab")
    assert cli.out("compare", a, f"new={b}").startswith(f"A = a ({a})\nB = new ({b})\n")


def test_what_does_not_compare_is_said(tmp_path):
    a = evaluation(tmp_path / "a", "A", scores(0))
    fewer = scores(1, sizes=(("aime24", 20), ("math", 5)))
    b = evaluation(tmp_path / "b", "B", fewer, sampling={"n": 8, "temperature": 0.6, "max_tokens": 64})
    lines, _ = compared(a, b)
    assert lines[-3].startswith("Sampled differently: temperature (1.0, 0.6)")
    assert lines[-2:] == [
        "aime24: 20 prompts in common, of 30 of A and 20 of B; the others do not count.",
        "Only one of the two has amc23, math.",
    ]


def answers_of(path, array, prompt="aime24", **more):
    return write(path, [{"prompt": f"{prompt} {i}", "score": x, **more} for i, row in enumerate(array) for x in row])


def test_a_file_without_a_data_set_compares_with_the_only_one_of_a_folder(tmp_path, cli):
    array = scores(0)["aime24"]
    folder, both = evaluation(tmp_path / "a", "A", {"aime24": array}), evaluation(tmp_path / "both", "B", scores(0))
    same = answers_of(tmp_path / "b.jsonl", array)
    files = same, answers_of(tmp_path / "c.jsonl", array, dataset="aime24")
    one, other = (cli.json("compare", folder, file, "--json")["results"][0] for file in files)
    assert one == {**other, "data": "aime24 | answers"}
    note = "; its data set answers is compared with A's aime24, as each has no other"
    assert [note in cli.out("compare", folder, file) for file in files] == [True, False]
    other = answers_of(tmp_path / "d.jsonl", array, "problem")
    assert "no prompt of 'aime24 | answers' in common" in cli.error("compare", folder, other)
    assert "no data set in common: A has aime24; amc23, B has answers" in cli.error("compare", both, same)


def test_the_collapse_of_the_run_is_told(tmp_path, cli):
    """Beside the model, up to two folders above it."""
    rewards = [0.5] * 60 + [0.01] * 40
    lines = [{"step": i, "reward": r, "entropy": 0.3 if r > 0.1 else 2.0} for i, r in enumerate(rewards)]
    model = write(tmp_path / "run" / "metrics.jsonl", lines).parent / "checkpoints" / "step-90"
    model.mkdir(parents=True)
    a = evaluation(tmp_path / "a", "A", scores(0), model=str(model))
    b = evaluation(tmp_path / "b", "B", scores(1))
    told = "its training run collapsed at step 60: reward 0.50 before, 0.01 after, entropy rose."
    of_a, _, of_b = " ".join(cli.out("compare", a, b).split()).partition(" B: scorer")
    assert (of_a.endswith(told), told in of_b) == (True, False)
    assert "its run collapsed at step 60" in cli.out("table", a, b)


# ---------------------------------------------------------------------------------------------------------------- table


def read(home, *names):
    """The results of these names, or all."""
    return [read_result(str(home / name)) for name in names or sorted(path.name for path in home.iterdir())]


def test_the_cells_are_means_with_the_interval_they_name(made):
    home, arrays = made
    table = make_table(read(home))
    measures = ("mean@8", "best@8 (verl)", "pass@8")
    assert (table.columns, table.measures) == (("AMC2023", "AIME2024", "Average"), measures)
    rows = {(row.heading, row.method): row for row in table.rows}
    runs = [arrays[f"3b-Band-{i}"]["aime24"] for i in range(3)]
    per_prompt = (lambda x: x.mean(-1), lambda x: best_at_k_bootstrap(x, 8), lambda x: x.max(-1))
    for value, of in zip(rows["Qwen & 3B", "Band_KL 0.05"].cells[1], per_prompt, strict=True):
        spread = training_runs([of(array).mean() for array in runs])
        assert (value.value, *value.interval) == pytest.approx((spread.value, *spread.interval(high=2)))
    array = arrays["7b-GRPO"]["amc23"]
    for value, of in zip(rows["7B", "GRPO"].cells[0], per_prompt, strict=True):
        assert value.interval == pytest.approx(clustered_error(of(array)).interval())
    mean, *_ = rows["7B", "GRPO"].cells[2]
    assert mean.value == pytest.approx(np.mean([arrays["7b-GRPO"][name].mean() for name in ("aime24", "amc23")]))
    best = {method: [cell[0].is_best for cell in row.cells] for (_, method), row in rows.items()}  # of each heading
    assert best == {"GRPO": [False] * 3, "Band_KL 0.05": [True] * 3}


def test_half_of_the_interval_over_runs_is_not_cut_at_zero(tmp_path):
    for i, score in enumerate((np.eye(20)[:, :4] * 0, np.ones((20, 4)) * (np.arange(20)[:, None] < 4))):
        evaluation(tmp_path / str(i), "A", {"aime24": score})
    text = FORMATS["markdown"](make_table(read(tmp_path, "0", "1")))
    assert "10.0 ± 127.1 /" in text  # 12.706 standard errors of 10 points


def test_equal_ones_are_both_best_and_a_single_one_is_not(tmp_path):
    for name, score in (("a", np.eye(4)), ("b", np.eye(4)[::-1])):
        evaluation(tmp_path / name, name, {"aime24": score})
    both, alone = make_table(read(tmp_path, "a", "b")), make_table(read(tmp_path, "a"))
    assert [row.cells[0][0].is_best for row in (*both.rows, *alone.rows)] == [True, True, False]
    assert (both.columns, alone.measures[0]) == (("AIME2024",), "mean@4")


def test_a_data_set_that_is_missing_leaves_a_dash(tmp_path):
    evaluation(tmp_path / "a", "A", scores(0))
    evaluation(tmp_path / "b", "B", {"aime24": scores(1, sizes=(("aime24", 20),))["aime24"]})
    table = make_table(read(tmp_path, "a", "b"))
    assert [cell == (None,) * 3 for cell in table.rows[1].cells] == [True, False, True]
    assert re.search(r"^\| B \| – \| .* \| – \|$", FORMATS["markdown"](table), re.MULTILINE)
    assert "Not all rows have the same problems of AIME2024." in table.notes


def test_a_table_is_written_as_markdown_and_latex(made):
    """Numbers, headings, notes and footnotes; what has a meaning in a format is escaped."""
    table = make_table(read(made[0]))
    assert [note.partition(":")[0] for note in table.notes] == STORED_NOTES
    text = FORMATS["markdown"](table)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {5}
    assert re.search(r"^\| Band\\_KL 0.05 \(3 runs\) .*\*\*.* ± ", text, re.MULTILINE)
    note = "<sup>1</sup> 1.2% of the samples cut at the length limit, 2.5% without an answer"
    assert not missing(text, "\n| **Qwen & 3B** | | | |\n", note)
    text = FORMATS["latex"](table)
    assert not missing(text, "Qwen \\& 3B", "Band\\_KL 0.05", "1.2\\% of the samples")
    assert text.count("{") - text.count("\\{") == text.count("}") - text.count("\\}")
    body = text[text.index("\\toprule") : text.index("\\bottomrule")].splitlines()[1:]
    rows = [line for line in body if line.endswith("\\\\") and "multicolumn" not in line]
    assert ({line.replace("\\&", "").count("&") for line in rows}, {"±", "–", "<", "#"} & {*text}) == ({3}, set())


STORED_NOTES = [
    "Percent. Problems",
    "± half of the 95% interval over training runs (Student's t over as many runs as are given).",
    "[95% interval for problems like these, clustered by problem] of one training run",
    "best@8 (verl) is verl's best@k/mean, drawn with replacement, which the paper prints as pass@32; it is at most the "
    "unbiased pass@k.",
    "Bold",
    "Average, mean@8, over training runs (95% interval by Welch's t)",
    "Qwen & 3B",
]


def test_the_table_goes_to_a_file_by_its_name(made, here, cli):
    table = ["table", made[0] / "7b-GRPO"]
    for name, begin in (("out/t.tex", "% \\usepackage"), ("out/t.md", "| Method")):
        assert (cli.out(*table, "-o", name), Path(name).read_text()[: len(begin)]) == (f"{name}\n", begin)
    for options, begin in ((["--format", "latex"], "% \\usepackage"), (["-o", "-"], "| Method")):
        assert cli.out(*table, *options).startswith(begin)
    assert "--output must be Markdown (.md) or LaTeX (.tex), got t" in cli.error(*table, "-o", "t.html")
    assert [path.name for path in here.iterdir()] == ["out"]


def log(path, *means, step=800, first=0.01):
    """A log of verl with two validations of AIME24 and AMC23, the last with these means."""
    last = {"actor/entropy": 1}
    for data, mean in zip(("aime_2024", "aime_amc2023"), means, strict=False):
        numbers = {"core": {"mean@4": mean, "best@4/mean": 2 * mean}, "aux": {"best@2/mean": 1.5 * mean, "std@4": 9.0}}
        last |= {f"val-{part}/{data}/acc/{name}": x for part, each in numbers.items() for name, x in each.items()}
    return write(path, [{"step": 0, "data": {"val-core/aime_2024/acc/mean@4": first}}, {"step": step, "data": last}])


def dump(folder, shift, step=40, **more):
    """verl's folder of dumps, with AIME24 and AMC23."""
    rows = [
        {"gts": "7", "step": step, "input": f"{name} {i}", "score": right, "acc": bool(right), "data_source": name}
        | more
        for name, array in scores(step, shift).items() for i, row in enumerate(array) for right in row
    ]  # fmt: skip
    return write(folder / f"{step}.jsonl", rows).parent


def test_the_row_of_a_log_has_what_verl_logged_and_no_interval(tmp_path, cli):
    a, b = log(tmp_path / "grpo.jsonl", 0.1, 0.2), log(tmp_path / "band.jsonl", 0.2, 0.4)
    assert not missing(
        cli.out("table", f"M / GRPO={a}", f"M / Band={b}"),
        "| | mean@4 / best@4 (verl) | mean@4 / best@4 (verl) |",
        "| GRPO | 20.0 / 40.0 | 10.0 / 20.0 | 15.0 / 30.0 |",
        "| Band | **40.0** / **80.0** |",
        "A row of one log has no interval: a log holds means and no answers.",
        "Validation at step 800.",
    )
    for options, row in (
        (["--step", "0"], "| grpo | 1.0 |"),
        (["--format", "latex"], "{20.0 \\\\ 40.0}"),
    ):
        assert row in cli.out("table", a, *options)


def test_repetitions_are_one_row_with_the_difference_over_runs(tmp_path, cli):
    a, b = [0.10, 0.12, 0.14], [0.13, 0.16, 0.15]
    for name, means in (("grpo", a), ("band-kl", b)):
        for seed, mean in enumerate(means, 1):
            log(tmp_path / f"{name}-seed{seed}.jsonl", mean, mean)
    out = cli.out("table", *sorted(tmp_path.iterdir()))
    half = 100 * stats.t.ppf(0.975, 2) * stats.sem(a)
    assert f"| grpo (3 runs) | 12.0 ± {half:.1f} / 24.0" in out
    degrees = np.floor(stats.ttest_ind(b, a, equal_var=False).df)
    half = stats.t.ppf(0.975, degrees) * np.hypot(stats.sem(a), stats.sem(b))
    low, high = (f"{100 * (0.08 / 3 + sign * half):+.1f}" for sign in (-1, 1))
    assert f"band-kl minus grpo: +2.7 [{low}, {high}], not settled by 3 and 3 runs." in out


def test_methods_of_several_models_are_no_repetitions(here, cli):
    lines = cli.out("table", *(log(Path("logs") / name / "grpo.jsonl", 0.1) for name in ("3b", "7b"))).splitlines()
    assert (lines.count("| **logs/3b** | |"), sum(line.startswith("| grpo | ") for line in lines)) == (1, 2)


def test_a_folder_of_dumps_is_read_at_its_last_step(tmp_path, cli):
    a, b = (dump(tmp_path / f"{name}-seed1", shift) for name, shift in (("a", 0.0), ("b", 0.2)))
    dump(a, 0.0, 5)
    out = cli.out("compare", a, b)
    assert (out.startswith(f"A = a ({a / '40.jsonl'})\n"), "\naverage  70 " in re.sub("  +", "  ", out)) == (True, True)
    table = make_table([read_result(str(a)), read_result(f"GRPO={log(tmp_path / 'x.jsonl', 0.1, 0.2, step=40)}")])
    right = pass_at_k(8, scores(40)["aime24"].sum(-1), 4).mean()
    values = table.rows[1].cells[0][2], table.rows[0].cells[1][2].value
    assert (table.measures, values) == (("mean@n", "best@4 (verl)", "pass@4"), (None, pytest.approx(right)))
    assert "Validation at step 5." in cli.out("table", a, "--step", "5")
    out = cli.out("table", dump(tmp_path / "plain", 0, data_source=None))
    assert not missing(out, "| Method | validation |", "its dump names no data sets, so all problems are one column")


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["compare", "gone", "gone"],
            "gone: no such file or folder; expected a folder of bandpo eval, or a file of answers",
        ),
        (["compare", "empty", "empty"], "holds no evaluation"),
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
    ],
)
def test_mistakes_are_one_line(here, cli, argv, message):
    for name in "ab":
        evaluation(Path(name), "A", scores(0))
    evaluation(Path("other"), "B", scores(0, sizes=(("math", 3),)))
    Path("empty").mkdir()
    write("metrics.jsonl", [{"step": 1, "reward": 0.5}])
    write("bad.jsonl", [{}])
    write("uneven.jsonl", [{"input": i, "gts": "7", "score": 1.0} for i in ("x", "x", "y")])
    for name, mean in (("signs.jsonl", -0.5), ("log.jsonl", 0.1), ("logs/a.jsonl", 0.1), ("logs/b.jsonl", 0.1)):
        log(Path(name), mean)
    dump(Path("dumps"), 0.0)
    assert message in cli.error(*argv)
