"""A machine whose clock is not the database's does not start: its rows would be dated wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs.runtime.clock import MachineClock
from jobs.runtime.clock_skew import refuse_clock_skew
from jobs.runtime.errors import Refused
from tests.clocks import HandClock


@pytest.mark.parametrize(("ahead", "direction"), [(90, "90 s ahead of"), (-90, "90 s behind")])
def test_a_skewed_clock_is_refused_and_a_true_one_accepted(database: str, ahead: int, direction: str) -> None:
    refuse_clock_skew(database, MachineClock())
    with pytest.raises(Refused, match=f"clock is (89|{direction[:2]}) s {direction[5:]}"):
        refuse_clock_skew(database, HandClock(datetime.now(UTC) + timedelta(seconds=ahead)))
