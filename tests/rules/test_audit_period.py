"""What period an audit is asked for: each way to say it gives whole minutes, and only one is taken."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from jobs.audit.period import LONGEST, duration, period

NOW = datetime(2026, 3, 5, 12, 34, 56, 789, UTC)
UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
INSTANTS = st.timedeltas(timedelta(days=-9_000), timedelta(days=9_000)).map(lambda away: NOW + away)
DAY = datetime(2026, 3, 1)  # noqa: DTZ001  # as Typer gives it
WRONG = ["", "1", "d", "0d", "-1d", "1.5h", "1w", "1 d", "1D", "1d ", "P1D", "٣d", "9" * 40 + "d"]


@given(st.integers(1, 10**6), st.sampled_from(sorted(UNITS)))
def test_a_duration_is_a_number_and_its_unit_up_to_the_longest(number: int, unit: str) -> None:
    expected = number * UNITS[unit]
    if expected <= LONGEST:
        assert duration(f"{number}{unit}") == expected
    else:
        with pytest.raises(typer.BadParameter, match="of at most 366 days"):
            duration(f"{number}{unit}")


@pytest.mark.parametrize(
    "text", ["", "1", "d", "0d", "-1d", "1.5h", "1w", "1 d", "1D", "1d ", "P1D", "٣d", "9" * 40 + "d"]
)
def test_an_invalid_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="such as 1d, 6h or 90m"):
        duration(text)


@given(INSTANTS, st.timedeltas(timedelta(minutes=1), LONGEST))
def test_the_last_time_begins_with_a_whole_minute_and_has_all_of_it(now: datetime, last: timedelta) -> None:
    since, until = period(None, None, None, last, now)
    assert until is None
    assert since is not None
    assert (since.second, since.microsecond) == (0, 0)
    assert timedelta() <= (now - last) - since < timedelta(minutes=1)


def test_a_day_is_from_its_midnight_to_the_next_in_utc() -> None:
    midnight = datetime(2026, 3, 1, tzinfo=UTC)
    assert period(None, None, DAY, None, NOW) == (midnight, midnight + timedelta(days=1))


@pytest.mark.parametrize("day", [datetime(1, 1, 1), datetime(9999, 12, 31)])  # noqa: DTZ001 -- as it is parsed
def test_a_day_that_no_bound_could_be_is_refused(day: datetime) -> None:
    with pytest.raises(typer.BadParameter, match="is not in the years"):
        period(None, None, day, None, NOW)


def test_bounds_are_taken_as_they_are_given_and_none_is_everything() -> None:
    minute = NOW.replace(second=0, microsecond=0)
    assert period(minute, None, None, None, NOW) == (minute, None)
    assert period(None, minute, None, None, NOW) == (None, minute)
    assert period(None, None, None, None, NOW) == (None, None)


@pytest.mark.parametrize("bounds", [(NOW, None), (None, NOW)])
def test_a_bound_within_a_minute_is_refused(bounds: tuple[datetime | None, datetime | None]) -> None:
    with pytest.raises(typer.BadParameter, match="whole minutes"):
        period(*bounds, None, None, NOW)


def test_a_period_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="before --from"):
        period(NOW, NOW - timedelta(hours=1), None, None, NOW)


@pytest.mark.parametrize("start", [NOW.replace(second=0, microsecond=0), None])
@pytest.mark.parametrize("end", [NOW.replace(second=0, microsecond=0), None])
@pytest.mark.parametrize("day", [DAY, None])
@pytest.mark.parametrize("last", [timedelta(hours=1), None])
@pytest.mark.parametrize("unpriced", [True, False])
def test_two_options_for_one_period_are_refused(
    start: datetime | None, end: datetime | None, day: datetime | None, last: timedelta | None, *, unpriced: bool
) -> None:
    ways = (start is not None or end is not None) + (day is not None) + (last is not None) + unpriced
    if ways > 1:
        with pytest.raises(typer.BadParameter, match="give one"):
            period(start, end, day, last, NOW, unpriced=unpriced)
    else:
        period(start, end, day, last, NOW, unpriced=unpriced)
