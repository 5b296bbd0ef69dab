"""Watches of one shape: the same condition but for its values. One hash join finds the rows of thousands of them.

The columns that a shape compares with `=` or `in` are the keys of the join; the other values are parameters, columns of
the joined watches, so one expression tests all pairs of a row and a watch that the keys leave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import polars as pl

from jobs.analytics.watches.conditions import TYPES, condition
from metering.contracts.model import Kind
from metering.watches.expressions import (
    ORDERED,
    And,
    ColumnTest,
    Expression,
    Not,
    Operator,
    Or,
    Value,
    column_tests,
    conjuncts,
)

HASHED = (Kind.TEXT, Kind.INTEGER, Kind.BOOLEAN)
MAX_KEYS_OF_A_WATCH = 100
"""Combinations of the values of its lists; a list beyond that is tested row by row."""
MAX_PAIRS = 2_000_000
"""Of a row and a watch that are in memory at once."""
HAS_PARAMETER = frozenset(Operator) - {Operator.IN, Operator.IS_NULL}


@dataclass(frozen=True)
class Watch:
    """A stored query."""

    id: int
    when: Expression


@dataclass(frozen=True)
class Split:
    """A condition as the keys by which its rows are found, and the rest of it (None: the keys are all)."""

    keys: tuple[ColumnTest, ...]
    rest: Expression | None

    @property
    def shape(self) -> str:
        """The same for conditions that differ in values only."""
        return repr((tuple((test.column, test.kind) for test in self.keys), _pattern(self.rest)))

    @property
    def parameters(self) -> Iterator[tuple[ColumnTest, Value]]:
        """Tests of the rest whose value is a column of the joined watches, and the value, from left to right."""
        for test in () if self.rest is None else column_tests(self.rest):
            if test.operator in HAS_PARAMETER:
                yield test, test.values[0]


def split(expression: Expression) -> Split:
    """The keys are those tests that must all be true, by column, and at most one for each."""
    keys: dict[str, ColumnTest] = {}
    rest: list[Expression] = []
    combinations = 1
    for part in conjuncts(expression):
        if (
            isinstance(part, ColumnTest)
            and part.operator in (Operator.EQ, Operator.IN)
            and part.kind in HASHED
            and part.column not in keys
            and combinations * len(part.values) <= MAX_KEYS_OF_A_WATCH
        ):
            keys[part.column] = part
            combinations *= len(part.values)
        else:
            rest.append(part)
    left = None if not rest else rest[0] if len(rest) == 1 else And(tuple(rest))
    return Split(tuple(keys[column] for column in sorted(keys)), left)


def _pattern(expression: Expression | None) -> object:
    match expression:
        case None:
            return None
        case ColumnTest(column, kind, operator, values):
            return column, kind, operator, () if operator in HAS_PARAMETER else values
        case Not(of):
            return "not", _pattern(of)
        case And(parts) | Or(parts):
            return type(expression).__name__, tuple(map(_pattern, parts))


class Shape:
    """Watches of one shape that has keys."""

    def __init__(self, watches: Sequence[tuple[Watch, Split]], max_pairs: int = MAX_PAIRS) -> None:
        self._max_pairs = max_pairs
        first = watches[0][1]
        self.keys = tuple(test.column for test in first.keys)
        self.columns = sorted({*self.keys, *(test.column for test in (column_tests(first.rest) if first.rest else ()))})
        parameters = [test for test, _ in first.parameters]
        self._names = tuple(f"parameter_{number}" for number in range(len(parameters)))
        named = iter(self._names)
        self._rest = None if first.rest is None else condition(first.rest, lambda _: pl.col(next(named)))
        kinds = {f"key_{test.column}": TYPES[test.kind] for test in first.keys}
        kinds |= {name: TYPES[test.kind] for name, test in zip(self._names, parameters, strict=True)}
        listed = defaultdict[str, list[Value]](list)
        for watch, of_watch in watches:
            values = [value for _, value in of_watch.parameters]
            for combination in product(*(test.values for test in of_watch.keys)):
                for name, value in zip(kinds, (*combination, *values), strict=True):
                    listed[name].append(value)
                listed["watch"].append(watch.id)
        self._watches = pl.DataFrame(listed, schema={**kinds, "watch": pl.Int64()}, strict=False)
        self._join_on = [f"key_{column}" for column in self.keys]
        # A row that even the most lenient watch of its keys does not take is joined with none of them.
        self._lenient = _lenient(first.rest, self._names)
        bounds = [expression.alias(f"lenient_{name}") for name, (expression, _) in self._lenient.items()]
        self._by_keys = self._watches.group_by(self._join_on).agg(pl.len().alias("watches"), *bounds)

    def pairs(self, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Rows (row, the columns) → (watch, row) of each hit, in parts."""
        found = rows.select("row", *self.columns).join(
            self._by_keys, left_on=self.keys, right_on=self._join_on, how="inner"
        )
        for _, is_taken in self._lenient.values():
            found = found.filter(is_taken)
        if found.is_empty():
            return
        portions = found.with_columns(portion=pl.col("watches").cum_sum() // self._max_pairs).partition_by("portion")
        for portion in portions:
            joined = portion.select("row", *self.columns).join(
                self._watches, left_on=self.keys, right_on=self._join_on, how="inner"
            )
            hits = joined if self._rest is None else joined.filter(self._rest)
            yield hits.select("watch", "row")


def _lenient(rest: Expression | None, names: Sequence[str]) -> dict[str, tuple[pl.Expr, pl.Expr]]:
    """By parameter of an order that must be met: its most lenient value among watches, and who meets that."""
    found: dict[str, tuple[pl.Expr, pl.Expr]] = {}
    left = iter(names)
    for part in () if rest is None else conjuncts(rest):
        of_part = [next(left) for test in column_tests(part) if test.operator in HAS_PARAMETER]
        if not isinstance(part, ColumnTest) or part.operator not in ORDERED:
            continue
        (name,), column = of_part, pl.col(part.column)
        bound = pl.col(f"lenient_{name}")
        if part.operator in (Operator.GT, Operator.GE):
            found[name] = pl.col(name).min(), column >= bound
        else:
            found[name] = pl.col(name).max(), column <= bound
    return found


def by_shape(watches: Iterable[Watch]) -> list[list[tuple[Watch, Split]]]:
    """Watches with their splits, those of one shape together."""
    found = defaultdict[str, list[tuple[Watch, Split]]](list)
    for watch in watches:
        of_watch = split(watch.when)
        found[of_watch.shape].append((watch, of_watch))
    return list(found.values())
