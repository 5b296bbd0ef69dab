"""What is removed leaves its sums: by age, and with its endpoint. Nothing else is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import psycopg
import pytest

from deployment.errors import CannotRun
from jobs.retention.days import Retention
from jobs.retention.webhooks import MAX_EVENTS, retain_webhooks
from tests.webhooks.sending import add_endpoint, hold, now_clock, queue, rows
from webhooks.endpoints import LIST, deliveries, details, listed, remove
from webhooks.kinds import Kind
from webhooks.outbox import Lane, Outbox
from webhooks.outcomes import Attempt, State, outcome

URL = "https://example.com/hook"
TODAY = date(2026, 11, 29)
MIDNIGHT = datetime.combine(TODAY, time(), UTC)


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def retained(connection: psycopg.Connection[Any], max_events: int = MAX_EVENTS, **days: Any) -> list[int]:
    """How many events went: delivered, and undelivered."""
    return [removed.rows for removed in retain_webhooks(connection, Retention(**days), TODAY, max_events)]


def removals(database: str) -> set[tuple[Any, ...]]:
    return set(
        rows(
            database,
            "SELECT endpoint, state, cause, sum(deliveries)::int, min(first_number), max(last_number)"
            " FROM webhook_removals GROUP BY 1, 2, 3",
        )
    )


@pytest.mark.parametrize("max_events", [1, 2, 5_000])
def test_what_all_endpoints_had_thirty_days_ago_is_removed_with_its_log_and_nothing_else(
    database: str, connection: psycopg.Connection[Any], max_events: int
) -> None:
    endpoints = [add_endpoint(database, URL).endpoint for _ in range(2)]
    hold(database, ["acme"] * 7)
    queue(database)
    hold(database, ["acme"], first_lsn=8)
    old, recent = MIDNIGHT - timedelta(days=31), MIDNIGHT - timedelta(days=29)
    ends = [("delivered", old), ("delivered", recent), ("dead", old), ("waiting", None), ("delivered", old)]
    ends += [("dead", old), ("delivered", old)]
    made_at = dict.fromkeys(range(1, 9), MIDNIGHT - timedelta(days=40)) | {5: recent, 6: MIDNIGHT - timedelta(days=91)}
    for number, at in made_at.items():
        connection.execute("UPDATE webhook_events SET made_at = %s WHERE number = %s", [at, number])
    for endpoint in endpoints:
        ends_here = ends if endpoint == endpoints[0] else [("delivered", old)] * 7
        for number, (state, settled_at) in enumerate(ends_here, start=1):
            connection.execute(
                "UPDATE webhook_deliveries SET state = %s, settled_at = %s WHERE (endpoint, number) = (%s, %s)",
                [state, settled_at, endpoint, number],
            )
            connection.execute(
                "INSERT INTO webhook_attempts (number, endpoint, attempted_at, account, duration_ms)"
                " VALUES (%s, %s, %s, 'acme', 1)",
                [number, endpoint, old],
            )
    assert retained(connection, max_events) == [2, 1]
    for table in ("webhook_deliveries", "webhook_attempts"):
        assert rows(database, f"SELECT DISTINCT number FROM {table} ORDER BY 1") == [(n,) for n in (2, 3, 4, 5)], table
    assert rows(database, "SELECT number FROM webhook_events ORDER BY 1") == [(n,) for n in (2, 3, 4, 5, 8)]
    assert removals(database) == {
        (endpoints[0], "delivered", "age", 2, 1, 7),
        (endpoints[1], "delivered", "age", 3, 1, 7),
        (endpoints[0], "dead", "age", 1, 6, 6),
    }
    assert {row["endpoint"]: row["removed"] for row in listed(database)} == {endpoints[0]: 1, endpoints[1]: 0}


def test_an_outbox_that_no_sender_reads_is_bounded_by_its_retention_and_says_what_went(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    endpoint = add_endpoint(database, URL).endpoint
    hold(database, ["acme"] * 3)
    connection.execute("UPDATE webhook_events SET made_at = %s WHERE number < 3", [MIDNIGHT - timedelta(days=91)])
    assert retained(connection, undelivered_webhooks_days=None) == [0]
    assert retained(connection) == [0, 2]
    assert removals(database) == {(endpoint, "waiting", "age", 2, 1, 2)}
    (row,) = listed(database)
    assert (row["waiting"], row["removed"]) == (1, 2)
    queue(database)
    assert [row["number"] for row in deliveries(database, endpoint, None)] == [3]


@pytest.mark.parametrize("asked", [[0], [0, 1]], ids=["one", "those of an account"])
def test_who_asks_for_some_endpoints_reads_what_waits_for_no_other(database: str, asked: list[int]) -> None:
    """Customers ask, too, and others may have millions that wait or are dead."""
    endpoints = [add_endpoint(database, URL, accounts=accounts).endpoint for accounts in (["a"], ["a"], ["b"], [])]
    hold(database, ["a", "b", "b", "b"])
    queue(database)
    with psycopg.connect(database) as session:
        session.execute("UPDATE webhook_deliveries SET state = 'dead', settled_at = now() WHERE number > 2")
        (plan,) = session.execute(
            f"EXPLAIN (ANALYZE, FORMAT JSON) {LIST}", {"endpoints": [endpoints[place] for place in asked]}
        ).fetchone() or ([],)
    read = sum(
        node["Actual Rows"] * node["Actual Loops"]
        for node in nodes(plan[0]["Plan"])
        if node.get("Relation Name") == "webhook_deliveries"
    )
    assert read == len(asked)
    assert [(row["endpoint"], row["waiting"], row["dead"]) for row in listed(database, ["a"])] == [
        (endpoint, 1, 0) for endpoint in endpoints[:2]
    ]
    assert [(row["waiting"], row["dead"]) for row in listed(database)] == [(1, 0), (1, 0), (1, 2), (2, 2)]
    assert details(database, endpoints[3]) == listed(database)[3]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def test_an_endpoint_is_removed_with_what_it_has_and_no_other(database: str) -> None:
    going, staying = (add_endpoint(database, URL).endpoint for _ in range(2))
    hold(database, ["acme"] * 3)
    queue(database)
    rows(
        database,
        "UPDATE webhook_deliveries SET state = (ARRAY['delivered', 'dead'])[number], settled_at = now()"
        " WHERE number < 3 RETURNING 1",
    )
    hold(database, ["acme"], first_lsn=4)
    assert remove(database, going, "ada") == {State.WAITING: 2, State.DELIVERED: 1, State.DEAD: 1}
    assert [row["endpoint"] for row in listed(database)] == [staying]
    assert rows(database, "SELECT endpoint FROM webhook_secrets") == [(staying,)]
    assert {row[:4] for row in removals(database)} == {
        (going, "waiting", "endpoint", 2),
        (going, "delivered", "endpoint", 1),
        (going, "dead", "endpoint", 1),
    }
    queue(database)
    assert rows(database, "SELECT endpoint, count(*)::int FROM webhook_deliveries GROUP BY 1") == [(staying, 4)]
    hold(database, ["acme"], first_lsn=5)
    assert rows(database, "SELECT endpoints FROM webhook_events WHERE number = 5") == [([staying],)]
    with pytest.raises(CannotRun, match="no endpoint"):
        remove(database, going, "ada")


def test_an_attempt_that_ends_after_its_endpoint_was_removed_ends_no_sender(database: str) -> None:
    endpoint = add_endpoint(database, URL).endpoint
    hold(database, ["acme"])

    async def send() -> None:
        outbox, now = await Outbox.connect(database), now_clock().now()
        await outbox.queue()
        due = await outbox.head(Lane(endpoint, "acme", Kind.WEBHOOK), now)
        assert due is not None
        await asyncio.to_thread(remove, database, endpoint, "ada")
        await outbox.record(due, Attempt(204), outcome(Attempt(204), 1, now, lambda: 0.0), now, timedelta(0))
        await outbox.close()

    asyncio.run(send())
    assert rows(database, "SELECT count(*)::int FROM webhook_attempts") == [(0,)]


def test_deliveries_are_read_in_pages(database: str) -> None:
    endpoint = add_endpoint(database, URL).endpoint
    hold(database, ["acme"] * 5)
    queue(database)
    hold(database, ["acme"] * 3, first_lsn=6)
    assert [row["number"] for row in deliveries(database, endpoint, None, page_rows=3)] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert list(deliveries(database, endpoint, State.DEAD)) == []
