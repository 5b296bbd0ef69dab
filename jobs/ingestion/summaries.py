"""What the driver must know of each validated record to decide about it; its texts stay in the file of its task.

About 60 bytes a record, and texts that repeat are there once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from jobs.ingestion.elements import ELEMENTS
from jobs.ingestion.formats import form_bytes
from jobs.ingestion.quarantine import is_quarantined, isolated_places, sizes
from jobs.journal.elements import is_of_several
from jobs.runtime.kafka.quarantine.isolated_records import Isolated
from jobs.runtime.kafka.records import PLACE

FILE, BATCH, ROW = "number of the file", "batch of the file", "row of the batch"
"""Where a record is: among the files of a batch, the batch of Arrow in the file, and the row in that."""
BYTES, OF_FORMS = "bytes of the record", "bytes of its forms"
"""Of key and value; and of what its event needs besides, where its form is another."""
SEVERAL = "is one of several rows"
"""Whether a row is one of a batch of events, or of an event's elements."""
TEXTS = ("topic", "reason", "replay_mark", "reception_mark", "source", "type", "family")
"""Columns of `EventValidator.schema` with few different values. Of a type only where it has no family."""
NUMBERS = (
    *("partition", "offset", "stamped_at", "is_broker_stamp", "identity", "content_digest"),
    *("occurred_at", "occurred_us", "device_sent_us", "first_received_at"),
)
SUMMARY = (*NUMBERS, *TEXTS, BATCH, ROW, BYTES, OF_FORMS, SEVERAL)


def summary_of(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """SUMMARY of validated records, which are written as these batches, in their order."""
    parts = []
    for number, batch in enumerate(batches):
        kept = batch.select([*NUMBERS, *TEXTS])
        no_type = pa.scalar(None, pa.string())
        types = pc.if_else(pc.is_null(batch["family"]), batch["type"], no_type)
        kept = kept.set_column(kept.schema.get_field_index("type"), "type", types)
        rows = pl.DataFrame(pa.Table.from_batches([batch]))
        place = [pl.lit(number, pl.UInt32).alias(BATCH), pl.int_range(pl.len(), dtype=pl.UInt32).alias(ROW)]
        added = rows.select(*place, *measures(), is_of_several(rows.schema).alias(SEVERAL))
        parts.append(pa.table([*kept.columns, *added.to_arrow().columns], names=SUMMARY))
    found = pa.concat_tables(parts).combine_chunks()
    for name in TEXTS:
        found = found.set_column(found.schema.get_field_index(name), name, pc.dictionary_encode(found[name]))
    return found


def as_records(summary: pa.Table) -> pl.DataFrame:
    """A summary as records that the sink decides about, each one row; their violations stay in their file."""
    # Of most of these columns a batch has no text: there is nothing to convert.
    empty = [name for name in TEXTS if summary[name].null_count == len(summary)]
    rows = pl.DataFrame(summary.drop_columns(empty))
    texts = pl.col([name for name in TEXTS if name not in empty]).cast(pl.String)
    nulls = [pl.lit(None, pl.String).alias(name) for name in (*empty, "violation")]
    complete = rows.with_columns(texts, *nulls, pl.lit(0, pl.Int64).alias(ELEMENTS))
    return complete.select(*summary.column_names, "violation", ELEMENTS)


def measures() -> list[pl.Expr]:
    """BYTES and OF_FORMS of records of `EventValidator.schema`."""
    return [sizes().cast(pl.Int64).alias(BYTES), form_bytes().cast(pl.Int64).alias(OF_FORMS)]


def needed_whole(records: pl.DataFrame, isolated: Mapping[str, Isolated], largest_bytes: int) -> pl.Series:
    """Which of these (SUMMARY) the driver needs with their texts: rows of records that have several, and dead letters
    regardless of content (`isolated`, by topic, unreadable or above `largest_bytes`).
    """
    found = records.select(pl.col(SEVERAL) | (pl.col(BYTES) > largest_bytes) | is_quarantined()).to_series()
    places = isolated_places(isolated)
    if places.is_empty():
        return found
    known = records.select(*PLACE).join(places, on=list(PLACE), how="left", maintain_order="left")
    return found | known["isolated"].is_not_null()
