"""What each meter counts, as the applications declared it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from metering.meters import Declaration, Meant, Meter, meaning, totals_of

REQUEST, TOKEN = "request", "token"
UNKNOWN_UNIT = "unit"

_METERS = "SELECT meter AS name, unit, sums, aggregation, period, within, is_declared FROM meters ORDER BY meter"


@dataclass(frozen=True)
class Meters:
    """Every meter that was ever declared, by name; usage of one that is declared no more is still shown."""

    known: tuple[Declaration, ...]
    declared: frozenset[str]

    def unit(self, meter: str) -> str:
        """What one of the meter is, in the singular."""
        return next((one.unit for one in self.known if one.name == meter), UNKNOWN_UNIT)

    def set_of(self, meter: str) -> str | None:
        """The period of which the meter bills a set of members; None: it has none."""
        periods = (one.of_period for one in self.known if one.name == meter)
        return next((of_period.period.value for of_period in periods if of_period is not None), None)

    @property
    def requests(self) -> tuple[str, ...]:
        """The meters that add up to the requests: of those that count outcomes, the ones of one unit.

        Each counts every outcome that is billed, so that those of two units would count each twice.
        """
        totals = totals_of(one for one in self.known if one.counts_outcomes)
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


def _meaning(row: dict[str, Any]) -> Meant:
    return meaning(row["unit"], row["sums"], row["aggregation"], row["period"])
