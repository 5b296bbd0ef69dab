"""Method: the same log cut in any way, against a plain account of it minute by minute; and limits at their edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.ingestion.limits import Limits
from jobs.ingestion.sequences import KEY, RUNS, extended, minute_of, runs_of

START = datetime(2026, 1, 1, tzinfo=UTC)
SECONDS = 300
LOW = Limits(ranges=3, pending_ranges=6)
Record = tuple[int, str, int]
"""Received in this second, of this source, with this number."""


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def events(records: Sequence[Record]) -> pl.DataFrame:
    return pl.DataFrame(
        [(source, "", at(second), number) for second, source, number in records],
        schema={
            "source": pl.String,
            "source_epoch": pl.String,
            "received_at": pl.Datetime("us", "UTC"),
            "sequence": pl.Int64,
        },
        orient="row",
    )


@dataclass
class Kept:
    """What a database keeps, in sets: as `sources.fold_sequences` does."""

    numbers: dict[str, set[int]] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    unsequenced: set[str] = field(default_factory=set)

    def fold(self, runs: pl.DataFrame, until: int) -> None:
        heard = runs["source"].unique().to_list()
        known = [
            (source, "", self.counted[source] - 1, first, last)
            for source in heard
            for first, last in ranges(self.numbers.get(source, set()))
        ]
        found = extended(pl.DataFrame(known, schema=RUNS, orient="row"), runs, until, LOW)
        for source, _, text, unsequenced in found.rows():
            if source in self.unsequenced or unsequenced:
                self.unsequenced.add(source)
                self.numbers[source] = set()
            else:
                self.numbers.setdefault(source, set()).update(numbers_of(text))
            self.counted[source] = until


def ranges(numbers: set[int]) -> Iterator[tuple[int, int]]:
    for first in sorted(n for n in numbers if n - 1 not in numbers):
        last = first
        while last + 1 in numbers:
            last += 1
        yield first, last


def numbers_of(text: str) -> set[int]:
    parts = [part.strip("[]").split(",") for part in text.strip("{}").replace("],[", "];[").split(";") if part]
    return {number for first, last in parts for number in range(int(first), int(last) + 1)}


def kept_of(records: Sequence[Sequence[Record]], cuts: Sequence[Sequence[int]]) -> Kept:
    """The logs of partitions, read batch by batch up to `cuts`, and then to their ends."""
    kept, pending = Kept(), pl.DataFrame(schema=RUNS)
    read = [0] * len(records)
    frontier: datetime | None = None
    for cut in [*cuts, [10**6] * len(records)]:
        ends = [max(one, min(end, len(log))) for one, end, log in zip(read, cut, records, strict=True)]
        batch = [r for log, one, end in zip(records, read, ends, strict=True) for r in log[one:end]]
        read = ends
        reached = [log[end - 1][0] for log, end in zip(records, ends, strict=True) if end]
        frontier = at(min(reached)) if len(reached) == len(records) else frontier
        pending = pl.concat([pending, runs_of(events(batch))])
        until = minute_of(frontier) if frontier else 0
        over = pending.filter(pl.col("minute") < until)
        pending = pending.filter(pl.col("minute") >= until)
        if len(over):
            kept.fold(over, until)
    return kept


def accounted(records: Sequence[Record], until: int) -> Kept:
    """By the minutes in which a source is heard: numbers above the highest of the one before do not count yet."""
    kept = Kept()
    for source in {source for _, source, _ in records}:
        numbers: set[int] = set()
        highest = -1
        for minute in range(minute_of(START), until):
            heard = {n for second, s, n in records if s == source and minute_of(at(second)) == minute}
            if not heard:
                continue
            numbers |= heard
            settled = {n for n in numbers if n <= highest}
            if len(list(ranges(settled))) > LOW.ranges or len(list(ranges(numbers))) > LOW.pending_ranges:
                kept.unsequenced.add(source)
            highest = max(numbers, default=-1)
        kept.numbers[source] = set() if source in kept.unsequenced else numbers
    return kept


logs = st.lists(st.tuples(st.integers(0, SECONDS), st.sampled_from("ab"), st.integers(0, 18)), max_size=40).map(
    lambda records: [*sorted(records), (SECONDS + 60, "end", 0)]
)


@settings(deadline=None, max_examples=100)
@given(records=st.tuples(logs, logs), cuts=st.lists(st.tuples(st.integers(0, 41), st.integers(0, 41)), max_size=5))
def test_oracle_any_batches_count_numbers_as_minute_by_minute(
    records: tuple[list[Record], list[Record]], cuts: list[tuple[int, int]]
) -> None:
    found = kept_of(records, cuts)
    expected = accounted([r for log in records for r in log], minute_of(at(SECONDS + 60)))
    assert found.unsequenced == expected.unsequenced - {"end"}
    assert {s: n for s, n in found.numbers.items() if n} == {
        s: n for s, n in expected.numbers.items() if n and s != "end"
    }


def test_a_partition_that_is_read_late_makes_no_holes() -> None:
    """One source, four partitions, one of them minutes behind: 100 of its numbers are not read yet."""
    whole = list(range(400))
    records = [[(n // 4, "a", n) for n in whole if n % 4 == p] + [(SECONDS, "end", p)] for p in range(4)]
    kept = kept_of(records, [[90, 90, 90, 0], [90, 90, 90, 5], [100, 100, 100, 20]])
    assert kept.unsequenced == set()
    assert kept.numbers["a"] == set(whole)


@pytest.mark.parametrize(("holes", "is_too_many"), [(2, False), (3, True)])
def test_a_gap_counts_when_the_next_reported_minute_does_not_fill_it(holes: int, is_too_many: bool) -> None:
    gaps: list[Record] = [(0, "a", 2 * n) for n in range(holes + 1)]
    again: Record = (119, "a", 0)
    end = (SECONDS, "end", 0)
    filled: list[Record] = [(119, "a", 2 * n + 1) for n in range(holes)]
    assert kept_of([[*gaps, end]], []).unsequenced == set()
    assert kept_of([[*gaps, again, end]], []).unsequenced == ({"a"} if is_too_many else set())
    assert kept_of([[*gaps, *filled, end]], []).unsequenced == set()
    late: list[Record] = [(120, source, number) for _, source, number in filled]
    assert kept_of([[*gaps, again, *late, end]], []).unsequenced == ({"a"} if is_too_many else set())


def test_a_source_that_reports_no_more_counts_the_same_wherever_the_log_is_cut() -> None:
    """Found by Hypothesis: a hole that counted a minute later was counted only if the source came in a later batch."""
    one: list[Record] = [*[(0, "a", 0)] * 8, (0, "a", 4), (180, "a", 6), (240, "b", 0), (360, "end", 0)]
    other: list[Record] = [(0, "a", 2), (360, "end", 0)]
    assert kept_of([one, other], [(11, 2)]).unsequenced == kept_of([one, other], []).unsequenced


def test_numbers_out_of_range_are_not_counted() -> None:
    runs = runs_of(events([(0, "a", 10**18 - 1), (0, "a", 2**63 - 1), (0, "a", -1), (0, "b", 10**18)]))
    assert runs.select(*KEY, "first", "last").rows() == [("a", "", 10**18 - 1, 10**18 - 1)]
