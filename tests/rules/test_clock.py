"""The rules of clock correction and of the accept window, by property and at every edge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.specifications.clock import Acceptance, AcceptWindow, read_device_clock, read_trusted_clock

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
WINDOW = AcceptWindow(past=timedelta(days=35), future=timedelta(minutes=5))
TOLERANCE = timedelta(seconds=2)

instants = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds only
durations = st.timedeltas(timedelta(0), timedelta(days=400))
errors = st.timedeltas(timedelta(days=-400), timedelta(days=400))


@pytest.mark.parametrize(
    ("event_time", "acceptance"),
    [
        (NOW - timedelta(days=35), Acceptance.ACCEPTED),
        (NOW - timedelta(days=35) - MICROSECOND, Acceptance.TOO_OLD),
        (NOW + timedelta(minutes=5), Acceptance.ACCEPTED),
        (NOW + timedelta(minutes=5) + MICROSECOND, Acceptance.FUTURE),
        (NOW, Acceptance.ACCEPTED),
    ],
)
def test_both_ends_of_the_accept_window_are_inside(event_time: datetime, acceptance: Acceptance) -> None:
    assert WINDOW.acceptance(event_time, NOW) is acceptance


@given(instants, instants, durations, durations)
def test_exactly_the_window_is_accepted(e: datetime, r: datetime, past: timedelta, future: timedelta) -> None:
    accepted = AcceptWindow(past, future).acceptance(e, r) is Acceptance.ACCEPTED
    assert accepted == (-past <= e - r <= future)


@given(instants, instants, errors)
def test_acceptance_does_not_depend_on_the_present_time(e: datetime, r: datetime, shift: timedelta) -> None:
    assert WINDOW.acceptance(e, r) is WINDOW.acceptance(e + shift, r + shift)


@pytest.mark.parametrize("end", ["past", "future"])
def test_an_accept_window_cannot_be_negative(end: str) -> None:
    with pytest.raises(ValueError, match="accept window"):
        AcceptWindow(**{"past": TOLERANCE, "future": TOLERANCE, end: -MICROSECOND})


@given(instants)
def test_a_trusted_clock_is_believed(occurred_at: datetime) -> None:
    reading = read_trusted_clock(occurred_at)
    assert reading.event_time == occurred_at
    assert reading.offset_ms is None


@given(instants, instants)
def test_a_device_without_senttime_is_not_corrected(occurred_at: datetime, received_at: datetime) -> None:
    reading = read_device_clock(occurred_at, None, received_at, TOLERANCE)
    assert reading.event_time == occurred_at
    assert reading.offset_ms is None


@given(instants, durations, durations, errors)
def test_the_error_of_a_devices_clock_cancels_out(
    occurred: datetime, waited: timedelta, travelled: timedelta, error: timedelta
) -> None:
    # True times: occurred, then sent after waiting, then received. The device's two readings share its error.
    received = occurred + waited + travelled
    reading = read_device_clock(occurred + error, occurred + waited + error, received, timedelta(0))
    assert reading.event_time == occurred + travelled


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize(("excess", "is_corrected"), [(timedelta(0), False), (MICROSECOND, True)])
def test_an_offset_of_exactly_the_tolerance_is_noted_and_not_applied(
    direction: int, excess: timedelta, is_corrected: bool
) -> None:
    offset = direction * (TOLERANCE + excess)
    reading = read_device_clock(NOW, NOW, NOW + offset, TOLERANCE)
    assert reading.offset == offset
    assert reading.event_time == (NOW + offset if is_corrected else NOW)


@pytest.mark.parametrize(("offset_us", "offset_ms"), [(1_999, 1), (0, 0), (-1, -1), (-1_000, -1), (-1_001, -2)])
def test_whole_milliseconds_are_rounded_down(offset_us: int, offset_ms: int) -> None:
    reading = read_device_clock(NOW, NOW, NOW + offset_us * MICROSECOND, TOLERANCE)
    assert reading.offset_ms == offset_ms
