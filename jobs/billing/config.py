"""The configuration of billing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, ClassVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, field_validator, model_validator

from jobs.billing.rules import HISTORY, HOLD, METER_GRACE, POLICY
from jobs.runtime.config import JobConfig
from jobs.settings.holding import HoldConfig
from jobs.settings.meters import MAX_GRACE_SECONDS, MeterName, refuse_uncorrected
from metering.instants import rfc3339
from metering.meters import MAX_METERS
from metering.vocabulary import LatePolicy, Published

FIRST_INSTANT, END_INSTANT = datetime(1970, 1, 1, tzinfo=UTC), datetime(3000, 1, 1, tzinfo=UTC)


class OrderedEventsConfig(BaseModel):
    """How `events.ordered` is published."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    wait_seconds: int = Field(
        default=60,
        ge=0,
        le=3_600,
        description="How long the frontier must have passed the time of an event before it is published: an event that "
        "comes later than that is marked as late. A change applies to what is accepted after the start.",
    )


class BillingConfig(JobConfig):
    """`jobs.billing.config`."""

    DECIDING: ClassVar[tuple[str, ...]] = ("grace_seconds",)

    grace_seconds: int = Field(
        default=900,
        ge=0,
        le=MAX_GRACE_SECONDS,
        description="How long after its end a window takes usage without a correction; seconds, at most 31 days. A "
        "meter's own `grace_seconds` in `meters` goes before it.",
    )
    late_policy: dict[MeterName, LatePolicy] = Field(
        default_factory=dict,
        max_length=MAX_METERS,
        description="What a straggler does to its closed window, by meter: correct (default), drop, or hold (it waits "
        "for `weir stragglers approve` or `reject`). A meter's own `late_policy` in `meters` is the same.",
    )
    hold: HoldConfig = Field(
        default_factory=HoldConfig,
        description="Which stragglers wait where the late policy is hold, and how long. A meter's own `hold` in "
        "`meters` replaces it as a whole.",
    )

    driver_rows: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Batches of at most so many rows of usage are read and added up in the driver, larger ones (up to "
        "max_records_per_batch) by tasks on executors; the result is the same. Without it 50,000 where there are "
        "executors; else the driver adds up all, because tasks beside it need more of the same cores.",
    )
    history_until: AwareDatetime | None = Field(
        default=None,
        description="Windows that ended by this instant were billed elsewhere: events of the past (`weir backfill`) "
        "are added to them without a correction, although they are closed. Set it while a new installation loads its "
        "history; without it, such events are corrections again.",
    )

    publish: tuple[Published, ...] = Field(
        default=tuple(Published),
        max_length=len(Published),
        description="What billing publishes to Kafka, each on the topic of that name: corrections, windows, both "
        "(default) or nothing. A name that is added again is published again in full.",
    )
    publish_every_seconds: int = Field(
        default=5,
        ge=1,
        le=3_600,
        description="How often what changed is published; a window that changes several times meanwhile is sent once.",
    )

    ordered_events: OrderedEventsConfig | None = Field(
        default=None,
        description="If given, accepted events are published again on the topic `events.ordered`, in the order of "
        "event time; `{}` for the defaults. It begins with what is accepted from then on.",
    )

    @field_validator("history_until", mode="before")
    @classmethod
    def _is_an_instant(cls, value: object) -> object:
        """An instant of RFC 3339, which YAML may have parsed already; a number is refused."""
        with suppress(ValueError):
            until = datetime.fromisoformat(value) if isinstance(value, str) else value
            if until is None or isinstance(until, datetime):
                return until
        raise ValueError("must be an instant such as 2026-11-01T00:00:00Z")

    @field_validator("history_until")
    @classmethod
    def _is_storable(cls, until: datetime | None) -> datetime | None:
        if until is not None and not FIRST_INSTANT <= until < END_INSTANT:
            raise ValueError(f"history_until is {until.isoformat()}; it must lie in the years 1970 to 2999")
        return until

    @field_validator("publish")
    @classmethod
    def _each_topic_once(cls, topics: tuple[Published, ...]) -> tuple[Published, ...]:
        if len(set(topics)) < len(topics):
            raise ValueError(f"publish names a topic twice: {', '.join(topics)}")
        return topics

    @model_validator(mode="after")
    def _of_declared_meters(self) -> BillingConfig:
        for name, policy in self.late_policy.items():
            if name not in self.meters:
                raise ValueError(f"late_policy names {name}, but the meters are {', '.join(sorted(self.meters))}")
            if (own := self.meters[name].late_policy) not in (None, policy):
                raise ValueError(
                    f"late_policy.{name} is {policy}, but meters.{name}.late_policy is {own}; leave one out"
                )
        for name, policy in self.policies.items():
            declaration = self.meters[name].declaration(name)
            aggregation = None if declaration.of_period is None else declaration.of_period.aggregation
            if declaration.once_per is not None or aggregation is not None:
                try:
                    refuse_uncorrected(policy, aggregation)
                except ValueError as error:
                    raise ValueError(f"meters.{name}: {error}") from None
            if self.meters[name].hold is not None and policy is not LatePolicy.HOLD:
                raise ValueError(
                    f"meters.{name}.hold is given, but its late_policy is {policy}; set it to hold, or remove hold"
                )
        return self

    @property
    def policies(self) -> Mapping[str, LatePolicy]:
        """What a straggler does, by declared meter."""
        return {
            name: meter.late_policy or self.late_policy.get(name, LatePolicy.CORRECT)
            for name, meter in self.meters.items()
        }

    @property
    def holds(self) -> Mapping[str, HoldConfig]:
        """How stragglers wait, by declared meter with the policy hold."""
        held = [name for name, policy in self.policies.items() if policy is LatePolicy.HOLD]
        return {name: self.meters[name].hold or self.hold for name in held}

    @property
    def deciding(self) -> dict[str, Any]:
        """With the late policy of every meter, each meter's own grace, and the holds (`rules`)."""
        policies = {name: policy.value for name, policy in self.policies.items()}
        own = {name: meter.grace_seconds for name, meter in self.meters.items() if meter.grace_seconds is not None}
        holds = {name: hold.model_dump(mode="json", exclude_none=True) for name, hold in self.holds.items()}
        history = None if self.history_until is None else rfc3339(self.history_until)
        deciding = {**super().deciding, POLICY: policies, METER_GRACE: own, HOLD: holds, HISTORY: history}
        return {name: value for name, value in deciding.items() if value or name not in (METER_GRACE, HOLD, HISTORY)}
