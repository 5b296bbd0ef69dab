"""JSON that is nested deeper than Python's stack allows by itself."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TypeVar

MAX_CALLS = 10_000
T = TypeVar("T")

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_NO_BRACKET = re.compile(r"[^\[\]{}]+")


def levels_of(text: str) -> int:
    """How deep arrays and objects stand in each other."""
    deepest = level = 0
    for bracket in _NO_BRACKET.sub("", _TEXT.sub("", text)):
        level += 1 if bracket in "[{" else -1
        deepest = max(deepest, level)
    return deepest


def deep(read: Callable[[], T]) -> T:
    """What `read` gives, with room for a thousand levels."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(MAX_CALLS)
    try:
        return read()
    finally:
        sys.setrecursionlimit(limit)
