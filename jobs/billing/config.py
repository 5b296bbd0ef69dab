"""What billing may be told."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from pydantic import Field, field_validator

from jobs.runtime.config import JobConfig
from metering.meters import Meter
from metering.words import Decision


class BillingConfig(JobConfig):
    """`jobs.billing.config`."""

    DECIDING: ClassVar[tuple[str, ...]] = ("grace_seconds", "late_policy")

    grace_seconds: int = Field(
        default=900,
        ge=0,
        le=2_678_400,
        description="How long after its end a window takes usage without a correction; seconds, at most 31 days.",
    )
    late_policy: dict[Meter, Decision] = Field(
        default_factory=dict,
        validate_default=True,
        description="What a straggler does to its closed window, per meter: correct (default) or drop.",
    )

    @field_validator("late_policy")
    @classmethod
    def every_meter(cls, policy: dict[Meter, Decision]) -> dict[Meter, Decision]:
        """A meter that is not named corrects."""
        return {meter: policy.get(meter, Decision.CORRECT) for meter in Meter}

    @property
    def grace(self) -> timedelta:
        """The grace as a duration."""
        return timedelta(seconds=self.grace_seconds)
