"""The faults: what each changes in rows of usage, or in Postgres, and what the audit must say of it.

A fault in usage is as if joins had written it and billing had never seen it; one in Postgres, as if billing had made it
of usage that is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg

Row = dict[str, Any]
Named = list[str]
"""What the audit's sentence must have in it."""


@dataclass(frozen=True)
class InUsage:
    """Rows of usage instead of others; gives them and what is `Named`. Raises StopIteration where none is fit."""

    change: Callable[[list[Row]], tuple[list[Row], Named]]
    check: str
    says: str


@dataclass(frozen=True)
class InDatabase:
    """Rows of Postgres changed, on a connection; gives what is `Named`."""

    change: Callable[[psycopg.Connection[Any]], Named]
    check: str
    says: str


def priced(rows: list[Row], account: str | None = None) -> Row:
    """The first of the stream that has an amount."""
    return next(
        row
        for row in rows
        if row["cause"] == "stream"
        and account in (None, row["account"])
        and any(entry["amount"] for entry in row["meters"])
    )


def one(change: Callable[[Row], list[Row]]) -> Callable[[list[Row]], tuple[list[Row], Named]]:
    """Something else in the place of the first priced row."""

    def of(rows: list[Row]) -> tuple[list[Row], Named]:
        chosen = priced(rows)
        return [*(row for row in rows if row is not chosen), *change(chosen)], [chosen["request_id"], chosen["account"]]

    return of


def doubled(rows: list[Row]) -> tuple[list[Row], Named]:
    """Once more, behind all others."""
    chosen = priced(rows)
    return [*rows, {**chosen, "lsn": max(row["lsn"] for row in rows) + 1}], [chosen["request_id"], chosen["account"]]


def a_cent_more(row: Row) -> list[Row]:
    """What it costs is not what quantity and price make."""
    entry = next(entry for entry in row["meters"] if entry["amount"])
    dearer = {**entry, "amount": entry["amount"] + Decimal("0.01")}
    return [{**row, "meters": [dearer if each is entry else each for each in row["meters"]]}]


def older_price(row: Row) -> list[Row]:
    """Another version says the price."""
    versions = [
        {**entry, "price_version": entry["price_version"] - 1} if entry["amount"] else entry for entry in row["meters"]
    ]
    return [{**row, "meters": versions}]


def swapped(rows: list[Row]) -> tuple[list[Row], Named]:
    """Two outcomes have each other's account."""
    here = priced(rows)
    there = next(row for row in rows if row["account"] != here["account"] and row["cause"] == "stream")
    others = [row for row in rows if row is not here and row is not there]
    changed = [{**here, "account": there["account"]}, {**there, "account": here["account"]}]
    return [*others, *changed], ["request r"]


def next_month(at: datetime) -> datetime:
    """The beginning of the month that follows."""
    return at.replace(year=at.year + at.month // 12, month=at.month % 12 + 1, day=1)


def not_taken_back(rows: list[Row]) -> tuple[list[Row], Named]:
    """What replaces it stands beside it."""
    chosen = next(row for row in rows if row["sign"] < 0)
    return [row for row in rows if row is not chosen], [chosen["request_id"], chosen["account"]]


WINDOW = """
SELECT window_start, account, meter FROM usage_windows
WHERE {which} ORDER BY window_start, account, model, meter, currency, price_version LIMIT 1
"""
OF_WINDOW = "(window_start, account, meter, model, currency, price_version)"
FIRST = f"""
{OF_WINDOW} = (
    SELECT window_start, account, meter, model, currency, price_version FROM usage_windows
    WHERE unit_price > 0 AND quantity > 0
    ORDER BY window_start, account, model, meter, currency, price_version LIMIT 1
)
"""


def of_a_window(change: str) -> Callable[[psycopg.Connection[Any]], Named]:
    """The first window that has an amount is changed."""

    def of(connection: psycopg.Connection[Any]) -> Named:
        found = connection.execute(WINDOW.format(which="unit_price > 0 AND quantity > 0").encode()).fetchone()
        assert found is not None
        assert connection.execute(f"{change} WHERE {FIRST}".encode()).rowcount == 1
        start, account, meter = found
        return [f"{start:%Y-%m-%dT%H:%M:%SZ}", account, meter]

    return of


def windows_swapped(connection: psycopg.Connection[Any]) -> Named:
    """Two windows have each other's account."""
    pairs = connection.execute(
        "SELECT one.ctid::text, one.account, other.ctid::text, other.account, one.meter FROM usage_windows AS one "
        "JOIN usage_windows AS other ON one.account < other.account AND one.window_start <> other.window_start "
        "AND one.meter = other.meter WHERE one.quantity > 0 AND other.quantity > 0 "
        "ORDER BY one.window_start, other.window_start, one.account, one.meter LIMIT 1"
    ).fetchone()
    assert pairs is not None
    here, mine, there, yours, meter = pairs
    for place, name in ((here, yours), (there, mine)):
        # An update moves the row, so each is known by where it stood.
        assert connection.execute("UPDATE usage_windows SET account = %s WHERE ctid = %s::tid", [name, place]).rowcount
    return ["the window", meter]


def day_moved(connection: psycopg.Connection[Any]) -> Named:
    """What an account had on a day is told of the first day of the month that follows."""
    found = connection.execute(
        "SELECT ctid::text, account, meter FROM usage_days WHERE quantity > 0 ORDER BY account, day, meter LIMIT 1"
    ).fetchone()
    assert found is not None
    moved = "UPDATE usage_days SET day = (date_trunc('month', day) + interval '1 month')::date WHERE ctid = %s::tid"
    assert connection.execute(moved, [found[0]]).rowcount == 1
    return ["the day", *found[1:]]


def month_moved(connection: psycopg.Connection[Any]) -> Named:
    """All that an account had in a month is on days two months later."""
    found = connection.execute(
        "SELECT account, date_trunc('month', day)::date FROM usage_days WHERE quantity > 0 ORDER BY 1, 2 LIMIT 1"
    ).fetchone()
    assert found is not None
    account, month = found
    moved = "UPDATE usage_days SET day = (day + interval '2 months')::date WHERE account = %s AND day >= %s"
    assert connection.execute(moved, [account, month]).rowcount
    later = (month + timedelta(days=62)).replace(day=1)
    return [f"{account} {later:%Y-%m} has usage"]


def not_taken_out(connection: psycopg.Connection[Any]) -> Named:
    """A window goes on having what a row of usage has taken back, and no correction says that it was."""
    found = connection.execute(
        "SELECT usage_lsn, meter, window_start, account FROM corrections "
        "WHERE cause <> 'stream' AND new_quantity <> old_quantity ORDER BY number LIMIT 1"
    ).fetchone()
    assert found is not None
    lsn, meter, start, account = found
    connection.execute(
        "UPDATE usage_windows SET quantity = quantity - (new_quantity - old_quantity) FROM corrections "
        "WHERE (usage_lsn, corrections.meter) = (%s, %s) AND (usage_windows.window_start, usage_windows.account, "
        "usage_windows.meter) = (corrections.window_start, corrections.account, corrections.meter)",
        [lsn, meter],
    )
    connection.execute("DELETE FROM corrections WHERE (usage_lsn, meter) = (%s, %s)", [lsn, meter])
    return [f"{start:%Y-%m-%dT%H:%M:%SZ}", account, meter]


BILLED_TOO = """
INSERT INTO usage_windows (
    window_start, window_end, account, model, meter, currency, price_version, quantity, unit_price, late_quantity
)
SELECT window_start, window_start + interval '1 min', account, model, meter, currency, price_version, quantity,
       unit_price, 0
FROM stragglers WHERE (usage_lsn, meter) = (%s, %s)
ON CONFLICT ON CONSTRAINT usage_windows_key DO UPDATE SET quantity = usage_windows.quantity + excluded.quantity
"""
CORRECTED_TOO = """
INSERT INTO corrections (
    usage_lsn, meter, usage_lsns, window_start, account, model, currency, cause, decision, old_quantity, new_quantity,
    old_amount, new_amount
)
SELECT usage_lsn, meter, ARRAY[usage_lsn], window_start, account, model, currency, 'stream', 'correct', 0, quantity,
       0, amount
FROM stragglers WHERE (usage_lsn, meter) = (%s, %s)
"""


def decided_twice(connection: psycopg.Connection[Any]) -> Named:
    """A straggler that its policy dropped is in its window, too, with a correction."""
    found = connection.execute(
        "SELECT usage_lsn, meter, window_start, account FROM stragglers WHERE decision = 'drop' AND quantity > 0 "
        "ORDER BY 1, 2 LIMIT 1"
    ).fetchone()
    assert found is not None
    lsn, meter, start, account = found
    connection.execute(BILLED_TOO, [lsn, meter])
    connection.execute(CORRECTED_TOO, [lsn, meter])
    return [f"{start:%Y-%m-%dT%H:%M:%SZ}", account, meter]


QUANTITY, PRICE = "quantity is", "unit_price is"
FAULTS: dict[str, tuple[InUsage | InDatabase, ...]] = {
    "an event lost": (
        InUsage(one(lambda _: []), "I4", "is lost"),
        InDatabase(of_a_window("DELETE FROM usage_windows"), "I6", QUANTITY),
    ),
    "an event doubled": (
        InUsage(doubled, "I4", "is there 2 times"),
        InDatabase(of_a_window("UPDATE usage_windows SET quantity = quantity * 2"), "I6", QUANTITY),
    ),
    "a cent off": (
        InUsage(one(a_cent_more), "I10", "meters is"),
        InDatabase(of_a_window("UPDATE usage_windows SET unit_price = unit_price + 0.01 / quantity"), "I6", PRICE),
    ),
    "two customers swapped": (
        InUsage(swapped, "I4", "is lost"),
        InDatabase(windows_swapped, "I6", QUANTITY),
    ),
    "an event moved over a month's end": (
        InUsage(one(lambda row: [{**row, "event_time": next_month(row["event_time"])}]), "I10", "event_time is"),
        InDatabase(day_moved, "I6", "the day"),
    ),
    "a month under another name": (InDatabase(month_moved, "I12", "has usage from"),),
    "a reversal skipped": (
        InUsage(not_taken_back, "I8", "takes back, or replaces, something else"),
        InDatabase(not_taken_out, "I6", QUANTITY),
    ),
    "a sign turned": (
        InUsage(one(lambda row: [{**row, "sign": -1}]), "I4", "is there -1 times"),
        InDatabase(of_a_window("UPDATE usage_windows SET quantity = -quantity"), "I6", QUANTITY),
    ),
    "a window summed in the wrong currency": (
        InDatabase(of_a_window("UPDATE usage_windows SET currency = 'XXX'"), "I6", QUANTITY),
    ),
    "an old price version": (
        InUsage(one(older_price), "I10", "meters is"),
        InDatabase(of_a_window("UPDATE usage_windows SET price_version = price_version - 1"), "I6", QUANTITY),
    ),
    "a straggler decided twice": (InDatabase(decided_twice, "I6", QUANTITY),),
    "an outcome of another model": (
        InUsage(one(lambda row: [{**row, "model": "other"}]), "I10", "model is other"),
        InDatabase(of_a_window("UPDATE usage_windows SET model = 'other'"), "I6", QUANTITY),
    ),
    "a window with the right sum and the wrong count": (
        InDatabase(of_a_window("UPDATE usage_windows SET late_rows = late_rows + 1"), "I6", "late_rows is"),
    ),
}
"""Thirteen kinds, in all places where each can be."""
