"""Limits of a dimension: of which values `usage_dimensions` has the sums of days and months.

Triggers on `usage_days` keep the sums of the values in `limited_dimensions`. That table is changed only here, before
the fold and in its transaction, so each row of `usage_days` is either read here or counted by a trigger.
"""

from __future__ import annotations

from typing import Any

import psycopg

# With empty names: what has rows of no value (`is_other`), of which an answer says that it may be more.
_NAMED = """
SELECT meter, dimension, dimension_value AS value FROM catalog.limits WHERE dimension <> ''
UNION
SELECT meter, '', '' FROM catalog.limits WHERE dimension <> ''
"""
_IS_OTHER = f"""
SELECT EXISTS (({_NAMED}) EXCEPT TABLE limited_dimensions)
    OR (SELECT count(*) FROM limited_dimensions) <> (SELECT count(*) FROM ({_NAMED}) AS named)
"""
# Others that write days, as a repair by hand does, have ended or wait.
_LOCK = "LOCK TABLE usage_days IN SHARE ROW EXCLUSIVE MODE"
_REMOVE = (
    f"DELETE FROM limited_dimensions WHERE (meter, dimension, value) NOT IN ({_NAMED})",
    """
    DELETE FROM usage_dimensions AS known WHERE NOT EXISTS (
        SELECT FROM limited_dimensions AS named
        WHERE (named.meter, named.dimension, named.value) = (known.meter, known.dimension, known.value)
    )
    """,
)
# Each row is split once, not once for each limit (OFFSET 0).
_ADD = f"""
WITH added AS (
    INSERT INTO limited_dimensions ({_NAMED} EXCEPT TABLE limited_dimensions) RETURNING meter, dimension, value
)
INSERT INTO usage_dimensions (account, first_day, period, meter, dimension, value, model, quantity)
SELECT account, CASE period WHEN 'P1D' THEN day ELSE date_trunc('month', day::timestamp)::date END, period,
       meter, dimension, value, model, trim_scale(sum(quantity))
FROM (
    SELECT * FROM usage_days CROSS JOIN LATERAL (
        SELECT key AS dimension, value FROM jsonb_each_text(dimensions)
        UNION ALL SELECT '', '' WHERE is_other
    ) AS of_value WHERE meter IN (SELECT meter FROM added) OFFSET 0
) AS split JOIN added USING (meter, dimension, value)
CROSS JOIN unnest('{{P1D,P1M}}'::text[]) AS period
GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7
"""
_DECIDE_LATER = """
INSERT INTO thresholds_due (account, plan, due_at, since)
SELECT account, plan, greatest(effective_from, now()), effective_from FROM catalog.limits
WHERE dimension <> '' AND (meter, dimension, dimension_value) NOT IN (
    SELECT meter, dimension, value FROM limited_dimensions
)
"""


def follow_limits(cursor: psycopg.Cursor[Any]) -> None:
    """Have `usage_dimensions` sum the values that limits name now, and no others: new ones from all days there are."""
    found = cursor.execute(_IS_OTHER).fetchone()
    if found and found[0]:
        cursor.execute(_LOCK)
        for statement in (*_REMOVE, _ADD):
            cursor.execute(statement)


def decide_later(cursor: psycopg.Cursor[Any]) -> None:
    """Note again the limits that were declared since `follow_limits`: the next fold sums and decides them."""
    cursor.execute(_DECIDE_LATER)
