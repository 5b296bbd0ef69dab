"""The setting `meters`: what is counted, under which name, and with which rules."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_serializer,
    field_validator,
    model_validator,
)

from jobs.settings.conditions import PlainName, Values, conditions
from jobs.settings.holding import HoldConfig
from jobs.settings.names import as_written
from jobs.settings.outcome_columns import OF_OUTCOMES, OUTCOME_TEXTS
from metering.meters import (
    DEFAULT,
    DETAILS,
    FAMILY,
    LARGEST_QUANTITY,
    MAX_CONDITIONS,
    MAX_METERS,
    QUANTITY_DECIMALS,
    REPORTED_COLUMNS,
    Declaration,
)
from metering.once_per import DURATION, OncePer, seconds_of
from metering.period_meters import Aggregation, Period, PeriodMeter
from metering.vocabulary import LatePolicy, Status

MAX_GRACE_SECONDS = 2_678_400
MeterName = PlainName


class OncePerConfig(BaseModel):
    """`once_per` of a meter."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: PlainName = Field(
        description="The text column of the events that identifies the content, such as content_hash; an outcome "
        "without one counts."
    )
    within: str = Field(
        json_schema_extra={"pattern": f"^{DURATION}$"},
        description="The length of the windows of event time in which a content counts once, aligned to the epoch: an "
        "ISO 8601 duration from PT1S to P1D, such as PT1H.",
    )

    @field_validator("column")
    @classmethod
    def _is_of_events(cls, column: str) -> str:
        if column in OF_OUTCOMES - set(OUTCOME_TEXTS) | {FAMILY}:
            raise ValueError(
                f"it cannot be {column}, because every outcome has a column of that name; give the contract "
                "another x-weir-column "
                "for it"
            )
        return column

    @field_validator("within")
    @classmethod
    def _is_a_duration(cls, within: str) -> str:
        seconds_of(within)
        return within

    def rule(self) -> OncePer:
        """The same as the applications use it."""
        return OncePer(self.column, seconds_of(self.within))


class MeterConfig(BaseModel):
    """One meter of `meters`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: PlainName = Field(description="What one of it is, in the singular.")
    count: Literal["outcomes"] | None = Field(
        default=None,
        description="Counts each outcome of a request that is billed: a request with its completion, or one alone. "
        "With `family: quantity` in `where` it counts events of the family quantity.",
    )
    sum: PlainName | None = Field(
        default=None, description="Adds up what completions report in this column (x-weir-column of a contract)."
    )
    unique: PlainName | None = Field(
        default=None,
        description="Counts the different values of this text or number of the events, such as user_id, in each period "
        "and model.",
    )
    min: PlainName | None = Field(
        default=None, description="Bills the least number that completions report in this column in each period."
    )
    max: PlainName | None = Field(
        default=None, description="Bills the greatest number that completions report in this column in each period."
    )
    latest: PlainName | None = Field(
        default=None,
        description="Bills the number that the latest event of each period reports in this column; of several at one "
        "instant the greatest.",
    )
    period: Period | None = Field(
        default=None,
        description="Of `unique`, `min`, `max` and `latest`: whether they bill each day or each month of the account's "
        "calendar, at the price of its start.",
    )
    where: dict[PlainName, Values] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_CONDITIONS,
        description="Which outcomes it counts, by text and boolean columns of the events: each equals the value given "
        "here, or one of a list of values; null matches none. `family: quantity` selects events of that family. Left "
        "out: all.",
    )
    once_per: OncePerConfig | None = Field(
        default=None,
        description="Of an account's outcomes with one content, only the first in each window counts. The stream "
        "counts each; an audit of everything takes the others back. Left out: each counts.",
    )
    expected: bool | None = Field(
        default=None,
        description="Whether a completion that does not report it is counted as unmetered; left out: only where it "
        f"sums one of {', '.join(REPORTED_COLUMNS)}.",
    )
    within: MeterName | None = Field(
        default=None, description="The meter that counts these units too, so that totals leave them out."
    )
    late_policy: LatePolicy | None = Field(
        default=None,
        description="What a straggler does to its closed window: correct (default), drop, or hold: it waits for a "
        "decision.",
    )
    hold: HoldConfig | None = Field(
        default=None, description="Which of its stragglers wait, and how long; left out: billing's hold."
    )
    grace_seconds: int | None = Field(
        default=None,
        ge=0,
        le=MAX_GRACE_SECONDS,
        description="How long after its end a window takes this meter's usage without a correction; left out: "
        "billing's grace_seconds.",
    )
    max_per_event: Annotated[Decimal | None, BeforeValidator(as_written)] = Field(
        default=None,
        gt=0,
        le=LARGEST_QUANTITY,
        decimal_places=QUANTITY_DECIMALS,
        description="An event that reports more is rejected; at most what its contract allows.",
    )

    @model_validator(mode="after")
    def _counts_or_sums(self) -> MeterConfig:
        if [self.count, self.sum, *(column for _, column in self._sets)].count(None) != 5:
            raise ValueError(
                "a meter has one of `count: outcomes` and `sum: <column>`, or of `unique: <column>`, `min: <column>`, "
                "`max: <column>` and `latest: <column>` with a `period`"
            )
        if self.sum is None and self.expected is not None:
            raise ValueError("`expected` and `max_per_event` are of a meter that sums what completions report")
        if self.reported is None and self.max_per_event is not None:
            raise ValueError("`expected` and `max_per_event` are of a meter that sums what completions report")
        return self

    @model_validator(mode="after")
    def _has_a_period(self) -> MeterConfig:
        aggregation = next((name for name, column in self._sets if column is not None), None)
        if aggregation is None and self.period is not None:
            raise ValueError(
                "`period` belongs to a meter with `unique`, `min`, `max` or `latest`; other meters are billed by the "
                "minute"
            )
        if aggregation is None:
            return self
        if self.period is None:
            raise ValueError(f"a meter with `{aggregation}` needs a `period`: day or month")
        for name in ("within", "once_per", "hold"):
            if getattr(self, name) is not None:
                raise ValueError(f"a meter with `{aggregation}` cannot have `{name}`: a period is billed as a whole")
        refuse_uncorrected(self.late_policy, aggregation)
        return self

    @property
    def _sets(self) -> tuple[tuple[Aggregation, str | None], ...]:
        return (
            (Aggregation.UNIQUE, self.unique),
            (Aggregation.MIN, self.min),
            (Aggregation.MAX, self.max),
            (Aggregation.LATEST, self.latest),
        )

    @property
    def reported(self) -> str | None:
        """The column of numbers that it reads; None: none."""
        return self.sum or self.min or self.max or self.latest

    @model_validator(mode="after")
    def _corrects_what_counts_once(self) -> MeterConfig:
        if self.once_per is not None:
            refuse_uncorrected(self.late_policy)
        return self

    @field_validator("unique")
    @classmethod
    def _is_a_text_of_events(cls, column: str | None) -> str | None:
        if column in OF_OUTCOMES - set(OUTCOME_TEXTS) | {FAMILY}:
            raise ValueError(f"an outcome has a {column} of its own; give the contract another x-weir-column for it")
        return column

    @field_validator("sum", "min", "max", "latest")
    @classmethod
    def _is_none_of_outcomes(cls, column: str | None) -> str | None:
        if column in OF_OUTCOMES:
            raise ValueError(f"an outcome has a {column} of its own; give the contract another x-weir-column for it")
        return column

    @field_validator("where")
    @classmethod
    def _is_of_events(cls, where: dict[str, Values] | None) -> dict[str, Values] | None:
        for column in where or {}:
            if column in OF_OUTCOMES - set(OUTCOME_TEXTS):
                raise ValueError(
                    f"it cannot name {column}, because every outcome has a column of that name; give the "
                    "contract another "
                    "x-weir-column for it"
                )
        return where

    @field_serializer("max_per_event")
    def _as_text(self, limit: Decimal | None) -> str | None:
        return None if limit is None else f"{limit:f}"

    def declaration(self, name: str) -> Declaration:
        """The meter as the applications use it."""
        expected = self.sum in REPORTED_COLUMNS if self.expected is None else self.expected
        once_per = None if self.once_per is None else self.once_per.rule()
        where = conditions(self.where or {})
        return Declaration(name, self.unit, self.sum, expected, self.within, where, once_per, self._of_period())

    def _of_period(self) -> PeriodMeter | None:
        for aggregation, column in self._sets:
            if column is not None and self.period is not None:
                return PeriodMeter(aggregation, column, self.period)
        return None


def refuse_uncorrected(policy: LatePolicy | None, aggregation: Aggregation | None = None) -> None:
    """Raises ValueError where stragglers of a meter with `once_per`, or with an `aggregation`, are dropped or held.

    The first outcome of a content replaces others: if nobody is billed for it, the content is on no bill. The quantity
    of a period depends on all of its members.
    """
    if policy in (None, LatePolicy.CORRECT):
        return
    if aggregation is not None:
        raise ValueError(
            f"late_policy is {policy}, but a meter with `{aggregation}` needs `correct`: its quantity depends on "
            "all members of the period"
        )
    raise ValueError(
        f"late_policy is {policy}, but a meter with `once_per` needs `correct`: a late outcome may be the one of "
        "its content that counts"
    )


def _of(meter: Declaration) -> MeterConfig:
    return MeterConfig(unit=meter.unit, count=None if meter.sums else "outcomes", sum=meter.sums, within=meter.within)


Meters = Annotated[dict[MeterName, MeterConfig], Field(min_length=1, max_length=MAX_METERS)]
DEFAULT_METERS: Mapping[str, MeterConfig] = {meter.name: _of(meter) for meter in DEFAULT}
DETAIL_METERS: Mapping[str, MeterConfig] = {meter.name: _of(meter) for meter in DETAILS}
"""Which a new installation has beside the default ones."""
BILLED_STATUSES = (Status.COMPLETED.value, Status.CANCELLED.value)
"""The outcomes that a new installation counts as requests: not failed or abandoned ones."""


def refuse_unfit(meters: Mapping[str, MeterConfig]) -> None:
    """Raises ValueError where `within` names no other meter of the same unit, or one that is within this one."""
    for name, meter in meters.items():
        whole, above = meter, set[str]()
        while whole.within is not None:
            above.add(whole.within)
            if whole.within in meters and meters[whole.within].period is not None:
                raise ValueError(f"{name}.within is {whole.within!r}, which bills whole periods: it has no parts")
            if whole.within not in meters or meters[whole.within].unit != meter.unit or name in above:
                raise ValueError(
                    f"{name}.within is {meter.within!r}, but must be another meter of the unit {meter.unit}, and not "
                    "one that is within this one"
                )
            if len(above) > len(meters):
                break
            whole = meters[whole.within]


def declarations(meters: Mapping[str, MeterConfig]) -> tuple[Declaration, ...]:
    """All of them, sorted by name: the order of keys in a configuration may change on its way."""
    return tuple(meter.declaration(name) for name, meter in sorted(meters.items()))
