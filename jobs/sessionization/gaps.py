"""Which session gap applies from which position: a larger one merges stored sessions, a smaller one leaves them alone.

Merging is associative: sessions of one gap, merged by a larger gap, equal the sessions of their events under the larger
gap.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg

from metering.lateness import still_closed


@dataclass(frozen=True)
class GapInForce:
    """The gap of one batch. `is_wider`: stored sessions may be nearer to each other than it allows.

    `closed_before`: a session that ended before it may have been shown closed, under this gap or an earlier one; None
    before anything was closed.
    """

    is_wider: bool
    closed_before: datetime | None


def gap_in_force(
    gap: timedelta, previous_frontier: datetime | None, last_gap: timedelta | None, last_closed_before: datetime | None
) -> GapInForce:
    """The rule: a batch with `gap` after the frontier that was reached with `last_gap` (None: unknown).

    Until a gap has decided something, readers use the one before it (view `closed_sessions`).
    """
    closed_before = still_closed(previous_frontier, gap if last_gap is None else last_gap, last_closed_before)
    return GapInForce(last_gap is None or gap > last_gap, closed_before)


LAST = "SELECT gap, closed_before FROM session_gaps ORDER BY first_position DESC LIMIT 1"

# Two changes before the first row that either decides: only the later one ever held.
KEEP = """
INSERT INTO session_gaps (first_position, gap, closed_before)
SELECT coalesce(max(next_position), 1), %(gap)s, %(closed_before)s
FROM positions WHERE job = 'sessionization' AND input = 'journal'
ON CONFLICT (first_position) DO UPDATE SET gap = excluded.gap, closed_before = excluded.closed_before
"""


def take_gap(cursor: psycopg.Cursor[Any], gap: timedelta, previous_frontier: datetime | None) -> GapInForce:
    """The gap of the batch in this transaction; one that is new is kept with the position from which it holds."""
    last_gap, last_closed_before = cursor.execute(LAST).fetchone() or (None, None)
    taken = gap_in_force(gap, previous_frontier, last_gap, last_closed_before)
    if gap != last_gap:
        known = None if last_gap is None else taken.closed_before
        cursor.execute(KEEP, {"gap": gap, "closed_before": known})
    return taken
