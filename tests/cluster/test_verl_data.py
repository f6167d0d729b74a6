"""verl's own data set reads the files of `bandpo data prepare`, laid together, and its own scorer their answers."""

import json

from omegaconf import OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.reward_score import default_compute_score

from bandpo_runs import toy
from bandpo_runs.data.preparation import Settings, prepare
from bandpo_runs.data.sources import find


def test_verl_reads_prepared_files(tmp_path):
    def written(name, rows):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    numbers = [{"prompt": f"{i} + {i}?", "answer": str(2 * i)} for i in range(3)]
    chat = [{"role": "system", "content": "Brief."}, {"role": "user", "content": "a b"}]
    long = {"prompt": [{"role": "user", "content": "a " * 90}], "answer": "1"}
    names = [written("one.jsonl", numbers), written("two.jsonl", [{"prompt": chat, "answer": "7"}, long])]
    sources = [source for name in names for source in find(name)]
    prepare(sources, tmp_path / "out", Settings(template=None))
    tokenizer = toy.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    config = OmegaConf.create({"max_prompt_length": 50, "filter_overlong_prompts": True, "cache_dir": str(tmp_path)})
    files = [str(tmp_path / "out" / f"{name}.parquet") for name in ("one", "two")]
    data = RLHFDataset(files, tokenizer, config)
    assert len(data) == 4  # the long one is filtered out
    rows = [data[i] for i in range(4)]
    assert [row["raw_prompt"] for row in rows[2:]] == [[{"role": "user", "content": "2 + 2?"}], chat]
    assert [row["index"] for row in rows] == [0, 1, 2, 0]
    assert [row["extra_info"]["problem"] for row in rows] == ["0 + 0?", "1 + 1?", "2 + 2?", "a b"]
    for row in rows:
        answer = row["reward_model"]["ground_truth"]
        right, wrong = (
            default_compute_score(row["data_source"], f"So.\nAnswer: {text}", answer, row["extra_info"])
            for text in (answer, "-1")
        )
        assert (right["score"], wrong["score"]) == (1.0, -1.0)
