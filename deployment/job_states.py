"""What the jobs' own rows in Postgres say, for their supervisor and for `weir status`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from deployment.kept_session import KeptSession
from metering.reports import WORKING
from metering.vocabulary import Job

POLL_SECONDS = 0.25
_JOBS = """
SELECT job, epoch, state, progress, extract(epoch FROM clock_timestamp() - updated_at)::float8 FROM jobs
"""


@dataclass(frozen=True)
class JobRow:
    """A row of `jobs`. `report_age_seconds` is by the database's clock; `progress` as the job wrote it."""

    epoch: int
    state: str
    progress: dict[str, Any]
    report_age_seconds: float


def read_jobs(postgres_url: str) -> dict[str, JobRow]:
    """Rows by job. Raises `psycopg.Error` when the database does not answer or has no schema yet."""
    with psycopg.connect(postgres_url, connect_timeout=5, autocommit=True) as database:
        return _by_job(database.execute(_JOBS).fetchall())


def _by_job(rows: Iterable[tuple[Any, ...]]) -> dict[str, JobRow]:
    return {job: JobRow(*columns) for job, *columns in rows}


@dataclass(frozen=True)
class Unpublished:
    """Changes that are stored and not in their topics, and when the oldest was committed."""

    changes: int
    since: datetime | None


_UNPUBLISHED = {
    Job.BILLING: """
        SELECT count(*), min(changed_at) FROM (
            SELECT changed_at FROM unsent_windows
            UNION ALL
            SELECT corrected_at FROM corrections, publications WHERE topic = 'corrections' AND number > sent_number
        ) AS unsent
    """,
}


def read_unpublished(postgres_url: str) -> dict[Job, Unpublished]:
    """Unsent rows in the outbox of billing. Raises `psycopg.Error`."""
    with psycopg.connect(postgres_url, connect_timeout=5, autocommit=True) as database:
        found = {job: database.execute(statement).fetchone() for job, statement in _UNPUBLISHED.items()}
    return {job: Unpublished(*row) for job, row in found.items() if row is not None}


class JobStates:
    """Whether a started job works: its row has a later epoch than before the start, and reports.

    Epochs instead of times: the database's clock may be another machine's.
    """

    def __init__(self, postgres_url: str) -> None:
        self._session = KeptSession(postgres_url, "weir up")
        self._starting: set[str] = set()
        self._rows: dict[str, JobRow] = {}
        self._read_at = float("-inf")
        self._epochs_before: dict[str, int] = {}

    def starting(self, job: str) -> None:
        """To be called before each start of the job."""
        self._starting.add(job)
        self._refresh()
        row = self._rows.get(job)
        self._epochs_before[job] = row.epoch if row else 0

    def is_working(self, job: str) -> bool:
        """Whether the process started last has passed its checks."""
        if time.monotonic() - self._read_at >= POLL_SECONDS:
            self._refresh()
        row = self._rows.get(job)
        works = row is not None and row.epoch > self._epochs_before.get(job, 0) and row.state in WORKING
        if works:
            self._starting.discard(job)
        if not self._starting:
            self._session.close()
        return works

    def _refresh(self) -> None:
        # While the database is being restarted, what was known holds.
        with suppress(psycopg.Error):
            self._rows = _by_job(self._session.rows(_JOBS))
        self._read_at = time.monotonic()
