"""Usage that waits for a price: from when on an audit must take what was received, to find all of it."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

import psycopg

EARLIER = timedelta(days=2)
_EARLIEST = """
SELECT min(window_start) FROM (
    SELECT window_start FROM usage_windows WHERE price_version IS NULL AND quantity <> 0
    UNION ALL
    SELECT min(window_start) FROM stragglers WHERE price_version IS NULL
    GROUP BY window_start, account, model, meter, currency HAVING sum(quantity) <> 0
) AS waiting
"""


def unpriced_from(postgres_url: str) -> datetime | None:
    """The start of the second UTC day before the earliest window with usage without a price; None without any.

    An event is received at most a day before it occurs, and waits for its partner a day at most: whatever belongs to
    such usage was received since then. Raises `psycopg.Error` when the database does not answer.
    """
    with psycopg.connect(postgres_url, connect_timeout=10) as database:
        row = database.execute(_EARLIEST).fetchone()
    if row is None or row[0] is None:
        return None
    return datetime.combine(row[0].astimezone(UTC).date(), time(), UTC) - EARLIER
