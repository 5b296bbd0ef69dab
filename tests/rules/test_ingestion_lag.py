"""How far ingestion is behind by what was reported last, and when the API refuses events for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.ingestion_lag import (
    MAX_LAG_SECONDS,
    RETRY_AFTER_SECONDS,
    SOON_SECONDS,
    Report,
    Retention,
    lag_seconds,
    refuse_lag,
    retention_in,
)
from api.problems import Problem
from api.server import seconds_in
from deployment.errors import CannotRun
from metering.instants import rfc3339
from metering.reports import STALE_AFTER_SECONDS, Phase
from metering.vocabulary import Job

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
LAG = 500.0


def report(
    job: Job = Job.INGESTION, state: str = Phase.RUNNING, age: float = 1, lag: float | None = LAG, **progress: Any
) -> Report:
    """A report by which the frontier is `lag` seconds ago; None: unknown."""
    frontier = None if lag is None else rfc3339(NOW - timedelta(seconds=lag))
    return Report(job, state, {"frontier": frontier, **progress}, age, NOW)


def test_an_ingestion_that_has_read_everything_is_not_behind_however_old_its_frontier() -> None:
    assert lag_seconds([report(records_behind=0)]) == 0


def test_an_ingestion_that_has_much_to_read_is_behind_by_the_age_of_its_frontier() -> None:
    assert lag_seconds([report(records_behind=9, catch_up_seconds=None)]) == LAG
    assert lag_seconds([report(records_behind=9, catch_up_seconds=SOON_SECONDS + 1)]) == LAG


def test_an_ingestion_that_catches_up_is_not_behind() -> None:
    assert lag_seconds([report(records_behind=9, catch_up_seconds=SOON_SECONDS)]) == 0


@pytest.mark.parametrize("state", [Phase.STOPPED, Phase.STARTING, Phase.WAITING])
def test_the_backlog_of_a_stopped_ingestion_is_not_trusted(state: Phase) -> None:
    assert lag_seconds([report(state=state, records_behind=0)]) == LAG


def test_an_ingestion_with_a_stale_report_counts_as_stopped() -> None:
    assert lag_seconds([report(age=STALE_AFTER_SECONDS, records_behind=0)]) == 0
    assert lag_seconds([report(age=STALE_AFTER_SECONDS + 1, records_behind=0)]) == LAG


def test_the_lag_of_a_restarting_ingestion_is_that_of_its_readers() -> None:
    starting = report(state=Phase.STARTING, lag=None)
    assert lag_seconds([starting, report(Job.JOINS, lag=900), report(Job.SESSIONIZATION, lag=700)]) == 700


def test_an_unknown_lag_is_zero() -> None:
    assert lag_seconds([]) == 0
    assert lag_seconds([report(Job.BILLING)]) == 0
    assert lag_seconds([Report(Job.INGESTION, Phase.STARTING, {}, 0, NOW)]) == 0


def test_a_database_whose_clock_is_behind_makes_no_negative_lag() -> None:
    assert lag_seconds([report(state=Phase.STOPPED, lag=-5)]) == 0


def test_events_are_refused_just_above_the_limit_and_never_without_one() -> None:
    refuse_lag(LAG, LAG)
    refuse_lag(1e9, 0)
    with pytest.raises(Problem) as refused:
        refuse_lag(LAG + 0.001, LAG)
    assert refused.value.status == 429
    assert refused.value.headers == {
        "Retry-After": str(RETRY_AFTER_SECONDS),
        "X-RateLimit-Limit": f"{LAG:g}",
        "X-RateLimit-Remaining": "0",
    }


def test_a_topic_that_keeps_less_than_the_limit_is_filled_up_to_half_of_what_it_keeps() -> None:
    """Else what is acknowledged is deleted before anybody reads it."""
    kept = Retention(4 * LAG)
    refuse_lag(2 * LAG, MAX_LAG_SECONDS, kept)
    with pytest.raises(Problem) as refused:
        refuse_lag(2 * LAG + 1, MAX_LAG_SECONDS, kept)
    assert refused.value.headers["X-RateLimit-Limit"] == f"{2 * LAG:g}"
    refuse_lag(LAG, LAG, Retention(1e9))
    refuse_lag(2 * LAG + 1, 0, kept)


def test_a_topic_that_keeps_so_many_bytes_is_filled_up_to_half_and_never_while_ingestion_keeps_up() -> None:
    refuse_lag(LAG, MAX_LAG_SECONDS, Retention(None, 0.5))
    refuse_lag(0, MAX_LAG_SECONDS, Retention(None, 0.1))
    with pytest.raises(Problem, match="more than half of what Kafka keeps") as refused:
        refuse_lag(LAG, MAX_LAG_SECONDS, Retention(None, 0.49))
    assert refused.value.status == 429


def test_what_kafka_keeps_is_what_ingestion_reported() -> None:
    reported = report(retention={"seconds": 3_600.0, "headroom": 0.9})
    assert retention_in([report(Job.JOINS), reported]) == Retention(3_600.0, 0.9)
    assert retention_in([report(retention={"seconds": None, "headroom": 1.0})]) == Retention()
    assert retention_in([report(), report(Job.JOINS, retention={"seconds": 1.0, "headroom": 0.0})]) is None


@pytest.mark.parametrize(
    ("limit", "text"), [(0.5, "0.5"), (1.0, "1"), (86_400, "86400"), (1_234_567.0, "1234567"), (1e16, f"{10**16}")]
)
def test_a_limit_is_reported_as_it_is(limit: float, text: str) -> None:
    """A fraction of a second is not 0, which would be no limit at all."""
    with pytest.raises(Problem) as refused:
        refuse_lag(2 * limit, limit)
    assert refused.value.headers["X-RateLimit-Limit"] == text
    assert f"the limit is {text} s," in refused.value.detail


@pytest.mark.parametrize(("given", "expected"), [({}, 7), ({"S": ""}, 7), ({"S": "0"}, 0), ({"S": "3600"}, 3600)])
def test_a_limit_is_whole_seconds(given: dict[str, str], expected: int) -> None:
    assert seconds_in(given, "S", 7) == expected


@pytest.mark.parametrize("text", ["-1", "1.5", "a day", "²"])
def test_an_invalid_limit_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(CannotRun, match=r"S is .* must be whole seconds"):
        seconds_in({"S": text}, "S", 7)
