"""What Weir holds of a quarter beside what its truth comes to: every cell, quantity and amount, to the last digit."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
from deltalake import DeltaTable

from cli.reading import read_only
from jobs.queries.periods import Window
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.streams import Table
from metering.vocabulary import UsageCause
from tests.quarter.computed import EXACT, Dimensions, Line, Sums, lines, month_of, summed, sums
from tests.quarter.truth import Truth

NAMES = ("api_key_id", "region")
_WINDOWS = "SELECT window_start, account, model, meter, currency, unit_price, quantity, amount FROM usage_windows"
_DAYS = "SELECT account, day, model, meter, currency, unit_price, dimensions, quantity, amount FROM usage_days"
_DROPPED = "SELECT account, meter, quantity, amount FROM stragglers WHERE decision = 'drop'"


@dataclass(frozen=True)
class Compared:
    """One list of cells. `wrong`: a sentence for each that is not as it must be."""

    what: str
    cells: int
    wrong: list[str]


def compared(truth: Truth, tables: str, database: str) -> Iterator[Compared]:
    """Usage, windows, days, months, accounts, and what a late policy dropped."""
    every = list(lines(truth))
    billed = [line for line in every if not line.is_dropped]
    late = [line for line in every if line.is_dropped]
    zones = truth.zones
    yield _beside(
        "usage, by minute, account, model, meter, currency, unit price and dimensions",
        summed(every, lambda x: (*_of_window(x), x.dimensions)),
        sums(_usage(tables)),
    )
    with psycopg.connect(database) as connection:
        windows = connection.execute(_WINDOWS).fetchall()
        days = connection.execute(_DAYS).fetchall()
        dropped = connection.execute(_DROPPED).fetchall()
    yield _beside(
        "windows, by minute, account, model, meter, currency and unit price",
        summed(billed, _of_window),
        sums((tuple(key), quantity, amount) for *key, quantity, amount in windows),
    )
    yield _beside(
        "days of the account, by model, meter, currency, unit price and dimensions",
        summed(billed, lambda x: (x.account, x.day, x.model, x.meter, x.currency, x.unit_price, x.dimensions)),
        sums(((*key, _dimensions(said)), quantity, amount) for *key, said, quantity, amount in days),
    )
    yield _beside(
        "months of the account, by model, meter, currency and dimensions, as `weir usage` lists them",
        summed(
            billed,
            lambda x: (month_of(x, zones[x.account]), x.account, x.model, x.meter, x.currency, x.dimensions),
        ),
        sums(_months(database)),
    )
    yield _beside(
        "accounts, by model, meter and currency",
        summed(billed, lambda x: (x.account, x.model, x.meter, x.currency)),
        sums(((a, model, meter, c), q, amount) for _, a, model, meter, c, _, q, amount in windows),
    )
    yield _beside(
        "what came too late for a meter that drops, by account",
        summed(late, lambda x: (x.account, x.meter)),
        sums(((account, meter), quantity, amount) for account, meter, quantity, amount in dropped),
    )


def _of_window(line: Line) -> tuple[Hashable, ...]:
    return line.minute, line.account, line.model, line.meter, line.currency, line.unit_price


def _usage(tables: str) -> Iterator[tuple[Hashable, Decimal, Decimal | None]]:
    columns = ["event_time", "account", "model", "currency", "dimensions", "sign", "meters", "cause"]
    for row in DeltaTable(f"{tables}/{Table.USAGE}").to_pyarrow_table(columns=columns).to_pylist():
        minute, dimensions = row["event_time"].replace(second=0, microsecond=0), _dimensions(row["dimensions"])
        for entry in row["meters"] if row["cause"] != UsageCause.DECIDED else ():
            if entry["quantity"]:
                of_window = minute, row["account"], row["model"], entry["meter"], row["currency"], entry["unit_price"]
                yield (*of_window, dimensions), _signed(row, entry["quantity"]), _signed(row, entry["amount"])


def _signed(row: dict[str, Any], value: Any) -> Any:
    return None if value is None else EXACT.multiply(value, Decimal(row["sign"]))


def _dimensions(said: str | dict[str, str] | None) -> Dimensions:
    return tuple(sorted((json.loads(said) if isinstance(said, str) else said or {}).items()))


def _months(database: str) -> Iterator[tuple[Hashable, Decimal, Decimal | None]]:
    with read_only(database) as reader:
        listed: Iterator[Any] = usage_rows(reader, UsageQuery(window=Window.MONTH, dimensions=NAMES))
        for row in listed:
            assert row["is_other"] is False
            said = {name: row[name] for name in NAMES if row[name] is not None}
            key = row["window_start"], row["account"], row["model"], row["meter"], row["currency"]
            # The list has 0 for what has no price.
            yield (*key, _dimensions(said)), row["quantity"], row["amount"] or None


def _beside(what: str, wanted: Sums, found: Sums) -> Compared:
    wrong = [
        f"{what}: {_told(key)} is {_told(found.get(key))} instead of {_told(wanted.get(key))}"
        for key in _in_order(wanted.keys() | found.keys())
        if found.get(key) != wanted.get(key)
    ]
    return Compared(what, len(wanted.keys() | found.keys()), wrong)


def _in_order(keys: Iterable[Hashable]) -> list[Hashable]:
    return sorted(keys, key=str)


def _told(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_told, value))})"
    return value.isoformat() if isinstance(value, datetime) else "nothing" if value is None else str(value)
