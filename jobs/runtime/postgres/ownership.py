"""Who may write for a job: the newest driver, by its fencing epoch in Postgres."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import structlog
from psycopg.types.json import Jsonb

from jobs.runtime.errors import Fenced, NotYet, Refused
from jobs.runtime.postgres.session import Session
from jobs.runtime.postgres.unavailable import database_is_unavailable
from metering.reports import Phase
from metering.vocabulary import Cause

log = structlog.get_logger()

IDLE_IN_TRANSACTION_LIMIT = "10s"
"""A driver frozen inside a transaction would hold its locks for ever; the server ends it after this."""
MEMORY = "-c work_mem=32MB -c temp_buffers=32MB"
"""Of a driver's session, which folds one batch at a time: enough to sort 100,000 keys without files."""
SESSION_ENDS_WITHIN_SECONDS = 5.0
"""How long ending a session may take; its process may be frozen, or wait for its disk."""

# For how long Kafka keeps events counts most while no driver gets as far as a report: the API accepts them meanwhile.
_TAKE = """
INSERT INTO jobs (job, epoch, owner_pid, owner_started_at, started_at, config, state)
SELECT %(job)s, greatest(%(at_least)s, 1), a.pid, a.backend_start, clock_timestamp(), %(config)s, %(state)s
FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()
ON CONFLICT (job) DO UPDATE SET
    epoch = greatest(jobs.epoch + 1, excluded.epoch), owner_pid = excluded.owner_pid,
    owner_started_at = excluded.owner_started_at, started_at = excluded.started_at,
    config = excluded.config, state = excluded.state, updated_at = clock_timestamp(),
    progress = CASE WHEN jobs.progress ? 'retention' THEN jsonb_build_object('retention', jobs.progress -> 'retention')
                    ELSE '{}' END
RETURNING epoch
"""

REBUILD_LOCK = 0x57656972
"""First key of the advisory locks that drivers of a job share, and that a rebuild of its tables holds exclusively."""

# Everybody sees locks. When a session began is seen by those logins alone that may do what its login may.
HOLDS_LOCK = f"""
locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid = {REBUILD_LOCK} AND objid = (hashtext({{name}})::bigint & 4294967295)::oid
"""

_END_PREDECESSOR = f"""
SELECT pg_terminate_backend(pid, %s)
FROM jobs j JOIN pg_locks ON pid = owner_pid AND {HOLDS_LOCK.format(name="j.job")}
WHERE j.job = %s AND pid <> pg_backend_pid()
"""

# A driver does not end sessions of another.
_END_OWN_SESSION = f"{_END_PREDECESSOR} AND j.epoch = %s"

_RESUME = """
UPDATE jobs SET owner_pid = a.pid, owner_started_at = a.backend_start, updated_at = clock_timestamp()
FROM pg_stat_activity a WHERE a.pid = pg_backend_pid() AND job = %s AND epoch = %s
"""

# Drivers that have begun, and have not got as far as to own the job.
_END_OTHERS = f"""
SELECT pg_terminate_backend(pid, %(limit_ms)s) FROM pg_locks
WHERE {HOLDS_LOCK.format(name="%(job)s")} AND mode = 'ShareLock' AND pid <> pg_backend_pid()
"""
_LOCK_EXCLUSIVELY = "SELECT pg_try_advisory_lock(%(family)s, hashtext(%(job)s))"
_SHARE = "SELECT pg_try_advisory_lock_shared(%(family)s, hashtext(%(job)s))"


class Ownership:
    """One driver's claim on a job, and the only connection on which that driver writes to Postgres.

    `driver` is a number that no other process has.
    """

    def __init__(
        self, job: str, postgres_url: str, connection: psycopg.Connection[Any], epoch: int, *, is_alone: bool = False
    ) -> None:
        self.job = job
        self._is_alone = is_alone
        self.connection = connection
        self.epoch = epoch
        self.driver = secrets.randbits(62)
        self._postgres_url = postgres_url

    @classmethod
    def take(
        cls, job: str, postgres_url: str, config: dict[str, Any], at_least: int = 1, *, is_alone: bool = False
    ) -> Ownership:
        """End the predecessor's database session and take the next epoch, no lower than `at_least`.

        Where this login may not end that session, it waits for its transaction.

        `is_alone`: for a rebuild of the job's tables; all other drivers wait until this session is over. Raises NotYet
        during another rebuild.
        """
        connection = _connected(job, postgres_url)
        if not is_alone:
            _refuse_while_rebuilt(connection, job)
        _warn_of_pooler(connection)
        # First the session, then the row: the predecessor may hold a share lock on it, and be frozen.
        with _if_allowed():
            connection.execute(_END_PREDECESSOR, [round(SESSION_ENDS_WITHIN_SECONDS * 1_000), job])
        row = connection.execute(
            _TAKE, {"job": job, "at_least": at_least, "config": Jsonb(config), "state": Phase.STARTING}
        ).fetchone()
        assert row is not None
        if is_alone:
            _lock_exclusively(connection, job)
        log.info("took the epoch", job=job, epoch=row[0])
        return cls(job, postgres_url, connection, row[0], is_alone=is_alone)

    def resume(self, ends_within_seconds: float = SESSION_ENDS_WITHIN_SECONDS) -> None:
        """Continue with the same epoch, on a new session where the old one is lost.

        When this returns, the old session's transaction has ended: it is committed or never will be. Raises Fenced when
        another driver owns the job, NotYet when the database does not answer, or has not ended the old session
        within `ends_within_seconds`.
        """
        try:
            if self._is_alive():
                return
            self.connection.close()
            self.connection = self._registered(_connected(self.job, self._postgres_url), ends_within_seconds)
        except psycopg.Error as error:
            if not database_is_unavailable(error):
                raise
            raise NotYet(Cause.DATABASE, f"the database does not answer: {error}") from error
        log.info("continues with a new database session", job=self.job, epoch=self.epoch)

    def _registered(self, session: psycopg.Connection[Any], ends_within_seconds: float) -> psycopg.Connection[Any]:
        """`session`, once the database has ended this driver's last session and has this one as the owner's.

        Otherwise it is closed: a later check would find it alive, and take it for the owner's.
        """
        try:
            _refuse_while_rebuilt(session, self.job)
            limit_ms = round(ends_within_seconds * 1_000)
            ended = session.execute(_END_OWN_SESSION, [limit_ms, self.job, self.epoch]).fetchone()
            if ended == (False,):
                raise NotYet(Cause.DATABASE, "the database has not ended this driver's last session yet")
            if session.execute(_RESUME, [self.job, self.epoch]).rowcount == 0:
                raise Fenced(f"{self.job}: epoch {self.epoch} is no longer the newest")
        except Exception:
            session.close()
            raise
        return session

    def fence_if_followed(self) -> None:
        """Raise Fenced when a successor has ended this driver's session; nothing where the database does not say."""
        with suppress(NotYet, psycopg.Error):
            self.resume()

    def _is_alive(self) -> bool:
        """Whether the session answers, outside any transaction."""
        if self.connection.closed:
            return False
        try:
            self.connection.execute("SELECT 1")
        except psycopg.Error as error:
            if not database_is_unavailable(error):
                raise
            return False
        return True

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Cursor[Any]]:
        """A transaction that commits only while this driver owns the job.

        Raises Fenced when another driver owns it, NotYet when the session was lost: then it may have been committed,
        and the caller must restart from what is stored.
        """
        try:
            with self.connection.transaction(), self.connection.cursor() as cursor:
                cursor.execute("SELECT epoch FROM jobs WHERE job = %s FOR SHARE", [self.job])
                row = cursor.fetchone()
                if row is None or row[0] != self.epoch:
                    raise Fenced(f"{self.job}: epoch {self.epoch} was followed by {row and row[0]}")
                yield cursor
        except psycopg.Error as error:
            if not database_is_unavailable(error):
                raise
            self.resume()
            raise NotYet(Cause.DATABASE, f"the database ended a transaction: {error}") from error

    def close(self) -> None:
        """End the database session. Who was alone lets the next one in before: the server ends sessions later."""
        if self._is_alone:
            with suppress(psycopg.Error):
                self.connection.execute("SELECT pg_advisory_unlock_all()")
        self.connection.close()


def _refuse_while_rebuilt(connection: psycopg.Connection[Any], job: str) -> None:
    """Raises NotYet while the tables of `job` are made again; the session that is given is closed then."""
    if connection.execute(_SHARE, {"family": REBUILD_LOCK, "job": job}).fetchone() != (True,):
        connection.close()
        raise NotYet(Cause.DATABASE, f"the tables of {job} are made again (`weir rebuild {job}`)")


def _lock_exclusively(connection: psycopg.Connection[Any], job: str) -> None:
    """Let no other driver of `job` have a session as long as this one lasts. Raises Refused where one comes between."""
    parameters = {"family": REBUILD_LOCK, "job": job, "limit_ms": round(SESSION_ENDS_WITHIN_SECONDS * 1_000)}
    with _if_allowed():
        connection.execute(_END_OTHERS, parameters)
    if connection.execute(_LOCK_EXCLUSIVELY, parameters).fetchone() != (True,):
        connection.close()
        raise Refused(
            f"another `weir rebuild {job}` is under way, or a driver of {job} began just now or runs with a login whose"
            f" sessions this one may not end; stop {job}, or GRANT pg_signal_backend to this login, and try again"
        )


@contextmanager
def _if_allowed() -> Iterator[None]:
    """To end a session: the epoch fences its driver without that as well, once its transaction is over."""
    with suppress(psycopg.errors.InsufficientPrivilege):
        yield


def _connected(job: str, postgres_url: str) -> psycopg.Connection[Any]:
    return Session.to(
        postgres_url,
        f"weir {job}",
        # A limit that the server sets for everybody would cancel the same large fold again and again.
        options=f"-c statement_timeout=0 -c synchronous_commit=on {MEMORY}"
        f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_LIMIT}",
        # A fold of a large batch, or one that waits for a lock, takes its time.
        is_patient=True,
    )


def _warn_of_pooler(connection: psycopg.Connection[Any]) -> None:
    """A pooler makes up the process id of a session; its kind of pooling cannot be seen."""
    found = connection.execute("SELECT pg_backend_pid()").fetchone()
    if found != (connection.info.backend_pid,):
        log.warning("a pooler is between this driver and Postgres: it must pool sessions, not transactions")
