"""A record that Java's client never delivers is waited for as for a broker that is away, but not for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.obstacles import obstacle_of
from jobs.runtime.unfetched import LIMIT, Unfetched

CANNOT = "java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 30000 milliseconds"
AWAY = "org.apache.kafka.common.errors.TimeoutException: no answer"

meetings = st.tuples(st.sampled_from([CANNOT, CANNOT, AWAY]), st.integers(0, 1), st.booleans())


@given(st.lists(meetings, max_size=30))
def test_oracle_it_ends_at_the_third_time_at_one_place_while_brokers_answer(found: list[tuple[str, int, bool]]) -> None:
    unfetched, here, times = Unfetched(), None, 0
    for text, position, is_answered in found:
        if text == CANNOT:
            times = times if position == here else 0
            here = position
            times += is_answered
        error = ValueError(text)
        if text == CANNOT and is_answered and times >= LIMIT:
            with pytest.raises(RuntimeError, match="Cannot fetch record for offset 7") as ended:
                unfetched.end_if_waiting_is_in_vain(error, {0: position}, lambda: True)
            assert obstacle_of(ended.value) is None
            return
        unfetched.end_if_waiting_is_in_vain(error, {0: position}, [is_answered].pop)
