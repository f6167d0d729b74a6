"""Real evaluations, before and after training, through two back ends each: do they agree, and what does a seed fix?

    bandpo train recipes/smollm2/band-kl.yaml rounds=8 threads=1 output=runs/evaluation/smollm2
    bandpo lab --methods band-kl --seeds 1 --rounds 24 -o runs/evaluation/lab
    python -m research.measurements.evaluation --smollm2-after runs/evaluation/smollm2/model --lab-run LAB_RUN --write

The lab's checkpoints answer the lab's questions, through transformers and a server (`transformers serve`, started
here); SmolLM2-135M-Instruct answers the additions that its recipe holds out, through transformers and, with
--vllm-python (an interpreter that has vLLM, see constraints/verl.txt), through vLLM. Each evaluation is a `bandpo eval`
command, which goes on where it was stopped. `--write` puts the rows into evaluation.csv:

- kind `score`: mean@n and pass@n of one evaluation, with their 95 % intervals;
- kind `after - before` and `back ends`: a difference, with its intervals and p-values;
- kind `same samples`: the share of samples that are the same to the letter when they share their batch with others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bandpo_runs import toy
from bandpo_runs.data import question_sets
from bandpo_runs.evals.folder import read_graded, read_metadata, read_samples
from bandpo_runs.provenance import source_commit
from bandpo_runs.statistics.comparison import compare
from bandpo_runs.statistics.intervals import summarize
from bandpo_runs.training.models import locate
from research.csv_rows import write_rows

RECIPE = "recipes/smollm2/band-kl.yaml"
MAIN = "import sys; from bandpo_runs.cli import main; sys.exit(main(sys.argv[1:]))"
# vLLM on a CPU.
VLLM = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "ERROR"}
VLLM |= {"TORCH_COMPILE_DISABLE": "1"}  # it would take longer than these few samples


def run(python: str, out: Path, model: str, *options: str) -> Path:
    """`bandpo eval` into a folder."""
    command = ["eval", model, *options, "-o", str(out)]
    print("bandpo", shlex.join(command), flush=True)
    environment = os.environ | VLLM | {"PYTHONPATH": os.pathsep.join(["src", os.environ.get("PYTHONPATH", "")])}
    subprocess.run([python, "-c", MAIN, *command], check=True, env=environment)
    return out


@contextlib.contextmanager
def served(model: str) -> Iterator[str]:
    """`transformers serve` with one model."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).parent / "transformers"), "serve", model, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://localhost:{port}/health", timeout=5):
                break
            time.sleep(0.2)
        yield f"http://localhost:{port}/v1"
    finally:
        process.kill()
        process.wait()


def score_row(folder: Path) -> dict[str, Any]:
    facts, (graded,) = read_metadata(folder), read_graded(folder)
    n, summary = facts["sampling"]["n"], summarize(graded)
    row = {"kind": "score", "case": folder.name, "backend": facts["backend"], "data": graded.data}
    row |= {"prompts": len(graded.score), "samples": n}
    for name, metric in (("mean", f"mean@{n}"), ("pass", f"pass@{n}")):
        row[name] = round(summary[metric]["value"], 4)
        for which in ("sampling", "clustered"):
            low, high = summary[metric][f"{which}_error"]
            row[f"{name}_{which}"] = f"{low:.4f}..{high:.4f}"
    row |= {"truncated": round(summary["truncated"]["value"], 4), "unparsed": round(summary["unparsed"]["value"], 4)}
    row |= {"seconds": facts["wall_seconds"], "hardware": facts["hardware"] or ""}
    return row | {"versions": " ".join(f"{k} {v}" for k, v in facts["versions"].items())}


def difference_row(kind: str, a: Path, b: Path) -> dict[str, Any]:
    (comparison,) = compare(read_graded(a), read_graded(b))
    row = {"kind": kind, "case": f"{b.name} - {a.name}", "data": comparison.data, "prompts": comparison.prompts}
    row["mean"] = round(comparison.difference, 4)
    for which, error in (("sampling", comparison.sampling_error), ("clustered", comparison.clustered_error)):
        row |= {f"p_{which}": error.p, f"mean_{which}": f"{error.interval.low:.4f}..{error.interval.high:.4f}"}
    return row


def same_row(a: Path, b: Path) -> dict[str, Any]:
    one, other = ({s.key: s for s in read_samples(folder)} for folder in (a, b))
    both = one.keys() & other.keys()
    same = sum(one[key] == other[key] for key in both)
    tokens = sum(other[key].tokens for key in both)
    row = {"kind": "same samples", "case": f"{b.name} and {a.name}", "backend": read_metadata(a)["backend"]}
    return row | {"samples": len(both), "mean": round(same / len(both), 4), "tokens": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", type=locate, default="smollm2")
    parser.add_argument("--smollm2-after")
    parser.add_argument("--lab-run")
    parser.add_argument("--vllm-python")
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/evaluation/out"))
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def pair(folders: dict[str, list[Path]]) -> None:
        for when in folders:
            rows.extend(map(score_row, folders[when]))
            if len(folders[when]) == 2:
                rows.append(difference_row("back ends", *folders[when]))
        for before, after in zip(*folders.values(), strict=True):
            rows.append(difference_row("after - before", before, after))

    if args.lab_run:
        start, _ = toy.warm_start(toy.SCENES["tail"].p_work, 0)
        folders = {}
        for when, model in (("before", str(start)), ("after", f"{args.lab_run}/model")):
            # The longest answers have 6 tokens; `transformers serve` calls an answer of max_tokens cut, ended or not.
            common = ["--data", "lab", "-n", "32", "--max-tokens", "8", "--label", f"lab, {when}"]
            here = run(sys.executable, args.output / f"lab-{when}-transformers", model, *common)
            with served(model) as url:
                options = [*common, "--scorer", "lab", "--base-url", url, "--concurrency", "4", "-n", "8"]
                # What `transformers serve` takes: no fields of vLLM, and its own settings as JSON in a text.
                body = "top_k=null,min_p=null,repetition_penalty=null,generation_config='{\"do_sample\": true}'"
                options += ["--body", body]
                there = run(sys.executable, args.output / f"lab-{when}-server", model, *options)
            folders[when] = [here, there]
        pair(folders)

    if args.smollm2_after:
        # As a file: the interpreter with vLLM need not have reasoning_gym.
        file = args.output / "chain_sum.jsonl"
        args.output.mkdir(parents=True, exist_ok=True)
        held_out = question_sets.read(RECIPE).questions
        file.write_text("".join(json.dumps({"prompt": q.content, "answer": q.answer}) + "\n" for q in held_out))
        common = ["--data", str(file), "--no-chat", "--scorer", "last-number", "--max-tokens", "16"]
        pythons = {"transformers": sys.executable} | ({"vllm": args.vllm_python} if args.vllm_python else {})
        folders, n = {}, {"transformers": "16", "vllm": "8"}
        for when, model in (("before", args.smollm2), ("after", args.smollm2_after)):
            folders[when] = [
                run(
                    python,
                    args.output / f"smollm2-{when}-{backend}",
                    model,
                    *common,
                    "--backend",
                    backend,
                    "-n",
                    n[backend],
                )
                for backend, python in pythons.items()
            ]
        pair(folders)
        for backend, python in pythons.items():
            # The first 12 questions alone, in batches of 5: every answer shares its batch with others than before.
            alone = [*common, "--limit", "12", "--backend", backend, "-n", n[backend]]
            alone += ["--batch-size", "5"] if backend == "transformers" else []
            other = run(python, args.output / f"smollm2-alone-{backend}", args.smollm2, *alone)
            rows.append(same_row(args.output / f"smollm2-before-{backend}", other))

    names = list(dict.fromkeys(key for row in rows for key in row))
    for row in rows:
        print({key: value for key, value in row.items() if key not in ("versions", "hardware")})
    if args.write:
        command = shlex.join(["python", "-m", "research.measurements.evaluation", *sys.argv[1:]])
        rows = [{**row, "commit": source_commit(), "command": command} for row in rows]
        write_rows(Path(__file__).with_suffix(".csv"), rows, [*names, "commit", "command"])


if __name__ == "__main__":
    main()
