"""`weir models`: which models are used most, and how that changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.output import Format, FormatOption, print_rows
from cli.reading import AccountOption, FromOption, ToOption, check_range, read_only
from jobs.queries.models import COLUMNS, Measure, ModelQuery, model_rows

MINUTE, WEEK = timedelta(minutes=1), timedelta(days=7)


def models(
    *,
    start: FromOption = None,
    end: ToOption = None,
    by: Annotated[Measure, typer.Option(help="What to rank by; amounts by currency.")] = Measure.REQUESTS,
    account: AccountOption = None,
    form: FormatOption = Format.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Rank the models by requests, tokens, cost or users, with the change and the busiest minute.

    --from and --to are whole minutes; without --to it is now, without --from seven days before that. Changes are in
    percent of the span of equal length before; empty where that had nothing. `peak_minute` is the first minute with the
    most requests. `users` counts the users with usage, each account's own. What is billed by the day or month as a
    whole has no minutes, and is left out. Where tiers or packages price any usage of a model, or a
    plan includes any, which only a whole month does, `amount` is empty, and by amount the model has no rank.
    """
    from deployment.stack import running_deployment
    from jobs.runtime.delta.table import open_table
    from jobs.streams import Table

    now = datetime.now(UTC)  # noqa: TID251 -- the top of the command
    end = end or now.replace(second=0, microsecond=0) + MINUTE
    start = start or end - WEEK
    check_range(start, end)
    if start.second or end.second or start.microsecond or end.microsecond:
        raise typer.BadParameter("--from and --to must be whole minutes: usage is kept by the minute.")
    stack = running_deployment(data_dir)
    query = ModelQuery(start, end, by, tuple(account or ()))
    with read_only(stack.postgres_url) as database:
        print_rows(model_rows(database, open_table(stack.tables, Table.USAGE), query), COLUMNS, form)
