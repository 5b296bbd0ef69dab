"""Changes of the catalog by the activity log, whose numbers have the order of commits."""

from __future__ import annotations

CHANGES = """
    SELECT number, target, side,
           coalesce(
               CASE entry ->> 'action' WHEN 'delete' THEN side ->> 'deleted_at' ELSE side ->> 'effective_from' END,
               entry ->> 'at'
           )::timestamptz AS since
    FROM (
        SELECT number, document::jsonb ->> 'target' AS target, document::jsonb AS entry FROM activity_log
        WHERE number > %(after)s
    ) AS entries
    CROSS JOIN LATERAL (VALUES (entry -> 'before'), (entry -> 'after')) AS sides (side)
    WHERE target IN ('catalog.accounts', 'catalog.prices') AND (side IS NOT NULL OR entry ->> 'action' = 'truncate')
"""
"""Accounts and prices as they were before and after each entry with a number above `after`; `since`: from when on they
apply. Of a table that was emptied `side` is null."""
