"""Outside calls: every one of a driver passes here, and at each the driver may be parked, ended or left unanswered.

Drivers are threads, of which one goes on at a time: it runs for as many outside calls as it is given, then it is parked
before the next. What it holds meanwhile (a transaction, a snapshot, what it read) is what a frozen process holds.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

import psycopg
from confluent_kafka import KafkaError, KafkaException
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.errors import PySparkException

T = TypeVar("T")


COMMIT = "commit"
"""A kind of outside call: a commit of a Delta table."""


class Fault(StrEnum):
    """What happens at the end of a run."""

    FREEZE = "freeze"
    CRASH = "crash"
    FAIL = "fail"
    """The next call is not performed, and says so."""
    LOSE_ANSWER = "lose answer"
    """The next call is performed, and its caller is told that it failed."""

    def __repr__(self) -> str:
        """As it is written in a history that is kept."""
        return f"Fault.{self.name}"


class Unanswered(psycopg.OperationalError):
    """A session was lost inside a statement."""


class Crashed(BaseException):
    """The process is gone: nothing of it is performed any more."""


class Baton:
    """One driver's turn. `is_over`: its thread has ended."""

    def __init__(self, program: Callable[[], None], name: str) -> None:
        self._go, self._parked = threading.Semaphore(0), threading.Semaphore(0)
        self._left, self._fault, self._at = 0, Fault.FREEZE, ""
        self._is_doomed = False
        self.is_over = self.is_idle = False
        self.made = 0
        """Outside calls that it has made."""
        self.sessions: list[psycopg.Connection[Any]] = []
        """Its connections to the database, which end with it."""
        self._program = program
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _mine.baton = self
        self._go.acquire()
        try:
            if not self._is_doomed:
                self._program()
        except Crashed:
            pass
        finally:
            for session in self.sessions:
                session.pgconn.finish()
            self.is_over = True
            self._parked.release()

    def run(self, calls: int, fault: Fault, at: str = "") -> None:
        """Let it go on for so many outside calls, and then `fault` happen; less when it ends or waits for news.

        `at`: the fault waits for the first call of this kind.
        """
        if self.is_over:
            return
        self._left, self._fault, self._at, self.is_idle = calls, fault, at, False
        self._go.release()
        self._parked.acquire()

    def crash(self) -> None:
        """End it where it is parked."""
        self._is_doomed = True
        self.run(0, Fault.CRASH)
        self._thread.join()

    def call(self, kind: str, perform: Callable[[], T]) -> T:
        """Perform an outside call, or what is to happen instead."""
        if self._is_doomed:
            raise Crashed
        self.made += 1
        while self._left <= 0 and self._at in ("", kind):
            fault, self._fault = self._fault, Fault.FREEZE
            self._at = ""
            if fault is Fault.CRASH:
                self._is_doomed = True
                raise Crashed
            if fault is Fault.FAIL:
                raise error_of(kind, self.made)
            if fault is Fault.LOSE_ANSWER:
                perform()
                raise error_of(kind, self.made)
            self.park()
        self._left -= 1
        return perform()

    def park(self) -> None:
        """Stand still until the next turn."""
        self._parked.release()
        self._go.acquire()
        if self._is_doomed:
            raise Crashed

    def idle(self) -> None:
        """There is nothing to do: the turn is over."""
        self.is_idle = True
        self.park()


_mine = threading.local()


def current() -> Baton | None:
    """The driver in whose thread this is called."""
    return getattr(_mine, "baton", None)


def outside(kind: str, perform: Callable[[], T]) -> T:
    """An outside call of whoever makes it; of nobody's driver it is just performed."""
    baton = current()
    return perform() if baton is None else baton.call(kind, perform)


def idle() -> None:
    """Whoever calls has nothing to do."""
    baton = current()
    if baton is not None:
        baton.idle()


def error_of(kind: str, number: int) -> Exception:
    """How an outside call fails: each kind in the words of its library."""
    match kind:
        case "kafka":
            return KafkaException(KafkaError(KafkaError._TRANSPORT))
        case "database":
            return Unanswered("consuming input failed: the server closed the connection unexpectedly")
        case "spark":
            return PySparkException("org.apache.kafka.common.errors.TimeoutException: it took too long")
        case _:
            errors: list[Exception] = [
                OSError(errno.ENOSPC, "No space left on device"),
                DeltaError("Generic S3 error: Server returned error status code: 503"),
                CommitFailedError("Failed to commit transaction: concurrent transaction"),
            ]
            return errors[number % len(errors)]
