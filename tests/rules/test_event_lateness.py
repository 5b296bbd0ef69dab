"""The histogram of lateness counts each accepted event once, as the window rules alone would."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.lateness import lateness_of
from metering.windows import MINUTE, tumbling
from monitoring import metrics

START = datetime(2026, 11, 1, tzinfo=UTC)
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "disposition": pl.String,
    "type": pl.String,
    "event_time": pl.Datetime("us", "UTC"),
    "received_at": pl.Datetime("us", "UTC"),
}
REQUEST = "ai.inference.request.v1"


def rows(
    *events: tuple[str, str, datetime, datetime],
    first_received_at: datetime | None = None,
    replays_lsn: int | None = None,
) -> pl.DataFrame:
    first = pl.lit(first_received_at, pl.Datetime("us", "UTC")).alias("first_received_at")
    return pl.DataFrame(list(events), schema=SCHEMA, orient="row").with_columns(
        first, family=pl.lit(None, pl.String), replays_lsn=pl.lit(replays_lsn, pl.Int64)
    )


def test_an_event_that_is_sent_again_is_as_late_as_it_was_at_first() -> None:
    again, first = ("accepted", REQUEST, START, START + timedelta(days=9)), START + 3 * MINUTE
    assert lateness_of(rows(again, first_received_at=first, replays_lsn=1)).total_seconds == 120


def test_loading_history_reports_no_late_events() -> None:
    past = ("accepted", REQUEST, START, START + timedelta(days=900))
    assert not any(lateness_of(rows(past, first_received_at=START + timedelta(days=3))).counts)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["accepted", "duplicate", "rejected"]),
            st.sampled_from([REQUEST, "ai.inference.completion.v1", "ai.inference.usage.v1", "source.heartbeat.v1"]),
            st.integers(0, 200_000_000),
            st.one_of(st.integers(-300_000_000, 300_000_000), st.integers(0, 10**13)),
        ),
        max_size=30,
    )
)
def test_each_accepted_event_is_in_the_bucket_of_its_lateness(events: list[tuple[str, str, int, int]]) -> None:
    placed = [
        (disposition, kind, START + timedelta(microseconds=at), START + timedelta(microseconds=at + delay))
        for disposition, kind, at, delay in events
    ]
    expected = [0] * (len(metrics.LATENESS_BUCKETS) + 1)
    total = 0.0
    for disposition, kind, event_time, received_at in placed:
        if disposition == "accepted" and kind != "source.heartbeat.v1":
            late = max(0.0, (received_at - tumbling(event_time).end).total_seconds())
            expected[bisect_left(metrics.LATENESS_BUCKETS, late)] += 1
            total += late

    found = lateness_of(rows(*placed))

    assert list(found.counts) == expected
    assert found.total_seconds == pytest.approx(total)


def test_lateness_begins_when_the_minute_has_ended() -> None:
    end, moment = START + MINUTE, timedelta(microseconds=1)
    assert lateness_of(rows(("accepted", REQUEST, START, end))).counts[0] == 1
    assert lateness_of(rows(("accepted", REQUEST, START, end + moment))).counts[:2] == (0, 1)
