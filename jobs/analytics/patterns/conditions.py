"""Conditions of `define` as SQL over the outcomes that are stored: numbers are exact, null is unknown."""

from __future__ import annotations

from datetime import timedelta

from psycopg import sql

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

_SIGNS = {"!=": "<>"}


def may_start(pattern: Pattern) -> sql.Composable:
    """Whether an outcome, seen alone, can be the first of a match: `outcome` is a column."""
    names = [name for number, name in enumerate(pattern.variables) if pattern.program.first >> number & 1]
    conditions = [pattern.conditions.get(name) for name in names]
    if any(condition is None or looks_back(condition) for condition in conditions):
        return sql.SQL("true")
    found = [_sql(condition) for condition in conditions if condition is not None]
    return sql.SQL("coalesce({}, false)").format(sql.SQL(" OR ").join(found))


def variables(pattern: Pattern) -> sql.Composable:
    """The variables that an outcome can stand for, as bits: `outcome`, `before` (that of the one before) and `gap` are
    columns.
    """
    bits = [
        sql.SQL("CASE WHEN {} THEN {} ELSE 0 END").format(_sql(pattern.conditions[name]), sql.Literal(1 << number))
        if name in pattern.conditions
        else sql.Literal(1 << number)
        for number, name in enumerate(pattern.variables)
    ]
    return sql.SQL(" + ").join(bits)


def _sql(condition: Condition) -> sql.Composable:
    match condition:
        case Comparison(operator, left, right, kind):
            sides = (_operand(left, kind), sql.SQL(_SIGNS.get(operator, operator)), _operand(right, kind))
            return sql.SQL("({})").format(sql.SQL(" ").join(sides))
        case In(column, values):
            kind = values[0].type
            listed = sql.SQL(", ").join(_operand(value, kind) for value in values)
            return sql.SQL("({} IN ({}))").format(_operand(column, kind), listed)
        case IsNull(operand):
            return sql.SQL("({} IS NULL)").format(_operand(operand, None))
        case Not(of):
            return sql.SQL("(NOT {})").format(_sql(of))
        case Both(left, right):
            return sql.SQL("({} AND {})").format(_sql(left), _sql(right))
        case Either(left, right):
            return sql.SQL("({} OR {})").format(_sql(left), _sql(right))


def _operand(operand: Operand, kind: Type | None) -> sql.Composable:
    match operand:
        case Gap():
            return sql.SQL("gap")
        case Column(name, is_previous):
            found = sql.SQL("{} ->> {}").format(sql.SQL("before" if is_previous else "outcome"), sql.Literal(name))
            return sql.SQL("({})::numeric" if kind is Type.NUMBER else "({})").format(found)
        case Literal(Type.DURATION, value):
            return sql.Literal(timedelta(seconds=int(value)))
        case Literal(Type.NUMBER, value):
            return sql.Literal(value)
        case Literal(_, value):
            return _text(str(value).lower() if isinstance(value, bool) else str(value))


def _text(value: str) -> sql.Composable:
    # Statements have parameters beside it, so a % in a text is written twice.
    return sql.SQL(sql.Literal(value).as_string(None).replace("%", "%%"))
