"""verl's own data set reads the files of `bandpo data prepare`, laid together, and its own scorer their answers."""

from disk import write
from omegaconf import OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.reward_score import default_compute_score

from bandpo_runs import toy
from bandpo_runs.data.preparation import Settings, prepare
from bandpo_runs.data.sources import find


def test_verl_reads_prepared_files(tmp_path):
    numbers = [{"prompt": f"{i} + {i}?", "answer": str(2 * i)} for i in range(3)]
    chat = [{"role": "system", "content": "Brief."}, {"role": "user", "content": "a b"}]
    long = {"prompt": [{"role": "user", "content": "a " * 90}], "answer": "1"}
    files = {"one": numbers, "two": [{"prompt": chat, "answer": "7"}, long]}
    names = [str(write(tmp_path / f"{name}.jsonl", rows)) for name, rows in files.items()]
    prepare([source for name in names for source in find(name)], tmp_path / "out", Settings(template=None))
    tokenizer = toy.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    config = OmegaConf.create({"max_prompt_length": 50, "filter_overlong_prompts": True, "cache_dir": str(tmp_path)})
    data = RLHFDataset([str(tmp_path / "out" / f"{name}.parquet") for name in files], tokenizer, config)
    rows = [data[i] for i in range(len(data))]
    assert [row["raw_prompt"] for row in rows[2:]] == [[{"role": "user", "content": "2 + 2?"}], chat]
    read = [(row["index"], row["extra_info"]["problem"]) for row in rows]  # the long one is filtered out
    assert read == [(0, "0 + 0?"), (1, "1 + 1?"), (2, "2 + 2?"), (0, "a b")]
    for row in rows:
        answer = row["reward_model"]["ground_truth"]
        right, wrong = (
            default_compute_score(row["data_source"], f"So.\nAnswer: {text}", answer, row["extra_info"])
            for text in (answer, "-1")
        )
        assert (right["score"], wrong["score"]) == (1.0, -1.0)
