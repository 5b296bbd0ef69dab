"""The text of a pattern: variables one after another, `|`, parentheses, and how often each is repeated.

As in MATCH_RECOGNIZE, what stands first is preferred: the left side of `|`, and more repetitions before fewer, or with
`?` after a quantifier fewer before more. Anchors, PERMUTE, exclusions `{- -}` and the empty pattern are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

MAX_VARIABLES = 16
MAX_REPEATED = 1_000
MAX_STEPS = 2_000
"""How long a pattern is with its repetitions written out."""
VARIABLE = r"[A-Z][A-Z0-9_]*"


@dataclass(frozen=True)
class Variable:
    """One row that is what `define` says of the variable."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """One after another."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of them; an earlier one is preferred."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """From `least` to `most` times, without end where it is None; more is preferred unless it is reluctant."""

    part: Node
    least: int
    most: int | None
    is_reluctant: bool


Node: TypeAlias = Variable | Sequence | Choice | Repeat

_TOKEN = re.compile(
    rf"\s*(?:(?P<variable>{VARIABLE})|(?P<quantifier>(?:[?*+]|\{{ *[0-9]* *,? *[0-9]* *\}})\??)|(?P<sign>[()|]))"
)
_SIGNS = {"?": (0, 1), "*": (0, None), "+": (1, None)}


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str, int]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            found = _TOKEN.match(text, at)
            if found is None:
                self._refuse(
                    at, "a variable (capital letters, digits, _), (, ), |, or a quantifier ? * + {n} {n,} {,m} {n,m}"
                )
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind], found.start(kind)))
            at = found.end()
        self._at = 0

    def whole(self) -> Node:
        found = self._choice()
        if self._at < len(self._tokens):
            self._refuse(self._tokens[self._at][2], "the end: this ) closes nothing")
        return found

    def _choice(self) -> Node:
        parts = [self._sequence()]
        while self._next_is("|"):
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._at < len(self._tokens) and not self._next_is("|", ")"):
            parts.append(self._repeated())
        if not parts:
            at = self._tokens[self._at][2] if self._at < len(self._tokens) else len(self._text)
            self._refuse(at, "a variable or a group")
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self) -> Node:
        kind, text, at = self._tokens[self._at]
        self._at += 1
        part: Node
        if kind == "variable":
            part = Variable(text)
        elif text == "(":
            part = self._choice()
            if not self._next_is(")"):
                self._refuse(len(self._text), f"the ) of the ( at character {at + 1}")
            self._at += 1
        else:
            self._refuse(at, "a variable or a group before the quantifier")
        if self._at < len(self._tokens) and self._tokens[self._at][0] == "quantifier":
            part = self._quantified(part, *self._tokens[self._at][1:])
            self._at += 1
        return part

    def _quantified(self, part: Node, text: str, at: int) -> Node:
        sign = text[:-1] if len(text) > 1 and text.endswith("?") else text
        if can_be_empty(part):
            raise ValueError(
                f"{self._text!r} repeats at character {at + 1} what can be nothing: repeat its parts instead"
            )
        if sign in _SIGNS:
            least, most = _SIGNS[sign]
        else:
            first, comma, last = sign[1:-1].replace(" ", "").partition(",")
            if not (first or last):
                self._refuse(at, "a number, as in {3}, {3,}, {,5} or {3,5}")
            least = int(first or 0)
            most = (int(last) if last else None) if comma else least
        if max(least, most or 0) > MAX_REPEATED or most == 0 or (most is not None and most < least):
            raise ValueError(
                f"{self._text!r} has {text} at character {at + 1}; a quantifier repeats up to 1 to {MAX_REPEATED:,} "
                "times, and its first number is at most its second"
            )
        return Repeat(part, least, most, is_reluctant=sign != text)

    def _next_is(self, *signs: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at][1] in signs

    def _refuse(self, at: int, expected: str) -> NoReturn:
        raise ValueError(f"{self._text!r} must have {expected} at character {at + 1}")


def parsed(text: str) -> Node:
    """The pattern that a text is. Raises ValueError: what it must have where."""
    found = _Parser(text).whole()
    if can_be_empty(found):
        raise ValueError(f"{text!r} matches no row at all, too; a pattern has at least one")
    if (names := len({*variables(found)})) > MAX_VARIABLES:
        raise ValueError(f"{text!r} has {names} variables; it can have {MAX_VARIABLES}")
    if (steps := _steps(found)) > MAX_STEPS:
        raise ValueError(f"{text!r} is {steps:,} variables with its repetitions written out, at most {MAX_STEPS:,}")
    return found


def variables(node: Node) -> Iterator[str]:
    """Its variables in the order of the text, each as often as it stands there."""
    match node:
        case Variable(name):
            yield name
        case Sequence(parts) | Choice(parts):
            for part in parts:
                yield from variables(part)
        case Repeat(part, _, _, _):
            yield from variables(part)


def can_be_empty(node: Node) -> bool:
    """Whether it matches nothing, too."""
    match node:
        case Variable(_):
            return False
        case Sequence(parts):
            return all(map(can_be_empty, parts))
        case Choice(parts):
            return any(map(can_be_empty, parts))
        case Repeat(_, least, _, _):
            return least == 0


def _steps(node: Node) -> int:
    match node:
        case Variable(_):
            return 1
        case Sequence(parts) | Choice(parts):
            return sum(map(_steps, parts))
        case Repeat(part, least, most, _):
            return _steps(part) * max(1, least if most is None else most)
