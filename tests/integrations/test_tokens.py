"""What a run writes of its tokens, against what its trainer had; what a kill leaves; what is refused."""

import json
import math

import pytest
import torch
from disk import json_rows as rows
from test_trl import train

import tiny
from bandpo import Clip
from bandpo.errors import UserError
from bandpo.integrations.run_state import TokenWriter
from bandpo.integrations.trl import BandPOConfig, BandPOTrainer
from bandpo_runs.reports.calibration import calibrate
from bandpo_runs.reports.tokens import read_tokens


def micro_batch(seed=0, count=40):
    """Log-probabilities with padding on both sides of some responses; advantages of each response."""
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(count, 7, generator=generator) * 3
    new = old + 0.3 * torch.randn(count, 7, generator=generator)
    mask = torch.ones(count, 7, dtype=torch.long)
    mask[::3, 4:], mask[1::3, :2] = 0, 0
    return old, new.clamp(max=0), torch.randn(count, generator=generator), mask


def write(writer, step, seed=0, batch=0):
    writer.write(step, *micro_batch(seed), batch=batch)


def test_what_is_written_is_what_was_given(tmp_path):
    old, new, advantages, mask = micro_batch()
    mask[5] = 0  # without a token of its own there is nothing to write
    new[6, 5], old[6, 4] = math.nan, -math.inf  # in padding
    new[9, 1], old[10, 2] = math.nan, -math.inf  # and not
    writer = TokenWriter(tmp_path / "new" / "folder", 1.0, 3)
    writer.write(2, old, new.requires_grad_(), advantages, mask, batch=0)
    found = rows(tmp_path / "new" / "folder" / "tokens-3.jsonl")
    for row, i in zip(found, [i for i in range(40) if i not in (5, 9, 10)], strict=True):
        inside = mask[i].bool()
        written = [torch.tensor(row[name]) for name in ("old_logps", "logps", "advantage")]
        assert all(map(torch.equal, written, (old[i][inside], new[i][inside], advantages[i])))  # to the last bit
    assert len({row["response_id"] for row in found}) == 37
    writer.write(3, old[:1], new[:1], advantages[:1, None].expand(1, 7), mask[:1], batch=0)
    assert rows(writer.path)[-1]["advantage"] == [pytest.approx(advantages[0].item())] * 4
    assert [row["step"] for row in rows(writer.path)] == [2] * 37 + [3]


def test_a_response_is_in_all_steps_that_use_it_or_in_none(tmp_path):
    writer = TokenWriter(tmp_path, 0.3, 0)
    old, new, advantages, mask = micro_batch(count=1000)
    for step in range(3):
        order = torch.randperm(1000)
        moved = new - step / 10
        writer.write(step, old[order], moved[order], advantages[order], mask[order], batch=0)
    names = [{row["response_id"] for row in rows(writer.path) if row["step"] == step} for step in range(3)]
    assert names[0] == names[1] == names[2]
    assert 240 < len(names[0]) < 360
    writer.write(3, old, new, advantages, mask, batch=1)  # the same numbers, generated anew: another response
    assert not names[0] & {row["response_id"] for row in rows(writer.path) if row["step"] == 3}


LIMIT = 40_000


def long_run(writer, steps, begin=0):
    for step in range(begin, steps):
        old, new, advantages, mask = micro_batch(seed=step // 4, count=80)  # each batch is used in four steps
        for part in (slice(40), slice(40, 80)):
            writer.write(step, old[part], new[part], advantages[part], mask[part], batch=step // 4)
            assert writer.path.stat().st_size <= writer.limit


def test_a_limit_holds_for_any_length_of_a_run_and_the_sample_is_fair(tmp_path):
    full, thin = TokenWriter(tmp_path / "full", 1.0, 0), TokenWriter(tmp_path / "thin", 1.0, 0, limit=LIMIT)
    long_run(thin, 60)
    assert thin.path.stat().st_size > LIMIT / 4
    for step in range(60):
        old, new, advantages, mask = micro_batch(seed=step // 4, count=80)
        full.write(step, old, new, advantages, mask, batch=step // 4)
    every, found = rows(full.path), rows(thin.path)
    assert {row["share"] for row in found} == {thin.share} != {1.0}
    names = {
        row["response_id"]
        for row in every
        if int.from_bytes(bytes.fromhex(row["response_id"]), "little") < thin.share * 2**64
    }
    assert [row | {"share": 1.0} for row in found] == [row for row in every if row["response_id"] in names]
    halves = [sum((row["step"] < 28) == early for row in found) for early in (True, False)]
    assert min(halves) > 0.3 * len(found)  # of the whole run
    thin.replaces = True
    write(thin, 0)  # the same trainer begins anew
    assert (thin.share, len(rows(thin.path))) == (1.0, 40)


RESUMED = [
    *((math.inf, 8, 5, *each) for each in ((3, b""), (5, b'{"step": 4, "old_lo'), (5, b'{"step": 4}'))),
    *((LIMIT, 80, *each, b"") for each in ((60, 40), (30, 4), (7, 4), (60, 0))),
]


@pytest.mark.parametrize(("limit", "steps", "killed_at", "begin", "torn"), RESUMED)
def test_resuming_writes_no_step_twice_and_loses_none(tmp_path, limit, steps, killed_at, begin, torn):
    whole, killed, resumed = (TokenWriter(tmp_path / x, 1.0, 0, limit=limit) for x in ("whole", "killed", "killed"))
    long_run(whole, steps)
    long_run(killed, killed_at)
    killed.path.write_bytes(killed.path.read_bytes() + torn)
    if begin == 0:
        killed.path.unlink()
    long_run(resumed, steps, begin)
    assert resumed.path.read_bytes() == whole.path.read_bytes()
    assert (resumed.share, resumed.share < 1) == (whole.share, limit == LIMIT)
    write(whole, 2, seed=2)  # the same trainer goes back
    assert [*{row["step"] for row in rows(whole.path)}] == [0, 1, 2]


def test_tokens_of_another_run_and_damaged_ones_are_left_alone(tmp_path):
    path = tmp_path / "tokens-0.jsonl"
    write(TokenWriter(tmp_path, 1.0, 0, limit=100), 0)  # each response is larger
    assert rows(path) == []
    write(TokenWriter(tmp_path, 1.0, 0), 0)
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"tokens-0\.jsonl holds the tokens of another run already; give tokens_path"):
        write(TokenWriter(tmp_path, 1.0, 0), 0)
    assert path.read_bytes() == before
    write(TokenWriter(tmp_path, 1.0, 1), 0)  # another process
    write(TokenWriter(tmp_path, 1.0, 0, replaces=True), 0, seed=1)
    assert (path.read_bytes() != before, len(rows(path))) == (True, 40)
    for line in (b"x\n", b'{"step": null}\n'):
        path.write_bytes(before + line + before)
        with pytest.raises(UserError, match=r"tokens-0\.jsonl, line 41: "):
            write(TokenWriter(tmp_path, 1.0, 0), 7)


def trained(tmp_path, **changes):
    settings = tiny.settings(tmp_path / "out", kind=BandPOConfig, **{"all_metrics": True, "max_steps": 8} | changes)
    return train(BandPOTrainer, settings, Clip(0.2, 0.2))


def test_a_run_writes_the_tokens_that_its_metrics_count(tmp_path, cli):
    trainer = trained(tmp_path, tokens_path=str(tmp_path / "tokens"), tokens_share=1.0)
    path = tmp_path / "tokens" / "tokens-0.jsonl"
    found = rows(path)
    for step in range(8):
        (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found if row["step"] == step))
        tokens, logged = read_tokens([tmp_path / "one.jsonl"]), trainer.state.log_history[step]
        assert tokens.count == logged["bandpo/tokens"]
        outside = abs(torch.from_numpy(tokens.log_ratio).expm1()) > 0.2
        assert outside.double().mean().item() == pytest.approx(logged.get("bandpo/clip/fraction", 0.0), abs=2e-3)
    assert len({row["response_id"] for row in found}) <= 64 < len(found) == 8 * 16  # one batch, used twice
    # The number that its own rule has is found again from what it stopped.
    share = calibrate(read_tokens([path]), [Clip()], match=Clip(0.2, 0.2)).rules[0]
    assert (share.value, share.interval.low <= 0.2 <= share.interval.high) == (pytest.approx(0.2, rel=0.02), True)
    assert "tokens of" in cli.out("calibrate", path.parent)  # and by the folder


def test_an_evaluation_writes_nothing_and_a_run_with_a_share_of_0(tmp_path):
    trained(tmp_path, max_steps=2, tokens_share=0)
    assert not list(tmp_path.rglob("tokens*"))
    trainer = trained(tmp_path, tokens_path=str(tmp_path), tokens_share=1.0, max_steps=2, per_device_eval_batch_size=8)
    before = (tmp_path / "tokens-0.jsonl").read_bytes()
    trainer.evaluate(tiny.rows(8))
    assert (tmp_path / "tokens-0.jsonl").read_bytes() == before
