"""A metering database whose months are closed: usage as billing folds it, prices by version, and an audit on demand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from jobs.audit.recompute.basis import Scope
from jobs.billing.config import BillingConfig
from jobs.close.config import CloseConfig
from jobs.close.issue import Terms
from jobs.close.readiness import Open
from jobs.close.run import ACCOUNT_BATCH, Close
from jobs.close.series import InvoiceSeries
from jobs.queries.invoices import stored_invoices
from jobs.runtime.postgres.meters_table import declare
from metering.invoice_verification import wrong_account, wrong_numbers
from metering.meters import Meter
from tests.pipelines.billing import Price, bill, usage_row

OCTOBER, NOVEMBER, DECEMBER = (date(2026, month, 1) for month in (10, 11, 12))
JANUARY = date(2027, 1, 1)
NOON = datetime(2026, 10, 5, 12, tzinfo=UTC)
CONFIG = BillingConfig()
PRICE = Price(7, Decimal("0.0015"))
Row = dict[str, Any]


@dataclass
class Books:
    """`audit_finds`: called by each audit, which is clean unless it returns False."""

    database: str
    connection: psycopg.Connection[Any]
    audit_finds: Callable[[Scope], bool] = field(default=lambda _: True)
    audits: list[Scope] = field(default_factory=list)
    removed_before: datetime | None = None
    """What was received before is removed, so no audit of a period examines it."""
    lsn: int = 1

    def open(self, account: str = "acme", currency: str = "EUR", timezone: str = "UTC") -> None:
        """An account of the plan `pro`."""
        with self.connection.transaction():
            self.connection.execute(
                "INSERT INTO catalog.plans (plan, name) VALUES ('pro', 'Pro') ON CONFLICT DO NOTHING"
            )
            self.connection.execute(
                "INSERT INTO catalog.accounts (account, name, plan, currency, timezone) VALUES (%s, %s, 'pro', %s, %s)",
                [account, account.title(), currency, timezone],
            )

    def use(
        self,
        quantity: Decimal | int,
        at: datetime = NOON,
        price: Price | None = PRICE,
        account: str = "acme",
        *,
        frontier: datetime | None = None,
        **other: Any,
    ) -> None:
        """One outcome with input tokens, folded by billing. A negative quantity takes back."""
        row = usage_row(
            self.lsn,
            at,
            price=price,
            account=account,
            quantities={Meter.INPUT_TOKENS: abs(Decimal(quantity))},
            sign=-1 if quantity < 0 else 1,
            **{"cause": "repriced" if quantity < 0 else "stream", **other},
        )
        self.fold([row], frontier)

    def fold(self, rows: Sequence[Row], frontier: datetime | None = None) -> None:
        """What billing makes of rows of usage, and how far it is then."""
        bill(self.connection, list(rows), CONFIG, frontier=frontier)
        self.lsn = max(row["lsn"] for row in rows) + 1
        self.reach(frontier)

    def reach(self, frontier: datetime | None) -> None:
        """F has come this far (None: where it was)."""
        with self.connection.transaction():
            declare(self.connection, CONFIG.declared)
            self.connection.execute(
                "INSERT INTO rules (job, first_position, rules) VALUES ('billing', 1, %s) ON CONFLICT DO NOTHING",
                [Jsonb(CONFIG.deciding)],
            )
            self.connection.execute(
                "INSERT INTO positions (job, input, next_position, frontier) VALUES ('billing', 'usage', %s, %s)"
                " ON CONFLICT (job, input) DO UPDATE SET next_position = excluded.next_position,"
                " frontier = coalesce(excluded.frontier, positions.frontier)",
                [self.lsn, frontier],
            )

    def end(self, month: date) -> None:
        """F has passed the end of the month and every grace."""
        after = (month + timedelta(days=32)).replace(day=3)
        self.reach(datetime(after.year, after.month, after.day, tzinfo=UTC))

    def audit(self, scope: Scope) -> bool:
        """As `weir audit` leaves its row."""
        self.audits.append(scope)
        (began,) = self.rows("SELECT coalesce(max(number), 0) AS number FROM activity_log")
        clean = self.audit_finds(scope)
        with self.connection.transaction():
            self.connection.execute(
                """INSERT INTO audits (
                       received_from, occurred_to, version, finished_at, is_proved, unexpected, billed_to,
                       billed_frontier, activity_number
                   ) VALUES (
                       %s, %s, 'test', now(), %s, %s, (SELECT next_position FROM positions),
                       (SELECT frontier FROM positions), %s
                   )""",
                [self._examined_from(scope), scope.until, clean, Jsonb({} if clean else {"I6": 1}), began["number"]],
            )
        return clean

    def _examined_from(self, scope: Scope) -> datetime | None:
        left = [at for at in (scope.since, self.removed_before) if at is not None]
        return None if scope.since is None else max(left)

    def terms(self, month: date, **other: Any) -> Terms:
        """Of a person in the month after, with the default configuration."""
        at = datetime(month.year, month.month, 1, tzinfo=UTC) + timedelta(days=34)
        return Terms(**{"config": CloseConfig(), "month": month, "at": at, "made_by": "test", **other})

    def close(
        self,
        month: date = OCTOBER,
        accounts: Sequence[str] = (),
        *,
        is_dry_run: bool = False,
        account_batch: int = ACCOUNT_BATCH,
        series: InvoiceSeries | None = None,
        **terms: Any,
    ) -> list[Mapping[str, Any]]:
        """The rows of `weir close`."""
        where = (self.database, self.terms(month, **terms), self.audit, accounts)
        return list(Close(*where, is_dry_run=is_dry_run, account_batch=account_batch, series=series).run())

    def leave_open(self, month: date, *what: Open) -> list[Mapping[str, Any]]:
        """The same by somebody who gives a reason."""
        return self.close(month, allowed=what, reason="agreed with the customer")

    def rows(self, statement: str, *values: Any) -> list[Row]:
        """Rows by name."""
        with self.connection.transaction(), self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(statement, values or None).fetchall()

    def lines(self, invoice: str = "weir-1") -> list[tuple[Any, ...]]:
        """(original month, class, version, quantity, amount) of its lines."""
        found = self.rows("SELECT * FROM invoice_lines WHERE invoice = %s ORDER BY line", invoice)
        names = ("original_period", "charge_class", "price_version", "quantity", "amount")
        return [tuple(row[name] for name in names) for row in found]

    def faults(self) -> list[str]:
        """What verification finds."""
        with psycopg.connect(self.database, row_factory=dict_row) as reader:
            found = [fault for stored in stored_invoices(reader) for fault in wrong_account(stored)]
            numbers: defaultdict[str, list[int]] = defaultdict(list)
            for row in reader.execute("SELECT issuer, number FROM invoices"):
                numbers[row["issuer"]].append(row["number"])
            return [*found, *wrong_numbers(numbers)]

    def hashes(self) -> list[str]:
        """Of all events, in the order of accounts."""
        return [row["hash"] for row in self.rows("SELECT hash FROM invoice_events ORDER BY account, sequence")]


def books_of(database: str) -> Iterator[Books]:
    """One that is closed after the test."""
    with psycopg.connect(database) as connection:
        yield Books(database, connection)
