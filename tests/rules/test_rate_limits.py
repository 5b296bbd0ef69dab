"""A key's rate limits: what is taken at their edge, how long the refused must wait, and what stays in memory."""

from __future__ import annotations

from fractions import Fraction
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from api.problems import Problem
from api.rate_limits import MANY_BUCKETS, RateLimiter, TokenBucket
from metering.api_keys import ApiKey, RateLimits
from tests.clocks import HandClock

WINDOW_NS = 60_000_000_000
STEPS = st.lists(st.tuples(st.integers(0, 2 * WINDOW_NS), st.integers(1, 30)), max_size=30)


def key(name: str = "a", requests: int | None = None, events: int | None = None) -> ApiKey:
    return ApiKey(name, b"", frozenset(), limits=RateLimits(requests, events))


def refusal(limiter: RateLimiter, of: ApiKey, events: int) -> Problem:
    with pytest.raises(Problem) as refused:
        limiter.take_events(of, events)
    return refused.value


@given(st.integers(1, 20), STEPS)
def test_a_bucket_agrees_with_exact_fractions(quota: int, steps: list[tuple[int, int]]) -> None:
    bucket, level, now = TokenBucket(quota, WINDOW_NS, 0), Fraction(quota), 0
    for pause, count in steps:
        now += pause
        level = min(Fraction(quota), level + Fraction(quota * pause, WINDOW_NS))
        needed = min(count, quota)
        wait = bucket.take(count, now)
        assert (wait == 0) == (level >= needed)
        if wait == 0:
            level -= count
        else:
            assert wait - 1 < (needed - level) * WINDOW_NS / quota <= wait
        assert bucket.remaining(now) == max(0, level // 1)


@given(st.integers(1, 20), STEPS)
def test_a_client_that_waits_as_announced_is_accepted(quota: int, steps: list[tuple[int, int]]) -> None:
    bucket, now = TokenBucket(quota, WINDOW_NS, 0), 0
    for pause, count in steps:
        now += pause
        wait = bucket.take(count, now)
        if wait:
            now += wait - 1
            assert bucket.take(count, now) == 1
            now += 1
            assert bucket.take(count, now) == 0


@given(st.integers(1, 20), STEPS)
def test_in_the_long_run_no_more_is_taken_than_the_limit_and_one_batch(
    quota: int, steps: list[tuple[int, int]]
) -> None:
    bucket, now, taken = TokenBucket(quota, WINDOW_NS, 0), 0, 0
    for pause, count in steps:
        now += pause
        taken += 0 if bucket.take(count, now) else count
        assert taken <= quota + Fraction(quota * now, WINDOW_NS) + max(0, 30 - quota)


def test_the_last_event_within_the_limit_is_taken_and_the_next_one_is_not() -> None:
    clock = HandClock()
    limiter, limited = RateLimiter(clock), key(events=10)
    limiter.take_events(limited, 9)
    limiter.take_events(limited, 1)
    problem = refusal(limiter, limited, 1)
    assert problem.status is HTTPStatus.TOO_MANY_REQUESTS
    assert problem.headers == {
        "Retry-After": "6",
        "X-RateLimit-Limit": "10",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": f"{clock.now().timestamp() + 6:.0f}",
        "RateLimit-Policy": '"events_per_minute";q=10;w=60',
        "RateLimit": '"events_per_minute";r=0;t=6',
    }
    clock.go(5)
    refusal(limiter, limited, 1)
    clock.go(1)
    limiter.take_events(limited, 1)
    refusal(limiter, limited, 1)


def test_a_batch_above_the_limit_is_taken_once_and_the_next_one_waits_for_all_of_it() -> None:
    clock = HandClock()
    limiter, limited = RateLimiter(clock), key(events=10)
    limiter.take_events(limited, 1_000)
    assert refusal(limiter, limited, 1_000).headers["Retry-After"] == "6000"
    assert refusal(limiter, limited, 1).headers["Retry-After"] == str(5_940 + 6)
    clock.go(6_000)
    limiter.take_events(limited, 1_000)


def test_requests_are_limited_by_the_second_and_apart_from_events() -> None:
    clock = HandClock()
    limiter, limited = RateLimiter(clock), key(requests=2, events=1)
    limiter.take_request(limited)
    limiter.take_request(limited)
    with pytest.raises(Problem) as refused:
        limiter.take_request(limited)
    assert refused.value.headers["Retry-After"] == "1"
    limiter.take_events(limited, 1)
    clock.go(0.5)
    limiter.take_request(limited)


def test_keys_do_not_share_a_limit() -> None:
    limiter = RateLimiter(HandClock())
    limiter.take_events(key("a", events=1), 1)
    limiter.take_events(key("b", events=1), 1)
    refusal(limiter, key("a", events=1), 1)


@pytest.mark.parametrize(
    ("own", "default", "taken"), [(None, 2, 2), (3, 2, 3), (1, 2, 1), (0, 2, 50), (None, 0, 50), (None, None, 50)]
)
def test_the_limit_of_a_key_wins_over_the_default_and_0_means_unlimited(
    own: int | None, default: int | None, taken: int
) -> None:
    limiter, limited = RateLimiter(HandClock(), RateLimits(events_per_minute=default)), key(events=own)
    for _ in range(taken):
        limiter.take_events(limited, 1)
    if taken < 50:
        refusal(limiter, limited, 1)


def test_a_changed_limit_applies_from_the_next_request() -> None:
    limiter = RateLimiter(HandClock())
    limiter.take_events(key(events=1), 1)
    refusal(limiter, key(events=1), 1)
    limiter.take_events(key(events=5), 5)
    refusal(limiter, key(events=5), 1)
    limiter.take_events(key(events=0), 1_000)


def test_memory_of_rate_limits_does_not_grow_with_traffic() -> None:
    clock = HandClock()
    limiter, limited = RateLimiter(clock), key(requests=1_000_000, events=1_000_000_000)
    for _ in range(2_000):
        limiter.take_request(limited)
        limiter.take_events(limited, 10_000)
        clock.go(0.001)
    assert limiter.buckets == 2


def test_keys_that_have_stopped_sending_take_no_memory() -> None:
    clock = HandClock()
    limiter = RateLimiter(clock)
    for number in range(10 * MANY_BUCKETS):
        limiter.take_events(key(str(number), events=60), 1)
        clock.go(0.1)
        assert limiter.buckets <= MANY_BUCKETS


def test_the_log_names_a_key_over_its_limit_once_a_minute() -> None:
    clock = HandClock()
    limiter = RateLimiter(clock)
    keys = [key(name, events=1) for name in ("a", "b")]
    for limited in keys:
        limiter.take_events(limited, 1_000)
    named = list[list[str]]()
    for pause in (0, 59, 1):
        clock.go(pause)
        with capture_logs() as logged:
            for limited in (*keys, *keys):
                refusal(limiter, limited, 1)
        named.append([entry["key"] for entry in logged])
    assert named == [["a", "b"], [], ["a", "b"]]
