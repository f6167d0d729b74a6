"""Which data set a name stands for, and the recorded table that real runs are checked against."""

import re

import pytest

from bandpo.errors import UserError
from bandpo_runs.cli import main
from bandpo_runs.data import sources


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("aime2024", {}, r"^no data set 'aime2024', did you mean 'aime24'\?; known are paper, gsm8k, dapo-math-17k, "),
        ("aime24", {"prompt": "x"}, r"^--prompt does not go with aime24"),
        ("paper", {"evaluation": True}, r"^--evaluation does not go with paper"),
        ("nothing.jsonl", {}, r"^'nothing\.jsonl' is not a file$"),
    ],
)
def test_a_name_that_will_not_do_is_explained(make, name, columns, message):
    with pytest.raises(UserError, match=message):
        make(name, columns=columns)


def test_counts_that_are_not_the_recorded_ones_are_said_and_written_down(make, tmp_path):
    outcome, wording = make("paper")
    wanted = ["dapo-math-17k: 40 rows, expected 17,398", "math-levels-3-5: 20 rows, expected 12,000"]
    text = (tmp_path / "out/report.md").read_text()
    for warning in wanted:
        assert f"warning: {warning}" in wording
        assert f"**Warning**: {warning}." in text
    assert not outcome["aime2024"]["warnings"]


def test_the_recorded_table_is_what_official_notes_say():
    table = {name: (s.hub, s.config, s.split, s.rows, s.data_source, s.levels) for name, s in sources.SOURCES.items()}
    assert table == {
        "dapo-math-17k": ("open-r1/DAPO-Math-17k-Processed", "all", "train", 17_398, "math_dapo", None),
        "dapo-math-17k-raw": ("BytedTsinghua-SIA/DAPO-Math-17k", None, "train", 1_791_700, "math_dapo", None),
        "math-levels-3-5": ("nlile/hendrycks-MATH-benchmark", None, "train", 12_000, "math_dapo", (3, 5)),
        "gsm8k-train": ("openai/gsm8k", "main", "train", 7_473, "math_dapo", None),
        "gsm8k-test": ("openai/gsm8k", "main", "test", 1_319, "math_dapo", None),
        "aime24": ("HuggingFaceH4/aime_2024", None, "train", 30, "aime_2024", None),
        "aime25": ("yentinglin/aime_2025", None, "train", 30, "aime_2025", None),
        "amc23": ("math-ai/amc23", None, "test", 40, "aime_amc2023", None),
    }


def test_the_command_lists_what_is_known(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["data", "list"]) == 0
    wording = capsys.readouterr().out
    for name in [*sources.SOURCES, *sources.GROUPS]:
        assert re.search(rf"^{name} +", wording, re.M)
    assert "17,398 rows" in wording
    assert max(map(len, wording.splitlines())) <= 100
