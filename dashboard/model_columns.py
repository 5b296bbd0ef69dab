"""What the measures of a view say of a model: how much it is used, how often it fails, how fast it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from metering.views import OF_RANKS, Aggregate, Measure, View
from metering.vocabulary import Status


@dataclass(frozen=True)
class Roles:
    """Names of measures; None, or none, where a view has no such measure."""

    requests: str | None
    errors: str | None
    users: str | None
    percentiles: tuple[str, ...]
    sums: tuple[str, ...]


def roles_of(view: View) -> Roles:
    """Requests count all outcomes, errors those of a status that is not `completed`; users are the first `distinct`.

    Percentiles of columns come before those of gaps: a page draws the first, and means how fast a model is.
    """
    measures = view.measures
    return Roles(
        requests=_first(measure for measure in measures if measure.aggregate is Aggregate.COUNT and not measure.where),
        errors=_first(
            measure for measure in measures if measure.aggregate is Aggregate.COUNT and _is_of_failures(measure)
        ),
        users=_first(measure for measure in measures if measure.aggregate is Aggregate.DISTINCT and not measure.where),
        percentiles=_all(measure for aggregate in OF_RANKS for measure in measures if measure.aggregate is aggregate),
        sums=_all(measure for measure in measures if measure.aggregate is Aggregate.SUM),
    )


def change(now: Decimal | int | None, before: Decimal | int | None) -> float | None:
    """In percent of before; None where that is nothing."""
    if now is None or not before:
        return None
    return float((Fraction(now) - Fraction(before)) / Fraction(before) * 100)


def share(part: Decimal | int | None, whole: Decimal | int | None) -> float | None:
    """In percent of the whole; None where that is nothing."""
    if part is None or not whole:
        return None
    return float(Fraction(part) / Fraction(whole) * 100)


def _is_of_failures(measure: Measure) -> bool:
    return [column for column, _ in measure.where] == ["status"] and Status.COMPLETED not in measure.where[0][1]


def _first(measures: Iterable[Measure]) -> str | None:
    return next((measure.name for measure in measures), None)


def _all(measures: Iterable[Measure]) -> tuple[str, ...]:
    return tuple(measure.name for measure in measures)
