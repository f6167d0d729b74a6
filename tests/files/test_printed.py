"""Logs as people keep them: consoles of trainers, in the forms that terminals and processes give them."""

import json
import pprint
import random
import sys
import time

import pytest
from commands import refusal
from disk import write

from bandpo_runs.cli import main
from bandpo_runs.doctor.examine import examine
from bandpo_runs.evals.results import read_result
from bandpo_runs.files.logs import Followed, is_log, logs_at, name_of, read
from bandpo_runs.reports.sections import read_runs
from bandpo_runs.reports.table import FORMATS, make_table

STEPS = (1, 2, 3, 4)


def row(step, **more):
    """A row as TRL logs it."""
    return {"loss": step / 100, "grad_norm": 1.5, "learning_rate": 1e-06, "reward": step / 8, "entropy": 0.5,
            "clip_ratio/region_mean": 0.003, "epoch": step / 100, **more}  # fmt: skip


def bar(done, total=50, name=""):
    return f"{name}{done * 100 // total:3d}%|{'#' * 3}   | {done}/{total} [01:29<67:59,  8.22s/it]"


def texts(step):
    """The same as transformers 5 prints it."""
    return {name: f"{value:.4g}" for name, value in row(step).items()}


def wrapped(text, width):
    return "".join(f"{line[k : k + width]}\n" for line in text.splitlines() for k in range(0, len(line), width))


THIRD = str(row(3))
PLAIN = "".join(f"{row(step)}\n" for step in STEPS)
BARS = "".join(f"{bar(step)}{row(step)}\n" for step in STEPS)
CONSOLES = {
    "rows alone": PLAIN,
    "texts": "".join(f"{texts(step)}\n" for step in STEPS),
    "bars": BARS,
    "bars in place": "".join(f"\r{bar(x)}\r{' ' * 40}\r{row(x)}\n\r{bar(x)}" for x in STEPS),
    "a bar below, above what a reward function prints":
        "".join(f"{bar(step - 1)}graded\n{row(step)}\n{bar(step)}graded\n" for step in STEPS),
    "a bar without blocks": "".join(f"{x * 2:3d}% {x}/50 [02:28<00:00, 25.52s/it]\n{row(x)}\n" for x in STEPS),
    "bars of loading": f"{bar(1, 2, 'Loading checkpoint shards: ')}\r{bar(9, 9, 'Map: ')}\n{BARS}",
    "a bar with a name": "".join(f"{bar(2 * step, 9, 'Answers: ')}\n{row(step)}\n" for step in STEPS),
    "output in a buffer": "".join(map(bar, range(5))) + PLAIN + bar(5),
    "a buffer that ends in a row": f"{row(1)}\n{row(2)}\n{THIRD[:62]}\r{bar(3)}\r{bar(4)}{THIRD[62:]}\n{row(4)}\n",
    "Windows": BARS.replace("\n", "\r\n"),
    "PowerShell": PLAIN.replace("\n", "\r\n").encode("utf-16"),
    "colours": "".join(f"\x1b[32m{row(step)}\x1b[0m\x1b[K\n" for step in STEPS),
    "a logger and ranks": f"12:00 INFO: {row(1)}\n[rank0]: {row(2)}\n[rank1]: {row(2)}\n{row(3)}\n611 {row(4)}\n",
    "a warning in a row":
        PLAIN.replace("0.375, ", "0.375, /lib/x.py:1: UserWarning: don't\n  warn(\n"),
    "numpy and torch":
        PLAIN.replace("'entropy': 0.5", "'kl': tensor(0.5, device='cuda:0'), 'entropy': np.float64(0.5)"),
    "quotes":
        PLAIN.replace("'entropy'", "\"rewards/it's/mean\": 0.5, 'note': 'a } brace', 'why': \"don't\", 'entropy'"),
    "lists": PLAIN.replace("'entropy'", "'lengths': [1, 2], 'done': None, 'entropy'"),
    "nested": PLAIN.replace("'entropy'", "'train': {'x': 1}, 'entropy'"),
    "JSON": "".join(f"{json.dumps(row(step))}\n" for step in STEPS),
    "pretty": "".join(f"{pprint.pformat(row(step))}\n" for step in STEPS),
    "a summary": f"{PLAIN}{{'train_runtime': '148.9', 'train_loss': '5.9e-09', 'epoch': '0.04'}}\n",
    "evaluations": BARS.replace("\n", f"\n\r{bar(1, 2)}\r{bar(2, 2)}{{'eval_loss': 0.5, 'epoch': 0.0}}\n"),
    "answers and settings":
        "{'beta': 0.0, 'a': {'b': {'c': 1}}}\nfrom step:9\n{'question': '2+2?', 'reward': 1.0}\nStep 1:\nadd\n" + PLAIN,
    "ms-swift": "".join(str(row(x, **{"global_step/max_steps": f"{x}/60", "elapsed_time": "1m 5s"})) for x in STEPS),
    "a loop of one's own": PLAIN.replace("'epoch': 0.0", "'step': "),
    "neither step nor epoch": PLAIN.replace("'epoch'", "'x'"),
    "half a row at the end": f"{PLAIN}{str(row(5))[:60]}",
}  # fmt: skip


@pytest.mark.parametrize("console", CONSOLES.values(), ids=CONSOLES)
def test_a_console_of_trl_is_a_log(tmp_path, console):
    """As `python train.py > train.log` writes it, and other things with it."""
    path = write(tmp_path / "train.log", console if isinstance(console, bytes) else console.encode())
    log = read(path)
    names = ("step", "reward", "loss", "cut/fraction", "entropy")
    assert [[each[name] for name in names] for each in log.rows] == [[x, x / 8, x / 100, 0.003, 0.5] for x in STEPS]
    assert (log.went_back, log.decimals) == (0, None)


@pytest.mark.parametrize("width", [50, 60, 80, 97, 120, 237])
@pytest.mark.parametrize("begin", [bar, lambda step: ""])
def test_a_row_that_a_terminal_wraps_is_whole(tmp_path, begin, width):
    path = write(tmp_path / "train.log", wrapped("".join(f"{begin(step)}{row(step)}\n" for step in STEPS), width))
    assert [{name: each[name] for name in row(1)} for each in read(path).rows] == [row(step) for step in STEPS]


def test_steps_are_those_of_the_bar_and_what_an_evaluation_logs_is_of_the_step_before(tmp_path):
    lines = [f"\r{bar(x, 30)}" + (f"\r   \r{row(x)}\n\r{bar(x, 30)}" if x in (10, 20, 30) else "") for x in range(31)]
    path = write(tmp_path / "train.log", ("".join(lines) + "{'eval_reward': 0.75, 'epoch': 0.3}\n").encode())
    log, steps = read(path), [10, 20, 30]
    assert ([*log.at], log.last_step, log.ended, log.remarks, log.at[30]["eval_reward"]) == (steps, 30, True, [], 0.75)
    path.write_text("".join(lines[:25]))
    assert (read(path).ended, main(["watch", str(path), "--once"])) == (False, 0)


def test_steps_that_are_counted_are_told_to_be(tmp_path, cli):
    path = write(tmp_path / "train.log", PLAIN)
    assert next(x.what for x in examine([str(path)])) == f"{path}: its rows have no step; they are counted"
    assert "Its rows have no step; they are counted." in cli.out("watch", str(path), "--once")
    (run,) = read_runs([path])
    assert (run.label, run.mean("reward").tolist()) == ("train", [0.125, 0.25, 0.375, 0.5])


HISTORY = [
    {"_step": 0, "_timestamp": 1.0, "train/global_step": 5, "train/reward": 0.5, "train/clip_ratio/region_mean": 0.003},
    {"_step": 1, "_timestamp": 2.0, "train/global_step": 5, "eval/reward": "NaN", "completions": {"_type": "table"}},
    {"_step": 2, "_timestamp": 3.0, "train/global_step": 10, "train/reward": "0.75"},
]
SWIFT = [
    {"loss": 0.5, "reward": 0.5, "memory(GiB)": 5.0, "train_speed(iter/s)": 0.1, "global_step/max_steps": "5/10"},
    {"eval_loss": 0.5, "memory(GiB)": 6.0, "train_speed(iter/s)": 0.2, "global_step/max_steps": "5/10"},
    {"loss": 0.5, "reward": 0.75, "memory(GiB)": 6.0, "global_step/max_steps": "10/10"},
]


@pytest.mark.parametrize("rows", [HISTORY, SWIFT])
def test_the_rows_of_a_history_have_the_steps_of_the_trainer(tmp_path, rows):
    """wandb's scan_history and ms-swift's logging.jsonl."""
    path = write(tmp_path / "history.jsonl", rows)
    log = read(path)
    assert (log.went_back, log.notes, is_log(path)) == (0, [], True)
    assert [(step, each["reward"]) for step, each in log.at.items()] == [(5, 0.5), (10, 0.75)]
    of_evaluation = {"eval/reward", "eval_loss", "_timestamp", "_step"} & log.at[5].keys()
    assert of_evaluation in ({"eval/reward"}, {"eval_loss"})


def test_a_history_without_the_trainers_step_has_that_of_wandb(tmp_path, cli):
    rows = [{"_step": x, "reward": x / 4, "val-core/gsm8k/acc/mean@8": x / 4} for x in (1, 2)]
    path = write(tmp_path / "history.jsonl", rows)
    assert ([*read(path).at], read_result(str(path)).logged[0].mean) == ([1, 2], 0.5)
    assert "no clip fraction is in" in cli.out("doctor", str(path))


def metrics(step):
    R = random.Random(step)
    return [f"actor/entropy:{R.random()}", "actor/pg_clipfrac:np.float64(0.003)", "actor/lr(1e-4):0.01",
            f"critic/score/mean:{step / 8}", "val-core/openai/gsm8k/acc/mean@8:0.25", "critic/returns/min:-1e-05",
            f"timing_s/gen:{R.random()}", "timing_s/step:49.5"]  # fmt: skip


RAY = "(TaskRunner pid=1, ip=10.0.0.1) "
LINES = "".join(f"{RAY}step:{step} - {' - '.join(metrics(step))}\n" for step in STEPS)
ONE_EACH = "".join(f"{RAY}step:{step}\n" + "".join(f" - {x}\n" for x in metrics(step)) for step in STEPS)
NOISE = (
    "(WorkerDict pid=9) it's done: 5\n- Zoe is a knave: 3\n- Sum:12\n12\nTraining Progress:   1%|  | 1/9 [0:49<1:5]\n"
)
VERL = {
    "one a line": ONE_EACH,
    "the process before each": ONE_EACH.replace("\n -", f"\n{RAY} -"),
    "srun's label": ONE_EACH.replace(RAY, "").replace("\n", "\n0: ").replace("step:1", "0: step:1", 1),
    "others in between": ONE_EACH.replace("\n", "\n(WorkerDict pid=9) it's done: 5\n"),
    "Windows": ONE_EACH.replace("\n", "\r\n"),
    "colours": LINES.replace(RAY, f"\x1b[36m{RAY.strip()}\x1b[0m "),
    "what others print": LINES.replace("\n", f"\n{NOISE}"),
    **{f"wrapped at {width}": wrapped(LINES, width) for width in (60, 80, 97, 120, 237)},
    "wrapped, and spaces cut off": "\n".join(map(str.rstrip, wrapped(LINES, 80).splitlines())),
    "wrapped at words": LINES.replace(" - timing", " -\ntiming").replace(" - critic", "\n- critic"),
}


@pytest.mark.parametrize("console", VERL.values(), ids=VERL)
def test_a_row_of_verl_may_be_on_several_lines(tmp_path, console):
    whole = read(write(tmp_path / "whole.log", LINES)).rows
    log = read(write(tmp_path / "train.log", console.encode()))
    assert ([each["reward"] for each in whole], log.rows, log.remarks) == ([x / 8 for x in STEPS], whole, [])


def test_what_a_terminal_cut_is_said(tmp_path, capsys):
    path = write(tmp_path / "train.log", "".join(f"{line[:150]}\n" for line in LINES.splitlines()))
    assert main(["doctor", str(path)]) == 0
    said = "3 rows cut within a metric, as by a terminal; what came after it is missing"
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("value", "said"), [
    ("0.000", "The rule clipped below 0.05 % of tokens (the log has three decimals) in 4 rows, so it can hardly"),
    ("0.002", "The rule clipped 0.2 % of tokens (the log has three decimals) in 4 rows (on average; median 0.2 %, "),
    ("0.0000", "The rule clipped below 0.005 % of tokens (the log has four decimals) in 4 rows, so it can hardly"),
    ("0.0", "The rule clipped no token in 4 rows: every ratio is 1"),
])  # fmt: skip
def test_a_clip_rate_that_is_rounded_is_told_as_such(tmp_path, value, said):
    """verl printed three decimals until 2025."""
    end = f"critic/score/mean:0.{'050'[: max(1, len(value) - 2)]}"
    lines = "".join(f"step:{x} - actor/pg_clipfrac:{value} - {end} - actor/lr:1e-06\n" for x in STEPS)
    path = write(tmp_path / "train.log", lines)
    (clip,) = [finding.what for finding in examine([str(path)]) if "The rule clipped" in finding.what]
    assert said in clip


@pytest.mark.parametrize("text", [" 1% 1/2 [" * 50_000, "step:1 - " + "a/:" * 50_000, "step:1 - " + "/" * 100_000])
def test_a_console_of_any_shape_takes_no_time(tmp_path, text):
    path = write(tmp_path / "train.log", f"{PLAIN}{text}\n")
    began = time.process_time()
    read(path)
    assert time.process_time() - began < 5


# ---- logs that trackers and terminals keep, and what prime-rl's two processes write into one file

COLOURED = "\x1b[36m(TaskRunner pid=38606)\x1b[0m "


def test_the_lines_that_verl_prints_are_rows(tmp_path):
    """In colour and behind Ray's prefix, with numbers as numpy 2 prints them, among other lines."""
    path = write(
        tmp_path / "grpo-seed1.log",
        f"{COLOURED}step:0 - val-core/openai/gsm8k/acc/mean@8:np.float64(0.25)\n"
        "Training Progress:   1%|  | 1/100\rglobal_step:7 - is not a row\n"
        f"{COLOURED}step:1 - actor/entropy:0.6 - actor/pg_clipfrac:1e-03 - actor/lr(1e-4):0.01 - "
        "critic/score/mean:-0.5\n"
        "step:2 - actor/entropy:nan - name:text - critic/score/mean:0.25 - val-core/openai/gsm8k/acc/mean@8:0.5\n",
    )
    log = read(path)
    assert ([*log.at], log.at[2]["entropy"]) == ([0, 1, 2], None)
    assert log.at[1] | {"actor/lr(1e-4)": 0} == {
        "step": 1, "actor/entropy": 0.6, "entropy": 0.6, "actor/pg_clipfrac": 1e-3, "cut/fraction": 1e-3,
        "critic/score/mean": -0.5, "reward": -0.5, "actor/lr(1e-4)": 0,
    }  # fmt: skip
    (run,) = read_runs([path])
    assert (run.label, run.seed) == ("grpo", 1)
    assert "| grpo | 50.0 |" in FORMATS["markdown"](make_table([read_result(str(path))]))


def test_the_dictionaries_that_skyrl_prints_are_rows(tmp_path):
    names = {"policy/policy_entropy": "0.4000", "policy/loss_metrics/clip_ratio": "0.0020", "trainer/epoch": 0}
    held_out = {"eval/all/avg_score": "0.9", "eval/all/pass_at_4": "0.9", "eval/gsm8k/pass_at_4": "0.6"}
    text = ""
    for step, more in ((1, {}), (2, held_out | {"eval/gsm8k/avg_score": "0.3000"})):
        row = pprint.pformat({**names, "reward/avg_raw_reward": f"{step / 4:.4f}", **more})
        text += f"2026-11-26 | INFO | log:120 - Step {step}: \n{row}\n| Finished: 'step', 'cost': 12.5\n"
    path = write(tmp_path / "skyrl.out", "".join(f"{COLOURED}{line}\n" for line in text.splitlines()))
    first, second = read(path).rows
    assert (first["reward"], first["entropy"], first["cut/fraction"]) == (0.25, 0.4, 0.002)
    assert (second["reward"], second["trainer/epoch"], "cost" in second) == (0.5, 0, False)
    result = read_result(str(path))
    assert [(each.data, each.samples, each.mean) for each in result.logged] == [("gsm8k", 4, 0.3)]
    table = FORMATS["markdown"](make_table([result]))
    assert ("| skyrl | 30.0 |" in table, "best@" in table) == (True, False)


CHART = (
    '"Step","grpo-seed1 - train/{0}","grpo-seed1 - train/{0}__MIN","grpo-seed1 - train/{0}__MAX",'
    '"a/b - train/{0}","a/b - train/{0}__MIN","a/b - train/{0}__MAX"\n'
    '"1","0.1","7","8","","",""\n"2","0.2","7","8","0.5","7","8"\n'
)


def test_a_chart_of_wandb_has_the_runs_in_it(tmp_path, cli):
    path = write(tmp_path / "export.csv", CHART.format("reward"))
    assert [name_of(key) for key in logs_at(path)] == ["grpo-seed1", "a-b"]
    first, second = read_runs([path])
    assert (first.label, first.seed, first.rows[0]) == ("grpo", 1, {"step": 1, "reward": 0.1})
    assert (second.label, second.x.tolist(), second.mean("reward").tolist()) == ("a-b", [2], [0.5])
    (run,) = read_runs([f"mine={path}/a-b"])
    assert (run.label, run.mean("reward").tolist()) == ("mine", [0.5])
    assert [line.split()[-1] for line in cli.out("watch", path, "--once").splitlines()] == ["0.200", "0.500"]
    write(tmp_path / "entropy.csv", CHART.format("entropy"))
    runs = read_runs([tmp_path])  # charts of a folder, of the same runs
    assert [(run.label, *(run.mean(name)[-1] for name in ("reward", "entropy"))) for run in runs] == [
        ("grpo", 0.2, 0.2), ("a-b", 0.5, 0.5),
    ]  # fmt: skip
    write(path, CHART.format("reward").replace("a/b", "a/lr=1"))
    assert [run.label for run in read_runs([f"{path}/a-lr=1"])] == ["a-lr=1"]


def test_a_history_of_wandb_has_the_steps_of_the_trainer(tmp_path):
    path = write(
        tmp_path / "mine.csv",
        ",_step,train/global_step,train/reward,eval/reward,note\n0,0,10,0.5,,x\n1,1,10,,0.9,\n2,2,20,1,,\n",
    )
    (run,) = read_runs([tmp_path])
    assert (run.label, run.x.tolist(), run.mean("reward").tolist()) == ("mine", [10, 20], [0.5, 1.0])
    assert (run.mean("eval/reward")[0], run.notes) == (0.9, ("it does not say whether the run is finished",))
    assert (is_log(path), is_log(write(tmp_path / "answers.csv", "step,prompt,score\n1,a,1\n"))) == (True, False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("report runs.csv", "runs.csv: wandb's CSV of a chart or of run.history(), with one of the columns Step, "),
        ("report runs.csv", "is expected; it has Name, State, lr"),
        ("report bytes.csv", "bytes.csv cannot be read as CSV: 'utf-8' codec"),
        ("report chart.csv/c", "chart.csv/c must name one of the runs grpo-seed1, a-b, as in chart.csv/grpo-seed1"),
        ("report none.csv", "none.csv: no run found"),
        ("report other.log", "other.log: no row of a log is in it; expected JSON lines with 'step' or 'round', or the"),
        ("table chart.csv", "chart.csv must name one of the runs grpo-seed1, a-b"),
        ("report events.out.tfevents.1.host", "1.host needs the package tensorboard: pip install 'bandpo[trackers]'"),
    ],
)
def test_what_no_log_can_be_made_of_is_said(here, cli, monkeypatch, line, message):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing", None)
    for name, content in {
        "chart.csv": CHART.format("reward"), "runs.csv": '"Name","State","lr"\n"a","finished","1"\n',
        "bytes.csv": b"\xff\xfe\0", "other.log": "{'question': 'How many?', 'answer': 5}\n",
        "events.out.tfevents.1.host": b"",
    }.items():  # fmt: skip
        write(name, content)
    assert message in cli.error(*line.split())


def test_the_two_processes_of_prime_rl_write_rows_of_one_step_in_any_order(tmp_path):
    rows = []
    for step in (1, 2, 3):
        orchestrator = {"train/agg/effective/agent/reward/mean": step / 4, "train/agg/all/agent/reward/mean": 9}
        orchestrator |= {"eval/aime24/effective/agent/avg@8": 0.25} if step == 2 else {}
        rows.append({"step": step, "time": 10.0 + step, **orchestrator, "time/step": 1.0})
        for more in ({"entropy/all/mean": 0.5, "is_masked/mean": 0.01}, {"time/step": 2.0}):  # the trainer is late
            rows += [{"step": step - 1, "time": 11.0 + step, **more}] if step > 1 else []
    log = Followed(write(tmp_path / "metrics.jsonl", rows))
    assert (log.poll(), log.went_back, [row["reward"] for row in log.rows]) == (True, 0, [0.25, 0.5, 0.75])
    second = log.at[2]
    assert (log.at[1]["entropy"], second["cut/fraction"], second["val-core/aime24/acc/mean@8"]) == (0.5, 0.01, 0.25)
    assert [(x.data, x.samples, x.mean) for x in read_result(str(tmp_path)).logged] == [("aime24", 8, 0.25)]
    write(log.path, [*rows, rows[-3] | {"train/agg/effective/agent/reward/mean": 0.1}])  # resumed
    assert (log.poll(), log.went_back) == (True, 1)


def test_tensorboards_events_are_a_run_for_each_folder(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for name, shift in (("grpo-seed1", 0.0), ("band-kl", 0.5)):
        with SummaryWriter(str(tmp_path / "runs" / name)) as writer:
            writer.add_text("args", "{}")
            for step in (1, 2, 3):
                writer.add_scalar("train/reward", step / 4 + shift, step)
                writer.add_scalar("eval/reward", 0.5, step)
    assert [(run.label, run.seed, run.mean("reward").tolist()) for run in read_runs([tmp_path])] == [
        ("band-kl", None, [0.75, 1.0, 1.25]), ("grpo", 1, [0.25, 0.5, 0.75]),
    ]  # fmt: skip
    (file,) = (tmp_path / "runs" / "band-kl").iterdir()
    (run,) = read_runs([file])
    assert (run.label, len(run.x)) == ("band-kl", 3)
    assert "no row of a log is in it" in refusal(read_runs, [write(file, b"no events")])
