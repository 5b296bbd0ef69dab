"""Sessions of a person who went on meanwhile: those under the name and those under the pseudonym, merged where they are
near, as sessionization merges those of one user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from jobs.sessionization.fold import CHANGES, MERGED
from jobs.sessionization.gaps import LAST

_HAS_BOTH = """
SELECT count(DISTINCT user_id) = 2 FROM sessions
WHERE account = %(account)s AND user_id IN (%(user)s, %(name)s) AND retracted_at IS NULL
"""
_NOTHING_NEW = """
CREATE TEMP TABLE staged (
    account text, user_id text, session_start timestamptz, session_end timestamptz, events bigint
) ON COMMIT DROP
"""
# Those with a neighbour within the gap, as of one user. The sessions of one name do not overlap, those of two may.
_TOUCHED = """
CREATE TEMP TABLE touched ON COMMIT DROP AS
SELECT session_id, account, user_id, session_start, session_end, events, version,
       coalesce(session_end < (SELECT closed_before FROM closed_sessions), false) AS closed
FROM (
    SELECT session_id, account, %(name)s::text AS user_id, session_start, session_end, events, version,
           max(session_end) OVER (in_order ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached,
           lead(session_start) OVER in_order AS next_start
    FROM sessions
    WHERE account = %(account)s AND user_id IN (%(user)s, %(name)s) AND retracted_at IS NULL
    WINDOW in_order AS (ORDER BY session_start, session_end, session_id)
) AS live
WHERE session_start <= reached + %(gap)s OR next_start <= session_end + %(gap)s
"""


def merge_sessions(connection: psycopg.Connection[Any], values: Mapping[str, Any]) -> None:
    """Merge the sessions of `user` and `name` of an `account`; some of them are still called `user` then.

    Within a transaction in which sessionization folds nothing.
    """
    both, kept = connection.execute(_HAS_BOTH, values).fetchone(), connection.execute(LAST).fetchone()
    if both is None or not both[0] or kept is None:
        return
    within = {**values, "gap": kept[0]}
    for statement in (_NOTHING_NEW, _TOUCHED, MERGED, *CHANGES.values()):
        connection.execute(statement.encode(), within)
