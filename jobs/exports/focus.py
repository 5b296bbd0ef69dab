"""`weir export focus`: a month as files of FOCUS with their metadata.

All versions have the charges (Cost and Usage); since 1.4 invoices and billing periods are files of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from jobs.billing_progress import billing_progress
from jobs.exports.billing_periods import BILLING_PERIOD, billing_periods
from jobs.exports.charges import Charges, Totals
from jobs.exports.columns import Focus, metadata, schema_of
from jobs.exports.files import Destination, keep_only, new_file, put_document
from jobs.exports.invoice_details import INVOICE_DETAIL, invoice_details
from jobs.exports.invoiced import Invoices
from jobs.exports.month import Charge, Month, Seller
from jobs.exports.rows_file import FileFormat, writer
from jobs.queries.reading import Database
from metering.digits import plain
from metering.instants import rfc3339

ROWS_PER_BATCH = 20_000
"""In memory at a time; a row group of Parquet."""


@dataclass(frozen=True)
class FocusExport:
    """Which month to export, and how. Without `accounts`: of all."""

    month: date
    focus: Focus
    form: FileFormat
    seller: Seller
    accounts: Sequence[str] = ()


@dataclass(frozen=True)
class Exported:
    """The file of charges, its totals, and the `others` that were written with it.

    `is_complete`: the month is over and closed for every account.
    """

    file: str
    totals: Totals
    is_complete: bool
    others: Sequence[str] = ()


@dataclass(frozen=True)
class _Dataset:
    """What FOCUS calls a file, in the names of folders and of its metadata."""

    folder: str
    identity: str
    name: str
    schema: pa.Schema


def export_focus(
    database: Database,
    destination: Destination,
    export: FocusExport,
    created_at: datetime,
    report: Callable[[str], None],
) -> Exported:
    """Write each file of the month, then its metadata, then delete the files of earlier runs of the month.

    `database` is one snapshot. Raises CannotExport for what the destination or a column cannot take, and for tiers
    and plans of an unknown amount: a file that could not be written is then as it was.
    """
    month = Month.read(database, export.month, export.seller)
    frontier, closed = billing_progress(database)
    # Accounts in no catalog have months of UTC.
    ends = max(period.end for period in (month.period(""), *month.known.values()))
    closed_until = closed.of("")
    is_complete = closed_until is not None and closed_until >= ends
    has_invoices = export.focus is Focus.V1_4
    charges = Charges(month, Invoices.read(database, export.month, export.accounts), by_line=has_invoices)
    totals = charges.totals

    def written(dataset: _Dataset, batches: Iterable[Sequence[Charge]], known: Callable[[], dict[str, Any]]) -> str:
        folder = f"{dataset.folder}/billing_period={export.month:%Y-%m}"
        name, rows = f"{folder}/{dataset.folder}.{export.form}", 0
        with new_file(destination, name) as path, writer(path, export.form, dataset.schema) as write:
            for batch in batches:
                write(batch)
                rows += len(batch)
                report(f"{rows:,} rows")
        described: dict[str, Any] = {
            "DatasetInstance": {"FocusDatasetId": dataset.identity, "DatasetInstanceName": dataset.name},
            "Recency": {"DatasetInstanceComplete": is_complete, "DatasetInstanceLastUpdated": rfc3339(created_at)},
            "x_File": name,
            "x_Rows": rows,
            **known(),
            "x_Accounts": list(export.accounts) or None,
            "x_Frontier": None if frontier is None else rfc3339(frontier),
        }
        document = metadata(export.focus, dataset.schema, export.seller.issuer, created_at, described)
        put_document(destination, f"metadata/{folder}.json", document)
        keep_only(destination, folder, {name})
        return name

    def of_charges() -> dict[str, Any]:
        costs = {currency: plain(cost) for currency, cost in sorted(totals.costs.items())}
        return {"x_UnpricedRows": totals.unpriced_rows, "x_BilledCost": costs}

    usage = _Dataset("cost_and_usage", "CostAndUsage", "Cost and Usage", schema_of(export.focus))
    name = written(usage, charges.read(database, export.accounts, ROWS_PER_BATCH), of_charges)
    if not has_invoices:
        return Exported(name, totals, is_complete)
    details = invoice_details(database, month, export.accounts, ROWS_PER_BATCH)
    periods = billing_periods(database, month, export.accounts, closed_until)
    others = (
        written(_Dataset("invoice_detail", "InvoiceDetail", "Invoice Detail", INVOICE_DETAIL), details, dict),
        written(_Dataset("billing_period", "BillingPeriod", "Billing Period", BILLING_PERIOD), [periods], dict),
    )
    return Exported(name, totals, is_complete, others)
