"""An invoice is voided by a person with a reason: a further state of it, and nothing of it changes."""

from __future__ import annotations

from datetime import datetime

import psycopg
from psycopg.rows import dict_row

from jobs.close.store import chain_ends, lock_series, store
from jobs.runtime.postgres.session import Session
from metering.invoice_chain import End, Event, appended
from metering.invoices import State

_FOUND = """
    SELECT issuer, account, currency, number, (
               SELECT string_agg(state, ', ' ORDER BY sequence) FROM invoice_events AS events
               WHERE events.invoice = invoices.invoice
           ) AS states,
           (SELECT document FROM invoice_events AS events WHERE events.invoice = invoices.invoice AND state = 'Issued')
    FROM invoices WHERE invoice = %s
"""
# A later invoice may correct lines of this one, so its pairs would hang in the air.
_LATER = """
    SELECT string_agg(later.invoice, ', ' ORDER BY issued.sequence DESC) AS invoices
    FROM invoices AS later
    JOIN invoice_events AS issued ON issued.invoice = later.invoice AND issued.state = 'Issued'
    WHERE (later.account, later.currency) = (%(account)s, %(currency)s)
      AND issued.sequence > (SELECT sequence FROM invoice_events WHERE invoice = %(invoice)s AND state = 'Issued')
      AND NOT EXISTS (SELECT FROM invoice_events AS v WHERE v.invoice = later.invoice AND v.state = 'Voided')
"""


class NotVoidedError(ValueError):
    """The invoice cannot be voided. The message says why, and what to do."""


def void(postgres_url: str, invoice: str, *, made_by: str, reason: str, at: datetime) -> Event:
    """Append the state Voided. Raises NotVoidedError, and `psycopg.Error` where the database does not answer."""
    with (
        Session.to(postgres_url, "weir void", is_patient=True, row_factory=dict_row) as database,
        database.transaction(),
    ):
        found = database.execute(_FOUND, [invoice]).fetchone()
        if found is None:
            raise NotVoidedError(f"there is no invoice {invoice}: `weir invoices list` has them")
        lock_series(database, found["issuer"])
        return _voided(database, invoice, made_by, reason, at)


def _voided(database: psycopg.Connection[dict[str, object]], invoice: str, by: str, reason: str, at: datetime) -> Event:
    found = database.execute(_FOUND, [invoice]).fetchone()
    assert found is not None
    if found["states"] != f"{State.OPEN}, {State.ISSUED}":
        raise NotVoidedError(f"{invoice} is voided already")
    later = database.execute(_LATER, {**found, "invoice": invoice}).fetchone()
    if later is not None and later["invoices"]:
        raise NotVoidedError(
            f"later invoices may correct {invoice}: void {later['invoices']} first, and then close each month again"
        )
    account = str(found["account"])
    end = chain_ends(database, [account]).get(account, End())
    event = appended(*(end, account, invoice, State.VOIDED, str(found["document"])), at=at, made_by=by, reason=reason)
    store(database, [], [event])
    return event
