"""Samples from transformers: what a seed fixes, and the model's own probabilities."""

from collections import Counter

import numpy as np
import pytest
import torch
from commands import refusal
from serving import PROMPTS, drawn, first_tokens, requests
from transformers import AutoModelForCausalLM, AutoTokenizer

from bandpo_runs import toy
from bandpo_runs.evals.backends.local import SeededChoice, Transformers
from bandpo_runs.evals.grades import opens_thinking
from bandpo_runs.evals.samples import Request, Sampling


def test_the_greatest_logit_after_noise_is_a_draw_from_the_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -6.0])
    count = 8000
    ids = torch.zeros(count, 3, dtype=torch.long)
    choice = SeededChoice(range(count))
    chosen = choice(ids, logits.expand(count, -1)).argmax(-1)
    chances = logits.softmax(-1).numpy()
    seen = np.bincount(chosen, minlength=5)
    assert ((seen - count * chances) ** 2 / (count * chances)).sum() < 23.5  # chi2 with 4 degrees of freedom, p = 1e-4
    both = (chosen == choice(ids, logits.expand(count, -1)).argmax(-1)).double().mean().item()
    assert abs(both - (chances**2).sum()) < 0.03  # as often as independent draws agree


# ---- transformers


def test_an_answer_does_not_depend_on_who_shares_its_batch(engine, monkeypatch):
    sampling, wanted = Sampling(n=8, max_tokens=6), requests()
    one_way = drawn(engine, wanted, sampling)
    assert len({answer.text for answer in one_way.values()}) > 10
    for batch, order in ((1, wanted[::5]), (5, wanted[::-1]), (7, wanted[3::2])):
        monkeypatch.setattr(engine, "batch", batch)
        assert drawn(engine, order, sampling) == {request.key: one_way[request.key] for request in order}
    torch.manual_seed(1)
    assert drawn(engine, wanted[:3], sampling) == {request.key: one_way[request.key] for request in wanted[:3]}
    other = [Request(request.key, request.content, request.seed + 500) for request in wanted]
    assert [answer.text for answer in drawn(engine, other, sampling).values()] != [
        answer.text for answer in one_way.values()
    ]


def nucleus(p):
    """The likeliest tokens that together have half of the probability."""
    least = np.sort(p)[::-1][np.sort(p)[::-1].cumsum().searchsorted(0.5)]
    return np.where(p >= least, p, 0) / p[p >= least].sum()


@pytest.mark.parametrize(
    ("sampling", "chances"),
    [
        (Sampling(max_tokens=1), lambda p: p),
        (Sampling(max_tokens=1, temperature=2.0), lambda p: p**0.5 / (p**0.5).sum()),
        (Sampling(max_tokens=1, top_k=3), lambda p: np.where(p >= np.sort(p)[-3], p, 0) / np.sort(p)[-3:].sum()),
        (Sampling(max_tokens=1, top_p=0.5), nucleus),
    ],
    ids=["plain", "temperature", "top_k", "top_p"],
)
def test_answers_are_drawn_from_the_models_own_probabilities(engine, sampling, chances, monkeypatch):
    monkeypatch.setattr(engine, "batch", 500)
    count = 3000
    answers = drawn(engine, requests(count, ["a b ="]), sampling).values()
    expected = count * chances(first_tokens(engine.model, "a b ="))
    words = Counter(answer.text if answer.finish == "length" else "<end>" for answer in answers)
    letters = {symbol: i for i, symbol in enumerate(toy.SYMBOLS)}
    chi2 = 0.0
    for word, i in letters.items():
        seen = words.pop("" if word == "<pad>" else word, 0)
        assert expected[i] > 0 or seen == 0
        chi2 += (seen - expected[i]) ** 2 / expected[i] if expected[i] > 1 else 0
    assert (not words, chi2 < 60) == (True, True)  # 19 degrees of freedom at most: p = 4e-6


def test_at_temperature_0_the_answer_is_the_most_probable_one(engine):
    model, tokenizer = engine.model, engine.tokenizer
    greedy = drawn(engine, requests(1), Sampling(n=1, temperature=0.0, max_tokens=6))
    assert greedy == drawn(engine, requests(1), Sampling(n=1, top_k=1, max_tokens=6))
    for (_, p, _), answer in greedy.items():
        ids = tokenizer(PROMPTS[p], return_tensors="pt")["input_ids"]
        start = ids.shape[1]
        while ids.shape[1] < start + 6 and ids[0, -1] != toy.END:
            with torch.no_grad():
                ids = torch.cat([ids, model(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
        text = tokenizer.decode(ids[0, start:], skip_special_tokens=True)
        assert (answer.text, answer.tokens) == (text, ids.shape[1] - start)


def test_tokens_count_the_end_and_a_cut_answer_says_so(engine):
    answers = drawn(engine, requests(60), Sampling(max_tokens=4)).values()
    assert {answer.finish for answer in answers} == {"stop", "length"}
    for answer in answers:
        assert answer.tokens in (range(1, 5) if answer.finish == "stop" else (4,))
        assert len("".join(answer.text.split())) <= answer.tokens - (answer.finish == "stop")


def saved(home, folder, **changes):
    """The model of the tests in another folder, with other settings of generation."""
    model = AutoModelForCausalLM.from_pretrained(home / "model")
    model.generation_config.update(**changes)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(home / "model").save_pretrained(folder)
    return Transformers(str(folder))


def test_settings_that_come_with_a_model_do_not_hold(home, engine, tmp_path):
    changes = {"do_sample": True, "top_k": 1, "temperature": 0.1, "repetition_penalty": 5.0, "max_new_tokens": 2}
    other = saved(home, tmp_path, **changes)
    sampling = Sampling(max_tokens=6)
    assert drawn(other, requests(), sampling) == drawn(engine, requests(), sampling)


def test_token_0_may_end_an_answer(home, tmp_path):
    assert saved(home, tmp_path, eos_token_id=0).ends == [0]


def test_every_end_token_of_the_model_ends_an_answer(home, tmp_path):
    engine = saved(home, tmp_path, eos_token_id=[toy.END, toy.ANSWER])
    answers = drawn(engine, requests(60), Sampling(max_tokens=6)).values()
    assert {answer.finish for answer in answers if answer.text.endswith("A")} == {"stop"}
    assert not any("A" in answer.text[:-1] for answer in answers)


def test_messages_go_through_the_chat_template_and_text_does_not(engine, monkeypatch):
    sampling = Sampling(max_tokens=6)
    chat = [Request(r.key, [{"role": "user", "content": r.content}], r.seed) for r in requests()]
    assert drawn(engine, chat, sampling) == drawn(engine, requests(), sampling)
    monkeypatch.setattr(engine, "tokenizer", toy.tokenizer())
    assert "has no chat template; --no-chat sends" in refusal(drawn, engine, chat, sampling)
    assert "makes no token of ''" in refusal(drawn, engine, [Request(("d", 0, 0), "", 0)], sampling)


@pytest.mark.parametrize(
    ("end", "opened"),
    [("<think>\n", "opened"), ("[THINK]", "opened"), ("<think>\n\n</think>\n\n", None), ("", None), ("<think>a", None)],
)
def test_it_is_known_whether_the_prompt_opens_the_thinking(end, opened):
    with_end, without, message = toy.tokenizer(), toy.tokenizer(), [{"role": "user", "content": "a b ="}]
    body = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with_end.chat_template = f"{body}{{% if add_generation_prompt %}}{end}{{% endif %}}"
    for content, tokenizer in ((message, with_end), (f"a b ={end}", with_end), (f"a b ={end}", None)):
        assert opens_thinking(content, tokenizer) == opened
    # Of a server, and where it is refused when it is rendered.
    message[0]["content"] += end
    assert [opens_thinking(message, each) for each in (None, without)] == [None, None]
