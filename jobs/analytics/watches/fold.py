"""Adds the hits of a batch to the stored ones, in the transaction that moves the position."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg

from jobs.analytics.watches.hits import HITS, SEEN
from jobs.analytics.watches.running import RunningWatches

MAX_FIRST = 5
"""Hits that a call names."""

BEGIN = """
UPDATE watches SET first_position = first.position, calls_from = coalesce(calls_from, first.position)
FROM (SELECT coalesce(
    (SELECT next_position FROM positions WHERE job = 'analytics' AND input = 'usage'), 1) AS position) AS first
WHERE first_position IS NULL AND watch_id = ANY (%s)
"""
"""Each row from there on runs past it."""
PAUSE = "UPDATE watches SET first_position = NULL WHERE first_position IS NOT NULL AND removed_at IS NULL"
"""BEGIN sets it again when they run again: the rows between have not run past them."""
_OF_HITS = f"FROM staged JOIN watches ON watch_id = version::bigint WHERE staged.view = '{HITS}'"
"""`watches` makes no hit of one that is not there any more."""
ADD_HITS = f"""
INSERT INTO watch_hits AS w
    (watch_id, hour, request_lsn, completion_lsn, net, event_time, account, request_id)
SELECT watch_id, window_start, hit.request_lsn, hit.completion_lsn, sum(hit.net),
       timestamptz 'epoch' + min(hit.at) * interval '1 microsecond', max(hit.account), max(hit.request_id)
FROM (SELECT watch_id, window_start, measures::jsonb -> 'first' AS listed {_OF_HITS}) AS found
CROSS JOIN jsonb_to_recordset(listed)
    AS hit (request_lsn bigint, completion_lsn bigint, net bigint, at bigint, account text, request_id text)
GROUP BY watch_id, window_start, hit.request_lsn, hit.completion_lsn
ON CONFLICT (watch_id, hour, request_lsn, completion_lsn) DO UPDATE SET
    net = w.net + excluded.net, event_time = least(w.event_time, excluded.event_time),
    account = coalesce(w.account, excluded.account), request_id = coalesce(w.request_id, excluded.request_id)
"""
LEAVE_FIRST = f"""
DELETE FROM watch_hits AS w USING (
    SELECT watch_id, hour, request_lsn, completion_lsn,
           row_number() OVER (PARTITION BY watch_id, hour ORDER BY request_lsn, completion_lsn) AS place
    FROM watch_hits
    WHERE (watch_id, hour) IN (SELECT version::bigint, window_start FROM staged WHERE view = '{HITS}')
) AS ordered
WHERE place > %s AND (w.watch_id, w.hour, w.request_lsn, w.completion_lsn)
    = (ordered.watch_id, ordered.hour, ordered.request_lsn, ordered.completion_lsn)
"""
ADD_HOURS = f"""
INSERT INTO watch_hours AS w (watch_id, hour, account, hits)
SELECT watch_id, window_start, watches.account, sum((measures::jsonb ->> 'net')::bigint) {_OF_HITS}
GROUP BY watch_id, window_start, watches.account
ON CONFLICT (watch_id, hour) DO UPDATE SET hits = w.hits + excluded.hits
"""
# One call for all steps that a batch passes. What was called about once is not called about again, also where hits were
# taken back since, or all of usage is read again: that is what calls_from and the rows that are there are for.
CALL = f"""
INSERT INTO watch_calls (watch_id, hour, step, account, name, hits, first)
SELECT watch_id, hour, step, account, name, hits, coalesce((
    SELECT jsonb_agg(jsonb_build_object(
        'account', h.account, 'request_id', h.request_id, 'event_time', h.event_time
    ) ORDER BY h.request_lsn, h.completion_lsn) FROM (
        SELECT * FROM watch_hits AS h WHERE (h.watch_id, h.hour) = (reached.watch_id, reached.hour) AND net > 0
        ORDER BY request_lsn, completion_lsn LIMIT {MAX_FIRST}
    ) AS h
), '[]')
FROM (
    SELECT w.watch_id, w.hour, w.account, watches.name, w.hits,
           (10 ^ (length(w.hits::text) - 1))::bigint AS step
    FROM watch_hours AS w JOIN watches USING (watch_id)
    WHERE w.hits > 0 AND calls_from < %(next_position)s AND removed_at IS NULL
      AND (%(expires_before)s::timestamptz IS NULL OR w.hour >= %(expires_before)s)
      AND (w.watch_id, w.hour) IN (SELECT version::bigint, window_start FROM staged WHERE view = '{HITS}')
) AS reached
WHERE step > ALL (
    SELECT step FROM watch_calls AS c WHERE (c.watch_id, c.hour) = (reached.watch_id, reached.hour)
)
"""
SEE = f"""
INSERT INTO watch_progress AS w (last_minute)
SELECT max(window_start) FROM staged WHERE view = '{SEEN}' HAVING count(*) > 0
ON CONFLICT (is_the_one) DO UPDATE SET last_minute = greatest(w.last_minute, excluded.last_minute)
"""
EXPIRE = """
WITH hits AS (DELETE FROM watch_hits WHERE hour < %(before)s),
     hours AS (DELETE FROM watch_hours WHERE hour < %(before)s)
DELETE FROM watch_calls WHERE hour < %(before)s
"""


def fold_hits(
    cursor: psycopg.Cursor[Any], running: RunningWatches, next_position: int, expires_before: datetime | None
) -> None:
    """Add what `staged` has of watches, note where those that `running` names begin, and remove what is too old."""
    cursor.execute(BEGIN, [running.ids])
    cursor.execute(SEE)
    if cursor.execute(f"SELECT EXISTS (SELECT FROM staged WHERE view = '{HITS}')").fetchone() == (True,):
        cursor.execute(ADD_HITS)
        cursor.execute(LEAVE_FIRST, [running.max_hits])
        cursor.execute(ADD_HOURS)
        cursor.execute(CALL, {"next_position": next_position, "expires_before": expires_before})
    if expires_before is not None:
        cursor.execute(EXPIRE, {"before": expires_before})


def pause_watches(cursor: psycopg.Cursor[Any], expires_before: datetime | None) -> None:
    """Where `watches` is off: what is read now runs past none of them, so they wait; remove hits that are too old."""
    cursor.execute(PAUSE)
    if expires_before is not None:
        cursor.execute(EXPIRE, {"before": expires_before})
