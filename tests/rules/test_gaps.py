"""Gaps of a batch, against the offsets that are not in it; and whether the log holds a record there."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.gaps import gaps_in
from jobs.runtime.kafka.protocol.absent_offsets import Gap, lost_in
from jobs.runtime.kafka.protocol.record_batches import batches_of
from tests.rules.test_record_batches import batch_at

SCHEMA: dict[str, type[pl.DataType]] = {"partition": pl.Int32, "offset": pl.Int64}


@given(st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 5), st.sets(st.integers(0, 12)))))
def test_oracle_gaps_are_the_offsets_below_the_last_row_that_no_row_has(log: dict[int, tuple[int, set[int]]]) -> None:
    starts = {partition: start for partition, (start, _) in log.items()}
    held = {partition: {start + step for step in steps} for partition, (start, steps) in log.items()}
    rows = [(partition, offset) for partition in sorted(held) for offset in sorted(held[partition])]
    found = gaps_in(pl.DataFrame(rows, schema=SCHEMA, orient="row"), starts)
    passed = {(p, offset) for p, offsets in held.items() if offsets for offset in range(starts[p], max(offsets))}
    assert {(gap.partition, offset) for gap in found for offset in range(gap.first, gap.end)} == passed - set(rows)


@given(
    st.integers(0, 20),
    st.sets(st.integers(0, 9), min_size=1),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=6),
    st.booleans(),
)
def test_a_batch_reports_the_first_record_of_a_gap(
    base: int, deltas: set[int], steps: list[tuple[int, int]], is_whole: bool
) -> None:
    """`steps`: records before a gap, and offsets in it. Compaction leaves batches that are not whole."""
    held = sorted({base + delta for delta in deltas}) if not is_whole else list(range(base, base + len(deltas)))
    gaps, at = [], 0
    for records, absent in steps:
        gaps.append(Gap(0, at + records, at + records + absent))
        at = gaps[-1].end
    inside = [offset for offset in held if any(gap.first <= offset < gap.end for gap in gaps)]
    (batch,) = batches_of(batch_at(base, [offset - base for offset in held]))
    assert lost_in(batch, gaps) == (inside[0] if inside else None)


def test_a_gap_in_a_batch_that_cannot_be_read_is_not_proved() -> None:
    (whole,) = batches_of(batch_at(0, [0, 2, 3]))
    broken = replace(whole, attributes=whole.attributes | 4)
    with pytest.raises(ValueError, match="ZSTD decompress"):
        lost_in(broken, [Gap(0, 1, 2)])
    assert lost_in(broken, [Gap(0, 4, 9)]) is None
