"""research/measurements/smollm2_planted.py: its questions, what it plants, and a run."""

import itertools
import re

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from research.measurements import smollm2_planted, smollm2_rates
from research.measurements.smollm2_planted import P_WORK, RULES, questions, todo
from research.measurements.smollm2_rates import RATES

WORDS = [*"0123456789>,. :?", "From", "follow", "arrows", "Path", "Answer", "<pad>", "<end>"]


@pytest.fixture
def start():
    """A model of one layer, and a tokenizer of one token a digit, a mark or a word."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"[A-Za-z]+|<\w+>|."), "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<end>", pad_token="<pad>", padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config), tokenizer


def test_a_question_has_one_answer_and_a_path_that_slips():
    rights = slips = 0
    for question, right, path in itertools.islice(questions(3), 1000):
        after = dict(re.findall(r"(\d)>(\d)", question))
        walked = [re.findall(r"From (\d)", question)[0]]
        for _ in range(3):
            walked.append(after[walked[-1]])
        assert (len(after), len(set(after.values())), walked[-1], path[0]) == (10, 10, right, walked[0])
        steps = path.split(">")
        rights += path[-1] == right
        slips += sum(after[a] != b for a, b in itertools.pairwise(steps))
    assert rights / 1000 == pytest.approx(0.65, abs=0.05)  # three steps without a slip, or slips that lead there
    assert slips / 3000 == pytest.approx(0.9 * (1 - 0.6 ** (1 / 3)), abs=0.03)


def test_both_ways_are_planted_and_a_run_keeps_when_the_paths_come(start, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smollm2_planted.models, "load", lambda *name: start)
    monkeypatch.setenv("BANDPO_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2_planted, "STEPS", 150)
    monkeypatch.setattr(smollm2_planted, "RATE", 1e-2)
    with pytest.raises(SystemExit, match="two ways were not learned"):  # such a small model only guesses
        smollm2_planted.settings("no clip")
    capsys.readouterr()
    monkeypatch.setattr(smollm2_planted, "LEAST", 0.0)
    monkeypatch.setattr(smollm2_planted, "CHANGED", {"rounds": 2, "trainer.max_completion_length": 16})
    changed = smollm2_planted.settings("lower side alone")
    assert P_WORK / 2 < float(re.search(r"'p_work': ([\d.]+)", capsys.readouterr().out)[1]) < 2 * P_WORK
    assert smollm2_planted.settings("no clip")["model"] == changed["model"]  # not made again
    row = smollm2_rates.train("no clip", 1e-3, 0, changed | {"data.size": 64, "data.eval_size": 3})
    assert [len(row[f"{name}_course"].split()) for name in ("reward", "length")] == [2, 2]


def test_no_clip_chooses_the_rate_and_the_rules_of_the_claim_are_judged_at_twice_it_first(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2_planted, "CSV", tmp_path / "rows.csv")
    assert todo(2)[:2] == [("no clip", rate, 0) for rate in RATES[:2]]
    monkeypatch.setattr(smollm2_rates, "best_rate", lambda csv: 2.5e-6)
    assert todo(2)[:8] == [(rule, 5e-6, seed) for seed in (100, 101) for rule in [*RULES][:4]]
    assert len(todo(2)) == len(todo(2, 0, 2)) + len(todo(2, 1, 2)) == 28
