"""The lock of a folder: one process at a time, and free when its process is gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bandpo.errors import UserError
from bandpo_runs.files import writing
from bandpo_runs.files.writing import locked

# Without the package's own __init__, which loads torch.
HOLD = f"""
import sys, types
from pathlib import Path
for name in ("bandpo", "bandpo_runs"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [{str(Path(writing.__file__).parents[2])!r} + "/" + name]
from bandpo_runs.files.writing import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path / "run"."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run" / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    (tmp_path / "run" / "content").touch()
    yield process
    process.kill()
    process.communicate()  # until it is gone


def test_a_second_process_is_refused(holder, tmp_path):
    file = tmp_path / "run" / ".lock"
    with pytest.raises(UserError, match=rf"^another process is writing to {file.parent}; wait"):
        locked(file).__enter__()


def test_a_lock_is_free_when_its_process_was_killed(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    with locked(tmp_path / "run" / ".lock"):
        pass


def test_who_waits_is_told_and_comes_next(holder, tmp_path):
    said = []

    def tell(text):
        said.append(text)
        holder.kill()

    with locked(tmp_path / "run" / ".lock", waiting=tell):
        assert said == [f"another process is writing to {tmp_path / 'run'}"]


def test_the_same_process_may_not_write_twice_either(tmp_path):
    with locked(tmp_path / ".lock"), pytest.raises(UserError, match="another process"):
        locked(tmp_path / ".lock").__enter__()
    with locked(tmp_path / ".lock"):
        pass


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    """Such as a worker that loads data: it may outlive its parent."""
    with locked(tmp_path / ".lock"):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
    with locked(tmp_path / ".lock"):
        os.close(write)
        os.waitpid(child, 0)
