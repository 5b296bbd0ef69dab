"""Limits of a catalog file are stored with its other rows; joins reads none, so nobody waits for them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from catalog.file import CatalogFile

_STORED = """
    INSERT INTO catalog.limits AS t (
        account, plan, meter, currency, model, dimension, dimension_value, period, effective_from, quantity, amount,
        steps, every, code
    )
    SELECT account, plan, meter, currency, model, dimension, dimension_value, period, effective_from, quantity, amount,
           steps, every, code
    FROM jsonb_to_recordset(%s) AS f (
        account text, plan text, meter text, currency text, model text, dimension text, dimension_value text,
        period text, effective_from timestamptz, quantity numeric, amount numeric, steps numeric[], every numeric,
        code text
    )
    ORDER BY account, plan, meter, currency, model, dimension, dimension_value, period, effective_from
    ON CONFLICT (account, plan, meter, currency, model, dimension, dimension_value, period, effective_from)
    DO UPDATE SET quantity = excluded.quantity, amount = excluded.amount, steps = excluded.steps,
                  every = excluded.every, code = excluded.code
        WHERE (t.quantity, t.amount, t.steps, t.every, t.code)
            IS DISTINCT FROM (excluded.quantity, excluded.amount, excluded.steps, excluded.every, excluded.code)
    RETURNING CASE WHEN xmax = 0 THEN 'c' ELSE 'u' END AS op
"""


def store_limits(database: psycopg.Connection[dict[str, Any]], catalog: CatalogFile) -> Counter[str]:
    """Upsert the limits of a file within a transaction; counts the created (c), changed (u) and unchanged (r) ones."""
    rows = [row.stored for row in catalog.limits]
    counts = Counter(row["op"] for row in database.execute(_STORED, [Jsonb(rows)]))
    counts["r"] = len(rows) - counts.total()
    return counts
