"""All watches at once over many rows: pairs of a term and a row by the rarest of its tests, and the others over pairs.

What a watch costs so depends on how many rows may meet it, and not on how many watches have its form. Only where that
is a large part of the rows a watch is an expression of its own over all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from jobs.analytics.watches.atoms import AtomTests, Codes, Rows
from jobs.analytics.watches.candidates import ROW, Found, Ints, ways_of
from jobs.analytics.watches.conditions import TYPES, condition
from jobs.analytics.watches.rests import Rests
from jobs.analytics.watches.terms import Watch, terms_of
from metering.contracts.model import Kind
from metering.watches.expressions import column_tests

MAX_PAIRS = 2_000_000
"""Of a term and a row that are in memory at once."""
MAX_EXPRESSIONS = 256
"""Watches whose hits are in memory at once, where each is tested alone."""
MAX_FOUND = 1_000
"""Of a watch and a batch, and an eighth of the rows: with more pairs than that it is tested alone."""


class WatchIndex:
    """The watches, compiled once for many batches."""

    def __init__(self, watches: Sequence[Watch], max_pairs: int = MAX_PAIRS, max_found: int = MAX_FOUND) -> None:
        self.columns: Mapping[str, Kind] = {
            test.column: test.kind for watch in watches for test in column_tests(watch.when)
        }
        self._max_pairs = max_pairs
        self._max_found = max_found
        self._watches = watches
        self._ids = np.array([watch.id for watch in watches], dtype=np.int64)
        of_watches = [terms_of(watch.when) for watch in watches]
        terms = [term for of_watch in of_watches for term in of_watch]
        counts = [len(of_watch) for of_watch in of_watches]
        self._watch = np.repeat(np.arange(len(watches)), counts)
        self._has_several = np.array(counts, dtype=np.int64) > 1
        self._ways = ways_of(terms)
        self._first_entries = [np.flatnonzero(np.diff(way.terms, prepend=-1)) for way in self._ways]
        codes = Codes()
        self._tests = AtomTests(terms, codes)
        self._known = codes.known()
        self._rests = Rests(terms)
        self._compiled: dict[int, pl.Expr] = {}

    def pairs(self, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Rows with `columns` → (watch, row) of each hit, `row` being the place among the rows; in parts, in no order.

        A column that the rows lack in every file comes as nulls of any type.
        """
        typed = rows.select(
            pl.int_range(pl.len(), dtype=pl.UInt32).alias(ROW),
            *[pl.col(name).cast(TYPES[kind]) for name, kind in self.columns.items()],
        )
        if typed.is_empty() or not self._watches:
            return
        found = [way.find(typed) for way in self._ways]
        way, fewest = self._rarest(found)
        of_watches = np.bincount(self._watch, weights=fewest, minlength=len(self._watches)).astype(np.int64)
        is_alone = of_watches > self._max_found + len(typed) // 8
        yield from _each(typed, [self._alone(place) for place in np.flatnonzero(is_alone).tolist()])
        of_watches[is_alone] = 0
        # All of a watch are in one portion, in which the rows of its terms are made one.
        portions = (np.cumsum(of_watches) // self._max_pairs)[self._watch]
        way[is_alone[self._watch] | (fewest == 0)] = -1
        batch = Rows(typed, self._known)
        for terms, places in self._candidates(found, way, portions):
            yield self._hits(batch, terms, places)

    def _rarest(self, found: Sequence[Found]) -> tuple[Ints, Ints]:
        """Of each term the way with the fewest rows, and how many these are."""
        way = np.zeros(len(self._watch), dtype=np.int64)
        fewest = found[0].ends - found[0].starts
        for number, of_way in enumerate(found[1:], 1):
            firsts = self._first_entries[number]
            terms, counts = self._ways[number].terms[firsts], np.add.reduceat(of_way.ends - of_way.starts, firsts)
            is_rarer = counts < fewest[terms]
            way[terms[is_rarer]], fewest[terms[is_rarer]] = number, counts[is_rarer]
        return way, fewest

    def _candidates(self, found: Sequence[Found], way: Ints, portions: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Terms and places of rows, pair by pair, portion by portion."""
        chosen = []
        for number, of_way in enumerate(found):
            terms = self._ways[number].terms
            entries = np.flatnonzero((way[terms] == number) & (of_way.ends > of_way.starts))
            chosen.append((terms[entries], of_way.starts[entries], of_way.ends[entries], of_way.rows))
        for portion in np.unique(np.concatenate([portions[terms] for terms, *_ in chosen])):
            parts = []
            for terms, starts, ends, rows in chosen:
                first, last = np.searchsorted(portions[terms], [portion, portion + 1])
                counts = ends[first:last] - starts[first:last]
                parts.append((np.repeat(terms[first:last], counts), rows[_ranges(starts[first:last], counts)]))
            yield np.concatenate([terms for terms, _ in parts]), np.concatenate([rows for _, rows in parts])

    def _hits(self, batch: Rows, terms: Ints, places: Ints) -> pl.DataFrame:
        terms, places = self._rests.passing(batch, *self._tests.passing(batch, terms, places))
        watches = self._watch[terms]
        hits = pl.DataFrame({"watch": self._ids[watches], "row": places.astype(np.uint32)})
        is_several = self._has_several[watches]
        if not is_several.any():
            return hits
        return pl.concat([hits.filter(~is_several), hits.filter(is_several).unique()])

    def _alone(self, place: int) -> pl.Expr:
        """A watch as an expression over all rows."""
        if place not in self._compiled:
            watch = self._watches[place]
            self._compiled[place] = condition(watch.when).arg_true().implode().alias(str(watch.id))
        return self._compiled[place]


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """start, start + 1, … of each, `count` of them, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(counts.sum()) + np.repeat(starts - ends + counts, counts)


def _each(rows: pl.DataFrame, compiled: Sequence[pl.Expr]) -> Iterator[pl.DataFrame]:
    for first in range(0, len(compiled), MAX_EXPRESSIONS):
        places = rows.select(compiled[first : first + MAX_EXPRESSIONS])
        listed = places.unpivot(variable_name="watch", value_name="place").explode("place", empty_as_null=False)
        yield listed.select(pl.col("watch").cast(pl.Int64), row=rows[ROW].gather(listed["place"]))
