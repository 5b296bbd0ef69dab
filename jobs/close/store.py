"""Invoices → rows of Postgres, within the caller's transaction: what is there already is never touched."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import psycopg

from metering.invoice_chain import End, Event
from metering.invoices import Invoice

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('weir invoices of ' || %s, 0))"
_LAST_NUMBER = "SELECT coalesce(max(number), 0) AS number FROM invoices WHERE issuer = %s"
# Each transaction that changes the catalog updates this row as the last thing before its commit.
_HOLD_CATALOG = "SELECT FROM activity_head FOR SHARE"
_LAST_ACTIVITY = "SELECT coalesce(max(number), 0) AS number FROM activity_log"
_ENDS = """
    SELECT DISTINCT ON (account) account, sequence, hash FROM invoice_events
    WHERE account = ANY (%s) ORDER BY account, sequence DESC
"""
_HEADER = (
    *("invoice", "issuer", "number", "account", "kind", "period", "period_start", "period_end", "timezone", "currency"),
    *("minor_unit", "rounding", "lines", "total", "residual", "usage_position", "frontier", "audit_id", "replaces"),
)
_LINE = (
    *("line", "charge_class", "corrects_invoice", "corrects_line", "unit_price", "quantity", "exact_amount", "amount"),
    *("residual", "hash"),
)
_KEY = ("original_period", "kind", "model", "meter", "price_version", "tier")
_EVENT = (
    *("account", "sequence", "invoice", "state", "at", "made_by", "reason", "allowed", "document", "previous", "hash"),
)


def lock_series(database: psycopg.Connection[Any], issuer: str) -> int:
    """The last number of the issuer's series, which nobody else can continue until the transaction ends."""
    database.execute(_LOCK, [issuer])
    return last_number(database, issuer)


def last_number(database: psycopg.Connection[Any], issuer: str) -> int:
    """The last number of the issuer's series; 0: it has none."""
    row = database.execute(_LAST_NUMBER, [issuer]).fetchone()
    assert row is not None
    return int(row["number"])


def chain_ends(database: psycopg.Connection[Any], accounts: Collection[str]) -> Mapping[str, End]:
    """Where the chain of each account ends that has one."""
    rows = database.execute(_ENDS, [list(accounts)]).fetchall()
    return {row["account"]: End(row["sequence"], row["hash"]) for row in rows}


def hold_catalog(database: psycopg.Connection[Any]) -> int:
    """The last number of the activity log; no change of the catalog is committed until the transaction ends.

    So all statements after it read one catalog, and what changes it later has a higher number.
    """
    database.execute(_HOLD_CATALOG)
    row = database.execute(_LAST_ACTIVITY).fetchone()
    assert row is not None
    return int(row["number"])


def store(
    database: psycopg.Connection[Any],
    invoices: Sequence[Invoice],
    events: Iterable[Event],
    activity_number: int | None = None,
) -> None:
    """Write invoices with their lines, and events. Raises `psycopg.Error` for what the tables refuse.

    `activity_number`: what `hold_catalog` returned before the catalog was read for these invoices.
    """
    headers = ([*(invoice.header.values()[name] for name in _HEADER), activity_number] for invoice in invoices)
    _copy(database, "invoices", (*_HEADER, "activity_number"), headers)
    _copy(
        database,
        "invoice_lines",
        ("invoice", "account", *_LINE, *_KEY),
        (
            [invoice.header.invoice, invoice.header.account, *(getattr(line, name) for name in _LINE), *line.key]
            for invoice in invoices
            for line in invoice.lines
        ),
    )
    _copy(
        database,
        "invoice_events",
        _EVENT,
        ([list(event.allowed) if name == "allowed" else getattr(event, name) for name in _EVENT] for event in events),
    )


def _copy(database: psycopg.Connection[Any], table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with database.cursor() as cursor, cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)
