"""Differential: the columns that judge an event's time on the driver, and the rules of metering/clock.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.event_times import judged_by_reception
from jobs.ingestion.received import INSTANT
from metering.clock import Acceptance, read_device_clock, read_trusted_clock
from metering.instants import EPOCH
from metering.words import Isolation, Reason

CONFIG = IngestionConfig(accept_past_seconds=3_600, accept_future_seconds=60)
NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "received_at": INSTANT,
    "first_received_at": INSTANT,
    "is_broker_stamp": pl.Boolean,
    "reason": pl.String,
    "violation": pl.String,
    "content_digest": pl.Int64,
    "occurred_us": pl.Int64,
    "device_sent_us": pl.Int64,
}

edges = [timedelta(seconds=s, microseconds=us) for s in (-3_600, -2, 0, 2, 60, 86_400) for us in (-1, 0, 1)]
distances = st.sampled_from(edges) | st.timedeltas(timedelta(hours=-2), timedelta(hours=2))
instants = distances.map(lambda distance: NOW + distance)
events = st.tuples(
    st.tuples(instants, st.none() | instants),
    st.sampled_from([True, True, False]),
    st.sampled_from([None, "malformed", *Isolation]),
    instants,
    st.none() | instants,
)


def microseconds(instant: datetime | None) -> int | None:
    return None if instant is None else (instant - EPOCH) // timedelta(microseconds=1)


@given(st.lists(events, max_size=20))
def test_differential_columns_and_rules_judge_each_event_alike(
    found: list[tuple[tuple[datetime, datetime | None], bool, str | None, datetime, datetime | None]],
) -> None:
    rows = [(*at, stamped, reason, reason, 7, microseconds(e), microseconds(s)) for at, stamped, reason, e, s in found]
    judged = judged_by_reception(pl.DataFrame(rows, schema=SCHEMA, orient="row"), CONFIG)
    for row, ((again, first), stamped, reason, occurred_at, sent_at) in zip(judged.to_dicts(), found, strict=True):
        at = first or again
        reading = (
            read_trusted_clock(occurred_at)
            if sent_at is None
            else read_device_clock(occurred_at, sent_at, at, CONFIG.clocks.tolerance)
        )
        acceptance = CONFIG.accept_window.judge(reading.event_time, at)
        expected = reason or (None if acceptance is Acceptance.ACCEPTED else acceptance.value)
        is_isolated = reason in set(Isolation)
        assert row["reason"] == (expected if stamped or is_isolated else Reason.UNSTAMPED)
        # Whatever is rejected says which rule it broke.
        assert (row["violation"] is None) == (row["reason"] is None)
        assert row["reason"] != reason or row["violation"] == reason
        assert (row["event_time"], row["clock_offset_ms"]) == (reading.event_time, reading.offset_ms)
        assert row["content_digest"] == (None if row["reason"] else 7)
