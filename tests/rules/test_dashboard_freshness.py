"""What a page may say of what it shows, at the edges of time. No database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from dashboard.freshness import IDLE_AFTER, STALE_AFTER, Filling, Health, filling, health, span
from dashboard.queries import Application, LiveWindow, LiveWindows

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EPSILON = timedelta(microseconds=1)


def application(
    state: str = "running",
    *,
    reported: timedelta = timedelta(0),
    batch: timedelta | None = timedelta(0),
    behind: int | None = 0,
) -> Application:
    last_batch_at = None if batch is None else NOW - batch
    return Application("joins", state, 1, NOW - reported, behind, 0.0, last_batch_at, 1, 1, NOW)


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
def test_an_application_is_called_what_can_be_known_of_it(seen: Application | None, word: Health) -> None:
    assert health(seen, NOW) is word


def live(*, reported: timedelta | None = timedelta(0), last: datetime | None = NOW, windows: int = 0) -> LiveWindows:
    window = LiveWindow(NOW, NOW + timedelta(minutes=1), "open", "a1", "EUR", 1, 0, 0, 0, Decimal(0), 0)
    reported_at = None if reported is None else NOW - reported
    return LiveWindows(NOW, (window,) * windows, False, NOW, timedelta(minutes=5), reported_at, last)


@pytest.mark.parametrize(
    ("seen", "word"),
    [
        (live(last=None), Filling.NEVER_HAD_DATA),
        (live(last=None, reported=None), Filling.NEVER_HAD_DATA),
        (live(), Filling.IDLE),
        (live(windows=1), Filling.LIVE),
        (live(windows=1, reported=STALE_AFTER), Filling.LIVE),
        (live(windows=1, reported=STALE_AFTER + EPSILON), Filling.STALE),
        (live(reported=STALE_AFTER + EPSILON), Filling.STALE),
        (live(reported=None), Filling.STALE),
    ],
)
def test_windows_are_called_what_can_be_known_of_them(seen: LiveWindows, word: Filling) -> None:
    assert filling(seen) is word


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_a_span_is_said_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text
