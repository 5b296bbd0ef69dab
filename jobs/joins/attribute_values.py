"""The values of price attributes for outcomes: a column's text, or the band of a quantity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

import polars as pl

from jobs.joins.memory import INCLUDED, condition_of, quantity_of, text_of
from metering.contracts.includes import wholes_of
from metering.meters import QUANTITY_DECIMALS
from metering.price_attributes import PriceAttribute

_TOTAL = pl.Decimal(38, QUANTITY_DECIMALS)


def conventions_of(outcomes: pl.DataFrame, attributes: Iterable[PriceAttribute]) -> Sequence[str]:
    """Which quantities are part of others, by the conventions of these outcomes (INCLUDED), if any attribute asks."""
    if INCLUDED not in outcomes.columns or not any(attribute.each_unit_once for attribute in attributes):
        return ()
    return outcomes[INCLUDED].drop_nulls().unique().sort().to_list()


def value_of(attribute: PriceAttribute, conventions: Sequence[str] = ()) -> pl.Expr:
    """Outcomes (`resolve`) with the columns of their accounts (`text_of`) → their value of the attribute, as text.

    Null where they have none. `conventions`: those of these outcomes (`conventions_of`).
    """
    if attribute.is_of_account:
        return pl.col(text_of(attribute.name))
    if not attribute.bands:
        return pl.col(condition_of(attribute.name))
    quantity = _reported(attribute.of, conventions if attribute.each_unit_once else ())
    *bounded, (last, _) = attribute.bands
    band: pl.Expr = pl.when(quantity.is_not_null()).then(pl.lit(last))
    for name, bound in reversed(bounded):
        band = pl.when(quantity <= pl.lit(bound, _TOTAL)).then(pl.lit(name)).otherwise(band)
    return band


def _reported(columns: Sequence[str], conventions: Sequence[str]) -> pl.Expr:
    """The sum of these columns of the completion; null where it reports none of them.

    As for meters, a number below 0 is none (`quantities`). A column that a convention has within another of them, which
    is reported, too, is left out.
    """
    quantities = {column: pl.col(quantity_of(column)) for column in columns}
    reported = {column: pl.when(quantity >= 0).then(quantity.cast(_TOTAL)) for column, quantity in quantities.items()}
    total = pl.lit(0, _TOTAL)
    for column, quantity in reported.items():
        within = [
            (pl.col(INCLUDED) == text) & reported[whole].is_not_null()
            for text in conventions
            for whole in wholes_of(text, column)
            if whole in reported
        ]
        is_counted = ~pl.any_horizontal(within).fill_null(value=False) if within else pl.lit(value=True)
        total += pl.when(is_counted).then(quantity).fill_null(Decimal(0))
    return pl.when(pl.any_horizontal(part.is_not_null() for part in reported.values())).then(total)
