"""Accounts whose users of a period `weir forget` has counted again: their bill changed without a row of usage."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.billing_progress import Database

_COUNTED_AGAIN = """
    SELECT document::jsonb #>> '{after,account}' AS account, max(number) AS number
    FROM activity_log WHERE number > %s AND document::jsonb ->> 'target' = 'usage_members' GROUP BY 1
"""


def counted_again(database: Database, after: int = 0) -> Mapping[str, int]:
    """By account the number of the last such entry of the activity log above `after`."""
    return {row["account"]: row["number"] for row in database.execute(_COUNTED_AGAIN, [after]).fetchall()}
