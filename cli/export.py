"""`weir export`: usage and what it costs as files for warehouses, spreadsheets and FinOps tools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import Annotated

import typer

from cli.explain.command import month
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Row, print_rows
from cli.progress import telling
from cli.reading import AccountOption, read_only
from deployment.errors import CannotRun
from jobs.exports.columns import Focus
from jobs.exports.files import CannotExport, destination_of
from jobs.exports.rows_file import FileFormat


def _day(text: str | date) -> date:
    try:
        return date.fromisoformat(str(text))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a day such as 2026-10-01.") from None


export = typer.Typer(no_args_is_help=True, help="Write usage and its cost to files, for other systems.")

ToFolder = Annotated[
    str,
    typer.Option(
        "--to", metavar="FOLDER", help="A folder, or an address such as s3://bucket/prefix with `AWS_*` variables."
    ),
]


@export.command()
def focus(
    *,
    period: Annotated[
        date,
        typer.Option(parser=month, metavar="MONTH", help="The month, such as 2026-10, of each account's calendar."),
    ],
    to: ToFolder,
    issuer: Annotated[
        str, typer.Option(envvar="WEIR_ISSUER", help="The name of your company: who sells and issues the invoices.")
    ],
    host: Annotated[
        str | None, typer.Option(help="Whose infrastructure runs the models, since FOCUS 1.3; the issuer's by default.")
    ] = None,
    payment_terms: Annotated[
        str, typer.Option(help="When your invoices are due, such as `Net 30`; FOCUS 1.4 needs it.")
    ] = "",
    version: Annotated[Focus, typer.Option("--focus", help="The version of FOCUS.")] = Focus.V1_3,
    form: Annotated[FileFormat, typer.Option("--format", help="The format of the file.")] = FileFormat.PARQUET,
    account: AccountOption = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Write a month as FOCUS Cost and Usage: one row per account, day, model, meter, price and dimensions.

    The file is `cost_and_usage/billing_period=MONTH/cost_and_usage.parquet` or `.csv`, and its metadata is
    `metadata/cost_and_usage/billing_period=MONTH.json`. A second run replaces both. Costs have all their decimals.
    Rows of a closed month have their invoice, and add up to it: what it rounds, and what came after it, are rows of
    their own. Tiers and packages are rows of the month. Usage without a price is in rows of cost 0 with `x_Unpriced`.
    FOCUS 1.4 has two more files: `invoice_detail/…`, the lines of the month's invoices, and `billing_period/…`.
    """
    from deployment.stack import running_deployment
    from jobs.exports.focus import FocusExport, export_focus
    from jobs.exports.month import Seller

    if not issuer.strip() or host == "":
        raise typer.BadParameter("--issuer and --host must not be empty: FOCUS needs a name.")
    if version is Focus.V1_4 and not payment_terms.strip():
        raise typer.BadParameter("FOCUS 1.4 needs --payment-terms, as your invoices say it: such as 'Net 30'.")
    seller = Seller(issuer, host or issuer, payment_terms)
    query = FocusExport(period, version, form, seller, tuple(account or ()))
    now = datetime.now(UTC)  # noqa: TID251 -- the top of the command
    with (
        read_only(running_deployment(data_dir).postgres_url) as database,
        _exporting(),
        telling(f"Exporting {period:%Y-%m}:") as tell,
    ):
        done = export_focus(database, destination_of(to, os.environ), query, now, tell)
    typer.echo(f"{done.totals.rows} rows are in {to.rstrip('/')}/{done.file}")
    for other in done.others:
        typer.echo(f"{to.rstrip('/')}/{other} is written")
    if done.totals.unpriced_rows:
        typer.echo(
            f"{done.totals.unpriced_rows} of them have no price (x_Unpriced): add one with `weir catalog apply`, let "
            "the audit bill it, and export again.",
            err=True,
        )
    if not done.is_complete:
        typer.echo(f"{period:%Y-%m} is not over for every account: export it again when it is.", err=True)


@export.command()
def usage(
    *,
    to: ToFolder,
    first: Annotated[
        date | None,
        typer.Option(
            "--from-day", parser=_day, metavar="DATE", help="From this day on; the first there is by default."
        ),
    ] = None,
    last: Annotated[
        date | None,
        typer.Option(
            "--to-day",
            parser=_day,
            metavar="DATE",
            help="Up to this day, inclusive; by default yesterday, once an hour of today (UTC) is over.",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Write usage as one Parquet file a day, one row per request outcome and meter, and list the files.

    The files are `usage/log_date=DATE/usage.parquet`. A day is the one in UTC when Weir recorded the usage, so a day
    never changes once it is over for an hour, and later corrections are rows of later days: sum `quantity` and `amount`
    times `sign`. `day` is the calendar day of the account. A second run replaces the files of its days.
    """
    from deployment.stack import running_deployment
    from jobs.exports.usage import export_usage, last_settled_day
    from jobs.runtime.delta.table import open_table
    from jobs.streams import Table

    settled = last_settled_day(datetime.now(UTC))  # noqa: TID251 -- the top of the command
    if last is None and first is not None and first > settled:
        raise typer.BadParameter(
            f"--from-day is {first}, which may still get rows: run this an hour after the day is over (UTC), or give "
            "--to-day, too."
        )
    tables = running_deployment(data_dir).tables
    found = open_table(tables, Table.USAGE)
    if found is None:
        typer.echo(f"There is no usage below {tables}: joins has not made it yet, or it is elsewhere.", err=True)
        return
    with _exporting(), telling("Exporting usage:") as tell:
        days = list(export_usage(found, destination_of(to, os.environ), first, last or settled, tell))
    rows: list[Row] = [{"log_date": str(day.log_date), "rows": day.rows, "file": day.file} for day in days]
    print_rows(rows, ("log_date", "rows", "file"), form)
    if days and days[-1].log_date > settled:
        typer.echo(
            f"{days[-1].log_date} may still get rows: export it again an hour after it is over (UTC).",
            err=True,
        )


@contextmanager
def _exporting() -> Iterator[None]:
    try:
        yield
    except CannotExport as error:
        raise CannotRun(str(error)) from None
