"""What a driver reports: what it does not know is left out, in the metrics as in its row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest

from jobs.billing.pipeline import JOB as BILLING
from jobs.runtime.errors import Fenced
from jobs.runtime.job import Progress, Sink
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.report import Reporter
from jobs.runtime.source import Source
from jobs.runtime.waiting import Waiting
from metering.reports import REPORT_SECONDS, Phase
from monitoring import metrics
from monitoring.instruments import REGISTRY, GaugeMetric
from tests.clocks import HandClock

JOB = BILLING.name
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)


class Position:
    """A sink and its source, as far as a report asks them."""

    def __init__(self) -> None:
        self.behind = 0
        self.at: datetime | None = None
        self.topics: list[dict[str, Any]] = []
        self.kept: dict[str, Any] = {}

    def lag(self) -> tuple[int, datetime | None]:
        return self.behind, None

    def lag_by_topic(self) -> list[dict[str, Any]]:
        return self.topics

    def retention(self) -> dict[str, Any]:
        return self.kept

    def frontier(self) -> datetime | None:
        return self.at

    def status(self) -> dict[str, Any]:
        return {"waiting": 3}

    def gauges(self) -> dict[GaugeMetric, float]:
        return {}


@pytest.fixture
def position() -> Position:
    return Position()


@pytest.fixture
def clock() -> HandClock:
    return HandClock(NOW)


@pytest.fixture
def reporter(database: str, position: Position, clock: HandClock) -> Iterator[Reporter]:
    ownership = Ownership.take(JOB, database, {"grace_seconds": 300})
    reporter = Reporter(BILLING, database, ownership, Waiting(JOB, clock), clock)
    reporter.follow(cast("Sink", position), cast("Source", position))
    yield reporter
    reporter.close()
    ownership.close()


def shown(name: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"job": JOB})


def row(database: str) -> dict[str, Any]:
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT progress FROM jobs WHERE job = %s", [JOB]).fetchone()
    assert found is not None
    return dict(found[0])


def test_the_age_of_pending_rows_is_measured_at_the_frontier(
    reporter: Reporter, position: Position, database: str
) -> None:
    position.behind, position.at = 7, NOW - timedelta(seconds=90)
    reporter.report(Phase.CATCHING_UP)
    assert shown("weir_lag_records") == row(database)["records_behind"] == 7
    assert shown("weir_lag_seconds") == row(database)["seconds_behind"] == 90
    assert shown("weir_frontier_timestamp_seconds") == position.at.timestamp()

    position.behind = 0
    reporter.report(Phase.RUNNING)
    assert shown("weir_lag_seconds") == row(database)["seconds_behind"] == 0
    assert shown("weir_catch_up_seconds") == row(database)["catch_up_seconds"] == 0


def test_the_lag_of_each_of_several_topics_is_in_the_row(reporter: Reporter, position: Position, database: str) -> None:
    reporter.report(Phase.RUNNING)
    assert "topics" not in row(database)
    position.topics = [{"topic": "gpu", "records_behind": 7, "seconds_behind": 90.0}]
    reporter.report(Phase.RUNNING)
    assert row(database)["topics"] == position.topics


def test_for_how_long_the_input_is_kept_stays_in_the_row_when_another_driver_starts(
    reporter: Reporter, position: Position, database: str
) -> None:
    """One that ends again and again before it reports would leave the API without it."""
    position.kept = {"seconds": 43_200.0, "headroom": 0.7}
    reporter.report(Phase.RUNNING)
    assert row(database)["retention"] == position.kept
    Ownership.take(JOB, database, {}).close()
    assert row(database) == {"retention": position.kept}


def test_an_unknown_lag_is_not_reported_as_none(reporter: Reporter, position: Position, database: str) -> None:
    position.behind = 7
    reporter.report(Phase.CATCHING_UP)
    assert row(database)["seconds_behind"] is None
    assert row(database)["catch_up_seconds"] is None


def test_a_job_that_never_catches_up_is_infinite_as_a_metric_and_unknown_in_json(
    reporter: Reporter, position: Position, database: str, clock: HandClock
) -> None:
    reporter.report(Phase.RUNNING)
    reporter.batch(Progress(10, {}), seconds=1_000.0)
    position.behind = 10**9
    clock.go(1)
    reporter.report(Phase.RUNNING)
    assert shown("weir_catch_up_seconds") == float("inf")
    assert row(database)["catch_up_seconds"] is None


def test_a_start_a_batch_and_a_moved_frontier_are_progress_and_an_empty_batch_or_a_mere_report_is_not(
    reporter: Reporter, position: Position, clock: HandClock
) -> None:
    def progressed() -> float | None:
        return shown("weir_last_progress_timestamp_seconds")

    started = NOW.timestamp()
    assert progressed() == started
    clock.go(1)
    reporter.batch(Progress(0, {}), seconds=0.1)
    assert progressed() == started
    reporter.batch(Progress(5, {}), seconds=0.1)
    assert progressed() == started + 1
    clock.go(1)
    position.at = NOW
    reporter.report(Phase.RUNNING)
    assert progressed() == started + 2
    clock.go(1)
    reporter.report(Phase.RUNNING)
    assert progressed() == started + 2
    assert shown("weir_last_report_timestamp_seconds") == started + 3


def test_a_report_is_made_when_the_state_is_new_or_the_last_one_old(
    reporter: Reporter, position: Position, clock: HandClock
) -> None:
    reports = []
    for state, seconds in [
        (Phase.CATCHING_UP, 0.0),
        (Phase.CATCHING_UP, REPORT_SECONDS - 1),
        (Phase.RUNNING, 0.0),
        (Phase.RUNNING, REPORT_SECONDS - 1),
        (Phase.RUNNING, 1.0),
    ]:
        clock.go(seconds)
        position.behind += 1
        reporter.report_if_due(state)
        reports.append(shown("weir_lag_records"))
    assert reports == [1, 1, 3, 3, 5]


def test_a_batch_adds_to_the_counters_and_keeps_to_their_labels(reporter: Reporter) -> None:
    labels = {"meter": "requests", "decision": "drop"}
    before = REGISTRY.get_sample_value("weir_stragglers_total", labels) or 0
    reporter.batch(Progress(5, {(metrics.STRAGGLERS, "requests", "drop"): 2}), seconds=0.1)
    assert REGISTRY.get_sample_value("weir_stragglers_total", labels) == before + 2
    with pytest.raises(ValueError, match="is none of"):
        reporter.batch(Progress(5, {(metrics.STRAGGLERS, "requests", "lost"): 2}), seconds=0.1)


def test_a_replaced_driver_learns_it_when_it_reports(reporter: Reporter, database: str) -> None:
    successor = Ownership.take(JOB, database, {})
    with pytest.raises(Fenced, match="billing: epoch 1 is no longer the newest"):
        reporter.report(Phase.RUNNING)
    assert shown("weir_epoch") == 1
    assert shown("weir_restarts") == 0
    successor.close()


def test_a_reporter_that_is_closed_leaves_no_gauge_of_the_database_behind(
    database: str, position: Position, clock: HandClock
) -> None:
    ownership = Ownership.take(JOB, database, {})
    reporter = Reporter(BILLING, database, ownership, Waiting(JOB, clock), clock)
    reporter.follow(cast("Sink", position), cast("Source", position))
    assert shown(metrics.DATABASE_READABLE.name) == 1
    reporter.close()
    ownership.close()
    assert shown(metrics.DATABASE_READABLE.name) is None
