"""`weir activity` and `weir verify`: what people did, and whether that and the invoices are what was stored."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, print_rows
from cli.reading import FromOption, ToOption, check_range, read_only
from jobs.queries.activity import COLUMNS, ActivityQuery, activity_rows, stored_entries
from metering.activity_chain import Chain

FAULT_COLUMNS = ("chain", "account", "fault")


def activity(
    *,
    start: FromOption = None,
    end: ToOption = None,
    by: Annotated[str | None, typer.Option("--by", help="Only what this person or role did.")] = None,
    target: Annotated[str | None, typer.Option(help="Only changes of this table, such as catalog.prices.")] = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List what people did, newest first: changes of the catalog, decisions, API keys, skipped records, redrives.

    `made_by` is the name given with the change, `role` the database's role that made it.
    """
    from deployment.stack import running_deployment

    check_range(start, end)
    with read_only(running_deployment(data_dir).postgres_url) as database:
        rows = activity_rows(database, ActivityQuery(start, end, by, target))
        if form is not Format.JSON:
            rows = (row | {name: _text(row[name]) for name in ("before", "after")} for row in rows)
        print_rows(rows, COLUMNS, form, limit)


def verify(
    *,
    contains: Annotated[
        list[str] | None,
        typer.Option("--contains", metavar="HASH", help="A hash that an earlier run printed; may be repeated."),
    ] = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Verify the hash chains of the activity log and of every invoice, and name what differs.

    Exit status 0 if nothing differs, else 1. Prints the newest hash of the activity log: keep it elsewhere and give
    it to --contains later, since the end of a chain can be cut off, or all of it rewritten, without another trace.
    """
    from cli.invoices import invoice_faults
    from deployment.stack import running_deployment

    chain = Chain()
    with read_only(running_deployment(data_dir).postgres_url) as database:
        faults = chain.faults(stored_entries(database), contains or ())
        rows = [{"chain": "activity", "account": None, "fault": fault} for fault in faults]
        invoices, of_invoices = invoice_faults(database, None)
    rows += [{"chain": "invoices", **fault} for fault in of_invoices]
    newest = f", the newest {chain.last.hash}" if chain.last else ""
    typer.echo(
        f"{chain.count:,} entries of the activity log{newest}, and {invoices:,} invoices: {len(rows)} faults.", err=True
    )
    print_rows(rows, FAULT_COLUMNS, form)
    if rows:
        raise typer.Exit(1)


def _text(value: object) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
