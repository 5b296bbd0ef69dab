"""Removes prices that earlier releases published under differently written keys from the compacted topics.

They wrote a whole second without fractions; Debezium writes six digits. Compaction sees two keys, so a deleted row
would stay in the topic for ever, for any consumer that reads it from the beginning.
"""

from __future__ import annotations

import json

import psycopg

from catalog.publishing import forget
from deployment.capture import read_capture
from jobs.streams import CatalogTopic

_PUBLISHED_KEYS = "SELECT DISTINCT key FROM catalog_outbox WHERE topic = %s"


def forget_earlier_keys(bootstrap: str, postgres_url: str) -> int:
    """Send a tombstone for each such key, once the snapshot has published its row; returns how many.

    Nothing happens before that. Repeating it changes nothing: joins ignores tombstones. Raises CannotRun when the
    broker refuses one, and `psycopg.Error` when the database does.
    """
    with psycopg.connect(postgres_url, connect_timeout=10) as database:
        keys = [key for (key,) in database.execute(_PUBLISHED_KEYS, [CatalogTopic.PRICES])]
    capture = read_capture(postgres_url) if keys else None
    if capture is None or not capture.is_active or capture.captured_until is None:
        return 0
    earlier = [key for key in keys if "." not in json.loads(key)["effective_from"]]
    forget(bootstrap, CatalogTopic.PRICES, earlier)
    with psycopg.connect(postgres_url, connect_timeout=10) as database:
        database.execute("DELETE FROM catalog_outbox WHERE topic = %s AND key = ANY (%s)", [CatalogTopic.PRICES, keys])
    return len(earlier)
