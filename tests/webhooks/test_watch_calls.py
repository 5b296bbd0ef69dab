"""Hits of watches in Postgres to events of webhooks: digested, once each, to whom they concern."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from jobs.analytics.watches.fold import fold_hits
from jobs.analytics.watches.running import RunningWatches
from jobs.retention.analytics import retain_analytics
from webhooks.endpoints import add
from webhooks.event_types import EventType

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def watch(database: str, name: str, account: str | None = None) -> int:
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "INSERT INTO watches (name, condition, columns, account, added_by)"
            " VALUES (%s, 'cached', '{}', %s, 'me') RETURNING watch_id",
            [name, account],
        ).fetchone()
    assert row is not None
    return int(row[0])


def fold(
    database: str, watch_id: int, taken: range, *, sign: int = 1, hour: datetime = NOON, expires: datetime | None = None
) -> None:
    """A batch in which a watch takes these outcomes of an hour."""
    first = [
        {"request_lsn": n, "completion_lsn": n, "net": sign, "account": "a", "request_id": f"r{n}", "at": 10**15 + n}
        for n in taken[:100]
    ]
    measures = json.dumps({"net": sign * len(taken), "first": first})
    with psycopg.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMP TABLE staged (view text, version text, window_start timestamptz, measures text) ON COMMIT DROP"
        )
        cursor.execute("INSERT INTO staged VALUES ('*hits', %s, %s, %s)", [str(watch_id), hour, measures])
        fold_hits(cursor, RunningWatches((1, watch_id), ((watch_id, "cached", ()),)), 1_000, expires)


def events(database: str) -> list[dict[str, Any]]:
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT body, endpoints FROM webhook_events ORDER BY number").fetchall()
    return [{**json.loads(body)["data"], "to": endpoints} for body, endpoints in found]


def test_an_hour_of_hits_is_few_calls_however_many_they_are_and_in_whatever_batches(database: str) -> None:
    of_all = add(database, "https://example.com/", [EventType.WATCH_HIT], "me").endpoint
    watch_id = watch(database, "leaks")
    fold(database, watch_id, range(1, 4))
    fold(database, watch_id, range(4, 6))
    fold(database, watch_id, range(6, 3_000))
    fold(database, watch_id, range(1, 2_000), sign=-1)
    fold(database, watch_id, range(3_000, 6_000))
    found = events(database)
    assert [(one["reached"], one["hits"]) for one in found] == [(1, 3), (1_000, 2_999)]
    assert {**found[0], "first": None} == {
        "watch": "leaks",
        "account": None,
        "hour": "2026-01-01T12:00:00+00:00",
        "reached": 1,
        "hits": 3,
        "first": None,
        "to": [of_all],
    }
    assert [hit["request_id"] for hit in found[0]["first"]] == ["r1", "r2", "r3"]
    assert [hit["request_id"] for hit in found[1]["first"]] == ["r1", "r2", "r3", "r4", "r5"]


def test_a_watch_of_one_account_calls_its_endpoints_and_any_other_only_those_of_all(database: str) -> None:
    own = add(database, "https://example.com/a", [EventType.WATCH_HIT], "me", accounts=["a"]).endpoint
    of_all = add(database, "https://example.com/", [EventType.WATCH_HIT], "me").endpoint
    fold(database, watch(database, "of a", account="a"), range(1, 2))
    fold(database, watch(database, "of each"), range(1, 2))
    assert [(one["watch"], {*one["to"]}) for one in events(database)] == [
        ("of a", {own, of_all}),
        ("of each", {of_all}),
    ]


def test_what_is_too_old_goes_and_calls_nobody(database: str) -> None:
    add(database, "https://example.com/", [EventType.WATCH_HIT], "me")
    watch_id = watch(database, "leaks")
    fold(database, watch_id, range(1, 2))
    fold(database, watch_id, range(2, 3), hour=NOON - timedelta(days=1), expires=NOON + timedelta(hours=1))
    with psycopg.connect(database) as connection:
        for table in ("watch_hits", "watch_hours", "watch_calls"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    assert len(events(database)) == 1


@pytest.mark.parametrize(("later", "calls"), [(3, [10]), (95, [10]), (100, [10, 100])])
def test_an_hour_whose_hits_were_removed_while_analytics_was_off_is_not_called_about_twice(
    database: str, later: int, calls: list[int]
) -> None:
    """analytics stopped within the hour and reads the rest of it after more than `keep_days`: the steps that were
    reached are known, and the count begins anew.
    """
    add(database, "https://example.com/", [EventType.WATCH_HIT], "me")
    watch_id, removed = watch(database, "leaks"), watch(database, "removed")
    for number in (watch_id, removed):
        fold(database, number, range(1, 13))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE watches SET removed_at = now(), removed_by = 'me' WHERE watch_id = %s", [removed])
        connection.execute("DELETE FROM webhook_events")
        done = {one.table: one.rows for one in retain_analytics(connection, NOON.date() + timedelta(days=40))}
        assert done["watch_calls"] == 2
        known = connection.execute("SELECT watch_id, step, first FROM watch_calls").fetchall()
        assert known == [(watch_id, 10, [])], "nobody's requests are named any more"
        assert connection.execute("SELECT count(*) FROM watch_hours").fetchone() == (0,)
    fold(database, watch_id, range(13, 13 + later))
    assert [one["reached"] for one in events(database)] == calls[1:]


@pytest.mark.parametrize(
    ("named", "seen", "hits"),
    [('["a"]', {"of a"}, 2), ('["b"]', set(), 0), ("*", {"of a", "of each"}, 2), ("", set(), 0)],
)
def test_who_names_accounts_sees_its_own_watches_and_hits_alone(
    database: str, named: str, seen: set[str], hits: int
) -> None:
    fold(database, watch(database, "of a", account="a"), range(1, 2))
    fold(database, watch(database, "of each"), range(1, 2))
    with psycopg.connect(database) as connection:
        connection.execute("SET ROLE weir_dashboard")
        connection.execute("SELECT set_config('weir.accounts', %s, false)", [named])
        for table in ("watches", "watch_calls"):
            assert {row[0] for row in connection.execute(f"SELECT name FROM weir.{table}")} == seen
        assert connection.execute("SELECT count(*) FROM weir.watch_hits").fetchone() == (hits,)
