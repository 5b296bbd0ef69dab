"""The index against a fold that looks at one record after the other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.identity_index import ENTRY, IdentityIndex, entries

HORIZON = timedelta(seconds=60)
START = datetime(2026, 1, 1, tzinfo=UTC)

records = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1), st.integers(0, 40)), max_size=40)


def _batches(rows: list[tuple[int, int, int]], cuts: set[int]) -> list[pl.DataFrame]:
    """Records (identity, content, seconds since the one before) as ENTRY frames, cut after the given lsns."""
    received, frames, part = START, [], []
    for lsn, (identity, content, wait) in enumerate(rows, start=1):
        received += timedelta(seconds=wait)
        part.append((identity, 7 * identity, content, lsn, received))
        if lsn in cuts or lsn == len(rows):
            frames.append(pl.DataFrame(part, schema=ENTRY, orient="row"))
            part = []
    return frames


def _oracle(frames: list[pl.DataFrame]) -> dict[int, tuple[int, bool]]:
    accepted: list[tuple[int, int, int, int, datetime]] = []
    repeats: dict[int, tuple[int, bool]] = {}
    for row in (row for frame in frames for row in frame.iter_rows()):
        first = next((a for a in accepted if a[:2] == row[:2] and a[4] >= row[4] - HORIZON), None)
        if first is None:
            accepted.append(row)
        else:
            repeats[row[3]] = (first[3], first[2] == row[2])
    return repeats


@given(records, st.sets(st.integers(1, 40)))
def test_oracle_any_cut_finds_the_repeats_that_a_record_by_record_fold_finds(
    rows: list[tuple[int, int, int]], cuts: set[int]
) -> None:
    index, found = IdentityIndex(HORIZON), {}
    frames = _batches(rows, cuts)
    for frame in frames:
        repeats = index.find_repeats(frame)
        found.update({lsn: (first, same) for lsn, first, same in repeats.iter_rows()})
        index.add(frame.join(repeats, on="lsn", how="anti"))
        index.forget(frame.row(-1, named=True)["received_at"])
    assert found == _oracle(frames)


def test_a_repeat_exactly_one_horizon_later_is_still_found_and_one_microsecond_later_is_new() -> None:
    index = IdentityIndex(HORIZON)
    index.add(pl.DataFrame([(1, 2, 3, 1, START)], schema=ENTRY, orient="row"))
    at_edge = pl.DataFrame([(1, 2, 3, 2, START + HORIZON)], schema=ENTRY, orient="row")
    past_edge = at_edge.with_columns(pl.col("received_at") + timedelta(microseconds=1))
    assert index.find_repeats(at_edge).rows() == [(2, 1, True)]
    assert index.find_repeats(past_edge).is_empty()


def test_identities_that_share_one_half_are_different() -> None:
    index = IdentityIndex(HORIZON)
    index.add(pl.DataFrame([(1, 2, 3, 1, START)], schema=ENTRY, orient="row"))
    others = pl.DataFrame([(1, 3, 3, 2, START), (2, 2, 3, 3, START)], schema=ENTRY, orient="row")
    assert index.find_repeats(others).is_empty()


def test_forgetting_drops_what_nothing_can_repeat_any_more() -> None:
    index = IdentityIndex(HORIZON)
    index.add(pl.DataFrame([(1, 2, 3, 1, START)], schema=ENTRY, orient="row"))
    index.forget(START + HORIZON)
    assert len(index) == 1
    index.forget(START + HORIZON + timedelta(microseconds=1))
    assert len(index) == 0


def test_identities_keep_all_their_128_bits() -> None:
    identity = pl.Series([bytes(range(16)), bytes(range(16, 32))])
    now = pl.Series([START, START])
    frame = entries(identity, pl.Series([1, 2]), pl.Series([1, 2]), now)
    halves = [row[:2] for row in frame.iter_rows()]
    assert [b"".join(half.to_bytes(8, "little") for half in pair) for pair in halves] == identity.to_list()
