"""The catalog in `weir status`: rows that differ in joins and must be published again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from metering.vocabulary import Job

if TYPE_CHECKING:
    from deployment.capture import Capture
    from deployment.job_states import JobRow
    from deployment.stack import Deployment

ON_THE_WAY = timedelta(seconds=10)
"""A change that is in Kafka may take that long to joins, beside what the applications are behind."""


def outdated_rows(deployment: Deployment, capture: Capture, rows: Mapping[str, JobRow]) -> list[str]:
    """A sentence where joins has rows otherwise than the catalog, and nothing is on its way to it; nothing else.

    So it is after a column was renamed and is called as before: changes were rejected meanwhile.
    """
    from catalog.reconciliation import outdated
    from deployment.asking import asking_database

    if (until := joined_until(capture, rows)) is None:
        return []
    with asking_database(deployment.postgres_url):
        count = outdated(deployment.tables, deployment.postgres_url, until)
    if not count:
        return []
    what = f"{count} accounts and prices that differ from the catalog"
    return [f"joins has {what}: their changes were rejected or lost; `weir catalog reconcile` publishes them again."]


def joined_until(capture: Capture, rows: Mapping[str, JobRow]) -> datetime | None:
    """The time before which joins must have every commit; None: unknown, or a column is missing."""
    if not capture.is_active or capture.captured_until is None or capture.missing:
        return None
    behind = [rows[job].progress.get("seconds_behind") if job in rows else None for job in (Job.INGESTION, Job.JOINS)]
    known = [seconds for seconds in behind if seconds is not None]
    if len(known) < len(behind):
        return None
    return capture.captured_until - ON_THE_WAY - timedelta(seconds=sum(known))
