"""No command looks anything up or connects to anything unless a name on the hub, a tracker or a server was given."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"

# Python runs this in every process that it starts: what is asked for beyond this machine is written down, and refused.
WATCH = """
import os, socket

def beyond(host):
    return host not in (None, "", "localhost") and not str(host).startswith(("127.", "::1", "0.0.0.0"))

def told(what, host):
    if beyond(host):
        with open(os.environ["WATCHED"], "a") as file:
            file.write(f"{what} {host}\\n")
        raise OSError(f"the test allows no connection to {host}")

look_up, connect, connect_ex = socket.getaddrinfo, socket.socket.connect, socket.socket.connect_ex

def watched_look_up(host, *rest, **more):
    told("looked up", host.decode() if isinstance(host, bytes) else host)
    return look_up(host, *rest, **more)

def watched(real):
    def call(self, address):
        told("connected to", address[0] if isinstance(address, tuple) else None)
        return real(self, address)
    return call

socket.getaddrinfo = watched_look_up
socket.socket.connect, socket.socket.connect_ex = watched(connect), watched(connect_ex)
"""

COMMANDS = """
train lab.yaml rounds=2 output=run
lab --methods grpo --seeds 1 --rounds 1 -o compared
report run -o run.html
explain band:kl:0.05
data prepare rows.jsonl -o data
data list
eval lab -n 1 --limit 2 --max-tokens 2 -o before
eval run -n 1 --limit 2 --max-tokens 2 --data lab -o after
score before
compare before after
table before after
doctor --no-ray
verl verl.yaml --print
verl verl.yaml --print
"""

# The warm start is trained for two steps: what it asks for does not depend on how well it has learned.
RUN = """
import shlex, sys
from bandpo_runs.cli import main
from bandpo_runs import toy
train = toy._supervised
toy._supervised = lambda start, steps, say: train(start, 2, say)
for line in sys.argv[1].strip().splitlines():
    assert main(shlex.split(line)) in (0, 1), line  # 1: the doctor found a problem
    print("done:", line, flush=True)
"""


def environment(tmp_path, **more):
    """Without anything that forbids connections, and with nothing in the hub's cache nor in ours."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    forbidding = ("CI", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
    kept = {name: value for name, value in os.environ.items() if name not in forbidding}
    path = os.pathsep.join([str(tmp_path), *filter(None, [kept.get("PYTHONPATH")])])
    kept |= {"HF_HOME": str(tmp_path / "hf"), "BANDPO_CACHE": str(tmp_path / "cache")}
    return kept | {"PYTHONPATH": path, "WATCHED": str(tmp_path / "watched")} | more


def test_the_watch_sees_what_it_should(tmp_path):
    for call in ("socket.create_connection(('bandpo.example', 80))", "socket.socket().connect(('192.0.2.1', 80))"):
        code = f"import socket\ntry: {call}\nexcept OSError as error: print(error)"
        done = subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True)
        assert "the test allows no connection" in done.stdout
    assert (tmp_path / "watched").read_text() == "looked up bandpo.example\nconnected to 192.0.2.1\n"


def test_no_command_connects_to_anything(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1?", "answer": "2"}\n')
    for name, recipe in (("lab.yaml", "lab/band-kl.yaml"), ("verl.yaml", "paper/qwen2.5-3b/band-kl.yaml")):
        (tmp_path / name).write_text(f"base: {RECIPES / recipe}\n")
    done = subprocess.run(
        [sys.executable, "-c", RUN, COMMANDS], cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("done:") == len(COMMANDS.strip().splitlines())
    watched = tmp_path / "watched"
    assert not watched.exists(), watched.read_text()
