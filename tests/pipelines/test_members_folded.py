"""Members in the database, batch by batch: the quantity of each period is that of plain Python over the rows so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pyarrow as pa
import pytest

from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.billing.staged import STAGED
from jobs.queries.periods import Window
from jobs.queries.usage import UsageQuery
from jobs.runtime.postgres.meters_table import declare
from metering.period_meters import NEVER, Aggregation, Member, quantity_of
from tests.database_rows import write
from tests.pipelines.as_billed import listed
from tests.pipelines.folding import fold_table, rows_of

MONTH = datetime(2026, 3, 1, tzinfo=UTC)
CONFIG = BillingConfig.model_validate(
    {
        "meters": {
            "users": {"unit": "user", "unique": "user_id", "period": "month"},
            "idle": {"unit": "seat", "min": "seats", "period": "month"},
            "peak": {"unit": "seat", "max": "seats", "period": "month"},
            "last": {"unit": "gigabyte", "latest": "gigabytes", "period": "month"},
        }
    }
)
AGGREGATIONS = {
    "users": Aggregation.UNIQUE,
    "idle": Aggregation.MIN,
    "peak": Aggregation.MAX,
    "last": Aggregation.LATEST,
}


@dataclass(frozen=True)
class Added:
    """A row of usage that adds a member, or removes it (`sign`); it is late where the month had closed."""

    meter: str
    member: int
    sign: int = 1
    is_late: bool = False
    version: int | None = 7
    begins: datetime = MONTH

    @property
    def of(self) -> Member:
        if self.meter == "users":
            return Member(f"{self.member}")
        return Member("", Decimal(self.member), self._occurred_at or NEVER)

    @property
    def _occurred_at(self) -> datetime | None:
        return MONTH + timedelta(hours=self.member % 3) if self.meter == "last" else None

    def staged(self, lsn: int) -> dict[str, Any]:
        is_priced, is_number = self.version is not None, self.meter != "users"
        return {
            "window_start": self.begins,
            "account": "acme",
            "model": "m",
            "meter": self.meter,
            "currency": "EUR" if is_priced else None,
            "price_version": self.version,
            **dict.fromkeys(("unit_price", "lowest_unit_price"), Decimal("0.25") if is_priced else None),
            "cause": "stream" if self.sign > 0 else "reversed",
            "sign": self.sign,
            "quantity": Decimal(self.sign),
            "is_correction": self.is_late,
            "usage_lsn": lsn if self.is_late else None,
            "day": MONTH.date(),
            "event_time": MONTH,
            "received_at": MONTH,
            "first_lsn": lsn,
            "late": False,
            "metered_rows": 1,
            "unmetered_rows": 0,
            "unsound_rows": 0,
            "period": "month",
            "aggregation": AGGREGATIONS[self.meter].value,
            "member": f"{self.member} {self._occurred_at}",
            "value": Decimal(self.member) if is_number else None,
            "occurred_at": self._occurred_at,
        }


Sets = defaultdict[tuple[str, int | None], defaultdict[Member, int]]


def fold(connection: psycopg.Connection[Any], rows: Iterable[Added], first_lsn: int = 1) -> None:
    staged = [row.staged(lsn) for lsn, row in enumerate(rows, first_lsn)]
    schema = pa.schema([field.with_nullable(True) for field in STAGED])
    batch = pa.Table.from_pylist(staged, schema=schema).cast(STAGED)
    fold_table(connection, JOB, batch, CONFIG, next_position=first_lsn + len(staged))


def quantities(connection: psycopg.Connection[Any]) -> dict[tuple[str, int | None], Decimal]:
    rows = rows_of(connection, "SELECT meter, price_version, quantity, amount FROM usage_days")
    assert all(row["amount"] == row["quantity"] * Decimal("0.25") for row in rows if row["price_version"] is not None)
    return {(row["meter"], row["price_version"]): row["quantity"] for row in rows}


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("seed", range(12))
def test_after_each_batch_each_period_has_the_quantity_of_its_members(
    connection: psycopg.Connection[Any], seed: int
) -> None:
    random, sets, lsn = Random(seed), Sets(lambda: defaultdict(int)), 1
    for _ in range(8):
        rows = []
        for _ in range(random.randrange(1, 9)):
            meter, version = random.choice(list(AGGREGATIONS)), random.choice([7, 7, 8, None])
            member, is_late = random.randrange(5), random.random() < 0.3
            is_removal = random.random() < 0.3
            rows.append(Added(meter, member, -1 if is_removal else 1, is_late, version))
        fold(connection, rows, lsn)
        lsn += len(rows)
        for row in rows:
            sets[row.meter, row.version][row.of] += row.sign
        expected = {key: quantity_of(AGGREGATIONS[key[0]], counts) for key, counts in sets.items()}
        assert quantities(connection) == expected


def test_a_user_of_several_batches_counts_once(connection: psycopg.Connection[Any]) -> None:
    fold(connection, [Added("users", 1), Added("users", 2)])
    fold(connection, [Added("users", 1), Added("users", 3), Added("users", 3, is_late=True)], 3)
    fold(connection, [Added("users", 1, is_late=True), Added("users", 3)], 6)
    assert quantities(connection) == {("users", 7): 3}


def test_a_user_who_was_removed_counts_again_when_another_request_comes(
    connection: psycopg.Connection[Any],
) -> None:
    for lsn, (row, users) in enumerate(
        [
            (Added("users", 1), 1),
            (Added("users", 1, -1), 0),
            (Added("users", 1, -1), 0),
            (Added("users", 1), 0),
            (Added("users", 1), 1),
        ],
        1,
    ):
        fold(connection, [row], lsn)
        assert quantities(connection) == {("users", 7): users}


def test_weir_usage_lists_the_month_of_an_account_that_was_learnt_late(
    connection: psycopg.Connection[Any], database: str
) -> None:
    """Its first request came while its zone was unknown: its month began at midnight of UTC, and then of New York."""
    declare(connection, CONFIG.declared)
    connection.commit()
    zone = {"account": "acme", "holds_from": "-infinity", "timezone": "America/New_York"}
    write(database, "catalog.account_zones", zone)
    new_york = MONTH + timedelta(hours=5)
    fold(connection, [Added("users", 1)])
    fold(connection, [Added("users", 2, begins=new_york)], 2)
    connection.commit()
    query = UsageQuery(window=Window.MONTH, zone=ZoneInfo("America/New_York"))
    [row] = [row for row in listed(database, query) if row["meter"] == "users"]
    assert (row["window_start"], row["quantity"]) == (new_york, 2)
    assert rows_of(connection, "SELECT DISTINCT day FROM usage_days") == [{"day": date(2026, 3, 1)}]
