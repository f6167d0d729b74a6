"""`bandpo calibrate`: what it reads, what it says, and one line for every mistake."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
import yaml
from scripts import load

import bandpo
from bandpo_runs.cli import main
from bandpo_runs.reports.tokens import read_tokens


def rows(count=60, seed=0):
    """Responses, as lists."""
    generator, made = np.random.default_rng(seed), []
    for i in range(count):
        n = int(generator.integers(5, 40))
        p = generator.beta(0.7, 0.4, n).clip(1e-4, 1 - 1e-6)
        odds = np.log(p) - np.log1p(-p) + 0.4 * generator.standard_normal(n)
        made.append(
            {
                "response_id": f"r{i}",
                "old_logps": np.log(p).tolist(),
                "logps": (-np.log1p(np.exp(-odds))).tolist(),
                "advantage": float(generator.standard_normal()),
            }
        )
    return made


def per_token(made):
    return [
        {"response_id": row["response_id"], "old_logps": a, "logps": b, "advantage": row["advantage"]}
        for row in made
        for a, b in zip(row["old_logps"], row["logps"], strict=True)
    ]


def padded(made):
    out = []
    for row in made:
        more = 40 - len(row["logps"])
        mask = [1] * len(row["logps"]) + [0] * more
        padding = {"old_logps": row["old_logps"] + [math.nan] * more, "logps": row["logps"] + [7.0] * more}
        out.append({**row, **padding, "completion_mask": mask, "advantage": [row["advantage"]] * 40})
    return out


def write(path, made):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(made), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in made))
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("bandpo_runs.progress.console.width", 200)
    write(Path("tokens.jsonl"), rows())
    return tmp_path


FORMS = {"responses": lambda made: made, "tokens": per_token, "padded": padded}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_all_forms_hold_the_same_tokens(tmp_path, form, suffix):
    made = rows()
    found = read_tokens([write(tmp_path / f"a{suffix}", FORMS[form](made))])
    np.testing.assert_array_equal(found.old, np.concatenate([row["old_logps"] for row in made]))
    moved = np.concatenate([np.subtract(row["logps"], row["old_logps"]) for row in made])
    np.testing.assert_array_equal(found.log_ratio, moved)
    lengths = [len(row["logps"]) for row in made]
    np.testing.assert_array_equal(found.responses, np.repeat(np.arange(60), lengths))
    np.testing.assert_array_equal(found.advantages, np.repeat([row["advantage"] for row in made], lengths))
    assert (found.count, found.response_count) == (sum(lengths), 60)
    mask = {"mask": "completion_mask"} if form == "padded" else {}
    assert found.columns == {
        "old": "old_logps", "new": "logps", "advantage": "advantage", "response": "response_id", **mask,
    }  # fmt: skip


def test_columns_by_their_names_in_trl_and_verl_and_by_options(tmp_path):
    made = [{"old_per_token_logps": [-1.0, -2.0], "per_token_logps": [-1.5, -2.0], "advantages": [1.0, 2.0]}]
    assert read_tokens([write(tmp_path / "a.jsonl", made)]).log_ratio.tolist() == [-0.5, 0.0]
    made = [{"old_log_probs": -1.0, "log_prob": -0.5, "rollout_log_probs": -0.25}]
    path = write(tmp_path / "b.jsonl", made)
    found = read_tokens([path])
    assert (found.log_ratio.tolist(), found.responses, found.advantages) == ([0.5], None, None)
    assert read_tokens([path], {"old": "rollout_log_probs"}).log_ratio.tolist() == [-0.25]


def test_it_says_what_it_found_and_what_to_paste(here, capsys):
    assert main(["calibrate", "tokens.jsonl", "--rule", "band:kl,clip:0.2:0.28"]) == 0
    out = capsys.readouterr().out
    of = read_tokens([Path("tokens.jsonl")])
    outside = np.abs(np.expm1(of.log_ratio)) > 0.2
    rare = (of.old <= math.log(0.2))[outside].mean()
    first, second, *_ = out.splitlines()
    assert first.startswith(
        f"{of.count:,} tokens of 60 responses in tokens.jsonl; columns old_logps (old), logps (new)"
    )
    said = (
        f"At your ratios GRPO 0.2/0.2 stops {100 * outside.mean():.3g} % of the tokens ({100 * rare:.3g} % of these are"
    )
    assert second.startswith(said)
    node = yaml.safe_load(next(line for line in out.splitlines() if line.startswith("  trust_region: ")))
    region = bandpo.trust_regions.trust_region(node["trust_region"])
    assert f"Band-KL stops as many at delta = {region.delta:g} (95 % interval " in second
    assert (
        f"verl  '+actor_rollout_ref.actor.policy_loss.trust_region={{type: band, divergence: kl, delta: {region.delta}"
        in out
    )
    shown = next(line for line in out.splitlines() if line.startswith("TRL"))
    assert bandpo.trust_regions.trust_region(json.loads(shown.partition("=")[2].rpartition(", ...")[0])) == region
    assert "Outside: beyond its interval" in out


def test_json_has_all_numbers(here, capsys):
    args = "calibrate tokens.jsonl --rate 0.05 --among negative --json"
    assert main([*shlex.split(args), "--rule", "band,ripo,band:tv,clip:0.001:0.2", "--match", "clip"]) == 2
    assert capsys.readouterr().err == "error: --rate and --match exclude each other; leave out one\n"
    assert main([*shlex.split(args), "--rule", "band,ripo,clip:0.001:0.2"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["among"], data["cut"], data["level"]) == ("negative", True, 0.95)
    assert data["rate"] == pytest.approx(0.05)
    assert data["reference"] is None
    band, ripo, clip = data["rules"]
    assert band["interval"][0] <= band["exact"] <= band["value"]
    assert band["measured"]["low"] == band["measured"]["rate"] == pytest.approx(0.05, abs=0.01)
    assert bandpo.trust_regions.trust_region(ripo["measured"]["node"]) == bandpo.trust_regions.RIPO(ripo["value"])
    # The lower side is 0.001 already, and the upper one cuts none of them.
    assert (clip["value"], clip["measured"], clip["interval"]) == (None, None, None)
    assert clip["why"].endswith("whatever eps_high is, which is more than wanted")


def test_the_tail_and_rules_without_a_number(here, capsys):
    rules = "band:kl,clip:0.0001:0.2"
    assert main(["calibrate", "tokens.jsonl", "--match", "clip:0.5:2", "--among", "tail", "--rule", rules]) == 0
    out = capsys.readouterr().out
    assert "of the rare tokens (p <= 0.2). Band-KL stops as many at delta = " in out
    assert "eps_high: none" in out
    assert "Clip 0.0001/0.2, eps_high: not found: " in out
    assert main(["calibrate", "tokens.jsonl", "--rate", "0.01", "--rule", "clip:0.0001:0.2"]) == 0
    assert "You asked for 1 % of the tokens. No number of any of the rules does the same." in capsys.readouterr().out
    assert main(["calibrate", "tokens.jsonl", "--cut", "--rule", "capped:band", "--parameter", "max_ratio"]) == 0
    assert "GRPO 0.2/0.2 cuts " in capsys.readouterr().out


GOOD = {"old_logps": [-1.0, -2.0], "logps": [-1.5, -2.0]}
BAD = [
    ("gone.jsonl", None, "'gone.jsonl' is not a file"),
    ("a.csv", "old,new", "'a.csv' must end in one of ['.jsonl', '.parquet']"),
    ("a.jsonl", "\n \n", "a.jsonl has no rows"),
    ("a.jsonl", [GOOD, "x"], "a.jsonl, row 2: corrupt: one JSON object is expected"),
    ("a.parquet", "x", "a.parquet cannot be read: "),
    (
        "a.jsonl",
        [{"logps": 1, "x": 2}],
        "a.jsonl has no column of old log-probabilities (docs/run.md says how to write",
    ),
    ("a.jsonl", [{"old_logps": 1, "x": 2}], "it has old_logps, x. --new names it"),
    ("a.jsonl", [{"input": "", "output": "", "gts": "", "score": 1}], "has no column of old log-probabilities"),
    ("a.jsonl", [{**GOOD, "logps": "x"}], "a.jsonl, row 1: 'logps' is 'x'; a number or a list of numbers is"),
    ("a.parquet", [{"old_logps": "x", "logps": "y"}], "a.parquet, row 1: 'old_logps' is 'x'; a number or a list"),
    ("a.jsonl", [GOOD, {"logps": [1]}], "a.jsonl, row 2: 'old_logps' is None; a number or a list of numbers"),
    ("a.parquet", [GOOD, {**GOOD, "logps": [-1.0, None]}], "row 2: 'logps' is [-1.0, None]; a number or"),
    ("a.jsonl", [GOOD, {**GOOD, "logps": [-1.0]}], "row 2: 'logps' has 1 values, 'old_logps' has 2"),
    ("a.jsonl", [GOOD, {**GOOD, "logps": -1.0}], "row 2: 'logps' must be a list like 'old_logps'"),
    ("a.jsonl", [{"old_logps": -1, "logps": -2, "advantage": [1]}], "'advantage' must be a number like 'old_l"),
    ("a.jsonl", [GOOD, {**GOOD, "logps": [math.nan, -1]}], "'logps' is nan; a number is expected; is it pad"),
    ("a.jsonl", [{"old_logps": [0.5, 0.2], "logps": [0.4, 0.1]}], "(and 1 more); log-probabilities are at"),
    ("a.jsonl", [{**GOOD, "old_logps": [-math.inf, -1]}], "'old_logps' is -inf; a token of probability 0 can"),
    ("a.jsonl", [{**GOOD, "mask": [1, 0.5]}], "row 1: 'mask' is 0.5; 0 and 1 are expected"),
    ("a.jsonl", [{**GOOD, "mask": [0, 0]}], "a.jsonl has no tokens where the mask is 1"),
    ("a.jsonl", [{**GOOD, "advantage": math.nan}], "row 1: 'advantage' is nan (and 1 more); a number is"),
    ("a.jsonl", [{**GOOD, "response_id": [1]}], "row 1: 'response_id' is [1]; a name or a number is expected"),
    ("a.jsonl", [{**GOOD, "logps": [-1.0, -2.0]}], "every ratio is 1, so no rule acts: either each batch is"),
]


@pytest.mark.parametrize(("name", "made", "message"), BAD)
def test_bad_input_is_one_line(here, capsys, name, made, message):
    if isinstance(made, str):
        Path(name).write_text(made)
    elif made is not None and name.endswith(".jsonl"):
        Path(name).write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in made))
    elif made is not None:
        write(Path(name), made)
    assert main(["calibrate", name]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


ARGUMENTS = {
    "--rate 1.5": "invalid value for '--rate': must be a probability in (0, 1], got '1.5'",
    "--rate 0.1 --match clip": "--rate and --match exclude each other; leave out one",
    "--among rare": "invalid value for '--among': 'rare' is not one of 'all', 'tail', 'positive', 'negative'",
    "--rule bnd": "invalid value for '--rule': no method or rule is called 'bnd', did you mean 'band'?",
    "--rule gspo": "invalid value for '--rule': 'gspo' has one ratio for a response; give a rule of a token's ratio",
    "--parameter delta": "--parameter is a field of one rule; --rule must give one, got 0",
    "--rule band --parameter eps": "--parameter: Band-KL 0.05 has no number 'eps'; it has ['delta']",
    "--old oldlogps": "tokens.jsonl has no column 'oldlogps' (--old), did you mean 'old_logps'?; it has response_id, ",
    "--old logps": "tokens.jsonl: --old and --new are the same column, 'logps'",
    "--match clip:1.0:100": "leaves none of ",
    "--rule decaying-band": "needs more than old log-probabilities and advantages",
}


@pytest.mark.parametrize(("args", "message"), ARGUMENTS.items(), ids=ARGUMENTS)
def test_wrong_arguments_are_one_line(here, capsys, args, message):
    assert main(["calibrate", "tokens.jsonl", *shlex.split(args)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert message in err
    assert not [path for path in here.iterdir() if path.name != "tokens.jsonl"]


ROOT = Path(__file__).parent.parent.parent


def test_what_the_page_writes_is_read(here):
    page = (ROOT / "docs" / "run.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(import json\n\ndef write.*?)```", page, re.DOTALL)[0], names)
    logps, advantages = torch.tensor([[-1.0, -2.0], [-3.0, -9.0]]), torch.tensor([1.0, -1.0])
    mask = torch.tensor([[1, 1], [1, 0]])
    with Path("a.jsonl").open("w") as file:
        names["write"](file, logps - 0.5, logps.requires_grad_(), advantages, mask, ["a", "b"])
    found = read_tokens([Path("a.jsonl")])
    assert found.log_ratio.tolist() == [0.5, 0.5, 0.5]
    assert found.advantages.tolist() == [1.0, 1.0, -1.0]
    assert found.responses.tolist() == [0, 0, 1]


@pytest.mark.slow
def test_a_known_radius_is_recovered_from_a_run_of_the_lab(here, monkeypatch, capsys):
    """The rate of Band-KL 0.05 in half of the responses asks for 0.05 in the other half."""
    example = load("examples/tokens.py")
    monkeypatch.setattr(example, "ROUNDS", 8)
    example.main()
    halves = [[], []]
    for line in Path("runs/tokens/tokens-0.jsonl").read_text().splitlines():
        halves[int(json.loads(line)["response_id"], 16) % 2].append(line)
    for path, half in zip((Path("a.jsonl"), Path("b.jsonl")), halves, strict=True):
        path.write_text("\n".join(half))
    capsys.readouterr()
    assert main(["calibrate", "a.jsonl", "--match", "band-kl", "--rule", "band-kl", "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["rules"][0]["value"] == pytest.approx(0.05, rel=0.02)
    assert one["responses"] < one["tokens"] / 10
    assert main(["calibrate", "b.jsonl", "--rate", str(one["rate"]), "--rule", "band-kl", "--json"]) == 0
    low, high = json.loads(capsys.readouterr().out)["rules"][0]["interval"]
    assert low <= 0.05 <= high
