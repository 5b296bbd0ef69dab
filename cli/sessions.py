"""`weir sessions`: the sessions of users, open and closed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, Row, print_rows
from cli.reading import AccountOption, FromOption, ToOption, check_range, read_only
from jobs.queries.reading import Database, select
from metering.sessions import SESSION_STATE_SQL

COLUMNS = ("account", "user_id", "session_start", "session_end", "events", "state", "version", "session_id")

# No session ends before it starts: its end has an index.
_STATEMENT = f"""
    SELECT account, user_id, session_start, session_end, events, version, session_id,
           {SESSION_STATE_SQL.format(over="(SELECT closed_before FROM closed_sessions)")} AS state
    FROM sessions
    WHERE (%(retracted)s OR retracted_at IS NULL)
      AND (%(start)s::timestamptz IS NULL OR session_start >= %(start)s AND session_end >= %(start)s)
      AND (%(end)s::timestamptz IS NULL OR session_start < %(end)s)
      AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
      AND (%(users)s::text[] IS NULL OR user_id = ANY (%(users)s))
    ORDER BY account, user_id, session_start, version, session_id
"""


@dataclass(frozen=True)
class SessionQuery:
    """Which sessions to list; `start` and `end` select by session start, None is unbounded."""

    start: datetime | None = None
    end: datetime | None = None
    accounts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    retracted: bool = False


def session_rows(database: Database, query: SessionQuery) -> Iterator[Row]:
    """Rows with the keys `COLUMNS`. A session is closed once the frontier is more than the gap past its last event."""
    return select(
        database,
        _STATEMENT,
        {
            "start": query.start,
            "end": query.end,
            "accounts": list(query.accounts) or None,
            "users": list(query.users) or None,
            "retracted": query.retracted,
        },
    )


def sessions(
    *,
    start: FromOption = None,
    end: ToOption = None,
    account: AccountOption = None,
    user: Annotated[list[str] | None, typer.Option("--user", help="Only this user; may be repeated.")] = None,
    retracted: Annotated[
        bool, typer.Option("--retracted", help="Also list closed sessions that a late event has replaced.")
    ] = False,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List sessions: a user's events with no gap longer than the session gap between them.

    --from and --to select by session start. `version` is one more each time a closed session had to change.
    """
    from deployment.stack import running_deployment

    check_range(start, end)
    query = SessionQuery(start, end, tuple(account or ()), tuple(user or ()), retracted)
    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(session_rows(database, query), COLUMNS, form, limit)
