"""Pools of a catalog file are stored with its other rows; joins reads none, so nobody waits for them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from catalog.closed_months import FURTHEST_ZONE, ClosedMonth, ClosedMonthsTouched, ended
from catalog.file import CatalogFile

_FILE = "jsonb_to_recordset(%(rows)s) AS f (account text, first_month date, end_month date, parent text)"
# Of members of a pool that a row leaves, or is in then, the ended months in which it was in another one, or in none.
_OTHER_SHARES = f"""
    WITH changed AS (
        SELECT f.account, f.first_month, f.end_month, f.parent, t.parent AS parent_before, t.end_month AS end_before
        FROM {_FILE} LEFT JOIN catalog.pools AS t USING (account, first_month)
        WHERE t.account IS NULL OR (t.parent, t.end_month) IS DISTINCT FROM (f.parent, f.end_month)
    ), moved AS (
        SELECT account, parent, first_month AS since, coalesce(end_month, 'infinity') AS until FROM changed
        WHERE parent IS DISTINCT FROM parent_before
        UNION ALL
        SELECT account, parent_before, first_month, coalesce(end_before, 'infinity') FROM changed
        WHERE parent <> parent_before
        UNION ALL
        SELECT account, parent, least(coalesce(end_month, 'infinity'), coalesce(end_before, 'infinity')),
               greatest(coalesce(end_month, 'infinity'), coalesce(end_before, 'infinity'))
        FROM changed WHERE parent = parent_before
    ), concerned AS (
        SELECT account, since, until FROM moved
        UNION
        SELECT pools.account, greatest(since, first_month), least(until, coalesce(end_month, 'infinity'))
        FROM moved JOIN catalog.pools USING (parent)
    )
    SELECT DISTINCT used.account, used.month
    FROM concerned JOIN usage_months AS used ON used.account = concerned.account AND month >= since AND month < until
    WHERE unit_price IS NULL AND price_version > 0 AND quantity <> 0
      AND month < date_trunc('month', now() AT TIME ZONE 'UTC' + %(earliest)s)
    ORDER BY used.account, used.month
"""
_STORED = f"""
    INSERT INTO catalog.pools AS t (account, first_month, end_month, parent)
    SELECT account, first_month, end_month, parent FROM {_FILE} ORDER BY account, first_month
    ON CONFLICT (account, first_month) DO UPDATE SET end_month = excluded.end_month, parent = excluded.parent
        WHERE (t.end_month, t.parent) IS DISTINCT FROM (excluded.end_month, excluded.parent)
    RETURNING CASE WHEN xmax = 0 THEN 'c' ELSE 'u' END AS op
"""


def store_pools(
    database: psycopg.Connection[dict[str, Any]], catalog: CatalogFile, *, backdates: bool = False
) -> Counter[str]:
    """Upsert the pools of a file within a transaction; counts the created (c), changed (u) and unchanged (r) rows.

    What a pool cannot be the database refuses when the transaction ends. Raises ClosedMonthsTouched, unless
    `backdates`, where ended months would be billed by another total.
    """
    rows = [row for pool in catalog.pools for row in pool.rows]
    parameters = {"rows": Jsonb(rows), "earliest": FURTHEST_ZONE}
    if rows and not backdates:
        months = [
            ClosedMonth(row["account"], row["month"], is_certain=False)
            for row in database.execute(_OTHER_SHARES, parameters)
        ]
        if found := list(ended(database, months)):
            raise ClosedMonthsTouched(found)
    counts = Counter(row["op"] for row in database.execute(_STORED, parameters)) if rows else Counter[str]()
    counts["r"] = len(rows) - counts.total()
    return counts
