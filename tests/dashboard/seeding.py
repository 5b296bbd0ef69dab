"""A believable day of metering, written as the applications would: Delta tables, and a database that agrees."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from deltalake import write_deltalake
from psycopg.types.json import Jsonb

from jobs.billing.config import BillingConfig
from jobs.close.store import store
from jobs.ingestion.config import IngestionConfig
from jobs.joins.config import JoinsConfig
from jobs.runtime.postgres import migrations
from jobs.runtime.postgres.meters_table import declare
from jobs.sessionization.config import SessionizationConfig
from jobs.streams import SCHEMAS, Table
from metering.invoice_chain import End, Event, appended
from metering.invoices import (
    USAGE,
    Charge,
    Header,
    Invoice,
    IssuedLine,
    Key,
    Line,
    Money,
    Rounding,
    State,
    corrections,
    kind_of,
    numbered,
    own_lines,
    totals,
)
from metering.meters import DEFAULT, Declaration, Meter
from metering.vocabulary import Reason
from tests.dashboard.watched import fill_watched
from tests.database_rows import write, write_windows
from tests.metered import listed

GRACE = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)
DECLARED = (
    *DEFAULT,
    Declaration("gpu_seconds", "second", "gpu_seconds", is_expected=True),
    Declaration("images", "image", "images"),
)
METERS = tuple(meter.name for meter in DECLARED)
MODELS = ("small-1", "large-2", "vision-1")
UNIT_PRICES = {
    "requests": Decimal("0.0001"),
    "input_tokens": Decimal("0.00000015"),
    "output_tokens": Decimal("0.0000006"),
    "cached_tokens": Decimal("0.000000075"),
    "gpu_seconds": Decimal("0.000210000007"),
    "images": Decimal("0.04"),
}
CURRENCIES = {"acme": "EUR", "globex": "USD", "initech": "USD", "umbrella": "EUR", "hooli": "EUR"}
ZONES = {"acme": "Europe/Berlin", "globex": "America/New_York"}
REASONS = (Reason.MALFORMED, Reason.FUTURE, Reason.TOO_OLD, Reason.INVALID_TIME, Reason.MISSING_SUBJECT)
DROPPED_METER = Meter.CACHED_TOKENS
EARLIER_EVERY = 5
"""One row of so many is of an earlier release, which knew the default meters alone."""


@dataclass(frozen=True)
class Day:
    """What `usage_of` makes: `accounts` with their currency, `minutes` before `now`, requests a minute in all."""

    now: datetime
    accounts: tuple[str, ...] = tuple(CURRENCIES)
    minutes: int = 40
    per_minute: int = 12
    seed: int = 5
    marker: str = ""
    """Put before every name but the accounts', so that a test can find whose a value is."""

    first_lsn: int = 1


def seed(database: str, tables: Path | str, day: Day) -> None:
    """Fill a database and a folder in which no application has run yet."""
    add(database, tables, day)
    fill_jobs(database, day)


def add(database: str, tables: Path | str, day: Day) -> None:
    """What applications that ran have made of `day`."""
    rows = list(usage_of(day))
    with psycopg.connect(database) as connection:
        declare(connection, DECLARED)
    write_table(tables, Table.USAGE, rows)
    write_table(tables, Table.JOURNAL, journal_of(day, rows))
    write_table(tables, Table.ACCOUNTS, accounts_of(day))
    write_table(tables, Table.PRICES, prices_of(day))
    fill_catalog(database, day)
    fill_windows(database, rows)
    fill_sessions(database, rows, day)
    fill_sources(database, day)
    fill_invoices(database, day)
    fill_watched(database, day.now, day.accounts, day.marker)


def usage_of(day: Day) -> Iterator[dict[str, Any]]:
    """Flat rows of `usage` (tests.metered): most matched at once, some late, a few stragglers, some without a price."""
    chance = random.Random(day.seed)
    for lsn in range(day.first_lsn, day.first_lsn + day.minutes * day.per_minute):
        event_time = day.now - timedelta(seconds=chance.random() * 60 * day.minutes)
        account = chance.choices(day.accounts, weights=range(len(day.accounts), 0, -1))[0]
        outcome = chance.choices(("matched", "abandoned", "orphaned", "superseded"), weights=(940, 40, 10, 10))[0]
        delay = chance.choices(
            (chance.random() * 3, 30 + chance.random() * 200, 400 + chance.random() * 900), (97, 2, 1)
        )[0]
        received_at = min(day.now, event_time + timedelta(seconds=delay))
        model = None if outcome == "orphaned" else f"{day.marker}{chance.choice(MODELS)}"
        completed = outcome == "matched"
        quantities = {
            **dict.fromkeys(METERS),
            "requests": 1 if outcome in ("matched", "abandoned") else 0,
            "input_tokens": chance.randint(100, 4_000) if completed else None,
            "output_tokens": chance.randint(20, 1_500) if completed else None,
            "cached_tokens": chance.choice((None, 0, 512)) if completed else None,
        }
        if completed and not is_earlier(lsn):
            quantities |= {"gpu_seconds": Decimal(lsn * 7_919 % 9_000_000).scaleb(-6), "images": lsn % 4}
        row: dict[str, Any] = {
            "lsn": lsn,
            "log_date": received_at.date(),
            "logged_at": received_at,
            "account": account,
            "request_id": f"{day.marker}r-{lsn:06d}",
            "user_id": f"{day.marker}u-{min(int(chance.expovariate(0.1)), 60)}",
            "model": model,
            "status": "completed" if completed else None,
            "outcome": outcome,
            "request_lsn": None if outcome == "orphaned" else lsn * 2,
            "completion_lsn": lsn * 2 + 1 if outcome in ("matched", "orphaned") else None,
            "event_time": event_time,
            "received_at": received_at,
            "plan": f"{day.marker}plan-{account}",
            "currency": CURRENCIES.get(account, "EUR"),
            "sign": 1,
            "cause": "stream",
            "corrects_lsns": None,
        }
        is_priced = model is not None and not model.endswith("vision-1")
        for number, meter in enumerate(METERS):
            quantity = quantities[meter]
            priced = is_priced and quantity is not None
            row[meter] = quantity
            row[f"{meter}_price_version"] = price_lsn(model, number) if priced else None
            row[f"{meter}_unit_price"] = UNIT_PRICES[meter] if priced else None
            row[f"{meter}_amount"] = UNIT_PRICES[meter] * (quantity or 0) if priced else None
        yield row


def is_earlier(lsn: int) -> bool:
    """Whether an earlier release wrote this row of `usage`."""
    return lsn % EARLIER_EVERY == 0


def journal_of(day: Day, usage: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows of `journal`: one record per usage row, and besides duplicates, conflicts and dead letters."""
    chance = random.Random(day.seed)
    for lsn, used in enumerate(sorted(usage, key=lambda row: row["received_at"]), start=1):
        disposition = chance.choices(("accepted", "duplicate", "conflict", "rejected"), weights=(970, 12, 3, 15))[0]
        yield {
            "lsn": lsn,
            "log_date": used["received_at"].date(),
            "topic": "events",
            "partition": lsn % 4,
            "offset": lsn // 4,
            "received_at": used["received_at"],
            "logged_at": used["received_at"],
            "disposition": disposition,
            "reason": chance.choice(REASONS) if disposition == "rejected" else None,
            "account": used["account"],
            "request_id": used["request_id"],
        }


def accounts_of(day: Day) -> Iterator[dict[str, Any]]:
    """Rows of `accounts`: one version each."""
    for lsn, account in enumerate(day.accounts, start=1):
        yield {
            "lsn": lsn,
            "account": account,
            "name": f"{day.marker}{account.title()} Inc.",
            "deleted": False,
            "plan": f"{day.marker}plan-{account}",
            "currency": CURRENCIES.get(account, "EUR"),
            "timezone": ZONES.get(account, "UTC"),
            "effective_from": day.now - timedelta(days=60),
        }


def price_lsn(model: str | None, number: int) -> int:
    """Which version prices the meter of that number: each model has its own."""
    return (10 if model is not None and model.endswith(MODELS[0]) else 50) + number


def prices_of(day: Day) -> Iterator[dict[str, Any]]:
    """Rows of `prices`: in force since long ago, and for the first model another from tomorrow on."""
    for account in day.accounts:
        for model in MODELS[:2]:
            for number, meter in enumerate(METERS):
                price = {
                    "plan": f"{day.marker}plan-{account}",
                    "model": f"{day.marker}{model}",
                    "meter": meter,
                    "currency": CURRENCIES.get(account, "EUR"),
                    "deleted": False,
                }
                long_ago, tomorrow = day.now - timedelta(days=60), day.now + timedelta(days=1)
                lsn = price_lsn(model, number)
                yield {**price, "lsn": lsn, "effective_from": long_ago, "unit_price": UNIT_PRICES[meter]}
                if model == MODELS[0]:
                    yield {
                        **price,
                        "lsn": 90 + number,
                        "effective_from": tomorrow,
                        "unit_price": UNIT_PRICES[meter] * 2,
                    }


def write_table(tables: Path | str, table: Table, rows: Iterable[dict[str, Any]]) -> None:
    """Append `rows` to a Delta table as a driver would: partitioned by log date where it has one."""
    schema = SCHEMAS[table]
    if table is Table.USAGE:
        rows = [row if is_earlier(row["lsn"]) else listed(row, _metered(row)) for row in rows]
    full = [{name: row.get(name) for name in schema.names} for row in rows]
    partition_by = ["log_date"] if "log_date" in schema.names else None
    arrow = pa.Table.from_pylist(full, schema=schema)
    write_deltalake(f"{tables}/{table}", arrow, mode="append", partition_by=partition_by)


def _metered(row: dict[str, Any]) -> list[str]:
    """The meters that a row has, or should have."""
    return [meter for meter in METERS if row["outcome"] == "matched" or row[meter] is not None]


def fill_catalog(database: str, day: Day) -> None:
    """The schema `catalog`, as `accounts_of` says."""
    for row in accounts_of(day):
        write(database, "catalog.plans", {"plan": row["plan"], "name": row["plan"]})
        names = ("account", "name", "plan", "currency", "timezone", "effective_from")
        write(database, "catalog.accounts", {name: row[name] for name in names})
    priced = ("plan", "model", "meter", "currency", "effective_from", "unit_price")
    write(database, "catalog.prices", *({name: row[name] for name in priced} for row in prices_of(day)))


def fill_windows(database: str, usage: list[dict[str, Any]]) -> None:
    """`usage_windows`, `stragglers` and `corrections`: what billing makes of the rows."""
    windows: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(
        lambda: {"quantity": 0, "unit_price": None, "late_rows": 0, "late_quantity": 0, "corrected": False}
    )
    stragglers = []
    for row in usage:
        start = row["event_time"].replace(second=0, microsecond=0)
        late = row["received_at"] - (start + MINUTE)
        for meter in METERS:
            if not row[meter]:
                continue
            version = row[f"{meter}_price_version"]
            if late >= GRACE:
                decision = "drop" if meter == DROPPED_METER else "correct"
                stragglers.append(_straggler(row, meter, start, late, decision))
                if decision == "drop":
                    continue
            window = windows[start, row["account"], row["model"], meter, row["currency"], version]
            window["quantity"] += row[meter]
            window["unit_price"] = row[f"{meter}_unit_price"]
            window["corrected"] |= late >= GRACE
            if timedelta() <= late < GRACE:
                window["late_rows"] += 1
                window["late_quantity"] += row[meter]
    keys = ("window_start", "account", "model", "meter", "currency", "price_version")
    written = [
        {**dict(zip(keys, key, strict=True)), "window_end": key[0] + MINUTE, **window}
        for key, window in windows.items()
    ]
    write_windows(database, *written)
    write(database, "stragglers", *stragglers)
    with psycopg.connect(database) as connection:
        connection.execute("DELETE FROM corrections")
        connection.execute(import_module(f"{migrations.__name__}.versions.0024_corrections").FILL)


def _straggler(row: dict[str, Any], meter: str, start: datetime, late: timedelta, decision: str) -> dict[str, Any]:
    kept = ("account", "model", "request_id", "event_time", "received_at", "currency")
    return {
        "usage_lsn": row["lsn"],
        "meter": meter,
        "window_start": start,
        "late_seconds": Decimal(str(late.total_seconds())),
        "decision": decision,
        "quantity": row[meter],
        "unit_price": row[f"{meter}_unit_price"],
        "price_version": row[f"{meter}_price_version"],
        **{name: row[name] for name in kept},
    }


def fill_sessions(database: str, usage: list[dict[str, Any]], day: Day) -> None:
    """`sessions`: gaps of 30 minutes; and one that a late event has replaced."""
    by_user: dict[tuple[str, str], list[datetime]] = defaultdict(list)
    for row in usage:
        by_user[row["account"], row["user_id"]].append(row["event_time"])
    sessions = []
    for (account, user), times in by_user.items():
        part: list[datetime] = []
        for at in sorted(times):
            if part and at - part[-1] > timedelta(minutes=30):
                sessions.append((account, user, part))
                part = []
            part.append(at)
        sessions.append((account, user, part))
    rows: list[dict[str, Any]] = [
        {
            "account": account,
            "user_id": user,
            "session_start": times[0],
            "session_end": times[-1],
            "events": len(times),
            "version": 1,
        }
        for account, user, times in sessions
    ]
    account, user, times = sessions[0]
    before = times[0] - timedelta(hours=3)
    closed = {"account": account, "user_id": user, "session_start": before, "session_end": before + 9 * MINUTE}
    rows += [{**closed, "events": 4, "version": 1, "retracted_at": day.now}, {**closed, "events": 5, "version": 2}]
    write(database, "sessions", *rows)


def fill_sources(database: str, day: Day) -> None:
    """`sources`: one complete, one with holes, one silent, one without numbers; and a type that nobody knows."""
    account = day.accounts[0]
    seen = {"account": account, "account_seen_at": day.now, "first_seen_at": day.now - timedelta(hours=9)}
    write(
        database,
        "sources",
        {**seen, "source": f"{day.marker}gateway/eu-1", "last_seen_at": day.now, "sequences": "{[1,4100)}"},
        {
            **seen,
            "source": f"{day.marker}gateway/eu-2",
            "last_seen_at": day.now,
            "sequences": "{[1,50),[51,80),[90,900)}",
        },
        {**seen, "source": f"{day.marker}device/7", "last_seen_at": day.now - timedelta(hours=1)},
        {**seen, "source": f"{day.marker}gateway/us-1", "last_seen_at": day.now, "unsequenced": True},
    )
    seen_type = {"first_seen_at": day.now, "last_seen_at": day.now, "last_source": f"{day.marker}gateway/eu-1"}
    write(database, "unknown_types", {"type": f"{day.marker}ai.inference.completion.v9", "events": 41, **seen_type})


def fill_invoices(database: str, day: Day) -> None:
    """Two for each account: of the month before, and of this one, which corrects a line of the first."""
    month = day.now.date().replace(day=1)
    before = (month - timedelta(days=1)).replace(day=1)
    model, version = f"{day.marker}{MODELS[0]}", price_lsn(MODELS[0], 0)
    with psycopg.connect(database) as connection:
        for number, account in enumerate(day.accounts):
            money = Money(CURRENCIES.get(account, "EUR"), 2, Rounding.HALF_EVEN)

            def charge(of: date, quantity: int) -> Charge:
                key = Key(of, USAGE, model, "requests", version, None)
                return Charge(key, Decimal(quantity), UNIT_PRICES["requests"] * quantity, UNIT_PRICES["requests"])

            first = invoice_of(
                account, before, 2 * number + 1, own_lines([charge(before, 15_000)], money), money, day.marker
            )
            issued = {line.key: IssuedLine(first.header.invoice, line) for line in first.lines}
            lines = own_lines([charge(month, 200)], money) + corrections([charge(before, 15_070)], issued, money)
            second = invoice_of(account, month, 2 * number + 2, lines, money, day.marker)
            store_issued(connection, [first, second], day.now, reason=f"{day.marker}agreed")


def invoice_of(  # noqa: PLR0917  # what an invoice is made of
    account: str, month: date, number: int, lines: Sequence[Line], money: Money, issuer: str = ""
) -> Invoice:
    """The invoice of a month of UTC, whose number begins with the issuer's name and `weir`."""
    first, last = (datetime(at.year, at.month, 1, tzinfo=UTC) for at in (month, month + timedelta(days=31)))
    total, residual = totals(lines)
    header = Header(
        invoice=f"{issuer}weir-{number}",
        issuer=f"{issuer}weir",
        number=number,
        account=account,
        kind=kind_of(lines),
        period=month,
        period_start=first,
        period_end=last,
        timezone="UTC",
        money=money,
        lines=len(lines),
        total=total,
        residual=residual,
        usage_position=1_000,
        frontier=last,
        audit_id=1,
    )
    return Invoice(header, numbered(lines))


def store_issued(
    connection: psycopg.Connection[Any], invoices: Sequence[Invoice], at: datetime, reason: str | None = None
) -> None:
    """Issue invoices of accounts that have none."""
    events: list[Event] = []
    ends: dict[str, End] = {}
    for invoice in invoices:
        account, name = invoice.header.account, invoice.header.invoice
        for state in (State.OPEN, State.ISSUED):
            end = ends.get(account, End())
            is_open = state is State.OPEN
            event = appended(
                *(end, account, name, state, invoice.document),
                at=at,
                made_by="test",
                reason=reason if is_open else None,
                allowed=("held",) if is_open and reason else (),
            )
            events.append(event)
            ends[account] = End(event.sequence, event.hash)
    store(connection, invoices, events)


def fill_jobs(database: str, day: Day) -> None:
    """`jobs`, `positions` and `batches`: all four at work, up to a few seconds ago."""
    frontier = day.now - timedelta(seconds=3)
    configs = {
        "ingestion": IngestionConfig(),
        "sessionization": SessionizationConfig(),
        "joins": JoinsConfig(completion_timeout_seconds=120),
        "billing": BillingConfig(grace_seconds=int(GRACE.total_seconds())),
    }
    inputs = {"sessionization": "journal", "billing": "usage"}
    said = {"ingestion": {"residual": 0}, "joins": {"waiting": 37}}
    for number, (job, configured) in enumerate(configs.items()):
        config = configured.model_dump(mode="json")
        progress = {
            "records_behind": number * 1_200,
            "seconds_behind": number * 1.25,
            "frontier": frontier.isoformat(),
            "last_batch_at": day.now.isoformat(),
            "last_batch_records": 1_932,
            "last_batch_ms": 412 + number,
            "catch_up_seconds": number * 4.0,
            **said.get(job, {}),
        }
        at = {"owner_started_at": day.now, "started_at": day.now, "updated_at": datetime.now(UTC)}
        state = {"epoch": 1 + number, "owner_pid": 1, "state": "running"}
        write(database, "jobs", {"job": job, **at, **state, "config": Jsonb(config), "progress": Jsonb(progress)})
        if job in inputs:
            position = {"job": job, "input": inputs[job], "next_position": 1_000, "frontier": frontier}
            write(database, "positions", position)


def keep_reporting(database: str) -> None:
    """Let every application have reported just now."""
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE jobs SET updated_at = clock_timestamp()")
