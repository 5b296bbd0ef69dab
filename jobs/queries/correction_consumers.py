"""Who has applied the corrections of its accounts, up to which number, and since when it has not applied the next."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import psycopg
from psycopg.rows import DictRow

from jobs.billing_progress import Row
from jobs.queries.reading import Database

COLUMNS = ("consumer", "accounts", "number", "acknowledged_at", "key_id", "waiting", "waiting_since")
MAX_LOOKED_AT = 100_000
"""Corrections after the number of a consumer: more that wait are not counted."""
OF_CONSUMER = "(of_accounts = '*' OR CASE WHEN of_accounts <> '*' THEN of_accounts::jsonb ? account END)"
_LIST = f"""
SELECT consumer, of_accounts AS accounts, c.number, acknowledged_at, key_id, waiting, waiting_since
FROM correction_consumers AS c CROSS JOIN LATERAL (
    SELECT count(*) AS waiting, min(corrected_at) AS waiting_since FROM (
        SELECT account, corrected_at FROM corrections WHERE corrections.number > c.number
        ORDER BY corrections.number LIMIT {MAX_LOOKED_AT}
    ) AS later WHERE {OF_CONSUMER}
) AS unapplied
ORDER BY consumer, accounts
"""
_NEWEST = "SELECT coalesce(max(number), 0) AS newest FROM corrections"
# None where it is one of them: of two that come at the same time both may be the last, and both go on.
_COUNT = """
SELECT count(*) AS consumers FROM correction_consumers
WHERE NOT EXISTS (SELECT FROM correction_consumers WHERE consumer = %s)
"""
_ACKNOWLEDGE = """
INSERT INTO correction_consumers AS c (consumer, of_accounts, number, key_id)
VALUES (%(consumer)s, %(of_accounts)s, %(number)s, %(key_id)s)
ON CONFLICT (consumer, accounts_digest) DO UPDATE SET
    number = greatest(c.number, EXCLUDED.number), acknowledged_at = clock_timestamp(), key_id = EXCLUDED.key_id
RETURNING consumer, number
"""
_WAITING = f"""
SELECT count(*) AS waiting FROM (
    SELECT FROM corrections WHERE number > %s ORDER BY number LIMIT {MAX_LOOKED_AT}
) AS later
"""
_REMOVE = "DELETE FROM correction_consumers WHERE consumer = %s"


class NotReached(Exception):
    """A number that no visible correction has reached."""


class TooManyConsumers(Exception):
    """One more than there may be of the same accounts."""


@dataclass(frozen=True)
class Acknowledgement:
    """A consumer, with a key of `of_accounts` (as `weir.accounts` has them), has applied corrections up to `number`."""

    consumer: str
    of_accounts: str
    number: int
    key_id: str


def acknowledge(database: Database, given: Acknowledgement, max_consumers: int) -> Row:
    """Store it; a lower number than before changes nothing. `database` sees what the accounts may see, and no more.

    Returns consumer, number, and how many corrections are `waiting` after it. Raises NotReached, TooManyConsumers.
    """
    if given.number > _one(database.execute(_NEWEST))["newest"]:
        raise NotReached
    if _one(database.execute(_COUNT, [given.consumer]))["consumers"] >= max_consumers:
        raise TooManyConsumers
    stored = _one(database.execute(_ACKNOWLEDGE, asdict(given)))
    return stored | _one(database.execute(_WAITING, [stored["number"]]))


def correction_consumers(database: Database) -> Iterator[Row]:
    """Every consumer with the keys COLUMNS; `waiting` corrections of its accounts it has not acknowledged."""
    yield from database.execute(_LIST)


def remove_consumer(database: Database, consumer: str) -> int:
    """No longer wait for a consumer; how many there were of this name, of different accounts."""
    return database.execute(_REMOVE, [consumer]).rowcount


def _one(cursor: psycopg.Cursor[DictRow]) -> DictRow:
    row = cursor.fetchone()
    assert row is not None
    return row
