"""`weir export focus`: the charges of a month as one file of FOCUS Cost and Usage, with its metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from jobs.billing_progress import billing_progress
from jobs.exports.charges import Charges, Totals
from jobs.exports.columns import Focus, metadata, schema_of
from jobs.exports.files import CannotExport, Destination, keep_only, new_file, put_document
from jobs.exports.invoiced import Invoices
from jobs.exports.month import Charge, Month, Seller
from jobs.queries.reading import Database
from metering.csv_lines import csv_line
from metering.digits import plain
from metering.instants import rfc3339

DATASET = "cost_and_usage"
ROWS_PER_BATCH = 20_000
"""In memory at a time; a row group of Parquet."""


class FileFormat(StrEnum):
    """What a file of charges is."""

    PARQUET = "parquet"
    CSV = "csv"


@dataclass(frozen=True)
class FocusExport:
    """Which month to export, and how. Without `accounts`: of all."""

    month: date
    focus: Focus
    form: FileFormat
    seller: Seller
    accounts: Sequence[str] = ()

    @property
    def folder(self) -> str:
        """The month's folder, as a partition of Hive."""
        return f"{DATASET}/billing_period={self.month:%Y-%m}"


@dataclass(frozen=True)
class Exported:
    """The file that was written, and its totals. `is_complete`: the month is over and closed for every account."""

    file: str
    totals: Totals
    is_complete: bool


def export_focus(
    database: Database,
    destination: Destination,
    export: FocusExport,
    created_at: datetime,
    report: Callable[[str], None],
) -> Exported:
    """Write the month's file, then its metadata, then delete the files of earlier runs of the month.

    `database` is one snapshot. Raises CannotExport for what the destination or a column cannot take, and for tiers
    and plans of an unknown amount: the files are then as they were.
    """
    month = Month.read(database, export.month, export.seller)
    frontier, closed = billing_progress(database)
    # Accounts in no catalog have months of UTC.
    ends = max(period.end for period in (month.period(""), *month.known.values()))
    closed_until = closed.of("")
    is_complete = closed_until is not None and closed_until >= ends
    charges = Charges(month, Invoices.read(database, export.month, export.accounts))
    totals = charges.totals
    name = f"{export.folder}/{DATASET}.{export.form}"
    with new_file(destination, name) as path, _writer(path, export.form, schema_of(export.focus)) as write:
        for batch in charges.read(database, export.accounts, ROWS_PER_BATCH):
            write(batch)
            report(f"{totals.rows:,} rows")
    known: dict[str, Any] = {
        "DatasetInstance": {"FocusDatasetId": "CostAndUsage", "DatasetInstanceName": "Cost and Usage"},
        "Recency": {"DatasetInstanceComplete": is_complete, "DatasetInstanceLastUpdated": rfc3339(created_at)},
        "x_File": name,
        "x_Rows": totals.rows,
        "x_UnpricedRows": totals.unpriced_rows,
        "x_BilledCost": {currency: plain(cost) for currency, cost in sorted(totals.costs.items())},
        "x_Accounts": list(export.accounts) or None,
        "x_Frontier": None if frontier is None else rfc3339(frontier),
    }
    described = metadata(export.focus, export.seller.issuer, created_at, known)
    put_document(destination, f"metadata/{export.folder}.json", described)
    keep_only(destination, export.folder, {name})
    return Exported(name, totals, is_complete)


@contextmanager
def _writer(path: Path, form: FileFormat, schema: pa.Schema) -> Iterator[Callable[[Iterable[Charge]], None]]:
    """What writes batches to a file of this format."""
    if form is FileFormat.PARQUET:
        with parquet.ParquetWriter(path, schema, compression="zstd") as file:
            yield lambda charges: file.write_batch(_record_batch(charges, schema))
        return
    with path.open("w", encoding="utf-8", newline="") as out:
        out.write(csv_line(schema.names))
        yield lambda charges: out.writelines(
            csv_line([_cell(charge.get(name)) for name in schema.names]) for charge in charges
        )


def _record_batch(charges: Iterable[Charge], schema: pa.Schema) -> pa.RecordBatch:
    listed = list(charges)
    columns = [_array([row.get(field.name) for row in listed], field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    """Raises CannotExport for a value that has more digits than the column: it is never rounded."""
    try:
        return pa.array(values, field.type)
    except pa.ArrowInvalid as error:
        raise CannotExport(
            f"{field.name} takes no value of more digits ({error}); --format csv has no limit."
        ) from None


def _cell(value: Any) -> Any:
    """A value for CSV: FOCUS writes booleans in small letters."""
    return str(value).lower() if isinstance(value, bool) else value
