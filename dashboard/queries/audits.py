"""Audits: what each examined, found and corrected. They cover all accounts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from dashboard.backend import Backend, NotConnected
from metering.digits import EXACT

MAX_ROWS = 500


@dataclass(frozen=True)
class Check:
    """One promise: how much was examined, how many differences were found, and the first of them in words."""

    check: str
    holds: bool
    examined: int
    found: int
    corrected: int
    says: str


@dataclass(frozen=True)
class Audit:
    """One audit. `finished_at` None: it runs, or was killed; `failure`: what ended it before it had examined all.

    `unexpected`: differences without a known cause, by check; `corrected`: rows by cause; `changed`: signed amounts by
    cause and currency.
    """

    audit_id: int
    started_at: datetime
    finished_at: datetime | None
    received_from: datetime | None
    occurred_to: datetime | None
    version: str
    checks: tuple[Check, ...]
    unexpected: Mapping[str, int]
    corrected: Mapping[str, int]
    changed: Mapping[str, Mapping[str, Decimal]]
    failure: str | None
    is_proved: bool

    @property
    def is_of_everything(self) -> bool:
        """Whether it had no period."""
        return self.received_from is None and self.occurred_to is None

    @property
    def money(self) -> Mapping[str, Decimal]:
        """What it changed, by currency."""
        summed: dict[str, Decimal] = {}
        for amounts in self.changed.values():
            for currency, amount in amounts.items():
                summed[currency] = EXACT.add(summed.get(currency, Decimal()), amount)
        return summed


@dataclass(frozen=True)
class Audits:
    """The latest first, and when the last proving audit began, regardless of the period: None where none did."""

    read_at: datetime
    audits: tuple[Audit, ...]
    is_cut: bool
    last_started_at: datetime | None
    anything_proved_at: datetime | None
    everything_proved_at: datetime | None


_LIST = """
    SELECT audit_id, started_at, finished_at, received_from, occurred_to, version, checks, unexpected, corrected,
           changed, failure, is_proved
    FROM audits WHERE started_at >= %(since)s ORDER BY started_at DESC, audit_id DESC LIMIT %(limit)s
"""
_LAST = """
    SELECT (SELECT started_at FROM audits ORDER BY audit_id DESC LIMIT 1) AS last_started_at,
           (SELECT max(started_at) FROM audits WHERE is_proved) AS anything_proved_at,
           (SELECT max(started_at) FROM audits WHERE is_proved AND received_from IS NULL AND occurred_to IS NULL)
               AS everything_proved_at
"""


def read_audits(backend: Backend, hours: int) -> Audits:
    """Those that began in the last `hours`."""
    if not backend.scope.is_all:
        raise NotConnected("An audit shows all accounts, and this view may see only some.")
    with backend.snapshot() as cursor:
        (now,) = cursor.execute("SELECT clock_timestamp() AS read_at").fetchall()
        parameters = {"since": now["read_at"] - timedelta(hours=hours), "limit": MAX_ROWS + 1}
        rows = cursor.execute(_LIST, parameters).fetchall()
        (last,) = cursor.execute(_LAST).fetchall()
    return Audits(audits=tuple(map(_audit, rows[:MAX_ROWS])), is_cut=len(rows) > MAX_ROWS, **now, **last)


def _audit(row: dict[str, Any]) -> Audit:
    changed = {
        cause: {currency: Decimal(amount) for currency, amount in amounts.items()}
        for cause, amounts in row["changed"].items()
    }
    return Audit(**{**row, "checks": tuple(Check(**check) for check in row["checks"]), "changed": changed})
