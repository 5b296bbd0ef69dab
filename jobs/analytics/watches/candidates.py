"""Which rows a term may take: those with a value that it names, or within its range. One look finds them for all terms.

A way finds for each of its terms at least all rows that the term takes. Which way has the fewest is known for each
batch before any pair of a term and a row is made, so a term whose rows are rare costs next to nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jobs.analytics.watches.conditions import TYPES
from jobs.analytics.watches.terms import Atom, Term
from metering.contracts.model import Kind
from metering.watches.expressions import Operator, Value

MIN_TOGETHER = 8
"""Fewer terms that compare the same several columns are found by one of these."""
MAX_KEYS_OF_A_TERM = 100
"""Combinations of the values of its lists, where several columns are looked at at once."""
ROW = "*row"
"""The place of a row: no column has this name, as fields of contracts may have any plain one."""
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Found:
    """Of each entry of a way: `rows[starts:ends]` are the places of its rows."""

    rows: Ints
    starts: Ints
    ends: Ints


class Way(Protocol):
    """How rows of some terms are found."""

    terms: Ints
    """Of each entry its term, in order; a term has several entries, no two of which have a row in common."""

    def find(self, rows: pl.DataFrame) -> Found:
        """In these rows (ROW, the columns)."""


class ByValue:
    """By the values of columns that terms compare with `=` or `in`."""

    def __init__(self, columns: Sequence[str], kinds: Sequence[Kind], entries: Iterable[tuple[int, tuple[Value, ...]]]):
        codes: dict[tuple[Value, ...], int] = {}
        listed = [(term, codes.setdefault(values, len(codes))) for term, values in entries]
        self.terms = np.array([term for term, _ in listed], dtype=np.int64)
        self._codes = np.array([code for _, code in listed], dtype=np.int64)
        self._columns = list(columns)
        named = {column: [values[place] for values in codes] for place, column in enumerate(columns)}
        schema = {column: TYPES[kind] for column, kind in zip(columns, kinds, strict=True)}
        keys = pl.DataFrame(named, schema=schema, strict=False)
        self._keys = keys.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("*code"))

    def find(self, rows: pl.DataFrame) -> Found:
        """The rows of each of the values."""
        joined = rows.select(ROW, *self._columns).join(self._keys, on=self._columns, how="inner").sort("*code")
        ends = np.bincount(joined["*code"].to_numpy(), minlength=len(self._keys)).cumsum()
        starts = np.concatenate(([0], ends[:-1]))
        return Found(joined[ROW].to_numpy().astype(np.int64), starts[self._codes], ends[self._codes])


class ByRange:
    """By the range of a column of numbers, of which the nearest floating-point numbers have the same order."""

    def __init__(self, column: str, kind: Kind, entries: Sequence[tuple[int, Sequence[Atom]]]) -> None:
        self.terms = np.array([term for term, _ in entries], dtype=np.int64)
        self._column = column
        lowest, highest = np.full(len(entries), -np.inf), np.full(len(entries), np.nan)
        for place, (_, atoms) in enumerate(entries):
            values = pl.Series([atom.test.values[0] for atom in atoms], dtype=TYPES[kind]).cast(pl.Float64)
            for atom, value in zip(atoms, values, strict=True):
                if atom.test.operator in (Operator.GT, Operator.GE, Operator.EQ):
                    lowest[place] = max(lowest[place], value)
                if atom.test.operator in (Operator.LT, Operator.LE, Operator.EQ):
                    highest[place] = np.fmin(highest[place], value)
        self._lowest, self._highest = lowest, highest

    def find(self, rows: pl.DataFrame) -> Found:
        """The rows within each range; NaN comes after all numbers, as it does to Polars."""
        present = rows.select(ROW, pl.col(self._column).cast(pl.Float64)).drop_nulls().sort(self._column)
        values = present[self._column].to_numpy()
        starts = np.searchsorted(values, self._lowest, side="left")
        ends = np.maximum(starts, np.searchsorted(values, self._highest, side="right"))
        return Found(present[ROW].to_numpy().astype(np.int64), starts, ends)


class AmongAll:
    """Of terms that name neither a value nor a range, and where no way has fewer: each row."""

    def __init__(self, count: int) -> None:
        self.terms = np.arange(count, dtype=np.int64)

    def find(self, rows: pl.DataFrame) -> Found:
        """All of them."""
        starts = np.zeros(len(self.terms), dtype=np.int64)
        return Found(rows[ROW].to_numpy().astype(np.int64), starts, starts + len(rows))


def ways_of(terms: Sequence[Term]) -> list[Way]:
    """All ways; the first finds all rows of all terms."""
    by_columns = defaultdict[tuple[tuple[str, Kind], ...], list[tuple[int, list[tuple[Value, ...]]]]](list)
    by_range = defaultdict[tuple[str, Kind], list[tuple[int, list[Atom]]]](list)
    for number, term in enumerate(terms):
        keys: dict[tuple[str, Kind], tuple[Value, ...]] = {}
        ranges = defaultdict[tuple[str, Kind], list[Atom]](list)
        for atom in term.atoms:
            column = atom.test.column, atom.test.kind
            if atom.has_keys and (column not in keys or len(atom.test.values) < len(keys[column])):
                keys[column] = atom.test.values
            elif atom.has_range:
                ranges[column].append(atom)
        for column, values in keys.items():
            by_columns[(column,)].append((number, [(value,) for value in values]))
        columns = tuple(sorted(keys))
        if len(columns) > 1 and math.prod(len(keys[column]) for column in columns) <= MAX_KEYS_OF_A_TERM:
            by_columns[columns].append((number, list(product(*(keys[column] for column in columns)))))
        for column, atoms in ranges.items():
            by_range[column].append((number, atoms))
    ways: list[Way] = [AmongAll(len(terms))]
    for columns, listed in by_columns.items():
        if len(columns) == 1 or len(listed) >= MIN_TOGETHER:
            entries = ((number, values) for number, combinations in listed for values in combinations)
            ways.append(ByValue([name for name, _ in columns], [kind for _, kind in columns], entries))
    ways.extend(ByRange(name, kind, listed) for (name, kind), listed in by_range.items())
    return ways
