"""Events that became several rows, on the driver: the first element decides for the record, the others follow.

Decisions about a record (reception, repeats, offsets of a commit) are made for one of its rows. So all
elements of an event are accepted or none, and a commit never has only some of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from jobs.journal.elements import has_elements
from metering.contracts.unnest import COLUMN

TRANSACTION = "elements"
"""Of the journal: how many further elements there are; its rows without them are one for each record."""
ELEMENTS = "further elements"
"""On the way into the journal: how many of them a record has. No contract can declare a column of that name."""
PLACE = ("partition", "offset")


@dataclass(frozen=True)
class Elements:
    """The further elements of a batch's records: what of their rows is not that of the record's first."""

    others: pl.DataFrame
    """PLACE, `element` from 2 on, `identity` and the columns of contracts."""

    def __len__(self) -> int:
        return len(self.others)


def split(rows: pl.DataFrame, fields: Iterable[str]) -> tuple[pl.DataFrame, Elements]:
    """Rows of `EventValidator.schema` → one for each record, with ELEMENTS, and the further elements.

    `fields`: the columns that the contracts' fields fill.
    """
    if not has_elements(rows.schema):
        return rows.with_columns(pl.lit(0, pl.Int64).alias(ELEMENTS)), Elements(rows.clear().select(PLACE))
    is_further = (pl.col(COLUMN) > 1).fill_null(value=False)
    names = dict.fromkeys((*PLACE, "identity", *fields))
    others = rows.filter(is_further).select(*names)
    counted = others.group_by(PLACE).agg(pl.len().cast(pl.Int64).alias(ELEMENTS))
    firsts = rows.filter(~is_further).join(counted, on=PLACE, how="left", maintain_order="left")
    return firsts.with_columns(pl.col(ELEMENTS).fill_null(0)), Elements(others)


def with_room(records: pl.DataFrame, first_lsn: int) -> pl.DataFrame:
    """Records (reason, ELEMENTS) with their `lsn`, in their order, each with room for its further elements behind it.

    What is rejected needs no room: its event stays whole. So it is no element, and has no column of one.
    """
    is_whole = pl.col("reason").is_not_null()
    size = pl.when(is_whole).then(1).otherwise(pl.col(ELEMENTS) + 1)
    return records.select((pl.lit(first_lsn, pl.Int64) + size.cum_sum() - size).alias("lsn"), pl.all())


def rejected_whole(records: pl.DataFrame, fields: Iterable[str]) -> pl.DataFrame:
    """Records where a rejected one has no columns of its first element (`fields`), and is not an element."""
    if not has_elements(records.schema):
        return records
    is_blank = pl.col("reason").is_not_null() & (pl.col(COLUMN) > 0).fill_null(value=False)
    blank = [pl.when(~is_blank).then(name).alias(name) for name in fields if name != COLUMN]
    element = pl.when(is_blank).then(0).otherwise(pl.col(COLUMN).fill_null(0)).cast(pl.Int32).alias(COLUMN)
    return records.with_columns(*blank, element)


def with_elements(records: pl.DataFrame, elements: Elements) -> pl.DataFrame:
    """Records with their disposition and lsn, and the further elements of those that were not rejected, by lsn."""
    if not len(elements):
        return records
    own = [name for name in elements.others.columns if name not in PLACE]
    of_first = records.filter(pl.col("reason").is_null()).drop(*own, "key", "value")
    others = elements.others.join(of_first, on=PLACE, how="inner")
    others = others.with_columns(pl.col("lsn") + pl.col(COLUMN).cast(pl.Int64) - 1)
    return pl.concat([records, others], how="diagonal").sort("lsn")
