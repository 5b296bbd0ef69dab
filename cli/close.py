"""`weir close`: the invoices of a month."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.author import ByOption, author
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.progress import telling
from deployment.errors import FileRefused
from jobs.close.month import AccountOption, AllowOption, DryRunOption, ReasonOption, checked_allowed, month_of

if TYPE_CHECKING:
    from jobs.audit.recompute.basis import Scope

Month = Annotated[
    date | None, typer.Argument(parser=month_of, metavar="YYYY-MM", help="The month, by each account's calendar.")
]


def close(
    month: Month = None,
    *,
    account: AccountOption = None,
    dry_run: DryRunOption = False,
    allow: AllowOption = None,
    reason: ReasonOption = None,
    reissue: Annotated[
        bool, typer.Option("--reissue", help="Issue voided invoices of the month again; needs --account, --reason.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Close nothing; verify invoices, as `weir invoices verify`.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="YAML: issuer, rounding, minor_units, write_off_below.")
    ] = None,
    memory_mib: Annotated[int, typer.Option(min=512, help="Java heap of the audit, in MiB.")] = 1024,
    by: ByOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Close a month: issue an invoice for each account and currency, of usage that an audit has proved.

    An account is refused, with the reason, until the frontier has passed the end of its month and every grace, and
    while any of its usage has no price, is held, or waits. Where no audit has proved the month since its last change,
    one runs first. What came for closed months becomes pairs of lines. A month is closed once; closing it again issues
    what is left, also after a crash. Usage of accounts that are in no catalog is listed as `no account`, with what to
    do, and is on no invoice. What an account has in an earlier month that others were invoiced for, and which is on
    none of its invoices, is listed as `not invoiced`.

    Exit status 0 if no account was refused, else 1.
    """
    if verify:
        from cli.invoices import verified

        verified(data_dir, account, form)
        return
    if month is None:
        raise typer.BadParameter("name the month, such as 2026-10.")
    if reissue and not account:
        raise typer.BadParameter("--reissue needs --account.")
    allowed = checked_allowed(allow, reason, reissues=reissue)
    from cli.audit import audited
    from deployment.asking import asking_database
    from deployment.stack import running_deployment
    from jobs.close.config import CloseConfig
    from jobs.close.issue import Terms
    from jobs.close.run import COLUMNS, REFUSED, Close
    from jobs.close.series import InvoiceSeries
    from jobs.config_files import validated
    from jobs.runtime.clock import MachineClock
    from jobs.runtime.postgres.schema_check import refuse_other_schema

    try:
        given = validated(CloseConfig, config) if config else CloseConfig()
    except ValueError as refusal:
        raise FileRefused(str(refusal)) from None
    stack = running_deployment(data_dir)

    terms = Terms(given, month, MachineClock().now(), author(by), reason, allowed, reissue)
    with asking_database(stack.postgres_url):
        refuse_other_schema(stack.postgres_url)
        with telling("Closing:") as tell:

            def audit(scope: Scope) -> bool:
                return all(check.holds for check in audited(stack, scope, memory_mib, tell=tell))

            series = InvoiceSeries(str(stack.tables), given.issuer)
            rows = list(Close(stack.postgres_url, terms, audit, account or (), dry_run, tell, series=series).run())
    print_rows(rows, COLUMNS, form)
    if any(row["outcome"] == REFUSED for row in rows):
        raise typer.Exit(1)
