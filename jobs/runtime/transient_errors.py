"""Transient errors: a broker, a database or a store is unavailable. Waiting resolves these, and no others.

An answer, however unwelcome, is never transient: a missing topic, a constraint, a missing permission.
"""

from __future__ import annotations

import errno
import re

import psycopg
from confluent_kafka import KafkaError, KafkaException
from deltalake.exceptions import CommitFailedError, DeltaError
from obstore.exceptions import BaseError as StoreError
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, PythonException

from jobs.runtime.errors import NotYet
from jobs.runtime.postgres.unavailable import database_is_unavailable
from jobs.runtime.unreachable import in_a_line
from metering.vocabulary import Cause

KAFKA_UNAVAILABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError._WAIT_CACHE,
        # "No leaders found": of a topic that has none now, or is gone; the next start finds out which.
        KafkaError._NOENT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""Of a broker that does not answer, or answers that its cluster is not ready."""

FULL_OR_CUT_OFF = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH}
)
STORE_UNAVAILABLE = re.compile(
    r"error sending request|error trying to connect|connection (refused|reset|closed)|operation timed out|timed out"
    r"|dns error|No space left on device|Server returned (error|non-2xx) status code: 5\d\d"
    r"|(status|HTTP error).{0,20}\b(429|500|502|503|504)\b|retry_timeout",
    re.IGNORECASE,
)
"""In the words of the library under delta-rs and obstore, whose errors have one type for all."""

CANNOT_FETCH = re.compile(r"Cannot fetch record for offset \d+ in \d+ milliseconds")
JAVA_KAFKA_UNAVAILABLE = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network|BrokerNotAvailable|LeaderNotAvailable"
    r"|NotLeaderOrFollower|CoordinatorNotAvailable|CoordinatorLoadInProgress|KafkaStorage|NotController"
    r"|FencedLeaderEpoch|UnknownLeaderEpoch|OffsetNotAvailable|ReplicaNotAvailable|ThrottlingQuotaExceeded)Exception"
    rf"|{CANNOT_FETCH.pattern}|No resolvable bootstrap urls"
)
JAVA_STORE_UNAVAILABLE = re.compile(
    r"java\.net\.(Connect|SocketTimeout|UnknownHost|NoRouteToHost|Socket)Exception|Unable to execute HTTP request"
    r"|No space left on device|S3Exception.{0,200}Status Code: 50\d|Operation failed: .{0,200}, 50\d, (GET|HEAD),"
    r"|Status code: 50\d error code"
)

WORKER_OSERROR = re.compile(r"\A(?:.*\n)?Traceback \(most recent call last\):\n(?: .*\n)*OSError: ([\s\S]*)")
"""The error of a Python worker. Only this one: others may quote what a record says."""


def transient_error_of(error: BaseException) -> NotYet | None:
    """What to wait for after `error`; None for an error that waiting does not mend."""
    if isinstance(error, NotYet):
        return error
    # Of SQLAlchemy, which drivers load only where a schema is not this version's.
    if isinstance(driver_error := getattr(error, "orig", None), psycopg.Error):
        return transient_error_of(driver_error)
    cause = _cause(error)
    return None if cause is None else NotYet(cause, _in_a_line(error))


def _cause(error: BaseException) -> Cause | None:
    text = str(error)
    match error:
        case KafkaException():
            cause, is_unavailable = Cause.KAFKA, _code(error) in KAFKA_UNAVAILABLE
        case psycopg.Error():
            cause, is_unavailable = Cause.DATABASE, database_is_unavailable(error)
        case ConnectionError():
            # Python's own sockets lead to this driver's Java, and to nothing else: it has ended, and stays so.
            return None
        case OSError():
            is_unavailable_by_number = error.errno in FULL_OR_CUT_OFF
            cause, is_unavailable = Cause.STORE, is_unavailable_by_number or bool(STORE_UNAVAILABLE.search(text))
        case CommitFailedError():
            # Another writer's commit, or our own whose answer was lost: the stored table shows which.
            cause, is_unavailable = Cause.STORE, True
        case StoreError() | DeltaError():
            cause, is_unavailable = Cause.STORE, bool(STORE_UNAVAILABLE.search(text))
        case PySparkException() | Py4JError():
            is_kafka = bool(JAVA_KAFKA_UNAVAILABLE.search(text))
            cause, is_unavailable = (
                Cause.KAFKA if is_kafka else Cause.STORE,
                is_kafka or _java_reason(text) is not None or _is_of_a_worker(error, text),
            )
        case _:
            return None
    return cause if is_unavailable else None


def _is_of_a_worker(error: BaseException, text: str) -> bool:
    """Whether a Python worker did not reach the store: its error comes as text, with its traceback."""
    found = WORKER_OSERROR.search(text) if isinstance(error, PythonException) else None
    return found is not None and STORE_UNAVAILABLE.search(found[1]) is not None


def _java_reason(text: str) -> re.Match[str] | None:
    return JAVA_KAFKA_UNAVAILABLE.search(text) or JAVA_STORE_UNAVAILABLE.search(text)


def _code(error: KafkaException) -> int | None:
    found = error.args[0] if error.args else None
    return found.code() if isinstance(found, KafkaError) else None


def _in_a_line(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, PySparkException | Py4JError):
        # The prefix names query, job, stage and task, or a worker's files, and would fill the line.
        if found := _java_reason(text):
            text = text[found.start() :]
        elif found := WORKER_OSERROR.search(text):
            text = found[1]
    words = in_a_line(text)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
