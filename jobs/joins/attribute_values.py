"""The values of price attributes for outcomes: a column's text, or the band of a quantity."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import polars as pl

from jobs.joins.memory import condition_of, quantity_of, text_of
from metering.meters import QUANTITY_DECIMALS
from metering.price_attributes import PriceAttribute

_TOTAL = pl.Decimal(38, QUANTITY_DECIMALS)


def value_of(attribute: PriceAttribute) -> pl.Expr:
    """Outcomes (`resolve`) with the columns of their accounts (`text_of`) → their value of the attribute, as text.

    Null where they have none (`PriceAttribute.band_of`).
    """
    if attribute.is_of_account:
        return pl.col(text_of(attribute.name))
    if not attribute.bands:
        return pl.col(condition_of(attribute.name))
    quantity = _reported(attribute.of)
    *bounded, (last, _) = attribute.bands
    band: pl.Expr = pl.when(quantity.is_not_null()).then(pl.lit(last))
    for name, bound in reversed(bounded):
        band = pl.when(quantity <= pl.lit(bound, _TOTAL)).then(pl.lit(name)).otherwise(band)
    return band


def _reported(columns: Sequence[str]) -> pl.Expr:
    """The sum of these columns of the completion; null where it reports none of them.

    As for meters, a number below 0 is none (`quantities`).
    """
    quantities = map(pl.col, map(quantity_of, columns))
    reported = [pl.when(quantity >= 0).then(quantity.cast(_TOTAL)) for quantity in quantities]
    total = reported[0].fill_null(Decimal(0))
    for part in reported[1:]:
        total += part.fill_null(Decimal(0))
    return pl.when(pl.any_horizontal(part.is_not_null() for part in reported)).then(total)
