"""`weir explain`: lineage from a bill's line, a request or another subject down to Kafka records, with all sums."""

from __future__ import annotations

from collections.abc import Callable
from datetime import MAXYEAR, UTC, date, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.reading import AccountOption, FromOption, ToOption, check_range, instant, read_only
from metering.instants import EPOCH

DEFAULT_LIMIT, MOST = 100, 1_000_000


def month(text: str | date) -> date:
    """The first day of a month such as 2026-03. Raises `typer.BadParameter` for anything else."""
    try:
        found = datetime.strptime(str(text), "%Y-%m").replace(tzinfo=UTC).date()
    except ValueError:
        found = None
    # The calendar is finite, and a day before and after the month are read.
    if found is None or not EPOCH.year <= found.year < MAXYEAR:
        raise typer.BadParameter(f"{text!r} is not a month such as 2026-03.")
    return found


class Form(StrEnum):
    """The output format of an explanation: it is not a list, so there is no CSV."""

    TABLE = "table"
    JSON = "json"


def explain(
    text: Annotated[str | None, typer.Argument(metavar="ID", help="A request id, or else an event's id.")] = None,
    *,
    line: Annotated[
        date | None,
        typer.Option(parser=month, metavar="MONTH", help="Lines of a bill, such as 2026-03, of one --account."),
    ] = None,
    window: Annotated[
        datetime | None,
        typer.Option(parser=instant, metavar="INSTANT", help="The minute that holds this instant, of one --account."),
    ] = None,
    straggler: Annotated[int | None, typer.Option(min=1, metavar="LSN", help="The `usage_lsn` of a straggler.")] = None,
    correction: Annotated[
        int | None, typer.Option(min=1, metavar="LSN", help="The first of the `usage_lsns` of a correction.")
    ] = None,
    session: Annotated[int | None, typer.Option(min=1, metavar="ID", help="The `session_id` of a session.")] = None,
    account: AccountOption = None,
    model: Annotated[str | None, typer.Option(help="Of a line or window: only this model.")] = None,
    meter: Annotated[str | None, typer.Option(help="Of a line or window: only this meter.")] = None,
    currency: Annotated[str | None, typer.Option(help="Of a line: only this currency.")] = None,
    start: FromOption = None,
    end: ToOption = None,
    limit: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST,
            help="Show N rows of usage with their records; of a session, N requests. The sums of a window "
            "are of all its usage, those of an ID of the rows shown; of a line, N minutes and rows of usage.",
        ),
    ] = DEFAULT_LIMIT,
    form: Annotated[Form, typer.Option("--format", help="What to print: lines to read, or JSON.")] = Form.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Explain a number, or what became of a record: line, windows, usage, outcomes, and the records as received.

    It shows each quantity x unit price = amount, the version of the price, and the record that set it. It searches
    for an ID in what was received in the last 35 days, or from --from to --to. Exit status 1 if nothing is found.
    """
    from cli.explain.printing import print_explanation
    from cli.explain.query import ExplainQuery, explanation
    from cli.output import print_document
    from deployment.stack import running_deployment

    check_range(start, end)
    if line is None and window is None and not model is meter is None:
        raise typer.BadParameter("--model and --meter need --line or --window.")
    if line is None and currency is not None:
        raise typer.BadParameter("--currency needs --line.")
    if text is None and not start is end is None:
        raise typer.BadParameter("--from and --to apply to an ID only: leave them out.")
    subjects = (text, line, window, straggler, correction, session)
    if sum(subject is not None for subject in subjects) != 1:
        raise typer.BadParameter("name one thing: an ID, --line, --window, --straggler, --correction or --session.")
    accounts = tuple(account or ())
    if not line is window is None and len(accounts) != 1:
        raise typer.BadParameter("--line and --window need one account: add --account.")
    query = ExplainQuery(*subjects, accounts, model, meter, currency, start, end, limit)
    stack = running_deployment(data_dir)
    with read_only(stack.postgres_url) as database:
        document = explanation(database, stack.tables, query)
    printed: Callable[[dict[str, Any]], None] = print_document if form is Form.JSON else print_explanation
    printed(document)
