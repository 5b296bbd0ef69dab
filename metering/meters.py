"""Meters: what is counted and priced. A configuration declares them; the defaults are here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Generic, TypedDict, TypeVar

from metering.once_per import OncePer
from metering.period_meters import Aggregation, Period, PeriodMeter

T = TypeVar("T")

MAX_METERS = 50
Where = tuple[tuple[str, tuple[str | bool, ...]], ...]
"""Columns of events with their allowed values; an outcome meets all of these conditions."""
FAMILY = "family"
"""What `where` may ask for beside columns of contracts: an outcome that is a quantity of its own."""
MAX_CONDITIONS = 4
MAX_VALUES = 100
QUANTITY_DECIMALS = 6
LARGEST_QUANTITY = Decimal(10**17 - 1).scaleb(-QUANTITY_DECIMALS)
"""That one event may report: eleven digits before the point, six behind it."""


class Meter(StrEnum):
    """Names of the meters that are declared by default."""

    REQUESTS = "requests"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"
    CACHED_TOKENS = "cached_tokens"


@dataclass(frozen=True)
class Declaration:
    """What makes a quantity: the outcomes that are billed are counted, or what completions report is added up."""

    name: str
    unit: str
    """Of one, in the singular."""
    sums: str | None = None
    """The column of the journal that is added up; None: outcomes are counted."""
    is_expected: bool = False
    """Whether a completion that does not report it is counted as unmetered."""
    within: str | None = None
    """The meter that counts these units, too, so that a total of the unit leaves them out."""
    where: Where = ()
    """Which outcomes it counts; empty: all. It may change under one name: each row keeps the rule it was counted by."""
    once_per: OncePer | None = None
    """Which of several outcomes of one content it counts; None: each. It may change as `where` may."""
    of_period: PeriodMeter | None = None
    """How each period is billed by its members; None: outcomes are counted or added up by the minute."""

    @property
    def asks_family(self) -> bool:
        """Whether `where` names the family of outcomes; if not, a count takes only requests."""
        return any(column == FAMILY for column, _ in self.where)

    @property
    def column(self) -> str | None:
        """The column of events that it reads; None: it counts outcomes."""
        return self.sums if self.of_period is None else self.of_period.column

    @property
    def counts_outcomes(self) -> bool:
        """Whether it counts outcomes, regardless of what they report."""
        return self.column is None

    @property
    def reported(self) -> str | None:
        """The column of numbers that it reads; None: none."""
        return self.column if self.of_period is None or self.of_period.is_of_numbers else None

    @property
    def meaning(self) -> tuple[str, str | None, str | None, str | None]:
        """Unit, column, aggregation and period: what may not change under one name.

        Otherwise quantities of two meanings would be on one bill. A meter that counts outcomes or adds up a column has
        neither an aggregation nor a period.
        """
        if (of := self.of_period) is None:
            return self.unit, self.sums, None, None
        return self.unit, of.column, of.aggregation.value, of.period.value


class Meaning(TypedDict):
    """The fields of a declaration that make up `Declaration.meaning`."""

    unit: str
    sums: str | None
    of_period: PeriodMeter | None


def meaning_of(unit: str, column: str | None, aggregation: str | None, period: str | None) -> Meaning:
    """The inverse of `Declaration.meaning`."""
    if aggregation is None or period is None or column is None:
        return {"unit": unit, "sums": column, "of_period": None}
    of_period = PeriodMeter(Aggregation(aggregation), column, Period(period))
    return {"unit": unit, "sums": None, "of_period": of_period}


DEFAULT: tuple[Declaration, ...] = (
    Declaration(Meter.REQUESTS.value, "request"),
    Declaration(Meter.INPUT_TOKENS.value, "token", "input_tokens", is_expected=True),
    Declaration(Meter.OUTPUT_TOKENS.value, "token", "output_tokens", is_expected=True),
    Declaration(Meter.CACHED_TOKENS.value, "token", "cached_tokens", is_expected=True, within="input_tokens"),
)
"""Also what earlier releases metered, which kept no declaration."""

DETAILS: tuple[Declaration, ...] = tuple(
    Declaration(name, "token", name, within=whole)
    for whole, parts in {
        "input_tokens": ("cache_write_tokens", "audio_input_tokens", "image_input_tokens"),
        "output_tokens": ("reasoning_tokens", "audio_output_tokens", "image_output_tokens"),
    }.items()
    for name in parts
)
"""What a new installation meters besides, where nothing is declared: parts of the tokens, by the names that
OpenTelemetry's conventions have for them. Few completions report them, so nobody expects them of one."""

REPORTED_COLUMNS = tuple(meter.sums for meter in DEFAULT if meter.sums is not None)
"""Columns that every journal has for what completions report: whole numbers, null where nothing was reported."""


@dataclass(frozen=True)
class OfMeter(Generic[T]):
    """A value for `every` meter, except those that have their `own`."""

    every: T
    own: Mapping[str, T] = field(default_factory=dict)

    def of(self, meter: str) -> T:
        """The value of one meter, declared or not."""
        return self.own.get(meter, self.every)


def columns_of(meters: Iterable[Declaration]) -> tuple[str, ...]:
    """The columns of the journal whose numbers meters read, each once."""
    return tuple(dict.fromkeys(meter.reported for meter in meters if meter.reported is not None))


def conditions_of(meters: Iterable[Declaration]) -> tuple[str, ...]:
    """The columns that a meter's `where` names, or whose different values it counts, each once."""
    return tuple(dict.fromkeys(column for meter in meters for column in _texts_read(meter)))


def _texts_read(meter: Declaration) -> Iterator[str]:
    yield from (column for column, _ in meter.where)
    if meter.of_period is not None and not meter.of_period.is_of_numbers:
        yield meter.of_period.column


def texts_of(values: Iterable[str | bool]) -> list[str]:
    """Values of a condition as texts: a boolean is true or false, as in JSON."""
    return [str(value).lower() if isinstance(value, bool) else value for value in values]


def totals_of(meters: Iterable[Declaration]) -> Mapping[str, tuple[str, ...]]:
    """By unit the meters whose sum is a total of it; meters of a period have no total."""
    totals: dict[str, tuple[str, ...]] = {}
    for meter in meters:
        if meter.within is None and meter.of_period is None:
            totals[meter.unit] = (*totals.get(meter.unit, ()), meter.name)
    return totals
