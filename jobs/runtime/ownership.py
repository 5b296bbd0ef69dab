"""Who may write for a job: the newest driver, by its fencing epoch in Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import structlog
from psycopg.types.json import Jsonb

from jobs.runtime.errors import Fenced

log = structlog.get_logger()

IDLE_IN_TRANSACTION_LIMIT = "10s"
"""A driver frozen inside a transaction would hold its locks for ever; the server ends it after this."""

_TAKE = """
INSERT INTO jobs (job, epoch, owner_pid, owner_started_at, started_at, config, state)
SELECT %(job)s, greatest(%(at_least)s, 1), a.pid, a.backend_start, clock_timestamp(), %(config)s, 'starting'
FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()
ON CONFLICT (job) DO UPDATE SET
    epoch = greatest(jobs.epoch + 1, excluded.epoch), owner_pid = excluded.owner_pid,
    owner_started_at = excluded.owner_started_at, started_at = excluded.started_at,
    config = excluded.config, state = excluded.state, progress = '{}', updated_at = clock_timestamp()
RETURNING epoch
"""

_END_PREDECESSOR = """
SELECT pg_terminate_backend(a.pid, 5000)
FROM jobs j JOIN pg_stat_activity a ON a.pid = j.owner_pid AND a.backend_start = j.owner_started_at
WHERE j.job = %s AND a.pid <> pg_backend_pid()
"""


class Ownership:
    """One driver's claim on a job, and the only connection on which that driver writes to Postgres."""

    def __init__(self, job: str, connection: psycopg.Connection[Any], epoch: int) -> None:
        self.job = job
        self.connection = connection
        self.epoch = epoch

    @classmethod
    def take(cls, job: str, postgres_url: str, config: dict[str, Any], at_least: int = 1) -> Ownership:
        """End the predecessor's database session and take the next epoch, no lower than `at_least`."""
        connection = psycopg.connect(
            postgres_url,
            autocommit=True,
            application_name=f"weir {job}",
            options=f"-c synchronous_commit=on -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_LIMIT}",
            keepalives_idle=10,
        )
        # First the session, then the row: the predecessor may hold a share lock on it, and be frozen.
        connection.execute(_END_PREDECESSOR, [job])
        row = connection.execute(_TAKE, {"job": job, "at_least": at_least, "config": Jsonb(config)}).fetchone()
        assert row is not None
        log.info("took the epoch", job=job, epoch=row[0])
        return cls(job, connection, row[0])

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Cursor[Any]]:
        """A transaction that commits only while this driver owns the job. Raises Fenced otherwise."""
        try:
            with self.connection.transaction(), self.connection.cursor() as cursor:
                cursor.execute("SELECT epoch FROM jobs WHERE job = %s FOR SHARE", [self.job])
                row = cursor.fetchone()
                if row is None or row[0] != self.epoch:
                    raise Fenced(f"{self.job}: epoch {self.epoch} was followed by {row and row[0]}")
                yield cursor
        except (psycopg.errors.AdminShutdown, psycopg.errors.IdleInTransactionSessionTimeout) as error:
            raise Fenced(f"{self.job}: the database ended this driver's session: {error}") from error

    def close(self) -> None:
        """End the database session."""
        self.connection.close()
