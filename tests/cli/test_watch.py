"""`bandpo watch`: what it says of logs that the tests write, with a clock that the tests move."""

from __future__ import annotations

import io
import json
import math
import os
import re
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bandpo_runs.cli import main, show_watch
from bandpo_runs.cli.show_watch import view, watch_and_show
from bandpo_runs.files.logs import renamed
from bandpo_runs.reports.runs import PANELS
from bandpo_runs.reports.watching import Watch, write_page

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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return aged(path, age)


def aged(path, age):
    os.utime(path, (NOW - age, NOW - age))
    return path


def run_of_ours(folder, rows, *, label="Band-KL 0.05", seed=0, finished=False, age=0.0):
    write(folder / "metrics.jsonl", rows, age)
    info = {"label": label, "seed": seed, "finished": finished, "learning_rate": 1e-5, "rounds": 48}
    (folder / "run.json").write_text(json.dumps(info))
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


def test_rows_of_all_trainers_have_the_same_names():
    assert renamed({"critic/rewards/mean": 1, "critic/score/mean": 2})["reward"] == 2
    assert renamed({"critic/score/mean": 2, "reward": 3})["reward"] == 3
    assert renamed({"bandpo/entropy": 1.0, "entropy": 2.0})["entropy"] == 1.0
    assert renamed({"entropy": 2.0, "bandpo/entropy": 1.0})["entropy"] == 1.0
    assert renamed({"bandpo/cut/fraction": 0.1, "clip_ratio/region_mean": 0.2})["cut/fraction"] == 0.1
    assert renamed({"clip_ratio/region_mean": 0.2})["cut/fraction"] == 0.2
    sides = {"bandpo/clip/high_fraction": 0.25, "bandpo/clip/low_fraction": 0.5}
    assert renamed(sides)["clip/fraction"] == 0.75
    assert renamed({**sides, "bandpo/clip/fraction": 0.7})["clip/fraction"] == 0.7
    assert "clip/fraction" not in renamed({"clip_ratio/high_mean": 0.25, "bandpo/clip/low_fraction": 0.5})
    odd = renamed({"a": "text", "b": math.inf, "c": math.nan, "d": None, "e": [1], "f": 10**400, "g": True})
    assert odd == {"b": None, "c": None, "d": None, "f": None, "g": True}


def test_shares_under_verl_are_ratios_of_its_sums(tmp_path):
    """A mean of shares would be (2 % + 10 %) / 2."""
    log = write(tmp_path / "run.jsonl", [verls(1), verls(2, **{"actor/bandpo/clip/count": 40.0})])
    (run,) = looked(log)
    wanted = {"clipped": 10.0, "above": 1.5, "below": 0.5, "tail share": 5.0, "KL": 0.005,
              "reward": 0.25, "entropy": 0.7, "cut": 1.7}  # fmt: skip
    found = {name: PANELS[name].last(run) for name in wanted}
    assert found == pytest.approx(wanted)
    np.testing.assert_allclose(PANELS["clipped"].curve(run), [2.0, 10.0])
    assert (run.axis, run.label, run.now) == ("step", "run", "step 2")


def test_a_run_that_was_killed_has_stopped_writing(tmp_path):
    folder = run_of_ours(tmp_path / "run", [ours(1), ours(2)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 48, "rou')
    aged(folder / "metrics.jsonl", 0)
    watch = Watch([str(folder)], silent=600)
    (run,) = watch.look(NOW + 600)
    assert (run.state, run.now) == ("running", "round 2 of 48")
    for seen in [run], [run, run]:  # it may have crashed
        assert "last line 10 min ago" in drawn(seen, 80)
        assert "running" not in drawn(seen, 80)
    (run,) = watch.look(NOW + 900)
    assert run.state == "silent"
    assert "has stopped writing: last line 15 min ago" in drawn([run], 80)
    run_of_ours(folder, [ours(1), ours(2)], finished=True)
    (run,) = watch.look(NOW + 9000)
    assert run.state == "finished"


def test_a_run_that_broke_is_said_to_have_and_is_not_waited_for(tmp_path, capsys):
    folder = run_of_ours(tmp_path / "run", [ours(1), ours(2, loss=None)])
    (run,) = looked(folder)
    log = folder / "metrics.jsonl"
    said = f"Numbers are not finite: loss in 1 row, first at step 32; `bandpo doctor {log}` says what to do."
    assert (run.state, run.notes) == ("running", (said,))
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**facts, "stopped": "step 33: weights are not finite"}))
    (run,) = looked(folder, now=NOW + 9000)
    assert run.state == "stopped"
    assert "round 2 of 48, stopped, as its numbers were not finite" in drawn([run], 80)
    assert run.notes == (said, "Why: step 33: weights are not finite")
    (folder / "metrics.jsonl").write_text("")  # before its first row
    assert main(["watch", str(folder), "--once"]) == 0
    assert "stopped, as its numbers were not finite" in capsys.readouterr().out
    write(log, [ours(1), ours(2, loss=None)])
    followed([folder], Clock(lambda: pytest.fail("it goes on")))
    assert "Why: step 33" in capsys.readouterr().out
    write_page(tmp_path / "page.html", [run], NOW)
    assert 'class="alarm"><b>Band-KL' in (tmp_path / "page.html").read_text()
    (run,) = looked(write(tmp_path / "trl.jsonl", [{"step": 1, "reward": 1.0, "grad_norm": math.nan}]))
    assert run.notes[0].startswith("Numbers are not finite: grad_norm in 1 row, first at step 1;")


def test_a_run_is_waited_for_and_its_log_may_go(tmp_path):
    folder = tmp_path / "later"
    watch = Watch([str(folder)])
    (run,) = watch.look(NOW)
    assert (run.state, run.word) == ("waiting", "")
    assert "later\nnothing yet, waiting for its first line\n" in drawn([run], 80)
    run_of_ours(folder, [])
    assert [run.state for run in watch.look(NOW)] == ["waiting"]
    run_of_ours(folder, [ours(1)])
    assert [run.state for run in watch.look(NOW)] == ["running"]
    (folder / "metrics.jsonl").unlink()
    (run,) = watch.look(NOW)
    assert run.state == "gone"
    assert PANELS["reward"].last(run) == 0.5
    assert "deleted or moved away" in drawn([run], 80)
    run_of_ours(folder, [ours(1), ours(2)])
    (run,) = watch.look(NOW)
    assert (run.state, run.now) == ("running", "round 2 of 48")


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
        json.dumps(show_watch._data(seen[0]), allow_nan=False)
        log.write_bytes(log.read_bytes()[: len(lines)])


@pytest.fixture
def two(tmp_path):
    run_of_ours(tmp_path / "a", [ours(i, reward=0.01 * i) for i in range(1, 41)], age=3000)
    run_of_ours(tmp_path / "b", [ours(i) for i in range(1, 4)], label="<script> of a very long name, number", seed=7)
    return tmp_path / "a", tmp_path / "b"


def test_of_one_run_all_is_shown(two):
    said = drawn(looked(two[0]), 80)
    for words in (
        "Band-KL 0.05, seed 0", "round 40 of 48", "has stopped writing: last line 50 min ago",
        "reward              0.400", "  above            2.00 %", "  below            1.00 %",
        "tail share         40.0 %", "▁▁▂▂", "log r max            1.50", "log r min           -2.00",
    ):  # fmt: skip
        assert words in said, words


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
    said = drawn(looked(*two[:count]), width)
    numbers = [
        line for line in said.splitlines() if re.match(r"(  )?(reward|above|below|entropy|run |Band|<scr)", line)
    ]
    assert numbers
    assert max(map(len, numbers)) <= width


def test_it_says_collapsed_and_when_it_is_too_early_to_tell(tmp_path):
    good = [ours(i, reward=0.6 + 0.01 * (i % 3), entropy=0.5) for i in range(1, 31)]
    bad = [ours(i, reward=0.02 + 0.01 * (i % 2), entropy=2.0) for i in range(31, 61)]
    (run,) = looked(run_of_ours(tmp_path / "bad", [*good, *bad]))
    assert run.collapsed
    assert run.word.startswith("collapsed at round 31: reward 0.6")
    assert run.word in drawn([run], 80)
    (run,) = looked(run_of_ours(tmp_path / "good", good))
    assert (run.collapsed, run.word) == (False, "no collapse of the reward")
    (run,) = looked(run_of_ours(tmp_path / "short", good[:15]))
    assert run.word == "too early to tell a collapse: 15 of 16 rounds"


def test_of_several_runs_there_is_a_row_for_each_and_words_for_those_that_need_them(two):
    said = drawn(looked(*two), 100).splitlines()
    assert said[0].split()[:5] == ["run", "round", "state", "reward", "entropy"]
    assert said[1].split()[-8:-3] == ["0", "40/48", "silent", "0.400", "0.400"] or "40/48  silent" in said[1]
    assert said[2].startswith("<script> of a very long ")
    assert ".. seed 7" in said[2]
    assert sum("has stopped writing" in line for line in said) == 1
    assert not any("seed 7:" in line for line in said)


def test_a_terminal_without_colours_gets_none(two, monkeypatch):
    seen = looked(*two)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[31m" in drawn(seen, 80, colour=True) or "\x1b[1;31m" in drawn(seen, 80, colour=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*3\d", drawn(seen, 80, colour=True))


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
    folder = run_of_ours(tmp_path / "run", [ours(1)])
    clock = Clock(
        lambda: None,
        lambda: run_of_ours(folder, [ours(1), ours(2, reward=0.75)]),
        lambda: run_of_ours(folder, [ours(1), ours(2, reward=0.75)], finished=True),
        lambda: pytest.fail("it goes on when all is finished"),
    )
    followed([folder], clock)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3
    assert said[0] == ("Band-KL 0.05, seed 0  round 1 of 48  reward 0.500  entropy 0.400  clipped 3.00 %  "
                       "tail share 40.0 %")  # fmt: skip
    assert "round 2 of 48  reward 0.750" in said[1]
    assert said[2].endswith("finished")
    assert clock.now == NOW + 6


def test_a_signal_ends_it_as_a_signal_and_the_user_without_an_error(tmp_path):
    folder = run_of_ours(tmp_path / "run", [ours(1)])
    followed([folder], Clock())

    def end():
        raise KeyboardInterrupt(15)

    with pytest.raises(KeyboardInterrupt):
        followed([folder], Clock(end))


def test_the_page_loads_itself_again_until_the_end(two, tmp_path, capsys):
    page, pages = tmp_path / "new" / "page.html", []
    clock = Clock(lambda: pages.append(page.read_text()))
    followed(two, clock, html=page)
    assert '<meta http-equiv="refresh" content="10">' in pages[0]
    assert 'http-equiv="refresh"' not in page.read_text()
    assert "It is not updated any more." in page.read_text()
    for text in pages[0], page.read_text():
        assert "round 40 of 48, has stopped writing: last line" in text
        assert "&lt;script&gt; of a very long name, number, seed 7" in text
        assert "<svg" in text
        assert "<script" not in text.split("<body>")[1]
        assert "http" not in re.sub('http-equiv|xmlns[:a-z]*="[^"]*"|xlink:href="#[^"]*"', "", text)
    assert str(page) in capsys.readouterr().out


def test_the_page_is_written_only_if_something_is_new(tmp_path, monkeypatch):
    folder, written = run_of_ours(tmp_path / "run", [ours(1)]), []
    monkeypatch.setattr(show_watch, "write_page", lambda path, seen, now, refresh=10: written.append(now))
    followed([folder], Clock(*[lambda: None] * 5, lambda: run_of_ours(folder, [ours(1), ours(2)]), lambda: None),
             html=tmp_path / "page.html")  # fmt: skip
    assert written == [NOW, NOW + 12, NOW + 16]  # at once, with the new row, and at the end


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


def test_once_and_json(two, capsys, tmp_path):
    assert main(["watch", *map(str, two), "--once"]) == 0
    assert main(["watch", *map(str, two), str(tmp_path / "none"), "--once"]) == 0  # the others are shown
    assert "none" in capsys.readouterr().out
    assert main(["watch", *map(str, two), "--once"]) == 0
    assert "Band-KL 0.05, seed 0" in capsys.readouterr().out
    assert main(["watch", f"mine={two[0]}", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["label"], found["state"], found["round"], found["end"]) == ("mine", "silent", 40, 48)
    assert found["numbers"]["clip/fraction"] == pytest.approx(0.03)
    assert found["numbers"]["reward"] == pytest.approx(0.4)
    assert found["collapsed"] is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none", "--once"], "error: none: nothing to show; no log is at none"),
        (["trainer_state.json", "--once"], "nothing to show; trainer_state.json: corrupt: one JSON object is expected"),
        (["none", "--json"], "error: none: nothing to show"),
        (["none", "--every", "0"], "must be a positive number of seconds"),
        (["none", "--silent", "x"], "must be a positive number of minutes, got 'x'"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainer_state.json").write_text('{"log_history": [')
    assert main(["watch", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert len(said.splitlines()) == 1
