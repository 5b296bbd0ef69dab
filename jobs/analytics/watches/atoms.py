"""Tests of one kind of all terms at once: pairs of a term and a row → the pairs whose row passes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from jobs.analytics.watches.candidates import Ints
from jobs.analytics.watches.conditions import TYPES, condition
from jobs.analytics.watches.terms import HASHED, Atom, Term
from metering.contracts.model import Kind
from metering.watches.expressions import ColumnTest, Operator, Value

Booleans = NDArray[np.bool_]
NULL, OTHER = -1, -2
"""Instead of the code of a value: there is none, or no condition names it."""
BY_CODE = (Operator.EQ, Operator.NE, Operator.IN)
IN_ORDER = (Kind.INTEGER, Kind.DOUBLE)
"""Numbers that 64 bits hold."""
_COMPARED: Mapping[Operator, Callable[[Ints, Ints], Booleans]] = {
    Operator.EQ: np.equal,
    Operator.NE: np.not_equal,
    Operator.LT: np.less,
    Operator.LE: np.less_equal,
    Operator.GT: np.greater,
    Operator.GE: np.greater_equal,
}


class Rows:
    """The rows of a batch, and what tests read of their columns, each made when it is first asked for."""

    def __init__(self, typed: pl.DataFrame, known: Mapping[str, pl.DataFrame]) -> None:
        self.typed = typed
        self._known = known
        self._codes: dict[str, Ints] = {}
        self._ordered: dict[str, Ints] = {}
        self._nulls: dict[str, Booleans] = {}

    def nulls(self, column: str) -> Booleans:
        """Whether each row has no value."""
        if column not in self._nulls:
            self._nulls[column] = self.typed[column].is_null().to_numpy()
        return self._nulls[column]

    def ordered(self, column: str) -> Ints:
        """Each row's number as `in_order` has it; any where it has none."""
        if column not in self._ordered:
            self._ordered[column] = in_order(self.typed[column])
        return self._ordered[column]

    def codes(self, column: str) -> Ints:
        """The code of each row's value."""
        if column not in self._codes:
            joined = self.typed.select(column).join(self._known[column], on=column, how="left", maintain_order="left")
            code = pl.when(pl.col(column).is_null()).then(NULL).otherwise(pl.col("*code").fill_null(OTHER))
            self._codes[column] = joined.select(code.cast(pl.Int64)).to_series().to_numpy()
        return self._codes[column]


class Codes:
    """Numbers for the values with which texts, whole numbers and booleans are compared."""

    def __init__(self) -> None:
        self._of = defaultdict[tuple[str, Kind], dict[Value, int]](dict)

    def code(self, column: str, kind: Kind, value: Value) -> int:
        """That of a value of a column."""
        of_column = self._of[column, kind]
        return of_column.setdefault(value, len(of_column))

    def known(self) -> dict[str, pl.DataFrame]:
        """By column: its values, with `*code`."""
        return {
            column: pl.DataFrame(
                {column: list(codes), "*code": list(codes.values())},
                schema={column: TYPES[kind], "*code": pl.Int64()},
                strict=False,
            )
            for (column, kind), codes in self._of.items()
        }


Test = Callable[[Rows, Ints, Ints], Booleans]
"""Rows, places of rows, and for each the number of an atom of this kind → whether it is true."""


class AtomTests:
    """The atoms of all terms, in rounds: the first of each term, then the second of those that are left, and so on."""

    def __init__(self, terms: Sequence[Term], codes: Codes) -> None:
        kinds: dict[object, list[Atom]] = {}
        places: dict[object, int] = {}
        rounds = max((len(term.atoms) for term in terms), default=0)
        self._kind = np.full((rounds, len(terms)), -1, dtype=np.int16)
        self._number = np.zeros((rounds, len(terms)), dtype=np.int64)
        for number, term in enumerate(terms):
            for turn, atom in enumerate(sorted(term.atoms, key=_cost)):
                of = atom.test
                kind = of.column, of.kind, of.operator, atom.is_negated
                alike = kinds.setdefault(kind, [])
                self._kind[turn, number] = places.setdefault(kind, len(places))
                self._number[turn, number] = len(alike)
                alike.append(atom)
        self._tests = [_test_of(alike, codes) for alike in kinds.values()]

    def passing(self, rows: Rows, terms: Ints, places: Ints) -> tuple[Ints, Ints]:
        """Pairs of a term and the place of a row → those whose row meets all atoms of the term."""
        for kinds, numbers in zip(self._kind, self._number, strict=True):
            passes = np.ones(len(terms), dtype=np.bool_)
            for kind, members in grouped(kinds[terms]):
                passes[members] = self._tests[kind](rows, places[members], numbers[terms[members]])
            terms, places = terms[passes], places[passes]
        return terms, places


def grouped(kinds: NDArray[np.int16 | np.int32]) -> Iterator[tuple[int, Ints]]:
    """By kind, without those below 0: where they are."""
    order = np.argsort(kinds, kind="stable")
    ordered = kinds[order]
    for places in np.split(order, np.flatnonzero(np.diff(ordered)) + 1):
        if len(places) and (kind := int(kinds[places[0]])) >= 0:
            yield kind, places


def _cost(atom: Atom) -> tuple[bool, bool]:
    """Numbers come before values of which there are few, and before texts that are not compared by code."""
    of = atom.test
    return of.kind in (Kind.TEXT, Kind.BOOLEAN), of.operator is Operator.STARTS_WITH


def _test_of(alike: Sequence[Atom], codes: Codes) -> Test:
    first, is_negated = alike[0].test, alike[0].is_negated
    if first.operator is Operator.IS_NULL:
        return _is_null(first.column, is_negated=is_negated)
    if first.kind in HASHED and first.operator in BY_CODE:
        of_values = [[codes.code(first.column, first.kind, value) for value in atom.test.values] for atom in alike]
        return _among(first.column, of_values, is_negated=is_negated ^ (first.operator is Operator.NE))
    values = pl.Series([atom.test.values[0] for atom in alike], dtype=TYPES[first.kind], strict=False)
    return _compared(alike[0], values) if first.kind not in IN_ORDER else _ordered(first, values)


def _is_null(column: str, *, is_negated: bool) -> Test:
    def test(rows: Rows, places: Ints, _numbers: Ints) -> Booleans:
        return rows.nulls(column)[places] ^ is_negated

    return test


def _among(column: str, of_values: Sequence[Sequence[int]], *, is_negated: bool) -> Test:
    """Whether the row's value is one of the atom's; a null is neither among them nor outside."""
    size = 1 + max(code for codes in of_values for code in codes)
    listed = np.unique([number * size + code for number, codes in enumerate(of_values) for code in codes])

    def test(rows: Rows, places: Ints, numbers: Ints) -> Booleans:
        codes = rows.codes(column)[places]
        wanted = numbers * size + codes
        found = listed[np.minimum(np.searchsorted(listed, wanted), len(listed) - 1)] == wanted
        found &= (codes >= 0) & (codes < size)
        passes: Booleans = ~found & (codes != NULL) if is_negated else found
        return passes

    return test


def _ordered(of: ColumnTest, values: pl.Series) -> Test:
    compare, wanted = _COMPARED[of.operator], in_order(values)

    def test(rows: Rows, places: Ints, numbers: Ints) -> Booleans:
        found: Booleans = compare(rows.ordered(of.column)[places], wanted[numbers])
        return found & ~rows.nulls(of.column)[places]

    return test


def _compared(atom: Atom, values: pl.Series) -> Test:
    of = atom.test
    compared = condition(of, lambda _: pl.col("*value"))
    wanted = (~compared if atom.is_negated else compared).fill_null(value=False)

    def test(rows: Rows, places: Ints, numbers: Ints) -> Booleans:
        pairs = pl.DataFrame({of.column: rows.typed[of.column].gather(places), "*value": values.gather(numbers)})
        found: Booleans = pairs.select(wanted).to_series().to_numpy()
        return found

    return test


def in_order(numbers: pl.Series) -> Ints:
    """Whole numbers that are in the same order as these, and equal where these are, as Polars compares them.

    That is by the bits of a floating-point number: of negative ones the others are turned. NaN is above all.
    """
    if numbers.dtype != pl.Float64():
        return numbers.fill_null(0).to_numpy()
    bits: Ints = (numbers.fill_null(0).fill_nan(None).fill_null(math.nan).to_numpy() + 0.0).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))
