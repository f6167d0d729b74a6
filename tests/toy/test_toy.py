"""The lab: its task, its warm start, and the effect that it is there to show."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
from commands import missing, refusal
from contests import killed
from disk import contents, json_rows, write

from bandpo.integrations import trainers_that_run
from bandpo.losses.nodes import method, methods
from bandpo_runs import toy
from bandpo_runs.training.side_by_side import plan, run_all

pytestmark = pytest.mark.slow


def ids(text):
    return [toy.SYMBOLS.index(symbol) for symbol in text.split()]


def run_jobs(jobs, workers=1, resume=False, say=lambda text: None):
    return run_all(jobs, workers=workers, resume=resume, command="test", on_row=lambda job, row: None, say=say)


def test_prompts_are_sums_of_one_token_a_symbol_and_the_same_for_the_same_seed():
    rows, tokenizer = toy.prompts(200, seed=3), toy.tokenizer()
    assert rows == toy.prompts(200, seed=3) != toy.prompts(200, seed=4)
    for row in rows:
        *symbols, equals = tokenizer(row["prompt"])["input_ids"]
        assert (equals, len(symbols), row["answer"]) == (toy.EQUALS, 4, toy.SYMBOLS[sum(symbols) % 16])
    ids_of = tokenizer("a p A <end> = <pad>")["input_ids"], tokenizer.eos_token_id, tokenizer.pad_token_id
    assert ids_of == ([0, 15, toy.ANSWER, toy.END, toy.EQUALS, toy.PAD], toy.END, toy.PAD)


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("A c <end>", 1),  # a guess at once
        ("a b c A c <end>", 1),  # worked
        ("p p p A c <end>", 1),  # only the answer counts
        ("a b c A d <end>", 0),
        ("A c A c <end>", 0),  # the first A must be followed by answer and end
        ("A c", 0),  # no end
        ("a b c d e f", 0),  # no answer
        ("A", 0),
        ("<end>", 0),
    ],
)
def test_reward_is_exact_match_after_the_first_a(completion, right):
    assert toy.reward([""], [ids(completion)], ["c"]) == [right]


def test_a_share_of_the_rewards_is_inverted_where_the_rows_say_so():
    logged, flips = {}, [row["flip"] for row in toy.prompts(4000, seed=0, flip=0.05)]
    torch.manual_seed(0)
    found = toy.reward([""] * 4000, [ids("A c <end>")] * 4000, ["c"] * 3000 + ["d"] * 1000, logged.__setitem__, flips)
    assert ("flip" in toy.prompts(1, seed=0)[0], logged) == (False, {"lab/work": 0.0, "lab/right": 0.75})
    assert {*found} == {0.0, 1.0}
    assert (0.94 < sum(found[:3000]) / 3000 < 0.96, 0.03 < sum(found[3000:]) / 1000 < 0.07) == (True, True)


def test_demonstrations_are_right_up_to_slips_in_a_quarter_of_the_steps():
    ((prompts, completions, works),) = toy._demonstrations(toy.WarmStart(0.005, seed=0, batch=4096), 1)
    works = works[:, 0]
    assert 0.45 < works.float().mean() < 0.55
    symbols, written = prompts[works, :4], completions[works]
    # The working goes on from a slip.
    wanted = (torch.cat([symbols[:, :1], written[:, :2]], 1) + symbols[:, 1:]) % 16
    wrong = (written[:, :3] != wanted).float().mean(0)
    assert ((wrong > 0.2) & (wrong < 0.3)).all()
    assert torch.equal(written[:, 4], written[:, 2])  # the answer is the last sum
    assert (completions[~works][:, [0, 2]] == torch.tensor([toy.ANSWER, toy.END])).all()


def test_the_tail_scene_shows_its_effect_in_15_rounds(monkeypatch, tmp_path):
    """Band learns to work, GRPO not yet; over half of GRPO's early clips are rare tokens, and under 20 % of Band's."""
    monkeypatch.setenv("BANDPO_CACHE", str(tmp_path / "cache"))  # a test must not depend on what is in the default one
    jobs, said = plan("tail", ["grpo", "band-kl"], [0], tmp_path, {"rounds": 15}), []
    run_jobs(jobs, workers=2, say=said.append)
    assert said.count("warm start of seed 0: 600 steps, once for all runs") == 1
    work, share = {}, {}
    for job in jobs:
        rows = json_rows(job.folder / "metrics.jsonl")
        assert [row["round"] for row in rows] == list(range(1, 16))
        early = [row for row in rows if row["lab/work"] < 0.05]
        work[job.name] = rows[-1]["lab/work"]
        share[job.name] = sum(r["clip/tail_high_count"] for r in early) / sum(r["clip/count"] for r in early)
        skill = json.loads((job.folder / "run.json").read_text())["warm_start"]
        assert (0.003 < skill["p_work"] < 0.008, 0.3 < skill["right_if_work"] < 0.5) == (True, True)
    assert work["band-kl"] > 3 * work["grpo"]
    assert share["band-kl"] < 0.2 < 0.5 < share["grpo"]


def test_a_plan_pairs_methods_by_seed(tmp_path):
    jobs = plan("storm", ["grpo", "{type: clip, eps_low: 0.2, eps_high: .inf}"], [0, 2], tmp_path, {"rounds": 3})
    assert [(job.name, job.config.seed, job.config.trainer["learning_rate"], job.config.rounds) for job in jobs] == [
        (name, seed, 4e-4, 3) for seed in (0, 2) for name in ("grpo", "clip-0.2-inf")
    ]
    assert len({job.folder for job in jobs if job.folder.is_relative_to(tmp_path)}) == 4


def test_resuming_a_comparison_with_other_settings_is_refused(tmp_path):
    (job,) = plan("tail", ["grpo"], [0], tmp_path)
    write(job.folder / "config.yaml", job.config.to_yaml())
    write(job.folder / "run.json", {"label": "GRPO", "seed": 0, "learning_rate": 5e-6, "finished": True})
    other = plan("tail", ["grpo"], [0], tmp_path, {"trainer": {"learning_rate": 1e-3}})
    assert "other settings (trainer.learning_rate)" in refusal(run_jobs, other, resume=True)
    assert "already holds a run, which is finished" in refusal(run_jobs, [job])
    assert run_jobs([job], resume=True) == [job.folder]


def test_every_method_is_planned_with_its_own_rule(tmp_path):
    able = [each.name for each in methods() if not each.from_sampler and not trainers_that_run(each)["TRL"]]
    rules = {method(name).without_average: name for name in reversed(able)}
    names = [name for name in able if name in rules.values()]  # the average is the trainer's: ppo is grpo here
    jobs = {job.name: job.config for job in plan("tail", names, [0], tmp_path)}
    assert [*jobs] == names
    assert len({job.objective for job in jobs.values()}) == len({job.label for job in jobs.values()}) == len(names)
    assert jobs["no-clip"].objective.trust_region.bounds(torch.zeros(1)).log_high.item() == math.inf


# ---- the cache of warm starts


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A warm start that takes no time, and a cache of its own; returns what was trained."""
    trained = []
    supervised = lambda start, steps, say: trained.append(steps) or toy.fresh_model(start.seed)  # noqa: E731
    monkeypatch.setattr(toy, "_supervised", supervised)
    monkeypatch.setattr(toy, "_skill", lambda model, seed: {"p_work": 0.005, "right_if_work": 0.4})
    monkeypatch.setenv("BANDPO_CACHE", str(tmp_path / "cache"))
    return trained


DAMAGE = {
    "model cut off": ("model.safetensors", lambda file: os.truncate(file, 1000)),
    "model garbled": ("model.safetensors", lambda file: write(file, file.read_bytes()[:-1] + b"\0")),
    "no tokenizer": ("tokenizer.json", os.remove),
    "no skill": ("skill.json", os.remove),
    "skill cut off": ("skill.json", lambda file: os.truncate(file, 20)),
    "skill a list": ("skill.json", lambda file: write(file, b"[1]")),
    "skill without end": ("skill.json", lambda file: write(file, b"[" * 100_000)),
}


@pytest.mark.parametrize(("name", "damage"), DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_in_the_cache_is_made_again(quick, name, damage):
    folder, skill = toy.warm_start(0.005, 0)
    before, said = contents(folder), []
    damage(folder / name)
    assert contents(folder) != before
    for _ in range(2):
        assert (toy.warm_start(0.005, 0, said.append), contents(folder)) == ((folder, skill), before)
    assert (said[0], quick) == (f"the warm start in {folder} is damaged; it is made again", [600, 600])


def test_a_worker_that_is_killed_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("bandpo_runs.training.side_by_side._warm", killed)
    jobs = plan("storm", ["grpo"], [0], tmp_path, {"rounds": 1})
    assert not missing(refusal(run_jobs, jobs), "a worker was killed, ", "; --resume goes on")


def test_a_comparison_under_torchrun_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "start it without torchrun" in refusal(run_jobs, plan("storm", ["grpo"], [0], tmp_path))


def test_a_warm_start_that_was_killed_leaves_nothing_for_the_next_one(quick, monkeypatch):
    def interrupted(folder, model, skill):
        write(folder / "config.json", "{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(toy, "save_start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            toy.warm_start(0.005, 0)
    folder, _ = toy.warm_start(0.005, 0)
    assert ((folder / "model.safetensors").exists(), [*folder.parent.iterdir()]) == (True, [folder])


@pytest.mark.parametrize(
    ("names", "place"),
    [
        ({"BANDPO_CACHE": "{tmp}/file"}, "{tmp}/file/lab: Not a directory"),
        ({"BANDPO_CACHE": "", "XDG_CACHE_HOME": "/proc/no"}, "/proc/no: No such file or directory"),
        ({"BANDPO_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "{tmp}/file"}, "{tmp}/file/.cache/bandpo/lab: Not a dir"),
    ],
)
def test_a_cache_that_cannot_be_written_is_told_before_any_work(quick, monkeypatch, tmp_path, names, place):
    (tmp_path / "file").touch()
    for name, value in names.items():
        monkeypatch.setenv(name, value.format(tmp=tmp_path))
    said = refusal(toy.warm_start, 0.005, 0)
    place = f"the lab cannot keep its warm start: {place.format(tmp=tmp_path)}"
    assert (missing(said, place, "; set BANDPO_CACHE to a folder for it"), quick) == ([], [])


def test_a_cache_that_can_only_be_read_is_read(quick, monkeypatch):
    """Such as one that a group shares. Root may write everywhere, so that no mode of a file would do here."""
    made = toy.warm_start(0.005, 0)
    monkeypatch.setattr(toy, "locked", None)  # a lock would be written
    assert toy.warm_start(0.005, 0) == made


def test_who_finds_another_process_at_the_same_warm_start_waits_for_it(quick, monkeypatch):
    supervised, met = toy._supervised, threading.Event()

    def slow(start, steps, say):
        assert met.wait(60)
        return supervised(start, steps, say)

    monkeypatch.setattr(toy, "_supervised", slow)
    with ThreadPoolExecutor(2) as pool:  # the lock does not tell threads from processes
        tell = lambda text: met.set() if text.endswith("; waiting for it") else None  # noqa: E731
        first, second = [pool.submit(toy.warm_start, 0.005, 0, tell) for _ in range(2)]
        assert first.result() == second.result()
    assert quick == [600]


# ---- ended from outside


STOPPED = """
import sys
from bandpo_runs import cli
if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
"""


def alive(session):
    """The processes of the session that still run; a zombie does not."""
    running = [each.pid for each in psutil.process_iter(["status"]) if each.info["status"] != psutil.STATUS_ZOMBIE]
    with contextlib.suppress(OSError):  # one has just ended: look again
        return [number for number in running if os.getsid(number) == session]
    return running


def until(condition, seconds=300):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_comparison_that_is_ended_leaves_no_process_and_goes_on(tmp_path, monkeypatch):
    """By TERM while a second one is refused, then by KILL; and it comes to its end, with every round once."""
    monkeypatch.setenv("BANDPO_CACHE", str(tmp_path / "cache"))
    start = toy.WarmStart(toy.SCENES["storm"].p_work, 0)
    toy.save_start(start.folder, toy.fresh_model(0), {"p_work": 0.3, "right_if_work": 0.4, "steps": 600})
    script = write(tmp_path / "start.py", STOPPED)
    command = [sys.executable, "-P", str(script), "lab", "--scene", "storm", "--methods", "grpo,band-kl"]
    command += ["--seeds", "1", "--rounds", "12", "--jobs", "2", "-o", str(tmp_path / "out")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    runs = [tmp_path / "out" / "storm" / name / "seed-0" for name in ("grpo", "band-kl")]

    def rows(run):
        return sum(path.read_bytes().count(b"\n") for path in run.glob("metrics.jsonl"))

    first = subprocess.Popen(command, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True)
    until(lambda: all(map(rows, runs)) or first.poll() is not None)
    os.killpg(first.pid, signal.SIGSTOP)  # else it may come to its end before the second has begun
    second = subprocess.run([*command, "--resume"], env=env, capture_output=True, text=True)
    os.killpg(first.pid, signal.SIGCONT)
    said = f"error: another process is writing to {tmp_path / 'out' / 'storm'}; wait for it to end"
    assert (second.returncode, second.stderr) == (2, f"{said}, or choose another folder\n")
    first.terminate()
    _, errors = first.communicate()
    assert (first.returncode, errors) == (143, "ended by SIGTERM; the same command with --resume goes on\n")
    until(lambda: not alive(first.pid), seconds=20)

    before = sum(map(rows, runs))
    ended = subprocess.Popen([*command, "--resume"], env=env, start_new_session=True)
    until(lambda: sum(map(rows, runs)) != before or ended.poll() is not None)
    ended.kill()
    ended.wait()
    until(lambda: not alive(ended.pid), seconds=20)

    done = subprocess.run([*command, "--resume"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for run in runs:
        assert [row["round"] for row in json_rows(run / "metrics.jsonl")] == list(range(1, 13))
