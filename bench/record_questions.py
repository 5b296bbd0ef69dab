"""What pages, commands, gauges and the API ask of panes, matches, hits, thresholds, invoices, webhooks and audits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import psycopg

from bench.history_rows import UNTIL
from bench.record_rows import ENDPOINT, PATTERN, VIEW, WATCH
from dashboard.backend import Backend
from dashboard.queries.applications import read_applications
from dashboard.queries.audits import read_audits
from dashboard.queries.bills import read_bills, read_line_windows
from dashboard.queries.invoices import (
    InvoiceFilter,
    read_invoice,
    read_invoice_page,
    read_invoices,
    read_key_history,
)
from dashboard.queries.models import ModelsFilter, read_models
from dashboard.queries.patterns import MatchFilter, read_matches
from dashboard.queries.thresholds import read_thresholds
from dashboard.queries.watches import HitFilter, read_hits
from jobs.analytics import gauges as of_analytics
from jobs.analytics.watches.store import hit_rows, watch_rows
from jobs.close.account_months import invoiced
from jobs.close.earlier_months import earlier_months
from jobs.close.proof import find_proof
from jobs.close.readiness import open_rows
from jobs.explain.database import Stored
from jobs.exports.billing_periods import billing_periods
from jobs.exports.charges import Charges
from jobs.exports.invoice_details import invoice_details
from jobs.exports.invoiced import Invoices
from jobs.exports.month import Month, Seller
from jobs.queries.invoices import InvoiceQuery, closed_moneys, invoice_document, invoice_rows, last_lines, written_off
from jobs.queries.limit_lists import change_rows, status_rows, threshold_rows
from jobs.queries.pages import Page
from jobs.queries.patterns import Matches, match_rows, pattern_rows
from jobs.queries.views import Hop, Span, bytes_merged, view_rows
from jobs.runtime.postgres.totals import Totals
from metering.invoices import USAGE, Key
from webhooks.endpoints import deliveries, listed

RECORDED = (
    *("analytics_panes", "pattern_matches", "watch_hits", "watch_hours", "threshold_changes"),
    *("invoices", "invoice_lines", "invoice_events", "webhook_events", "webhook_deliveries", "webhook_attempts"),
    *("audits", "batches", "exits"),
)
"""The tables that these questions read, which grow with time."""
MONTH = datetime(UNTIL.year, UNTIL.month, 1, tzinfo=UTC).date()
LAST_MONTH = (MONTH - timedelta(days=1)).replace(day=1)
A_DAY_AGO, AN_HOUR = UNTIL - timedelta(hours=24), timedelta(hours=1)
TWO = ("account-1", "account-17")
SELLER = Seller("Weir", "Weir")
A_PAGE = Page(11)

Question = Callable[[], object]
Read = Callable[[Callable[[Any], object]], object]


def record_pages(backend: Backend) -> Mapping[str, Question]:
    """What the pages ask, by name. Those that ask for the last hours of the clock see the last day before UNTIL."""
    hours = max(24, int((datetime.now(UTC) - A_DAY_AGO) / AN_HOUR))
    key = Key(LAST_MONTH, USAGE, "model-1", "input_tokens", 1, None)

    def invoice(**chosen: Any) -> object:
        [listed_first, *_] = read_invoice_page(backend, InvoiceFilter(**chosen), 1)
        return read_invoice(backend, listed_first.invoice)

    return {
        "page Overview, applications": lambda: read_applications(backend),
        "page Audits": lambda: read_audits(backend, hours),
        "page Bills, minutes of a line": lambda: read_line_windows(backend, read_bills(backend, MONTH).lines[0]),
        "page Models": lambda: read_models(backend, ModelsFilter()),
        "page Models of an account": lambda: read_models(backend, ModelsFilter(account=TWO[0])),
        "page Matches": lambda: read_matches(backend, MatchFilter(hours)),
        "page Matches of an account": lambda: read_matches(backend, MatchFilter(hours, TWO[0], all_versions=True)),
        "page Hits": lambda: read_hits(backend, HitFilter(hours)),
        "page Hits of an account": lambda: read_hits(backend, HitFilter(hours, TWO[0])),
        "page Thresholds": lambda: read_thresholds(backend, None),
        "page Thresholds of an account": lambda: read_thresholds(backend, TWO[0]),
        "page Invoices": lambda: read_invoices(backend, InvoiceFilter()),
        "page Invoices, the list": lambda: read_invoice_page(backend, InvoiceFilter(), 1),
        "page Invoices of a month": lambda: read_invoices(backend, InvoiceFilter(month=LAST_MONTH)),
        "page Invoices of a month, the list": lambda: read_invoice_page(backend, InvoiceFilter(month=LAST_MONTH), 1),
        "page Invoice": lambda: invoice(month=LAST_MONTH),
        "page Invoice, of a key": lambda: read_key_history(backend, TWO[0], "USD", key),
    }


def record_lists(url: str, read: Read) -> Mapping[str, Question]:
    """What commands, the API, gauges and a close ask, by name."""
    day, hop = Span(A_DAY_AGO, UNTIL), Hop(AN_HOUR, AN_HOUR)
    two = Span(A_DAY_AGO, UNTIL, TWO)
    minutes = [(A_DAY_AGO, TWO[0])]

    def exported(database: psycopg.Connection[Any]) -> object:
        month = Month.read(database, LAST_MONTH, SELLER)
        charges = Charges(month, Invoices.read(database, LAST_MONTH, ()), by_line=True)
        return [
            sum(map(len, charges.read(database, (), 1_000))),
            sum(map(len, invoice_details(database, month, (), 1_000))),
            billing_periods(database, month, (), UNTIL),
        ]

    def scraped(gauges: tuple[Totals, ...]) -> Question:
        def scrape(database: psycopg.Connection[Any]) -> object:
            with psycopg.Cursor(database) as cursor:
                return [list(gauge.read(cursor)) for gauge in gauges]

        return lambda: read(scrape)

    def explained(database: psycopg.Connection[Any]) -> object:
        usage = Stored(database)
        return usage.stragglers(minutes), usage.corrections(minutes), usage.windows(minutes)

    def of_accounts(database: psycopg.Connection[Any]) -> object:
        last = last_lines(database, TWO, LAST_MONTH)
        return last, closed_moneys(database, TWO, LAST_MONTH, last.keys()), written_off(database, TWO, LAST_MONTH)

    return {
        "view, hours of a day": lambda: read(
            lambda at: (view_rows(at, VIEW, hop, day), bytes_merged(at, VIEW, hop, day))
        ),
        "view, hours of a day of 2 accounts": lambda: read(lambda at: view_rows(at, VIEW, hop, two)),
        "patterns": lambda: read(lambda at: list(pattern_rows(at))),
        "matches of a day": lambda: read(lambda at: list(match_rows(at, Matches(PATTERN, start=A_DAY_AGO)))),
        "matches of a day of 2 accounts": lambda: read(
            lambda at: list(match_rows(at, Matches(PATTERN, TWO, A_DAY_AGO)))
        ),
        "matches, a page of a day": lambda: read(
            lambda at: list(match_rows(at, Matches(PATTERN, start=A_DAY_AGO), A_PAGE))
        ),
        "watches": lambda: read(lambda at: list(watch_rows(at))),
        "hits of a day": lambda: read(lambda at: list(hit_rows(at, WATCH, A_DAY_AGO))),
        "hits of a day of 2 accounts": lambda: read(lambda at: list(hit_rows(at, WATCH, A_DAY_AGO, accounts=TWO))),
        "hits, a page of a day": lambda: read(lambda at: list(hit_rows(at, WATCH, A_DAY_AGO, page=A_PAGE))),
        "limits, how near, of 2 accounts": lambda: read(lambda at: list(status_rows(at, TWO, UNTIL))),
        "thresholds, a page": lambda: read(lambda at: list(threshold_rows(at, (), A_PAGE))),
        "thresholds, a page of 2 accounts": lambda: read(lambda at: list(threshold_rows(at, TWO, A_PAGE))),
        "thresholds, the last changes": lambda: read(lambda at: list(islice(change_rows(at, ()), 100))),
        "invoices of a month": lambda: read(lambda at: invoice_rows(at, InvoiceQuery(period=LAST_MONTH))),
        "invoices, a page": lambda: read(lambda at: invoice_rows(at, InvoiceQuery(after="W-7", limit=101))),
        "invoice": lambda: read(lambda at: invoice_document(at, "W-7")),
        "export of a month": lambda: read(exported),
        "explain a minute": lambda: read(explained),
        "webhooks": lambda: listed(url),
        "webhooks, the last deliveries": lambda: list(islice(deliveries(url, ENDPOINT, None, page_rows=100), 100)),
        "close: the last lines of 2 accounts": lambda: read(of_accounts),
        "close: invoices of 2 accounts": lambda: read(lambda at: invoiced(at, TWO)),
        "close: what is open of 2 accounts": lambda: read(lambda at: open_rows(at, TWO, LAST_MONTH)),
        "close: earlier months of 2 accounts": lambda: read(lambda at: earlier_months(at, TWO, LAST_MONTH)),
        "close: the proof": lambda: read(lambda at: find_proof(at, A_DAY_AGO - timedelta(days=30), A_DAY_AGO)),
        "gauges of analytics": scraped(of_analytics.totals("analytics")),
    }
