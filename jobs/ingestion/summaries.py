"""What the driver must know of each validated record to decide about it; its texts stay in the file of its task.

About 60 bytes a record, and texts that repeat are there once.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from jobs.ingestion.elements import ELEMENTS
from jobs.ingestion.formats import form_bytes
from jobs.ingestion.quarantine import sizes
from metering.vocabulary import Isolation

FILE, BATCH, ROW = "number of the file", "batch of the file", "row of the batch"
"""Where a record is: among the files of a batch, the batch of Arrow in the file, and the row in that."""
BYTES, OF_FORMS = "bytes of the record", "bytes of its forms"
"""Of key and value; and of what its event needs besides, where its form is another."""
TEXTS = ("topic", "reason", "replay_mark", "reception_mark", "source", "type", "family")
"""Columns of `EventValidator.schema` with few different values. Of a type only where it has no family."""
NUMBERS = (
    *("partition", "offset", "stamped_at", "is_broker_stamp", "identity", "content_digest"),
    *("occurred_at", "occurred_us", "device_sent_us", "first_received_at"),
)
SUMMARY = (*NUMBERS, *TEXTS, BATCH, ROW, BYTES, OF_FORMS)


def summary_of(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """SUMMARY of validated records, which are written as these batches, in their order."""
    parts = []
    for number, batch in enumerate(batches):
        kept = batch.select([*NUMBERS, *TEXTS])
        no_type = pa.scalar(None, pa.string())
        types = pc.if_else(pc.is_null(batch["family"]), batch["type"], no_type)
        kept = kept.set_column(kept.schema.get_field_index("type"), "type", types)
        added = measured(pl.DataFrame(pa.Table.from_batches([batch]))).select(
            pl.lit(number, pl.UInt32).alias(BATCH), pl.int_range(pl.len(), dtype=pl.UInt32).alias(ROW), BYTES, OF_FORMS
        )
        parts.append(pa.table([*kept.columns, *added.to_arrow().columns], names=SUMMARY))
    found = pa.concat_tables(parts).combine_chunks()
    for name in TEXTS:
        found = found.set_column(found.schema.get_field_index(name), name, pc.dictionary_encode(found[name]))
    return found


def as_records(summary: pa.Table) -> pl.DataFrame:
    """A summary as records that the sink decides about, each one row; their violations stay in their file."""
    texts = pl.DataFrame(summary).with_columns(pl.col(TEXTS).cast(pl.String))
    return texts.with_columns(pl.lit(None, pl.String).alias("violation"), pl.lit(0, pl.Int64).alias(ELEMENTS))


def measured(records: pl.DataFrame) -> pl.DataFrame:
    """BYTES and OF_FORMS of records of `EventValidator.schema`."""
    return records.select(sizes().cast(pl.Int64).alias(BYTES), form_bytes().cast(pl.Int64).alias(OF_FORMS))


def needs_values(records: pl.DataFrame, largest_bytes: int) -> bool:
    """Whether one of these records (SUMMARY) is a dead letter regardless of its content: then more must be known."""
    is_isolated = pl.col("reason").is_in(list(Isolation)).fill_null(value=False)
    return bool(records.select(((pl.col(BYTES) > largest_bytes) | is_isolated).any()).item())
