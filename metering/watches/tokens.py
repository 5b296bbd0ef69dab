"""The text of a condition as tokens, each with the column where it begins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

MAX_BYTES = 4_000
"""Of a condition, in UTF-8."""


class Mistake(ValueError):
    """A condition that says nothing: `column` is where in the text, from 1; the message says what is meant there."""

    def __init__(self, text: str, column: int, message: str) -> None:
        super().__init__(f"column {column}: {message}")
        self.text = text
        self.column = column

    @property
    def pointing(self) -> str:
        """The line of the text and, below it, a caret at the column."""
        before, after = self.text[: self.column - 1], self.text[self.column - 1 :]
        line = before.rpartition("\n")[2]
        return f"{line}{after.partition(chr(10))[0]}\n{' ' * len(line)}^"


class TokenKind(StrEnum):
    """What a token is, as errors call it."""

    NAME = "a column"
    TEXT = "a text"
    NUMBER = "a number"
    SYMBOL = "a symbol"
    END = "the end"


@dataclass(frozen=True)
class Token:
    """`text`: as written; of a text its value, of a name in parts its parts joined by dots."""

    kind: TokenKind
    text: str
    column: int

    def is_word(self, word: str) -> bool:
        """Whether it is this keyword, in capitals or not."""
        return self.kind is TokenKind.NAME and self.text.lower() == word


_PATTERN = re.compile(
    r"""(?P<space>\s+)
      | (?P<name>[A-Za-z_]\w*(?:\.(?:\w+|"(?:[^"\\]|\\.)*"))*)
      | (?P<number>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?![\w.]))
      | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<symbol><=|>=|!=|<>|==|[=<>(),])""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[^."]+', re.DOTALL)


def tokens(text: str) -> list[Token]:
    """All tokens of a condition, and END. Raises Mistake."""
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise Mistake(text, 1, f"a condition has at most {MAX_BYTES:,} bytes; ask several watches")
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _PATTERN.match(text, at)
        if match is None:
            raise Mistake(text, at + 1, _unreadable(text[at]))
        kind = match.lastgroup
        if kind != "space":
            found.append(_token(str(kind), match.group(), at + 1))
        at = match.end()
    return [*found, Token(TokenKind.END, "", len(text) + 1)]


def _token(kind: str, written: str, column: int) -> Token:
    if kind == "text":
        return Token(TokenKind.TEXT, _unquoted(written), column)
    if kind == "name":
        parts = _PART.findall(written) if '"' in written else [written]
        name = ".".join(_unquoted(part) if part.startswith('"') else part for part in parts)
        return Token(TokenKind.NAME, name, column)
    return Token(TokenKind(f"a {kind}"), written, column)


def _unquoted(written: str) -> str:
    return _ESCAPED.sub(r"\1", written[1:-1])


def _unreadable(character: str) -> str:
    if character in "\"'":
        return f"this text has no end: close it with {character}"
    if character.isdigit():
        return "this is no number: write 100000 or 0.5"
    return f"{character!r} means nothing here; texts stand in quotes"
