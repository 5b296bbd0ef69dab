"""Which columns a view can read, by the contracts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metering.contracts.model import NUMBERS, Contract, Kind
from metering.views import Aggregate, View
from metering.vocabulary import Family

OF_OUTCOMES = ("account", "user_id", "model", "status", "outcome", "plan")
"""Texts that every outcome has, by any contract."""
OF_REQUESTS = (Family.REQUEST, Family.COMPLETION, Family.BOTH)
REPORTING = (Family.COMPLETION, Family.BOTH)
TEXTS = (Kind.TEXT, Kind.BOOLEAN)
OF_NUMBERS = (Aggregate.SUM, Aggregate.MIN, Aggregate.MAX, Aggregate.PERCENTILES)


def refuse_unknown_columns(views: Iterable[View], contracts: Mapping[str, Contract]) -> None:
    """Raises ValueError where a view reads a column that no contract of a request or completion fills, or of the wrong
    kind: keys, conditions, distinct and top read texts and booleans, the others numbers that completions report.
    """
    listed = list(views)
    if not listed:
        return
    of_texts, booleans, numbers = columns_by_kind(contracts)
    texts = of_texts | booleans
    for view in listed:
        for key in view.by:
            _refuse(f"views.{view.name}.by", key, texts, "texts and booleans")
        for measure in view.measures:
            place = f"views.{view.name}.measures.{measure.name}"
            for column, _ in measure.where:
                _refuse(f"{place}.where", column, texts, "texts and booleans")
            if measure.column is not None and measure.aggregate in OF_NUMBERS:
                _refuse(place, measure.column, numbers, "numbers that completions report")
            elif measure.column is not None:
                _refuse(place, measure.column, texts | numbers, "columns of outcomes")


def columns_by_kind(contracts: Mapping[str, Contract]) -> tuple[set[str], set[str], set[str]]:
    """What outcomes have by the contracts: columns of texts, of booleans, and of numbers that completions report."""
    texts = {*_columns(contracts, OF_REQUESTS, (Kind.TEXT,)), *OF_OUTCOMES}
    booleans = set(_columns(contracts, OF_REQUESTS, (Kind.BOOLEAN,)))
    return texts, booleans, set(_columns(contracts, REPORTING, NUMBERS))


def _columns(contracts: Mapping[str, Contract], families: Iterable[Family], kinds: Iterable[Kind]) -> list[str]:
    families, kinds = tuple(families), tuple(kinds)
    of_families = [contract for contract in contracts.values() if contract.family in families]
    return [field.column for contract in of_families for field in contract.fields if field.kind in kinds]


def _refuse(place: str, column: str, offered: Iterable[str], what: str) -> None:
    if column not in offered:
        raise ValueError(f"{place} names {column}, but there it can name {', '.join(sorted(offered))}: the {what}")
