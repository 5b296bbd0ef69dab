"""The page of sessions names the newest session however old it is, and a user's history with what was replaced."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dashboard.backend import Backend
from dashboard.queries.sessions import read_history, read_open_sessions
from dashboard.settings import Settings
from tests.database_rows import progress, write

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def session(end: datetime, **values: Any) -> dict[str, Any]:
    row = {"account": "acme", "user_id": "u1", "session_start": end - timedelta(minutes=9), "session_end": end}
    return {**row, "events": 3, "version": 1, **values}


@pytest.mark.parametrize("days", [0, 1, 5, 100, 300, 700])
def test_the_newest_session_is_named_however_long_ago_it_was(database: str, days: int) -> None:
    progress(database, "sessionization", NOON)
    ends = [NOON - timedelta(days=days + more) for more in (0, 3, 400)]
    write(database, "sessions", *(session(end) for end in ends))
    found = read_open_sessions(Backend(Settings(postgres_url=database)), None)
    assert found.newest == ends[0]
    assert found.open_now == (days == 0)


def test_without_sessions_there_is_no_newest(database: str) -> None:
    progress(database, "sessionization", NOON)
    assert read_open_sessions(Backend(Settings(postgres_url=database)), None).newest is None


def test_a_users_history_has_replaced_sessions_only_where_they_are_asked_for(database: str) -> None:
    progress(database, "sessionization", NOON)
    kept = [session(NOON - timedelta(days=day), version=2) for day in (1, 3)]
    replaced = session(NOON - timedelta(days=2), retracted_at=NOON)
    others = [session(NOON, user_id="u2"), session(NOON, account="globex")]
    write(database, "sessions", *kept, replaced, *others)
    backend = Backend(Settings(postgres_url=database))
    listed = {
        retracted: [row.session_end for row in read_history(backend, "acme", "u1", retracted=retracted)]
        for retracted in (False, True)
    }
    assert listed == {
        False: [NOON - timedelta(days=day) for day in (1, 3)],
        True: [NOON - timedelta(days=d) for d in (1, 2, 3)],
    }
