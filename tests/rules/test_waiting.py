"""What cannot be done now is tried again by the same process, and says so; what waiting does not mend ends it."""

from __future__ import annotations

import errno
import threading
import weakref
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import cast

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import StreamingQueryException

from jobs.billing import pipeline as billing
from jobs.runtime import run
from jobs.runtime.environment import Environment
from jobs.runtime.errors import Fenced, NotYet, Refused
from jobs.runtime.postgres import schema, schema_check
from jobs.runtime.transient_errors import transient_error_of
from jobs.runtime.waiting import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, Waiting, pause_seconds, until_done
from metering.vocabulary import Cause
from monitoring import metrics
from monitoring.instruments import REGISTRY
from tests.clocks import HandClock

JOB = "joins"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def shown(cause: Cause) -> float | None:
    return REGISTRY.get_sample_value("weir_waiting", {"job": JOB, "cause": cause.value})


@given(st.integers(min_value=1, max_value=10**6))
def test_a_pause_never_exceeds_the_longest_one(attempts: int) -> None:
    assert FIRST_PAUSE_SECONDS <= pause_seconds(attempts) <= MAX_PAUSE_SECONDS
    assert pause_seconds(attempts) <= pause_seconds(attempts + 1)


class Step:
    """Fails with what it is given, one after the other, and then is done."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)

    def __call__(self) -> str:
        if self._failures:
            raise self._failures.pop(0)
        return "done"


def test_waits_are_counted_by_cause_until_progress() -> None:
    waiting = Waiting(JOB, HandClock())
    told: list[dict[str, str]] = []
    step = Step(NotYet(Cause.KAFKA, "no broker"), psycopg.OperationalError("server closed the connection"))
    assert until_done(step, waiting, threading.Event(), lambda: told.append(waiting.progress())) == "done"
    assert [(one["waiting_for"], one["waiting_because"]) for one in told] == [
        ("kafka", "no broker"),
        ("database", "OperationalError: server closed the connection"),
    ]
    assert shown(Cause.DATABASE) == 1, "trying again is not yet having done something"
    assert shown(Cause.KAFKA) == 0
    waiting.over()
    assert waiting.progress() == {}
    assert {shown(cause) for cause in Cause} == {0}


def test_since_when_is_the_first_failure_not_the_last() -> None:
    clock = HandClock(NOW)
    waiting = Waiting(JOB, clock)
    for number in range(3):
        waiting.for_(NotYet(Cause.STORE, f"try {number}"))
        clock.go(1)
    assert waiting.progress() == {
        "waiting_for": "store",
        "waiting_since": "2026-01-01T00:00:00Z",
        "waiting_because": "try 2",
    }
    waiting.over()


@pytest.mark.parametrize("error", [Refused("no"), Fenced("no"), ValueError("a bug"), psycopg.errors.CheckViolation()])
def test_what_waiting_does_not_mend_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        until_done(Step(error), Waiting(JOB, HandClock()), threading.Event())


def test_a_driver_that_waits_can_be_stopped_at_once() -> None:
    stopping = threading.Event()
    assert until_done(Step(NotYet(Cause.KAFKA, "no broker")), Waiting(JOB, HandClock()), stopping, stopping.set) is None


def test_an_attempt_keeps_nothing_of_the_previous_one() -> None:
    class Memory:
        pass

    remembered: list[weakref.ref[Memory]] = []
    are_there: list[bool] = []

    def step() -> None:
        are_there.extend(memory() is not None for memory in remembered)
        memory = Memory()
        remembered.append(weakref.ref(memory))
        if len(remembered) < 3:
            raise NotYet(Cause.STORE, f"{type(memory).__name__} {len(remembered)}")

    waiting = Waiting(JOB, HandClock())
    until_done(step, waiting, threading.Event())
    assert are_there == [False, False, False]
    assert waiting.progress()["waiting_because"] == "Memory 2"
    waiting.over()


def spark(cause: str) -> StreamingQueryException:
    return StreamingQueryException(message=f"[STREAM_FAILED] Query [id = 1] terminated with exception: {cause}")


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (KafkaException(KafkaError(KafkaError._TRANSPORT)), Cause.KAFKA),
        (KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)), Cause.KAFKA),
        (KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)), Cause.KAFKA),
        (KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)), None),
        (KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), None),
        (psycopg.errors.AdminShutdown("terminating connection due to administrator command"), Cause.DATABASE),
        (psycopg.errors.CannotConnectNow("the database system is starting up"), Cause.DATABASE),
        (psycopg.InterfaceError("the connection is closed"), Cause.DATABASE),
        (psycopg.OperationalError('FATAL:  password authentication failed for user "weir"'), None),
        (psycopg.errors.NumericValueOutOfRange("bigint out of range"), None),
        (OSError(errno.ENOSPC, "No space left on device"), Cause.STORE),
        (OSError("Generic S3 error: HTTP error: error sending request"), Cause.STORE),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), None),
        (FileNotFoundError(errno.ENOENT, "No such file"), None),
        (PermissionError(errno.EACCES, "Permission denied"), None),
        (spark("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node"), Cause.KAFKA),
        (
            spark("java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 20000 milliseconds"),
            "kafka",
        ),
        (spark("java.io.IOException: No space left on device"), Cause.STORE),
        (spark("java.lang.StackOverflowError"), None),
    ],
)
def test_only_unavailable_servers_are_waited_for(error: Exception, cause: Cause | None) -> None:
    found = transient_error_of(error)
    assert (found and found.cause) == cause


def test_a_refused_start_does_not_count_as_a_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reported() -> float | None:
        return REGISTRY.get_sample_value(metrics.LAST_REPORT.name, {"job": billing.JOB.name})

    before = reported()
    monkeypatch.setattr(schema_check, "has_newest", lambda _url, _migrations: False)
    monkeypatch.setattr(schema, "schema_problem", lambda _url, **_migrations: "migrate it")
    with pytest.raises(Refused, match="migrate"):
        run._own(billing.JOB, billing.JOB.config(), cast("Environment", SimpleNamespace(postgres_url="")), HandClock())
    assert reported() == before
