"""`bandpo train MODEL --data FILE`, from the line that a person types to the end."""

import itertools
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import recipe
from commands import missing
from disk import json_rows, write
from report_runs import make_rows, write_run
from rich.console import Console

from bandpo_runs.cli import show_training
from bandpo_runs.reports import verdicts
from bandpo_runs.toy import SCENES
from bandpo_runs.training import on_trl
from bandpo_runs.training.on_trl import HELD_OUT
from bandpo_runs.training.shared_prompts import SharedPrompts
from bandpo_runs.training.side_by_side import plan

LINE = [
    *["train", "./model", "--data", "rows.jsonl", "--reward", "test_train:share_of_even", "--rounds", "2"],
    *["data.eval_size=4", "trainer.max_completion_length=5", "trainer.learning_rate=0.01"],
    "data.template='{prompt} ='",
]


def share_of_even(completions, **columns):
    """A reward that tells completions apart from the start."""
    return [sum(map(ord, text)) % 7 / 6 for text in completions]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(recipe.make(tmp_path))
    questions = [" ".join("ab"[i >> bit & 1] for bit in range(7)) for i in range(80)]
    write("rows.jsonl", [{"question": question, "answer": "a"} for question in questions])
    return tmp_path


def test_a_model_learns_from_a_file(home, cli):
    folder = Path("runs/model/band-kl-0.05")
    write(folder / "report.md", "# My report, and no prepared data\n")
    text = cli.out(*LINE)
    evaluations = json_rows(folder / HELD_OUT)
    shapes = [(each["step"], len(each["scores"]), len(each["answers"])) for each in evaluations]
    assert (shapes, "<svg" in (folder / "report.html").read_text()) == ([(0, 4, 3), (4, 4, 3), (8, 4, 3)], True)
    before, after = (sum(each["scores"].values()) / 4 for each in (evaluations[0], evaluations[-1]))
    question, answer, *_ = evaluations[0]["answers"][0]
    for line in (
        "before  held-out reward ", "round 1 of 2  reward 0.*clipped .* min left$", "round 2 of 2  held-out reward",
        "Machine:", rf"Reward on 4 held-out questions: {before:.3f} \[.*, {after:.3f} \[", "The rule clipped",
        f"  {question.removesuffix(' =')}\n    before: {' '.join(answer.split())}".rstrip(),
        f"Curves: {folder / 'report.html'}$", ".*--rule grpo -o runs/model/grpo-seed0", rf"{folder}\n\Z",
    ):  # fmt: skip
        assert re.search(f"^{line}", text, re.MULTILINE), line
    assert f"{folder} already holds a run, which is finished; " in cli.error(*LINE)  # nothing is lost
    assert f"{folder} is finished; nothing to resume\n" in cli.out(*LINE, "--resume")


def test_a_resumed_run_has_what_was_chosen_before_and_no_half_a_line(home, cli):
    folder = Path(cli.out(*LINE).splitlines()[-1])
    chosen, (first, *_) = folder / "config.yaml", json_rows(folder / HELD_OUT)
    for name, now, other in (("gradient_accumulation_steps", 1, 2), ("steps_per_generation", 4, 8)):
        write(chosen, chosen.read_text().replace(f"{name}: {now}", f"{name}: {other}"))
    write(folder / "run.json", json.loads((folder / "run.json").read_text()) | {"finished": False})
    write(folder / HELD_OUT, json.dumps(first) + '\n{"step": 4, "sco')
    shutil.rmtree(folder / "checkpoints")  # the evaluation comes before it
    other = "was started with other settings (trainer.steps_per_generation)"
    assert other in cli.error(*LINE, "--resume", "trainer.steps_per_generation=12")
    cli.out(*LINE, "--resume")  # not "other settings", as where another program takes memory now
    again, *_, last = json_rows(folder / HELD_OUT)
    assert (again, last["step"]) == (first, 8)


def test_lora_leaves_adapters(home, cli):
    assert cli.out(*LINE, "--lora", "--rule", "grpo", "-o", "out").endswith("\nout\n")
    assert json.loads(Path("out/model/adapter_config.json").read_text())["r"] == 16


def test_where_it_cannot_train_as_trl_does_trl_trains(home, cli, monkeypatch):
    monkeypatch.setattr(SharedPrompts, "__init__", lambda *some, **named: pytest.fail("it trains"))
    why = "TRL samples and scores the answers, which takes longer: beta adds a penalty\n"
    assert why in cli.out(*LINE, "trainer.beta=0.01")


HUB = ['model="Qwen/Qwen3-0.6B"', 'data.source="hub"', 'data.path="openai/gsm8k"']
TAKEN = {  # the recipe and the settings of a line
    "train": ("smollm2.yaml", []),
    "train --rounds 2 --rule grpo seed=3": ("smollm2.yaml", ["seed=3", 'trust_region="grpo"', "rounds=2"]),
    "train Qwen/Qwen3-0.6B --data openai/gsm8k": (None, HUB),
    "train --data a.csv model=./mine": (None, ["model=./mine", 'data.source="file"', 'data.path="a.csv"']),
    "train data.eval_size=16": ("smollm2.yaml", ["data.eval_size=16"]),
}


@pytest.mark.parametrize("line", TAKEN)
def test_without_a_model_it_is_the_recipe_that_ships(monkeypatch, cli, line):
    calls = []
    monkeypatch.setattr(show_training, "train_and_show", lambda *given: calls.append(given))
    cli.out(*line.split())
    ((path, settings, *_),) = calls
    assert (path and Path(path).name, settings) == TAKEN[line]


def test_the_outcome_says_what_was_learned(capsys):
    """With intervals by hand: of shares, one right and one wrong question more; of gains, Student's."""
    config = SimpleNamespace(reward="last-number", data=SimpleNamespace(template="<{prompt}>"))
    before = {"scores": dict(enumerate([0.0, 0.0, 1.0, 0.0] * 25)), "answers": [["<1 + 1>", "3"]]}
    after = {"scores": dict(enumerate([1.0, 0.0, 1.0, 1.0] * 25)), "answers": [["<1 + 1>", "2,\n yes"]]}
    after["scores"][100] = 1.0  # which was not scored before
    show_training._show_held_out(before, after, config)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "Right on 100 held-out questions: 25.0 % [16.9, 34.1] before, 75.0 % [65.9, 83.1] after: +50.0 points "
        "[+40.0, +60.0].",
        "  1 + 1", "    before: 3", "    after:  2, yes",
    ]  # fmt: skip


# ---- what the commands print


ROW = {"round": 3, "reward": 0.25, "lab/work": 0.5, "entropy": 1.2345, "clip/fraction": 0.0123}


@pytest.mark.parametrize(
    ("row", "seconds", "reward", "line"),
    [
        (ROW | {"clip/tail_high_share": 0.6}, [10.0, 20.0], "mine:score",
         "round  3 of 30  reward 0.250  work 0.500  entropy 1.23  clipped 1.23 %  20 s  about 6.8 min left"),
        ({"round": 1, "reward": None, "clip/fraction": 0.0}, [2.0], "mine:score",
         "round  1 of 30  reward -  clipped 0.00 %  2 s  about 1.0 min left"),
        ({"round": 0, "eval/reward": 0.5}, [], "mine:score", "before  held-out reward 0.500"),
        ({"round": 4, "eval/reward": 0.5}, [], "math", "round  4 of 30  held-out right 50.0 %"),
    ],
)  # fmt: skip
def test_a_line_has_what_the_row_has(row, seconds, reward, line):
    config = SimpleNamespace(rounds=30, reward=reward, data=SimpleNamespace(eval_path=None))
    assert show_training._line(row, config, seconds) == line


def test_a_row_of_the_lab_fits_80_columns(tmp_path):
    (job,) = plan(
        "tail",
        ["{type: relaxed, inner: {type: band}, outer: {type: clip, eps_low: 0.25, eps_high: 0.29}}"],
        [12345],
        tmp_path,
        {"rounds": 1000},
    )
    row = {"round": 999, "reward": 1.0, "lab/work": 1.0, "entropy": 12.345, "clip/fraction": 1.0, "left": 12.34}
    head = show_training._LAB_ROW.format(*show_training._LAB_HEADS)
    assert max(len(head), len(show_training._lab_row(job, row | {"clip/tail_high_share": 1.0}))) <= 80
    columns = ["999/1000", "1.000", "1.000", "12.35", "100.00", "-", "12.3"]
    assert show_training._lab_row(job, row).split()[-7:] == columns


def test_brackets_in_a_name_are_no_markup(here, monkeypatch, capsys):
    def run(config, *, say, **named):
        say(f"going on in {config.output}")
        return write(Path(config.output, "metrics.jsonl"), '{"step": 1, "clip/fraction": 0.01}\n').parent

    monkeypatch.setattr(on_trl, "run", run)
    show_training.train_and_show(None, ["scene=tail", "label='mine [/x]'", "output='[runs]'"], False, "bandpo train")
    lines = capsys.readouterr().out.splitlines()
    begin = [
        "mine [/x] on lab, 30 rounds of 64 steps, in [runs]",
        'Band("kl", 0.05): a token of probability 0.5 may go from 0.3458 to 0.6542, one of 0.001 up',
        "going on in [runs]",
        "The rule clipped at most 1 % of tokens in 1 row (",
    ]
    assert [line[: len(text)] for line, text in zip(lines, begin, strict=False)] == begin


def test_a_comparison_ends_with_the_path_of_its_report(tmp_path, monkeypatch, capsys):
    """The runs are replaced by rows; everything after them is real."""

    def fake(jobs, *, on_row, **named):
        rows = make_rows([0.1, 0.2])
        for job, row in itertools.product(jobs, rows):
            clock[0] += 30
            on_row(job, row)
        return [write_run(tmp_path / "runs", label=job.config.label, rows=rows) for job in jobs]

    clock = [1000.0]
    monkeypatch.setattr(show_training.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(show_training, "run_all", fake)
    monkeypatch.setattr(show_training, "console", Console(width=200))
    show_training.compare_and_show("tail", ["grpo", "band-kl"], [0], tmp_path, {"rounds": 2}, 2, False, "bandpo lab")
    out, page = capsys.readouterr().out, tmp_path / "report-tail.html"
    assert (out.endswith(f"\n{page}\n"), "<svg" in page.read_text()) == (True, True)
    assert out.count("                rule seed   round  reward   work  entropy  clip %  tail % left\n") == 1
    assert not missing(
        out, f"2 runs (GRPO 0.2/0.2, Band-KL 0.05; seeds 0), 2 at once, into {tmp_path}.",
        "        GRPO 0.2/0.2    0     1/2   0.080  0.100     0.90   99.90     100    -\n",
        "        GRPO 0.2/0.2    0     2/2   0.160  0.200     0.80   99.90     100  1.0\n",
        "        Band-KL 0.05    0     2/2   0.160  0.200     0.80   99.90     100  0.0\n",
        "Too few pairs of seeds (1)", "Other scenes: --scene ",
        "what a clip costs a rare strategy, not what it protects.",
    )  # fmt: skip


def test_every_scene_has_its_words():
    assert SCENES.keys() == verdicts.SCENES.keys() == verdicts.LIMITS.keys()
