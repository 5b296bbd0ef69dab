"""How far ingestion is behind, by the last reports of the applications.

Events that ingestion has not read are only in Kafka, which deletes them eventually: before that the API refuses more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from api.problems import digits, over_capacity
from metering.reports import WORKING, is_stale
from metering.vocabulary import Job
from monitoring.metrics import Refusal

MAX_LAG_SECONDS = 86_400
"""The default. The topic that Weir makes keeps events for 36 days."""
SOON_SECONDS = 60.0
"""An ingestion that catches up within this time is not behind, however old the frontier is: a quiet partition may hold
that back."""
RETRY_AFTER_SECONDS = 60
RETENTION_SHARE = 0.5
"""Of what Kafka keeps: while more of it is unread, no more is taken. The rest is for whoever mends ingestion."""


@dataclass(frozen=True)
class Report:
    """A row of `jobs`: what an application has reported, and how long ago. `now` is the database's."""

    job: str
    state: str
    progress: Mapping[str, Any]
    age_seconds: float
    now: datetime

    @property
    def frontier(self) -> datetime | None:
        """All that was received before it is committed."""
        text = self.progress.get("frontier")
        return datetime.fromisoformat(text) if text is not None else None


@dataclass(frozen=True)
class Retention:
    """What Kafka keeps of the topics of events, as ingestion saw it last. `seconds`: the shortest `retention.ms`.

    `headroom`: the share of age and size that was left before an unread record is deleted.
    """

    seconds: float | None = None
    headroom: float = 1.0


def retention_in(reports: Sequence[Report]) -> Retention | None:
    """None: nothing is known of it; an ingestion of an earlier release does not report it."""
    found = next((report.progress.get("retention") for report in reports if report.job == Job.INGESTION), None)
    return Retention(found.get("seconds"), found.get("headroom", 1.0)) if found else None


def lag_seconds(reports: Sequence[Report]) -> float:
    """The maximum age of the oldest record that ingestion has not committed; 0 if it is unknown.

    If ingestion is gone it may have left nothing unread: then this is how long it has been gone. For an ingestion that
    has started and not reported yet, the latest frontier of the jobs that read its journal counts.
    """
    ingestion = next((report for report in reports if report.job == Job.INGESTION), None)
    frontiers = [report.frontier for report in reports if report.frontier is not None]
    if ingestion is None or not frontiers or _keeps_up(ingestion):
        return 0.0
    frontier = ingestion.frontier or max(frontiers)
    return max(0.0, (ingestion.now - frontier).total_seconds())


def refuse_lag(lag: float, max_lag_seconds: float, retention: Retention = Retention()) -> None:
    """Raises Problem (429) where the lag is above the limit, or above half of what Kafka keeps; a limit of 0 disables
    both.
    """
    if not (max_lag_seconds and lag):
        return
    kept = retention.seconds
    limit = max_lag_seconds if kept is None else min(max_lag_seconds, RETENTION_SHARE * kept)
    if lag > limit:
        because = (
            f"Ingestion is {lag:.0f} s behind, and the limit is {digits(limit)} s, because Kafka deletes unread events"
        )
    elif retention.headroom < RETENTION_SHARE:
        because = "Ingestion has not read more than half of what Kafka keeps, which deletes unread events"
    else:
        return
    raise over_capacity(Refusal.LAG, f"{because}: send the same request again later.", RETRY_AFTER_SECONDS, limit)


def _keeps_up(ingestion: Report) -> bool:
    if ingestion.state not in WORKING or is_stale(ingestion.state, ingestion.age_seconds):
        return False
    catches_up = ingestion.progress.get("catch_up_seconds")
    return ingestion.progress.get("records_behind") == 0 or (catches_up is not None and catches_up <= SOON_SECONDS)
