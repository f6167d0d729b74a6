"""`bandpo calibrate`: what it reads, what it says, and one line for every mistake."""

import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from commands import missing, refusal
from disk import contents, json_rows, write
from scripts import load

import bandpo
from bandpo_runs.reports.tokens import read_tokens


def rows(count=60, seed=0, padded=False):
    """Responses, as lists; those that are padded have garbage behind the mask."""
    generator, made = np.random.default_rng(seed), []
    for i in range(count):
        n = int(generator.integers(5, 40))
        p = generator.beta(0.7, 0.4, n).clip(1e-4, 1 - 1e-6)
        odds = np.log(p) - np.log1p(-p) + 0.4 * generator.standard_normal(n)
        old, new = np.log(p).tolist(), (-np.log1p(np.exp(-odds))).tolist()
        row = {"response_id": f"r{i}", "advantage": float(generator.standard_normal())}
        if padded:
            more = 40 - n
            row |= {"completion_mask": [1] * n + [0] * more, "advantage": [row["advantage"]] * 40}
            old, new = old + [math.nan] * more, new + [7.0] * more
        made.append(row | {"old_logps": old, "logps": new})
    return made


@pytest.fixture
def here(here, monkeypatch):
    monkeypatch.setattr("bandpo_runs.progress.console.width", 200)
    write("tokens.jsonl", rows())
    return here


@pytest.mark.parametrize("is_padded", [False, True])
def test_padded_responses_hold_the_same_tokens(tmp_path, is_padded):
    made = rows()
    tokens = read_tokens([write(tmp_path / "a.jsonl", rows(padded=is_padded))])
    lengths = [len(row["logps"]) for row in made]
    for array, expected in (
        (tokens.old, np.concatenate([row["old_logps"] for row in made])),
        (tokens.log_ratio, np.concatenate([np.subtract(row["logps"], row["old_logps"]) for row in made])),
        (tokens.responses, np.repeat(np.arange(60), lengths)),
        (tokens.advantages, np.repeat([row["advantage"] for row in made], lengths)),
    ):
        np.testing.assert_array_equal(array, expected)
    columns = {"old": "old_logps", "new": "logps", "advantage": "advantage", "response": "response_id"}
    columns |= {"mask": "completion_mask"} if is_padded else {}
    assert (tokens.count, tokens.response_count, tokens.columns) == (sum(lengths), 60, columns)


def test_a_folder_stands_for_the_files_of_its_processes(tmp_path):
    files = [write(tmp_path / f"tokens-{i}.jsonl", rows(20, seed=i)) for i in range(2)]
    for folder in (tmp_path, tmp_path / "none"):
        write(folder / "trainer_log.jsonl", "not of tokens\n")
    found = read_tokens([tmp_path])
    np.testing.assert_array_equal(found.old, read_tokens(files).old)
    assert found.response_count == 40
    assert "no tokens-*.jsonl is in the folder " in refusal(read_tokens, [tmp_path / "none"])


@pytest.mark.parametrize(
    ("row", "log_ratio", "advantages"),
    [
        ({"old_per_token_logps": [-1.0, -2.0], "per_token_logps": [-1.5, -2.0], "advantages": [1.0, 2.0]},
         [-0.5, 0.0], [1.0, 2.0]),
        ({"old_log_probs": [-1.0], "log_prob": [-0.5], "rollout_log_probs": [-0.25]}, [0.5], None),
    ],
)  # fmt: skip
def test_columns_by_their_names_in_trl_and_verl(tmp_path, row, log_ratio, advantages):
    found = read_tokens([write(tmp_path / "a.jsonl", [row])])
    assert (found.log_ratio.tolist(), found.responses.tolist()) == (log_ratio, [0] * len(log_ratio))
    assert (None if found.advantages is None else found.advantages.tolist()) == advantages


def test_it_says_what_it_found_and_what_to_paste(here, cli):
    out = cli.out("calibrate", "tokens.jsonl", "--rule", "band:kl,clip:0.2:0.28")
    of = read_tokens([Path("tokens.jsonl")])
    outside = np.abs(np.expm1(of.log_ratio)) > 0.2
    rare = (of.old <= math.log(0.2))[outside].mean()
    node, trl = (next(x for x in out.splitlines() if x.startswith(name)) for name in ("  trust_region: ", "TRL"))
    region = bandpo.trust_regions.trust_region(yaml.safe_load(node)["trust_region"])
    assert not missing(
        out, f"{of.count:,} tokens of 60 responses in tokens.jsonl; columns old_logps (old), ",
        f"With GRPO 0.2/0.2 {100 * outside.mean():.3g} % of your tokens are outside their bounds ({100 * rare:.3g} % ",
        f"Band-KL has as many at delta = {region.delta:g} (95 % interval ",
        f"policy_loss.trust_region={{type: band, divergence: kl, delta: {region.delta}",
    )  # fmt: skip
    assert bandpo.trust_regions.trust_region(json.loads(trl.partition("=")[2].rpartition(", ...")[0])) == region


def test_json_has_all_numbers(here, cli):
    data = cli.json(
        *["calibrate", "tokens.jsonl", "--rate", "0.05", "--cut", "--json", "--rule", "band,ripo,clip:0.001:0.2"]
    )
    head = {"cut": True, "level": 0.95, "rate": pytest.approx(0.05), "reference": None}
    assert {name: data[name] for name in head} == head
    band, ripo, clip = data["rules"]
    assert band["interval"][0] <= band["exact"] <= band["value"]
    assert band["measured"]["rate"] == pytest.approx(0.05, abs=0.01)
    assert bandpo.trust_regions.trust_region(ripo["measured"]["node"]) == bandpo.trust_regions.RIPO(ripo["value"])
    # The lower side alone, at 0.001, cuts more.
    assert (clip["value"], clip["measured"], clip["interval"]) == (None, None, None)
    assert clip["why"].endswith("whatever eps_high is; that is more than you asked for")


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ("--match clip:0.5:2 --rule band:kl,clip:0.0001:0.2", "Clip 0.0001/0.2, eps_high: no number was found: "),
        ("--rate 0.01 --rule clip:0.0001:0.2", "asked for 1 % of the tokens. No rule has as many, at any number"),
        ("--cut --rule '{type: capped, region: {type: band}}' --parameter max_ratio", " of your tokens are clipped ("),
    ],
)
def test_rules_without_a_number(here, cli, args, text):
    assert text in cli.out("calibrate", "tokens.jsonl", *shlex.split(args))


GOOD = {"old_logps": [-1.0, -2.0], "logps": [-1.5, -2.0]}
BAD = {  # what a file holds, and why not
    "no file": (None, "a.jsonl: No such file"),
    "empty": ([], "a.jsonl has no tokens"),
    "blank": (["", " "], "a.jsonl has no tokens"),
    "no JSON": ([GOOD, "x"], "a.jsonl, row 2: corrupt: one JSON object is expected"),
    "no old": ([{"logps": [1], "x": 2}], "has no column of old log-probabilities (docs/run.md says how to write them)"),
    "no new": ([{"old_logps": [1], "x": 2}], "log_prob, new_logps, new_log_probs; it has old_logps, x"),
    "verl": ([{"input": "", "output": "", "gts": "", "score": 1}], "has no column of old log-probabilities"),
    "a text": ([{**GOOD, "logps": "x"}], "a.jsonl, row 1: 'logps' is 'x'; a list of numbers is expected"),
    "a number": ([{**GOOD, "logps": -1.0}], "a.jsonl, row 1: 'logps' is -1.0; a list of numbers is expected"),
    "nothing": ([GOOD, {"logps": [1]}], "a.jsonl, row 2: 'old_logps' is None; a list of numbers is expected"),
    "null": ([{**GOOD, "logps": [-1.0, None]}], "row 1: 'logps' is [-1.0, None]; a list of numbers is expected"),
    "rounding": ([{**GOOD, "logps": [x - 1e-8 for x in GOOD["old_logps"]]}], "every ratio is 1"),
    "lengths": ([GOOD, {**GOOD, "logps": [-1.0]}], "row 2: 'logps' has 1 values, 'old_logps' has 2"),
    "a mask": ([{**GOOD, "mask": 1}], "'mask' is 1; a list of numbers is expected"),
    "NaN": ([GOOD, {**GOOD, "logps": [math.nan, -1]}], "row 2: 'logps' is nan; a number is expected; is it pad"),
    "probabilities": ([{"old_logps": [0.5], "logps": [0.4]}], "'old_logps' is 0.5; log-probabilities are at most 0;"),
    "impossible": ([{**GOOD, "old_logps": [-math.inf, -1]}], "'old_logps' is -inf; a token of probability 0 can"),
    "mask": ([{**GOOD, "mask": [1, 0.5]}], "row 1: 'mask' is 0.5; 0 and 1 are expected"),
    "all masked": ([{**GOOD, "mask": [0, 0]}], "a.jsonl has no tokens where the mask is 1"),
    "no tokens": ([{"old_logps": [], "logps": []}], "a.jsonl has no tokens"),
    "advantage": ([{**GOOD, "advantage": math.nan}], "row 1: 'advantage' is nan; a number is"),
    "no advantage": ([{**GOOD, "advantage": "x"}], "row 1: 'advantage' is ['x', 'x']; a list of numbers is expected"),
    "response": ([{**GOOD, "response_id": [1]}], "row 1: 'response_id' is [1]; a name or a number is expected"),
    "ratio 1": ([{**GOOD, "logps": [-1.0, -2.0]}], "clipping has no effect: every ratio is 1. Each batch gets one"),
}


ARGUMENTS = {
    "--rate 1.5": "invalid value for '--rate': must be a probability in (0, 1], got '1.5'",
    "--rate 0.1 --match clip --cut --json --rule band,ripo": "error: --rate and --match exclude each other; leave out",
    "--rule bnd": "invalid value for '--rule': no method or rule is called 'bnd', did you mean 'band'?",
    "--rule gspo": "invalid value for '--rule': 'gspo' has one ratio for a response; give a rule of a token's ratio",
    "--parameter delta": "--parameter is a field of one rule; --rule must give one, got 0",
    "--rule band --parameter eps": "--parameter: Band-KL 0.05 has no number 'eps'; it has ['delta']",
    "--match clip:1.0:100": "none of ",
    "tokens.jsonl": "tokens.jsonl: given twice",
    "./tokens.jsonl": "tokens.jsonl: given twice",
}
WRONG = {
    **{name: (made, "a.jsonl", message) for name, (made, message) in BAD.items()},
    **{args: ([], f"tokens.jsonl {args}", message) for args, message in ARGUMENTS.items()},
    "no advantages to cut by": ([GOOD], "a.jsonl --cut --rate 0.1", "where their advantages are"),
}


@pytest.mark.parametrize(("made", "args", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_one_line_and_nothing_is_written(here, cli, made, args, message):
    if made is not None:
        write("a.jsonl", "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in made))
    before = contents(here)
    assert (message in cli.error("calibrate", *shlex.split(args)), contents(here)) == (True, before)


def test_what_the_example_writes_is_read(here):
    write = load("examples/write_tokens.py").write
    logps, advantages = torch.tensor([[-1.0, -2.0], [-3.0, -9.0]]), torch.tensor([1.0, -1.0])
    mask = torch.tensor([[1, 1], [1, 0]])
    with Path("a.jsonl").open("w") as file:
        write(file, logps - 0.5, logps.requires_grad_(), advantages, mask, ["a", "b"])
    found = read_tokens([Path("a.jsonl")])
    arrays = (found.log_ratio, found.advantages, found.responses)
    assert [array.tolist() for array in arrays] == [[0.5] * 3, [1.0, 1.0, -1.0], [0, 0, 1]]


@pytest.mark.slow
def test_a_known_radius_is_recovered_from_a_run_of_the_lab(here, monkeypatch, cli):
    """The rate of Band-KL 0.05 in half of the responses asks for 0.05 in the other half."""
    example = load("examples/tokens.py")
    monkeypatch.setattr(example, "ROUNDS", 8)
    example.main()
    tokens = json_rows(Path("runs/tokens/tokens-0.jsonl"))
    for i, name in enumerate("ab"):
        write(f"{name}.jsonl", [row for row in tokens if int(row["response_id"], 16) % 2 == i])
    cli.capsys.readouterr()
    one = cli.json(*["calibrate", "a.jsonl", "--match", "band-kl", "--rule", "band-kl", "--json"])
    assert one["rules"][0]["value"] == pytest.approx(0.05, rel=0.02)
    assert one["responses"] < one["tokens"] / 10
    other = cli.json("calibrate", "b.jsonl", "--rate", one["rate"], "--rule", "band-kl", "--json")
    low, high = other["rules"][0]["interval"]
    assert low <= 0.05 <= high
