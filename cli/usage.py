"""`weir usage`: quantity and amount per window."""

from __future__ import annotations

from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.reading import AccountOption, FromOption, ToOption, check_range, read_only, zone
from cli.reversing import reverse
from cli.usage_keys import refuse_unknown
from jobs.queries.periods import UTC_ZONE, Window
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.queries.usage_keys import Key, dimensions_of, keys_of, words_of

usage = typer.Typer(invoke_without_command=True)
usage.command("reverse")(reverse)


@usage.callback()
def _usage(
    context: typer.Context,
    *,
    start: FromOption = None,
    end: ToOption = None,
    window: Annotated[Window, typer.Option(help="Length of the windows (ISO 8601).")] = Window.MINUTE,
    group_by: Annotated[
        str,
        typer.Option(
            metavar="KEYS",
            help="Keys, comma-separated: account, model, meter, and for P1D and P1M dimensions, those that are "
            "configured or were, such as api_key_id or account.tags.team. Without meter, quantities of unlike units "
            "add up.",
        ),
    ] = ",".join(Key),
    account: AccountOption = None,
    roll_up: Annotated[
        bool,
        typer.Option(
            "--roll-up",
            help="Sum each account with its descendants, by the parents when the month began: each --account, or each "
            "account without a parent. Each currency separately.",
        ),
    ] = False,
    timezone: Annotated[
        ZoneInfo | None,
        typer.Option(
            parser=zone,
            metavar="ZONE",
            help="Time zone of the days and months of P1D and P1M, the same for all accounts (UTC). Only a view: the "
            "months of a bill are "
            "each account's own, as the dashboard's page Bills has them. So are the days and months of dimensions, "
            "which can have no other.",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List usage and its amount per window, account, model and meter.

    --from and --to select windows by their start. `quantity` is what was reported. `billed_quantity` is the
    part of it that has a price, `free_quantity` the part of that with the price 0, `tiered_quantity` the part with
    tiers or packages, and `unpriced_quantity` what no price matched. Another meter bills the rest: of 2,006 input
    tokens, 86 are billed if 1,920 were cached and cached tokens have their own price. `amount` leaves out the tiered
    part, whose cost depends on the month's total (page Bills, `GET /v1/bills`). Windows are open, closing (inside
    grace), closed, or corrected (closed, and changed since).

    `unmetered_requests` counts requests that were decided without a quantity that the meter expects. Later
    corrections do not lower it. Without meter in --group-by a request counts once for each meter that it lacks. With
    dimensions it is null.

    A meter with a `period` has no minutes. P1D lists meters of days, and P1M meters of days and months, where the zone
    has the same days or months as the account. With dimensions they are always listed, and their dimensions are null.

    A dimension is a column like `account`, null where usage has none. An account's day has room for 10,000
    combinations of dimensions; the usage of all further ones is in rows where `is_other` is true and the dimensions
    say `other`.
    """
    if context.invoked_subcommand is not None:
        return
    from deployment.stack import running_deployment

    check_range(start, end)
    words = words_of(group_by)
    dimensions = dimensions_of(words)
    if roll_up and Key.ACCOUNT not in keys_of(words):
        raise typer.BadParameter("--roll-up sums into accounts: add account to --group-by.")
    if dimensions:
        _refuse_keys_without_days(dimensions, window, timezone)
    with read_only(running_deployment(data_dir).postgres_url) as database:
        refuse_unknown(database, dimensions)
        accounts = tuple(account or ())
        query = UsageQuery(start, end, window, keys_of(words), dimensions, accounts, timezone or UTC_ZONE, roll_up)
        print_rows(usage_rows(database, query), query.columns, form)


def _refuse_keys_without_days(dimensions: tuple[str, ...], window: Window, timezone: ZoneInfo | None) -> None:
    named = ", ".join(dimensions)
    if window not in (Window.DAY, Window.MONTH):
        raise typer.BadParameter(
            f"{named}: minutes and hours have only account, model and meter: add --window P1D or P1M."
        )
    if timezone is not None:
        raise typer.BadParameter(
            f"{named}: is kept by each account's own days, so leave out --timezone {timezone.key}."
        )
