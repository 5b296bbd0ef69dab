"""`weir limits`: the limits of the catalog, how near each account is to them, and what was crossed."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, print_rows
from cli.reading import AccountOption, read_only

limits = typer.Typer(
    no_args_is_help=True, help="List limits, how near accounts are to them, and which thresholds were crossed."
)


@limits.callback()
def _limits() -> None:
    """List limits, how near accounts are to them, and which thresholds were crossed."""


@limits.command("list")
def list_(
    *,
    account: AccountOption = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List the limits of the catalog, past and announced ones too. The account `*` means every account."""
    from deployment.stack import running_deployment
    from jobs.queries.limit_lists import LIMIT_COLUMNS, limit_rows

    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(limit_rows(database, account or ()), LIMIT_COLUMNS, form, limit)


@limits.command()
def status(
    *,
    account: AccountOption = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List how much of each limit in force is used in the current day or month of each account's calendar.

    Limits of the last hours count from `period_start` on, in whole hours of UTC. `other` is how much more may have been
    used of a limit of a dimension: a day keeps 10,000 combinations apart, and the value of further ones is unknown.
    `crossed` are the thresholds that billing has recorded: steps of the limit, and the limit itself.
    """
    from deployment.stack import running_deployment
    from jobs.queries.limit_lists import STATUS_COLUMNS, status_rows

    now = datetime.now(UTC)  # noqa: TID251 -- the top of the command
    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(status_rows(database, account or (), now), STATUS_COLUMNS, form, limit)


@limits.command()
def changes(
    *,
    account: AccountOption = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List when thresholds were crossed and retracted, newest first. The last version of each threshold counts."""
    from deployment.stack import running_deployment
    from jobs.queries.limit_lists import CHANGE_COLUMNS, change_rows

    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(change_rows(database, account or ()), CHANGE_COLUMNS, form, limit)
