r"""How much of what models and data sets write the scorer `math` reads.

    git clone https://github.com/QwenLM/Qwen2.5-Math sets/Qwen2.5-Math
    git clone https://github.com/ZubinGou/math-evaluation-harness sets/math-evaluation-harness
    python -m research.measurements.reading sets    # the sets below, and every sets/*.jsonl
    python -m research.measurements.reading sets --write    # and write it to reading.csv

A published solution is graded against what its own last box holds, as it is published and with `$..$` written
`\(..\)`, so that nothing but the reading can fail. Answers of Qwen2.5-Math come with their own verdict. A file
sets/NAME.jsonl has rows {"text", "gold", "verdict"}; a verdict of null leaves the row out. The committed rows are of
answers in these repositories (of long files a part, drawn at random), with the verdict that is stored there:

    serus             kuk/simple-evals-ru (Gemini 1.5, Llama 3.3, Qwen2.5, DeepSeek-V3, GigaChat, T-pro and others)
    gemma4_mcq        tobypullan/logit_cot_overthinking (Gemma 4 12B)
    cotloop           Zhi0467/cot-loop (Qwen3 1.7B)
    mmlupro_math      TIGER-AI-Lab/MMLU-Pro (mathstral 7B, Llama 3.1 70B, Phi-3 mini)
    gaokao            OpenLMLab/GAOKAO-Bench (GPT-4)
    s1_mgsm_zh        protimroy/crosslingual-test-time-scaling (s1 7B to 32B)
    zeroeval          WildEval/ZeroEval (GPT-4o, o1-mini, Gemma 2, Claude 3.5 Sonnet, DeepSeek-V2.5, Qwen2.5)
    reasoninggym      open-thought/reasoning-gym-eval (DeepSeek-R1, QwQ, Gemma 3, o3-mini, Llama 4, Grok 3 mini); its
                      math-evals of Qwen2.5-3B, the same trained, and Llama 3.2 3B, with all their answers
    rlvrprobe         UnitedSnakes/rlvr_behavior_probe_runpod (Qwen2.5 1.5B, trained)
    slm_gemma4_phi4   hoangsonpham727/slm-math-reasoning (Gemma 4 E2B, Phi-4 mini, Qwen2.5-Math 1.5B)
    csc5051           Fomaldehyde/Test-Time-Scaling-for-Math-Reasoning-CSC5051- (Qwen3 8B, DeepSeek)
    tts               shanjf666/Test-Time-Scaling (Llama 3.2 1B, R1-Distill-Qwen 1.5B)
    gsmplus           qtli/GSM-Plus (GPT-4, MetaMath 70B)
    cs336             PrecipiceBlades/cs336-assignment5-alignment (Llama 3.1 8B base)
    xling             nhockid235/xling-grpo-sub3b (R1-Distill-Qwen 1.5B in eight languages; math-verify's verdict)
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from bandpo_runs.data.golds import BOX, read_gold
from bandpo_runs.provenance import source_commit
from research.csv_rows import write_rows

COLUMNS = ["set", "writing", "right", "read", "wrong", "rewarded", "math_verify", "commit"]
Case = tuple[str, str, int]


def parentheses(text: str) -> str:
    """The same with \\(..\\) for $..$, as Qwen and DeepSeek write."""
    return re.sub(r"(?<!\$)\$(?!\$)([^$]+)\$(?!\$)", lambda match: f"\\({match[1]}\\)", text)


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def sets(folder: Path) -> Iterator[tuple[str, str, list[Case]]]:
    """(set, writing, cases) of each that is in the folder."""
    qwen = folder / "Qwen2.5-Math" / "evaluation" / "data"
    harness = folder / "math-evaluation-harness" / "data"
    solutions = [(qwen / "aime24", "solution"), (qwen / "minerva_math", "solution"), (harness / "math", "solution")]
    for place, field in solutions:
        if (path := place / "test.jsonl").exists():
            pairs = [(row[field], read_gold(row[field], BOX)[0]) for row in rows(path)]
            solved = [(text, gold) for text, gold in pairs if gold]
            for writing, write in (("as published", str), (r"\(..\)", parentheses)):
                yield place.name, writing, [(write(text), gold, 1) for text, gold in solved]
    if (path := qwen / "gsm8k" / "test.jsonl").exists():
        yield (
            "gsm8k",
            "as published",
            [(row["answer"], row["answer"].split("####")[1].strip(), 1) for row in rows(path)],
        )
    for name in ("college_math", "olympiadbench"):  # their answers, behind words that a model would write
        if (path := qwen / name / "test.jsonl").exists():
            golds = [row.get("answer") or (row.get("final_answer") or [""])[0] for row in rows(path)]
            for writing, form in (
                ("$..$", "So the answer is $\\boxed{%s}$."),
                (r"\[..\]", "Hence,\n\\[\n\\boxed{%s}\n\\]"),
            ):
                yield name, writing, [(_filled(form, gold), gold, 1) for gold in golds if gold]
    if (path := qwen / "eval_rm_maj_example" / "math_cot_100.jsonl").exists():
        answers = [
            (row["gt"], text, score)
            for row in rows(path)
            for text, score in zip(row["code"], row["score"], strict=True)
        ]
        yield "answers of Qwen2.5-Math", "as written", [(text, gold, int(score)) for gold, text, score in answers]
    for path in sorted(folder.glob("*.jsonl")):
        yield (
            path.stem,
            "as written",
            [(row["text"], str(row["gold"]), int(row["verdict"])) for row in rows(path) if row["verdict"] is not None],
        )


def _filled(form: str, gold: str) -> str:
    inner = gold.strip()
    if inner.count("$") == 2 and inner[0] == inner[-1] == "$":
        inner = inner[1:-1]
    return (form.replace("$", "") if "$" in inner else form) % inner


def by_math_verify(cases: list[Case]) -> int:
    """Right answers that math-verify reads, by its own defaults."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    return sum(verify(parse(f"${gold}$"), parse(text)) for text, gold, right in cases if right)


def measure(folder: Path) -> list[dict]:
    from bandpo.rewards import grade

    rows = []
    for name, writing, cases in sets(folder):
        scores = [g.score for g in grade([case[0] for case in cases], [case[1] for case in cases])]
        count: Callable[[int, int], int] = lambda right, score: sum(  # noqa: E731
            case[2] == right and got == score
            for case, got in zip(cases, scores, strict=True)  # noqa: B023
        )
        right, wrong = count(1, 1) + count(1, 0), count(0, 0) + count(0, 1)
        values = [name, writing, right, count(1, 1), wrong, count(0, 1), by_math_verify(cases), source_commit()]
        rows.append(dict(zip(COLUMNS, values, strict=True)))
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows = measure(args.folder)
    if args.write:
        write_rows(Path(__file__).with_suffix(".csv"), rows)


if __name__ == "__main__":
    main()
