"""Limits, pattern matches and hits of watches, as billing and analytics write them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from tests.database_rows import write

MINUTE = timedelta(minutes=1)


def fill_watched(database: str, now: datetime, accounts: Sequence[str], marker: str = "") -> None:
    """Of each account a monthly limit of requests that is half used, a match, a retracted one, and a hit."""
    storms = pattern(database, "storms")
    for account in accounts:
        limit(database, now, account=account, meter="requests", quantity=100_000, steps=[Decimal(1)])
        crossed(database, now, account, Decimal(1))
        keys = {"account": account, "api_key_id": f"{marker}key"}
        match(database, storms, now - 20 * MINUTE, f"{marker}{account}-1", keys)
        match(database, storms, now - 30 * MINUTE, f"{marker}{account}-2", keys)
        match(database, storms, now - 30 * MINUTE, f"{marker}{account}-2", keys, version=2)
        hits(database, now, watch(database, f"{marker}of-{account}", account), [f"{marker}hit"], account)


def limit(database: str, now: datetime, **values: Any) -> None:
    """A limit of a month that has begun long ago; `values` replace columns."""
    row = {"period": "P1M", "effective_from": now - timedelta(days=60), **values}
    write(database, "catalog.limits", row)


def crossed(database: str, now: datetime, account: str, threshold: Decimal, version: int = 1, **values: Any) -> None:
    """A change of a threshold of this month: an odd version is crossed."""
    row = {"account": account, "period": "P1M", "first_day": now.date().replace(day=1), "meter": "requests"}
    row |= {"currency": "", "threshold": threshold, "version": version, "is_crossed": version % 2 == 1}
    write(database, "threshold_changes", {**row, "used": threshold, "frontier": now, "changed_at": now, **values})


def pattern(database: str, name: str, *partition_by: str) -> int:
    """The number of a declared pattern, which is declared if it is not."""
    definition = {"partition_by": partition_by or ("account", "api_key_id"), "pattern": "A B{9,}"}
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO analytics_patterns (pattern, version, definition, first_position) VALUES (%s, 'v', %s, 1) "
            "ON CONFLICT DO NOTHING",
            [name, Jsonb(definition)],
        )
        [number] = connection.execute(
            "SELECT pattern_id FROM analytics_patterns WHERE is_declared AND pattern = %s", [name]
        ).fetchone() or [0]
    return int(number)


def match(  # noqa: PLR0917  # what a match is made of
    database: str, pattern_id: int, at: datetime, name: str, keys: dict[str, Any], version: int = 1, **values: Any
) -> None:
    """A version of a match of three minutes: an even one is retracted."""
    row = {"pattern_id": pattern_id, "match_id": name, "version": version, "is_retracted": version % 2 == 0}
    row |= {"account": keys.get("account"), "keys": Jsonb(keys), "first_lsn": 1, "last_lsn": 10, "outcomes": 10}
    row |= {"started_at": at, "ended_at": at + 3 * MINUTE, "measures": Jsonb({"failures": 10}), **values}
    write(database, "pattern_matches", row)


def watch(database: str, name: str, account: str | None = None, **values: Any) -> int:
    """The number of a watch that runs, of one account or of none."""
    row = {
        "name": name,
        "condition": 'status = "error"',
        "columns": Jsonb({"status": "text"}),
        "account": account,
        "added_by": "me",
    }
    write(database, "watches", {**row, "first_position": 1, **values})
    with psycopg.connect(database) as connection:
        [number] = connection.execute("SELECT max(watch_id) FROM watches").fetchone() or [0]
    return int(number)


def hits(database: str, at: datetime, watch_id: int, requests: Sequence[str], account: str) -> None:
    """Hits of a watch at an instant, and their number in its hour."""
    hour = at.replace(minute=0, second=0, microsecond=0)
    of = {"watch_id": watch_id, "hour": hour, "account": account}
    write(database, "watch_hours", {**of, "hits": len(requests)})
    rows = [{**of, "request_lsn": lsn, "request_id": request} for lsn, request in enumerate(requests, start=1)]
    write(database, "watch_hits", *({**row, "completion_lsn": 9, "net": 1, "event_time": at} for row in rows))
