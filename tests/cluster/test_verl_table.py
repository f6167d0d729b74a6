"""`bandpo table` from a log and dumps that verl's own functions wrote, against the numbers that verl computed."""

import re
import types
import warnings

import numpy as np
import pytest
from disk import json_rows

from bandpo_runs.evals.results import read_result
from bandpo_runs.reports.table import make_table

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.utils.tracking import FileLogger

SETS = {"aime_2024": 4, "aime_2025": 3, "aime_amc2023": 5}
COLUMNS = ["AMC2023", "AIME2024", "AIME2025"]


def validation(seed, step, folder, n=4, **more):
    """The metrics of a validation with made answers, which are dumped as verl does it."""
    rng, info = np.random.default_rng([seed, step]), {"acc": [], "pred": [], "data_source": []}
    uids, inputs, gts = [], [], []
    for data, size in SETS.items():
        for i, chance in enumerate(rng.beta(0.7, 1, size)):
            right = (rng.random(n) < chance).tolist()
            info["acc"] += right
            info["pred"] += ["7" if x else "[INVALID]" for x in right]
            info["data_source"] += [data] * n
            uids += [f"{data}-{i}"] * n
            inputs += [f"user\n{data}: {i}\nassistant\n"] * n
            gts += ["7"] * n
    sources = info["data_source"]
    info = {"reward": [2.0 * x - 1 for x in info["acc"]]} | info | more
    trainer = types.SimpleNamespace(global_steps=step, _write_generations=PPOTrainer._write_generations)
    PPOTrainer._init_dump_executor(trainer)
    texts = ["Answer: 7"] * len(uids)
    PPOTrainer._dump_generations(trainer, inputs, texts, gts, info["reward"], info, str(folder))
    PPOTrainer._shutdown_dump_executor(trainer)
    return PPOTrainer._val_metrics_update(trainer, sources, uids, info, [2] * len(uids))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Logs and dumps of steps 5 and 10, and what verl computed at step 10, by run."""
    home, numbers = tmp_path_factory.mktemp("written"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERL_FILE_LOGGER_ROOT", str(home / "logs"))
        for run in ("grpo-seed1", "grpo-seed2"):
            logger = FileLogger("3b", run)
            for step in (5, 10):
                numbers[run] = validation(int(run[-1]), step, home / "dumps" / run)
                logger.log({"critic/score/mean": 0.1} | numbers[run], step)
            logger.finish()
    return home, numbers


def own_count(file):
    """mean@4 and the share of problems with a right answer, by column."""
    problems = {}
    for row in json_rows(file):
        problems.setdefault(row["data_source"], {}).setdefault(row["input"], []).append(row["acc"])
    sets = [problems[data] for data in ("aime_amc2023", "aime_2024", "aime_2025")]
    return [(np.mean([*of.values()]), np.mean([any(answers) for answers in of.values()])) for of in sets]


def test_the_table_of_a_log_has_verls_numbers(written):
    home, numbers = written
    theirs = numbers["grpo-seed1"]
    table = make_table([read_result(str(home / "logs" / "3b" / "grpo-seed1.jsonl"))])
    assert (table.columns, table.measures) == ((*COLUMNS, "Average"), ("mean@4", "best@4 (verl)"))
    names = [f"val-core/{data}/acc/" for data in ("aime_amc2023", "aime_2024", "aime_2025")]
    cells = [(theirs[f"{name}mean@4"], theirs[f"{name}best@4/mean"]) for name in names]
    found = [[value.value for value in cell] for cell in table.rows[0].cells]
    np.testing.assert_allclose(found, [*cells, np.mean(cells, 0)], rtol=1e-12)
    assert (table.rows[0].method, "Validation at step 10." in table.notes) == ("grpo", True)


def test_the_table_of_dumps_has_verls_best_and_an_own_count(written):
    home, _ = written
    table = make_table([read_result(str(home / "dumps" / "grpo-seed1"))])
    logged = make_table([read_result(str(home / "logs" / "3b" / "grpo-seed1.jsonl"))])
    assert table.measures == ("mean@4", "best@4 (verl)", "pass@4")
    for cell, of_log in zip(table.rows[0].cells, logged.rows[0].cells, strict=True):
        assert [value.value for value in cell[:2]] == pytest.approx([value.value for value in of_log], rel=1e-12)
        assert all(value.interval.low < value.value < value.interval.high for value in cell)
    early = make_table([read_result(str(home / "dumps" / "grpo-seed1"), step=5)])
    for step, of in ((5, early), (10, table)):
        counted = own_count(home / "dumps" / "grpo-seed1" / f"{step}.jsonl")
        values = [(cell[0].value, cell[2].value) for cell in of.rows[0].cells]
        np.testing.assert_allclose(values, [*counted, np.mean(counted, 0)], rtol=1e-12)


def test_repetitions_are_one_row_and_dumps_of_two_runs_compare(written, cli):
    home, _ = written
    logs = [str(home / "logs" / "3b" / f"grpo-seed{seed}.jsonl") for seed in (1, 2)]
    assert "| grpo (2 runs) |" in cli.out("table", *logs)
    assert re.search(r"average\s+12 ", cli.out("compare", *(home / "dumps" / f"grpo-seed{seed}" for seed in (1, 2))))


def test_a_reward_that_is_no_share_of_right_answers_is_refused(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "log.jsonl"))
    logger = FileLogger("3b", "signs")
    signs = [1.0, 1.0, 1.0, -1.0] * sum(SETS.values())
    logger.log(validation(1, 5, tmp_path / "dumps", acc=signs), 5)
    logger.finish()
    assert "/acc/worst@" in cli.error("table", tmp_path / "log.jsonl")
