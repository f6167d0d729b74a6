"""`bandpo watch`: what it says of logs that the tests write, with a clock that the tests move."""

import io
import json
import math
import os
import re
from unittest import mock

import disk
import numpy as np
import pytest
from commands import missing
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bandpo_runs.cli import show_watch
from bandpo_runs.cli.show_watch import view, watch_and_show
from bandpo_runs.files.logs import renamed
from bandpo_runs.reports.panels import PANELS
from bandpo_runs.reports.watching import Watch

NOW = 1_000_000.0


def ours(step, reward=0.5, entropy=0.4, **more):
    """A row of metrics.jsonl."""
    return {
        "step": 16 * step, "round": step, "reward": reward, "entropy": entropy, "tokens": 1000.0, "clip/count": 30.0,
        "clip/fraction": 0.03, "clip/high_fraction": 0.02, "clip/low_fraction": 0.01, "clip/tail_high_count": 12.0,
        "clip/tail_high_share": 0.4, "cut/fraction": 0.025, "kl_old/k3": 0.0015, "log_ratio/min": -2.0,
        "log_ratio/max": 1.5, **more,
    }  # fmt: skip


def write(path, rows, age=0.0):
    os.utime(disk.write(path, rows), (NOW - age, NOW - age))
    return path


def run_of_ours(folder, rows, *, label="Band-KL 0.05", seed=0, finished=False, age=0.0, **more):
    write(folder / "metrics.jsonl", rows, age)
    info = {"label": label, "seed": seed, "finished": finished, "learning_rate": 1e-5, "rounds": 48}
    disk.write(folder / "run.json", info | more)
    return folder


def verls(step, **more):
    data = {
        "critic/score/mean": 0.25, "actor/entropy": 0.7, "actor/bandpo/tokens": 400.0, "actor/bandpo/clip/count": 8.0,
        "actor/bandpo/clip/high_count": 6.0, "actor/bandpo/clip/low_count": 2.0, "actor/bandpo/kl_old/k3_nats": 2.0,
        "actor/bandpo/clip/tail_high_count": 2.0, "actor/pg_clipfrac": 0.017,
    }  # fmt: skip
    return {"step": step, "data": {**data, **more}}


def looked(*given, now=NOW, silent=600.0):
    return Watch(list(map(str, given)), silent).look(now)


def drawn(seen, width, colour=False):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, force_terminal=colour)
    console.print(view(seen, width))
    return console.file.getvalue()


SIDES = {"bandpo/clip/high_fraction": 0.25, "bandpo/clip/low_fraction": 0.5}


@pytest.mark.parametrize(
    ("row", "name", "value"),
    [
        ({"critic/rewards/mean": 1, "critic/score/mean": 2}, "reward", 2),
        ({"critic/score/mean": 2, "reward": 3}, "reward", 3),
        ({"bandpo/entropy": 1.0, "entropy": 2.0}, "entropy", 1.0),
        ({"entropy": 2.0, "bandpo/entropy": 1.0}, "entropy", 1.0),
        ({"bandpo/cut/fraction": 0.1, "clip_ratio/region_mean": 0.2}, "cut/fraction", 0.1),
        ({"clip_ratio/region_mean": 0.2}, "cut/fraction", 0.2),
        (SIDES, "clip/fraction", 0.75),
        ({**SIDES, "bandpo/clip/fraction": 0.7}, "clip/fraction", 0.7),
        ({"clip_ratio/high_mean": 0.25, "bandpo/clip/low_fraction": 0.5}, "clip/fraction", None),
    ],
)
def test_rows_of_all_trainers_have_the_same_names(row, name, value):
    assert renamed(row).get(name) == value


def test_what_is_no_number_is_left_out_of_a_row():
    odd = renamed({"a": "text", "b": math.inf, "c": math.nan, "d": None, "e": [1], "f": 10**400, "g": True})
    assert odd == {"b": None, "c": None, "d": None, "f": None, "g": True}


def test_shares_under_verl_are_ratios_of_its_sums(tmp_path):
    """A mean of shares would be (2 % + 10 %) / 2."""
    (run,) = looked(write(tmp_path / "run.jsonl", [verls(1), verls(2, **{"actor/bandpo/clip/count": 40.0})]))
    wanted = {"clipped": 10.0, "above": 1.5, "below": 0.5, "tail share": 5.0, "KL": 0.005,
              "reward": 0.25, "entropy": 0.7, "cut": 1.7}  # fmt: skip
    assert {name: PANELS[name].last(run) for name in wanted} == pytest.approx(wanted)
    np.testing.assert_allclose(PANELS["clipped"].curve(run), [2.0, 10.0])
    assert (run.axis, run.label, run.now) == ("step", "run", "step 2")


def test_a_run_that_was_killed_has_stopped_writing(tmp_path):
    folder = run_of_ours(tmp_path / "run", [ours(1), ours(2)])
    log = folder / "metrics.jsonl"
    write(log, log.read_text() + '{"step": 48, "rou')
    watch = Watch([str(folder)], silent=600)
    (run,) = watch.look(NOW + 600)
    assert (run.state, run.now, run.standing) == ("running", "round 2 of 48", "last line 10 min ago")
    assert not [text for text in (drawn([run], 80), drawn([run, run], 80)) if "running" in text]  # it may have crashed
    (run,) = watch.look(NOW + 900)
    assert (run.state, run.standing.partition(".")[0]) == ("silent", "has stopped writing: last line 15 min ago")
    run_of_ours(folder, [ours(1), ours(2)], finished=True)
    assert [run.state for run in watch.look(NOW + 9000)] == ["finished"]


def test_a_run_that_broke_is_said_to_have_and_is_not_waited_for(tmp_path, cli, capsys):
    rows, stopped = [ours(1), ours(2, loss=None)], {"stopped": "step 33: weights are not finite"}
    folder = run_of_ours(tmp_path / "run", rows)
    (run,) = looked(folder)
    (note,) = run.notes
    assert (run.state, note.partition(";")[0]) == (
        "running", "Numbers are not finite: loss in 1 row, first at step 32"
    )  # fmt: skip
    run_of_ours(folder, rows, **stopped)
    (run,) = looked(folder, now=NOW + 9000)
    assert (run.state, run.notes) == ("stopped", (note, "Why: step 33: weights are not finite"))
    followed([folder], Clock(lambda: pytest.fail("it goes on")))
    assert not missing(capsys.readouterr().out, "round 2 of 48", "stopped, as its numbers were not finite")
    run_of_ours(folder, [], **stopped)  # before its first row
    cli.out("watch", folder, "--once")


def test_a_run_is_waited_for_and_its_log_may_go(tmp_path):
    folder, nothing, early = tmp_path / "later", "nothing yet", "too early"
    watch = Watch([str(folder)])
    for happens, state in (
        (lambda: None, ("waiting", nothing, "")),
        (lambda: run_of_ours(folder, []), ("waiting", nothing, "")),
        (lambda: run_of_ours(folder, [ours(1)]), ("running", "round 1 of 48", early)),
        ((folder / "metrics.jsonl").unlink, ("gone", "round 1 of 48", early)),
        (lambda: run_of_ours(folder, [ours(1), ours(2)]), ("running", "round 2 of 48", early)),
    ):
        happens()
        (run,) = watch.look(NOW)
        assert (run.state, run.now, run.on_collapse[:9]) == state
        assert state[0] == "waiting" or PANELS["reward"].last(run) == 0.5


ODD = st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=1)
)
ROWS = st.dictionaries(st.sampled_from(["step", "round", "reward", "entropy", "data", "tokens", "clip/count"]), ODD)


@given(st.lists(st.one_of(ROWS.map(json.dumps), ROWS.map(lambda row: json.dumps({"step": 3, "data": row})), st.text())))
def test_nothing_that_stands_in_a_log_is_an_error(tmp_path_factory, lines):
    log = tmp_path_factory.mktemp("odd") / "run.jsonl"
    log.write_text("\n".join(lines), errors="replace")
    watch = Watch([str(log)])
    for _ in range(2):
        seen = watch.look(NOW)
        drawn(seen, 80)
        show_watch._line(seen[0])
        log.write_bytes(log.read_bytes()[: len(lines)])


@pytest.fixture
def two(tmp_path):
    run_of_ours(tmp_path / "a", [ours(i, reward=0.01 * i) for i in range(1, 41)], age=3000)
    run_of_ours(tmp_path / "b", [ours(i) for i in range(1, 4)], label="<script> of a very long name, number", seed=7)
    return tmp_path / "a", tmp_path / "b"


def test_of_one_run_all_is_shown(two):
    lines = drawn(looked(two[0]), 80).splitlines()
    head = "Band-KL 0.05, seed 0\nround 40 of 48, has stopped writing: last line 50 min ago"
    assert not missing("\n".join(lines), head, "▁▁▂▂")
    rows = {line[:15].strip(): line[15:26].strip() for line in lines if re.match(r"(  )?[a-zKP]", line)}
    shown = {
        "reward": "0.400", "above": "2.00 %", "below": "1.00 %", "tail share": "40.0 %", "log r max": "1.50",
        "log r min": "-2.00",
    }  # fmt: skip
    assert rows | shown == rows


@pytest.mark.parametrize(
    ("values", "width", "curve"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 10, "▁▂▃▄▅▆▇█"),
        ([0, math.nan, 7, math.inf, 3.4], 10, "▁ █ ▄"),  # what is below each other is of one round
        ([0, 0, 7, 7, 0, 7], 3, "▁█▅"),
        ([5, 5], 10, "▁▁"),
        ([1e-310, 2e-310], 10, "▁█"),
        ([-1e299, 1e299], 10, "▁█"),
    ],
)
def test_a_curve_is_a_line_of_blocks(values, width, curve):
    assert show_watch._curve(np.array(values, float), width) == curve


def test_where_there_are_no_blocks_a_curve_is_of_plain_signs(monkeypatch):
    with io.TextIOWrapper(io.BytesIO(), "ascii") as file:
        monkeypatch.setattr(show_watch.console, "_file", file)
        assert show_watch._curve(np.array([0.0, 1, math.nan, 2, 3, 4, 5, 6, 7]), 10) == "_. -~=+*#"


@pytest.mark.parametrize("width", [30, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("count", [1, 2])
def test_no_line_of_numbers_is_wider_than_the_terminal(two, width, count):
    lines = drawn(looked(*two[:count]), width).splitlines()
    numbers = [line for line in lines if re.match(r"(  )?(reward|above|below|entropy|Band|<scr)", line)]
    assert count == 1 or len(lines) == 2
    assert max(map(len, numbers)) <= width


def test_it_says_collapsed_and_when_it_is_too_early_to_tell(tmp_path):
    good = [ours(i, reward=0.6 + 0.01 * (i % 3), entropy=0.5) for i in range(1, 31)]
    bad = [ours(i, reward=0.02 + 0.01 * (i % 2), entropy=2.0) for i in range(31, 61)]
    (bad, well, short) = (
        looked(run_of_ours(tmp_path / str(i), rows))[0] for i, rows in enumerate(([*good, *bad], good, good[:15]))
    )
    assert [(run.collapsed, run.on_collapse.partition(":")[0]) for run in (bad, well, short)] == [
        (True, "collapsed at round 31"), (False, "no collapse of the reward"), (False, "too early to tell a collapse"),
    ]  # fmt: skip
    assert bad.on_collapse in drawn([bad], 80)


def test_of_several_runs_there_is_a_line_for_each_with_what_is_wrong(two):
    first, second = drawn(looked(*two), 300).splitlines()
    told = "has stopped writing: last line 50 min ago. Did it crash, or is one step so long?"
    assert first.startswith(
        f"Band-KL 0.05, seed 0  round 40 of 48  {told}  reward 0.400  entropy 0.400  clipped 3.00 %"
    )
    assert second.startswith("<script> of a very long name, number, seed 7  round 3 of 48  reward 0.500")


class Clock:
    """Time that passes when somebody sleeps; then what happens at the next `events`."""

    def __init__(self, *events):
        self.now, self.events = NOW, list(events)

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        if not self.events:
            raise KeyboardInterrupt
        self.events.pop(0)()


def followed(given, clock, **options):
    with mock.patch.object(show_watch, "time", clock):
        watch_and_show(list(map(str, given)), **{"silent": 600.0, **options})


def test_elsewhere_than_on_a_terminal_a_line_is_printed_for_what_is_new(tmp_path, capsys):
    folder, rows = run_of_ours(tmp_path / "run", [ours(1)]), [ours(1), ours(2, reward=0.75)]
    clock = Clock(
        lambda: None,
        lambda: run_of_ours(folder, rows),
        lambda: run_of_ours(folder, rows, finished=True),
        lambda: pytest.fail("it goes on when all is finished"),
    )
    followed([folder], clock)
    first, second, third = ([*re.split("  +", line)] for line in capsys.readouterr().out.splitlines())
    assert first == [
        "Band-KL 0.05, seed 0", "round 1 of 48", "reward 0.500", "entropy 0.400", "clipped 3.00 %", "tail share 40.0 %",
    ]  # fmt: skip
    assert (second[1:3], third[2], clock.now) == (["round 2 of 48", "reward 0.750"], "finished", NOW + 6)


def test_a_slow_look_is_followed_by_a_long_pause(tmp_path, monkeypatch):
    """Watching takes 2 % of a core at most: beside a training it would slow that down."""
    folder, looks, look = run_of_ours(tmp_path / "run", [ours(1)]), [], Watch.look

    def slowly(watch, now):
        looks.append(round(clock.now - NOW, 2))
        clock.now += 0.1
        return look(watch, now)

    monkeypatch.setattr(Watch, "look", slowly)
    clock = Clock(lambda: None, lambda: None)
    followed([folder], clock)
    assert looks == [0, 2.1, 7.2]  # every 2 s, or fifty times as long as a look


def test_once_shows_the_runs_that_are_there(two, cli, tmp_path):
    assert not missing(cli.out("watch", *two, tmp_path / "none", "--once"), "none", "Band-KL")  # the others are shown
    (run,) = looked(f"mine={two[0]}")
    assert (run.label, run.state, run.x[-1], run.end, run.collapsed) == ("mine", "silent", 40, 48, False)
