"""What a stack says became of a run: rows of the journal, of usage and of Postgres, in the shapes of the truth."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow.compute as pc
from deltalake import DeltaTable

from traffic.meters import METERS
from traffic.script import QUANTITY
from traffic.shapes import STREAM, Late, Period, Record, Run, Session, Source, Straggler, Usage, Window

MINUTE = timedelta(minutes=1)


def records(tables: str, truth: Mapping[str, Any]) -> Iterator[Record]:
    """The journal's records of this run: of its time, and of its bytes or its sources.

    Of a record that has a row for each of its calls, the first row stands for it.
    """
    known = {record["digest"] for record in truth["records"]}
    since = datetime.fromisoformat(truth["started_at"]) - timedelta(seconds=1)
    columns = ["value", "disposition", "reason", "source", "id"]
    where = ~pc.starts_with(pc.field("topic"), "catalog.") & (pc.field("received_at") >= pc.scalar(since))
    stored = DeltaTable(f"{tables}/journal").to_pyarrow_dataset()
    if "element" in stored.schema.names:
        where &= pc.field("element").is_null() | (pc.field("element") <= 1)
    scanner = stored.scanner(columns=columns, filter=where)
    for batch in scanner.to_batches():
        for row in batch.to_pylist():
            digest = "" if row["value"] is None else hashlib.sha256(row["value"]).hexdigest()
            if digest in known or (row["source"] or "").endswith(truth["tag"]):
                yield Record(digest, row["disposition"], row["reason"], row["source"], row["id"])


def usage(tables: str, accounts: list[str]) -> Iterator[Usage]:
    """The outcomes of these accounts, and what an audit has taken back and put."""
    columns = [
        "sign",
        "cause",
        "account",
        "request_id",
        "outcome",
        "model",
        "currency",
        "event_time",
        "received_at",
        "day",
    ]
    columns += [name for meter in METERS for name in (meter, f"{meter}_price_version")]
    where = pc.field("account").isin(accounts) & (pc.field("cause") != "decided")
    stored = DeltaTable(f"{tables}/usage").to_pyarrow_dataset()
    columns += [name for name in ("meters",) if name in stored.schema.names]
    scanner = stored.scanner(columns=columns, filter=where)
    for batch in scanner.to_batches():
        for row in batch.to_pylist():
            start = row["event_time"].replace(second=0, microsecond=0)
            yield Usage(
                account=row["account"],
                request_id=_request_id(row["request_id"]),
                outcome=row["outcome"],
                model=row["model"],
                currency=row["currency"],
                window_start=start,
                day=row["day"],
                late_seconds=(row["received_at"] - start - MINUTE).total_seconds(),
                metered=_metered(row),
                sign=row["sign"],
                cause=row["cause"],
            )


def _request_id(found: str) -> str:
    """As the truth has it: it does not know what ingestion makes for an event that names none."""
    return QUANTITY if found.startswith(f"{QUANTITY}:") else found


def _metered(row: Mapping[str, Any]) -> tuple[tuple[str, Decimal | None, int | None], ...]:
    """(meter, quantity, price version); a row of an earlier release has a column for each instead of the list."""
    if row.get("meters") is None:
        return tuple((meter, row[meter], row[f"{meter}_price_version"]) for meter in METERS)
    return tuple((entry["meter"], entry["quantity"], entry["price_version"]) for entry in row["meters"])


def price_starts(tables: str) -> dict[int, datetime]:
    """Since when each price version holds."""
    prices = DeltaTable(f"{tables}/prices").to_pyarrow_dataset().to_table(columns=["lsn", "effective_from"])
    return dict(zip(prices["lsn"].to_pylist(), prices["effective_from"].to_pylist(), strict=True))


def windows(
    database: psycopg.Connection[Any], accounts: list[str], price_starts: Mapping[int, datetime]
) -> Iterator[Window]:
    """What was billed. A price version that joins does not know has a unit price, and no `price_from`."""
    rows = database.execute(
        """
        SELECT account, model, meter, currency, window_start, price_version, unit_price, quantity,
               coalesce(amount, 0), corrected
        FROM usage_windows WHERE account = ANY (%s)
        """,
        [accounts],
    )
    for account, model, meter, currency, start, version, unit_price, quantity, amount, corrected in rows:
        since = price_starts.get(version)
        yield Window(account, model, meter, currency, start, since, unit_price, quantity, amount, corrected)


def periods(
    database: psycopg.Connection[Any], accounts: list[str], price_starts: Mapping[int, datetime]
) -> Iterator[Period]:
    """What meters of a period bill; they have a line on the first day of each period."""
    rows = database.execute(
        """
        SELECT account, model, meter, currency, day, price_version, unit_price, quantity, coalesce(amount, 0), corrected
        FROM usage_days
        WHERE account = ANY (%s) AND meter IN (SELECT meter FROM meters WHERE period IS NOT NULL)
        """,
        [accounts],
    )
    for account, model, meter, currency, day, version, unit_price, quantity, amount, corrected in rows:
        since = price_starts.get(version)
        yield Period(account, model, meter, currency, day, since, unit_price, quantity, amount, corrected)


def late(database: psycopg.Connection[Any], accounts: list[str]) -> Iterator[Late]:
    """What billing says came late, within grace."""
    rows = database.execute(
        """
        SELECT account, model, meter, currency, window_start, price_version, late_rows, late_quantity
        FROM usage_windows WHERE account = ANY (%s) AND late_rows > 0
        """,
        [accounts],
    )
    for account, model, meter, currency, start, version, late_rows, quantity in rows:
        yield Late(account, model, meter, currency, start, version, int(late_rows), quantity)


def late_of(rows: Iterable[Usage], grace_seconds: int) -> Iterator[Late]:
    """What came late by the rows of usage themselves: arrivals, which nobody takes back."""
    sums: dict[tuple[str, str | None, str, str | None, datetime, int | None], tuple[int, Decimal]] = {}
    for row in rows:
        if row.cause != STREAM or not 0 <= row.late_seconds < grace_seconds:
            continue
        for meter, quantity, version in row.metered:
            if quantity:
                cell = (row.account, row.model, meter, row.currency, row.window_start, version)
                count, total = sums.get(cell, (0, Decimal(0)))
                sums[cell] = count + 1, total + quantity
    return (Late(*cell, count, quantity) for cell, (count, quantity) in sums.items())


def stragglers(database: psycopg.Connection[Any], accounts: list[str]) -> Iterator[Straggler]:
    """What arrived after grace, and what takes it back or its place."""
    rows = database.execute(
        """
        SELECT account, model, request_id, meter, window_start, decision, quantity, currency, amount, cause
        FROM stragglers WHERE account = ANY (%s)
        """,
        [accounts],
    )
    for account, model, request_id, *rest in rows:
        yield Straggler(account, model, _request_id(request_id), *rest)


def sessions(database: psycopg.Connection[Any], accounts: list[str]) -> dict[tuple[str, str], list[Session]]:
    """Each user's sessions, in their order."""
    rows = database.execute(
        """
        SELECT account, user_id, session_start, session_end, events FROM sessions
        WHERE account = ANY (%s) AND retracted_at IS NULL ORDER BY session_start
        """,
        [accounts],
    )
    found: dict[tuple[str, str], list[Session]] = {}
    for account, user, start, end, events in rows:
        found.setdefault((account, user), []).append(Session(start, end, int(events)))
    return found


def sources(database: psycopg.Connection[Any], tag: str) -> tuple[list[Source], list[Run]]:
    """The sources of a run, and which of their sequence numbers arrived and are missing."""
    of_run = database.execute(
        "SELECT source, source_epoch, last_event_time, unsequenced FROM sources WHERE right(source, %s) = %s",
        [len(tag), tag],
    )
    heard = [Source(*row) for row in of_run]
    # As the dashboard says what is missing.
    ranges = database.execute(
        """
        SELECT source, source_epoch, lower(part), upper(part) - 1, arrived
        FROM sources
            CROSS JOIN LATERAL (
                VALUES (true, sequences), (false, int8multirange(range_merge(sequences)) - sequences)
            ) AS numbers (arrived, parts)
            CROSS JOIN LATERAL unnest(parts) AS part
        WHERE right(source, %s) = %s
        """,
        [len(tag), tag],
    )
    return heard, [Run(*row) for row in ranges]


def numbers_are_counted(database: psycopg.Connection[Any], tag: str) -> bool:
    """Whether the minute in which the run's sources were last heard is over for those who count sequence numbers."""
    found = database.execute(
        """
        SELECT coalesce(
            (SELECT min(frontier) FROM bookkeeping)
            >= (SELECT date_trunc('minute', max(last_seen_at), 'UTC') + interval '1 minute' FROM sources
                WHERE right(source, %s) = %s),
            false
        )
        """,
        [len(tag), tag],
    ).fetchone()
    return found is not None and bool(found[0])
