"""Tasks for the workers of test_workers.py: good ones and bad ones."""

import contextlib
import ctypes
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path


def run(task):
    name, *arguments = task
    return globals()[name](*arguments)


def same(value):
    return value


def power():
    """One operation of the interpreter, which no signal handler of Python's interrupts."""
    return 9 ** (9**9) > 0


def pattern():
    return bool(re.match(r"(a+)+$", "a" * 50 + "b"))


def stubborn():
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPROF}:
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_IGN)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(0.001)


def sleep(seconds):
    time.sleep(seconds)
    return "slept"


def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return "spun"


def eight_gigabytes():
    return len(b"x" * (8 << 30))


def crash():
    ctypes.string_at(0)


def leave():
    os._exit(3)


def die_once(path):
    """The first time; the second time the file is there."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "second try"


def babble():
    os.write(0, b"[" * 100_000 + b"\n")
    return "babbled"


def wrong():
    raise ValueError("what is that")


def fail(task):
    raise ValueError("what is that")


def deep():
    return deep()


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


def mute():
    raise Mute


def wordy():
    raise ValueError("x" * 1_000_000)


def no_json():
    return {1}


def exit():
    raise SystemExit(3)


_REMEMBERED = []


def remember(value):
    """All that this process was ever told."""
    _REMEMBERED.append(value)
    return _REMEMBERED


def touch_and_sleep(path, seconds):
    """The second time it does not sleep: the file is there."""
    if not Path(path).exists():
        Path(path).touch()
        time.sleep(seconds)
    return "slept"


def shout():
    print("noise", flush=True)
    print("noise", file=sys.stderr, flush=True)
    return "quiet"


def about():
    return {
        "pid": os.getpid(),
        "torch": "torch" in sys.modules,
        "main": sys.modules["__main__"].__file__,
        "hash": os.environ["PYTHONHASHSEED"],
        "threads": threading.active_count(),
    }
