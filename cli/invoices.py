"""`weir invoices`: what was issued, and whether it still is what was issued."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from cli.author import ByOption, author, given_reason
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, print_document, print_rows
from cli.reading import AccountOption, read_only
from deployment.errors import CannotRun
from jobs.billing_progress import Database
from jobs.close.month import month_of
from jobs.queries.invoices import (
    COLUMNS,
    LINE_COLUMNS,
    InvoiceQuery,
    invoice_document,
    invoice_rows,
    numbers_by_issuer,
    stored_invoices,
)
from metering.invoice_verification import wrong_account, wrong_numbers

invoices = typer.Typer(no_args_is_help=True, help="List, show, verify and void invoices.")
InvoiceArgument = Annotated[str, typer.Argument(metavar="INVOICE", help="As `weir invoices list` has it.")]
FAULT_COLUMNS = ("account", "fault")


@invoices.callback()
def _invoices() -> None:
    """List, show, verify and void invoices."""


@invoices.command("list")
def list_(
    *,
    account: AccountOption = None,
    period: Annotated[
        date | None, typer.Option("--period", parser=month_of, metavar="YYYY-MM", help="Only invoices of this month.")
    ] = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List invoices in the order of their numbers. `hash` is that of the invoice as issued, and never changes."""
    from deployment.stack import running_deployment

    query = InvoiceQuery(tuple(account or ()), period)
    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(invoice_rows(database, query), COLUMNS, form, limit)


@invoices.command()
def show(invoice: InvoiceArgument, *, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Show the lines of an invoice; with `--format json` also its totals, its states and their hashes.

    `amount` is rounded once, `exact_amount` = `amount` + `residual`. A line of charge class Correction changes what
    `corrects_line` of `corrects_invoice` charged for `original_period`.
    """
    from deployment.stack import running_deployment

    with read_only(running_deployment(data_dir).postgres_url) as database:
        document = invoice_document(database, invoice)
    if document is None:
        raise CannotRun(f"There is no invoice {invoice}: `weir invoices list` has them.")
    if form is Format.JSON:
        print_document(document)
    else:
        print_rows(document["lines"], LINE_COLUMNS, form)


@invoices.command()
def verify(
    *, account: AccountOption = None, form: FormatOption = Format.TABLE, data_dir: DataDir = DEFAULT_DATA_DIR
) -> None:
    """Recompute the hash, the sums and the corrections of every invoice, and name what differs.

    Exit status 0 if nothing differs, else 1.
    """
    verified(data_dir, account, form)


@invoices.command()
def void(
    invoice: InvoiceArgument,
    *,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the invoice.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    by: ByOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Void an invoice. `weir close … --reissue` issues its month again, under a new number.

    Later invoices of the same account and currency are voided first, as they may correct this one.
    """
    from deployment.asking import asking_database
    from deployment.stack import running_deployment
    from jobs.close.void import NotVoidedError
    from jobs.close.void import void as voided
    from jobs.runtime.clock import MachineClock

    given_reason(reason, "this invoice")
    url = running_deployment(data_dir).postgres_url
    with asking_database(url), read_only(url) as database:
        if invoice_document(database, invoice) is None:
            raise CannotRun(f"There is no invoice {invoice}: `weir invoices list` has them.")
    if not yes:
        typer.confirm(f"Void {invoice}?", abort=True)
    with asking_database(url):
        try:
            voided(url, invoice, made_by=author(by), reason=reason, at=MachineClock().now())
        except NotVoidedError as refusal:
            raise CannotRun(f"{invoice} stays as it is: {refusal}.") from None
    typer.echo(f"{invoice} is voided.")


def verified(data_dir: Path, accounts: list[str] | None, form: Format) -> None:
    """Print what differs. Raises `typer.Exit` with status 1 where anything does."""
    from deployment.stack import running_deployment

    with read_only(running_deployment(data_dir).postgres_url) as database:
        count, rows = invoice_faults(database, accounts)
    typer.echo(f"{count:,} invoices verified: {len(rows)} faults.", err=True)
    print_rows(rows, FAULT_COLUMNS, form)
    if rows:
        raise typer.Exit(1)


def invoice_faults(database: Database, accounts: list[str] | None) -> tuple[int, list[dict[str, str | None]]]:
    """How many invoices there are (of `accounts`; None: all), and rows with the keys `FAULT_COLUMNS`."""
    count = 0
    rows: list[dict[str, str | None]] = []
    for stored in stored_invoices(database, accounts):
        count += len(stored.invoices)
        rows += [{"account": stored.account, "fault": fault} for fault in wrong_account(stored)]
    if not accounts:
        rows += [{"account": None, "fault": fault} for fault in wrong_numbers(numbers_by_issuer(database))]
    return count, rows
