"""The text of a condition → its tree, typed by the columns that outcomes have.

    condition := and ("or" and)*        and := not ("and" not)*        not := "not" not | "(" condition ")" | test
    test := column (= | != | < | <= | > | >=) value | column ["not"] "in" "(" value ("," value)* ")"
          | column "starts with" text | column "is" ["not"] "null" | column of true and false

It is written by hand: a generator's errors name its states, and these must name the column and what is meant there.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from decimal import Decimal

from metering.contracts.model import NUMBERS, Kind
from metering.limits import MAX_TAG_NAME_BYTES
from metering.meters import QUANTITY_DECIMALS
from metering.watches.expressions import ORDERED, And, ColumnTest, Expression, Not, Operator, Or, Value
from metering.watches.tokens import Mistake, Token, TokenKind, tokens

TAGS = "account.tags."
MAX_TESTS = 64
MAX_DEPTH = 32
MAX_INTEGER = 10**18
_WRITTEN_OTHERWISE = {"==": Operator.EQ, "<>": Operator.NE}
_COMPARED = {operator.value: operator for operator in (Operator.EQ, Operator.NE, *ORDERED)} | _WRITTEN_OTHERWISE
_KEYWORDS = ("and", "or", "not", "in", "is", "null", "true", "false", "starts", "with")
_IS = {
    Kind.TEXT: 'a text, such as "eu"',
    Kind.BOOLEAN: "true or false",
    Kind.INTEGER: "a whole number, such as 100000",
    Kind.DECIMAL: f"a number with at most {QUANTITY_DECIMALS} decimals",
    Kind.DOUBLE: "a number",
}


def parse(text: str, columns: Mapping[str, Kind]) -> Expression:
    """The tree of a condition over these columns, and the tags of accounts. Raises Mistake."""
    return _Parser(text, columns).whole()


class _Parser:
    def __init__(self, text: str, columns: Mapping[str, Kind]) -> None:
        self._text = text
        self._columns = columns
        self._tokens = tokens(text)
        self._at = 0
        self._tests = 0
        self._depth = 0

    def whole(self) -> Expression:
        found = self._any_of()
        if self._next.kind is not TokenKind.END:
            raise self._mistake("expected `and`, `or` or the end")
        return found

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _takes(self, *words: str) -> bool:
        """Whether these words come next; then they are taken."""
        ahead = self._tokens[self._at : self._at + len(words)]
        if len(ahead) < len(words) or not all(token.is_word(word) for token, word in zip(ahead, words, strict=True)):
            return False
        self._at += len(words)
        return True

    def _takes_symbol(self, symbol: str) -> bool:
        found = self._next.kind is TokenKind.SYMBOL and self._next.text == symbol
        self._at += found
        return found

    def _mistake(self, message: str, token: Token | None = None) -> Mistake:
        where = self._next if token is None else token
        there = "" if where.kind is not TokenKind.END else ", but the condition ends here"
        return Mistake(self._text, where.column, message + there)

    def _any_of(self) -> Expression:
        return self._several("or", self._all_of, Or)

    def _all_of(self) -> Expression:
        return self._several("and", self._negated, And)

    def _several(self, word: str, part: Callable[[], Expression], kind: type[And] | type[Or]) -> Expression:
        parts = [part()]
        while self._takes(word):
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        # (a and b) and c is one conjunction, by whose tests it is found.
        flat = [inner for item in parts for inner in (item.parts if isinstance(item, kind) else (item,))]
        return kind(tuple(flat))

    def _negated(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._mistake(f"more than {MAX_DEPTH} conditions within one another")
        try:
            if self._takes("not"):
                return Not(self._negated())
            if not self._takes_symbol("("):
                return self._test()
            found = self._any_of()
            if not self._takes_symbol(")"):
                raise self._mistake("expected `)`")
            return found
        finally:
            self._depth -= 1

    def _test(self) -> Expression:
        self._tests += 1
        if self._tests > MAX_TESTS:
            raise self._mistake(f"a condition has at most {MAX_TESTS} tests")
        column = self._column()
        name, kind = column.text, self._kind(column)
        is_negated, found = self._by_words(name, kind)
        if found is not None:
            return Not(found) if is_negated else found
        symbol = self._next
        if symbol.kind is TokenKind.SYMBOL and symbol.text in _COMPARED:
            operator = _COMPARED[self._take().text]
            if operator in ORDERED and kind not in NUMBERS:
                raise self._mistake(f"{name} is {_IS[kind]}, which has no order: use =, !=, in or starts with", symbol)
            return ColumnTest(name, kind, operator, (self._value(name, kind),))
        if kind is Kind.BOOLEAN:
            return ColumnTest(name, kind, Operator.EQ, (True,))
        raise self._mistake(
            f"expected a test of {name}: =, !=, {'<, <=, >, >=, ' if kind in NUMBERS else ''}in, "
            f"{'starts with, ' if kind is Kind.TEXT else ''}is null"
        )

    def _by_words(self, name: str, kind: Kind) -> tuple[bool, ColumnTest | None]:
        """A test that is written in words, and whether it is negated; None where a symbol follows the column."""
        if self._takes("is", "not", "null"):
            return True, ColumnTest(name, kind, Operator.IS_NULL)
        if self._takes("is", "null"):
            return False, ColumnTest(name, kind, Operator.IS_NULL)
        is_negated = self._takes("not", "in")
        if is_negated or self._takes("in"):
            return is_negated, ColumnTest(name, kind, Operator.IN, self._listed(name, kind))
        start = self._next
        if not self._takes("starts", "with"):
            return False, None
        if kind is not Kind.TEXT:
            raise self._mistake(f"{name} is compared with {_IS[kind]}, and only texts have a start", start)
        return False, ColumnTest(name, kind, Operator.STARTS_WITH, (self._value(name, kind),))

    def _column(self) -> Token:
        token = self._next
        if token.kind is not TokenKind.NAME or token.text.lower() in _KEYWORDS:
            raise self._mistake("expected a column, such as model")
        return self._take()

    def _kind(self, column: Token) -> Kind:
        name = column.text
        if name.startswith(TAGS) and 0 < len(name.removeprefix(TAGS).encode()) <= MAX_TAG_NAME_BYTES:
            return Kind.TEXT
        if name in self._columns:
            return self._columns[name]
        near = difflib.get_close_matches(name, [*self._columns, f"{TAGS}KEY"], 1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(self._columns))}, {TAGS}KEY"
        raise self._mistake(f"outcomes have no column {name}; {meant}", column)

    def _listed(self, name: str, kind: Kind) -> tuple[Value, ...]:
        if not self._takes_symbol("("):
            raise self._mistake('expected a list, such as ("a", "b")')
        values = [self._value(name, kind)]
        while self._takes_symbol(","):
            values.append(self._value(name, kind))
        if not self._takes_symbol(")"):
            raise self._mistake("expected `,` or `)`")
        return tuple(dict.fromkeys(values))

    def _value(self, name: str, kind: Kind) -> Value:
        token = self._next
        found: Value | None = None
        if kind is Kind.TEXT and token.kind is TokenKind.TEXT:
            found = token.text
        elif kind is Kind.BOOLEAN and (token.is_word("true") or token.is_word("false")):
            found = token.is_word("true")
        elif kind in NUMBERS and token.kind is TokenKind.NUMBER:
            found = _number(token.text, kind)
        if found is None:
            hint = " (is null tests for nothing)" if token.is_word("null") else ""
            raise self._mistake(f"{name} is compared with {_IS[kind]}{hint}")
        self._take()
        return found


def _number(written: str, kind: Kind) -> int | Decimal | float | None:
    """The number; None where a column of this kind has no such numbers."""
    number = Decimal(written)
    if kind is Kind.DOUBLE:
        return float(number)
    if abs(number) >= MAX_INTEGER:
        return None
    if kind is Kind.INTEGER:
        return int(number) if number == number.to_integral_value() else None
    return number if number == round(number, QUANTITY_DECIMALS) else None
