"""Conditions of watches at random, and what they mean row by row: it shares no code with what compiles them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from metering.contracts.model import Kind
from metering.watches.expressions import And, Expression, Not, Operator, Or

COLUMNS: Mapping[str, Kind] = {
    "account": Kind.TEXT,
    "model": Kind.TEXT,
    "account.tags.team": Kind.TEXT,
    "cached": Kind.BOOLEAN,
    "output_tokens": Kind.INTEGER,
    "gpu_seconds": Kind.DECIMAL,
    "latency_ms": Kind.DOUBLE,
}
VALUES: Mapping[Kind, tuple[Any, ...]] = {
    Kind.TEXT: ("a", "ab", "b", "", "ü", 'q"\\'),
    Kind.BOOLEAN: (True, False),
    Kind.INTEGER: (-1, 0, 1, 7, 100_000),
    Kind.DECIMAL: (Decimal(0), Decimal("0.5"), Decimal("0.500001"), Decimal(12)),
    Kind.DOUBLE: (0.0, 0.1, 0.5, 1e9),
}


def truth(expression: Expression, row: Mapping[str, Any]) -> bool | None:
    """What SQL's three values make of it for one row."""
    if isinstance(expression, Not):
        inner = truth(expression.of, row)
        return None if inner is None else not inner
    if isinstance(expression, And | Or):
        found = [truth(part, row) for part in expression.parts]
        decisive = isinstance(expression, Or)
        return decisive if decisive in found else None if None in found else not decisive
    value = row[expression.column]
    if expression.operator is Operator.IS_NULL:
        return value is None
    if value is None:
        return None
    given = expression.values
    meanings: dict[Operator, Callable[[], bool]] = {
        Operator.EQ: lambda: value == given[0],
        Operator.NE: lambda: value != given[0],
        Operator.LT: lambda: value < given[0],
        Operator.LE: lambda: value <= given[0],
        Operator.GT: lambda: value > given[0],
        Operator.GE: lambda: value >= given[0],
        Operator.IN: lambda: value in given,
        Operator.STARTS_WITH: lambda: value.startswith(given[0]),
    }
    return meanings[expression.operator]()


def some_rows(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Rows with every column, some of them null."""
    return [{name: chance.choice([None, *VALUES[kind]]) for name, kind in COLUMNS.items()} for _ in range(count)]


def some_condition(chance: random.Random, depth: int = 2) -> str:
    """A condition as somebody may write it."""
    if depth and chance.random() < 0.6:
        parts = [some_condition(chance, depth - 1) for _ in range(chance.randint(2, 3))]
        return f" {chance.choice(['and', 'and', 'or', 'AND'])} ".join(f"({part})" for part in parts)
    if depth and chance.random() < 0.2:
        return f"not ({some_condition(chance, depth - 1)})"
    return some_test(chance)


def some_test(chance: random.Random) -> str:
    """One test."""
    column, kind = chance.choice(list(COLUMNS.items()))
    value = written(chance.choice(VALUES[kind]))
    listed = ", ".join(written(one) for one in chance.sample(VALUES[kind], 2))
    ways = [f"= {value}", f"= {value}", f"!= {value}", f"in ({listed})", f"not in ({listed})", "is null", "is not null"]
    ways += [f"starts with {value}"] if kind is Kind.TEXT else []
    ways += [f"{sign} {value}" for sign in ("<", "<=", ">", ">=")] if kind not in (Kind.TEXT, Kind.BOOLEAN) else []
    return f"{column} {chance.choice(ways)}"


def written(value: Any) -> str:
    """A value as a condition has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"{}"'.format(value.replace("\\", "\\\\").replace('"', '\\"'))
    return f"{value:f}"
