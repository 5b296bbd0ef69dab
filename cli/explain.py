"""`weir explain`: from a window, a request, a straggler or a correction down to the records of Kafka, with all sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import DEFAULT_DATA_DIR, DataDir
from cli.reading import AccountOption, Database, FromOption, ToOption, check_range, instant, read_only
from deployment.errors import CannotRun
from metering.instants import rfc3339

if TYPE_CHECKING:
    from cli.way_down.explanation import Sources

DEFAULT_PERIOD = timedelta(days=35)
"""How long identities are remembered by default, and how old an event may be."""
DEFAULT_LIMIT = 100


class Form(StrEnum):
    """What an explanation is printed as: it is no list, so there is no CSV."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True)
class Question:
    """What is to be explained: exactly one of `text` (an id), `window`, `straggler`, `correction` and `session`.

    `start` and `end` bound when records and usage of an id were received; None: DEFAULT_PERIOD up to the newest record.
    """

    text: str | None = None
    window: datetime | None = None
    straggler: int | None = None
    correction: int | None = None
    session: int | None = None
    accounts: tuple[str, ...] = ()
    model: str | None = None
    meter: str | None = None
    start: datetime | None = None
    end: datetime | None = None
    limit: int = DEFAULT_LIMIT


def explanation(database: Database, tables: str, question: Question) -> dict[str, Any]:
    """The document: `line, windows, usage, outcomes, records, stragglers, corrections, prices`, and if it `adds_up`.

    Raises CannotRun where nothing is known of what is asked for.
    """
    sources = _sources(database, tables, question)
    for asked, answer in (
        (question.window, _of_window),
        (question.straggler, _of_straggler),
        (question.correction, _of_correction),
        (question.session, _of_session),
        (question.text, _of_id),
    ):
        if asked is not None:
            return answer(sources, question)
    raise ValueError("nothing is asked")


def _sources(database: Database, tables: str, question: Question) -> Sources:
    from cli.way_down.explanation import Sources
    from cli.way_down.files import Files
    from cli.way_down.records import Tables
    from cli.way_down.stored import Stored
    from jobs.runtime.delta.table import open_table
    from jobs.streams import Table

    # The database first: what billing has read is in tables that are opened after it.
    stored = Stored(database)
    stored.billed_to()
    opened = {name: open_table(tables, name) for name in (Table.JOURNAL, Table.USAGE, Table.PRICES)}
    if (journal := opened[Table.JOURNAL]) is None:
        raise CannotRun(f"There is no journal below {tables}: ingestion has not made it yet, or it is elsewhere.")
    usage, prices = (
        Files.none(name) if (found := opened[name]) is None else Files.of(found, name)
        for name in (Table.USAGE, Table.PRICES)
    )
    read = Tables(Files.of(journal, Table.JOURNAL), usage, question.accounts)
    return Sources(stored, read, prices, question.limit)


def _of_id(sources: Sources, question: Question) -> dict[str, Any]:
    from cli.way_down.explanation import explain_found
    from cli.way_down.records import Period

    assert question.text is not None
    newest = sources.tables.journal.latest("received_at") or sources.stored.now()
    period = Period(question.start or newest - DEFAULT_PERIOD, question.end)
    found = sources.tables.of_id(question.text, period)
    if found.usage.is_empty() and found.records.is_empty():
        until = f" and before {rfc3339(question.end)}" if question.end else ""
        raise CannotRun(
            f"No request or event of the id {question.text}{_of_accounts(question)} was received since "
            f"{rfc3339(period.start)}{until}. Look further back with --from; `weir dead-letters` lists records that "
            "could not be read."
        )
    return explain_found(sources, found)


def _of_window(sources: Sources, question: Question) -> dict[str, Any]:
    from cli.way_down.explanation import WindowAsked, explain_window
    from metering.windows import tumbling

    assert question.window is not None
    (account,) = question.accounts
    window = tumbling(question.window)
    document = explain_window(sources, WindowAsked(account, window, question.model, question.meter))
    if not document["windows"] and not document["stragglers"]:
        raise CannotRun(
            f"Account {account} has no such usage in the minute from {rfc3339(window.start)} on. `weir usage` lists "
            "the minutes that have some."
        )
    return document


def _of_straggler(sources: Sources, question: Question) -> dict[str, Any]:
    from cli.way_down.explanation import explain_found

    assert question.straggler is not None
    if not sources.stored.has_straggler(question.straggler):
        raise CannotRun(f"Usage lsn {question.straggler} is no straggler. `weir stragglers` lists them by `usage_lsn`.")
    return explain_found(sources, sources.tables.of_usage([question.straggler]))


def _of_correction(sources: Sources, question: Question) -> dict[str, Any]:
    from cli.way_down.explanation import explain_found

    assert question.correction is not None
    lsns = sources.stored.corrected_by(question.correction)
    if not lsns:
        raise CannotRun(
            f"There is no correction {question.correction}. `weir corrections` lists them; each is named by the first "
            "of its `usage_lsns`."
        )
    return explain_found(sources, sources.tables.of_correction(lsns))


def _of_session(sources: Sources, question: Question) -> dict[str, Any]:
    from cli.way_down.explanation import explain_found

    assert question.session is not None
    row = sources.stored.session(question.session)
    if row is None:
        raise CannotRun(f"There is no session {question.session}. `weir sessions` lists them by `session_id`.")
    user = (row["account"], row["user_id"])
    found, requests = sources.tables.of_session(*user, row["session_start"], row["session_end"], question.limit)
    document = explain_found(sources, found)
    cut = {"requests": requests} if requests > question.limit else None
    return {"session": {**row, "requests_found": requests}, **document, "cut": cut or document["cut"]}


def _of_accounts(question: Question) -> str:
    return f" of {', '.join(question.accounts)}" if question.accounts else ""


def explain(
    text: Annotated[str | None, typer.Argument(metavar="ID", help="A request id, or else an event's id.")] = None,
    *,
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
    model: Annotated[str | None, typer.Option(help="Of a window: only this model.")] = None,
    meter: Annotated[str | None, typer.Option(help="Of a window: only this meter.")] = None,
    start: FromOption = None,
    end: ToOption = None,
    limit: Annotated[
        int,
        typer.Option(
            min=1,
            help="Show so many rows of usage with their records; of a session, so many requests. A window's sums are "
            "of all.",
        ),
    ] = DEFAULT_LIMIT,
    form: Annotated[Form, typer.Option("--format", help="What to print: lines to read, or JSON.")] = Form.TABLE,
    data_dir: DataDir = DEFAULT_DATA_DIR,
) -> None:
    """Explain a number, or what became of a record: line, windows, usage, outcomes, and the records as received.

    With every quantity x unit price = amount, the version of the price, and the record that told it. An ID is looked
    for in what was received in the last 35 days, or from --from to --to. Exit status 1 where nothing is known of it.
    """
    from cli.output import print_document
    from cli.way_down.printed import print_explanation
    from deployment.stack import running_deployment

    check_range(start, end)
    asked = (text, window, straggler, correction, session)
    if sum(one is not None for one in asked) != 1:
        raise typer.BadParameter("name one thing: an ID, --window, --straggler, --correction or --session.")
    accounts = tuple(account or ())
    if window is not None and len(accounts) != 1:
        raise typer.BadParameter("--window is of one account: add --account.")
    question = Question(*asked, accounts=accounts, model=model, meter=meter, start=start, end=end, limit=limit)
    stack = running_deployment(data_dir)
    with read_only(stack.postgres_url) as database:
        document = explanation(database, stack.tables, question)
    printed: Callable[[dict[str, Any]], None] = print_document if form is Form.JSON else print_explanation
    printed(document)
