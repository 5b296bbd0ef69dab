"""How joins cuts a large batch: keys into parts, and what was decided into ranges of usage."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.joins.exchange import part_of
from jobs.joins.large_batch import Sizes, parts_for, ranges_of

KEYS = st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), max_size=30)


def keys(listed: list[tuple[str, str]]) -> pl.DataFrame:
    return pl.DataFrame(listed, schema={"account": pl.String, "request_id": pl.String}, orient="row")


@given(listed=KEYS, parts=st.sampled_from([1, 2, 8, 64]))
def test_a_key_has_the_same_part_whatever_rows_are_beside_it(listed: list[tuple[str, str]], parts: int) -> None:
    together = part_of(keys(listed), parts).to_list()
    assert together == [part_of(keys([key]), parts)[0] for key in listed]
    assert all(0 <= part < parts for part in together)


def test_the_part_of_a_key_is_the_same_on_every_machine_and_in_every_release() -> None:
    """What tasks of two releases or two kinds of processors leave for a part must meet."""
    known = keys([("a", "r1"), ("", ""), ("é", "🙂"), ("account", "0190c5e2-7a3f")])
    assert part_of(known, 1 << 20).to_list() == [4792, 0, 787_662, 974_608]


def test_ids_that_are_counted_up_spread_evenly() -> None:
    counted = keys([("a", f"request-{number}") for number in range(16_000)])
    counts = part_of(counted, 8).value_counts()["count"]
    assert counts.min() > 1_600  # type: ignore[operator]
    assert counts.max() < 2_400  # type: ignore[operator]


@given(
    decided=st.lists(st.sets(st.integers(1, 200), max_size=40), min_size=1, max_size=4),
    most=st.integers(1, 50),
    at_once=st.sampled_from([1, 3, 8_192]),
)
def test_ranges_number_what_was_decided_in_the_order_of_the_journal_without_a_hole(
    decided: list[set[int]], most: int, at_once: int
) -> None:
    """Each range reads its outcomes from all parts, and perhaps neighbours, which it leaves away."""
    parts = [sorted({1_000 * lsn + number for lsn in lsns}) for number, lsns in enumerate(decided)]
    sizes = Sizes(range_rows=most, step_rows=at_once)
    cut = ranges_of([(str(n), pl.Series(lsns, dtype=pl.Int64)) for n, lsns in enumerate(parts)], 7, sizes)
    found, next_lsn = [], 7
    for part in cut:
        read = [lsn for path, first, end in part.batches for lsn in parts[int(path)][first * at_once : end * at_once]]
        within = sorted(lsn for lsn in read if part.first <= lsn <= part.last)
        assert part.first_lsn == next_lsn
        assert len(within) <= most
        found += within
        next_lsn += len(within)
    assert found == sorted(lsn for lsns in parts for lsn in lsns)


def test_two_outcomes_that_one_row_decided_have_no_order() -> None:
    with pytest.raises(ValueError, match="two outcomes were decided by one row"):
        ranges_of([("a", pl.Series([1, 3])), ("b", pl.Series([3]))], 1, Sizes())


@pytest.mark.parametrize(("rows", "cores", "parts"), [(1, 1, 1), (1, 3, 4), (100_001, 1, 2), (1_000_000, 2, 16)])
def test_there_are_parts_for_all_cores_and_none_is_too_large(rows: int, cores: int, parts: int) -> None:
    assert parts_for(rows, cores, Sizes().part_rows) == parts
