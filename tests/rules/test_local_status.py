"""`weir status`: one word per job that is true whoever knows it best."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.catalog_status import ON_THE_WAY, joined_until
from cli.status import (
    HELD_BACK_SECONDS,
    lag_sentences,
    reporting,
    slowest_topic_sentence,
    state_of,
    unpropagated_sentence,
)
from deployment.capture import Capture
from deployment.job_states import JobRow
from deployment.stack import Process, State
from jobs.ingestion.event_topics import slowest
from jobs.runtime.kafka.topic_lag import topic_lags
from metering.reports import OFF_AFTER, STALE_AFTER_SECONDS

TOPICS = st.sampled_from(["events", "gpu", "calls", "other"])


def row(state: str, age_seconds: float = 1.0) -> JobRow:
    return JobRow(epoch=1, state=state, progress={}, report_age_seconds=age_seconds)


@pytest.mark.parametrize(
    ("process", "job", "state"),
    [
        (None, None, "stopped"),
        (None, row("running"), "stopped"),
        (State.STARTING, row("running"), "starting"),
        (State.RESTARTING, row("running"), "restarting"),
        (State.RUNNING, None, "running"),
        (State.RUNNING, row("running"), "running"),
        (State.RUNNING, row("catching_up"), "catching_up"),
        (State.RUNNING, row("running", age_seconds=STALE_AFTER_SECONDS), "running"),
        (State.RUNNING, row("running", age_seconds=STALE_AFTER_SECONDS + 0.1), "stale"),
        (State.RUNNING, row("starting", age_seconds=STALE_AFTER_SECONDS + 0.1), "stale"),
        (State.RUNNING, row("stopped", age_seconds=86_400), "stopped"),
    ],
)
def test_the_state_of_a_job(process: State | None, job: JobRow | None, state: str) -> None:
    assert state_of(Process("joins", process) if process else None, job) == state


def test_on_a_cluster_an_application_that_was_killed_and_switched_off_is_not_stale_for_ever() -> None:
    day = OFF_AFTER.total_seconds()
    rows = {"joins": row("running", day + 1), "analytics": row("running", day + 1)}
    assert set(reporting(rows)) == {"joins"}
    assert set(reporting({"analytics": row("running", day - 1)})) == {"analytics"}
    assert set(reporting({"analytics": row("stopped"), "joins": row("stopped")})) == {"joins"}


@pytest.mark.parametrize("progress", [{}, {"unpropagated_deletions": 0}])
def test_deletions_are_not_reported_where_joins_reports_none(progress: dict[str, int]) -> None:
    assert unpropagated_sentence({}) == unpropagated_sentence({"joins": JobRow(1, "running", progress, 1.0)}) == []


def test_a_difference_from_the_catalog_is_reported_with_the_command() -> None:
    (said,) = unpropagated_sentence({"joins": JobRow(1, "running", {"unpropagated_deletions": 3}, 1.0)})
    assert said.startswith("joins prices with 3 accounts and prices that were deleted")
    assert "`weir catalog reconcile`" in said


@pytest.mark.parametrize(
    ("behind", "said"),
    [
        ({"events": 0.0}, []),
        ({"events": 0.0, "gpu": HELD_BACK_SECONDS}, []),
        ({"events": 0.0, "gpu": 301.0, "other": 7.0}, ["topic gpu, which is 301 s behind another"]),
        ({"events": 301.0, "gpu": None}, ["topic gpu: a partition of it was not heard of yet"]),
        ({"events": None}, []),
    ],
)
def test_of_several_topics_the_one_that_holds_windows_open_is_named(
    behind: dict[str, float | None], said: list[str]
) -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    frontiers = {topic: None if s is None else at - timedelta(seconds=s) for topic, s in behind.items()}
    found = slowest_topic_sentence({"ingestion": JobRow(1, "running", slowest(frontiers), 1.0)})
    assert [
        sentence.removeprefix("Windows wait for the ").removesuffix(" (`weir topics list`).") for sentence in found
    ] == said
    assert slowest_topic_sentence({}) == []


@given(st.dictionaries(TOPICS, st.tuples(st.lists(st.integers(0, 9)), st.none() | st.integers(-9, 99)), min_size=1))
def test_each_of_several_topics_is_listed_with_its_lag_the_slowest_first(
    topics: dict[str, tuple[list[int], int | None]],
) -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    unread = {topic: dict(enumerate(counts)) for topic, (counts, _) in topics.items()}
    ages = {topic: None if age is None else now - timedelta(seconds=age) for topic, (_, age) in topics.items()}
    lags = topic_lags(unread, ages, now)
    if len(topics) == 1:
        assert lags == []
        return
    expected = {topic: sum(counts) for topic, (counts, _) in topics.items()}
    assert {lag["topic"]: lag["records_behind"] for lag in lags} == expected
    seconds = [lag["seconds_behind"] for lag in lags]
    unheard = [topic for topic, (_, age) in topics.items() if age is None and expected[topic]]
    known = [max(0, age or 0) if expected[name] else 0 for name, (_, age) in topics.items() if name not in unheard]
    assert seconds == [None] * len(unheard) + sorted(known, reverse=True)
    said = lag_sentences({"ingestion": JobRow(1, "running", {"topics": lags}, 1.0)})
    assert [sentence.split(":")[0] for sentence in said] == [f"Topic {lag['topic']}" for lag in lags]
    assert [sentence.endswith(": all is read.") for sentence in said] == [not lag["records_behind"] for lag in lags]


def test_joins_must_have_captured_changes_but_not_pending_ones() -> None:
    at = datetime(2026, 3, 1, tzinfo=UTC)
    jobs = {job: JobRow(1, "running", {"seconds_behind": n}, 1.0) for job, n in (("ingestion", 1.5), ("joins", 30.0))}
    assert joined_until(Capture(True, at, 1.0), jobs) == at - ON_THE_WAY - timedelta(seconds=31.5)
    for capture in (
        Capture(False, at, 1.0),
        Capture(True, None, 1.0),
        Capture(True, at, 1.0, ("catalog.prices.plan",)),
    ):
        assert joined_until(capture, jobs) is None
    assert joined_until(Capture(True, at, 1.0), {"joins": jobs["joins"]}) is None
