"""Retention of webhooks: what was delivered, and, later, what nobody took. Each removal leaves its sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import psycopg

from jobs.retention.days import Removed, Retention

MAX_EVENTS = 5_000
"""Of one transaction: billing and the sender do not wait for a long one."""
# What has deliveries, the last of which succeeded before.
_DELIVERED = """
number <= (SELECT queued_to FROM webhook_position) AND NOT EXISTS (
    SELECT FROM webhook_deliveries AS d
    WHERE d.number = e.number AND (state <> 'delivered' OR settled_at >= %(before)s)
)
"""
_REMOVE = """
WITH gone AS (
    SELECT number, made_at, endpoints FROM webhook_events AS e
    WHERE number > %(after)s AND made_at < %(before)s AND {which}
    ORDER BY number LIMIT %(max_events)s FOR UPDATE
), of_gone AS (
    SELECT endpoint, state, number, made_at FROM gone JOIN webhook_deliveries USING (number)
    UNION ALL
    SELECT endpoint, 'waiting', number, made_at
    FROM gone CROSS JOIN unnest(endpoints) AS endpoint JOIN webhook_endpoints USING (endpoint)
    WHERE number > (SELECT queued_to FROM webhook_position)
), logged AS (
    INSERT INTO webhook_removals
        (endpoint, state, cause, deliveries, first_number, last_number, first_made_at, last_made_at)
    SELECT endpoint, state, 'age', count(*), min(number), max(number), min(made_at), max(made_at)
    FROM of_gone GROUP BY endpoint, state
), removed AS (
    DELETE FROM webhook_events AS e USING gone WHERE e.number = gone.number RETURNING e.number
)
SELECT count(*), max(number) FROM removed
"""


def retain_webhooks(
    connection: psycopg.Connection[Any], retention: Retention, today: date, max_events: int = MAX_EVENTS
) -> Iterator[Removed]:
    """Remove old events with their deliveries and attempts, `max_events` in a transaction; `connection` commits."""
    steps = (
        ("webhook_events, delivered", _DELIVERED, retention.delivered_webhooks_days),
        ("webhook_events, undelivered", "true", retention.undelivered_webhooks_days),
    )
    for name, which, days in steps:
        if days is not None:
            before = today - timedelta(days=days)
            values = {"before": datetime.combine(before, time(), UTC), "max_events": max_events}
            yield Removed(name, before, sum(_removed(connection, _REMOVE.format(which=which), values)))


def _removed(connection: psycopg.Connection[Any], statement: str, values: Mapping[str, Any]) -> Iterator[int]:
    """How many went, by transaction."""
    after: int | None = 0
    while after is not None:
        row = connection.execute(statement, {**values, "after": after}).fetchone()
        assert row is not None
        count, after = row
        yield count
