"""`weir usage`: quantity and amount per window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, Row, print_rows
from cli.periods import UTC_ZONE, Window, bounds, first_start_from, window_key_sql
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
from metering import windows
from metering.lateness import window_state


class Key(StrEnum):
    """What usage can be grouped by. Currency always is: two currencies are never summed."""

    ACCOUNT = "account"
    MODEL = "model"
    METER = "meter"


@dataclass(frozen=True)
class UsageQuery:
    """Which windows to list; `start` and `end` select by window start, None is unbounded."""

    start: datetime | None = None
    end: datetime | None = None
    window: Window = Window.MINUTE
    group_by: tuple[Key, ...] = tuple(Key)
    accounts: tuple[str, ...] = ()
    zone: ZoneInfo = UTC_ZONE

    @property
    def columns(self) -> list[str]:
        """The columns of the list, in order."""
        keys = [key for key in Key if key in self.group_by]
        measures = ["quantity", "amount", "unpriced_quantity", "state"]
        return ["window_start", "window_end", *keys, "currency", *measures]


def usage_rows(database: Database, query: UsageQuery) -> Iterator[Row]:
    """Rows with the keys `query.columns`, ordered by window, then by key; the money is summed by the database.

    A window longer than a minute is judged by its own end, which is that of its least advanced minute: a day that
    still runs is open, whether or not its last minutes have usage yet.
    """
    frontier, closed_until = _billing_progress(database)
    for row in select(database, _statement(query), _parameters(query)):
        start, end = bounds(query.window, row.pop("window_key"), query.zone)
        # What is closed the view says, whatever graces there were: here no grace is asked for.
        state = window_state(
            windows.Window(start, end), None, frontier, corrected=row.pop("corrected"), closed_before=closed_until
        )
        yield {"window_start": start, "window_end": end, **row, "state": state.value}


def _billing_progress(database: Database) -> tuple[datetime | None, datetime | None]:
    progress = database.execute("SELECT frontier, closed_until FROM closed_usage").fetchone()
    return (progress["frontier"], progress["closed_until"]) if progress else (None, None)


def _statement(query: UsageQuery) -> str:
    keys = ", ".join(["window_key", *(key for key in Key if key in query.group_by), "currency"])
    return f"""
        SELECT {keys},
               sum(quantity) AS quantity,
               coalesce(sum(amount), 0) AS amount,
               coalesce(sum(quantity) FILTER (WHERE price_version IS NULL), 0) AS unpriced_quantity,
               bool_or(corrected) AS corrected
        FROM (SELECT *, {window_key_sql(query.window)} AS window_key FROM usage_windows) AS minutes
        WHERE (%(start)s::timestamptz IS NULL OR window_start >= %(start)s)
          AND (%(end)s::timestamptz IS NULL OR window_start < %(end)s)
          AND (%(accounts)s::text[] IS NULL OR account = ANY (%(accounts)s))
        GROUP BY {keys}
        HAVING sum(quantity) <> 0
        ORDER BY {keys}
    """


def _parameters(query: UsageQuery) -> dict[str, object]:
    # Whole windows only: half an hour's usage under an hour's heading would be a wrong number.
    starts = [None if at is None else first_start_from(query.window, at, query.zone) for at in (query.start, query.end)]
    return {"start": starts[0], "end": starts[1], "accounts": list(query.accounts) or None, "zone": query.zone.key}


def _keys(text: str) -> tuple[Key, ...]:
    """The keys of a comma-separated list; empty for the total per currency. Raises `typer.BadParameter`."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in tuple(Key)]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: can only be any of {', '.join(Key)}.")
    return tuple(Key(word) for word in words)


def usage(
    *,
    start: FromOption = None,
    end: ToOption = None,
    window: Annotated[Window, typer.Option(help="Length of the windows (ISO 8601).")] = Window.MINUTE,
    group_by: Annotated[
        str,
        typer.Option(metavar="KEYS", help="Keys, comma-separated. Without meter, quantities of unlike units add up."),
    ] = ",".join(Key),
    account: AccountOption = None,
    timezone: Annotated[
        ZoneInfo,
        typer.Option(
            parser=zone,
            metavar="ZONE",
            help="Time zone of the days and months of P1D and P1M, the same for all accounts. Only a view: the "
            "months of a bill are "
            "each account's own, as the dashboard's page Bills has them.",
        ),
    ] = UTC_ZONE,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """List usage and its amount per window, account, model and meter.

    --from and --to select windows by their start. `amount` sums priced usage; `unpriced_quantity` is what no price
    matched. Windows are open, closing (inside grace), closed, or corrected (closed, with stragglers in it).
    """
    from deployment.stack import running_deployment

    check_range(start, end)
    query = UsageQuery(start, end, window, _keys(group_by), tuple(account or ()), timezone)
    with read_only(running_deployment(data_dir).postgres_url) as database:
        print_rows(usage_rows(database, query), query.columns, form)
