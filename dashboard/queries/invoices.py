"""Invoices: a page of them, one with its lines and states, and all that was ever issued for a line's key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import psycopg

from dashboard.backend import Backend
from dashboard.queries.bills import Line, account_lines
from dashboard.queries.meters import Meters, meters_of
from jobs.queries.invoices import LISTED, charged_lines, closed_moneys, event_of, header_of, last_lines, line_of
from metering.invoice_chain import Event
from metering.invoices import FEES, USAGE, WRITE_OFF, Header, Key
from metering.invoices import Line as InvoiceLine

PAGE_ROWS = 100

_CHOSEN = """
    WHERE (%(account)s::text IS NULL OR invoices.account = %(account)s)
      AND (%(period)s::date IS NULL OR period = %(period)s)
"""
# Lines that correct a line have its account and its original month, by which they are found in the index.
_CORRECTING = """
    SELECT own.line, later.invoice FROM invoice_lines AS own
    JOIN invoice_lines AS later ON (later.account, later.original_period) = (own.account, own.original_period)
     AND (later.corrects_invoice, later.corrects_line) = (own.invoice, own.line)
    WHERE own.invoice = {} AND NOT EXISTS (
        SELECT FROM invoice_events AS v WHERE v.invoice = later.invoice AND v.state = 'Voided'
    )
"""
_PAGE = f"""
    WITH page AS (
        {LISTED} {_CHOSEN} ORDER BY issued.at DESC, issuer, number DESC LIMIT %(limit)s OFFSET %(offset)s
    )
    SELECT invoice, account, period, kind, currency, total, state, issued_at, lines, hash, replaces,
           (SELECT count(*) FROM invoice_lines AS own WHERE own.invoice = page.invoice AND charge_class IS NOT NULL)
               AS correction_lines,
           (SELECT string_agg(DISTINCT found.invoice, ', ') FROM ({_CORRECTING.format("page.invoice")}) AS found)
               AS corrected_by
    FROM page ORDER BY issued_at DESC, issuer, number DESC
"""
_SUMS = f"""
    SELECT currency, state, count(*) AS invoices, sum(total) AS total FROM ({LISTED} {_CHOSEN}) AS chosen
    GROUP BY currency, state ORDER BY currency, state
"""
_LAST_ISSUED = """
    SELECT max(at) AS issued_at, clock_timestamp() AS read_at FROM invoice_events WHERE state = 'Issued'
"""
_ONE = f"{LISTED} WHERE invoices.invoice = %s"
_LINES = "SELECT * FROM invoice_lines WHERE invoice = %s ORDER BY line"
_EVENTS = "SELECT * FROM invoice_events WHERE invoice = %s ORDER BY sequence"
_CORRECTED_BY = f"SELECT DISTINCT line, invoice FROM ({_CORRECTING.format('%s')}) AS found ORDER BY line, invoice"
_REPLACED_BY = "SELECT invoice FROM invoices WHERE replaces = %s"
# All lines of one key. A null stands for nothing known (of a model) and equals itself.
_OF_KEY = """
    SELECT lines.*, CASE WHEN voided.invoice IS NULL THEN 'Issued' ELSE 'Voided' END AS state
    FROM invoice_lines AS lines JOIN invoices USING (invoice)
    JOIN invoice_events AS issued ON issued.invoice = lines.invoice AND issued.state = 'Issued'
    LEFT JOIN invoice_events AS voided ON voided.invoice = lines.invoice AND voided.state = 'Voided'
    WHERE lines.account = %(account)s AND currency = %(currency)s AND original_period = %(original_period)s
      AND lines.kind = %(kind)s AND model IS NOT DISTINCT FROM %(model)s AND meter IS NOT DISTINCT FROM %(meter)s
      AND price_version IS NOT DISTINCT FROM %(price_version)s AND tier IS NOT DISTINCT FROM %(tier)s
    ORDER BY issued.sequence, line
"""


@dataclass(frozen=True)
class InvoiceFilter:
    """Which invoices: of one account or all, of one month or all."""

    account: str | None = None
    month: date | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """As the queries name them."""
        return {"account": self.account, "period": self.month}


@dataclass(frozen=True)
class Listed:
    """An invoice in a list. `correction_lines` of it change earlier ones; `corrected_by` are later ones that change it,
    unless they were voided. `hash` is that of its issue.
    """

    invoice: str
    account: str
    period: date
    kind: str
    currency: str
    total: Decimal
    state: str
    issued_at: datetime
    lines: int
    hash: str
    replaces: str | None
    correction_lines: int
    corrected_by: str | None


@dataclass(frozen=True)
class Sum:
    """All matching invoices of one currency in one state."""

    currency: str
    state: str
    invoices: int
    total: Decimal


@dataclass(frozen=True)
class Invoices:
    """All that match, summed. `last_issued_at` is of all there are; None: there is no invoice."""

    read_at: datetime
    last_issued_at: datetime | None
    sums: tuple[Sum, ...]

    @property
    def pages(self) -> int:
        """How many pages they have; none where nothing matches."""
        return -(-sum(part.invoices for part in self.sums) // PAGE_ROWS)


@dataclass(frozen=True)
class Invoice:
    """One invoice. `corrected_by`: by the number of a line, the later invoices that change it; voided ones are not."""

    header: Header
    state: str
    lines: tuple[InvoiceLine, ...]
    events: tuple[Event, ...]
    corrected_by: Mapping[int, tuple[str, ...]]
    replaced_by: str | None
    meters: Meters


@dataclass(frozen=True)
class Issued:
    """A line of some invoice of an account, and the invoice's state."""

    invoice: str
    state: str
    line: InvoiceLine


@dataclass(frozen=True)
class KeyHistory:
    """What was `issued` for the key of a line, in order, and what usage has for it `now`; None: nothing any more."""

    issued: tuple[Issued, ...]
    now: Line | None


def read_invoices(backend: Backend, chosen: InvoiceFilter) -> Invoices:
    """The sums of the invoices that match."""
    with backend.snapshot() as cursor:
        last = cursor.execute(_LAST_ISSUED).fetchall()[0]
        sums = cursor.execute(_SUMS, chosen.parameters).fetchall()
    return Invoices(last["read_at"], last["issued_at"], tuple(Sum(**row) for row in sums))


def read_invoice_page(backend: Backend, chosen: InvoiceFilter, page: int) -> tuple[Listed, ...]:
    """A page of those that match, the last issued first; pages count from 1."""
    limits = {"limit": PAGE_ROWS, "offset": PAGE_ROWS * (page - 1)}
    with backend.snapshot() as cursor:
        return tuple(Listed(**row) for row in cursor.execute(_PAGE, {**chosen.parameters, **limits}).fetchall())


def read_invoice(backend: Backend, invoice: str) -> tuple[Invoice, ...]:
    """One invoice with its lines and states; none where it is not there, or not to be seen."""
    with backend.snapshot() as cursor:
        found = cursor.execute(_ONE, [invoice]).fetchone()
        if found is None:
            return ()
        lines = cursor.execute(_LINES, [invoice]).fetchall()
        events = cursor.execute(_EVENTS, [invoice]).fetchall()
        correcting = cursor.execute(_CORRECTED_BY, [invoice]).fetchall()
        replaced_by = cursor.execute(_REPLACED_BY, [invoice]).fetchone()
        meters = meters_of(cursor)
    corrected_by: dict[int, tuple[str, ...]] = {}
    for row in correcting:
        corrected_by[row["line"]] = (*corrected_by.get(row["line"], ()), row["invoice"])
    read = Invoice(
        header_of(found),
        found["state"],
        tuple(line_of(row) for row in lines),
        tuple(event_of(row) for row in events),
        corrected_by,
        replaced_by["invoice"] if replaced_by else None,
        meters,
    )
    return (read,)


def read_key_history(backend: Backend, account: str, currency: str, key: Key) -> KeyHistory:
    """All lines of a key of an account, also those of voided invoices, and the usage behind them."""
    with backend.snapshot() as cursor:
        of_key = {"account": account, "currency": currency, **key._asdict()}
        rows = cursor.execute(_OF_KEY, of_key).fetchall()
        meters = meters_of(cursor)
        month = () if key.kind == WRITE_OFF else _charged_lines(cursor, key.original_period, account, meters)
    now = next((line for line in month if _is_of(line, currency, key)), None)
    issued = tuple(Issued(row["invoice"], row["state"], line_of(row)) for row in rows)
    return KeyHistory(issued, now)


def _charged_lines(
    cursor: psycopg.Cursor[dict[str, Any]], month: date, account: str, meters: Meters
) -> tuple[Line, ...]:
    """The lines of a month as its invoices have them: what brings a plan to its minimum depends on rounded lines."""
    last = last_lines(cursor, [account], month)
    closed = closed_moneys(cursor, [account], month, last)
    return account_lines(cursor, month, account, meters, charged_lines(month, last, closed.get, closed))


def _is_of(line: Line, currency: str, key: Key) -> bool:
    """Two fees of a plan differ in nothing but their kind."""
    kind = line.kind if line.kind in FEES else USAGE
    of_line = (line.currency, kind, line.model, line.meter, line.price_version, line.tier)
    return of_line == (currency, key.kind, key.model, key.meter, key.price_version, key.tier)
