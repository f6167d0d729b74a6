"""Samples from a server: one that works, one that fails, and one that is not to be trusted."""

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
import zlib
from pathlib import Path

import pytest
from commands import missing, refusal
from hypothesis import given
from hypothesis import strategies as st
from serving import CHOICE, USAGE, Fake, chat, completion, drawn, first_tokens, requests

import bandpo
from bandpo.errors import UserError
from bandpo.files import LONGEST_LINE, line_of
from bandpo_runs import toy
from bandpo_runs.evals.backends.server import LONGEST_REPLY, PER_TOKEN, REPLY, Server, read_reply
from bandpo_runs.evals.samples import Request, Sample, Sampling

PLAIN = {"top_k": None, "min_p": None, "repetition_penalty": None}  # the fields of OpenAI alone

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
    remote = Server(
        str(home / "model"), server, concurrency=4, body=PLAIN | {"generation_config": '{"do_sample": true}'}
    )
    for way in (remote, engine):
        answers = list(drawn(way, wanted, sampling).values())
        assert [answer.tokens for answer in answers] == [1] * count
        share = sum(answer.text == best for answer in answers) / count
        assert abs(share - p) < 4.5 * math.sqrt(p * (1 - p) / count)


@pytest.mark.slow
def test_what_a_server_refuses_is_one_line(home, server):
    model = str(home / "model")
    for name, url, body, why in (
        ("other", server, PLAIN, r"400 .*Server is pinned to.*; sent with the prompt: "),
        (model, server, {}, r"4\d\d .*top_k.*; sent with the prompt: .*top_k=-1, min_p=0.0, .*NAME=null leaves a"),
        (model, server.removesuffix("/v1"), PLAIN, r"404 .*does its address end in /v1"),
    ):
        asked = Server(name, url, retries=0, body=body), requests(1), Sampling(max_tokens=2)
        assert re.search(why, refusal(drawn, *asked))


# ---- a server that fails


@pytest.mark.parametrize(
    "failure", [*(pytest.param(status, marks=pytest.mark.slow) for status in (408, 429, 500)), 503, "drop"]
)
def test_what_passes_is_tried_again(failure):
    failed, wanted = set(), requests(3)

    def script(body, count):
        passes = body["seed"] % 2 == 0 or body["seed"] in failed
        failed.update({body["seed"]} - ({body["seed"]} if passes else set()))
        return 200 if passes else failure

    with Fake(script) as fake:
        answers = drawn(Server("m", fake.url), wanted, Sampling(max_tokens=5))
    assert {key: answer.text for key, answer in answers.items()} == {r.key: f"t{r.seed}" for r in wanted}
    assert len(fake.asked) == len(wanted) + len(failed) > len(wanted)
    sent = {"model": "m", "temperature": 1, "top_p": 1, "max_tokens": 5, "top_k": -1, "min_p": 0,
            "repetition_penalty": 1}  # fmt: skip
    assert fake.asked[0] | sent == fake.asked[0]


FAILURES = {
    "5xx": (500, {"retries": 1}, "http://localhost:[0-9]+/v1: 500 .*no"),
    "HTML": ((200, b"<html>hello</html>"), {}, "got '<html>"),
    "bad request": ((400, {"error": "odd"}), {}, "400 .*odd.*temperature=1.0, top_p=1.0, max_tokens=5, seed=0, "
                    "top_k=-1, min_p=0.0, repetition_penalty=1.0. --body NAME=null"),
    "key": (401, {}, "401 .*OPENAI_API_KEY"),
    "come back tomorrow": ((429, {"error": "later"}, {"retry-after": "86400"}), {"retries": 1}, "429 .*later"),
    "slow": ("slow", {"timeout": 0.3, "retries": 0}, "no answer within 0.3 s; see --timeout"),
    "gone": ("drop", {"retries": 0}, "v1: Connection error"),
}  # fmt: skip


@pytest.mark.parametrize(("does", "options", "message"), FAILURES.values(), ids=FAILURES)
def test_a_server_that_answers_nothing_is_one_line_and_nothing_is_kept(does, options, message):
    passed, wanted = [], requests(1, [f"question {i}" for i in range(200)])
    with Fake(lambda body, count: does) as fake:
        server = Server("m", fake.url, concurrency=3, **options)
        why = refusal(server.generate, wanted, Sampling(max_tokens=5), passed.append)
    # Five questions in a row, and what was on its way, twice each at most.
    assert (passed, "\n" in why, bool(re.search(message, why)), len(fake.asked) <= 7 * 2) == ([], False, True, True), (
        why
    )


@pytest.mark.parametrize(
    ("does", "finish", "wording"),
    [
        (400, "refused", "400"),
        (422, "refused", "422"),
        (401, "error", "401"),
        (500, "error", "500"),
        ((200, completion(choices=[])), "error", "holds no answer"),
        ((200, {"error": {"message": "out of memory"}}), "error", "out of memory"),
        ((200, b'{"choices": "\xff"}'), "error", "can't decode byte 0xff"),
        ((200, completion(), {"Content-Encoding": "gzip"}), "error", "Connection error"),
        ("drop", "error", "Connection error"),
        ("endless", "error", "no answer within 2 s"),
    ],
)
def test_what_fails_now_and_then_is_an_outcome_of_its_sample(does, finish, wording):
    wanted = requests(8)
    poison = wanted[13].seed
    with Fake(lambda body, count: does if body["seed"] == poison else 200) as fake:
        timeout = 2 if does == "endless" else 60
        answers = drawn(Server("m", fake.url, retries=0, timeout=timeout), wanted, Sampling(max_tokens=5))
    failed = answers.pop(wanted[13].key)
    assert (failed.text, failed.finish, wording in failed.error) == ("", finish, True)
    assert [answer.error for answer in answers.values()] == [None] * (len(wanted) - 1)


def test_what_fails_before_the_first_answer_is_an_outcome_once_it_is_there():
    """However many fail while it is on its way."""
    late, failing = threading.Event(), [f"too long {i}" for i in range(20)]

    def script(body, count):
        if body["prompt"] == "short":
            late.wait(10)
            time.sleep(0.3)  # until the fifth question has failed, and nothing more is sent
        elif count >= 11:
            late.set()
        return 400 if "long" in body["prompt"] else 200

    with Fake(script) as fake:
        answers = drawn(
            Server("m", fake.url, concurrency=4), requests(2, [failing[0], "short", *failing[1:]]), Sampling()
        )
        assert len(fake.asked) == 42  # what cannot pass is asked once
    assert sorted(answer.finish for answer in answers.values()) == ["refused"] * 40 + ["stop"] * 2


def test_a_server_that_goes_away_is_not_asked_for_all_the_rest_and_what_is_on_its_way_is_kept():
    late, passed = threading.Event(), []

    def script(body, count):
        if count == 10:
            late.wait(10)
        elif count > 20:
            late.set()
        return 503 if count > 20 else 200

    with Fake(script) as fake:
        prompts = [f"question {i}" for i in range(200)]
        server = Server("m", fake.url, retries=0, concurrency=3)
        why = refusal(server.generate, requests(1, prompts), Sampling(), passed.append)
    assert not missing(why, "503 ", "; 5 questions failed in a row; the same command goes on")
    assert sum(answer.error is None for answer in passed) == 20
    assert 25 <= len(fake.asked) == len(passed) < 30


SECRET = "sk-proj-" + "0123456789abcdef" * 8  # longer than what is quoted of a value


@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_a_key_that_a_server_repeats_or_that_stands_in_the_address_is_not_shown(status, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    script = lambda body, count: (status, {"error": {"message": f"wrong key: Bearer {SECRET}"}})  # noqa: E731
    with Fake(script) as fake:
        server = Server("m", f"{fake.url}?api-version=2024-10-21&key={SECRET}", retries=0)
        with pytest.raises(UserError, match=rf"v1\?api-version=\*\*\*&key=\*\*\*: {status} .*Bearer \[key\]") as error:
            drawn(server, requests(1), Sampling(max_tokens=5))
    assert set(fake.paths) == {f"/v1/completions?api-version=2024-10-21&key={SECRET}"}  # sent as it stands
    assert SECRET not in str(error.value)


def test_ctrl_c_ends_all_requests_and_is_what_the_caller_sees():
    def script(body, count):
        if count == 3:
            time.sleep(0.5)  # until the caller waits, and for nothing else
            os.kill(os.getpid(), signal.SIGINT)
        return 200 if count < 3 else "slow"

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    try:
        with Fake(script) as fake, pytest.raises(KeyboardInterrupt):
            drawn(Server("m", fake.url, concurrency=3), requests(10), Sampling())
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_body_adds_fields_and_takes_them_away():
    body = {**PLAIN, "max_tokens": None, "seed": None, "max_completion_tokens": 9}
    with Fake(lambda body, count: (200, completion())) as fake:
        drawn(Server("m", fake.url, body=body), requests(1, ["a"]), Sampling())
    assert fake.asked == [{"model": "m", "prompt": "a", "temperature": 1, "top_p": 1, "max_completion_tokens": 9}]
    assert "--body cannot set max_tokens, got 5; --max-tokens does" in refusal(
        Server, "m", "http://localhost:1/v1", body={"max_tokens": 5}
    )


def test_no_more_requests_run_at_once_than_asked_for():
    running, counts, lock = set(), [], threading.Lock()

    def script(body, count):
        with lock:
            running.add(count)
            counts.append(len(running))
        time.sleep(0.2)  # longer than a busy machine takes to send the next
        running.discard(count)
        return 200

    with Fake(script) as fake:
        drawn(Server("m", fake.url, concurrency=3), requests(3), Sampling())
    assert max(counts) == 3


def test_an_answer_that_cannot_be_kept_ends_all_requests():
    """Those that are on their way are not waited for."""
    places, errors = [1, 2, 3, 4], []

    def keep(sample):
        errors.append(sample.error)
        places.pop()

    with Fake(lambda body, count: 200 if count < 6 else "stuck") as fake:
        with pytest.raises(IndexError):
            Server("m", fake.url, concurrency=3).generate(requests(1000), Sampling(), keep)
        assert errors == [None] * 5  # what was cut off is no failure of the server
        assert (fake.answered <= 5, len(fake.asked) < 12) == (True, True)


# ---- replies that are not to be trusted: of any size, packed or without an end, and redirects

SOURCE = str(Path(bandpo.__file__).parents[1])
COUNT = 64  # tokens of an answer here
MOST = REPLY + PER_TOKEN * COUNT
GZIP = {"Content-Encoding": "gzip"}


def bomb(mebibytes=3000):
    """A reply in gzip, of 1 KB for each MiB that it becomes."""
    packer = zlib.compressobj(9, wbits=31)
    block = b" " * 2**20
    first = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)  # after a full flush equal data are equal bytes
    return first + again * (mebibytes - 1)


def answer(size):
    """A reply of so many bytes that holds an answer."""
    head, tail = b'{"choices": [{"text": "', b'", "finish_reason": "stop"}]}'
    return head + b"a" * (size - len(head) - len(tail)) + tail


HOSTILE = {
    "bomb": ((200, bomb(), GZIP), f"a reply of more than {MOST:,} bytes; the rest was not read"),
    "bomb twice packed": (
        (200, zlib.compress(bomb(), wbits=31), {"Content-Encoding": "gzip, gzip"}),
        f"a reply of more than {MOST:,} bytes",
    ),
    "flood": ("flood 200", f"a reply of more than {MOST:,} bytes"),
    "flood of an error": ("flood 500", f"a reply of more than {MOST:,} bytes"),
    "redirect": (
        (307, b"", {"Location": "http://me:secret@other:1/v1?key=secret"}),
        "307 a redirect, which is not followed",
    ),
    "redirect on one host": ((301, b"moved", {"Location": "/else"}), "301 a redirect, which is not followed"),
}


@pytest.mark.parametrize(("does", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_reply_is_the_outcome_of_its_sample_and_asked_once(does, message):
    wanted = requests(4)
    poison = wanted[7].seed
    with Fake(lambda body, count: does if body["seed"] == poison else 200) as fake:
        answers = drawn(Server("m", fake.url), wanted, Sampling(max_tokens=COUNT))
        assert (sum(body["seed"] == poison for body in fake.asked), set(fake.paths)) == (1, {"/v1/completions"})
    failed = answers.pop(wanted[7].key)
    assert (failed.text, failed.finish, str(failed.error)[: len(message)]) == ("", "error", message)
    assert {answer.error for answer in answers.values()} == {None}


@pytest.mark.parametrize(("tokens", "most"), [(COUNT, MOST), (10**6, LONGEST_REPLY)])
@pytest.mark.parametrize("headers", [{}, GZIP], ids=["plain", "gzip"])
def test_the_bound_is_in_decoded_bytes_and_exact(headers, tokens, most):
    def reply(size):
        content = answer(size)
        return 200, zlib.compress(content, wbits=31) if headers else content, headers

    with Fake(lambda body, count: reply(most if count < 3 else most + 1)) as fake:
        answers = drawn(Server("m", fake.url, concurrency=1), requests(3, ["a"]), Sampling(max_tokens=tokens))
        *whole, cut = sorted(str(answer.error) for answer in answers.values())
    assert (whole, "the rest was not read" in cut) == (["None"] * 2, True)


def test_the_longest_answer_can_be_read_again():
    assert len(line_of({"text": "\N{LATIN SMALL LETTER E WITH ACUTE}" * (LONGEST_REPLY // 2)})) < LONGEST_LINE - 2**20


def test_a_redirect_takes_no_question_to_another_host():
    with Fake(lambda body, count: 200) as other:
        script = lambda body, count: (307, None, {"Location": f"{other.url}/completions"})  # noqa: E731
        with Fake(script) as fake, pytest.raises(UserError, match=": 307 "):
            drawn(Server("m", fake.url), requests(1), Sampling())
        assert not other.asked


# What a process held at most; `ru_maxrss` would be that of the process that started it, too.
MEASURED = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # an error before the machine is full
sys.argv = sys.argv[1:]
try:
    runpy.run_module("bandpo", run_name="__main__")
finally:
    print(*(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def test_bandpo_eval_stays_below_500_mib_whatever_a_server_sends(tmp_path):
    """The command itself, on packed replies of 3 GiB and replies without an end, among answers."""
    (tmp_path / "q.csv").write_text("prompt,answer\n" + "".join(f"question {i},7\n" for i in range(6)))
    ways = [200, (200, bomb(), GZIP), "flood 200", 200, "flood 500", (200, bomb(), GZIP)]
    with Fake(lambda body, count: ways[int(body["prompt"].split()[1])]) as fake:
        command = ["eval", "m", "--data", "q.csv", "-n", "1", "--max-tokens", "8", "--no-chat", "--scorer", "exact"]
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, "bandpo", *command, "--base-url", fake.url, "-o", "out"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    kibibytes = int(done.stdout.rpartition("VmHWM:")[2].split()[0])
    assert kibibytes < 500 * 1024, f"{kibibytes // 1024} MiB"
    assert (tmp_path / "out" / "samples.jsonl").read_text().count("the rest was not read") == 4


# ---- replies

NONSENSE = {
    "HTML": (b"<html><body>hello</body></html>", "one JSON object is expected (Expecting value), got '<html>"),
    "half": (json.dumps(completion()).encode()[:-20], "one JSON object is expected"),
    "a list": (b"[]", "got []"),
    "deep": (b"[" * 50_000, "nested more than"),
    "choices missing": {"usage": USAGE},
    "two choices": completion(choices=[CHOICE, CHOICE]),
    "text missing": completion(choices=[{"index": 0}]),
    "text a number": completion(choices=[CHOICE | {"text": 1}]),
    "content a number": chat({"content": 3.5}),
    "broken off": completion(choices=[CHOICE | {"finish_reason": "abort"}]),
}


def read(body):
    return read_reply(body if isinstance(body, bytes) else json.dumps(body).encode(), *requests(1, ["a"]))


@pytest.mark.parametrize("case", NONSENSE.values(), ids=NONSENSE)
def test_a_reply_without_an_answer_is_an_error(case):
    body, wording = case if isinstance(case, tuple) else (case, f"the reply holds no answer: {json.dumps(case)}")
    assert wording in refusal(read, body)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"choices": [{"text": "a", "finish_reason": None, "logprobs": [1]}], "more": {"of": "it"}},
         ("a", None, "stop")),
        ({"choices": [{"message": {}}], "error": None}, ("", None, "stop")),
        *((completion(usage={"completion_tokens": x}), ("a", None, "stop"))
          for x in (None, "2", -2, 2.0, True, math.nan, 10**12)),
        *((completion(choices=[CHOICE | {"finish_reason": x}]), ("a", 2, x))
          for x in ("stop", "length", "content_filter")),
        # Reasoning is kept apart from the answer.
        *((chat({"content": None, x: "so 4"}), ("", 2, "stop", "so 4")) for x in ("reasoning", "reasoning_content")),
        *((chat({"content": "4", x: ""}), ("4", 2, "stop")) for x in ("reasoning", "reasoning_content")),
        (chat({"content": "4", "reasoning": {"effort": 1}}), ("4", 2, "stop")),
        (chat({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "so 4"}]},
                           {"type": "text", "text": "4"}]}), ("4", 2, "stop")),  # magistral
    ],
)  # fmt: skip
def test_what_a_server_may_leave_out_or_add(body, answer):
    assert read(body) == Sample("d", 0, 0, 0, *answer)


WORDS = ["choices", "message", "content", "text", "usage", "completion_tokens", "finish_reason", "reasoning", "type"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)
CHOSEN = st.fixed_dictionaries({"message": JSON, "finish_reason": JSON}, optional={"text": JSON})


@given(JSON | st.fixed_dictionaries({"choices": CHOSEN.map(lambda c: [c])}, optional={"usage": JSON}))
def test_whatever_is_sent_is_an_answer_or_an_error(body):
    with contextlib.suppress(UserError):
        assert isinstance(read(body).text, str)
