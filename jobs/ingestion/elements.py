"""Records that became several rows, on the driver: the first one decides for the record, the others follow.

Decisions about a record (its reception, offsets of a commit) are made for one of its rows, and those about an event
(repeats) for its first element. All rows of a record are accepted or none, and a commit never has only some of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from jobs.journal.elements import event_place, has_elements, place_in_event
from jobs.runtime.kafka.records import PLACE
from metering.contracts.unnest import COLUMN

TRANSACTION = "elements"
"""Of the journal: how many further rows its records have; its rows without them are one for each record."""
ELEMENTS = "further elements"
"""On the way into the journal: how many of them an event has. No contract can declare a column of that name."""
_EVENT = "place of the event"


@dataclass(frozen=True)
class Elements:
    """The further rows of a batch's records, which follow what is decided of the first."""

    events: pl.DataFrame
    """The further events of records that are batches: all columns."""
    others: pl.DataFrame
    """Further elements of events, what of their rows is not that of the event's first: PLACE, `element`, `identity` and
    the columns of contracts."""

    def __len__(self) -> int:
        return len(self.events) + len(self.others)

    def estimated_bytes(self) -> int:
        """What they take."""
        return int(self.events.estimated_size() + self.others.estimated_size())


def split(rows: pl.DataFrame, fields: Iterable[str]) -> tuple[pl.DataFrame, Elements]:
    """Rows of `EventValidator.schema` → one for each record, with ELEMENTS, and the further events and elements.

    `fields`: the columns that the contracts' fields fill.
    """
    whole = rows.with_columns(pl.lit(0, pl.Int64).alias(ELEMENTS))
    is_further = pl.col(COLUMN) > 1
    if not has_elements(rows.schema) or not rows.select(is_further.any()).item():
        return whole, none_of(whole)
    is_element = place_in_event(pl.col(COLUMN)) > 1
    names = dict.fromkeys((*PLACE, "identity", COLUMN, *fields))
    others = rows.filter(is_element).select(*names)
    counted = others.group_by(*PLACE, _place()).agg(pl.len().cast(pl.Int64).alias(ELEMENTS))
    events = rows.filter(~is_element).with_columns(_place())
    events = events.join(counted, on=(*PLACE, _EVENT), how="left", maintain_order="left")
    events = events.with_columns(pl.col(ELEMENTS).fill_null(0))
    is_first = pl.col(_EVENT) == 1
    return events.filter(is_first).drop(_EVENT), Elements(events.filter(~is_first).drop(_EVENT), others)


def none_of(records: pl.DataFrame) -> Elements:
    """Of records that are one row each."""
    return Elements(records.clear(), records.clear().select(*PLACE))


def _place() -> pl.Expr:
    return event_place(pl.col(COLUMN)).alias(_EVENT)


def with_events(records: pl.DataFrame, elements: Elements) -> pl.DataFrame:
    """Records as they were received → all their events, each with the reception of its record."""
    if elements.events.is_empty():
        return records
    of_record = [name for name in records.columns if name not in elements.events.columns]
    further = elements.events.join(records.select(*PLACE, *of_record), on=list(PLACE), how="inner")
    return pl.concat([records, further.select(records.columns)])


def with_room(records: pl.DataFrame, first_lsn: int) -> pl.DataFrame:
    """Events (reason, ELEMENTS) with their `lsn`, in their order, each with room for its further elements behind it.

    What is rejected needs no room: its record stays whole. So it is no element, and has no column of one.
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


def with_elements(events: pl.DataFrame, elements: Elements) -> pl.DataFrame:
    """Events with their disposition and lsn, and the further elements of those that were not rejected, by lsn."""
    if elements.others.is_empty():
        return events
    own = [name for name in elements.others.columns if name not in PLACE]
    of_first = events.filter(pl.col("reason").is_null()).with_columns(_place()).drop(*own, "key", "value")
    others = elements.others.with_columns(_place()).join(of_first, on=(*PLACE, _EVENT), how="inner").drop(_EVENT)
    further = place_in_event(pl.col(COLUMN)).cast(pl.Int64) - 1
    return pl.concat([events, others.with_columns(pl.col("lsn") + further)], how="diagonal").sort("lsn")
