"""Rows of files, of copies on disk and of the hub."""

import datasets
import huggingface_hub
import pyarrow
import pyarrow.parquet
import pytest
from published import aime25, amc23, gsm8k, problem, put, rows_of

from bandpo.errors import UserError
from bandpo_runs.data import readers


@pytest.fixture
def online(monkeypatch):
    """Whatever HF_HUB_OFFLINE says where the tests run."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return monkeypatch


def test_several_files_of_a_split_are_one(make, copies, tmp_path):
    first = put(copies, "aime25", [aime25(problem(i), "1", i) for i in range(15)])
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([aime25(problem(50 + i), "2", i) for i in range(15)]),
        first.with_name("train-00001-of-00002.parquet"),
    )
    make("aime25")
    assert [row["answer"] for row in rows_of(tmp_path / "out/aime2025.parquet")] == ["1"] * 15 + ["2"] * 15


def test_a_failure_of_the_network_is_one_line_that_says_what_to_do(make, online):
    def unreachable(*args, **kwargs):
        raise ConnectionError("[Errno -2] Name or service\nnot known")

    online.setattr(huggingface_hub.HfApi, "dataset_info", unreachable)
    with pytest.raises(UserError) as caught:
        make("amc23", copies=None)
    text = str(caught.value)
    assert text.startswith(
        "math-ai/amc23 cannot be loaded from the Hugging Face hub ([Errno -2] Name or service not known)."
    )
    assert "hf download math-ai/amc23 --repo-type dataset --local-dir copies/math-ai/amc23" in text
    then = "--from copies; for data.eval_path, the file that `bandpo data prepare` writes with --from copies"
    assert text.endswith(f"then here: {then}")
    assert "\n" not in text


def test_the_hub_is_read_through_datasets(copies, tmp_path, monkeypatch):
    """As far as that goes without a network: datasets takes a folder for a data set of the hub."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    put(copies, "gsm8k-test", [gsm8k(problem(3), "-3")])
    folder = copies / "openai/gsm8k"
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: test\n    path: main/test-*\n---\n"
    )
    rows, commit = readers.hub_rows(str(folder), "main", "test")
    assert list(rows) == [gsm8k(problem(3), "-3")]
    assert commit is None
    with pytest.raises(UserError, match="cannot be loaded from the Hugging Face hub"):
        readers.hub_rows(str(folder), "socratic", "test")


def test_the_commit_is_asked_for_first_and_then_read(online, make, tmp_path):
    wanted = {}

    class Info:
        sha = "c0ffee"

    online.setattr(huggingface_hub.HfApi, "dataset_info", lambda self, hub, **kwargs: Info)

    def load(hub, config, *, split, revision):
        wanted.update(hub=hub, config=config, split=split, revision=revision)
        return [amc23(problem(i), "1.0", i) for i in range(40)]

    online.setattr(datasets, "load_dataset", load)
    outcome, _ = make("amc23", copies=None)
    assert wanted == {"hub": "math-ai/amc23", "config": None, "split": "test", "revision": "c0ffee"}
    assert outcome["amc2023"]["from"]["commit"] == "c0ffee"
    assert "commit c0ffee" in (tmp_path / "out/report.md").read_text()


def test_offline_the_cache_is_read_and_nothing_is_asked(monkeypatch, make):
    def wanted(*args, **kwargs):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", wanted)
    rows = [amc23(problem(i), "1.0", i) for i in range(40)]
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, revision, **kwargs: rows)
    outcome, _ = make("amc23", copies=None)
    assert outcome["amc2023"]["from"]["commit"] is None
