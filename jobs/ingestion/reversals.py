"""Whose reversals count: money is taken back only by sources that the configuration lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from jobs.ingestion.source_patterns import is_listed
from jobs.ingestion.violations import Rule
from metering.contracts.model import Contract
from metering.contracts.reversals import METER, QUANTITY
from metering.vocabulary import Family, Reason


def rules_of(contract: Contract, events: pl.DataFrame, sources: Sequence[str] | None) -> Iterator[Rule]:
    """The rules for a reversal beside its contract: its source is listed, and a quantity has a meter.

    `sources`: patterns (`source_patterns`); None: unknown, so no reversal is refused for its source.
    """
    if contract.family is not Family.REVERSAL:
        return
    if sources is not None:
        is_unlisted = ~is_listed(events["source"], sources)
        allowed = "a source that reversal.sources of ingestion lists"
        yield Rule(pl.lit(is_unlisted), Reason.UNLISTED_REVERSAL, f"{contract.type} /source", allowed)
    fields = {field.column: field for field in contract.fields}
    meter, quantity = fields.get(METER), fields.get(QUANTITY)
    if quantity is not None:
        has_no_meter = pl.lit(value=True) if meter is None else pl.col(meter.pointer).fill_null("") == ""
        yield Rule(
            pl.col(quantity.pointer).is_not_null() & has_no_meter,
            quantity.reason,
            f"{contract.type} {quantity.pointer}",
            "only beside the meter of which so much is taken back",
        )
