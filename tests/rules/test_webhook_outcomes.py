"""What becomes of a delivery: ten attempts by the specification's schedule, whatever the receiver answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhooks.outcomes import DELAYS, MAX_RETRY_AFTER, Attempt, State, outcome

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
HOURS = [5 / 3600, 5 / 60, 0.5, 2, 5, 10, 14, 20, 24]
"""As Standard Webhooks 1.0 has them."""
FAILURES = st.one_of(
    st.builds(Attempt, error=st.just("connection refused")),
    st.builds(Attempt, status=st.integers(100, 599).filter(lambda status: status // 100 != 2 and status != 410)),
)


def low() -> float:
    return 0.0


@given(st.integers(200, 299), st.integers(1, 20))
def test_any_status_of_success_delivers(status: int, attempts: int) -> None:
    assert outcome(Attempt(status), attempts, NOW, low).state is State.DELIVERED


@given(st.lists(FAILURES, min_size=10, max_size=10), st.floats(0, 1))
def test_a_delivery_that_fails_has_ten_attempts_by_the_schedule_and_then_is_dead(
    failures: list[Attempt], chance: float
) -> None:
    now = NOW
    for attempts, (failure, hours) in enumerate(zip(failures, HOURS, strict=False), start=1):
        became = outcome(failure, attempts, now, lambda: chance)
        assert became.state is State.WAITING
        assert became.next_attempt_at is not None
        assert timedelta(0) <= became.next_attempt_at - now - timedelta(hours=hours) <= timedelta(hours=hours * 0.11)
        now = became.next_attempt_at
    assert len(DELAYS) == len(HOURS) == 9
    assert outcome(failures[-1], 10, now, low).state is State.DEAD


@given(st.integers(1, 20))
def test_gone_disables_the_endpoint_and_kills_nothing(attempts: int) -> None:
    became = outcome(Attempt(410), attempts, NOW, low)
    assert (became.disables, became.state) == (True, State.WAITING)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_receiver_that_has_too_much_pauses_its_endpoint(status: int) -> None:
    became = outcome(Attempt(status), 1, NOW, low)
    assert became.paused_until == became.next_attempt_at == NOW + timedelta(seconds=5)


@given(st.integers(1, 9), st.floats(0, 1), st.integers(0, 86_400))
def test_the_endpoint_is_paused_for_minutes_or_as_long_as_the_receiver_asked(
    attempts: int, chance: float, asked: int
) -> None:
    unasked = outcome(Attempt(502), attempts, NOW, lambda: chance).paused_until
    assert unasked is not None
    assert timedelta(seconds=5) <= unasked - NOW <= timedelta(minutes=5)
    became = outcome(Attempt(502, retry_after=str(asked)), attempts, NOW, lambda: chance)
    assert became.paused_until == max(unasked, NOW + timedelta(seconds=asked))
    assert became.next_attempt_at is not None
    assert became.next_attempt_at >= became.paused_until


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 404, 500])
def test_other_failures_pause_nothing_else(status: int) -> None:
    assert outcome(Attempt(status), 1, NOW, low).paused_until is None


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        *(("120", 120), (" 7 ", 7), ("2", 5), ("0", 5), ("-3", 5), ("soon", 5), ("", 5), ("1.5", 5), ("٣", 5)),
        (format_datetime(NOW + timedelta(minutes=3), usegmt=True), 180),
        (format_datetime(NOW - timedelta(minutes=3), usegmt=True), 5),
        *(("9" * 400, 86_400), ("999999", 86_400)),
    ],
)
def test_the_receiver_may_ask_for_a_longer_delay_up_to_a_day(header: str, seconds: int) -> None:
    became = outcome(Attempt(429, retry_after=header), 1, NOW, low)
    assert became.next_attempt_at == NOW + timedelta(seconds=seconds)


@given(st.text(), st.integers(1, 9))
def test_no_header_ends_the_sender_or_stops_an_endpoint_for_longer_than_the_schedule(text: str, attempts: int) -> None:
    became = outcome(Attempt(503, retry_after=text), attempts, NOW, low)
    assert became.next_attempt_at is not None
    assert DELAYS[attempts - 1] <= became.next_attempt_at - NOW <= max(DELAYS[attempts - 1], MAX_RETRY_AFTER)
