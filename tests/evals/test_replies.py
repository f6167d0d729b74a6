"""Replies of servers that are not to be trusted: of any size, packed or without an end, and redirects."""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from serving import Fake, drawn, requests

import bandpo
from bandpo.errors import UserError
from bandpo.files import LONGEST_LINE, line_of
from bandpo_runs.evals.backends.server import LONGEST_REPLY, PER_TOKEN, REPLY, Server
from bandpo_runs.evals.samples import Sampling

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
    assert (failed.text, failed.finish) == ("", "error")
    assert str(failed.error).startswith(message)
    assert {answer.error for answer in answers.values()} == {None}


@pytest.mark.parametrize(("tokens", "most"), [(COUNT, MOST), (10**6, LONGEST_REPLY)])
@pytest.mark.parametrize("headers", [{}, GZIP], ids=["plain", "gzip"])
def test_the_bound_is_in_decoded_bytes_and_exact(headers, tokens, most):
    def reply(size):
        content = answer(size)
        return 200, zlib.compress(content, wbits=31) if headers else content, headers

    with Fake(lambda body, count: reply(most if count < 3 else most + 1)) as fake:
        answers = drawn(Server("m", fake.url, concurrency=1), requests(3, ["a"]), Sampling(max_tokens=tokens))
        outcomes = [answer.error for answer in answers.values()]
    assert sorted(map(str, outcomes))[:2] == ["None"] * 2
    assert sum(outcome is not None and "the rest was not read" in outcome for outcome in outcomes) == 1


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
