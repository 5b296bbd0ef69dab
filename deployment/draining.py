"""Waiting until all applications are past what was in Kafka at one moment.

Each step's goal is fixed when the step before has reached its own: the offsets at the call, then the journal's lsn when
it had them, then the lsn of usage when joins had that. What arrives later is not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import psycopg

from deployment.asking import asking_database
from deployment.capture import read_capture
from deployment.errors import CannotRun
from deployment.event_topics import event_topics
from deployment.job_states import read_jobs
from deployment.positions import Positions, describe, ends
from deployment.stack import Deployment, Stack, State, read_stack
from jobs.streams import CatalogTopic, Table
from metering.vocabulary import Job

POLL_SECONDS = 0.25
CAPTURE = "connect"
"""What captures the catalog, beside the jobs that have a row of their own."""


class Stuck(CannotRun):
    """The time is over, and a job is not where it must be."""


@dataclass(frozen=True)
class Drained:
    """All are past it. `waiting`: requests and completions whose partner may still come."""

    waiting: int
    usage_lsn: int


Tell = Callable[[str], None]


class Waiter:
    """Waits for one application after the other, all within one time limit. Every wait raises Stuck when it is over."""

    def __init__(self, stack: Deployment, timeout_seconds: float, tell: Tell = lambda _: None) -> None:
        self.positions = Positions(stack.tables, stack.postgres_url)
        self._stack = stack
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._tell = tell

    def until_journalled(self, required: Mapping[str, int]) -> int:
        """Wait until the journal has these next offsets (by transaction); gives its next lsn then."""
        self._until(Job.INGESTION, "records in Kafka", lambda: self.positions.missing(required))
        return self.positions.next_lsn(Table.JOURNAL)

    def until_joined(self, target: int) -> None:
        """Wait until usage was made from the journal below `target`."""
        self._until(Job.JOINS, "rows of the journal", lambda: target - self.positions.joined())

    def until_known(self, missing: Callable[[], int]) -> None:
        """Wait until none of these changes of the catalog is missing in what joins prices with."""
        self._until(Job.JOINS, "changes of the catalog", missing)

    def until_captured(self, moment: datetime) -> None:
        """Wait until Kafka has everything committed in the catalog before `moment`, by the database's clock."""

        def uncaptured_seconds() -> int:
            return read_capture(self._stack.postgres_url).lacks_seconds(moment)

        self._until(CAPTURE, "seconds of the catalog's changes", uncaptured_seconds)

    def until_catalog_joined(self) -> None:
        """Wait until usage is decided with everything that is committed in the catalog now."""
        with (
            asking_database(self._stack.postgres_url),
            psycopg.connect(self._stack.postgres_url, connect_timeout=10) as database,
        ):
            now = database.execute("SELECT clock_timestamp()").fetchone()
        assert now is not None
        self.until_captured(now[0])
        bootstrap = self._stack.kafka_bootstrap
        self.until_joined(self.until_journalled(ends(bootstrap, describe(bootstrap, CatalogTopic))))

    def until_sessions(self, target: int) -> None:
        """Wait until sessions hold the journal below `target`."""
        job = Job.SESSIONIZATION
        self._until(job, "rows of the journal", lambda: target - self.positions.folded(job))

    def until_decided(self, target: int) -> None:
        """Wait until no request or completion below `target` waits for its partner."""

        def undecided() -> int:
            waiting, lowest = self.positions.waiting()
            return waiting if lowest is not None and lowest < target else 0

        self._until(Job.JOINS, "requests that wait for their completion", undecided)

    def until_billed(self, usage_lsn: int) -> None:
        """Wait until the windows hold usage below `usage_lsn`."""
        self._until(Job.BILLING, "rows of usage", lambda: usage_lsn - self.positions.folded(Job.BILLING))

    def until_measured(self, usage_lsn: int) -> None:
        """Wait until views hold usage below `usage_lsn`, where any are declared."""
        if not self.positions.runs(Job.ANALYTICS):
            return
        self._until(Job.ANALYTICS, "rows of usage", lambda: usage_lsn - self.positions.folded(Job.ANALYTICS))

    def _until(self, job: str, what: str, behind: Callable[[], int]) -> None:
        last = 0
        while True:
            # While the database is being restarted its positions cannot be read; they have not gone back.
            try:
                last = behind()
                if last <= 0:
                    return
            except psycopg.OperationalError:
                last = max(last, 1)
            self._tell(f"{job}: {last:,} {what} left")
            if time.monotonic() >= self._deadline:
                raise Stuck(
                    f"After {self._timeout_seconds:g} s {job} still has {last} {what} left; "
                    f"{condition(self._stack, job)}"
                )
            time.sleep(POLL_SECONDS)


def drain(
    stack: Deployment, timeout_seconds: float, *, include_waiting: bool = False, tell: Tell = lambda _: None
) -> Drained:
    """Wait until all applications are past where the topics end now.

    `include_waiting`: and until what still waits for its partner then is decided. Raises Stuck when the time is over.
    """
    waiter = Waiter(stack, timeout_seconds, tell)
    topics = [*event_topics(stack.postgres_url), *CatalogTopic]
    target = waiter.until_journalled(ends(stack.kafka_bootstrap, describe(stack.kafka_bootstrap, topics)))
    waiter.until_joined(target)
    waiter.until_sessions(target)
    if include_waiting:
        waiter.until_decided(target)
    waiting, _ = waiter.positions.waiting()
    usage_lsn = waiter.positions.next_lsn(Table.USAGE)
    waiter.until_billed(usage_lsn)
    waiter.until_measured(usage_lsn)
    return Drained(waiting, usage_lsn)


def condition(stack: Deployment, job: str) -> str:
    """What supervisor and database say about a job, in a sentence without its end."""
    clauses = _supervised(stack, job) if isinstance(stack, Stack) else []
    try:
        if job == CAPTURE:
            return ", ".join([*clauses, read_capture(stack.postgres_url).sentence]) + f"; see {_log(stack, job)}"
        row = read_jobs(stack.postgres_url).get(job)
    except psycopg.Error:
        clauses.append("the database does not answer")
    else:
        if row is None:
            clauses.append("it has never started on this database")
        else:
            clauses.append(f"it reported {row.report_age_seconds:.0f} s ago that it is {row.state}")
    return ", ".join(clauses) + f"; see {_log(stack, job)}"


def _log(stack: Deployment, job: str) -> str:
    if isinstance(stack, Stack):
        return str(stack.data_dir / "logs" / f"{job}.log")
    return "the log of Kafka Connect" if job == CAPTURE else "the log of its driver"


def _supervised(stack: Stack, job: str) -> list[str]:
    clauses = []
    now = read_stack(stack.data_dir)
    process = next((p for p in now.processes if p.name == job), None) if now else None
    if now is None or not now.supervisor.is_running or process is None:
        clauses.append("its supervisor does not run")
    elif process.state is not State.RUNNING:
        clauses.append(f"it is {process.state}, after {process.restarts} restarts")
    if process is not None and process.message:
        clauses.append(f"it last ended with: {process.message}")
    return clauses
