"""The heart rests only while nothing is open, and wakes with the first event."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import polars as pl
import psycopg
import pytest

from jobs.ingestion.adaptive_heartbeat import AdaptiveHeartbeat
from jobs.runtime.kafka.heartbeat import Heartbeat
from jobs.runtime.postgres.ownership import Ownership
from metering.vocabulary import Family
from tests.database_rows import CONFIGS, progress, window, write

LAST = datetime(2026, 11, 1, 12, tzinfo=UTC)
"""When the last event was received."""
MOMENT = timedelta(microseconds=1)
SECOND = timedelta(seconds=1)
GAP = timedelta(seconds=CONFIGS["sessionization"]["session_gap_seconds"])
GRACE = timedelta(seconds=CONFIGS["billing"]["grace_seconds"])
F = LAST + timedelta(hours=1)
"""How far all are that have gone on."""


class Heart:
    """Stands in for the heartbeat."""

    def __init__(self) -> None:
        self.is_idle = False

    def rest(self) -> None:
        self.is_idle = True

    def wake(self) -> None:
        self.is_idle = False


def rows(family: str | None, received_at: datetime) -> pl.DataFrame:
    return pl.DataFrame({"family": [family], "received_at": [received_at]}, schema_overrides={"family": pl.String})


BEAT = rows(Family.HEARTBEAT.value, F)


def reached(database: str, but: str = "", frontier: datetime | None = None, waiting: int = 0) -> None:
    """All have gone on to F, `but` one application to `frontier`."""
    at = dict.fromkeys(("joins", "billing", "sessionization"), F) | {but: frontier}
    progress(database, "joins", None, report={"frontier": at["joins"] and at["joins"].isoformat(), "waiting": waiting})
    for job in ("billing", "sessionization"):
        progress(database, job, at[job])


@pytest.fixture
def heart() -> Heart:
    return Heart()


@pytest.fixture
def pace(database: str, heart: Heart) -> Iterator[AdaptiveHeartbeat]:
    ownership = Ownership.take("ingestion", database, {})
    followed = AdaptiveHeartbeat(cast("Heartbeat", heart), ownership)
    followed.take(rows("request", LAST))
    yield followed
    ownership.close()


def session(end: datetime, **values: Any) -> dict[str, Any]:
    row = {"account": "a", "user_id": "u", "session_start": LAST - GAP, "session_end": end, "events": 1, "version": 1}
    return {**row, **values}


def test_it_is_idle_while_nothing_is_open(database: str, pace: AdaptiveHeartbeat, heart: Heart) -> None:
    reached(database)
    write(database, "usage_windows", window(F - GRACE - timedelta(minutes=1)))
    write(database, "sessions", session(F - GAP - MOMENT), session(F, user_id="v", retracted_at=F))
    pace.take(BEAT)
    assert heart.is_idle


@pytest.mark.parametrize("family", ["request", "completion", "both", None])
def test_the_first_row_that_is_no_heartbeat_wakes_it(
    database: str, pace: AdaptiveHeartbeat, heart: Heart, family: str | None
) -> None:
    reached(database)
    pace.take(BEAT)
    rested = heart.is_idle
    pace.take(pl.concat([BEAT, rows(family, F + SECOND), BEAT]))
    assert (rested, heart.is_idle) == (True, False)
    # Until all have taken it up nobody knows what it has opened.
    pace.take(BEAT)
    assert not heart.is_idle


def test_a_window_that_takes_late_usage_keeps_it_awake(database: str, pace: AdaptiveHeartbeat, heart: Heart) -> None:
    reached(database)
    write(database, "usage_windows", window(F - GRACE - timedelta(minutes=1) + MOMENT))
    pace.take(BEAT)
    assert not heart.is_idle


def test_a_session_that_may_go_on_keeps_it_awake(database: str, pace: AdaptiveHeartbeat, heart: Heart) -> None:
    reached(database)
    write(database, "sessions", session(F - GAP))
    pace.take(BEAT)
    assert not heart.is_idle


def test_a_waiting_request_keeps_it_awake(database: str, pace: AdaptiveHeartbeat, heart: Heart) -> None:
    reached(database, waiting=1)
    pace.take(BEAT)
    assert not heart.is_idle


@pytest.mark.parametrize("job", ["sessionization", "joins", "billing"])
@pytest.mark.parametrize("frontier", [LAST, None])
def test_an_application_that_has_not_passed_the_last_event_keeps_it_awake(
    database: str, pace: AdaptiveHeartbeat, heart: Heart, job: str, frontier: datetime | None
) -> None:
    reached(database, job, frontier)
    pace.take(BEAT)
    assert not heart.is_idle


def test_an_application_that_never_ran_keeps_it_awake(
    database: str, pace: AdaptiveHeartbeat, heart: Heart, connection: psycopg.Connection[Any]
) -> None:
    for job in ("joins", "billing", "sessionization"):
        reached(database)
        connection.execute("DELETE FROM positions WHERE job = %s", [job])
        connection.execute("DELETE FROM jobs WHERE job = %s", [job])
        connection.commit()
        pace.take(BEAT)
        assert not heart.is_idle
        connection.execute("DELETE FROM positions")
        connection.execute("DELETE FROM jobs WHERE job <> 'ingestion'")
        connection.commit()


def test_after_a_start_all_must_have_passed_its_first_batch(database: str, heart: Heart) -> None:
    ownership = Ownership.take("ingestion", database, {})
    pace = AdaptiveHeartbeat(cast("Heartbeat", heart), ownership)
    reached(database, "billing", F - SECOND)
    for _ in range(2):
        pace.take(BEAT)
        assert not heart.is_idle
    ownership.close()


def test_it_is_not_idle_before_billing_has_read_the_abandoned_requests(
    database: str, pace: AdaptiveHeartbeat, heart: Heart
) -> None:
    reached(database, "billing", LAST + SECOND)
    pace.take(BEAT)
    assert not heart.is_idle
