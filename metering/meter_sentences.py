"""A meter in one plain English sentence, made from its declaration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metering.meters import FAMILY, Declaration, texts_of
from metering.once_per import duration_of
from metering.period_meters import Aggregation


def explanation(
    meter: Declaration, unmetered_share: float, *, is_declared: bool = True, parts: Sequence[str] = ()
) -> str:
    """What the meter counts or adds up, in which unit it is priced, and what becomes of a request that lacks it.

    `parts`: the declared meters that are directly within it, whose prices bill units of it.

    `unmetered_share`: the part of all requests above which the alert UnmeteredUsage is raised. A meter that is declared
    no more is explained by what it meant; which outcomes it looked at may have changed meanwhile.
    """
    outcomes = _outcomes(meter) if is_declared else "outcomes"
    clauses = [f"{meter.name} {_quantity(meter, outcomes)}, priced per {meter.unit} by plan and model", *_within(meter)]
    clauses += _of_period(meter)
    clauses += [*_once(meter), *_minus(meter, parts)] if is_declared else []
    clauses += _where_missing(meter, unmetered_share) if is_declared else ["it is declared no more"]
    return "; ".join(clauses) + "."


def _quantity(meter: Declaration, outcomes: str) -> str:
    if (of := meter.of_period) is not None:
        return f"{_BILLS[of.aggregation].format(column=of.column, outcomes=outcomes)} in each {of.period} and model"
    if meter.sums is None:
        return f"counts {outcomes} as 1 {meter.unit}"
    return f"adds up {meter.sums} of {outcomes}"


_BILLS = {
    Aggregation.UNIQUE: "counts the different values of {column} of {outcomes}",
    Aggregation.MIN: "bills the least {column} of {outcomes}",
    Aggregation.MAX: "bills the greatest {column} of {outcomes}",
    Aggregation.LATEST: "bills the {column} of the latest of {outcomes}",
}


def _of_period(meter: Declaration) -> Iterator[str]:
    if meter.of_period is not None:
        period = meter.of_period.period
        yield f"a {period} of the account's calendar is billed at the price of its start"
        yield "it has no dimensions and no minutes"
        yield f"late or reversed usage has the whole {period} computed again"


def _outcomes(meter: Declaration) -> str:
    """Which outcomes it looks at."""
    conditions = [f"{column} is {_one_of(texts_of(values))}" for column, values in meter.where if column != FAMILY]
    noun = "event of the family quantity" if meter.asks_family else "outcome"
    return f"each {noun} whose {' and '.join(conditions)}" if conditions else f"each {noun}"


def _one_of(values: Sequence[str]) -> str:
    *others, last = values
    return f"{', '.join(others)} or {last}" if others else last


def _within(meter: Declaration) -> Iterator[str]:
    if meter.within is not None:
        yield f"{meter.within} counts these units, too, so totals of the unit leave them out"
        yield (
            f"where an event's convention has them within {meter.within}, the price of {meter.name} bills them, and "
            f"without one {meter.within} does"
        )
        yield "where it has them beside, both bill what they report"


def _minus(meter: Declaration, parts: Sequence[str]) -> Iterator[str]:
    if parts:
        bill = "bills at its own price" if len(parts) == 1 else "bill at their own prices"
        yield f"units within it that {_listed(parts)} {bill} are left out of what {meter.name} bills"


def _listed(names: Sequence[str]) -> str:
    *others, last = sorted(names)
    return f"{', '.join(others)} and {last}" if others else last


def _once(meter: Declaration) -> Iterator[str]:
    if (rule := meter.once_per) is not None:
        within = duration_of(rule.within_seconds)
        yield (
            f"of an account's outcomes with one {rule.column} only the first in each {within} counts: the stream "
            "counts each, and an audit of everything takes the others back"
        )


def _where_missing(meter: Declaration, unmetered_share: float) -> Iterator[str]:
    if meter.is_expected:
        yield f"more than {unmetered_share * 100:g} % of requests without it raise UnmeteredUsage"
    elif meter.of_period is not None:
        yield f"an outcome without {meter.of_period.column} counts for nothing"
    elif meter.sums is not None:
        yield "a request without it adds nothing"
