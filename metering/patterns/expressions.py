"""The conditions of `define`: what an outcome, seen with the one before it, must be to stand for a variable.

A condition reads a row and the row before it, never the match so far: so each row has its variables before anything
is matched. Null is unknown, as in SQL: only what is true stands for the variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import NoReturn, TypeAlias

from metering.once_per import seconds_of

MAX_LENGTH = 2_000
MAX_DEPTH = 20


class Type(StrEnum):
    """What a literal is, and so what is compared with it."""

    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"
    DURATION = "duration"


@dataclass(frozen=True)
class Column:
    """A column of the row, or with `is_previous` of the row before it."""

    name: str
    is_previous: bool = False


@dataclass(frozen=True)
class Gap:
    """`gap`: how long after the row before it the row occurred."""


@dataclass(frozen=True)
class Literal:
    """A constant; a duration in seconds."""

    type: Type
    value: str | Decimal | bool | int


Operand: TypeAlias = Column | Gap | Literal


@dataclass(frozen=True)
class Comparison:
    """`operator` is one of = != < <= > >=; what is compared is of `type`, or null where only columns are."""

    operator: str
    left: Operand
    right: Operand
    type: Type | None


@dataclass(frozen=True)
class In:
    """Whether a column is one of several literals of one type."""

    column: Column
    values: tuple[Literal, ...]


@dataclass(frozen=True)
class IsNull:
    """Whether a column, or the gap, is null."""

    operand: Column | Gap


@dataclass(frozen=True)
class Not:
    """Its inverse; unknown stays unknown."""

    of: Condition


@dataclass(frozen=True)
class Both:
    """`and`."""

    left: Condition
    right: Condition


@dataclass(frozen=True)
class Either:
    """`or`."""

    left: Condition
    right: Condition


Condition: TypeAlias = Comparison | In | IsNull | Not | Both | Either

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?[0-9]+(?:\.[0-9]+)?)(?![\w.])|(?P<text>\"(?:[^\"\\]|\\[\"'\\])*\"|'(?:[^'\\]|\\[\"'\\])*')"
    r"|(?P<duration>P[0-9T][0-9A-Z]*)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>!=|<=|>=|<>|==|[=<>(),]))"
)
_WORDS = ("and", "or", "not", "in", "is", "null", "true", "false", "prev", "gap")
_WRITTEN_OTHERWISE = {"==": "=", "<>": "!="}
_ORDERED = ("<", "<=", ">", ">=")
_ITS_TYPE = {"number": Type.NUMBER, "text": Type.TEXT, "duration": Type.DURATION}


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0

    def whole(self) -> Condition:
        found = self._either()
        if (rest := self._peek()) is not None:
            self._refuse(rest, "`and`, `or`, or the end")
        return found

    def _either(self) -> Condition:
        found = self._both()
        while self._takes("or"):
            found = Either(found, self._both())
        return found

    def _both(self) -> Condition:
        found = self._not()
        while self._takes("and"):
            found = Both(found, self._not())
        return found

    def _not(self) -> Condition:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ValueError(f"a condition can be nested {MAX_DEPTH} deep")
        found: Condition = Not(self._not()) if self._takes("not") else self._test()
        self._depth -= 1
        return found

    def _test(self) -> Condition:
        if self._takes("("):
            found = self._either()
            self._expect(")")
            return found
        token = self._peek()
        left = self._operand()
        if isinstance(left, Literal):
            self._refuse(token, "a column: constants stand on the right")
        if self._takes("is"):
            is_not = self._takes("not")
            self._expect("null")
            return Not(IsNull(left)) if is_not else IsNull(left)
        is_not = self._takes("not")
        if is_not or self._is("in"):
            self._expect("in")
            if isinstance(left, Gap):
                self._refuse(token, "a column: `gap` is compared with a duration")
            found_in = In(left, self._listed())
            return Not(found_in) if is_not else found_in
        return self._comparison(left)

    def _comparison(self, left: Column | Gap) -> Condition:
        token = self._next("a comparison")
        if token.kind != "sign" or token.text in "(),":
            self._refuse(token, "=, !=, <, <=, >, >=, `in`, `is null` or `is not null`")
        right = self._operand()
        given = right.type if isinstance(right, Literal) else None
        if isinstance(left, Gap) or isinstance(right, Gap):
            if given is not Type.DURATION:
                self._refuse(token, "a duration such as PT5S: `gap` is compared with nothing else")
            return Comparison(token.text, left, right, given)
        if given is Type.DURATION:
            self._refuse(token, "`gap`: only it is compared with a duration")
        if token.text in _ORDERED:
            if given not in (None, Type.NUMBER):
                self._refuse(token, "= or !=: only numbers and durations are less or greater")
            given = Type.NUMBER
        return Comparison(token.text, left, right, given)

    def _listed(self) -> tuple[Literal, ...]:
        self._expect("(")
        found: list[Literal] = []
        while not found or self._takes(","):
            token = self._peek()
            value = self._operand()
            is_fit = isinstance(value, Literal) and value.type is not Type.DURATION
            if not isinstance(value, Literal) or not is_fit or (found and value.type is not found[0].type):
                self._refuse(token, "texts, numbers, or true and false, all of one kind")
            found.append(value)
        self._expect(")")
        return tuple(found)

    def _operand(self) -> Operand:
        token = self._next("a column")
        if token.kind in _ITS_TYPE:
            return _literal(token)
        if token.text in ("true", "false"):
            return Literal(Type.BOOLEAN, token.text == "true")
        if token.text == "gap":
            return Gap()
        if token.text == "prev" and self._takes("("):
            name = self._next("a column")
            if name.kind != "word" or name.text in _WORDS:
                self._refuse(name, "a column")
            self._expect(")")
            return Column(name.text, is_previous=True)
        if token.kind != "word" or token.text in _WORDS:
            self._refuse(token, "a column, prev(COLUMN), gap, or a constant")
        return Column(token.text)

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _is(self, text: str) -> bool:
        token = self._peek()
        return token is not None and token.text == text and token.kind in ("word", "sign")

    def _takes(self, text: str) -> bool:
        if self._is(text):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            self._refuse(self._peek(), f"`{text}`")

    def _next(self, expected: str) -> _Token:
        token = self._peek()
        if token is None:
            self._refuse(None, expected)
        self._at += 1
        return token

    def _refuse(self, token: _Token | None, expected: str) -> NoReturn:
        where = "ends" if token is None else f"has {token.text} at character {token.at + 1}"
        raise ValueError(f"{self._text!r} {where}, where it must have {expected}")


def _tokens(text: str) -> Iterator[_Token]:
    at, end = 0, len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(
                f"{text!r} cannot be read from character {at + 1} on: a condition has columns, prev(COLUMN), gap, "
                '"texts", numbers, durations such as PT5S, and and, or, not, in, is null, =, !=, <, <=, >, >='
            )
        kind = str(found.lastgroup)
        written = found[kind]
        # Words of the language may be in capitals, as in SQL.
        means = written.lower() if written.lower() in _WORDS else _WRITTEN_OTHERWISE.get(written, written)
        yield _Token(kind, means, found.start(kind))
        at = found.end()


def _literal(token: _Token) -> Literal:
    kind = _ITS_TYPE[token.kind]
    if kind is Type.NUMBER:
        return Literal(kind, Decimal(token.text))
    if kind is Type.DURATION:
        return Literal(kind, seconds_of(token.text))
    text = re.sub(r"\\(.)", r"\1", token.text[1:-1])
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("a text cannot have the character U+0000 or half of a surrogate pair")
    return Literal(kind, text)


def condition_of(text: str) -> Condition:
    """The condition that a text is. Raises ValueError: what stands where, and what must."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"a condition is at most {MAX_LENGTH:,} characters (it has {len(text):,})")
    return _Parser(text).whole()


def uses(condition: Condition) -> Iterator[tuple[str, Type | None]]:
    """The columns that a condition reads, each with the type that it is compared as; None: as it is."""
    match condition:
        case Comparison(_, left, right, kind):
            yield from ((side.name, kind) for side in (left, right) if isinstance(side, Column))
        case In(column, values):
            yield column.name, values[0].type
        case IsNull(operand):
            yield from ((operand.name, None) for _ in [0] if isinstance(operand, Column))
        case Not(of):
            yield from uses(of)
        case Both(left, right) | Either(left, right):
            yield from uses(left)
            yield from uses(right)


def looks_back(condition: Condition) -> bool:
    """Whether it reads the row before."""
    match condition:
        case Comparison(_, left, right, _):
            return any(_is_back(side) for side in (left, right))
        case In(column, _):
            return _is_back(column)
        case IsNull(operand):
            return _is_back(operand)
        case Not(of):
            return looks_back(of)
        case Both(left, right) | Either(left, right):
            return looks_back(left) or looks_back(right)


def _is_back(operand: Operand) -> bool:
    return isinstance(operand, Gap) or (isinstance(operand, Column) and operand.is_previous)
