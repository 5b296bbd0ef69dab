"""Where in a JSON text its members or elements are, and an invalid constant."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from metering.contracts.model import pointer

MAX_POINTER_CHARACTERS = 100
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|NaN|-?Infinity', re.DOTALL)
_SPACES = re.compile(r"[ \t\r\n]*")


def after_space(text: str, at: int) -> int:
    """The next place, from `at` on, that is not white space."""
    found = _SPACES.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def member_places(text: str, decoder: json.JSONDecoder) -> Iterator[tuple[str, int, int]]:
    """The members of an object that the decoder takes: the name, and where the value begins and ends."""
    at = after_space(text, text.index("{") + 1)
    while text[at] != "}":
        name, end = decoder.raw_decode(text, at)
        start = after_space(text, after_space(text, end) + 1)
        _, end = decoder.raw_decode(text, start)
        yield name, start, end
        at = after_space(text, end)
        at = after_space(text, at + (text[at] == ","))


def element_places(text: str, decoder: json.JSONDecoder) -> Iterator[tuple[Any, int, int]]:
    """The elements of the array that a text is: each as the decoder reads it, and where it begins and ends.

    Raises JSONDecodeError as soon as it is none.
    """
    at = after_space(text, 0)
    if text[at : at + 1] != "[":
        raise json.JSONDecodeError("an array was expected", text, at)
    at = after_space(text, at + 1)
    if text[at : at + 1] == "]":
        _end(text, at + 1)
        return
    while True:
        parsed, end = decoder.raw_decode(text, at)
        yield parsed, at, end
        at = after_space(text, end)
        sign = text[at : at + 1]
        if sign == "]":
            _end(text, at + 1)
            return
        if sign != ",":
            raise json.JSONDecodeError("a comma or the array's end was expected", text, at)
        at = after_space(text, at + 1)


def _end(text: str, at: int) -> None:
    if (at := after_space(text, at)) != len(text):
        raise json.JSONDecodeError("more follows the array", text, at)


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
