"""Sessions: consecutive events of one user belong together when they are at most one gap apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class SessionState(StrEnum):
    """How final a session is; `retracted`: a later version replaced it after it had been closed."""

    OPEN = "open"
    CLOSED = "closed"
    RETRACTED = "retracted"


@dataclass(frozen=True, order=True)
class Session:
    """`events` events, the first at `start` and the last at `end`. Raises ValueError when it could not exist."""

    start: datetime
    end: datetime
    events: int

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"a session cannot end ({self.end}) before it starts ({self.start})")
        if self.events < 1:
            raise ValueError(f"a session holds at least one event, not {self.events}")

    def near(self, other: Session, gap: timedelta) -> bool:
        """True when both are one session: they overlap, or at most one gap lies between them."""
        return self.start <= other.end + gap and other.start <= self.end + gap

    def closed(self, gap: timedelta | None, frontier: datetime | None) -> bool:
        """True when `frontier` has passed the last event by more than the gap; never while one of both is unknown."""
        return frontier is not None and gap is not None and frontier > self.end + gap


def merge(sessions: Iterable[Session], gap: timedelta) -> list[Session]:
    """One user's sessions as they must be: disjoint, more than a gap apart, in order; events are summed.

    Associative and commutative: any cut of the events, in any order, merges to the same sessions.
    """
    merged: list[Session] = []
    for session in sorted(sessions):
        if merged and merged[-1].near(session, gap):
            last = merged.pop()
            merged.append(Session(last.start, max(last.end, session.end), last.events + session.events))
        else:
            merged.append(session)
    return merged


SESSION_STATE_SQL = """
    CASE WHEN retracted_at IS NOT NULL THEN 'retracted'
         WHEN session_end < {over} THEN 'closed'
         ELSE 'open' END
"""
"""The `SessionState` of a row in SQL. `{over}` is what the view `closed_sessions` says (`closed_before`), null
while nobody knows frontier or gap."""
