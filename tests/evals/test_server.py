"""Samples from a server, one that works and one that fails."""

import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from serving import CHOICE, Fake, chat, completion, drawn, first_tokens, requests

from bandpo.errors import UserError
from bandpo_runs import toy
from bandpo_runs.evals.backends.base import Drawn, Request
from bandpo_runs.evals.backends.server import Server
from bandpo_runs.evals.samples import Sampling

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
    best = toy.SYMBOLS[chances[: toy.BASE].argmax()]
    p = chances[: toy.BASE].max()
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
    "5xx": (500, {"retries": 1}, "http://localhost:[0-9]+/v1: 500 .*no"),
    "502": (502, {"retries": 1}, "502 .*; is it running, and is the address right?"),
    "HTML": ((200, b"<html>hello</html>"), {}, "expected .*'<html>.*is the address right?"),
    "bad request": ((400, {"error": "odd"}), {}, "refused the request for model 'm': 400 .*odd.* beside the prompt: "
                    "temperature=1.0, top_p=1.0, max_tokens=5, seed=.*--omit leaves out any of temperature, .*"
                    "--max-completion-tokens 5 sends"),
    "forbidden": (403, {}, "refused the request for model 'm': 403"),
    "key": (401, {}, "asks for another key; set OPENAI_API_KEY"),
    "come back tomorrow": ((429, {"error": "later"}, {"retry-after": "86400"}), {"retries": 1},
                           "takes no more requests for now; the same command goes on later .*Retry-After: '86400'"),
    "slow": ("slow", {"timeout": 0.3, "retries": 0}, "no answer within 0.3 s; see --timeout"),
    "too long for all": ((400, {"error": {"code": "context_length_exceeded"}}), {},
                         "no room even for the shortest question and --max-tokens 5"),
    "redirect": ((307, {}, {"location": "http://me:pass@localhost:1/v1?key=k"}), {},
                 r"a redirect to http://\*\*\*@localhost:1/v1\?key=\*\*\*, which is not followed; give --base-url"),
}  # fmt: skip


@pytest.mark.parametrize(("does", "options", "message"), FAILURES.values(), ids=FAILURES)
def test_a_server_that_answers_nothing_is_one_line_and_nothing_is_kept(does, options, message):
    given = []
    with Fake(lambda body, count: does) as fake, pytest.raises(UserError, match=message) as error:
        given += Server("m", fake.url, **options).draw(requests(50), Sampling(max_tokens=5))
    assert not given
    assert "\n" not in str(error.value)
    assert len(fake.asked) <= 5 * 3 * 3  # of the 200: questions, tries, ways
    assert len(fake.asked) == 1 or does not in (401, 403)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        *((does, str(does)) for does in (400, 401, 404, 422, 500)),
        ((200, completion(choices=[])), "'choices'"),
        ((200, b'{"choices": "\xff"}'), "not UTF-8"),
        ((200, b"x" * 2**21), "more than 1,053,696 bytes as an answer of 5 tokens"),
        ((200, completion(), {"Content-Encoding": "gzip"}), "the connection broke"),
        ("drop", "the connection broke"),
        ("slow", "no answer within 2 s"),
    ],
)
def test_what_fails_now_and_then_is_an_outcome_of_its_sample(does, said):
    wanted = requests(8)
    poison = wanted[13].seed
    with Fake(lambda body, count: does if body["seed"] == poison else 200) as fake:
        answers = drawn(
            Server("m", fake.url, retries=0, timeout=2 if does == "slow" else 60), wanted, Sampling(max_tokens=5)
        )
    assert len(answers) == len(wanted)
    failed = answers.pop(wanted[13].key)
    assert (failed.text, failed.finish) == ("", "error")
    assert said in failed.error
    assert {answer.error for answer in answers.values()} == {None}


def test_a_question_that_never_passes_is_not_the_end_of_the_others():
    """Nor those that are too long, however many, and wherever they stand."""
    long = {"error": {"code": "context_length_exceeded", "message": "too long"}}
    prompts = ["poison", *(f"too long {i}" for i in range(20)), "short"]

    def script(body, count):
        return 503 if body["prompt"] == "poison" else (400, long) if "long" in body["prompt"] else 200

    with Fake(script) as fake:
        answers = drawn(Server("m", fake.url, retries=1, concurrency=4), requests(10, prompts), Sampling())
    assert len(answers) == 220
    kinds = ["error"] * 10 + ["context_length"] * 200 + ["stop"] * 10
    assert [answer.finish for answer in answers.values() if answer.finish == "stop"] == ["stop"] * 10
    assert sorted(answer.finish for answer in answers.values()) == sorted(kinds)
    assert sum(body["prompt"] != "poison" for body in fake.asked) == 210  # what cannot pass is asked once


def test_a_server_that_goes_away_is_not_asked_for_all_the_rest_and_what_is_on_its_way_is_kept():
    late = threading.Event()

    def script(body, count):
        if count == 10:
            late.wait(10)
            return 200
        if count > 20:
            late.set()
            return 503
        return 200

    given = {}
    prompts = [f"question {i}" for i in range(200)]
    with Fake(script) as fake:
        answers = Server("m", fake.url, retries=0, concurrency=3).draw(requests(1, prompts), Sampling())
        with pytest.raises(UserError, match=r"503 .*failed one after the other; the same command goes on"):
            given.update((request.key, answer) for request, answer in answers)
    assert sum(answer.error is None for answer in given.values()) == 20
    assert 25 <= len(fake.asked) == len(given) < 30


def test_failures_among_answers_are_not_the_end():
    prompts = [f"question {i}" for i in range(40)]
    with Fake(lambda body, count: 200 if count % 3 == 0 else 503) as fake:
        answers = drawn(Server("m", fake.url, retries=0, concurrency=2), requests(1, prompts), Sampling())
    assert 20 < sum(answer.error is not None for answer in answers.values()) < 40


def test_the_server_may_be_gone_at_once():
    with pytest.raises(UserError, match=r"localhost:1/v1: cannot be reached \(.*\); is it running, and is the address"):
        drawn(Server("m", "http://localhost:1/v1", retries=0), requests(1), Sampling())


def test_a_reply_is_read_no_further_than_is_believed():
    """1 GB of zeros is 1 MB of gzip, whatever the status."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(2**20)
    bomb = b"".join(packer.compress(block) for _ in range(2**10)) + packer.flush()
    for status in (200, 400, 500):
        with Fake(lambda body, count, s=status: (s, bomb, {"Content-Encoding": "gzip"})) as fake:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with pytest.raises(UserError, match="more than 1,053,696 bytes as an answer of 5 tokens"):
                drawn(Server("m", fake.url, retries=0), requests(1), Sampling(max_tokens=5))
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # kB


def test_an_endless_reply_ends_by_the_timeout():
    with Fake(lambda body, count: "endless" if count > 1 else 200) as fake:
        began = time.monotonic()
        answers = drawn(Server("m", fake.url, timeout=2, retries=0), requests(1, ["a", "b"]), Sampling())
    assert time.monotonic() - began < 10
    assert [answer.error and answer.error[:20] for answer in answers.values()] == [None, "no answer within 2 s"]


def test_a_redirect_takes_nothing_with_it():
    with Fake(lambda body, count: 200) as other:
        script = lambda body, count: (307, {}, {"location": f"{other.url}/completions"})  # noqa: E731
        with Fake(script) as fake, pytest.raises(UserError, match=f"a redirect to {other.url}/completions"):
            drawn(Server("m", fake.url), requests(1), Sampling())
        assert not other.asked


def test_fields_that_a_server_does_not_take_are_left_out_or_renamed():
    """As gpt-5 does, one complaint after the other, and some that name nothing."""

    def like_gpt_5(body, count):
        if extra := body.keys() - {"model", "prompt", "max_completion_tokens"}:
            message = "Extra inputs are not permitted" if count % 2 else f"Unsupported parameter: {min(extra)!r}"
            return 400, {"error": {"message": message}}
        return 200, completion()

    with Fake(like_gpt_5) as fake:
        omit = ["temperature", "top_p", "seed"]
        answers = drawn(Server("m", fake.url, omit=omit, limit="max_completion_tokens"), requests(1), Sampling())
        assert {answer.text for answer in answers.values()} == {"a"}
        assert fake.asked[-1].keys() == {"model", "prompt", "max_completion_tokens"}
        assert fake.asked[-1]["max_completion_tokens"] == 4096
        with pytest.raises(UserError, match=r"Sent, beside the prompt: temperature=1.0, max_tokens=4096, seed=0; "
                           "--omit leaves out any of temperature, max_tokens, seed; --max-completion"):  # fmt: skip
            drawn(Server("m", fake.url, omit=["top_p"]), requests(1), Sampling())
        drawn(Server("m", fake.url, omit=[*omit, "max_tokens"]), requests(1), Sampling())
        assert fake.asked[-1].keys() == {"model", "prompt"}
    with pytest.raises(UserError, match=r"--base-url must be an address, got 'http://\[::1\?key=\*\*\*' "):
        Server("m", "http://[::1?key=k")
    with pytest.raises(UserError, match="--omit must be of temperature, top_p, max_tokens, seed, got 'top_k'"):
        Server("m", "http://localhost:1/v1", omit=["top_k"])


def test_what_is_left_out_is_left_out_of_a_generation_config_too():
    def like_transformers(body, count):
        return (400, {"error": "top_k"}) if "top_k" in body else (200, completion())

    with Fake(like_transformers) as fake:
        drawn(Server("m", fake.url, omit=["max_tokens", "top_p"]), requests(1), Sampling(temperature=0.5))
    sent = json.loads(fake.asked[-1]["generation_config"])
    assert sent == {"do_sample": True, "repetition_penalty": 1.0, "top_k": 0, "temperature": 0.5}


def test_the_parts_of_an_answer():
    asked = [replace(request, content=[{"role": "user", "content": "hi"}]) for request in requests(1)]
    with Fake(lambda body, count: (200, chat({"content": "4", "reasoning": "2 + 2"}, "length"))) as fake:
        found = drawn(Server("m", fake.url), asked, Sampling())
    assert set(found.values()) == {Drawn("4", 2, "length", "2 + 2")}


SECRET = "sk-proj-" + "0123456789abcdef" * 8  # longer than what is quoted of a value


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
def test_a_key_that_a_server_repeats_is_blanked_out(status, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    script = lambda body, count: (status, {"error": {"message": f"wrong key: Bearer {SECRET}"}})  # noqa: E731
    with Fake(script) as fake, pytest.raises(UserError, match=r"wrong key: Bearer \[key\]") as error:
        drawn(Server("m", fake.url, retries=0), requests(1), Sampling(max_tokens=5))
    assert SECRET not in str(error.value)
    said = completion(choices=[CHOICE | {"text": SECRET}])
    with Fake(lambda body, count: (200, said if count == 1 else f"<html>{SECRET}".encode())) as fake:
        answers = drawn(Server("m", fake.url, retries=0), requests(1), Sampling(max_tokens=5))
    assert "[key]" in {each.text for each in answers.values()}
    assert not any(SECRET in str(each) for each in answers.values())
    assert any("<html>[key]" in str(each.error) for each in answers.values())


def test_a_key_in_the_address_is_sent_as_it_stands_and_shown_nowhere():
    with Fake(lambda body, count: (403, {"error": f"no such key: {SECRET}"})) as fake:
        with pytest.raises(
            UserError, match=r"v1\?api-version=\*\*\*&key=\*\*\* refused .*no such key: \[key\]"
        ) as error:
            drawn(Server("m", f"{fake.url}?api-version=2024-10-21&key={SECRET}"), requests(1), Sampling())
        assert fake.paths == [f"/v1/completions?api-version=2024-10-21&key={SECRET}"]
    assert SECRET not in str(error.value)


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
