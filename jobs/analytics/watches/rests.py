"""What is left of terms after their atoms: those that differ in values only are one expression over all their pairs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import polars as pl

from jobs.analytics.watches.atoms import Booleans, Rows, grouped
from jobs.analytics.watches.candidates import Ints
from jobs.analytics.watches.conditions import TYPES, condition
from jobs.analytics.watches.terms import Term
from metering.watches.expressions import And, ColumnTest, Expression, Not, Operator, Or, Value, column_tests

HAS_PARAMETER = frozenset(Operator) - {Operator.IN, Operator.IS_NULL}


class Rests:
    """The rests of all terms."""

    def __init__(self, terms: Sequence[Term]) -> None:
        alike = defaultdict[object, list[tuple[int, Expression]]](list)
        for number, term in enumerate(terms):
            if term.rest is not None:
                alike[_pattern(term.rest)].append((number, term.rest))
        self._group = np.full(len(terms), -1, dtype=np.int32)
        self._number = np.zeros(len(terms), dtype=np.int64)
        self._shapes = []
        for group, of_terms in enumerate(alike.values()):
            numbers = [number for number, _ in of_terms]
            self._group[numbers] = group
            self._number[numbers] = np.arange(len(numbers))
            self._shapes.append(_Shape([rest for _, rest in of_terms]))

    def passing(self, rows: Rows, terms: Ints, places: Ints) -> tuple[Ints, Ints]:
        """Pairs of a term and the place of a row → those whose row meets the rest of the term."""
        passes = np.ones(len(terms), dtype=np.bool_)
        for group, members in grouped(self._group[terms]):
            passes[members] = self._shapes[group].passing(rows, places[members], self._number[terms[members]])
        return terms[passes], places[passes]


class _Shape:
    """Rests that differ in values only."""

    def __init__(self, rests: Sequence[Expression]) -> None:
        tests = [test for test in column_tests(rests[0]) if test.operator in HAS_PARAMETER]
        names = [f"*value_{number}" for number in range(len(tests))]
        named = iter(names)
        self._columns = sorted({test.column for test in column_tests(rests[0])})
        self._expression = condition(rests[0], lambda _: pl.col(next(named))).fill_null(value=False)
        listed: dict[str, list[Value]] = {name: [] for name in names}
        for rest in rests:
            values = (test.values[0] for test in column_tests(rest) if test.operator in HAS_PARAMETER)
            for name, value in zip(names, values, strict=True):
                listed[name].append(value)
        schema = {name: TYPES[test.kind] for name, test in zip(names, tests, strict=True)}
        self._values = pl.DataFrame(listed, schema=schema, strict=False)

    def passing(self, rows: Rows, places: Ints, numbers: Ints) -> Booleans:
        """Rows by their places, and the number of a rest for each → whether it takes the row."""
        pairs = rows.typed.select(self._columns)[places]
        if self._values.width:
            pairs = pairs.hstack(self._values[numbers])
        found: Booleans = pairs.select(self._expression).to_series().to_numpy()
        return found


def _pattern(expression: Expression) -> object:
    match expression:
        case ColumnTest(column, kind, operator, values):
            return column, kind, operator, () if operator in HAS_PARAMETER else values
        case Not(of):
            return "not", _pattern(of)
        case And(parts) | Or(parts):
            return type(expression).__name__, tuple(map(_pattern, parts))
