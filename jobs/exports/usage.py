"""`weir export usage`: the Delta table `usage` as one Parquet file a day, with columns that stay.

A day is that of `log_date`, when Weir appended the row: a day that is over for SETTLES_WITHIN never changes, so each
row is in one file. `day` says on which calendar day of its account the usage is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow import parquet

from jobs.exports.files import Destination, keep_only, new_file
from jobs.streams import AMOUNT, INSTANT, QUANTITY, UNIT_PRICE
from jobs.usage_entries import METERED_COLUMNS, metered
from metering.vocabulary import UsageCause

SCHEMA = pa.schema(
    [
        pa.field("lsn", pa.int64()),
        pa.field("day", pa.date32()),
        pa.field("account", pa.string()),
        pa.field("request_id", pa.string()),
        pa.field("user_id", pa.string()),
        pa.field("model", pa.string()),
        pa.field("status", pa.string()),
        pa.field("outcome", pa.string()),
        pa.field("event_time", INSTANT),
        pa.field("received_at", INSTANT),
        pa.field("plan", pa.string()),
        pa.field("currency", pa.string()),
        pa.field("cause", pa.string()),
        pa.field("corrects_lsns", pa.list_(pa.int64())),
        pa.field("dimensions", pa.string()),
        pa.field("meter", pa.string()),
        pa.field("sign", pa.int32()),
        pa.field("quantity", QUANTITY),
        pa.field("price_version", pa.int64()),
        pa.field("unit_price", UNIT_PRICE),
        pa.field("amount", AMOUNT),
    ]
)
"""One row per row of usage and meter, in no order. `quantity` and `amount` are of the one row: sums take them × `sign`.
A null `quantity` should have been reported, and was not. Columns are only ever added, at the end."""
_OF_ROW = [name for name in SCHEMA.names if name not in ("meter", "quantity", "price_version", "unit_price", "amount")]
ROWS_PER_BATCH = 50_000
SETTLES_WITHIN = timedelta(hours=1)
"""A batch has the day on which it began to be written: a large one is committed minutes after midnight, and clocks of
machines differ.
"""


@dataclass(frozen=True)
class ExportedDay:
    """A file, and how many rows it has."""

    log_date: date
    rows: int
    file: str


def last_settled_day(now: datetime) -> date:
    """The last day of which no row comes any more."""
    return (now - SETTLES_WITHIN).astimezone(UTC).date() - timedelta(days=1)


def export_usage(
    usage: DeltaTable,
    destination: Destination,
    first: date | None,
    last: date,
    report: Callable[[str], None],
    *,
    rows_per_batch: int = ROWS_PER_BATCH,
) -> Iterator[ExportedDay]:
    """Replace the file of each day with usage, from `first` (None: the first there is) to `last`, inclusive.

    A day that the table no longer has keeps its file. Raises CannotExport for what the destination cannot take.
    """
    dataset = usage.to_pyarrow_dataset()
    for log_date in _days(usage):
        if (first is None or log_date >= first) and log_date <= last:
            report(f"{log_date}")
            yield _export_day(dataset, destination, log_date, rows_per_batch)


def _export_day(
    dataset: pa.dataset.Dataset, destination: Destination, log_date: date, rows_per_batch: int
) -> ExportedDay:
    folder, rows = f"usage/log_date={log_date}", 0
    name = f"{folder}/usage.parquet"
    columns = [column for column in (*_OF_ROW, *METERED_COLUMNS) if column in dataset.schema.names]
    where = (pc.field("log_date") == log_date) & (pc.field("cause") != UsageCause.DECIDED.value)
    with new_file(destination, name) as path, parquet.ParquetWriter(path, SCHEMA, compression="zstd") as file:
        for batch in dataset.to_batches(columns=columns, filter=where, batch_size=rows_per_batch):
            if batch.num_rows:
                found = _metered(batch)
                file.write_table(found)
                rows += found.num_rows
    keep_only(destination, folder, {name})
    return ExportedDay(log_date, rows, name)


def _metered(batch: pa.RecordBatch) -> pa.Table:
    stored = pl.DataFrame(pa.Table.from_batches([batch]))
    # Columns that the table has since a later release.
    missing = [pl.lit(None).alias(name) for name in _OF_ROW if name not in stored.columns]
    found = metered(stored.lazy().with_columns(missing)).select(SCHEMA.names).collect()
    return found.to_arrow().cast(SCHEMA)


def _days(usage: DeltaTable) -> list[date]:
    """The days that the table has files of."""
    return sorted({date.fromisoformat(found["log_date"]) for found in usage.partitions()})
