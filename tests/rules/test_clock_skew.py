"""How far two clocks are apart, as one of them can know it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.clock_skew import skew

NOW = datetime(2026, 1, 1, tzinfo=UTC)
durations = st.timedeltas(timedelta(0), timedelta(minutes=5))


@given(durations, durations, st.timedeltas(timedelta(minutes=-5), timedelta(minutes=5)))
def test_the_round_trip_to_the_database_is_not_clock_skew(there: timedelta, back: timedelta, ahead: timedelta) -> None:
    found = skew(NOW + ahead, NOW + there, NOW + ahead + there + back)
    assert abs(found) <= abs(ahead)
    if not there and not back:
        assert found == ahead
