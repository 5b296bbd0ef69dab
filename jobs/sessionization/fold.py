"""Merges a batch's mini-sessions with the stored sessions, in one transaction."""

from __future__ import annotations

from typing import Any

import psycopg

from jobs.runtime.job import Counts, Fold
from jobs.sessionization.config import SessionizationConfig
from jobs.sessionization.gaps import take_gap
from metering.vocabulary import SessionChange
from monitoring import metrics

# After a larger gap: live sessions with a neighbour that it joins them to; of disjoint ones the next is the nearest.
NEIGHBOURS = """
    UNION ALL
    SELECT session_id FROM (
        SELECT session_id, session_start, session_end,
               lag(session_end) OVER in_order AS previous_end, lead(session_start) OVER in_order AS next_start
        FROM sessions WHERE retracted_at IS NULL
        WINDOW in_order AS (PARTITION BY account, user_id ORDER BY session_start)
    ) AS live
    WHERE session_start <= previous_end + %(gap)s OR next_start <= session_end + %(gap)s
"""

# A user's live sessions are disjoint, so at most one that starts before the reach of a mini-session can extend into
# it: one index range per mini-session. Rows are locked in key order, so that two folds never wait for each
# other in a ring.
TOUCHED = """
CREATE TEMP TABLE touched ON COMMIT DROP AS
SELECT session_id, account, user_id, session_start, session_end, events, version,
       coalesce(session_end < %(closed_before)s::timestamptz, false) AS closed
FROM sessions
WHERE session_id IN (
    SELECT near.session_id
    FROM (SELECT * FROM staged ORDER BY account, user_id, session_start) AS mini CROSS JOIN LATERAL (
        SELECT session_id FROM sessions
        WHERE account = mini.account AND user_id = mini.user_id AND retracted_at IS NULL
          AND session_start <= mini.session_end + %(gap)s AND session_end >= mini.session_start - %(gap)s
          AND session_start >= coalesce((
              SELECT max(session_start) FROM sessions
              WHERE account = mini.account AND user_id = mini.user_id AND retracted_at IS NULL
                AND session_start < mini.session_start - %(gap)s
          ), '-infinity')
    ) AS near
    {neighbours}
)
ORDER BY account, user_id, session_start
FOR UPDATE
"""

# Gaps and islands: an island begins where nothing before reaches to within one gap.
MERGED = """
CREATE TEMP TABLE merged ON COMMIT DROP AS
WITH parts AS (
    SELECT account, user_id, session_start, session_end, events,
           NULL::bigint AS session_id, NULL::integer AS version, false AS closed
    FROM staged
    UNION ALL
    SELECT account, user_id, session_start, session_end, events, session_id, version, closed FROM touched
),
begun AS (
    SELECT *, session_start <= %(gap)s + max(session_end) OVER (
        PARTITION BY account, user_id ORDER BY session_start, session_end
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) IS NOT TRUE AS begins
    FROM parts
),
numbered AS (
    SELECT *, count(*) FILTER (WHERE begins) OVER (
        PARTITION BY account, user_id ORDER BY session_start, session_end ROWS UNBOUNDED PRECEDING
    ) AS island
    FROM begun
)
SELECT account, user_id, min(session_start) AS session_start, max(session_end) AS session_end,
       sum(events) AS events,
       coalesce(max(version), 1) + bool_or(closed)::integer AS version,
       min(session_id) FILTER (WHERE NOT closed) AS extended_id
FROM numbered
GROUP BY account, user_id, island
"""

RETRACT = """
UPDATE sessions SET retracted_at = now(), updated_at = now()
FROM touched WHERE sessions.session_id = touched.session_id AND touched.closed
"""

# Two open sessions became one: nobody has seen either closed, so the other one just goes.
ABSORB = """
DELETE FROM sessions USING touched
WHERE sessions.session_id = touched.session_id AND NOT touched.closed
  AND NOT EXISTS (SELECT FROM merged WHERE merged.extended_id = touched.session_id)
"""

EXTEND = """
UPDATE sessions
SET session_start = merged.session_start, session_end = merged.session_end, events = merged.events,
    version = merged.version, updated_at = now()
FROM merged WHERE sessions.session_id = merged.extended_id
"""

BEGIN = """
INSERT INTO sessions (account, user_id, session_start, session_end, events, version)
SELECT account, user_id, session_start, session_end, events, version
FROM merged WHERE extended_id IS NULL
ORDER BY account, user_id, session_start
"""


CHANGES = {
    SessionChange.RETRACTED: RETRACT,
    SessionChange.ABSORBED: ABSORB,
    SessionChange.EXTENDED: EXTEND,
    SessionChange.BEGUN: BEGIN,
}


def fold(cursor: psycopg.Cursor[Any], config: SessionizationConfig, frontiers: Fold) -> Counts:
    """Merge `staged` into `sessions`; returns the number of sessions begun, extended, absorbed and retracted.

    A session that was closed as of the previous frontier stays as a retraction; its successor has the next version.
    The first batch under a larger gap merges all that is stored; a smaller one holds from its first batch on.
    """
    taken = take_gap(cursor, config.session_gap, frontiers.previous_frontier)
    parameters = {"gap": config.session_gap, "closed_before": taken.closed_before}
    cursor.execute(TOUCHED.format(neighbours=NEIGHBOURS if taken.is_wider else ""), parameters)
    cursor.execute(MERGED, parameters)
    return {(metrics.SESSIONS, kind): cursor.execute(statement).rowcount for kind, statement in CHANGES.items()}
