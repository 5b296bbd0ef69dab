"""What is closed, and since when: by when records were received, never by when they were processed."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from metering.windows import Window

MAX_FUTURE = timedelta(days=1)
"""How long before it occurs an event may be received: the most that `accept_future_seconds` can be."""


class WindowState(StrEnum):
    """How far a window has come; `corrected` is closed, and was changed since (table `corrections`)."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    CORRECTED = "corrected"


def still_closed(frontier: datetime | None, delay: timedelta, closed_before: datetime | None) -> datetime | None:
    """What was closed when `frontier` was reached, `delay` after its end, or before that: the latest such end."""
    passed = None if frontier is None else frontier - delay
    return max((at for at in (passed, closed_before) if at is not None), default=None)


def window_state(
    window: Window,
    grace: timedelta | None,
    frontier: datetime | None,
    *,
    corrected: bool = False,
    closed_before: datetime | None = None,
) -> WindowState:
    """The state of `window` once everything received before `frontier` is folded (None: nothing is known to be over).

    A window that is closed, `corrected` or not, can receive stragglers and what corrects others: what is received from
    `end + grace` on is a straggler, and so is all that reaches one that ended by `closed_before`. While nobody knows
    the grace (None), no other window is closed. A straggler may come before: in a partition that is far ahead of F, or
    to one minute of a month.
    """
    is_closed = grace is not None and frontier is not None and frontier >= window.end + grace
    if is_closed or (closed_before is not None and window.end <= closed_before):
        return WindowState.CORRECTED if corrected else WindowState.CLOSED
    return WindowState.OPEN if frontier is None or frontier < window.end else WindowState.CLOSING


WINDOW_STATE_SQL = """
    CASE WHEN window_end <= ({closed_until})::timestamptz THEN CASE WHEN {corrected} THEN 'corrected' ELSE 'closed' END
         WHEN window_end <= %(frontier)s::timestamptz THEN 'closing'
         ELSE 'open' END
"""
"""`window_state` in SQL, of rows with `window_end`. The parameter `frontier` is that of the view `closed_usage`, and
`{closed_until}` is of that for rows of several meters, of `closed_meters` for those of one; null while nobody knows.
`{corrected}` is the column, or an aggregate of it."""
