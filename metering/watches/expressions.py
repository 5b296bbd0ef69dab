"""The condition of a watch as a tree: tests of columns, joined by and, or and not, with the nulls of SQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from metering.contracts.model import Kind

Value = str | bool | int | Decimal | float
"""What a column is compared with: of the column's own kind."""


class Operator(StrEnum):
    """How a column is tested, as it is written."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    IN = "in"
    STARTS_WITH = "starts with"
    IS_NULL = "is null"


ORDERED = (Operator.LT, Operator.LE, Operator.GT, Operator.GE)
"""What only numbers have."""


@dataclass(frozen=True)
class ColumnTest:
    """One test of one column. `values` has one value; several of IN, none of IS_NULL."""

    column: str
    kind: Kind
    operator: Operator
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class Not:
    """Unknown stays unknown, as in SQL: what no column says is no hit, however it is negated."""

    of: Expression


@dataclass(frozen=True)
class And:
    """At least two."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True)
class Or:
    """At least two."""

    parts: tuple[Expression, ...]


Expression = ColumnTest | Not | And | Or


def column_tests(expression: Expression) -> Iterator[ColumnTest]:
    """All tests in it, from left to right."""
    match expression:
        case ColumnTest():
            yield expression
        case Not(of):
            yield from column_tests(of)
        case And(parts) | Or(parts):
            for part in parts:
                yield from column_tests(part)


def conjuncts(expression: Expression) -> tuple[Expression, ...]:
    """What must all be true for it to be true."""
    return expression.parts if isinstance(expression, And) else (expression,)


def only_account(expression: Expression) -> str | None:
    """The account without which it is never true; None: it may be true of several."""
    for part in conjuncts(expression):
        if isinstance(part, ColumnTest) and part.column == "account" and part.operator in (Operator.EQ, Operator.IN):
            values = set(part.values)
            if len(values) == 1:
                return str(values.pop())
    return None
