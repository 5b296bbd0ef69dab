"""Meters of accounts whose users `weir forget` has counted again: a bill changed without a row of usage."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.billing_progress import Database

_COUNTED_AGAIN = """
    SELECT document::jsonb -> 'after' AS counted, number FROM activity_log
    WHERE number > %s AND document::jsonb ->> 'target' = 'usage_members' ORDER BY number
"""


def counted_again(database: Database, after: int = 0) -> Mapping[tuple[str, str], int]:
    """By account and meter the number of the last such entry of the activity log above `after`."""
    rows = database.execute(_COUNTED_AGAIN, [after]).fetchall()
    return {(row["counted"]["account"], meter): row["number"] for row in rows for meter in row["counted"]["meters"]}
