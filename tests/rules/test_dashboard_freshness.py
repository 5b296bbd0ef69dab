"""What a page may say of what it shows, at the edges of time. No database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dashboard.freshness import IDLE_AFTER, QUIET_AFTER, Health, State, freshness, health
from dashboard.queries.applications import Application
from dashboard.queries.feed import Feed
from dashboard.wording import span
from metering.reports import STALE_AFTER_SECONDS

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPSILON = timedelta(microseconds=1)
STALE_AFTER = timedelta(seconds=STALE_AFTER_SECONDS)


def application(
    state: str = "running",
    *,
    reported: timedelta = timedelta(0),
    batch: timedelta | None = timedelta(0),
    behind: int | None = 0,
) -> Application:
    last_batch_at = None if batch is None else NOW - batch
    return Application("joins", state, 1, NOW - reported, behind, 0.0, None, last_batch_at, 1, 1, NOW, None, None)


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (None, Health.NEVER_RAN),
        (application("starting"), Health.STARTING),
        (application("catching_up"), Health.CATCHING_UP),
        (application("stopped"), Health.STOPPED),
        (application("stopped", reported=timedelta(days=1)), Health.STOPPED),
        (application(), Health.RUNNING),
        (application(batch=IDLE_AFTER), Health.RUNNING),
        (application(batch=IDLE_AFTER + EPSILON), Health.IDLE),
        (application(batch=None), Health.IDLE),
        (application(batch=None, behind=5), Health.RUNNING),
        (application(batch=IDLE_AFTER + EPSILON, behind=1), Health.RUNNING),
        (application(reported=STALE_AFTER), Health.RUNNING),
        (application(reported=STALE_AFTER + EPSILON), Health.STALE),
        (application("starting", reported=STALE_AFTER + EPSILON), Health.STALE),
    ],
)
def test_each_report_of_an_application_has_its_health(seen: Application | None, word: Health) -> None:
    assert health(seen, NOW) is word


def feed(reported: timedelta | None = timedelta(0), state: str = "running") -> Feed:
    reported_at = None if reported is None else NOW - reported
    return Feed(NOW, "billing", state, reported_at, NOW - timedelta(seconds=3), timedelta(minutes=5), None)


@pytest.mark.parametrize(
    ("seen", "newest", "state"),
    [
        (feed(None), None, State.NEVER_HAD_DATA),
        (feed(), None, State.NEVER_HAD_DATA),
        (feed(), NOW, State.LIVE),
        (feed(), NOW - QUIET_AFTER, State.LIVE),
        (feed(), NOW - QUIET_AFTER - EPSILON, State.IDLE),
        (feed(STALE_AFTER), NOW, State.LIVE),
        (feed(STALE_AFTER + EPSILON), NOW, State.STALE),
        (feed(STALE_AFTER + EPSILON), NOW - QUIET_AFTER - EPSILON, State.STALE),
        (feed(STALE_AFTER + EPSILON), None, State.STALE),
        (feed(state="stopped"), NOW, State.STALE),
        (feed(None), NOW, State.STALE),
    ],
)
def test_each_age_of_data_has_its_freshness(seen: Feed, newest: datetime | None, state: State) -> None:
    assert freshness(seen, newest, "usage").state is state


def test_live_data_shows_its_age() -> None:
    sentence = freshness(feed(), NOW, "usage").sentence
    assert sentence == "Up to date with all that was received before 11:59:57 UTC, 3 s ago."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_a_span_is_written_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text
