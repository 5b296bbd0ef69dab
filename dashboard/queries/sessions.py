"""Sessions: those open now, how long they are, and the history of one user."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from dashboard.backend import Backend
from dashboard.exact import with_plain
from dashboard.queries.feed import Feed, feed_of
from metering.sessions import SESSION_STATE_SQL
from metering.vocabulary import Job

MAX_ROWS = 500


@dataclass(frozen=True)
class Session:
    """A user's activity without a pause longer than the gap. `state`: open, closed or retracted."""

    session_id: int
    account: str
    user_id: str
    session_start: datetime
    session_end: datetime
    events: int
    version: int
    state: str

    @property
    def length(self) -> timedelta:
        """From its first to its last event."""
        return self.session_end - self.session_start


@dataclass(frozen=True)
class Sessions:
    """Open sessions, the most recently active first, with the figures of all of them, cut or not."""

    feed: Feed
    open_now: int
    users_now: int
    events: int
    median_length: timedelta | None
    longest: timedelta | None
    lengths: tuple[tuple[int, int], ...]
    """(lower bound in minutes, how many open sessions are that long or longer, below the next bound)."""
    sessions: tuple[Session, ...]
    newest: datetime | None


_STATE = f"{SESSION_STATE_SQL.format(over='%(over)s::timestamptz')} AS state"
_COLUMNS = "session_id, account, user_id, session_start, session_end, events, version"

_OPEN = """
    FROM sessions
    WHERE retracted_at IS NULL AND session_end >= %(over)s::timestamptz
      AND (%(account)s::text IS NULL OR account = %(account)s)
"""

_FIGURES = f"""
    SELECT count(*) AS open_now, count(DISTINCT (account, user_id)) AS users_now,
           coalesce(sum(events), 0) AS events,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY session_end - session_start) AS median_length,
           max(session_end - session_start) AS longest
    {_OPEN}
"""

BOUNDS_MINUTES = (0, 1, 2, 5, 10, 20, 30, 60, 120, 240)

_LENGTHS = f"""
    SELECT width_bucket(extract(epoch FROM session_end - session_start) / 60, %(bounds)s::numeric[]) AS bucket,
           count(*) AS sessions
    {_OPEN}
    GROUP BY bucket
"""

_LIST = f"SELECT {_COLUMNS}, {_STATE} {_OPEN} ORDER BY session_end DESC, session_id LIMIT %(limit)s"

_NEWEST = """
    SELECT max(session_end) AS newest FROM sessions
    WHERE retracted_at IS NULL AND session_end >= %(over)s::timestamptz
"""
_NEWEST_EVER = "SELECT max(session_end) AS newest FROM sessions"

SEARCHED_DAYS = (1, 16, 256)
"""Where no session is open, the newest is looked for so far back before everything is read."""

# Each part has an index of its own.
_HISTORY = f"""
    SELECT {_COLUMNS}, {_STATE}
    FROM (
        SELECT * FROM sessions WHERE account = %(account)s AND user_id = %(user)s AND retracted_at IS NULL
        UNION ALL
        SELECT * FROM sessions
        WHERE account = %(account)s AND user_id = %(user)s AND retracted_at IS NOT NULL AND %(retracted)s
    ) AS sessions
    ORDER BY session_start DESC, version DESC, session_id DESC LIMIT %(limit)s
"""


def read_open_sessions(backend: Backend, account: str | None) -> Sessions:
    """Sessions that the next event of their user would extend, as far as sessionization has come."""
    with backend.snapshot() as cursor:
        feed = feed_of(cursor, Job.SESSIONIZATION)
        over = _over(cursor)
        chosen = {"over": over, "account": account, "limit": MAX_ROWS, "bounds": list(BOUNDS_MINUTES)}
        figures = cursor.execute(_FIGURES, chosen).fetchall()[0]
        counted = {row["bucket"]: row["sessions"] for row in cursor.execute(_LENGTHS, chosen).fetchall()}
        sessions = tuple(Session(**row) for row in cursor.execute(_LIST, chosen).fetchall())
        newest = _newest(cursor, over)
    lengths = tuple((bound, counted.get(number, 0)) for number, bound in enumerate(BOUNDS_MINUTES, start=1))
    return Sessions(feed=feed, **with_plain(figures, "events"), lengths=lengths, sessions=sessions, newest=newest)


def _newest(cursor: psycopg.Cursor[dict[str, Any]], over: datetime | str) -> datetime | None:
    """The end of the newest session, open or closed."""
    earlier = [over - timedelta(days=days) for days in SEARCHED_DAYS] if isinstance(over, datetime) else []
    for since in (over, *earlier):
        found: datetime | None = cursor.execute(_NEWEST, {"over": since}).fetchall()[0]["newest"]
        if found is not None:
            return found
    ever: datetime | None = cursor.execute(_NEWEST_EVER).fetchall()[0]["newest"]
    return ever


def read_history(backend: Backend, account: str, user: str, *, retracted: bool) -> tuple[Session, ...]:
    """The sessions of one user, newest first; with `retracted` also those that a late event has replaced."""
    with backend.snapshot() as cursor:
        chosen = {"over": _over(cursor), "account": account, "user": user, "retracted": retracted, "limit": MAX_ROWS}
        return tuple(Session(**row) for row in cursor.execute(_HISTORY, chosen).fetchall())


def _over(cursor: psycopg.Cursor[dict[str, Any]]) -> datetime | str:
    """Sessions whose last event is older than this are closed: none, while frontier or gap are not known."""
    row = cursor.execute("SELECT closed_before FROM closed_sessions").fetchone()
    return (row and row["closed_before"]) or "-infinity"
