"""`weir pools`: which accounts have one total for tiers and packages."""

from __future__ import annotations

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, LimitOption, print_rows
from cli.reading import AccountOption, read_only

pools = typer.Typer(no_args_is_help=True, help="List which accounts have one total for tiers and packages.")


@pools.callback()
def _pools() -> None:
    """List which accounts have one total for tiers and packages."""


@pools.command("list")
def list_(
    *,
    account: AccountOption = None,
    limit: LimitOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List the members of pools, past and announced ones too, and in which months each pools.

    With --account the pools of these accounts, with all members. `end_month` is the first month that is not in the
    pool; without one it goes on.
    """
    from deployment.stack import running_deployment
    from jobs.queries.pools import POOL_COLUMNS, pool_rows

    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(pool_rows(database, account or ()), POOL_COLUMNS, form, limit)
