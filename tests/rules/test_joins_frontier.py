"""Method: journals of random commits cut anywhere, compared with what the definition of F says of each prefix."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from jobs.joins.frontier import batch_frontier, last_frontier

START = datetime(2026, 1, 1, tzinfo=UTC)
Row = tuple[int, int | None]

commits = st.lists(st.tuples(st.integers(1, 5), st.none() | st.integers(0, 6)), min_size=1, max_size=6)
"""Of each commit how many rows it has, and F at its end: null before the first event, or the same as before."""


def rows_of(sizes: list[tuple[int, int | None]]) -> tuple[list[datetime | None], list[int]]:
    """F of each row in lsn order, and where each commit ends."""
    rows: list[datetime | None] = []
    ends, seconds = [], None
    for size, more in sizes:
        seconds = seconds if more is None else (seconds or 0) + more
        rows += [None if seconds is None else START + timedelta(seconds=seconds)] * size
        ends.append(len(rows))
    return rows, ends


def frame(frontiers: list[datetime | None], first: int) -> pl.DataFrame:
    return pl.DataFrame(
        {"lsn": range(first, first + len(frontiers)), "frontier": frontiers},
        schema={"lsn": pl.Int64, "frontier": pl.Datetime("us", "UTC")},
    )


@given(commits, st.data())
def test_the_frontier_of_a_cut_is_that_of_a_whole_commit(
    sizes: list[tuple[int, int | None]], data: st.DataObject
) -> None:
    frontiers, ends = rows_of(sizes)
    cuts = sorted({*data.draw(st.lists(st.integers(1, len(frontiers)), max_size=6)), len(frontiers)})
    known, preceding, begin = None, None, 0
    for cut in cuts:
        batch = frame(frontiers[begin:cut], begin + 1)
        found = batch_frontier(batch, ends_table=cut == len(frontiers), before=known, preceding=preceding)
        whole = [frontiers[end - 1] for end in ends if end <= cut]
        allowed = max((frontier for frontier in whole if frontier is not None), default=None)
        assert found is None or (allowed is not None and found <= allowed)
        assert known is None or (found is not None and found >= known)
        said = {frontier for frontier in frontiers[:cut] if frontier is not None and frontier != frontiers[cut - 1]}
        assert not said or (found is not None and found >= max(said)), "F stands though later rows have passed it"
        known, preceding, begin = found, last_frontier(batch), cut
    assert known == frontiers[-1]


def test_the_frontier_of_earlier_commits_is_known_inside_a_long_batch() -> None:
    frontiers, _ = rows_of([(2, 5), (3, 5), (1, 5)])
    found = batch_frontier(frame(frontiers, 1), ends_table=False, before=None, preceding=None)
    assert found == START + timedelta(seconds=10)
    assert batch_frontier(frame(frontiers[:1], 1), ends_table=False, before=START, preceding=START) == START
