"""Invoices as they are stored: lists, one with its lines and states, and all of an account to verify."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from jobs.billing_progress import Database, Row
from metering.invoice_chain import Event
from metering.invoice_verification import Stored, StoredInvoice
from metering.invoices import FEES, USAGE, WRITE_OFF, Header, IssuedLine, Key, Kind, Line, Money, Rounding, State

COLUMNS = ("invoice", "account", "period", "currency", "total", "state", "hash")
LINE_COLUMNS = (
    *("line", "kind", "charge_class", "original_period", "corrects_invoice", "corrects_line", "model", "meter"),
    *("price_version", "tier", "unit_price", "quantity", "exact_amount", "amount", "residual"),
)
EVENT_COLUMNS = ("state", "at", "made_by", "reason", "allowed", "hash")
_ACCOUNT_BATCH = 500

# The hash of an invoice is that of its issue: later states do not change it.
LISTED = """
    SELECT invoices.*, issued.hash, issued.at AS issued_at,
           CASE WHEN voided.invoice IS NULL THEN 'Issued' ELSE 'Voided' END AS state
    FROM invoices
    JOIN invoice_events AS issued ON issued.invoice = invoices.invoice AND issued.state = 'Issued'
    LEFT JOIN invoice_events AS voided ON voided.invoice = invoices.invoice AND voided.state = 'Voided'
"""
"""All invoices: the columns of `invoices` with `hash`, `issued_at` and `state`. A condition can follow."""
_CHOSEN = f"""
    {LISTED}
    WHERE (%(accounts)s::text[] IS NULL OR invoices.account = ANY (%(accounts)s))
      AND (%(period)s::date IS NULL OR period = %(period)s)
      AND (%(after)s::text IS NULL OR (issuer, number) > (
          SELECT issuer, number FROM invoices WHERE invoice = %(after)s))
    ORDER BY issuer, number LIMIT %(limit)s
"""
_LINES = "SELECT * FROM invoice_lines WHERE invoice = %s ORDER BY line"
_EVENTS = "SELECT * FROM invoice_events WHERE invoice = %s ORDER BY sequence"
_ACCOUNTS = """
    SELECT account FROM invoices UNION SELECT account FROM invoice_events UNION SELECT account FROM invoice_lines
    ORDER BY account
"""
_OF_ACCOUNTS = "SELECT * FROM {table} WHERE account = ANY (%s) ORDER BY {order}"
# Of each key the line that was issued last. A minus stands right before its plus.
_LAST_LINES = """
    SELECT DISTINCT ON (lines.account, currency, original_period, lines.kind, model, meter, price_version, tier)
           lines.*, currency
    FROM invoice_lines AS lines JOIN invoices USING (invoice)
    JOIN invoice_events AS issued ON issued.invoice = lines.invoice AND issued.state = 'Issued'
    WHERE lines.account = ANY (%(accounts)s) AND original_period = %(period)s AND lines.kind <> %(write_off)s
      AND NOT EXISTS (
          SELECT FROM invoice_events AS voided WHERE voided.invoice = lines.invoice AND voided.state = 'Voided'
      )
    ORDER BY lines.account, currency, original_period, lines.kind, model, meter, price_version, tier,
             issued.sequence DESC, line DESC
"""
_CLOSED_MONEYS = """
    SELECT account, currency, minor_unit, rounding FROM invoices
    WHERE account = ANY (%(accounts)s) AND period = %(period)s AND NOT EXISTS (
        SELECT FROM invoice_events AS voided WHERE voided.invoice = invoices.invoice AND voided.state = 'Voided'
    )
"""
# A currency that came after the month was closed is as on the first invoice that has any of it.
_LATER_MONEYS = """
    SELECT DISTINCT ON (invoices.account, currency) invoices.account, currency, minor_unit, rounding
    FROM invoice_lines AS lines JOIN invoices USING (invoice)
    WHERE lines.account = ANY (%(accounts)s) AND original_period = %(period)s
      AND NOT EXISTS (
          SELECT FROM invoice_events AS voided WHERE voided.invoice = lines.invoice AND voided.state = 'Voided'
      )
      AND NOT EXISTS (
          SELECT FROM invoices AS own
          WHERE (own.account, own.currency) = (invoices.account, invoices.currency) AND own.period = %(period)s
      )
    ORDER BY invoices.account, currency, number
"""
_WRITTEN_OFF = """
    SELECT lines.account, currency, -sum(amount) AS amount
    FROM invoice_lines AS lines JOIN invoices USING (invoice)
    WHERE lines.account = ANY (%(accounts)s) AND original_period = %(period)s AND lines.kind = %(write_off)s
      AND NOT EXISTS (
          SELECT FROM invoice_events AS voided WHERE voided.invoice = lines.invoice AND voided.state = 'Voided'
      )
    GROUP BY lines.account, currency
"""


@dataclass(frozen=True)
class InvoiceQuery:
    """Which invoices to list, in the order of their numbers. `after`: those that follow this invoice."""

    accounts: tuple[str, ...] = ()
    period: date | None = None
    after: str | None = None
    limit: int | None = None


def invoice_rows(database: Database, query: InvoiceQuery) -> list[Row]:
    """Rows with COLUMNS and the columns of `invoices`; `period` as YYYY-MM."""
    parameters = {**vars(query), "accounts": list(query.accounts) or None}
    return [_listed(row) for row in database.execute(_CHOSEN, parameters).fetchall()]


def invoice_document(database: Database, invoice: str) -> Mapping[str, Any] | None:
    """One invoice with its `lines` (LINE_COLUMNS) and `events` (EVENT_COLUMNS); None where there is none."""
    found = database.execute(f"{LISTED} WHERE invoices.invoice = %s", [invoice]).fetchone()
    if found is None:
        return None
    lines = [{name: row[name] for name in LINE_COLUMNS} for row in database.execute(_LINES, [invoice]).fetchall()]
    events = [{name: row[name] for name in EVENT_COLUMNS} for row in database.execute(_EVENTS, [invoice]).fetchall()]
    for line in lines:
        line["original_period"] = month_text(line["original_period"])
    return {**_listed(found), "line_count": found["lines"], "lines": lines, "events": events}


def stored_invoices(database: Database, accounts: Sequence[str] | None = None) -> Iterator[Stored]:
    """All invoices and events of each account (None: of all), a few hundred accounts in memory at once."""
    known = list(accounts) if accounts is not None else [row["account"] for row in database.execute(_ACCOUNTS)]
    for start in range(0, len(known), _ACCOUNT_BATCH):
        yield from _stored(database, known[start : start + _ACCOUNT_BATCH])


def numbers_by_issuer(database: Database) -> Mapping[str, list[int]]:
    """The numbers that each issuer has given."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for row in database.execute("SELECT issuer, number FROM invoices").fetchall():
        found[row["issuer"]].append(row["number"])
    return found


def last_lines(
    database: Database, accounts: Sequence[str], period: date
) -> Mapping[tuple[str, str], dict[Key, IssuedLine]]:
    """By account and currency: of each key of a month the line that was issued last, voided invoices left out."""
    found: defaultdict[tuple[str, str], dict[Key, IssuedLine]] = defaultdict(dict)
    parameters = {"accounts": list(accounts), "period": period, "write_off": WRITE_OFF}
    # Planned for these accounts: a plan for any is one for a few.
    for row in database.execute(_LAST_LINES, parameters, prepare=False).fetchall():
        line = line_of(row)
        found[row["account"], row["currency"]][line.key] = IssuedLine(row["invoice"], line)
    return found


def closed_moneys(
    database: Database, accounts: Sequence[str], period: date, last: Collection[tuple[str, str]]
) -> Mapping[tuple[str, str], Money]:
    """By account and currency: how the invoice of a month rounds, those that are voided left out.

    `last`: the accounts and currencies that have any line of the month; where it has no invoice in one of them, the
    first that corrects it counts.
    """
    rows = database.execute(_CLOSED_MONEYS, {"accounts": list(accounts), "period": period}).fetchall()
    own = {(row["account"], row["currency"]) for row in rows}
    if later := {account for account, currency in last if (account, currency) not in own}:
        rows += database.execute(_LATER_MONEYS, {"accounts": list(later), "period": period}).fetchall()
    return {(row["account"], row["currency"]): money_of(row) for row in rows}


def money_of(row: Row) -> Money:
    """Of a row of `invoices`."""
    return Money(row["currency"], row["minor_unit"], Rounding(row["rounding"]))


def key_of(line: Row, month: date) -> Key:
    """The key of a line of `jobs.queries.bills.read_month`."""
    kind = line["kind"] if line["kind"] in FEES else USAGE
    return Key(month, kind, *(line[name] for name in ("model", "meter", "price_version", "tier")))


def charged_lines(
    month: date,
    last: Mapping[tuple[str, str], Mapping[Key, IssuedLine]],
    money: Callable[[tuple[str, str]], Money | None],
    closed: Mapping[tuple[str, str], Money],
) -> Callable[[Row], Decimal]:
    """What a line of the month is charged with on an invoice: what it was issued with, or else its amount rounded.

    `money`: of an account and currency; None: nobody knows how that is rounded. What it was issued with stays while
    `metering.invoices.corrections` makes no pair of it. A limit (`kind` None) is of the month: where that is `closed`,
    it is rounded as it was then, or another rounding would correct a month of which nothing has changed.
    """

    def charged(line: Row) -> Decimal:
        place = (line["account"], line["currency"])
        exact: Decimal = line["amount"]
        if line["kind"] is None:
            rounds = closed.get(place) or money(place)
            return exact if rounds is None else rounds.rounded(exact)
        issued = last.get(place, {}).get(key_of(line, month))
        if issued is not None and (issued.line.quantity, issued.line.exact_amount) == (line["quantity"], exact):
            return issued.line.amount
        rounds = money(place)
        return exact if rounds is None else rounds.rounded(exact)

    return charged


def written_off(database: Database, accounts: Sequence[str], period: date) -> Mapping[tuple[str, str], Decimal]:
    """By account and currency: how much of a month was written off and not taken back, voided invoices left out."""
    parameters = {"accounts": list(accounts), "period": period, "write_off": WRITE_OFF}
    rows = database.execute(_WRITTEN_OFF, parameters).fetchall()
    return {(row["account"], row["currency"]): row["amount"] for row in rows}


def line_of(row: Row) -> Line:
    """A row of `invoice_lines`."""
    return Line(
        row["line"],
        Key(*(row[name] for name in Key._fields)),
        *(row[name] for name in ("quantity", "exact_amount", "amount", "residual", "unit_price")),
        *(row[name] for name in ("charge_class", "corrects_invoice", "corrects_line")),
    )


def header_of(row: Row) -> Header:
    """A row of `invoices`."""
    names = (
        *("period", "period_start", "period_end", "timezone", "lines", "total", "residual", "usage_position"),
        *("frontier", "audit_id", "replaces", "invoice", "issuer", "number", "account"),
    )
    return Header(kind=Kind(row["kind"]), money=money_of(row), **{name: row[name] for name in names})


def event_of(row: Row) -> Event:
    """A row of `invoice_events`."""
    columns = {**row, "state": State(row["state"]), "allowed": tuple(row["allowed"])}
    return Event(**columns)


def month_text(month: date) -> str:
    """A month as `YYYY-MM`."""
    return f"{month:%Y-%m}"


def _listed(row: Row) -> Row:
    return {**row, "period": month_text(row["period"])}


def _stored(database: Database, accounts: list[str]) -> Iterator[Stored]:
    lines: defaultdict[str, list[tuple[Line, str]]] = defaultdict(list)
    invoices: defaultdict[str, list[StoredInvoice]] = defaultdict(list)
    events: defaultdict[str, list[Event]] = defaultdict(list)

    def rows(table: str, order: str) -> list[Row]:
        return database.execute(_OF_ACCOUNTS.format(table=table, order=order), [accounts]).fetchall()

    for row in rows("invoice_lines", "invoice, line"):
        lines[row["invoice"]].append((line_of(row), row["hash"]))
    for row in rows("invoices", "issuer, number"):
        invoices[row["account"]].append(StoredInvoice(header_of(row), tuple(lines.pop(row["invoice"], ()))))
    for row in rows("invoice_events", "account, sequence"):
        events[row["account"]].append(event_of(row))
    for account in accounts:
        yield Stored(account, invoices[account], events[account])
