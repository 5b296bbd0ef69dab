"""`weir usage`: quantity and amount per window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer
from psycopg.rows import DictRow

from cli.account_periods import period_parameters
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Row, print_rows
from cli.periods import UTC_ZONE, Window, bounds, first_start_from
from cli.reading import (
    AccountOption,
    Database,
    FromOption,
    ToOption,
    check_range,
    read_only,
    select,
    zone,
)
from cli.reversing import reverse
from cli.roll_up import JOINED, month_sql, part_parameters, read_parts
from cli.usage_keys import Key, dimensions_of, keys_of, refuse_unknown, words_of
from cli.usage_sources import of_days, of_windows
from jobs.billing_progress import billing_progress
from metering import windows
from metering.lateness import window_state
from metering.pricing import BILLED_AS_PART

SUMMED = ("quantity", "billed_quantity", "free_quantity", "amount", "unpriced_quantity", "unmetered_requests")
"""Of a window: what was reported, what of it has a price, what of that has the price 0, what it costs, and what has no
price; another meter bills the rest. And how many requests did not report the meter."""


@dataclass(frozen=True)
class UsageQuery:
    """Which windows to list; `start` and `end` select by window start, None is unbounded.

    With `dimensions`, windows are days or months of each account's own calendar, and `zone` says nothing.
    """

    start: datetime | None = None
    end: datetime | None = None
    window: Window = Window.MINUTE
    group_by: tuple[Key, ...] = tuple(Key)
    dimensions: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    zone: ZoneInfo = UTC_ZONE
    rolls_up: bool = False
    """Whether an account's usage is what all below it used, too: in each month those that it began with."""

    @property
    def keys(self) -> list[str]:
        """What rows of one window differ in, in order."""
        other = ["is_other"] if self.dimensions else []
        return [*(key for key in Key if key in self.group_by), *self.dimensions, *other, "currency"]

    @property
    def selected(self) -> dict[str, str]:
        """What SQL calls each dimension, also as a parameter: a tag has longer names than a column, and other signs."""
        return {name: f"dimension_{number}" for number, name in enumerate(self.dimensions)}

    @property
    def columns(self) -> list[str]:
        """The columns of the list, in order."""
        return ["window_start", "window_end", *self.keys, *SUMMED, "state"]


def usage_rows(database: Database, query: UsageQuery) -> Iterator[Row]:
    """Rows with the keys `query.columns`, ordered by window, then by key; the money is summed by the database.

    A window longer than a minute closes by its own end, which is that of its least advanced minute: a day that
    still runs is open, whether or not its last minutes have usage yet. A row of no single meter is closed when
    every meter is.
    """
    frontier, closed = billing_progress(database)
    for start, end, row in _sums(database, query):
        # What is closed the views say, whatever graces there were: here no grace is asked for.
        closed_until = closed.of(row.get("meter", ""))
        state = window_state(
            windows.Window(start, end), None, frontier, corrected=row.pop("corrected"), closed_before=closed_until
        )
        yield {"window_start": start, "window_end": end, **row, "state": state.value}


def _sums(database: Database, query: UsageQuery) -> Iterator[tuple[datetime, datetime, DictRow]]:
    """Start and end of each window, and what is in it."""
    parameters: dict[str, Any] = {"start": query.start, "end": query.end, "accounts": list(query.accounts) or None}
    if query.rolls_up:
        parts = read_parts(database, query.accounts, None if query.dimensions else query.zone.key)
        parameters |= part_parameters(parts)
        parameters["accounts"] = sorted({part.member for part in parts}) if query.accounts else None
    if query.dimensions:
        names = {column: name for name, column in query.selected.items()}
        parameters |= period_parameters(database, query.window, parameters) | names
        for row in select(database, _statement(query, of_days(query.window), "window_start", "window_end"), parameters):
            yield (
                row.pop("window_start"),
                row.pop("window_end"),
                {names.get(column, column): value for column, value in row.items()},
            )
        return
    # Whole windows only: half an hour's usage under an hour's heading would be a wrong number.
    for name in ("start", "end"):
        if parameters[name] is not None:
            parameters[name] = first_start_from(query.window, parameters[name], query.zone)
    parameters["zone"] = query.zone.key
    for row in select(database, _statement(query, of_windows(query.window), "window_key"), parameters):
        yield *bounds(query.window, row.pop("window_key"), query.zone), row


def _statement(query: UsageQuery, source: str, *window: str) -> str:
    keys = [*window, *(f'"{query.selected.get(key, key)}"' for key in query.keys)]
    by = ", ".join(str(place) for place in range(1, len(keys) + 1))
    if query.rolls_up:
        keys = ['coalesce(head, account) AS "account"' if key == '"account"' else key for key in keys]
    rolled = ""
    if query.rolls_up:
        month = "month" if query.dimensions else month_sql(query.window)
        # What no account asked for stands above is not listed; of all, it is part of itself.
        rolled = JOINED.format(join="" if query.accounts else "LEFT", month=month)
    columns = "".join(
        f", CASE WHEN is_other THEN 'other' ELSE dimensions ->> %({column})s::text END AS {column}"
        for column in query.selected.values()
    )
    return f"""
        SELECT {", ".join(keys)},
               sum(quantity) AS quantity,
               coalesce(sum(quantity) FILTER (WHERE price_version > {BILLED_AS_PART}), 0) AS billed_quantity,
               coalesce(sum(quantity) FILTER (WHERE price_version > {BILLED_AS_PART} AND unit_price = 0), 0)
                   AS free_quantity,
               coalesce(sum(amount), 0) AS amount,
               coalesce(sum(quantity) FILTER (WHERE price_version IS NULL), 0) AS unpriced_quantity,
               sum(unmetered_requests)::bigint AS unmetered_requests,
               bool_or(corrected) AS corrected
        FROM (SELECT *{columns} FROM ({source}) AS read) AS used {rolled}
        GROUP BY {by}
        HAVING sum(quantity) <> 0 OR coalesce(sum(amount), 0) <> 0 OR sum(unmetered_requests) <> 0
        ORDER BY {by}
    """


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

    --from and --to select windows by their start. `quantity` is what was reported, `billed_quantity` what of it has a
    price, `free_quantity` what of that has the price 0, `amount` what it costs, and `unpriced_quantity` what no price
    matched. Another meter bills the rest: of 2,006 input tokens, 86 are billed if 1,920 were cached and cached tokens
    have their own price. Windows are open, closing (inside grace), closed, or corrected (closed, and changed since).

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
        _refuse_what_days_lack(dimensions, window, timezone)
    with read_only(running_deployment(data_dir).postgres_url) as database:
        refuse_unknown(database, dimensions)
        accounts = tuple(account or ())
        query = UsageQuery(start, end, window, keys_of(words), dimensions, accounts, timezone or UTC_ZONE, roll_up)
        print_rows(usage_rows(database, query), query.columns, form)


def _refuse_what_days_lack(dimensions: tuple[str, ...], window: Window, timezone: ZoneInfo | None) -> None:
    named = ", ".join(dimensions)
    if window not in (Window.DAY, Window.MONTH):
        raise typer.BadParameter(
            f"{named}: is no account, model or meter, and only days keep more than these: add --window P1D or P1M."
        )
    if timezone is not None:
        raise typer.BadParameter(
            f"{named}: is kept by each account's own days, so leave out --timezone {timezone.key}."
        )
