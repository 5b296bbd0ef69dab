"""Restart pauses: a program that keeps failing is started ever more slowly, one that was well at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jobs.backoff import MAX_DELAY_SECONDS, STEADY_AFTER_SECONDS, Backoff

runs = st.lists(st.floats(min_value=0, max_value=1e6), max_size=40)


def after(*ran_seconds: float) -> Backoff:
    backoff = Backoff()
    for seconds in ran_seconds:
        backoff = backoff.after(seconds)
    return backoff


def test_the_first_start_does_not_wait() -> None:
    assert Backoff().delay_seconds == 0


def test_pauses_double_up_to_the_longest() -> None:
    delays = [after(*[0.5] * failures).delay_seconds for failures in range(1, 8)]
    assert delays == [1, 2, 4, 8, 16, 30, 30]


@given(runs)
def test_every_pause_after_a_failure_is_between_one_second_and_the_longest(ran_seconds: list[float]) -> None:
    delay = after(*ran_seconds).delay_seconds
    assert delay == 0 if not ran_seconds else 1 <= delay <= MAX_DELAY_SECONDS


@given(runs)
def test_a_long_run_is_forgiven(ran_seconds: list[float]) -> None:
    assert after(*ran_seconds, STEADY_AFTER_SECONDS).delay_seconds == 1


def test_failing_for_weeks_does_not_overflow() -> None:
    assert Backoff(10**9).delay_seconds == MAX_DELAY_SECONDS
