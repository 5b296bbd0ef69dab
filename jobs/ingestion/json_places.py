"""Where in a JSON text an invalid constant stands."""

from __future__ import annotations

import re

from metering.contracts.model import pointer

MAX_POINTER_CHARACTERS = 100
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|NaN|-?Infinity', re.DOTALL)


def constant_place(text: str) -> str:
    """The pointer of the first NaN, Infinity or -Infinity that is no text; the end of a long one.

    `text` is JSON up to there. Names are as they were written, escapes and all.
    """
    path: list[str | int] = []
    name = ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token.startswith('"'):
            name = token[1:-1]
        elif token == ":":
            path[-1] = name
        elif token in "{[":
            path.append("" if token == "{" else 0)
        elif token in "}]":
            path.pop()
        elif token != ",":
            break
        elif isinstance(path[-1], int):
            path[-1] += 1
    found = pointer(tuple(map(str, path)))
    return found if len(found) <= MAX_POINTER_CHARACTERS else f"…{found[-MAX_POINTER_CHARACTERS:]}"
