"""The chain of an account's invoices: each state of an invoice is an event with the hash of the one before it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from metering.canonical_json import digest
from metering.invoices import State

BEGINNING = "0" * 64
"""What stands before the first event of an account."""


@dataclass(frozen=True)
class Event:
    """A state of an invoice. `document` is the hash of the invoice with its lines, `previous` that of the event before.

    `allowed`: what stayed open when the month was closed, with the `reason`.
    """

    account: str
    sequence: int
    invoice: str
    state: State
    at: datetime
    made_by: str
    reason: str | None
    allowed: tuple[str, ...]
    document: str
    previous: str
    hash: str = ""

    @property
    def expected_hash(self) -> str:
        """SHA-256 of all of it but `hash`."""
        return digest({name: value for name, value in vars(self).items() if name != "hash"})


@dataclass(frozen=True)
class End:
    """Where an account's chain ends."""

    sequence: int = 0
    hash: str = BEGINNING


def appended(
    end: End,
    account: str,
    invoice: str,
    state: State,
    document: str,
    *,
    at: datetime,
    made_by: str,
    reason: str | None = None,
    allowed: tuple[str, ...] = (),
) -> Event:
    """The event that follows the end of the account's chain."""
    event = Event(account, end.sequence + 1, invoice, state, at, made_by, reason, allowed, document, end.hash)
    return replace(event, hash=event.expected_hash)
