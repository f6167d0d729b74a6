"""Two short LaTeX strings compared by math-verify; this runs in worker processes (`workers.py`), for it may not end."""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended import latex2sympy2
from math_verify import LatexExtractionConfig, parse, verify

logging.disable(logging.CRITICAL)  # it warns that it has no limit of time; the worker's own is a hard one
_FORMULA = r"(?:\$[^$]+\$|\\\((?:(?!\\\)).)+\\\)|\\\[(?:(?!\\\]).)+\\\])"
_LIST = re.compile(rf"{_FORMULA}(?:\s*(?:[,;]|[,;]?\s*(?:and|or))\s*{_FORMULA})*")
_DELIMITER = re.compile(r"\\?\$|(?<!\\)\\[()\[\]]")
_LATEX = [LatexExtractionConfig(boxed_match_priority=0)]


class _TwoStage(latex2sympy2._Latex2Sympy):
    """ANTLR's two stages: first without full context, which gives the same tree or an error, in half the time."""

    mode = PredictionMode.LL

    def create_parser(self, latex_str: str) -> Any:
        parser = super().create_parser(latex_str)
        parser._interp.predictionMode = self.mode
        return parser

    def parse(self, latex_str: str) -> Any:
        for self.mode in (PredictionMode.SLL, PredictionMode.LL):
            try:
                return super().parse(latex_str)
            except Exception:
                if self.mode == PredictionMode.LL:
                    raise
        raise AssertionError


def compare(task: list[str]) -> list[Any]:
    """[equal, text of the second's value or None where it cannot be parsed] of [right answer, answer]."""
    right, answer = task
    read = _parse(answer)
    # The last of what it returns is the string that it parsed; alone, it was not parsed.
    if len(read) < 2:
        return [False, None]
    equal = verify(list(_parse_right(right)), read, timeout_seconds=0)
    return [equal, str(read[0])]


latex2sympy2._Latex2Sympy = _TwoStage  # looked up by this name wherever math-verify parses


@functools.lru_cache(maxsize=1000)
def _parse_right(answer: str) -> tuple[Any, ...]:
    return tuple(_parse(answer))


def _parse(answer: str) -> list[Any]:
    """As one formula, unless it is a list of them ("$x = 1$ or $x = 2$"): of others the parser would take the last."""
    if not _LIST.fullmatch(answer):
        answer = f"${_DELIMITER.sub('', answer)}$"
    return parse(answer, _LATEX, parsing_timeout=0)
