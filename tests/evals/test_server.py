"""Samples from a server, one that works and one that fails."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from serving import CHOICE, USAGE, Fake, completion, drawn, first_tokens, requests

from bandpo import lab
from bandpo.errors import UserError
from bandpo.evals.backends.base import Drawn, Request
from bandpo.evals.backends.server import Server
from bandpo.evals.samples import Sampling

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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "failure", [*(pytest.param(status, marks=pytest.mark.slow) for status in (408, 429, 500)), 503, "drop"]
)
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


HTML = {"Content-Type": "text/html"}


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
    with Fake(script) as fake, pytest.raises(UserError, match=line) as error:
        drawn(Server("m", fake.url), asked, Sampling(max_tokens=5))
    assert fake.url in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    seeds = [body["seed"] for body in fake.asked]
    assert len(seeds) == len(set(seeds))  # nothing of it is worth a second try


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
    with Fake(lambda body, count: 200 if count < 4 else "stuck") as fake:
        answers = Server("m", fake.url, concurrency=3).draw(requests(1000), Sampling())
        next(answers)
        next(answers)
        answers.close()
        assert fake.answered <= 3  # answers that are on their way are not waited for
