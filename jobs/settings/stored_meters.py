"""Meters as the applications store them beside what they decided: JSON documents, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobs.settings.conditions import conditions
from metering.meters import DEFAULT, Declaration
from metering.once_per import OncePer, duration_of, seconds_of
from metering.period_meters import Aggregation, Period, PeriodMeter


def stored(meters: Iterable[Declaration]) -> dict[str, Any]:
    """What decides an outcome's quantities, as JSON."""
    return {
        meter.name: _stored_source(meter)
        | ({"within": meter.within} if meter.within is not None else {})
        | ({"where": {column: list(values) for column, values in meter.where}} if meter.where else {})
        | ({"once_per": _stored_once(meter.once_per)} if meter.once_per is not None else {})
        for meter in meters
    }


def _stored_source(meter: Declaration) -> dict[str, Any]:
    """What a meter reads. One of a period has no `sums`: an earlier release would take it for a count of outcomes."""
    if (of := meter.of_period) is None:
        return {"unit": meter.unit, "sums": meter.sums, "expected": meter.is_expected}
    return {"unit": meter.unit, "aggregation": of.aggregation.value, "column": of.column, "period": of.period.value}


def conditions_stored(meters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The conditions in what `stored` made, by meter that has some."""
    return {name: meter["where"] for name, meter in meters.items() if "where" in meter}


def _stored_once(rule: OncePer) -> dict[str, str]:
    return {"column": rule.column, "within": duration_of(rule.within_seconds)}


def once_stored(meters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The `once_per` in what `stored` made, by meter that has it."""
    return {name: meter["once_per"] for name, meter in meters.items() if "once_per" in meter}


def of_period_stored(meters: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The columns whose different values are counted, in what `stored` made, by meter."""
    return {name: meter["column"] for name, meter in meters.items() if meter.get("aggregation") == Aggregation.UNIQUE}


def restored(document: Mapping[str, Mapping[str, Any]] | None) -> tuple[Declaration, ...]:
    """The inverse of `stored`; None is from releases that had only the default meters."""
    if document is None:
        return DEFAULT
    return tuple(_restored(name, stored_of) for name, stored_of in document.items())


def _restored(name: str, stored_of: Mapping[str, Any]) -> Declaration:
    once, of_period = stored_of.get("once_per"), None
    if "aggregation" in stored_of:
        aggregation, period = Aggregation(stored_of["aggregation"]), Period(stored_of["period"])
        of_period = PeriodMeter(aggregation, stored_of["column"], period)
    return Declaration(
        name,
        stored_of["unit"],
        stored_of.get("sums"),
        stored_of.get("expected", False),
        stored_of.get("within"),
        conditions(stored_of.get("where", {})),
        None if once is None else OncePer(once["column"], seconds_of(once["within"])),
        of_period,
    )
