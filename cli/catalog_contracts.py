"""`weir catalog contracts`: what each account pays for a unit of each meter, now or at an instant."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, print_rows
from cli.reading import AccountOption, instant, read_only
from jobs.queries.contracts import COLUMNS, ContractQuery, contract_rows
from jobs.queries.reading import Database
from metering.csv_lines import text_of

_RIGHT_UNTIL = """
    SELECT at, catalog.contracts_right_until(at) AS right_until
    FROM (SELECT coalesce(%(at)s::timestamptz, now())) AS requested (at)
"""


def right_until(database: Database, query: ContractQuery) -> str:
    """The instant of the list, and how long it stays right if no row changes."""
    found = database.execute(_RIGHT_UNTIL, {"at": query.at}).fetchone()
    assert found is not None
    ends = found["right_until"]
    until = (
        "nothing begins or ends after it"
        if ends is None
        else f"the next price or account begins or ends at {text_of(ends)}"
    )
    return f"In force at {text_of(found['at'])} by the rows that the catalog has now; {until}."


def contracts(
    *,
    account: AccountOption = None,
    plan: Annotated[str | None, typer.Option(help="Only accounts of this plan.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Only prices that name this model, alone, in a list or with conditions.")
    ] = None,
    meter: Annotated[str | None, typer.Option(help="Only this meter.")] = None,
    at: Annotated[
        datetime | None,
        typer.Option(parser=instant, metavar="INSTANT", help="List what is in force at this instant (RFC 3339)."),
    ] = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List what each account pays for a unit of each meter, now or at another instant.

    --at lists what is in force at another instant, past or future. `weir explain` shows what usage was priced with.
    `in_force_until` is when the next price begins, this price or the account ends, or the account changes; an account
    is listed from `account_from` on.
    """
    from deployment.stack import running_deployment

    query = ContractQuery(at, tuple(account or ()), plan, model, meter)
    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(contract_rows(database, query), COLUMNS, form, limit)
        if form is Format.TABLE:
            typer.echo(right_until(database, query), err=True)
