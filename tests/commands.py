"""The command line, called in this process, and what a call is refused with."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from bandpo.errors import UserError


def refusal(call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """The message of the error that it raises."""
    with pytest.raises(UserError) as raised:
        call(*arguments, **named)
    return str(raised.value)


def missing(text: str, *parts: str) -> list[str]:
    """Those that the text does not hold."""
    return [part for part in parts if part not in text]


class CommandLine:
    """Calls `bandpo`, and returns what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self.capsys = capsys

    def out(self, *words: Any, code: int = 0) -> str:
        """What a command prints that ends with this code."""
        from bandpo_runs.cli import main

        assert main([str(word) for word in words]) == code, self.capsys.readouterr().err
        return self.capsys.readouterr().out

    def json(self, *words: Any) -> Any:
        """What it prints, read."""
        return json.loads(self.out(*words))

    def error(self, *words: Any) -> str:
        """The one line on stderr of a mistake."""
        from bandpo_runs.cli import main

        assert main([str(word) for word in words]) == 2
        line = self.capsys.readouterr().err
        assert (line.startswith("error: "), line.count("\n")) == (True, 1), line
        return line
