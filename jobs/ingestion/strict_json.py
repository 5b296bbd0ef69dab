"""One record → its content, by a reader that accepts exactly one RFC 8259 object.

Content that Weir does not use is checked only for its syntax and for duplicate keys.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from jobs.ingestion.json_places import constant_place, member_places
from metering.contracts.model import Kind, Path
from metering.members import member_twice

MAX_LEVELS = 999
"""Of objects and arrays in each other; what is nested deeper is malformed."""
INT64 = range(-(2**63), 2**63)

_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\2\2\0\0")
"""What a bracket adds to the level, and one."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
"""A number as JSON writes it."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class NotStrict(ValueError):
    """The record is not a strict JSON object; the message says why."""


class HoldsNul(NotStrict):
    """An escaped U+0000, which no text column of a database can hold."""


class _NoJson(NotStrict):
    """A constant that JavaScript has and JSON has not."""


class Number(str):
    """A number, as it was written."""

    __slots__ = ()

    @property
    def is_whole(self) -> bool:
        """Whether it is written without a fraction and without an exponent."""
        return self.lstrip("-").isdecimal()


class _Pairs(list[tuple[str, Any]]):
    """An object as it was written. Raises NotStrict for a duplicate key."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        if (twice := member_twice(pairs)) is not None:
            raise NotStrict(f"the key {twice[:100]} occurs twice")
        super().__init__(pairs)


Tree = Mapping[str, "Tree | None"]
"""The keys of an object that are read, and, for nested objects, the keys in those."""


def tree_of(paths: Iterable[Path]) -> Tree:
    """The keys on some paths."""
    tree: dict[str, Any] = {}
    for path in paths:
        here = tree
        for name in path[:-1]:
            here = here.setdefault(name, {})
        here.setdefault(path[-1], None)
    return tree


def document(value: bytes | None, read: Tree) -> Mapping[str, Any]:
    """The object in a record, of it the members that are `read`. Raises NotStrict, UnicodeDecodeError."""
    if value is None:
        raise NotStrict("the record has no value")
    text = value.decode()
    if "\\u0000" in text and _NUL.search(text):
        raise HoldsNul("the character U+0000")
    if text.startswith("\ufeff"):
        raise NotStrict("a byte order mark stands before it")
    found = value_of(text)
    if not isinstance(found, _Pairs):
        raise NotStrict("the document is no object")
    if _ESCAPED_SURROGATE.search(text) and any(map(_LONE_SURROGATE.search, _texts(found))):
        raise NotStrict("half of a surrogate pair")
    return _members(found, read)


def value_of(text: str) -> Any:
    """The value of any JSON text. Raises NotStrict (ValueError)."""
    levels = levels_of(text)
    if levels > MAX_LEVELS:
        raise NotStrict(f"nested deeper than {MAX_LEVELS} levels")
    try:
        with _stack_for(levels):
            return _DECODER.decode(text)
    except _NoJson as constant:
        raise NotStrict(f"{constant} is no JSON, at {constant_place(text)}") from None
    except json.JSONDecodeError as error:
        raise NotStrict(f"{error.msg.removesuffix(' at')}, at character {error.pos}") from None


def places_of(text: str) -> Iterator[tuple[str, int, int]]:
    """The members of the object that a text is: the name, and where the value begins and ends. Raises NotStrict."""
    if value_of(text).__class__ is not _Pairs:
        raise NotStrict("the document is no object")
    with _stack_for(levels_of(text)):
        yield from member_places(text, _DECODER)


def levels_of(text: str) -> int:
    """How deep objects and arrays are nested in a JSON text; of one with few brackets a number that is no smaller."""
    bound = text.count("{") + text.count("[")
    if bound <= MAX_LEVELS:
        return bound
    # Without escapes each second part is a text.
    outside = _STRING.sub("", text) if "\\" in text else "".join(text.split('"')[::2])
    steps = np.frombuffer(outside.encode().translate(_STEPS, _NO_BRACKETS), np.uint8).astype(np.int64) - 1
    return max(0, int(steps.cumsum().max(initial=0)))


def _text(value: Any) -> str | None:
    return value if value.__class__ is str else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _double(value: Any) -> float | None:
    number = float(value) if isinstance(value, Number) else math.inf
    return number if math.isfinite(number) else None


def _integer(value: Any) -> int | None:
    is_short = isinstance(value, Number) and value.is_whole and len(value) <= 20
    return int(value) if is_short and int(value) in INT64 else None


def _decimal(value: Any) -> Decimal | None:
    if not isinstance(value, Number):
        return None
    try:
        exact = Decimal(value)
    except InvalidOperation:
        # An exponent of more than eighteen digits.
        return None
    if not exact:
        return Decimal(0)
    if not -7 < exact.adjusted() < 11:
        return None
    # Beyond its six decimals there may be zeros.
    _, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)
    surplus = -exponent - 6
    return None if surplus > 0 and any(digits[-surplus:]) else Decimal(f"{exact:.6f}")


TYPED: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.TEXT: _text,
    Kind.BOOLEAN: _boolean,
    Kind.DOUBLE: _double,
    Kind.INTEGER: _integer,
    Kind.DECIMAL: _decimal,
}
"""A member as its kind's column holds it; None where it is of another kind."""


def or_text(typed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same, where a text may be used for the number that it would be without its quotes."""

    def typed_number(value: Any) -> Any:
        is_number = value.__class__ is str and NUMBER.fullmatch(value) is not None
        return typed(Number(value) if is_number else value)

    return typed_number


def _members(pairs: _Pairs, read: Tree) -> dict[str, Any]:
    """Of an object what is read."""
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in read:
            below = read[name]
            members[name] = _members(value, below) if below is not None and isinstance(value, _Pairs) else value
    return members


def members_of(value: Any, read: Tree) -> dict[str, Any] | None:
    """Of a value in a document, which is not read any further there, what is `read`; None of one that is no object."""
    return _members(value, read) if isinstance(value, _Pairs) else None


def _texts(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, _Pairs):
            for name, member in item:
                yield name
                pending.append(member)
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, str):
            yield item


@contextmanager
def _stack_for(levels: int) -> Iterator[None]:
    """Room for a document so deep; Python's own limit is a thousand calls in each other."""
    limit = sys.getrecursionlimit()
    if levels > limit // 4:
        sys.setrecursionlimit(limit + 3 * levels)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _refuse(name: str) -> None:
    raise _NoJson(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_refuse, parse_int=Number, parse_float=Number)
