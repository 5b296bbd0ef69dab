"""The configuration of sessionization."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from jobs.runtime.config import JobConfig


class SessionizationConfig(JobConfig):
    """`jobs.sessionization.config`."""

    session_gap_seconds: int = Field(
        default=1_800,
        ge=1,
        le=86_400,
        description="Events of one user at most this far apart belong to one session; in seconds.",
    )

    min_batch_interval_seconds: float = Field(
        default=4,
        ge=0,
        le=60,
        description="While events come, how long after a micro-batch of few rows the next one follows at least: "
        "sessions need not be as new as bills, and each batch is a job of Spark.",
    )

    @property
    def session_gap(self) -> timedelta:
        """The gap as a duration."""
        return timedelta(seconds=self.session_gap_seconds)
