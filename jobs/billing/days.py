"""The sums of one micro-batch → `usage_days`: the sums of windows by the account's day and by dimensions."""

from __future__ import annotations

from typing import Any

import psycopg

from jobs.billing.staged import IS_BILLED
from metering.windows import MINUTE

MAX_COMBINATIONS = 10_000
"""Of dimensions that have rows of their own, per account and day."""

# By where in usage they are billed first: which come first does not depend on how usage was cut into batches. What one
# decision bills is billed at one place.
ADMIT = f"""
WITH new AS (
    SELECT account, day, dimensions::jsonb AS dimensions, min(first_lsn) AS first_lsn, min(usage_lsn) AS usage_lsn
    FROM staged WHERE dimensions IS NOT NULL AND {IS_BILLED} AND metered_rows > 0
    GROUP BY account, day, dimensions::jsonb
), unknown AS (
    SELECT * FROM new WHERE NOT EXISTS (
        SELECT FROM usage_day_dimensions AS known
        WHERE (known.account, known.day, known.dimensions_key)
            = (new.account, new.day, sha256(jsonb_send(new.dimensions)))
    )
), taken AS (
    SELECT account, day, count(*) AS rows FROM usage_day_dimensions
    WHERE (account, day) IN (SELECT account, day FROM unknown) GROUP BY account, day
), placed AS (
    SELECT *, row_number() OVER (PARTITION BY account, day ORDER BY first_lsn, usage_lsn) AS place FROM unknown
)
INSERT INTO usage_day_dimensions (account, day, dimensions, first_lsn)
SELECT account, day, dimensions, first_lsn FROM placed LEFT JOIN taken USING (account, day)
WHERE place + coalesce(taken.rows, 0) <= %(most)s
"""

# First by the text of dimensions: a day has fewer rows than its minutes, and only these are looked up.
ADD = f"""
INSERT INTO usage_days AS old (
    account, day, model, meter, currency, price_version, dimensions, is_other, quantity, unit_price, usage_rows,
    first_window, last_window_end, corrected, next_position
)
SELECT summed.account, summed.day, model, meter, currency, price_version, known.dimensions,
       summed.dimensions IS NOT NULL AND known.dimensions IS NULL,
       trim_scale(sum(quantity)), max(unit_price), sum(usage_rows), min(first_window),
       max(last_window) + %(minute)s, bool_or(is_correction), %(position)s
FROM (
    SELECT account, day, model, meter, currency, price_version, dimensions, sum(quantity) AS quantity,
           max(unit_price) AS unit_price, sum(sign * metered_rows) AS usage_rows, min(window_start) AS first_window,
           max(window_start) AS last_window, bool_or(is_correction) AS is_correction
    FROM staged WHERE {IS_BILLED} AND metered_rows > 0
    GROUP BY account, day, model, meter, currency, price_version, dimensions
) AS summed LEFT JOIN usage_day_dimensions AS known
  ON (known.account, known.day, known.dimensions_key)
   = (summed.account, summed.day, sha256(jsonb_send(summed.dimensions::jsonb)))
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
ORDER BY 1, 2, 3, 4, 5, 6, 7, 8
ON CONFLICT ON CONSTRAINT usage_days_key DO UPDATE SET
    quantity = trim_scale(old.quantity + excluded.quantity),
    unit_price = coalesce(old.unit_price, excluded.unit_price),
    usage_rows = old.usage_rows + excluded.usage_rows,
    first_window = least(old.first_window, excluded.first_window),
    last_window_end = greatest(old.last_window_end, excluded.last_window_end),
    corrected = old.corrected OR excluded.corrected,
    next_position = excluded.next_position,
    updated_at = now()
"""


def add_days(cursor: psycopg.Cursor[Any], position: int, max_combinations: int = MAX_COMBINATIONS) -> None:
    """Add `staged` to `usage_days`, but only what is in windows: not what is dropped, rejected or held.

    `position`: that of billing after the batch. No day of a proved month has a later one than its audit.
    """
    cursor.execute(ADMIT, {"most": max_combinations})
    cursor.execute(ADD, {"minute": MINUTE, "position": position})
