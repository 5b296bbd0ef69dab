"""A metered history to be explained: tables and a database, made of the same random usage by billing itself."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from deltalake import write_deltalake
from psycopg.types.json import Jsonb

from catalog.change import Change, compact_json, envelope
from jobs.billing.config import BillingConfig
from jobs.runtime.postgres.meters_table import declare
from jobs.streams import SCHEMAS, CatalogTopic, Table
from metering.meters import Meter
from metering.vocabulary import LatePolicy, UsageCause
from metering.windows import MINUTE
from tests.database_rows import write
from tests.metered import listed
from tests.pipelines.billing import EXACT, NOON, Price, bill, usage_row

CONFIG = BillingConfig(late_policy={Meter.CACHED_TOKENS: LatePolicy.DROP, Meter.OUTPUT_TOKENS: LatePolicy.HOLD})
GRACE = timedelta(seconds=CONFIG.grace_seconds)
PRICES = (Price(1, Decimal("0.000000000001")), Price(2, Decimal("0.123456789012")))
"""Versions are the lsns of the records that told them."""
ZONE = {"acme": "EUR", "bolt": "USD"}
Row = dict[str, Any]


def price_record(price: Price, meter: str = Meter.REQUESTS, currency: str = "EUR") -> Row:
    """The record of a price, as `weir catalog apply` publishes it."""
    key: Row = {"plan": "p", "model": "sonnet", "meter": str(meter), "currency": currency}
    key |= {"effective_from": "2026-01-01T00:00:00Z"}
    after = {**key, "unit_price": str(price.unit_price)}
    value = compact_json(envelope(Change(CatalogTopic.PRICES, key, after, "c", NOON - timedelta(days=9))))
    more = {"topic": "catalog.prices", "disposition": "accepted", "value": value.encode()}
    return record(price.version, NOON - timedelta(days=9), **more)


def price_version(price: Price, **more: Any) -> Row:
    """The row of `prices` that joins makes of it."""
    version: Row = {"lsn": price.version, "plan": "p", "model": "sonnet", "meter": "requests", "currency": "EUR"}
    told: Row = {"effective_from": NOON - timedelta(days=90), "unit_price": price.unit_price, "deleted": False}
    return {**version, **told, **more}


def record(lsn: int, received_at: datetime, **more: Any) -> Row:
    """A row of the journal, by default an accepted event."""
    value = json.dumps({"id": more.get("id"), "lsn": lsn}).encode()
    row = {"lsn": lsn, "log_date": received_at.date(), "topic": "events", "partition": lsn % 3, "offset": lsn}
    row |= {"received_at": received_at, "logged_at": received_at, "disposition": "accepted", "value": value}
    return {**row, **more}


def commit(tables: Path | str, table: Table, rows: Iterable[Row]) -> None:
    """Append rows as a driver does: a file for each log date."""
    schema = SCHEMAS[table]
    full = [{name: row.get(name) for name in schema.names} for row in rows]
    partition_by = ["log_date"] if "log_date" in schema.names else None
    write_deltalake(f"{tables}/{table}", pa.Table.from_pylist(full, schema), mode="append", partition_by=partition_by)


def stored_usage(row: Row) -> Row:
    """A flat row as it is written: half of them as earlier releases did."""
    at = row["received_at"]
    full = {**row, "log_date": at.date(), "logged_at": at}
    return full if row["lsn"] % 2 or row["cause"] == UsageCause.DECIDED else listed(full)


def priced(row: Row, price: Price) -> Row:
    """The row at another price."""
    known = [meter for meter in Meter if meter in row]
    other: Row = {f"{meter}_price_version": price.version for meter in known}
    other |= {f"{meter}_unit_price": price.unit_price for meter in known}
    other |= {f"{meter}_amount": _amount(row[meter], price) for meter in known}
    return {**row, **other}


def _amount(quantity: int | None, price: Price) -> Decimal | None:
    return None if quantity is None else EXACT.multiply(price.unit_price, Decimal(quantity))


def bill_all(database: str, *batches: list[Row]) -> None:
    """Bill usage when the minutes of NOON's day are closed, and let billing have read it."""
    now = datetime.now(UTC)
    owner = {"epoch": 1, "owner_pid": 1, "owner_started_at": now, "started_at": now, "state": "running"}
    write(database, "jobs", {"job": "billing", **owner, "config": Jsonb(CONFIG.model_dump(mode="json"))})
    position = {"job": "billing", "input": "usage", "next_position": sum(map(len, batches)) + 1}
    write(database, "positions", {**position, "frontier": NOON + timedelta(hours=12)})
    with psycopg.connect(database) as connection:
        declare(connection, CONFIG.declared)
        connection.commit()
        for rows in batches:
            bill(connection, rows, CONFIG)


class Metered:
    """`requests` outcomes of two accounts in two days, some late, and rows that correct some of them."""

    def __init__(self, seed: int, requests: int = 40) -> None:
        self.chance = random.Random(seed)
        self.usage: list[Row] = []
        self.journal: list[Row] = [price_record(price) for price in PRICES]
        for number in range(requests):
            self._decide(f"request-{seed}-{number}")
        for lsn in self.chance.sample(range(1, requests + 1), requests // 6):
            self._correct(self.usage[lsn - 1])

    def _decide(self, request_id: str) -> None:
        account = self.chance.choice(sorted(ZONE))
        event_time = NOON + self.chance.randint(0, 2) * MINUTE + self.chance.randint(0, 1) * timedelta(days=1)
        event_time += timedelta(microseconds=self.chance.randint(0, 59_999_999))
        delay = self.chance.choice([timedelta(seconds=1), 2 * MINUTE, MINUTE + GRACE, 3 * GRACE])
        records = self._records(account, request_id, event_time, event_time + delay)
        tokens = self.chance.choice([None, 0, 1, self.chance.randint(1, 10**10)])
        price = self.chance.choice([None, *PRICES])
        said = {"account": account, "request_id": request_id, "currency": ZONE[account], "plan": "p"}
        quantities = {Meter.REQUESTS: 1, Meter.INPUT_TOKENS: tokens, Meter.CACHED_TOKENS: 5}
        named = {"request_lsn": records[0], "completion_lsn": records[1]}
        self._add(usage_row(0, event_time, delay, price=price, quantities=quantities, **said, **named))

    def _records(self, account: str, request_id: str, occurred_at: datetime, received_at: datetime) -> list[int]:
        lsns = []
        for kind in ("request", "completion"):
            lsn = len(self.journal) + 1
            said: Row = {"account": account, "request_id": request_id, "id": f"{kind}-of-{request_id}", "source": "s"}
            said |= {"family": kind, "user_id": "u-1", "event_time": occurred_at}
            self.journal.append(record(lsn, received_at, **said))
            lsns.append(lsn)
        if self.chance.random() < 0.3:
            kind = self.chance.choice(["duplicate", "conflict"])
            again = {"account": account, "disposition": kind, "first_lsn": lsns[1], "request_id": request_id}
            self.journal.append(record(len(self.journal) + 1, received_at + MINUTE, **again))
        return lsns

    def _correct(self, row: Row) -> None:
        corrects = {"corrects_lsns": [row["lsn"]], "cause": "duplicate", "received_at": row["received_at"] + MINUTE}
        self._add({**row, **corrects, "sign": -1})
        if self.chance.random() < 0.5:
            self._add({**priced(row, self.chance.choice(PRICES)), **corrects, "cause": "repriced"})

    def _add(self, row: Row) -> None:
        self.usage.append({**row, "lsn": len(self.usage) + 1})

    def store(self, database: str, tables: Path) -> None:
        """Bill all of it in two batches, when the first day is closed, and write the tables in several commits."""
        half = len(self.usage) // 2
        bill_all(database, self.usage[:half], self.usage[half:])
        for start in range(0, len(self.usage), 25):
            commit(tables, Table.USAGE, map(stored_usage, self.usage[start : start + 25]))
        for start in range(0, len(self.journal), 50):
            commit(tables, Table.JOURNAL, self.journal[start : start + 50])
        for price in PRICES:
            commit(tables, Table.PRICES, [price_version(price)])
