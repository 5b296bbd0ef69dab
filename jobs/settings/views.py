"""The settings `views` and `windows`: what analytics measures, and the windows that `weir view` shows by default."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from jobs.settings.conditions import PlainName, Values, conditions
from metering.meters import MAX_CONDITIONS
from metering.once_per import DURATION
from metering.view_durations import minutes_of
from metering.views import RANKS, Aggregate, Measure, View

MAX_VIEWS = 16
MAX_KEYS = 6
MAX_MEASURES = 32
MAX_TOP = 100
DEFAULT_TOP = 10
MAX_SERIES = 2_000
"""That all gauges of views together are at most: each is stored at every scrape."""
NO_LABELS = ("account", "user_id")
"""Keys that no metric has as a label."""
RESERVED = ("window_start", "window_end")
"""Columns that each row of `weir view` has."""


class Counted(BaseModel):
    """`count` of a measure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    where: dict[PlainName, Values] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_CONDITIONS,
        description="Which outcomes it takes, by text and boolean columns, as `where` of a meter. Left out: all.",
    )


class Selection(Counted):
    """A measure's column, and which outcomes it takes."""

    of: PlainName = Field(description="The column of outcomes: a field of the events, or account, plan or outcome.")


class TopSelection(Selection):
    """`top` of a measure."""

    k: int = Field(default=DEFAULT_TOP, ge=1, le=MAX_TOP, description="How many values.")


class MeasureConfig(BaseModel):
    """One measure of a view: exactly one of these. `count` and `gaps` alone are of all outcomes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: Counted | None = Field(default=None, description="How many outcomes: `count`, or with a `where`.")
    sum: PlainName | Selection | None = Field(default=None, description="The sum of a column of numbers. Exact.")
    min: PlainName | Selection | None = Field(default=None, description="Its least number. Exact.")
    max: PlainName | Selection | None = Field(default=None, description="Its greatest number. Exact.")
    distinct: PlainName | Selection | None = Field(
        default=None, description="How many different values a column has: an estimate (HyperLogLog)."
    )
    percentiles: PlainName | Selection | None = Field(
        default=None, description="p50, p90, p95 and p99 of a column of numbers: estimates (KLL)."
    )
    top: PlainName | TopSelection | None = Field(
        default=None, description="The most frequent values of a column with their counts: estimates (frequent items)."
    )

    gaps: Counted | None = Field(
        default=None,
        description="p50, p90, p95 and p99 of the time from an outcome to the next one of a window, in milliseconds: "
        "`gaps`, or with a `where`. Exact up to 1,024 different times of a minute, else off by less than 66 ms.",
    )

    @model_validator(mode="after")
    def _is_one(self) -> MeasureConfig:
        if len(self._given) != 1:
            raise ValueError(f"a measure is exactly one of {', '.join(Aggregate)}")
        return self

    @property
    def _given(self) -> dict[Aggregate, Any]:
        found = {aggregate: getattr(self, aggregate) for aggregate in Aggregate}
        return {aggregate: value for aggregate, value in found.items() if value is not None}

    def measure(self, name: str) -> Measure:
        """The same as analytics uses it."""
        ((aggregate, given),) = self._given.items()
        if isinstance(given, str):
            given = TopSelection(of=given) if aggregate is Aggregate.TOP else Selection(of=given)
        where = conditions(given.where or {})
        k = given.k if isinstance(given, TopSelection) else 0
        return Measure(name, aggregate, getattr(given, "of", None), where, k)


def _name_alone(given: Any) -> Any:
    if isinstance(given, str) and given not in (Aggregate.COUNT.value, Aggregate.GAPS.value):
        raise ValueError("a measure is `count`, `gaps`, or an aggregate of a column, such as {sum: output_tokens}")
    return {given: {}} if isinstance(given, str) else given


MeasureGiven = Annotated[
    MeasureConfig, BeforeValidator(_name_alone, json_schema_input_type=Literal["count", "gaps"] | MeasureConfig)
]


class GaugesConfig(BaseModel):
    """`gauges` of a view."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    top: int = Field(ge=1, le=MAX_TOP, description="How many keys: the first by the view's first count or sum.")


class ViewConfig(BaseModel):
    """One view of `views`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    of: Literal["outcomes"] = Field(
        description="What is measured: outcomes of requests, matched or abandoned, once each."
    )
    by: tuple[PlainName, ...] = Field(
        default=(),
        max_length=MAX_KEYS,
        description=f"Its keys: at most {MAX_KEYS} text or boolean columns of outcomes.",
    )
    measures: dict[PlainName, MeasureGiven] = Field(
        min_length=1, max_length=MAX_MEASURES, description=f"1 to {MAX_MEASURES} measures by name."
    )

    gauges: GaugesConfig | None = Field(
        default=None,
        description="Which keys are exposed as Prometheus gauges (`weir_view`), of the last five minutes before the "
        f"frontier. All views together expose at most {MAX_SERIES:,} series. Left out: none.",
    )

    @model_validator(mode="after")
    def _ranks_gauges(self) -> ViewConfig:
        if self.gauges is None:
            return self
        if self.ranks_by is None:
            raise ValueError("gauges are of the first keys by a count or a sum: give the view one")
        if people := [key for key in self.by if key in NO_LABELS]:
            raise ValueError(
                f"gauges name no customer and no person, which Prometheus would keep: leave {', '.join(people)} out of "
                "`by`, or `gauges` out of the view"
            )
        return self

    @property
    def ranks_by(self) -> str | None:
        """The measure by which its gauges are chosen."""
        return next((name for name, given in self.measures.items() if given.count or given.sum), None)

    @property
    def series(self) -> int:
        """How many series its gauges are at most: percentiles are several, a top is none."""
        if self.gauges is None:
            return 0
        of_key = (
            len(RANKS) if given.percentiles or given.gaps else 0 if given.top else 1 for given in self.measures.values()
        )
        return self.gauges.top * sum(of_key)

    @model_validator(mode="after")
    def _names_columns_once(self) -> ViewConfig:
        names = [*RESERVED, *self.by, *self.measures]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"{', '.join(twice)} would be a column twice: keys and measures need names of their own, and "
                f"{' and '.join(RESERVED)} are columns of every view"
            )
        return self

    def view(self, name: str) -> View:
        """The same as analytics uses it."""
        return View(name, self.by, tuple(given.measure(measure) for measure, given in self.measures.items()))


Views = Annotated[dict[PlainName, ViewConfig], Field(max_length=MAX_VIEWS)]


def _whole_minutes(given: Any) -> Any:
    if isinstance(given, str):
        minutes_of(given)
    return given


WindowLength = Annotated[str, Field(pattern=f"^{DURATION}$"), BeforeValidator(_whole_minutes)]


class HopConfig(BaseModel):
    """`hop` of `windows`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: WindowLength = Field(description="How long a window is: whole minutes up to a day, such as PT5M.")
    every: WindowLength = Field(description="How often one begins, at most `size`; the same for tumbling windows.")

    @model_validator(mode="after")
    def _meets(self) -> HopConfig:
        if minutes_of(self.every) > minutes_of(self.size):
            raise ValueError(
                f"every is {self.every}, but must be at most size, which is {self.size}: else some events would be in "
                "no window"
            )
        return self


class WindowsConfig(BaseModel):
    """`windows`: what `weir view` shows if no window is named."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hop: HopConfig | None = Field(
        default=None, description="The windows of `weir view NAME`; left out: PT5M, every PT5M."
    )
    slide: WindowLength | None = Field(
        default=None, description="The window of `weir view NAME --sliding`: the last so long; left out: PT1H."
    )

    def lengths(self) -> tuple[timedelta, timedelta]:
        """Size and hop by default."""
        if self.hop is None:
            return minutes_of("PT5M"), minutes_of("PT5M")
        return minutes_of(self.hop.size), minutes_of(self.hop.every)

    def sliding(self) -> timedelta:
        """The length of the sliding window by default."""
        return minutes_of(self.slide or "PT1H")


def views_of(views: Mapping[str, ViewConfig]) -> tuple[View, ...]:
    """All of them, by name."""
    return tuple(given.view(name) for name, given in sorted(views.items()))
