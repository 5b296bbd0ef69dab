"""Conditions of `define` as expressions of Polars over outcomes: numbers are exact, null is unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_

import polars as pl

from jobs.analytics.patterns.blocks import DECIMAL, stored_as
from metering.meters import QUANTITY_DECIMALS
from metering.patterns.burst import AnyPattern, Burst
from metering.patterns.expressions import (
    Both,
    Column,
    Comparison,
    Condition,
    Either,
    Gap,
    In,
    IsNull,
    Literal,
    Not,
    Operand,
    Type,
    looks_back,
)
from metering.patterns.pattern import Pattern

GAP = "#gap"
"""How long after the outcome before an outcome occurred: null where there is none within the pattern's time."""
_BEFORE = "#before "
_OPERATORS: Mapping[str, Callable[[pl.Expr, pl.Expr], pl.Expr]] = {
    "=": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_UNIT = Decimal(1).scaleb(-QUANTITY_DECIMALS)
_MAX = Decimal("9" * (38 - QUANTITY_DECIMALS) + "." + "9" * QUANTITY_DECIMALS)
_EXACT = Context(prec=2_000)
"""A condition is at most so long."""
_ROUNDED = {"<": ROUND_CEILING, ">=": ROUND_CEILING, "<=": ROUND_FLOOR, ">": ROUND_FLOOR}


def before(column: str) -> str:
    """The name of a block's column in the outcome before."""
    return _BEFORE + column


def reads_before(pattern: Pattern) -> bool:
    """Whether any of its conditions reads the outcome before."""
    return any(map(looks_back, pattern.conditions.values()))


def variables(pattern: Pattern) -> pl.Expr:
    """The variables that an outcome can stand for, as bits; `before` of its columns and GAP are columns."""
    bits = [
        _true(_expression(pattern.conditions[name], pattern)).cast(pl.UInt32) * (1 << number)
        if name in pattern.conditions
        else pl.lit(1 << number, pl.UInt32)
        for number, name in enumerate(pattern.variables)
    ]
    return reduce(lambda left, right: left + right, bits)


def starts_look_back(pattern: Pattern) -> bool:
    """Whether the first outcome of a match may be one because of the outcome before it."""
    return any(looks_back(pattern.conditions[name]) for name in _first(pattern) if name in pattern.conditions)


def may_start(pattern: Pattern) -> pl.Expr:
    """Whether an outcome, seen alone, can be the first of a match: false only where it cannot."""
    return _may_be(pattern, _first(pattern))


def may_stand(pattern: Pattern) -> pl.Expr:
    """Whether an outcome, seen alone, can be in a match: false only where it cannot."""
    return _may_be(pattern, pattern.variables)


def is_counted(burst: Burst) -> pl.Expr:
    """Whether an outcome is one of those that a burst counts."""
    return pl.lit(value=True) if burst.condition is None else _true(_expression(burst.condition, burst))


def _first(pattern: Pattern) -> list[str]:
    return [name for number, name in enumerate(pattern.variables) if pattern.program.first >> number & 1]


def _may_be(pattern: Pattern, names: Sequence[str]) -> pl.Expr:
    conditions = [pattern.conditions.get(name) for name in names]
    found = [
        pl.lit(value=True) if condition is None else _may(condition, pattern, wanted=True) for condition in conditions
    ]
    return reduce(or_, found)


def _may(condition: Condition, pattern: Pattern, *, wanted: bool) -> pl.Expr:
    """Whether it can be true after some outcome; with `wanted` false, whether it can be false after some outcome."""
    match condition:
        case Not(of):
            return _may(of, pattern, wanted=not wanted)
        case Both(left, right) | Either(left, right):
            sides = [_may(side, pattern, wanted=wanted) for side in (left, right)]
            needs_both = isinstance(condition, Both) == wanted
            return reduce(and_ if needs_both else or_, sides)
    if looks_back(condition):
        return pl.lit(value=True)
    found = _expression(condition, pattern)
    return _true(found if wanted else ~found)


def _true(condition: pl.Expr) -> pl.Expr:
    return condition.fill_null(value=False)


def _expression(condition: Condition, pattern: AnyPattern) -> pl.Expr:
    match condition:
        case Comparison():
            return _comparison(condition, pattern)
        case In(column, values):
            kind = values[0].type
            return reduce(or_, [_expression(Comparison("=", column, value, kind), pattern) for value in values])
        case IsNull(operand):
            return _operand(operand, pattern).is_null()
        case Not(of):
            return ~_expression(of, pattern)
        case Both(left, right):
            return _expression(left, pattern) & _expression(right, pattern)
        case Either(left, right):
            return _expression(left, pattern) | _expression(right, pattern)


def _comparison(of: Comparison, pattern: AnyPattern) -> pl.Expr:
    left, right = (_operand(side, pattern) for side in (of.left, of.right))
    if isinstance(of.right, Literal) and of.right.type is Type.NUMBER:
        return _compared(of.operator, left, Decimal(str(of.right.value)))
    if of.type is None and _is_number(of.left, pattern) != _is_number(of.right, pattern):
        left, right = left.cast(pl.String), right.cast(pl.String)
    return _OPERATORS[of.operator](left, right)


def _compared(operator: str, column: pl.Expr, value: Decimal) -> pl.Expr:
    """A decimal column compared with any number: one between two of the column's decimals, or beyond all, too."""
    is_known = pl.when(column.is_not_null())
    if value.copy_abs() > _MAX:
        is_met = operator == "!=" or (operator in {"<", "<="} if value > 0 else operator in {">", ">="})
        return is_known.then(pl.lit(is_met))
    if operator in _ROUNDED:
        rounded = value.quantize(_UNIT, _ROUNDED[operator], _EXACT)
    else:
        rounded = value.quantize(_UNIT, ROUND_FLOOR, _EXACT)
        if rounded != value:
            return is_known.then(pl.lit(operator == "!="))
    return _OPERATORS[operator](column, pl.lit(rounded, DECIMAL))


def _is_number(operand: Operand, pattern: AnyPattern) -> bool:
    return isinstance(operand, Column) and operand.name in pattern.numbers


def _operand(operand: Operand, pattern: AnyPattern) -> pl.Expr:
    match operand:
        case Gap():
            return pl.col(GAP)
        case Column(name, is_previous):
            stored = stored_as(pattern, name)
            return pl.col(before(stored) if is_previous else stored)
        case Literal(Type.DURATION, value):
            return pl.lit(timedelta(seconds=int(value)))
        case Literal(_, value):
            return pl.lit(str(value).lower() if isinstance(value, bool) else str(value))
