"""The applications that ever ran on the database, and the last report of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dashboard.backend import Backend
from metering.reports import OFF_AFTER
from metering.vocabulary import Job

_APPLICATIONS = """
    SELECT job, state, epoch, updated_at, progress,
           (SELECT reason FROM exits WHERE exits.job = jobs.job ORDER BY ended_at DESC LIMIT 1) AS exit_reason,
           (SELECT ended_at FROM exits WHERE exits.job = jobs.job ORDER BY ended_at DESC LIMIT 1) AS exit_at
    FROM jobs WHERE job = ANY (%s)
      AND (job <> 'analytics' OR state <> 'stopped' AND updated_at > clock_timestamp() - %s)
"""


@dataclass(frozen=True)
class TopicLag:
    """How far behind a topic of events is. `seconds_behind` None: a partition of it was not heard of yet."""

    topic: str
    records_behind: int
    seconds_behind: float | None


@dataclass(frozen=True)
class Application:
    """The last report of an application. None: not known (yet)."""

    job: str
    state: str
    starts: int
    reported_at: datetime
    records_behind: int | None
    seconds_behind: float | None
    catch_up_seconds: float | None
    last_batch_at: datetime | None
    last_batch_records: int | None
    last_batch_ms: int | None
    frontier: datetime | None
    exit_at: datetime | None
    exit_reason: str | None
    waiting_because: str | None = None
    topics: Sequence[TopicLag] = ()
    """Of ingestion, where it reads several: the slowest first."""


@dataclass(frozen=True)
class Applications:
    """The applications that ever ran, by name, at `read_at`."""

    read_at: datetime
    by_job: dict[str, Application]


def read_applications(backend: Backend) -> Applications:
    """What each application last reported."""
    with backend.snapshot() as cursor:
        rows = cursor.execute(_APPLICATIONS, [list(Job), OFF_AFTER]).fetchall()
        clock = cursor.execute("SELECT clock_timestamp() AS read_at").fetchall()[0]
    return Applications(clock["read_at"], {row["job"]: _application(row) for row in rows})


def _application(row: dict[str, Any]) -> Application:
    progress = row["progress"]
    return Application(
        job=row["job"],
        state=row["state"],
        starts=row["epoch"],
        reported_at=row["updated_at"],
        records_behind=progress.get("records_behind"),
        seconds_behind=progress.get("seconds_behind"),
        catch_up_seconds=progress.get("catch_up_seconds"),
        last_batch_at=_instant(progress.get("last_batch_at")),
        last_batch_records=progress.get("last_batch_records"),
        last_batch_ms=progress.get("last_batch_ms"),
        frontier=_instant(progress.get("frontier")),
        exit_at=row["exit_at"],
        exit_reason=row["exit_reason"],
        waiting_because=progress.get("waiting_because"),
        topics=tuple(
            TopicLag(lag["topic"], lag["records_behind"], lag["seconds_behind"]) for lag in progress.get("topics", ())
        ),
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
