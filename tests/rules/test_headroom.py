"""How much room is left before an unread record goes."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.runtime.headroom import (
    Lasting,
    RetentionLimits,
    free_share,
    least_retention,
    limits_of,
    retention_headroom,
)
from tests.clocks import HandClock

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
WEEK = timedelta(days=7)
LONGEST = timedelta(milliseconds=timedelta.max // timedelta(milliseconds=1))
TIMED = RetentionLimits(WEEK, None)
SIZED = RetentionLimits(None, 1_000_000)


@pytest.mark.parametrize(
    ("behind", "left"), [(timedelta(0), 1.0), (WEEK / 2, 0.5), (WEEK * 0.75, 0.25), (WEEK, 0.0), (2 * WEEK, 0.0)]
)
def test_a_record_unread_for_half_the_retention_has_half_left(behind: timedelta, left: float) -> None:
    assert retention_headroom(TIMED, {0: 1}, 400, NOW - behind, NOW) == pytest.approx(left)


def test_the_fullest_partition_decides_and_the_scarcer_of_age_and_size() -> None:
    assert retention_headroom(SIZED, {0: 10, 1: 1_000}, 400, None, NOW) == pytest.approx(0.6)
    both = RetentionLimits(WEEK, 1_000_000)
    assert retention_headroom(both, {0: 1_000}, 400, NOW - WEEK / 2, NOW) == pytest.approx(0.5)
    assert retention_headroom(both, {0: 1_000}, 900, NOW - WEEK / 2, NOW) == pytest.approx(0.1)


@given(st.floats(0, 1e9), st.booleans())
def test_an_empty_backlog_and_unlimited_topics_have_full_headroom(seconds: float, unread: bool) -> None:
    limits = RetentionLimits(None, None) if unread else RetentionLimits(WEEK, 1)
    long_ago = NOW - timedelta(seconds=seconds)
    assert retention_headroom(limits, {0: int(unread) * 10**9, 1: 0}, 400, long_ago, NOW) == 1


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        ({"retention.ms": "604800000", "retention.bytes": "-1"}, TIMED),
        ({"retention.ms": "-1", "retention.bytes": "1000000"}, SIZED),
        ({"retention.ms": "9223372036854775807"}, RetentionLimits(LONGEST, None)),
        ({"cleanup.policy": "compact", "retention.ms": "1"}, RetentionLimits(None, None)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "604800000"}, TIMED),
        ({}, RetentionLimits(None, None)),
    ],
)
def test_limits_are_those_of_the_topic(settings: dict[str, str], limits: RetentionLimits) -> None:
    assert limits_of(settings) == limits


def test_of_several_topics_the_shortest_age_and_the_least_headroom_count() -> None:
    week, day = TIMED, RetentionLimits(timedelta(days=1), None)
    assert least_retention([week, SIZED, day], [0.9, 0.4, 1.0]) == {"seconds": 86_400.0, "headroom": 0.4}
    assert least_retention([SIZED], [1.0]) == {"seconds": None, "headroom": 1.0}


def test_a_folder_has_a_share_that_is_free_and_an_object_store_has_none(tmp_path: Path) -> None:
    share = free_share(str(tmp_path))
    assert share is not None
    assert 0 <= share <= 1
    assert free_share("s3://bucket/tables") is None


@pytest.mark.skipif(not Path("/proc").exists(), reason="a file system without a size, which only Linux has for sure")
def test_a_file_system_of_unknown_size_ends_no_driver() -> None:
    assert free_share("/proc") is None


@given(st.integers(1, 10**6), st.integers(1, 10_000), st.integers(0, 10**6))
def test_a_size_lasts_as_long_as_the_fullest_partition_takes_to_fill_it(
    records: int, seconds: int, before: int
) -> None:
    clock = HandClock()
    lasting = Lasting(clock)
    assert lasting.seconds(SIZED, {0: before, 1: before}, 400) == math.inf
    clock.go(seconds)
    lasts = lasting.seconds(SIZED, {0: before, 1: before + records}, 400)
    assert lasts == pytest.approx(seconds * 1_000_000 / (400 * records))
    assert lasting.seconds(RetentionLimits(WEEK, 1_000_000), {0: before, 1: before + records}, 400) == min(
        lasts, WEEK.total_seconds()
    )


def test_an_age_is_kept_as_it_is_and_a_topic_without_limits_for_ever() -> None:
    clock = HandClock()
    lasting = Lasting(clock)
    clock.go(86_400)
    assert lasting.seconds(TIMED, {0: 10**9}, 400) == WEEK.total_seconds()
    assert lasting.seconds(RetentionLimits(None, None), {0: 10**9}, 400) == math.inf
