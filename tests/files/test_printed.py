"""Logs as people keep them: consoles of trainers, in the forms that terminals and processes give them."""

from __future__ import annotations

import json
import pprint
import random
import time

import pytest

from bandpo_runs.cli import main
from bandpo_runs.evals.results import read_result
from bandpo_runs.files.logs import is_log, read
from bandpo_runs.reports.sections import read_runs
from bandpo_runs.training.doctor import examine

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
    path = tmp_path / "train.log"
    path.write_bytes(console if isinstance(console, bytes) else console.encode())
    log = read(path)
    assert [(each["step"], each["reward"], each["loss"]) for each in log.rows] == [(x, x / 8, x / 100) for x in STEPS]
    assert [each["cut/fraction"] for each in log.rows] == [0.003] * 4
    assert [each["entropy"] for each in log.rows] == [0.5] * 4
    assert (log.went_back, log.decimals) == (0, None)


@pytest.mark.parametrize("width", [50, 60, 80, 97, 120, 237])
@pytest.mark.parametrize("begin", [bar, lambda step: ""])
def test_a_row_that_a_terminal_wraps_is_whole(tmp_path, begin, width):
    path = tmp_path / "train.log"
    path.write_text(wrapped("".join(f"{begin(step)}{row(step)}\n" for step in STEPS), width))
    assert [{name: each[name] for name in row(1)} for each in read(path).rows] == [row(step) for step in STEPS]


def test_steps_are_those_of_the_bar_and_what_an_evaluation_logs_is_of_the_step_before(tmp_path):
    path = tmp_path / "train.log"
    lines = [f"\r{bar(x, 30)}" + (f"\r   \r{row(x)}\n\r{bar(x, 30)}" if x in (10, 20, 30) else "") for x in range(31)]
    path.write_text("".join(lines) + "{'eval_reward': 0.75, 'epoch': 0.3}\n")
    log = read(path)
    assert ([*log.at], log.last_step, log.ended, log.remarks) == ([10, 20, 30], 30, True, [])
    assert log.at[30]["eval_reward"] == 0.75
    path.write_text("".join(lines[:25]))
    assert (read(path).ended, main(["watch", str(path), "--once"])) == (False, 0)


def test_a_run_that_was_resumed_into_the_same_console_goes_back(tmp_path):
    path = tmp_path / "train.log"
    steps = [*range(1, 8), *range(5, 11)]
    path.write_text("".join(f"{bar(x)}{row(x, grad_norm=float(k))}\n" for k, x in enumerate(steps)))
    log = read(path)
    assert ([*log.at], log.went_back) == ([*range(1, 11)], 1)
    assert [each["grad_norm"] for each in log.rows] == [0, 1, 2, 3, 7, 8, 9, 10, 11, 12]


def test_steps_that_are_counted_are_told_to_be(tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_text(PLAIN)
    assert next(x.what for x in examine([str(path)])) == f"{path}: its rows have no step; they are counted"
    assert main(["watch", str(path), "--once"]) == 0
    assert "Its rows have no step; they are counted." in capsys.readouterr().out
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
    path = tmp_path / "history.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    log = read(path)
    assert ([*log.at], log.went_back, log.notes, is_log(path)) == ([5, 10], 0, [], True)
    assert [each["reward"] for each in log.rows] == [0.5, 0.75]
    assert {"eval/reward", "eval_loss"} & log.at[5].keys()
    assert not {"_timestamp", "_step"} & log.at[5].keys()


def test_a_history_without_the_trainers_step_has_that_of_wandb(tmp_path, capsys):
    path = tmp_path / "history.jsonl"
    rows = [{"_step": x, "reward": x / 4, "val-core/gsm8k/acc/mean@8": x / 4} for x in (1, 2)]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    assert [*read(path).at] == [1, 2]
    assert read_result(str(path)).logged[0].mean == 0.5
    assert main(["doctor", str(path)]) == 0
    assert "no clip rate is in" in capsys.readouterr().out


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
    (tmp_path / "whole.log").write_text(LINES)
    path = tmp_path / "train.log"
    path.write_text(console, newline="")
    log = read(path)
    assert [each["reward"] for each in log.rows] == [x / 8 for x in STEPS]
    assert (log.rows, log.remarks) == (read(tmp_path / "whole.log").rows, [])


def test_what_a_terminal_cut_is_said(tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_text("".join(f"{line[:150]}\n" for line in LINES.splitlines()))
    assert main(["doctor", "--no-ray", str(path)]) == 0
    said = "3 rows cut within a metric, as by a terminal; what came after it is missing"
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("value", "said"), [
    ("0.000", "The rule clipped below 0.05 % of tokens (the log has three decimals) in 4 rows, so it can hardly"),
    ("0.002", "The rule clipped 0.2 % of tokens (the log has three decimals) in 4 rows (median 0.2 %, "),
    ("0.0000", "The rule clipped below 0.005 % of tokens (the log has four decimals) in 4 rows, so it can hardly"),
    ("0.0", "The rule clipped no token in 4 rows: every ratio is 1"),
])  # fmt: skip
def test_a_clip_rate_that_is_rounded_is_told_as_such(tmp_path, value, said):
    """verl printed three decimals until 2025."""
    path = tmp_path / "train.log"
    end = f"critic/score/mean:0.{'050'[: max(1, len(value) - 2)]}"
    path.write_text("".join(f"step:{x} - actor/pg_clipfrac:{value} - {end} - actor/lr:1e-06\n" for x in STEPS))
    assert said in [x.what for x in examine([str(path)])][-1]


@pytest.mark.parametrize("text", [" 1% 1/2 [" * 50_000, "step:1 - " + "a/:" * 50_000, "step:1 - " + "/" * 100_000])
def test_a_console_of_any_shape_takes_no_time(tmp_path, text):
    path = tmp_path / "train.log"
    path.write_text(f"{PLAIN}{text}\n")
    began = time.process_time()
    read(path)
    assert time.process_time() - began < 5
