"""Gaps of a batch, against the offsets that are not in it; and what a second reader must pass."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.gaps import gaps_in
from jobs.runtime.absent_offsets import NEAR_RECORDS, Gap, passages

SCHEMA: dict[str, type[pl.DataType]] = {"partition": pl.Int32, "offset": pl.Int64}


@given(st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 5), st.sets(st.integers(0, 12)))))
def test_oracle_gaps_are_the_offsets_below_the_last_row_that_no_row_has(log: dict[int, tuple[int, set[int]]]) -> None:
    starts = {partition: start for partition, (start, _) in log.items()}
    held = {partition: {start + step for step in steps} for partition, (start, steps) in log.items()}
    rows = [(partition, offset) for partition in sorted(held) for offset in sorted(held[partition])]
    found = gaps_in(pl.DataFrame(rows, schema=SCHEMA, orient="row"), starts)
    passed = {(p, offset) for p, offsets in held.items() if offsets for offset in range(starts[p], max(offsets))}
    assert {(gap.partition, offset) for gap in found for offset in range(gap.first, gap.end)} == passed - set(rows)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2 * NEAR_RECORDS), st.integers(1, 3)), max_size=12))
def test_every_gap_is_read_once_and_what_is_far_apart_is_not_read_through(gaps: list[tuple[int, int, int]]) -> None:
    at: dict[int, int] = {}
    made = []
    for partition, records, absent in gaps:
        first = at.get(partition, 0) + records
        at[partition] = first + absent
        made.append(Gap(partition, first, first + absent))
    found = list(passages(made))
    assert sorted(gap for passage in found for run in passage for gap in run) == sorted(made)
    for passage in found:
        assert len({run[0].partition for run in passage}) == len(passage)
        for run in passage:
            assert {gap.partition for gap in run} == {run[0].partition}
            assert all(b.first - a.end <= NEAR_RECORDS for a, b in pairwise(run))
