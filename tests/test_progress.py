"""What long commands show: lines that stay whole where output is piped, and how far the work has come."""

import io
import math
import re
import subprocess
import sys

from rich.console import Console

from bandpo_runs import progress
from bandpo_runs.cli import show_evals, show_training
from bandpo_runs.evals import generate
from bandpo_runs.progress import Progress, lines

LONG = "round   7  reward 0.123  work 0.456  entropy 1.23  clip 0.45 %  tail share 12 %  and [brackets] " * 3


def test_a_long_line_that_is_piped_is_one_line():
    code = "import sys; from bandpo_runs.progress import console; console.print(sys.argv[1].strip()); print('next')"
    done = subprocess.run([sys.executable, "-c", code, LONG], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [LONG.strip(), "next"]


def test_commands_print_to_the_console_that_keeps_lines_whole():
    assert show_training.console is show_evals.console is generate.console is progress.console


def test_on_a_terminal_there_is_a_bar_that_goes_when_it_is_done(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr(progress.time, "monotonic", iter(range(0, 1000, 10)).__next__)
    with Progress("samples", 40, 20, title="mine", console=screen) as bar:
        bar.update(30)  # ten in ten seconds; those that were there took none
        bar.bar.refresh()
        assert re.search(r"mine: samples .* 30/40 about 0\.2 min left", screen.file.getvalue())
    assert screen.file.getvalue().endswith("\x1b[2K")  # the line is empty again


def test_where_nobody_watches_there_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", iter(range(0, 1000, 10)).__next__)
    with Progress("samples", 20, 4, pause=30.0) as bar:
        for done in range(5, 12):
            bar.update(done)
    # Ten seconds for each of them: three in thirty seconds, 13 are left.
    assert capsys.readouterr().out.splitlines() == [
        "7 of 20 samples, about 2.2 min left",
        "10 of 20 samples, about 1.7 min left",
    ]


def test_what_has_no_total_is_counted_and_what_has_rows_of_its_own_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(progress.time, "monotonic", iter(range(0, 1000, 40)).__next__)
    with Progress("rows", title="math", console=lines(stderr=True)) as bar:
        bar.update(1200)
    with Progress("rounds", 3, pause=math.inf) as bar:
        bar.update(1)
    assert capsys.readouterr() == ("", "math: 1,200 rows\n")
