"""Outcomes → the quantity of each meter: what the declared meters count or sum over the outcomes they select."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from jobs.joins.memory import REPORTED, Schema, condition_of, quantity_of
from metering.meters import Declaration, texts_of
from metering.vocabulary import Family, Outcome, Status

BILLED = (Outcome.MATCHED.value, Outcome.ABANDONED.value)
"""Outcomes that are counted, and whose quantities have a price."""
REPORTING = (Outcome.MATCHED.value, Outcome.ORPHANED.value)
"""Outcomes with a report of a completion. Superseded outcomes bill nothing."""

QUANTITIES: Schema = {"row": pl.UInt32(), "meter": pl.String(), "quantity": REPORTED}


def quantities(outcomes: pl.DataFrame, meters: Iterable[Declaration]) -> pl.DataFrame:
    """Outcomes (`resolve`) → QUANTITIES: the number of the outcome's row, a meter and its quantity, by row and meter.

    Of a meter that a completion of a match should report and did not, the quantity is null; other meters that are not
    reported have no row. An outcome that is not as a meter's `where` says is nothing of that meter.

    A meter of a period has no quantity per outcome (`members`).

    A quantity event is no request: meters that count outcomes omit it, unless their `where` selects that family,
    and it need not report what other events do.
    """
    rows = outcomes.with_row_index("row")
    is_of_request = pl.col("family").ne_missing(Family.QUANTITY.value)
    is_matched = (pl.col("outcome") == Outcome.MATCHED.value) & is_of_request
    parts = [pl.DataFrame(schema=QUANTITIES)]
    for meter in sorted(meters, key=lambda meter: meter.name):
        if meter.of_period is not None:
            continue
        if meter.sums is None:
            is_meant = pl.lit(value=True) if meter.asks_family else is_of_request
            has_one, quantity = pl.col("outcome").is_in(list(BILLED)) & is_meant, pl.lit(1)
        else:
            is_expected = is_matched if meter.is_expected else pl.lit(False)
            # What was accepted before it was a quantity may be below 0: that is none.
            reported = pl.col(quantity_of(meter.sums))
            quantity = pl.when(reported >= 0).then(reported)
            has_one = (quantity.is_not_null() | is_expected) & pl.col("outcome").is_in(list(REPORTING))
        parts.append(
            rows.filter(has_one & is_counted(meter)).select(
                "row", pl.lit(meter.name).alias("meter"), quantity.cast(REPORTED).alias("quantity")
            )
        )
    # The parts are in the order of their meters: a stable sort of numbers, a tenth of one by row and name.
    return pl.concat(parts).sort("row", maintain_order=True)


def is_counted(meter: Declaration) -> pl.Expr:
    """Whether an outcome has, in each column of the meter's `where`, one of its values. Null is none of them.

    A completion that names no status, or one that is none of Weir's, has completed (as in `ranking.merit`).
    """
    conditions = []
    for column, values in meter.where:
        value, allowed = pl.col(condition_of(column)), texts_of(values)
        has_one = value.is_in(allowed)
        if column == "status" and Status.COMPLETED in allowed:
            is_other = value.is_in(list(Status)).not_().fill_null(value=True)
            has_one |= is_other & pl.col("outcome").is_in(list(REPORTING))
        conditions.append(has_one)
    return pl.all_horizontal(pl.lit(value=True), *conditions).fill_null(value=False)
