"""`bandpo eval` and `bandpo score`: the back ends, what a seed fixes, and the way from questions to numbers."""

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import recipe
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from bandpo import lab
from bandpo.cli import main
from bandpo.data import question_sets
from bandpo.data.questions import Question
from bandpo.errors import UserError
from bandpo.evals import backends, draw, grades
from bandpo.evals.backends import Drawn, Request, SeededChoice, Server, Transformers, exponential
from bandpo.evals.folder import Sample, Sampling, read_facts, read_graded, read_samples
from bandpo.statistics.estimators import pass_at_k

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The model of the recipe, with a chat template that leaves a message as it is."""
    home = recipe.make(tmp_path_factory.mktemp("home"))
    tokenizer = lab.tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(home / "model")
    return home


@pytest.fixture(scope="module")
def engine(home):
    return Transformers(str(home / "model"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


PROMPTS = ["a b =", "c =", "d e f g h =", "p"]  # of different lengths


def requests(count=8, prompts=PROMPTS):
    return [Request((p, i), prompt, 1000 * p + i) for p, prompt in enumerate(prompts) for i in range(count)]


def drawn(engine, wanted, sampling):
    return {request.key: answer for request, answer in engine.draw(wanted, sampling)}


# ---- random numbers


def test_the_noise_is_that_of_splitmix64():
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    # Rosetta Code's test of SplitMix64 with seed 1234567.
    expected = [-math.log1p(-((z >> 11) + 0.5) / 2**53) for z in known]
    assert exponential([1234567], 5)[0].tolist() == pytest.approx(expected, rel=1e-6)
    assert backends._mixed(0) == 16294208416658607535  # its first output with seed 0
    assert exponential([2**63 + 5, 1234567], 5)[1].tolist() == pytest.approx(expected, rel=1e-6)


def test_the_noise_is_finite_where_all_bits_are_ones():
    """Else a token of probability 1 would lose to any other."""
    z = 2**64 - 1
    for shift, factor in ((31, backends._SECOND), (27, backends._FIRST)):  # back to the state whose first output it is
        z = (z ^ z >> shift ^ z >> 2 * shift) * pow(factor, -1, 2**64) % 2**64
    state = ((z ^ z >> 30 ^ z >> 60) - backends._GOLDEN) % 2**64
    assert exponential([state], 1).item() == pytest.approx(24 * math.log(2))  # float32's last number below 1


def test_the_noise_is_exponential_and_of_different_places_independent():
    states = [backends._mixed(i) for i in range(100)]
    noise = exponential(states, 10_000).double()
    edges = torch.tensor([1e-5, 1e-3, 0.1, 0.5, 1, 2, 5, 10], dtype=torch.float64)
    for edge in edges:
        share, wanted = (noise < edge).double().mean().item(), -math.expm1(-edge)
        assert abs(share - wanted) < 5 * math.sqrt(wanted * (1 - wanted) / noise.numel())
    ranks = noise.argsort(1).argsort(1).double()
    between = torch.corrcoef(ranks)[0, 1:].abs().max()
    assert between < 5 / math.sqrt(10_000)
    assert abs(torch.corrcoef(torch.stack([ranks[:, 1:].flatten(), ranks[:, :-1].flatten()]))[0, 1]) < 5e-3


def test_the_greatest_logit_after_noise_is_a_draw_from_the_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -6.0])
    count = 8000
    ids = torch.zeros(count, 3, dtype=torch.long)
    chosen = SeededChoice(range(count), start=1)(ids, logits.expand(count, -1)).argmax(-1)
    chances = logits.softmax(-1).numpy()
    seen = np.bincount(chosen, minlength=5)
    assert ((seen - count * chances) ** 2 / (count * chances)).sum() < 23.5  # chi2 with 4 degrees of freedom, p = 1e-4
    at_the_next_place = SeededChoice(range(count), start=0)(ids, logits.expand(count, -1)).argmax(-1)
    both = (chosen == at_the_next_place).double().mean().item()
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
    assert drawn(engine, other, sampling) != one_way


def first_tokens(model, prompt, temperature=1.0):
    """Chances of the first token, from the model itself."""
    ids = lab.tokenizer()(prompt, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return (model(input_ids=ids).logits[0, -1].double() / temperature).softmax(-1).numpy()


@pytest.mark.parametrize(
    ("sampling", "chances"),
    [
        (Sampling(max_tokens=1), lambda p: p),
        (Sampling(max_tokens=1, temperature=2.0), lambda p: p**0.5 / (p**0.5).sum()),
        (Sampling(max_tokens=1, top_k=3), lambda p: np.where(p >= np.sort(p)[-3], p, 0) / np.sort(p)[-3:].sum()),
        (
            Sampling(max_tokens=1, top_p=0.5),
            lambda p: (
                (kept := np.where(p >= np.sort(p)[::-1][np.sort(p)[::-1].cumsum().searchsorted(0.5)], p, 0))
                / kept.sum()
            ),
        ),
    ],
    ids=["plain", "temperature", "top_k", "top_p"],
)
def test_answers_are_drawn_from_the_models_own_probabilities(engine, sampling, chances, monkeypatch):
    monkeypatch.setattr(engine, "batch", 500)
    count = 3000
    answers = [answer for _, answer in engine.draw(requests(count, ["a b ="]), sampling)]
    expected = count * chances(first_tokens(engine.model, "a b ="))
    words = Counter(answer.text if answer.finish == "length" else "<end>" for answer in answers)
    letters = {symbol: i for i, symbol in enumerate(lab.SYMBOLS)}
    chi2 = 0.0
    for word, i in letters.items():
        seen = words.pop("" if word == "<pad>" else word, 0)
        assert expected[i] > 0 or seen == 0
        chi2 += (seen - expected[i]) ** 2 / expected[i] if expected[i] > 1 else 0
    assert not words
    assert chi2 < 60  # 19 degrees of freedom at most: p = 4e-6


def test_at_temperature_0_the_answer_is_the_most_probable_one(engine):
    model, tokenizer = engine.model, engine.tokenizer
    greedy = drawn(engine, requests(1), Sampling(n=1, temperature=0.0, max_tokens=6))
    assert greedy == drawn(engine, requests(1), Sampling(n=1, top_k=1, max_tokens=6))
    for (p, _), answer in greedy.items():
        ids = tokenizer(PROMPTS[p], return_tensors="pt")["input_ids"]
        start = ids.shape[1]
        while ids.shape[1] < start + 6 and ids[0, -1] != lab.END:
            with torch.no_grad():
                ids = torch.cat([ids, model(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
        assert answer.text == tokenizer.decode(ids[0, start:], skip_special_tokens=True)
        assert answer.tokens == ids.shape[1] - start


def test_tokens_count_the_end_and_a_cut_answer_says_so(engine):
    answers = drawn(engine, requests(60), Sampling(max_tokens=4)).values()
    assert {answer.finish for answer in answers} == {"stop", "length"}
    for answer in answers:
        assert 1 <= answer.tokens <= 4
        if answer.finish == "length":
            assert answer.tokens == 4
        visible = [letter for letter in answer.text if not letter.isspace()]
        assert len(visible) <= answer.tokens - (answer.finish == "stop")


def test_settings_that_come_with_a_model_do_not_hold(home, engine, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(home / "model")
    model.generation_config.update(do_sample=True, top_k=1, temperature=0.1, repetition_penalty=5.0, max_new_tokens=2)
    other = Transformers(model, AutoTokenizer.from_pretrained(home / "model"))
    sampling = Sampling(max_tokens=6)
    assert drawn(other, requests(), sampling) == drawn(engine, requests(), sampling)
    assert model.generation_config.top_k == 1  # they are the model's again


def test_every_end_token_of_the_model_ends_an_answer(home):
    model = AutoModelForCausalLM.from_pretrained(home / "model")
    model.generation_config.eos_token_id = [lab.END, lab.ANSWER]
    engine = Transformers(model, AutoTokenizer.from_pretrained(home / "model"))
    answers = drawn(engine, requests(60), Sampling(max_tokens=6)).values()
    ended = [answer for answer in answers if answer.text.endswith("A")]
    assert ended
    assert all(answer.finish == "stop" for answer in ended)
    assert not any("A" in answer.text[:-1] for answer in answers)


def test_a_batch_that_does_not_fit_is_halved(home, engine, monkeypatch):
    said = []
    small = Transformers(engine.model, engine.tokenizer, batch=32, say=said.append)
    generate, sizes = engine.model.generate, []

    def limited(input_ids, **options):
        sizes.append(len(input_ids))
        if len(input_ids) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(input_ids=input_ids, **options)

    monkeypatch.setattr(engine.model, "generate", limited)
    sampling = Sampling(max_tokens=6)
    found = drawn(small, requests(5), sampling)
    assert sizes == [20, 10, 10]
    assert said == ["out of memory with 20 samples at once: going on with 10"]
    monkeypatch.undo()
    assert found == drawn(engine, requests(5), sampling)
    monkeypatch.setattr(engine.model, "generate", lambda **options: (_ for _ in ()).throw(torch.OutOfMemoryError()))
    with pytest.raises(UserError, match="one answer of 6 tokens does not fit into the memory of cpu"):
        drawn(small, requests(5), sampling)


def test_messages_go_through_the_chat_template_and_text_does_not(home, engine):
    sampling = Sampling(max_tokens=6)
    chat = [Request(r.key, [{"role": "user", "content": r.content}], r.seed) for r in requests()]
    assert drawn(engine, chat, sampling) == drawn(engine, requests(), sampling)
    plain = Transformers(engine.model, lab.tokenizer())
    with pytest.raises(UserError, match="has no chat template; --no-chat sends"):
        drawn(plain, chat, sampling)
    with pytest.raises(UserError, match="finds no token in ''"):
        drawn(plain, [Request(0, "", 0)], sampling)


# ---- a real server


@pytest.fixture(scope="module")
def server(home):
    """`transformers serve` with the tiny model."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    log = home / "serve.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [Path(sys.executable).parent / "transformers", "serve", home / "model", "--port", str(port)],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        for _ in range(1200):
            assert process.poll() is None, log.read_text()
            try:
                with urllib.request.urlopen(f"http://localhost:{port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.1)
        yield f"http://localhost:{port}/v1"
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
@pytest.mark.slow
def test_a_server_and_this_process_draw_from_the_same_distribution(home, engine, server, chat):
    """Both against the exact chance of the most probable first token."""
    sampling, count = Sampling(max_tokens=1, temperature=2.0), 100
    wanted = requests(count, ["a b ="])
    chances = first_tokens(engine.model, "a b =", temperature=2.0)
    best = lab.SYMBOLS[chances[: lab.BASE].argmax()]
    p = chances[: lab.BASE].max()
    if chat:
        wanted = [Request(r.key, [{"role": "user", "content": r.content}], r.seed) for r in wanted]
    said = []
    remote = Server(str(home / "model"), server, concurrency=4, say=said.append)
    for way in (remote, engine):
        answers = list(drawn(way, wanted, sampling).values())
        assert len(answers) == count
        share = sum(answer.text == best for answer in answers) / count
        assert abs(share - p) < 4.5 * math.sqrt(p * (1 - p) / count)
        assert all(answer.tokens == 1 for answer in answers)
    assert "generation_config" in remote._more  # it refuses top_k as a field, and takes it this way
    assert not said


def test_what_a_server_refuses_is_one_line(home, server):
    def ask(model, url):
        return drawn(Server(model, url, retries=0), requests(1), Sampling(max_tokens=2))

    with pytest.raises(UserError, match=r"refused the request for model 'other': 400 .*Server is pinned to"):
        ask("other", server)
    with pytest.raises(UserError, match=r"knows no model .*, or its address lacks /v1 \(404"):
        ask(str(home / "model"), server.removesuffix("/v1"))
    with pytest.raises(UserError, match=r"http://localhost:1/v1 cannot be reached .*; is it running"):
        ask("any", "http://localhost:1/v1")


# ---- a server that fails


class Fake:
    """A server whose `script` says what it does with a request: a status, "drop", "slow", or an answer to send."""

    def __init__(self, script):
        self.asked, self.keys, fake = [], [], self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self):
                with contextlib.suppress(ConnectionError):  # the client has left
                    super().handle()

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fake.asked.append(body)
                fake.keys.append(self.headers["Authorization"])
                what = script(body, len(fake.asked))
                if what == "drop":
                    self.connection.shutdown(socket.SHUT_RDWR)
                    self.close_connection = True
                    return
                if what == "slow":
                    time.sleep(3)
                    what = 200
                status, answer, headers = (*what, None, {})[:3] if isinstance(what, tuple) else (what, None, {})
                headers = headers or {}
                if status == 200 and answer is None:
                    choice = {"index": 0, "text": f"t{body['seed']}", "finish_reason": "stop"}
                    answer = {"id": "1", "object": "text_completion", "created": 0, "model": "m", "choices": [choice]}
                    answer["usage"] = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
                content = answer if isinstance(answer, bytes) else json.dumps(answer or {"error": "no"}).encode()
                self.send_response(status)
                defaults = {"Content-Type": "application/json", "Content-Length": len(content), "retry-after-ms": 1}
                for name, value in (defaults | headers).items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("localhost", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://localhost:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.parametrize("failure", [408, 429, 500, 503, "drop"])
def test_what_passes_is_tried_again(failure):
    failed = set()

    def script(body, count):
        if body["seed"] % 2 and body["seed"] not in failed:
            failed.add(body["seed"])
            return failure
        return 200

    with Fake(script) as fake:
        wanted = requests(3)
        answers = drawn(Server("m", fake.url), wanted, Sampling(max_tokens=5))
    assert {key: answer.text for key, answer in answers.items()} == {r.key: f"t{r.seed}" for r in wanted}
    assert len(fake.asked) == len(wanted) + len(failed) > len(wanted)
    first = fake.asked[0]
    assert (first["model"], first["temperature"], first["top_p"], first["max_tokens"]) == ("m", 1, 1, 5)
    assert (first["top_k"], first["min_p"], first["repetition_penalty"]) == (-1, 0, 1)


FAILURES = {
    "for good": (lambda body, count: 200 if count == 1 else 500, {"retries": 1}, "refused the request .* 'm': 500"),
    "bad request": (lambda body, count: (400, {"error": "long"}), {}, "refused the request for model 'm': 400 .*long"),
    "key": (lambda body, count: 401, {}, "asks for another key; set OPENAI_API_KEY"),
    "come back tomorrow": (
        lambda body, count: (429, {"error": "later"}, {"retry-after": "86400"}),
        {"retries": 1},
        "says to come back later .*'86400'.*; the same command goes on then",
    ),
    "slow": (lambda body, count: "slow", {"timeout": 0.3, "retries": 0}, "did not answer within 0.3 s"),
}  # fmt: skip


@pytest.mark.parametrize(("script", "options", "message"), FAILURES.values(), ids=FAILURES)
def test_what_does_not_pass_is_one_line(script, options, message):
    with Fake(script) as fake, pytest.raises(UserError, match=message) as error:
        drawn(Server("m", fake.url, **options), requests(2), Sampling(max_tokens=5))
    assert "\n" not in str(error.value)


CHOICE = {"index": 0, "text": "a", "finish_reason": "stop"}
USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
HTML = {"Content-Type": "text/html"}


def completion(**fields) -> dict:
    return {
        "id": "1",
        "object": "text_completion",
        "created": 0,
        "model": "m",
        "choices": [CHOICE],
        "usage": USAGE,
    } | fields


def message(content) -> dict:
    return completion(choices=[{"index": 0, "message": content, "finish_reason": "stop"}])


# What the server sends, and what the line names. None: text prompts; True: messages.
NONSENSE = {
    "HTML": (b"<html><body>hello</body></html>", "'<html>.*Expecting value|Expecting value.*'<html>"),
    "HTML as such": (b"<html>hello</html>", "<html>"),
    "nothing": (b"", "it is empty"),
    "half": (json.dumps(completion()).encode()[:-20], "one JSON object is expected"),
    "null": (b"null", "got None"),
    "a list": (b"[]", r"got \[\]"),
    "a number": (b"7", "got 7"),
    "a text": (b'"ok"', "got 'ok'"),
    "a huge number": (b"1" * 5000, "more than 300 digits"),
    "deep": (b"[" * 50_000, "nested more than"),
    "no UTF-8": (b'{"choices": "\xff"}', "is not UTF-8"),
    "no choices": (completion(choices=None), "'choices' is None"),
    "choices missing": ({"usage": USAGE}, "'choices' is missing"),
    "empty choices": (completion(choices=[]), "'choices'"),
    "two choices": (completion(choices=[CHOICE, CHOICE]), "'choices'"),
    "choices a text": (completion(choices="a"), "'choices' is 'a'"),
    "a choice null": (completion(choices=[None]), "'choices.0' is None"),
    "text missing": (completion(choices=[{"index": 0}]), "'choices.0.text' is missing"),
    "text a number": (completion(choices=[CHOICE | {"text": 1}]), "'choices.0.text' is 1"),
    "finish a number": (completion(choices=[CHOICE | {"finish_reason": 1}]), "'choices.0.finish_reason' is 1"),
    "no usage": (completion(usage=None), "'usage' is None"),
    "usage missing": ({"choices": [CHOICE]}, "'usage' is missing"),
    "usage a text": (completion(usage="2"), "'usage' is '2'"),
    "tokens a text": (completion(usage={"completion_tokens": "2"}), "'usage.completion_tokens' is '2'"),
    "tokens negative": (completion(usage={"completion_tokens": -2}), "'usage.completion_tokens' is -2"),
    "tokens NaN": (completion(usage={"completion_tokens": math.nan}), "'usage.completion_tokens' is nan"),
    "tokens 10^400": (json.dumps(completion()).replace("2", str(10**400)).encode(), "more than 300 digits"),
    "10 MB": (completion(choices=[CHOICE | {"text": "x" * 10_000_000}]), "sent 10,000,[0-9]+ bytes as an answer of 5"),
    "message missing": (completion(choices=[{"index": 0}]), "'choices.0.message' is missing", True),
    "message null": (message(None), "'choices.0.message' is None", True),
    "message a text": (message("a"), "'choices.0.message' is 'a'", True),
    "content a list": (message({"content": [{"text": "a"}]}), "'choices.0.message.content' is", True),
    "content a number": (message({"content": 3.5}), "'choices.0.message.content' is 3.5", True),
}


@pytest.mark.parametrize(("case", "first"), [*((c, True) for c in NONSENSE), ("HTML", False), ("deep", False)])
def test_nonsense_of_a_server_is_one_line_that_names_it(case, first, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-long-secret")
    answer, line, *chat = NONSENSE[case]
    good = message({"content": "a"}) if chat else completion()
    headers = HTML if case == "HTML as such" else {}

    def script(body, count):
        return (200, good if count == 1 and not first else answer, headers if first or count > 1 else {})

    asked = [replace(r, content=[{"role": "user", "content": "hi"}]) if chat else r for r in requests(2)]
    began = time.monotonic()
    with Fake(script) as fake, pytest.raises(UserError, match=line) as error:
        drawn(Server("m", fake.url), asked, Sampling(max_tokens=5))
    assert fake.url in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    assert time.monotonic() - began < 30  # nothing of it is worth a second try


def test_what_a_server_may_leave_out_or_add():
    answer = {"choices": [{"text": "a", "finish_reason": None, "logprobs": [1]}], "usage": {"completion_tokens": 0}}
    with Fake(lambda body, count: (200, answer | {"more": {"of": "it"}})) as fake:
        assert set(drawn(Server("m", fake.url), requests(1), Sampling(max_tokens=5)).values()) == {
            Drawn("a", 0, "stop")
        }


@pytest.mark.parametrize(
    ("said", "kept"), [("stop", "stop"), ("length", "length"), ("content_filter",) * 2, ("eos", "stop")]
)
def test_why_an_answer_ended_is_kept(said, kept):
    with Fake(lambda body, count: (200, completion(choices=[CHOICE | {"finish_reason": said}]))) as fake:
        assert {x.finish for x in drawn(Server("m", fake.url), requests(1), Sampling(max_tokens=5)).values()} == {kept}


SECRET = "sk-proj-" + "0123456789abcdef" * 8  # longer than what is quoted of a value


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
def test_a_key_that_a_server_repeats_is_blanked_out(status, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    script = lambda body, count: (status, {"error": {"message": f"wrong key: Bearer {SECRET}"}})  # noqa: E731
    with Fake(script) as fake, pytest.raises(UserError, match=r"wrong key: Bearer \[key\]") as error:
        drawn(Server("m", fake.url, retries=0), requests(1), Sampling(max_tokens=5))
    assert SECRET not in str(error.value)
    for answer, got in ((completion(choices=[CHOICE | {"text": SECRET}]), "[key]"), (f"<html>{SECRET}".encode(), None)):
        with Fake(lambda body, count, answer=answer: (200, answer)) as fake:
            if got is None:
                with pytest.raises(UserError) as error:
                    drawn(Server("m", fake.url, retries=0), requests(1), Sampling(max_tokens=5))
                assert SECRET not in str(error.value)
            else:
                answers = drawn(Server("m", fake.url, retries=0), requests(1), Sampling(max_tokens=5))
                assert {each.text for each in answers.values()} == {got}


def test_ctrl_c_ends_all_requests_and_is_what_the_caller_sees():
    """The step that it interrupts hangs in the event loop; closing the generator beside it was a RuntimeError."""

    def script(body, count):
        if count == 3:
            time.sleep(0.5)  # until the caller waits, and for nothing else
            os.kill(os.getpid(), signal.SIGINT)
        return 200 if count < 3 else "slow"

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    try:
        with Fake(script) as fake:
            answers = Server("m", fake.url, concurrency=3).draw(requests(10), Sampling())
            with pytest.raises(KeyboardInterrupt):
                list(answers)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_server_is_asked_in_the_way_that_it_takes():
    def openai_like(body, count):
        extra = body.keys() - {"model", "prompt", "temperature", "top_p", "max_tokens", "seed"}
        return (
            (400, {"error": {"message": f"Unrecognized request argument supplied: {sorted(extra)}"}}) if extra else 200
        )

    said = []
    with Fake(openai_like) as fake:
        assert len(drawn(Server("m", fake.url, say=said.append), requests(2), Sampling(max_tokens=5))) == 8
        assert len(fake.asked) == 2 + 8
        assert [text[:41] for text in said] == ["the server takes no top_k, min_p or repet"]
        with pytest.raises(UserError, match="takes no top_k, got 7"):
            drawn(Server("m", fake.url), requests(2), Sampling(max_tokens=5, top_k=7))


def test_no_more_requests_run_at_once_than_asked_for_and_leaving_ends_them():
    running, most, lock = 0, 0, threading.Lock()

    def script(body, count):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.2)  # longer than a busy machine takes to send the next
        with lock:
            running -= 1
        return 200

    with Fake(script) as fake:
        drawn(Server("m", fake.url, concurrency=3), requests(3), Sampling())
        assert most == 3
        answers = Server("m", fake.url, concurrency=3).draw(requests(1000), Sampling())
        next(answers)
        next(answers)
        answers.close()
        asked = len(fake.asked)
        time.sleep(0.5)
        assert len(fake.asked) == asked < 100
    with Fake(lambda body, count: 200 if count < 4 else "slow") as fake:
        answers = Server("m", fake.url, concurrency=3).draw(requests(1000), Sampling())
        next(answers)
        next(answers)
        began = time.monotonic()
        answers.close()
        assert time.monotonic() - began < 2  # answers that are on their way are not waited for


# ---- from questions to a folder


def ask(home, output, *options, data=None):
    data = data or str(home / "rows.jsonl")
    args = ["eval", str(home / "model"), "--data", data, "--no-chat", "-o", str(output), *options]
    return main([*args, "--scorer", "exact", "--max-tokens", "4"])


def test_an_evaluation_from_the_command_line(home, here, capsys):
    assert ask(home, "out", "-n", "4", "--label", "Tiny") == 0
    printed = capsys.readouterr()
    assert not printed.err
    assert "Tiny on rows (12): 48 samples (4 a prompt) by transformers, into out" in printed.out
    assert re.search(r"mean@4 +│ +\d", printed.out)
    assert printed.out.splitlines()[-1] == "out"
    facts = read_facts(Path("out"))
    assert facts["finished"]
    assert facts["command"].startswith("bandpo eval ")
    assert (facts["label"], facts["dtype"], facts["scorer"]) == ("Tiny", "float32", "exact")
    assert facts["data"]["rows"]["rows"] == 12
    (graded,) = read_graded(Path("out"))
    assert graded.score.shape == (12, 4)
    samples = {sample.key: sample for sample in read_samples(Path("out"))}
    answers = [row["answer"] for row in lab.prompts(12, 0)]
    for p in range(12):
        for i in range(4):
            assert graded.score[p, i] == (samples["rows", p, i].text.strip() == answers[p])
            assert graded.answers[p, i] == samples["rows", p, i].text.strip()

    before = {path: path.read_bytes() for path in Path("out").iterdir() if path.name != "eval.json"}
    assert ask(home, "out", "-n", "4", "--label", "Tiny") == 0  # again: all is there
    assert "48 of them are there" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in before} == before
    assert ask(home, "out", "-n", "4", "--seed", "1") == 2
    assert "sampling.seed: 0 there, 1 now" in capsys.readouterr().err


KILLED = """
import os, signal, sys
from bandpo.evals import folder
from bandpo.cli import main
add = folder.Evaluation.add
def stop(self, sample):
    add(self, sample)
    if len(self.done) == 21:
        os.kill(os.getpid(), signal.SIGKILL)
folder.Evaluation.add = stop
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_the_same_command_goes_on_where_a_process_was_killed(home, here, capsys):
    command = ["eval", str(home / "model"), "--data", str(home / "rows.jsonl"), "--no-chat", "--scorer", "exact"]
    command += ["-n", "4", "--max-tokens", "4", "--batch-size", "8", "-o"]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *command, "killed"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    there = read_samples(Path("killed"))
    assert len(there) == 21
    with pytest.raises(UserError, match="not finished: 21 of 48 samples; go on with: bandpo eval "):
        read_graded(Path("killed"))
    assert main([*command, "killed"]) == 0
    assert "21 of them are there" in capsys.readouterr().out
    assert main([*command, "whole"]) == 0
    assert read_samples(Path("killed")) == read_samples(Path("whole"))
    assert [g.score.tolist() for g in read_graded(Path("killed"))] == [
        g.score.tolist() for g in read_graded(Path("whole"))
    ]


def test_an_interrupted_evaluation_says_how_to_go_on(home, here, capsys, monkeypatch):
    add = draw.Evaluation.add

    def interrupted(self, sample):
        add(self, sample)
        if len(self.done) == 21:
            raise KeyboardInterrupt

    monkeypatch.setattr(draw.Evaluation, "add", interrupted)
    assert ask(home, "out", "-n", "4") == 130
    assert capsys.readouterr().err.startswith("interrupted; the same command goes on\nbandpo eval ")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert ask(home, "out", "-n", "4") == 0
    assert "21 of them are there" in capsys.readouterr().out


def test_a_server_that_dies_loses_no_answer_and_its_key_is_written_nowhere(home, here, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setattr(draw, "Server", lambda *args, **options: Server(*args, **{**options, "retries": 0}))
    with Fake(lambda body, count: 200 if count <= 20 else 503) as fake:
        options = ["-n", "4", "--base-url", fake.url, "--concurrency", "4"]
        assert ask(home, "out", *options) == 2
        assert "refused the request" in capsys.readouterr().err
    monkeypatch.setattr(draw, "Server", Server)
    kept = read_samples(Path("out"))
    assert 17 <= len(kept) <= 20
    with Fake(lambda body, count: 200) as fake:
        assert ask(home, "out", *options[:3], fake.url) == 0  # a server may come back at another address
        assert len({body["seed"] for body in fake.asked}) == 48 - len(kept)
        assert set(fake.keys) == {"Bearer sk-secret"}
    assert not any(b"secret" in path.read_bytes() for path in Path("out").iterdir())


def test_a_password_in_an_address_and_what_a_filter_took(home, here, capsys):
    filtered = completion(choices=[CHOICE | {"finish_reason": "content_filter", "text": ""}])
    with Fake(lambda body, count: (200, filtered) if count % 2 else 200) as fake:
        url = fake.url.replace("http://", "http://me:p4ssw0rd@")
        assert ask(home, "out", "-n", "1", f"--base-url={url}", "--timeout", "60") == 0
        assert "6 answers were cut by the server's content filter" in capsys.readouterr().out
    assert not any(b"p4ssw0rd" in path.read_bytes() for path in Path("out").iterdir())
    assert "://***@localhost" in read_facts(Path("out"))["command"]
    assert ask(home, "out2", "--base-url", url) == 2  # nobody is there any more
    error = capsys.readouterr().err
    assert "p4ssw0rd" not in error
    assert "://***@localhost" in error
    assert ask(home, "out", "-n", "1", "--timeout", "60") == 2
    assert "--timeout is for a server" in capsys.readouterr().err


# ---- models


def test_a_model_may_be_given_as_the_run_that_made_it(home, here):
    run = here / "runs" / "mine"
    run.mkdir(parents=True)
    facts = {"label": "Band-KL 0.05", "seed": 0, "learning_rate": 1e-5, "finished": False}
    (run / "run.json").write_text(json.dumps(facts))
    (run / "checkpoints" / "checkpoint-8").mkdir(parents=True)
    (run / "checkpoints" / "checkpoint-12").mkdir(parents=True)
    with pytest.raises(UserError, match=r"is not finished; its last checkpoint is runs/mine/checkpoints/checkpoint-12"):
        draw.find_model("runs/mine")
    (run / "model").mkdir()
    found = draw.find_model("runs/mine")
    assert (found.path, found.name, found.label, found.data) == ("runs/mine/model", "mine", "Band-KL 0.05", "runs/mine")
    with pytest.raises(UserError, match=r"runs is neither a model .* the runs below it are runs/mine"):
        draw.find_model("runs")
    local = draw.find_model(str(home / "model"))
    assert (local.path, local.label) == (str(home / "model"), "model")
    hub = draw.find_model("Qwen/Qwen2.5-0.5B")
    assert (hub.path, hub.name, hub.label) == ("Qwen/Qwen2.5-0.5B", "Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B")
    served = draw.find_model("org/name", "http://localhost:1/v1")
    assert (served.path, served.name) == ("org/name", "name")


def test_weights_are_told_apart(home, tmp_path):
    before = backends.weights_of(str(home / "model"))
    model = AutoModelForCausalLM.from_pretrained(home / "model")
    model.save_pretrained(tmp_path)
    same = backends.weights_of(str(tmp_path))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 1e-6
    model.save_pretrained(tmp_path)
    assert before is not None
    assert same != backends.weights_of(str(tmp_path))
    with pytest.raises(UserError, match=r"model 'gone/model' \(there is no such folder here\) cannot be loaded"):
        backends.weights_of("gone/model")


# ---- questions


def write(path, rows):
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_questions_of_files(here):
    rows = [{"prompt": "1+1?", "answer": 2}, {"prompt": "2+2?", "answer": "4"}, {"prompt": "1+1?", "answer": "2"}]
    found = question_sets.read(write("sums.jsonl", rows))
    assert (found.name, found.scorer, found.facts["repeated"]) == ("sums", "math", 1)
    assert [(q.prompt, q.content, q.answer) for q in found.questions] == [
        (0, [{"role": "user", "content": "1+1?"}], "2"),
        (1, [{"role": "user", "content": "2+2?"}], "4"),
    ]
    assert [q.content for q in question_sets.read("sums.jsonl", limit=1, chat=False).questions] == ["1+1?"]
    boxed = question_sets.read("sums.jsonl", template="Q: {prompt}", chat=False)
    assert boxed.questions[0].content == "Q: 1+1?"
    with pytest.raises(UserError, match="two answers, '2' and '3', to the question"):
        question_sets.read(write("wrong.jsonl", [*rows, {"prompt": "1+1?", "answer": "3"}]))
    system = [{"role": "system", "content": "be good"}, {"role": "user", "content": "x"}]
    write("system.jsonl", [{"prompt": system, "answer": "1"}])
    with pytest.raises(UserError, match="--no-chat needs one user message a question"):
        question_sets.read("system.jsonl", chat=False)
    with pytest.raises(UserError, match=r"gone\.jsonl"):
        question_sets.read("gone.jsonl")
    with pytest.raises(UserError, match="no data set 'aime42', did you mean"):
        question_sets.read("aime42")


def test_questions_of_a_reasoning_gym_task(here):
    spec = "reasoning-gym:chain_sum:min_terms=2:max_terms=2:min_digits=1:max_digits=1:size=30"
    found = question_sets.read(spec)
    assert (found.name, found.scorer) == ("chain_sum", "reasoning-gym")
    assert len(found.questions) == len({q.id for q in found.questions}) == 30 - found.facts["repeated"]
    assert found.questions == question_sets.read(spec).questions
    assert found.questions[0].answer == str(eval(re.search(r"[-\d]+ [-+] [-\d]+", str(found.questions[0].content))[0]))
    with pytest.raises(UserError, match="'size' is no option; write reasoning-gym:TASK:key=value"):
        question_sets.read("reasoning-gym:chain_sum:size")
    with pytest.raises(UserError, match="chain_sam"):
        question_sets.read("reasoning-gym:chain_sam")


def test_questions_that_a_recipe_holds_out(home, here):
    from bandpo import config
    from bandpo.data.rows import rows_and_reward

    node = recipe.node(home, Path("run"), data={"eval_size": 5}, reward="last-number")
    Path("mine.yaml").write_text(yaml.safe_dump(node))
    _, held_out, _ = rows_and_reward(config.load("mine.yaml"))
    found = question_sets.read("mine.yaml")
    assert (found.name, found.scorer) == ("rows", "last-number")
    assert [(q.content, q.answer) for q in found.questions] == [(row["prompt"], row["answer"]) for row in held_out]
    Path("runs/one").mkdir(parents=True)
    Path("runs/one/config.yaml").write_text(config.load("mine.yaml").to_yaml())
    assert question_sets.read("runs/one") == found
    Path("none.yaml").write_text(yaml.safe_dump(recipe.node(home, Path("run"))))
    with pytest.raises(UserError, match=r"none.yaml holds out no rows \(data.eval_size is 0\)"):
        question_sets.read("none.yaml")
    gym = {"source": "reasoning_gym", "task": "chain_sum", "eval_size": 4}
    Path("gym.yaml").write_text(yaml.safe_dump({**node, "data": gym, "reward": "reasoning-gym"}))
    gym_set = question_sets.read("gym.yaml")
    assert (gym_set.name, gym_set.scorer, gym_set.facts["items"]) == ("chain_sum", "reasoning-gym", 24)
    assert [q.more["item"] for q in gym_set.questions] == [20, 21, 22, 23]


def test_questions_of_the_lab_are_not_those_of_training():
    found = question_sets.read("lab")
    assert (len(found.questions), found.scorer) == (128, "lab")
    trained = {row["prompt"] for seed in range(3) for row in lab.prompts(2000, seed)}
    assert sum(q.content in trained for q in found.questions) < 128 * 3 * 2000 / 16**4 * 2 + 5


MISTAKES = {
    "no data": ([], "--data is missing"),
    "data twice": (["--data", "rows.jsonl,rows.jsonl"], "--data names rows twice"),
    "scorers": (["--data", "rows.jsonl", "--data", "lab"], "graded differently (rows by math, lab by lab)"),
    "scorer": (["--data", "lab", "--scorer", "mth"], "scorer must be one of math, dapo-strict, exact"),
    "url": (["--data", "lab", "--backend", "openai"], "needs the server's address: --base-url"),
    "back end": (["--data", "lab", "--backend", "transformers", "--base-url", "u"], "--base-url is for backend openai"),
    "vllm": (["--data", "lab", "--backend", "vllm"], "backend vllm needs the package vllm, which is not installed"),
    "batch": (["--data", "lab", "--base-url", "u", "--batch-size", "8"], "--batch-size is for backend transformers"),
    "greedy": (["--data", "lab", "--temperature", "0"], "n must be 1, got 32"),
}


@pytest.mark.parametrize(("args", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_written(home, here, capsys, args, message):
    Path("rows.jsonl").write_text((home / "rows.jsonl").read_text())
    assert main(["eval", str(home / "model"), *args]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
    assert [path.name for path in here.iterdir()] == ["rows.jsonl"]


# ---- grades


def graded_by(scorer, texts, answers, facts=None, finish="stop", more=None):
    samples = [Sample("d", i, 0, 0, text, 1, finish) for i, text in enumerate(texts)]
    asked = [Question("d", i, "?", answer, (more or {}) | {}) for i, answer in enumerate(answers)]
    return [(g.score, g.answer, g.status) for g in grades._grader(scorer, facts or {}, "d")(samples, asked)]


def test_each_scorer_says_what_it_read():
    assert graded_by("exact", [" a ", "b"], ["a", "a"]) == [(1, "a", "ok"), (0, "b", "ok")]
    assert graded_by("last-number", ["so 1,007.50", "7", "none"], ["1007.5", "8", "9"]) == [
        (1, "1007.5", "ok"),
        (0, "7", "ok"),
        (0, None, "unparsed"),
    ]
    assert graded_by("last-number", ["7.0", "007", "700"], ["7", "7", "7"]) == [
        (1, "7", "ok"),
        (1, "7", "ok"),
        (0, "700", "ok"),
    ]
    assert graded_by("dapo-strict", ["Answer: 42", "42"], ["42", "42"])[0][0] == 1
    assert [g[0] for g in graded_by("math", ["so \\boxed{42}", "\\boxed{41}"], ["42", "42"])] == [1, 0]


def test_the_labs_answers_are_graded_as_in_training():
    generator = torch.Generator().manual_seed(0)
    tokenizer, rows, texts, finishes = lab.tokenizer(), [], [], []
    for _ in range(3000):
        ids = torch.randint(0, lab.END + 1, (lab.MAX_COMPLETION,), generator=generator)
        ids[torch.rand(len(ids), generator=generator) < 0.3] = lab.ANSWER
        ids = torch.where(ids < lab.BASE, ids % 3, ids)
        ids[torch.rand(len(ids), generator=generator) < 0.2] = lab.END
        ids = ids.tolist()
        ids = ids[: ids.index(lab.END) + 1] if lab.END in ids else ids
        rows.append(ids)
        texts.append(tokenizer.decode(ids, skip_special_tokens=True))
        finishes.append("stop" if ids[-1] == lab.END else "length")
    answers = [lab.SYMBOLS[i % 3] for i in range(3000)]
    expected = lab.reward(texts, rows, answers)
    assert 10 < sum(expected) < 1000
    for text, finish, answer, score in zip(texts, finishes, answers, expected, strict=True):
        assert graded_by("lab", [text], [answer], finish=finish)[0][0] == score


def test_an_answer_of_reasoning_gym_is_right_with_its_full_score_only():
    facts = {"task": "chain_sum", "items": 3, "options": {"seed": 5, "min_terms": 2, "max_terms": 2}}
    items, score_answer = grades.reasoning_gym_items("chain_sum", 3, facts["options"])
    right = items[2]["answer"]
    assert score_answer(f"{right} it is", items[2]) not in (0, 1)
    found = graded_by("reasoning-gym", [f" {right}\n", f"{right} it is"], ["?", "?"], facts, more={"item": 2})
    assert [g[0] for g in found] == [1, 0]
    with pytest.raises(UserError, match="scorer reasoning-gym is for questions of reasoning_gym"):
        graded_by("reasoning-gym", ["1"], ["1"])


def test_grading_goes_on_where_it_was_stopped_and_is_not_done_again(home, here, monkeypatch, capsys):
    ask(home, "out", "-n", "4")
    path = Path("out/grades-exact.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    seen = []
    exact = grades.exact
    monkeypatch.setattr(grades, "exact", lambda texts, answer: seen.extend(texts) or exact(texts, answer))
    assert main(["score", "out"]) == 0
    assert path.read_bytes() == whole
    assert len(seen) == 48 - whole[: len(whole) // 2].count(b"\n")
    assert main(["score", "out"]) == 0
    assert len(seen) == 48 - whole[: len(whole) // 2].count(b"\n")


def test_scores_as_a_table_and_for_scripts(home, here, capsys):
    ask(home, "a", "-n", "4")
    ask(home, "b", "-n", "2", "--seed", "3")
    capsys.readouterr()
    assert main(["score", "a", "b", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["folder"], first["scorer"], second["folder"]) == ("a", "exact", "b")
    (graded,) = read_graded(Path("a"))
    assert first["results"][0]["mean@4"]["value"] == pytest.approx(graded.score.mean())
    assert first["results"][0]["pass@4"]["value"] == pytest.approx(graded.score.max(1).mean())
    assert main(["score", "a", "b", "-k", "2"]) == 0
    out = capsys.readouterr().out
    assert "pass@2" in out
    assert "pass@4" not in out
    assert main(["score", "a", "-k", "3"]) == 0
    of_3 = float(pass_at_k(4, graded.score.sum(1), 3).mean())
    assert re.search(rf"pass@3 +│ +{100 * of_3:.2f} ", capsys.readouterr().out)
    assert main(["score", "a", "b", "-k", "4"]) == 2
    assert "k must be from 1 to the 2 samples of b, got 4" in capsys.readouterr().err
    assert main(["score", "a", "--scorer", "lab"]) == 0
    assert Path("a/grades-lab.jsonl").is_file()
    assert main(["score", "gone"]) == 2
    assert "gone holds no evaluation" in capsys.readouterr().err
