"""Tumbling windows: examples at the borders, and properties for any instant and size."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.instants import EPOCH
from metering.windows import MINUTE, Window, tumbling

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
instants = st.datetimes(datetime(1960, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds only
sizes = st.integers(1, 86_400).map(lambda seconds: timedelta(seconds=seconds))


def test_start_belongs_to_the_window_and_end_to_the_next() -> None:
    window = tumbling(NOON)
    assert window == Window(NOON, NOON + MINUTE)
    assert NOON in window
    assert NOON + MINUTE - MICROSECOND in window
    assert NOON + MINUTE not in window
    assert tumbling(NOON + MINUTE) == Window(NOON + MINUTE, NOON + 2 * MINUTE)
    assert tumbling(NOON - MICROSECOND).end == NOON


@given(instants, sizes)
def test_every_instant_is_in_its_window_which_is_aligned_to_the_epoch(instant: datetime, size: timedelta) -> None:
    window = tumbling(instant, size)
    assert instant in window
    assert window.end - window.start == size
    assert (window.start - EPOCH) % size == timedelta()


@given(instants, instants)
def test_instants_share_a_window_exactly_when_no_border_is_between_them(one: datetime, other: datetime) -> None:
    assert (tumbling(one) == tumbling(other)) == (tumbling(one).start <= other < tumbling(one).end)


def test_a_window_does_not_depend_on_the_zone_its_instant_is_written_in() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5, minutes=45)))
    assert tumbling(elsewhere, timedelta(hours=1)) == tumbling(NOON, timedelta(hours=1))


@pytest.mark.parametrize("end", [NOON, NOON - MICROSECOND])
def test_an_empty_window_is_refused(end: datetime) -> None:
    with pytest.raises(ValueError, match="ends after it starts"):
        Window(NOON, end)


def test_naive_instants_are_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Window(NOON.replace(tzinfo=None), NOON)


@pytest.mark.parametrize("size", [timedelta(), -MINUTE])
def test_a_size_that_is_not_positive_is_refused(size: timedelta) -> None:
    with pytest.raises(ValueError, match="positive"):
        tumbling(NOON, size)
