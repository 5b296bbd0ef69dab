"""What the sender reads and writes in Postgres, over the one session that holds the lease.

The lease is an advisory lock of that session. A process that lost it has lost the session, and can neither read what is
due nor store what became of it: at most the POSTs that are under way are repeated, with the same ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from jobs.runtime.postgres.session import CONNECT_TIMEOUT_SECONDS, TCP_TIMEOUT_MS
from webhooks.horizon import Horizon
from webhooks.kinds import Kind
from webhooks.outcomes import Attempt, Outcome

_TAKE = "SELECT pg_try_advisory_lock(hashtextextended('weir webhooks of ' || current_schema(), 0))"
# No delay is so long, so what is due later than that was stored by a clock that was wrong.
_IS_DUE = """
disabled_at IS NULL AND (next_attempt_at <= %(now)s OR next_attempt_at > %(now)s + interval '27 hours')
AND (paused_until IS NULL OR paused_until <= %(now)s OR paused_until > %(now)s + interval '27 hours')
"""
# The newest number that was given, committed or not.
_NEWEST = """
SELECT CASE WHEN is_called THEN last_value ELSE 0 END, queued_to FROM webhook_events_number_seq, webhook_position
"""
# A transaction that inserts locks the table before it takes a number, and holds that lock until its rows are seen.
_WRITERS = """
SELECT virtualtransaction FROM pg_locks
WHERE locktype = 'relation' AND relation = 'webhook_events'::regclass AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND pid IS DISTINCT FROM pg_backend_pid()
"""
# What is removed meanwhile is locked first, or waited for and then passed over.
_QUEUE = """
WITH page AS (
    SELECT number FROM webhook_events
    WHERE number > (SELECT queued_to FROM webhook_position) AND number <= %(settled)s
    ORDER BY number LIMIT %(max_events)s
), batch AS (
    SELECT number, account, endpoints FROM webhook_events JOIN page USING (number)
    ORDER BY number FOR KEY SHARE OF webhook_events
), known AS (
    SELECT endpoint FROM webhook_endpoints WHERE endpoint IN (SELECT unnest(endpoints) FROM batch)
    ORDER BY endpoint FOR KEY SHARE
), queued AS (
    INSERT INTO webhook_deliveries (endpoint, number, account)
    SELECT endpoint, number, account FROM batch CROSS JOIN unnest(endpoints) AS endpoint JOIN known USING (endpoint)
    ORDER BY number, endpoint
)
UPDATE webhook_position SET queued_to = CASE
    WHEN (SELECT count(*) FROM page) < %(max_events)s THEN %(settled)s ELSE (SELECT max(number) FROM page)
END
RETURNING queued_to
"""
# The oldest that waits of each endpoint and account, found by one step in the index for each.
_LANES = f"""
WITH RECURSIVE heads AS (
    (SELECT endpoint, account, number FROM webhook_deliveries WHERE state = 'waiting'
     ORDER BY endpoint, account, number LIMIT 1)
    UNION ALL
    SELECT following.* FROM heads CROSS JOIN LATERAL (
        SELECT endpoint, account, number FROM webhook_deliveries AS d
        WHERE state = 'waiting' AND (d.endpoint, d.account) > (heads.endpoint, heads.account)
        ORDER BY endpoint, account, number LIMIT 1
    ) AS following
)
SELECT endpoint, account, kind FROM (
    SELECT endpoint, account, kind, row_number() OVER (PARTITION BY endpoint ORDER BY next_attempt_at, number) AS place
    FROM heads JOIN webhook_deliveries USING (endpoint, account, number) JOIN webhook_endpoints USING (endpoint)
    WHERE {_IS_DUE}
) AS due
WHERE place <= %(per_endpoint)s
ORDER BY place, endpoint
"""
_HEAD = f"""
SELECT number, event_id, url, body, attempts, ARRAY(
           SELECT secret FROM webhook_secrets AS s
           WHERE s.endpoint = e.endpoint AND (expires_at IS NULL OR expires_at > %(now)s) ORDER BY created_at DESC
       ), {_IS_DUE}
FROM webhook_deliveries JOIN webhook_events USING (number) JOIN webhook_endpoints AS e USING (endpoint)
WHERE endpoint = %(endpoint)s AND webhook_deliveries.account = %(account)s AND state = 'waiting'
ORDER BY number LIMIT 1
"""
# One statement: what came of an attempt is stored whole or not at all; not of a delivery that was removed meanwhile.
# What a receiver says of the endpoint holds no longer once that has another URL.
_RECORD = """
WITH delivery AS (
    SELECT number, endpoint, state FROM webhook_deliveries
    WHERE (number, endpoint) = (%(number)s, %(endpoint)s) FOR UPDATE
), logged AS (
    INSERT INTO webhook_attempts (number, endpoint, attempted_at, account, status, error, duration_ms)
    SELECT number, endpoint, %(now)s, %(account)s, %(status)s::smallint, %(error)s::text, %(duration_ms)s::integer
    FROM delivery
), changed AS (
    UPDATE webhook_endpoints SET
        paused_until = coalesce(greatest(
            CASE WHEN paused_until <= %(now)s + interval '27 hours' THEN paused_until END, %(paused_until)s::timestamptz
        ), paused_until),
        disabled_at = CASE WHEN %(disables)s::boolean THEN %(now)s ELSE disabled_at END,
        disabled_reason = CASE WHEN %(disables)s::boolean THEN %(reason)s ELSE disabled_reason END,
        changed_by = CASE WHEN %(disables)s::boolean THEN 'weir' ELSE changed_by END
    WHERE endpoint = %(endpoint)s AND url = %(url)s AND disabled_at IS NULL
      AND (%(disables)s::boolean OR %(paused_until)s::timestamptz IS NOT NULL)
)
UPDATE webhook_deliveries AS d SET
    state = %(state)s::text, attempts = attempts + 1,
    next_attempt_at = coalesce(%(next_attempt_at)s::timestamptz, next_attempt_at),
    settled_at = CASE WHEN %(state)s::text <> 'waiting' THEN %(now)s END
FROM delivery WHERE (d.number, d.endpoint) = (delivery.number, delivery.endpoint) AND delivery.state = 'waiting'
"""
MAX_EVENTS = 1_000
"""For which deliveries are made in one transaction."""
SILENT_SECONDS = 60
"""Postgres ends the session of a sender that asks for nothing so long: it asks each second, unless it is frozen, or its
machine is gone, whose connection would be open for hours, and with it the lease."""
GONE = "the receiver answered 410 Gone"


@dataclass(frozen=True)
class Lane:
    """The deliveries of one account at one endpoint: each waits for those before it."""

    endpoint: str
    account: str
    kind: Kind

    @property
    def receiver(self) -> str:
        """What holds it up when it is slow: its endpoint, or the mail server, which all addresses share."""
        return self.kind if self.kind is Kind.MAIL else self.endpoint


@dataclass(frozen=True)
class Due:
    """The next delivery of a lane; `attempts` so far."""

    lane: Lane
    number: int
    event_id: str
    url: str
    body: bytes
    attempts: int
    secrets: Sequence[str]


class Outbox:
    """The queue, over a session of its own. All methods raise `psycopg.Error`."""

    def __init__(self, session: psycopg.AsyncConnection[Any]) -> None:
        self._session = session
        self._horizon = Horizon()

    @classmethod
    async def connect(cls, postgres_url: str, silent_seconds: float = SILENT_SECONDS) -> Outbox:
        """A new session, in which each statement is a transaction."""
        session = await psycopg.AsyncConnection.connect(
            postgres_url,
            autocommit=True,
            application_name="weir webhooks",
            connect_timeout=CONNECT_TIMEOUT_SECONDS,
            tcp_user_timeout=TCP_TIMEOUT_MS,
        )
        await session.execute("SELECT set_config('idle_session_timeout', %s, false)", [f"{silent_seconds * 1_000:.0f}"])
        return cls(session)

    async def take_lease(self) -> bool:
        """Whether this session is the one that sends."""
        return bool((await self._row(_TAKE, {}))[0])

    async def queue(self, max_events: int = MAX_EVENTS) -> bool:
        """Make the deliveries of the next events, in the order of their numbers. False: all that may be have theirs.

        An event waits while a transaction is open that may have a lower number: its own order would not be that in
        which deliveries are made.
        """
        newest, queued_to = await self._row(_NEWEST, {})
        if newest <= queued_to:
            return False
        cursor = await self._session.execute(_WRITERS)
        settled = self._horizon.settled(newest, {writer for (writer,) in await cursor.fetchall()})
        if settled <= queued_to:
            return False
        (queued_to,) = await self._row(_QUEUE, {"settled": settled, "max_events": max_events})
        return bool(queued_to < settled)

    async def due_lanes(self, now: datetime, per_endpoint: int) -> list[Lane]:
        """Lanes whose oldest delivery is due: of each endpoint in turn, and of an endpoint those that are due first."""
        cursor = await self._session.execute(_LANES, {"now": now, "per_endpoint": per_endpoint})
        return [Lane(endpoint, account, Kind(kind)) for endpoint, account, kind in await cursor.fetchall()]

    async def head(self, lane: Lane, now: datetime) -> Due | None:
        """The oldest delivery of a lane; None where nothing waits, or it is not due."""
        values = {"endpoint": lane.endpoint, "account": lane.account, "now": now}
        row = await (await self._session.execute(_HEAD, values)).fetchone()
        if row is None or not row[-1]:
            return None
        number, event_id, url, body, attempts, secrets, _ = row
        return Due(lane, number, event_id, url, body.encode(), attempts, secrets)

    async def record(self, due: Due, attempt: Attempt, became: Outcome, now: datetime, duration: timedelta) -> None:
        """Store an attempt that was begun at `now`, and what becomes of the delivery and its endpoint."""
        values: Mapping[str, Any] = {
            "number": due.number,
            "endpoint": due.lane.endpoint,
            "account": due.lane.account,
            "url": due.url,
            "now": now,
            "status": attempt.status,
            "error": attempt.error,
            "disables": became.disables,
            "reason": GONE,
            "duration_ms": round(duration.total_seconds() * 1_000),
            "state": became.state.value,
            "next_attempt_at": became.next_attempt_at,
            "paused_until": became.paused_until,
        }
        await self._session.execute(_RECORD, values)

    async def close(self) -> None:
        """End the session, and so the lease."""
        await self._session.close()

    async def _row(self, statement: str, values: Mapping[str, Any]) -> Any:
        return await (await self._session.execute(statement, values)).fetchone()
