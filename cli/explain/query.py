"""What `weir explain` looks up, and the documents that it prints."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import polars as pl

from deployment.errors import CannotRun
from jobs.explain.database import Stored
from jobs.explain.explanation import Named, Sources, WindowSelection, explain_found, explain_window
from jobs.explain.files import Files
from jobs.explain.line import LineSelection, explain_line
from jobs.explain.records import DEFAULT_PERIOD, Period, Tables
from jobs.queries.reading import Database
from jobs.runtime.delta.table import open_table
from jobs.streams import Table
from metering.instants import rfc3339
from metering.windows import tumbling


@dataclass(frozen=True)
class ExplainQuery:
    """What is to be explained: exactly one of `text` (an id), `line`, `window`, `straggler`, `correction`, `session`.

    `line` is the first day of a month.

    `start` and `end` bound when records and usage of an id were received; None: DEFAULT_PERIOD up to the newest record.
    """

    text: str | None = None
    line: date | None = None
    window: datetime | None = None
    straggler: int | None = None
    correction: int | None = None
    session: int | None = None
    accounts: tuple[str, ...] = ()
    model: str | None = None
    meter: str | None = None
    currency: str | None = None
    start: datetime | None = None
    end: datetime | None = None
    limit: int = 100


def explanation(database: Database, tables: str, query: ExplainQuery) -> dict[str, Any]:
    """The document: `line, windows, usage, outcomes, records, stragglers, corrections, prices`, and if it `adds_up`.

    `reports`: those of requests that have several, and why one of them bills.

    `adds_up` is null if it is unknown: `weir retain` has removed usage of log dates before `usage_removed_before`. Sums
    are of `usage_summed` rows of usage; `cut` names the lists that are incomplete, with their full lengths. Raises
    CannotRun where nothing is found.
    """
    sources = _sources(database, tables, query)
    for subject, answer in (
        (query.line, _of_line),
        (query.window, _of_window),
        (query.straggler, _of_straggler),
        (query.correction, _of_correction),
        (query.session, _of_session),
        (query.text, _of_id),
    ):
        if subject is not None:
            return answer(sources, query)
    raise ValueError("nothing is asked")


def _sources(database: Database, tables: str, query: ExplainQuery) -> Sources:
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
    # A record without an account is everybody's.
    is_selected = pl.col("account").is_in(list(query.accounts)) | pl.col("account").is_null()
    whose = is_selected if query.accounts else None
    read = Tables(Files.of(journal, Table.JOURNAL), usage, whose, query.limit)
    return Sources(stored, read, prices, opened[Table.USAGE])


def _of_id(sources: Sources, query: ExplainQuery) -> dict[str, Any]:
    assert query.text is not None
    newest = sources.tables.journal.latest("received_at") or sources.stored.now()
    latest = newest if query.end is None else min(newest, query.end)
    period = Period(query.start or latest - DEFAULT_PERIOD, query.end)
    found = sources.tables.of_id(query.text, period)
    if found.usage.is_empty() and found.records.is_empty():
        until = f" and before {rfc3339(query.end)}" if query.end else ""
        raise CannotRun(
            f"No request or event of the id {query.text}{_of_accounts(query)} was received since "
            f"{rfc3339(period.start)}{until}. Look further back with --from; `weir dead-letters` lists records that "
            "could not be read."
        )
    return explain_found(sources, found)


def _of_line(sources: Sources, query: ExplainQuery) -> dict[str, Any]:
    assert query.line is not None
    (account,) = query.accounts
    selection = LineSelection(account, query.line, query.model, query.meter, query.currency)
    document = explain_line(sources, selection)
    if document is None:
        raise CannotRun(
            f"The bill of account {account} has no such line in {query.line:%Y-%m}. `weir usage --window P1M "
            f"--account {account}` lists what there is. What a plan costs beside usage is on the page Bills, in "
            "`GET /v1/bills`, and on invoices."
        )
    return document


def _of_window(sources: Sources, query: ExplainQuery) -> dict[str, Any]:
    assert query.window is not None
    (account,) = query.accounts
    window = tumbling(query.window)
    document = explain_window(sources, WindowSelection(account, window, query.model, query.meter))
    if not document["windows"] and not document["stragglers"]:
        raise CannotRun(
            f"Account {account} has no such usage in the minute from {rfc3339(window.start)} on. `weir usage` lists "
            "the minutes that have some."
        )
    return document


def _of_straggler(sources: Sources, query: ExplainQuery) -> dict[str, Any]:
    assert query.straggler is not None
    row = sources.stored.straggler(query.straggler, query.accounts)
    if row is None:
        raise CannotRun(
            f"Usage lsn {query.straggler} is no straggler{_of_accounts(query)}. `weir stragglers` lists them by "
            "`usage_lsn`."
        )
    lsns = [query.straggler, *sources.stored.decided_by(query.straggler)]
    named = Named(lsns, [(row["window_start"], row["account"])])
    return explain_found(sources, sources.tables.of_usage(named.lsns), named)


def _of_correction(sources: Sources, query: ExplainQuery) -> dict[str, Any]:
    assert query.correction is not None
    rows = sources.stored.correction(query.correction, query.accounts)
    if not rows:
        raise CannotRun(
            f"There is no correction {query.correction}{_of_accounts(query)}. `weir corrections` lists them; "
            "each is named by the first of its `usage_lsns`."
        )
    lsns = {lsn for row in rows for lsn in row["usage_lsns"]}
    named = Named(lsns, {(row["window_start"], row["account"]) for row in rows})
    return explain_found(sources, sources.tables.of_correction(lsns), named)


def _of_session(sources: Sources, query: ExplainQuery) -> dict[str, Any]:
    assert query.session is not None
    row = sources.stored.session(query.session, query.accounts)
    if row is None:
        raise CannotRun(
            f"There is no session {query.session}{_of_accounts(query)}. `weir sessions` lists them by `session_id`."
        )
    user = (row["account"], row["user_id"])
    found, requests = sources.tables.of_session(*user, row["session_start"], row["session_end"])
    document = explain_found(sources, found)
    cut = {**({"requests": requests} if requests > query.limit else {}), **(document["cut"] or {})}
    return {"session": {**row, "requests_found": requests}, **document, "cut": cut or None}


def _of_accounts(query: ExplainQuery) -> str:
    return f" of {', '.join(query.accounts)}" if query.accounts else ""
