"""The tree of a condition → an expression of Polars, with its values as they are or from columns of parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce

import polars as pl

from metering.contracts.model import Kind
from metering.meters import QUANTITY_DECIMALS
from metering.watches.expressions import And, ColumnTest, Expression, Not, Operator, Or

TYPES: Mapping[Kind, pl.DataType] = {
    Kind.TEXT: pl.String(),
    Kind.BOOLEAN: pl.Boolean(),
    Kind.INTEGER: pl.Int64(),
    Kind.DECIMAL: pl.Decimal(38, QUANTITY_DECIMALS),
    Kind.DOUBLE: pl.Float64(),
}
"""What a column of each kind is cast to before it is tested: of an older file it may be missing, and all null."""
ValueOf = Callable[[ColumnTest], pl.Expr]
"""A test of one value → what its column is compared with."""


def literal(test: ColumnTest) -> pl.Expr:
    """The test's own value."""
    return pl.lit(test.values[0], TYPES[test.kind])


def condition(expression: Expression, value_of: ValueOf = literal) -> pl.Expr:
    """True, false or null of each row, as SQL has it: null where the columns do not decide it."""
    match expression:
        case ColumnTest():
            return _test(expression, value_of)
        case Not(of):
            return ~condition(of, value_of)
        case And(parts):
            return reduce(lambda a, b: a & b, [condition(part, value_of) for part in parts])
        case Or(parts):
            return reduce(lambda a, b: a | b, [condition(part, value_of) for part in parts])


def _test(test: ColumnTest, value_of: ValueOf) -> pl.Expr:
    column = pl.col(test.column)
    if test.operator is Operator.IS_NULL:
        return column.is_null()
    if test.operator is Operator.IN:
        return column.is_in(pl.Series(list(test.values), dtype=TYPES[test.kind]).implode())
    return _COMPARED[test.operator](column, value_of(test))


_COMPARED: Mapping[Operator, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    Operator.EQ: pl.Expr.eq,
    Operator.NE: pl.Expr.ne,
    Operator.LT: pl.Expr.lt,
    Operator.LE: pl.Expr.le,
    Operator.GT: pl.Expr.gt,
    Operator.GE: pl.Expr.ge,
    Operator.STARTS_WITH: lambda column, value: column.str.starts_with(value),
}
