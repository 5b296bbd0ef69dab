"""What joins may be told."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from jobs.runtime.config import JobConfig


class JoinsConfig(JobConfig):
    """`jobs.joins.config`."""

    completion_timeout_seconds: int = Field(
        default=120,
        ge=1,
        le=86_400,
        description="A request waits this long for its completion, and a completion for its request; in seconds.",
    )

    @property
    def completion_timeout(self) -> timedelta:
        """The timeout as a duration."""
        return timedelta(seconds=self.completion_timeout_seconds)
