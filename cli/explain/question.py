"""The questions of `weir explain`, and the documents that answer them."""

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
class Question:
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


def explanation(database: Database, tables: str, question: Question) -> dict[str, Any]:
    """The document: `line, windows, usage, outcomes, records, stragglers, corrections, prices`, and if it `adds_up`.

    `reports`: those of requests that have several, and why one of them bills.

    `adds_up` is null if it is unknown: `weir retain` has removed usage of log dates before `usage_removed_before`. Sums
    are of `usage_summed` rows of usage; `cut` names the lists that are incomplete, with their full lengths. Raises
    CannotRun where nothing is found.
    """
    sources = _sources(database, tables, question)
    for subject, answer in (
        (question.line, _of_line),
        (question.window, _of_window),
        (question.straggler, _of_straggler),
        (question.correction, _of_correction),
        (question.session, _of_session),
        (question.text, _of_id),
    ):
        if subject is not None:
            return answer(sources, question)
    raise ValueError("nothing is asked")


def _sources(database: Database, tables: str, question: Question) -> Sources:
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
    is_selected = pl.col("account").is_in(list(question.accounts)) | pl.col("account").is_null()
    whose = is_selected if question.accounts else None
    read = Tables(Files.of(journal, Table.JOURNAL), usage, whose, question.limit)
    return Sources(stored, read, prices, opened[Table.USAGE])


def _of_id(sources: Sources, question: Question) -> dict[str, Any]:
    assert question.text is not None
    newest = sources.tables.journal.latest("received_at") or sources.stored.now()
    latest = newest if question.end is None else min(newest, question.end)
    period = Period(question.start or latest - DEFAULT_PERIOD, question.end)
    found = sources.tables.of_id(question.text, period)
    if found.usage.is_empty() and found.records.is_empty():
        until = f" and before {rfc3339(question.end)}" if question.end else ""
        raise CannotRun(
            f"No request or event of the id {question.text}{_of_accounts(question)} was received since "
            f"{rfc3339(period.start)}{until}. Look further back with --from; `weir dead-letters` lists records that "
            "could not be read."
        )
    return explain_found(sources, found)


def _of_line(sources: Sources, question: Question) -> dict[str, Any]:
    assert question.line is not None
    (account,) = question.accounts
    query = LineSelection(account, question.line, question.model, question.meter, question.currency)
    document = explain_line(sources, query)
    if document is None:
        raise CannotRun(
            f"The bill of account {account} has no such line in {question.line:%Y-%m}. `weir usage --window P1M "
            f"--account {account}` lists what there is."
        )
    return document


def _of_window(sources: Sources, question: Question) -> dict[str, Any]:
    assert question.window is not None
    (account,) = question.accounts
    window = tumbling(question.window)
    document = explain_window(sources, WindowSelection(account, window, question.model, question.meter))
    if not document["windows"] and not document["stragglers"]:
        raise CannotRun(
            f"Account {account} has no such usage in the minute from {rfc3339(window.start)} on. `weir usage` lists "
            "the minutes that have some."
        )
    return document


def _of_straggler(sources: Sources, question: Question) -> dict[str, Any]:
    assert question.straggler is not None
    row = sources.stored.straggler(question.straggler, question.accounts)
    if row is None:
        raise CannotRun(
            f"Usage lsn {question.straggler} is no straggler{_of_accounts(question)}. `weir stragglers` lists them by "
            "`usage_lsn`."
        )
    lsns = [question.straggler, *sources.stored.decided_by(question.straggler)]
    named = Named(lsns, [(row["window_start"], row["account"])])
    return explain_found(sources, sources.tables.of_usage(named.lsns), named)


def _of_correction(sources: Sources, question: Question) -> dict[str, Any]:
    assert question.correction is not None
    rows = sources.stored.correction(question.correction, question.accounts)
    if not rows:
        raise CannotRun(
            f"There is no correction {question.correction}{_of_accounts(question)}. `weir corrections` lists them; "
            "each is named by the first of its `usage_lsns`."
        )
    lsns = {lsn for row in rows for lsn in row["usage_lsns"]}
    named = Named(lsns, {(row["window_start"], row["account"]) for row in rows})
    return explain_found(sources, sources.tables.of_correction(lsns), named)


def _of_session(sources: Sources, question: Question) -> dict[str, Any]:
    assert question.session is not None
    row = sources.stored.session(question.session, question.accounts)
    if row is None:
        raise CannotRun(
            f"There is no session {question.session}{_of_accounts(question)}. `weir sessions` lists them by "
            "`session_id`."
        )
    user = (row["account"], row["user_id"])
    found, requests = sources.tables.of_session(*user, row["session_start"], row["session_end"])
    document = explain_found(sources, found)
    cut = {**({"requests": requests} if requests > question.limit else {}), **(document["cut"] or {})}
    return {"session": {**row, "requests_found": requests}, **document, "cut": cut or None}


def _of_accounts(question: Question) -> str:
    return f" of {', '.join(question.accounts)}" if question.accounts else ""
