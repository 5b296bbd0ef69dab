"""What a match is shown with: aggregates of its rows, as MEASURES of MATCH_RECOGNIZE."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum
from functools import reduce

from metering.limits import PLAIN_NAME
from metering.patterns.syntax import VARIABLE

Row = Mapping[str, str]
"""The values of a row by column, without nulls: numbers are written as decimals, booleans are true or false."""
_TEXT = re.compile(
    rf"(?P<function>[a-z]+)\( *"
    rf"(?:\*|(?P<alone>{VARIABLE})|(?P<distinct>distinct +)?(?:(?P<of>{VARIABLE})\.)?(?P<column>{PLAIN_NAME})) *\)"
)
_EXACT = Context(prec=60)


class Function(StrEnum):
    """What is made of the rows: `first` and `last` are a column's value in the first and last of them."""

    COUNT = "count"
    FIRST = "first"
    LAST = "last"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


OF_NUMBERS = (Function.SUM, Function.MIN, Function.MAX)


@dataclass(frozen=True)
class PatternMeasure:
    """One measure; of the rows that stand for `variable`, or of all."""

    name: str
    function: Function
    variable: str | None = None
    column: str | None = None
    is_distinct: bool = False
    """Of a count of a column: whether a value counts once."""

    @property
    def text(self) -> str:
        """As it is declared."""
        of = ".".join(part for part in (self.variable, self.column) if part)
        return f"{self.function}({'distinct ' if self.is_distinct else ''}{of or '*'})"

    def value(self, rows: Sequence[Row], variables: Sequence[str]) -> str | int | None:
        """What it is of a match: the rows, and the variable that each stands for.

        A count is a whole number; a sum, a minimum and a maximum are decimals, written as texts. Null: there is no row,
        or no value in it.
        """
        of = [row for row, name in zip(rows, variables, strict=True) if self.variable in (None, name)]
        if self.column is None:
            return len(of)
        if self.function in (Function.FIRST, Function.LAST):
            return of[0 if self.function is Function.FIRST else -1].get(self.column) if of else None
        values = [value for row in of if (value := row.get(self.column)) is not None]
        if self.function is Function.COUNT:
            return len(set(values) if self.is_distinct else values)
        return f"{_OF_NUMBERS[self.function]([Decimal(value) for value in values]):f}" if values else None


_OF_NUMBERS: Mapping[Function, Callable[[list[Decimal]], Decimal]] = {
    Function.SUM: lambda values: reduce(_EXACT.add, values),
    Function.MIN: min,
    Function.MAX: max,
}


def measure_of(name: str, text: str) -> PatternMeasure:
    """The measure that a text is. Raises ValueError: what it can be."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or found["function"] not in [*Function]:
        raise ValueError(
            f"{text!r} is no measure: count(*), count(A), count(distinct COLUMN), or one of {', '.join(Function)} of a "
            "COLUMN or of A.COLUMN"
        )
    function = Function(found["function"])
    if found["column"] is None and function is not Function.COUNT:
        raise ValueError(f"{text!r} needs a column, such as {function}(model) or {function}(A.model)")
    if found["distinct"] and function is not Function.COUNT:
        raise ValueError(f"{text!r} is no measure: only count has distinct")
    return PatternMeasure(
        name, function, found["alone"] or found["of"], found["column"], is_distinct=bool(found["distinct"])
    )
