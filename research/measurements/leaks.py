"""Which run length and share tell leaked problems from others: public benchmark files that share problems.

    git clone https://github.com/QwenLM/Qwen2.5-Math
    python -m research.measurements.leaks Qwen2.5-Math/evaluation/data [--write] [--show]

The evaluation problems are AIME 2024 and AMC 2023, the "training" rows the problems of 13 other benchmarks there, of
which gaokao2023en has many of AMC 2023, differently typeset and some reworded. A row and a problem are the same by an
independent measure: difflib's ratio of their words is at least 0.55 (`--show` prints pairs, to be judged by eye). For
each length of a run: the smallest share among the same, the largest among the others. `--write` writes
leaks.csv.
"""

import argparse
import difflib
import json
import time
from pathlib import Path

from bandpo_runs.data import leaks
from bandpo_runs.provenance import source_commit
from research.csv_rows import write_rows

EVALUATION = ("aime24", "amc23")
TRAINING = (
    "aqua",
    "asdiv",
    "carp_en",
    "cmath",
    "cn_middle_school",
    "college_math",
    "gaokao2023en",
    "gsm8k",
    "minerva_math",
    "mmlu_stem",
    "olympiadbench",
    "sat_math",
    "svamp",
)
SAME = 0.55


def problems(folder: Path, name: str) -> list[str]:
    rows = [json.loads(line) for line in (folder / name / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    keys = ("Body", "body", "problem", "Question", "question", "content")
    return [" ".join(dict.fromkeys(str(row[key]) for key in keys if row.get(key))) for row in rows]


def ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, leaks.words(one), leaks.words(other), autojunk=False).ratio()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    sets = [(name, problems(args.folder, name)) for name in EVALUATION]
    texts = [text for name in TRAINING for text in problems(args.folder, name)]
    count = sum(len(each) for _, each in sets)
    print(
        f"{count} evaluation problems, {len(texts)} rows, runs of common words left out from {leaks.COMMON} problems on"
    )
    share, leaks.SHARE = leaks.SHARE, 1e-9  # show every overlap
    rows = []
    for leaks.RUN in (4, 5, 6, 8, 10, 13):
        index = leaks.Leaks(sets)
        began = time.perf_counter()
        overlaps = [(leak, text) for text in texts if (leak := index.find(text)) is not None]
        seconds = time.perf_counter() - began
        pairs = [(leak.share, ratio(leak.problem, text), leak.problem, text) for leak, text in overlaps]
        same = sorted(pair for pair in pairs if pair[1] >= SAME)
        others = sorted((pair for pair in pairs if pair[1] < SAME), reverse=True)
        rows.append(
            {
                "run": leaks.RUN,
                "same": len(same),
                "smallest_share_of_same": round(same[0][0], 3),
                "largest_share_of_others": round(others[0][0], 3) if others else 0.0,
                "same_above": sum(pair[0] >= share for pair in same),
                "others_above": sum(pair[0] >= share for pair in others),
                "threshold": share,
                "rows": len(texts),
                "problems": count,
                "rows_per_second": round(len(texts) / seconds),
                "commit": source_commit(),
            }
        )
        print(rows[-1])
        if args.show and leaks.RUN == 5:
            for pair in [*same[:12], *others[:6]]:
                print(f"\n{pair[0]:.2f} ratio {pair[1]:.2f}\n  {pair[2]}\n  {pair[3]}")
    if args.write:
        write_rows(Path(__file__).with_suffix(".csv"), rows)


if __name__ == "__main__":
    main()
