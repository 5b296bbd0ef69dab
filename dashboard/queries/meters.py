"""What each meter counts, as the applications declared it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from metering.meters import Declaration, Meaning, Meter, meaning_of, totals_of

REQUEST, TOKEN = "request", "token"
UNKNOWN_UNIT = "unit"

_METERS = "SELECT meter AS name, unit, sums, aggregation, period, within, is_declared FROM meters ORDER BY meter"


@dataclass(frozen=True)
class Meters:
    """Every meter that was ever declared, by name; usage of a meter that is no longer declared is still shown."""

    known: tuple[Declaration, ...]
    declared: frozenset[str]

    def unit(self, meter: str) -> str:
        """What one of the meter is, in the singular."""
        return next((known_meter.unit for known_meter in self.known if known_meter.name == meter), UNKNOWN_UNIT)

    def whole_period(self, meter: str) -> str | None:
        """The period (`day`, `month`) that the meter bills as a whole; None: it is billed by the minute."""
        periods = (known_meter.of_period for known_meter in self.known if known_meter.name == meter)
        return next((of_period.period.value for of_period in periods if of_period is not None), None)

    @property
    def requests(self) -> tuple[str, ...]:
        """The meters whose sum is the number of requests: of the meters that count outcomes, those of one unit.

        Each counts every outcome that is billed, so that those of two units would count each twice.
        """
        totals = totals_of(known_meter for known_meter in self.known if known_meter.counts_outcomes)
        return totals.get(REQUEST) or next(iter(totals.values()), ())

    @property
    def tokens(self) -> tuple[str, ...]:
        """The meters that add up to the tokens."""
        return totals_of(self.known).get(TOKEN, ())

    def shown(self, used: Iterable[str]) -> tuple[str, ...]:
        """The meters that a table has columns for: those with usage in it, and of the default ones the declared."""
        return in_order({*used, *(meter for meter in Meter if meter in self.declared)})


def in_order(meters: Iterable[str]) -> tuple[str, ...]:
    """Meters as columns stand: the default ones first, then by name."""
    places = {meter.value: place for place, meter in enumerate(Meter)}
    return tuple(sorted({str(meter) for meter in meters}, key=lambda meter: (places.get(meter, len(places)), meter)))


def meters_of(cursor: psycopg.Cursor[dict[str, Any]]) -> Meters:
    """The meters as the caller's transaction sees them."""
    rows = cursor.execute(_METERS).fetchall()
    known = tuple(Declaration(row["name"], within=row["within"], **_meaning(row)) for row in rows)
    return Meters(known, frozenset(row["name"] for row in rows if row["is_declared"]))


def _meaning(row: dict[str, Any]) -> Meaning:
    return meaning_of(row["unit"], row["sums"], row["aggregation"], row["period"])
