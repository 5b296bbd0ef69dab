"""`weir forecast`: what each account's usage of a month will cost, and how far off such forecasts were."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated

import typer

from cli.explain.command import month
from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.reading import AccountOption, read_only
from jobs.queries.forecasts import COLUMNS, forecast_rows


def forecast(
    *,
    period: Annotated[
        date | None, typer.Option(parser=month, metavar="MONTH", help="A month such as 2026-10; this one by default.")
    ] = None,
    account: AccountOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Forecast what each account's usage of a month will cost, with the error of earlier forecasts.

    The forecast is the cost so far and, for the time that is left, the rate of the last 14 days; it is empty before an
    account has an hour of usage. `error_percent` is the mean error of the same forecast in up to three earlier
    months, made as many days into each; `months_measured` says in how many. The month is that of each account's
    calendar, each currency separately. What is billed for a month as a whole stays as it is. Fees of plans are not
    in it. A month with tiers or packages, or whose plan includes units, has no forecast before its end.
    """
    from deployment.stack import running_deployment

    now = datetime.now(UTC)  # noqa: TID251 -- the top of the command
    with read_only(running_deployment(data_dir).postgres_url) as database:
        first = period or now.date().replace(day=1)
        print_rows(forecast_rows(database, first, tuple(account or ()), now), COLUMNS, form)
