"""Differential: the columns that decide an event's time on the driver, and the specification row by row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.ingestion.config import IngestionConfig
from jobs.ingestion.config_groups import Backfill
from jobs.ingestion.event_times import validated_by_reception
from jobs.ingestion.received import INSTANT
from jobs.ingestion.receptions import mark_texts
from metering.instants import EPOCH, rfc3339
from metering.vocabulary import Isolation, Reason
from tests.specifications.clock import (
    Acceptance,
    AcceptWindow,
    accept_window,
    first_reception,
    read_device_clock,
    read_trusted_clock,
)

LISTED, OTHER = "history/eu-1", "gateway/eu-1"
PAST = timedelta(days=900)
CONFIG = IngestionConfig(
    accept_past_seconds=3_600,
    accept_future_seconds=60,
    backfill=Backfill(sources=("history/*",), accept_past_seconds=PAST // timedelta(seconds=1)),
)
MARKS = AcceptWindow(PAST, timedelta(seconds=60))
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
    "source": pl.String,
    "reception_mark": pl.String,
}

edges = [timedelta(seconds=s, microseconds=us) for s in (-3_600, -2, 0, 2, 60, 86_400) for us in (-1, 0, 1)]
distances = st.sampled_from(edges) | st.timedeltas(timedelta(hours=-2), timedelta(hours=2))
instants = distances.map(lambda distance: NOW + distance)
long_ago = st.sampled_from([-PAST + timedelta(microseconds=us) for us in (-1, 0, 1)]).map(lambda ago: NOW + ago)
marks = st.none() | st.just("yesterday") | instants | long_ago
events = st.tuples(
    st.tuples(instants | st.just(NOW), st.none() | instants),
    st.sampled_from([True, True, False]),
    st.sampled_from([None, None, "malformed", *Isolation]),
    instants | long_ago,
    st.none() | instants,
    st.tuples(st.sampled_from([LISTED, LISTED, OTHER, None]), marks),
)


def microseconds(instant: datetime | None) -> int | None:
    return None if instant is None else (instant - EPOCH) // timedelta(microseconds=1)


@given(st.lists(events, max_size=20))
def test_differential_columns_and_rules_decide_each_event_alike(found: list[tuple[Any, ...]]) -> None:
    rows = [
        (*at, stamped, reason, reason, 7, microseconds(e), microseconds(s), source, text(mark))
        for at, stamped, reason, e, s, (source, mark) in found
    ]
    validated = validated_by_reception(pl.DataFrame(rows, schema=SCHEMA, orient="row"), CONFIG)
    for row, ((at, given_first), stamped, reason, occurred_at, sent_at, (source, mark)) in zip(
        validated.to_dicts(), found, strict=True
    ):
        counts = mark is not None and source == LISTED
        marked_at = first_reception(mark, at, MARKS) if counts and isinstance(mark, datetime) else None
        first = marked_at or given_first
        reading = (
            read_trusted_clock(occurred_at)
            if sent_at is None
            else read_device_clock(occurred_at, sent_at, first or at, CONFIG.clocks.tolerance)
        )
        acceptance = accept_window(CONFIG).acceptance(reading.event_time, first or at)
        expected = reason or (None if acceptance is Acceptance.ACCEPTED else acceptance.value)
        if counts and marked_at is None and reason is None:
            expected = Reason.INVALID_RECEPTION
        is_isolated = reason in set(Isolation)
        assert row["reason"] == (expected if stamped or is_isolated else Reason.UNSTAMPED)
        # Whatever is rejected says which rule it broke.
        assert (row["violation"] is None) == (row["reason"] is None)
        assert row["reason"] != reason or row["violation"] == reason
        assert (row["event_time"], row["clock_offset_ms"]) == (reading.event_time, reading.offset_ms)
        assert row["first_received_at"] == first
        assert row["content_digest"] == (None if row["reason"] else 7)


def text(mark: datetime | str | None) -> str | None:
    return rfc3339(mark) if isinstance(mark, datetime) else mark


def validated_one(
    source: str, mark: bytes | None, occurred_at: datetime, config: IngestionConfig = CONFIG
) -> dict[str, Any]:
    said = mark_texts(pl.Series([mark], dtype=pl.Binary)).item()
    row = (NOW, None, True, None, None, 7, microseconds(occurred_at), None, source, said)
    return validated_by_reception(pl.DataFrame([row], schema=SCHEMA, orient="row"), config).row(0, named=True)


@pytest.mark.parametrize(
    ("mark", "rule"),
    [
        (b"", "an RFC 3339 instant"),
        (b"2026-07-01", "an RFC 3339 instant"),
        (b"\xff\x00", "an RFC 3339 instant"),
        (b"2026-07-01T12:00:00" + b"0" * 100 + b"Z", "an RFC 3339 instant"),
        (rfc3339(NOW - PAST - timedelta(microseconds=1)).encode(), "at most 77760000 s before it was received"),
        (rfc3339(NOW + timedelta(seconds=60, microseconds=1)).encode(), "at most 60 s after it was received"),
    ],
)
def test_an_unbelievable_mark_is_a_reason_with_a_violation(mark: bytes, rule: str) -> None:
    said = validated_one(LISTED, mark, NOW)
    assert said["reason"] == Reason.INVALID_RECEPTION
    assert said["violation"].startswith(f"weir-first-received: {rule}")
    assert said["first_received_at"] is None
    # Of a source that nobody listed the same mark says nothing.
    assert validated_one(OTHER, mark, NOW)["reason"] is None


def test_no_mark_makes_an_event_younger_than_it_is() -> None:
    occurred_at = NOW - timedelta(seconds=3_601)
    assert validated_one(LISTED, rfc3339(NOW + timedelta(seconds=60)).encode(), occurred_at)["reason"] == Reason.TOO_OLD
    assert validated_one(LISTED, rfc3339(NOW).encode(), occurred_at)["reason"] == Reason.TOO_OLD


def test_history_of_an_unlisted_source_is_too_old() -> None:
    ago = NOW - timedelta(days=700)
    assert validated_one(LISTED, rfc3339(ago).encode(), ago)["reason"] is None
    said = validated_one(OTHER, rfc3339(ago).encode(), ago)
    assert said["reason"] == Reason.TOO_OLD
    assert said["violation"].endswith("as backfill.sources does not list its source")
    assert validated_one(OTHER, None, ago)["violation"].endswith("; `weir backfill` sends events of the past")


@pytest.mark.parametrize(
    ("past", "ago", "said"),
    [
        (35 * 86_400, timedelta(days=36), "at most 35 days (3024000 s) before it was received; it is 36.0 days"),
        (86_400, timedelta(hours=25), "at most 1 day (86400 s) before it was received; it is 1.0 days"),
        (5_400, timedelta(hours=2), "at most 5400 s before it was received; it is 7200.0 s"),
    ],
)
def test_an_event_that_is_too_old_is_reported_with_its_age_and_the_command_that_sends_it(
    past: int, ago: timedelta, said: str
) -> None:
    row = validated_one(OTHER, None, NOW - ago, IngestionConfig(accept_past_seconds=past))
    assert row["violation"] == f"accept window /time: {said}; `weir backfill` sends events of the past"


def test_a_future_event_is_reported_with_how_far_ahead_it_is() -> None:
    row = validated_one(OTHER, None, NOW + timedelta(hours=1))
    assert row["violation"] == "accept window /time: at most 60 s after it was received; it is 3600.0 s"
