"""Small copies of the published data sets, with the columns and types of the real ones."""
# ruff: noqa: RUF001  (Chinese punctuation is meant)

import re

import pyarrow
import pyarrow.parquet
from disk import write

BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
BEHIND = '\n\nRemember to put your answer on its own line after "Answer:".'

# Words that no two problems share runs of, so that a leak is one that was planted.
STOCK = re.findall(
    r"\w+",
    "apple barrel candle dragon engine falcon garden hammer island jacket kettle ladder magnet needle orchid pebble "
    "quiver ribbon saddle temple umbrella velvet window yellow zipper anchor basket copper desert ember",
)


def problem(seed):
    """A problem of its own for each number."""
    picked = [STOCK[(seed * 7 + i * (seed % 5 + 2)) % len(STOCK)] for i in range(6)]
    return f"There are ${seed}$ times {' '.join(picked)} {seed}. How many {picked[seed % 6]} number {seed} are left?"


CHINESE = "一个长方形的长是$12$厘米，宽是$5$厘米。求它的面积是多少平方厘米？编号{}"


def dapo(text, answer, i):
    return {
        "prompt": text,
        "solution": answer,
        "data_source": "math_dapo",
        "source_prompt": [{"content": BEFORE + text + BEHIND, "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"0d8dee8a-{i}"},
    }


def dapo_raw(text, answer, i):
    row = dapo(text, answer, i)
    return {
        "prompt": row.pop("source_prompt"),
        **{k: row[k] for k in ("data_source", "ability", "reward_model", "extra_info")},
    }


def math(text, answer, level, i):
    name = f"train/algebra/{i}.json"
    return {
        "problem": text,
        "solution": "Thus.",
        "answer": answer,
        "subject": "Algebra",
        "level": level,
        "unique_id": name,
    }


def aime24(text, answer, i):
    link = "https://artofproblemsolving.com"
    return {"id": 60 + i, "problem": text, "solution": "So.", "answer": answer, "url": link, "year": "2024"}


def aime25(text, answer, i):
    return {"id": str(i), "problem": text, "answer": answer, "solution": "So.", "url": "u", "year": 2025}


def amc23(text, answer, i):
    return {"id": i, "question": text, "answer": answer, "url": "u"}


def gsm8k(text, answer):
    return {"question": text, "answer": f"He has <<2+2=4>>4.\nSo many.\n#### {answer}"}


PLACES = {
    "dapo-math-17k": "open-r1/DAPO-Math-17k-Processed/all/train-00000-of-00001.parquet",
    "dapo-math-17k-raw": "BytedTsinghua-SIA/DAPO-Math-17k/data/train-00000-of-00001.parquet",
    "math-levels-3-5": "nlile/hendrycks-MATH-benchmark/data/train-00000-of-00001.parquet",
    "aime24": "HuggingFaceH4/aime_2024/data/train-00000-of-00001.parquet",
    "aime25": "yentinglin/aime_2025/data/train-00000-of-00001.parquet",
    "amc23": "math-ai/amc23/test-00000-of-00001.parquet",
    "gsm8k-train": "openai/gsm8k/main/train-00000-of-00001.parquet",
    "gsm8k-test": "openai/gsm8k/main/test-00000-of-00001.parquet",
}


def put(copies, name, rows):
    return write(copies / PLACES[name], rows)


def rows_of(path):
    return pyarrow.parquet.read_table(path).to_pylist()


LEAKED = aime24(
    r"Let $ABC$ be a triangle with $AB=5$ and $BC=\tfrac{9}{2}$, inscribed in a circle $\omega$. Find its area, which "
    r"is $\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. Find $m+n$.",
    "033",
    2,
)


def own(tmp_path, rows, name="own.jsonl"):
    return str(write(tmp_path / name, rows))
