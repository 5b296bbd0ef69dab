"""Listings through real SQL and real Delta tables. Oracle: Python sums over the same random rows."""

from __future__ import annotations

import io
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg.types.json import Jsonb

from cli.output import Format, Row, print_rows
from cli.reading import read_only
from cli.sessions import SessionQuery, session_rows
from jobs.queries.corrections import COLUMNS as CORRECTIONS
from jobs.queries.corrections import CorrectionQuery, correction_rows
from jobs.queries.periods import Window
from jobs.queries.reading import Database
from jobs.queries.stragglers import StragglerQuery, straggler_rows
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.queries.usage_keys import Key
from metering.digits import EXACT
from metering.vocabulary import Decision, UsageCause
from tests.database_rows import MINUTE, progress, window, write, write_windows

T0 = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)
GRACE = timedelta(seconds=300)
EPSILON = timedelta(microseconds=1)


def billed_to(database: str, frontier: datetime | None) -> None:
    progress(database, "billing", frontier)


def listed(database: str, query: UsageQuery) -> list[Row]:
    with read_only(database) as connection:
        return list(usage_rows(connection, query))


@pytest.fixture
def connection(database: str) -> Iterator[Database]:
    with read_only(database) as opened:
        yield opened


@pytest.mark.parametrize(
    ("frontier", "state"),
    [
        (None, "open"),
        (T0 + MINUTE - EPSILON, "open"),
        (T0 + MINUTE, "closing"),
        (T0 + MINUTE + GRACE - EPSILON, "closing"),
        (T0 + MINUTE + GRACE, "closed"),
    ],
)
def test_a_minute_changes_state_exactly_at_its_end_and_after_grace(
    database: str, frontier: datetime | None, state: str
) -> None:
    write_windows(database, window(T0))
    billed_to(database, frontier)
    assert [row["state"] for row in listed(database, UsageQuery())] == [state]


def test_nothing_is_closed_before_billing_ever_ran(database: str) -> None:
    write_windows(database, window(T0))
    assert [row["state"] for row in listed(database, UsageQuery())] == ["open"]


def test_a_corrected_minute_is_corrected_in_every_longer_window(database: str) -> None:
    write_windows(database, window(T0, corrected=True), window(T0 + MINUTE))
    billed_to(database, T0 + timedelta(days=40))
    assert [row["state"] for row in listed(database, UsageQuery())] == ["corrected", "closed"]
    for size in (Window.HOUR, Window.DAY, Window.MONTH):
        assert [row["state"] for row in listed(database, UsageQuery(window=size))] == ["corrected"]


@pytest.mark.parametrize("corrected", [False, True])
def test_an_unfinished_hour_is_open_even_if_its_minutes_are_closed(database: str, corrected: bool) -> None:
    write_windows(database, window(T0, corrected=corrected))
    billed_to(database, T0 + timedelta(minutes=30))
    assert [row["state"] for row in listed(database, UsageQuery())] == ["corrected" if corrected else "closed"]
    assert [row["state"] for row in listed(database, UsageQuery(window=Window.HOUR))] == ["open"]


def test_unpriced_usage_is_counted_and_adds_no_money(database: str) -> None:
    write_windows(
        database,
        window(T0, 5, unit_price=Decimal("0.000000000001")),
        window(T0, 7, unit_price=None, price_version=None),
        window(T0, 3, unit_price=None, price_version=None, model=None, currency=None),
    )
    one, orphaned = listed(database, UsageQuery())
    assert (one["quantity"], one["amount"], one["unpriced_quantity"]) == (12, Decimal("0.000000000005"), 7)
    assert (orphaned["model"], orphaned["currency"]) == (None, None)
    assert (orphaned["quantity"], orphaned["amount"], orphaned["unpriced_quantity"]) == (3, 0, 3)


def test_quantity_zero_is_left_out_and_currencies_stay_apart(database: str) -> None:
    write_windows(
        database,
        window(T0, 0),
        window(T0, 4, model="m2"),
        window(T0, -4, model="m2", price_version=2),
        window(T0, 2, model="m3"),
        window(T0, 3, model="m3", currency="USD"),
    )
    rows = listed(database, UsageQuery(group_by=()))
    assert [(row["currency"], row["quantity"]) for row in rows] == [("EUR", 2), ("USD", 3)]
    assert all("account" not in row and "model" not in row and "meter" not in row for row in rows)


def test_a_range_selects_whole_windows_by_their_start(database: str) -> None:
    write_windows(database, *(window(T0 + MINUTE * minute) for minute in range(0, 180, 10)))
    query = UsageQuery(T0, T0 + timedelta(minutes=20))
    assert [row["window_start"] for row in listed(database, query)] == [T0, T0 + 10 * MINUTE]
    partial = UsageQuery(T0 + timedelta(minutes=30), T0 + timedelta(minutes=90), window=Window.HOUR)
    (hour,) = listed(database, partial)
    assert (hour["window_start"], hour["quantity"]) == (T0 + timedelta(hours=1), 6)
    assert hour["window_end"] == T0 + timedelta(hours=2)


def test_the_days_of_a_clock_change_hold_23_and_25_hours(database: str) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    hours = [datetime(2026, 3, 28, 23, tzinfo=UTC) + timedelta(hours=hour) for hour in range(23)]
    longer = [datetime(2026, 10, 24, 22, tzinfo=UTC) + timedelta(hours=hour) for hour in range(25)]
    write_windows(database, *(window(start) for start in [*hours, *longer]))
    rows = listed(database, UsageQuery(window=Window.DAY, zone=berlin))
    assert [(row["window_start"], row["window_end"], row["quantity"]) for row in rows] == [
        (hours[0], hours[0] + timedelta(hours=23), 23),
        (longer[0], longer[0] + timedelta(hours=25), 25),
    ]
    assert [row["quantity"] for row in listed(database, UsageQuery(window=Window.DAY))] == [1, 22, 2, 23]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("size", "zone"),
    [(Window.MINUTE, "UTC"), (Window.HOUR, "UTC"), (Window.DAY, "America/Havana"), (Window.MONTH, "Asia/Kolkata")],
)
def test_oracle_sums_of_random_windows_agree(database: str, seed: int, size: Window, zone: str) -> None:
    random_rows = _random_windows(random.Random(seed), datetime(2026, 10, 31, 20, tzinfo=UTC))
    write_windows(database, *random_rows)
    group_by = tuple(random.Random(seed).sample(list(Key), seed + 1))
    query = UsageQuery(window=size, group_by=group_by, accounts=("a1", "a2"), zone=ZoneInfo(zone))
    expected: dict[tuple[Any, ...], list[Decimal | int]] = defaultdict(lambda: [0, Decimal(0), 0])
    for row in random_rows:
        if row["account"] in query.accounts:
            local = row["window_start"].astimezone(query.zone)
            label = {
                Window.MINUTE: row["window_start"].strftime("%F %H:%M"),
                Window.HOUR: row["window_start"].strftime("%F %H"),
                Window.DAY: local.strftime("%F"),
                Window.MONTH: local.strftime("%Y-%m"),
            }[size]
            sums = expected[(label, *(row[key] for key in Key if key in group_by), row["currency"])]
            sums[0] += row["quantity"]
            sums[1] = EXACT.add(sums[1], EXACT.multiply(row["quantity"], row["unit_price"] or 0))
            sums[2] += row["quantity"] if row["price_version"] is None else 0

    length = {Window.MINUTE: 16, Window.HOUR: 13, Window.DAY: 10, Window.MONTH: 7}[size]
    shown = {}
    for shown_row in listed(database, query):
        start = shown_row["window_start"]
        assert isinstance(start, datetime)
        label = start.astimezone(query.zone).isoformat(" ")[:length]
        keys = (label, *(shown_row[key] for key in Key if key in group_by), shown_row["currency"])
        assert keys not in shown
        shown[keys] = [shown_row["quantity"], shown_row["amount"], shown_row["unpriced_quantity"]]
    assert shown == {keys: sums for keys, sums in expected.items() if sums[0] != 0 or sums[1] != 0}


def _random_windows(chance: random.Random, start: datetime) -> list[dict[str, Any]]:
    keys = {
        (
            start + MINUTE * chance.randrange(0, 60 * 24 * 40, 30),
            chance.choice(["a1", "a2", "a3"]),
            chance.choice(["m1", "m2", None]),
            chance.choice(["requests", "input_tokens"]),
            chance.choice(["EUR", "USD", None]),
            chance.choice([None, 1, 2]),
        )
        for _ in range(400)
    }
    priced = {(model, meter, currency, version) for _, _, model, meter, currency, version in keys}
    prices = {key: Decimal(chance.randrange(10**20)).scaleb(-12) for key in sorted(priced, key=str)}
    rows = []
    for at, account, model, meter, currency, version in keys:
        quantity = chance.randrange(-5, 10**12)
        unit_price = None if version is None else prices[model, meter, currency, version]
        key = {"account": account, "model": model, "meter": meter, "currency": currency, "price_version": version}
        rows.append(window(at, quantity, unit_price=unit_price, **key))
    return rows


def session(start: datetime, end: datetime, **values: Any) -> dict[str, Any]:
    row = {"account": "a1", "user_id": "u1", "events": 2, "version": 1}
    return {**row, "session_start": start, "session_end": end, **values}


@pytest.mark.parametrize(("past_the_gap", "state"), [(-EPSILON, "open"), (timedelta(0), "open"), (EPSILON, "closed")])
def test_a_session_closes_when_the_frontier_is_more_than_the_gap_past_it(
    database: str, past_the_gap: timedelta, state: str
) -> None:
    write(database, "sessions", session(T0, T0 + MINUTE))
    frontier = T0 + MINUTE + timedelta(seconds=1800) + past_the_gap
    progress(database, "sessionization", frontier)
    with read_only(database) as connection:
        (row,) = session_rows(connection, SessionQuery())
    assert (row["state"], row["events"], row["version"]) == (state, 2, 1)


def test_sessions_are_open_before_sessionization_has_a_frontier(database: str) -> None:
    write(database, "sessions", session(T0, T0 + MINUTE))
    with read_only(database) as connection:
        assert [row["state"] for row in session_rows(connection, SessionQuery())] == ["open"]


def test_replaced_sessions_are_listed_on_demand_only(database: str) -> None:
    write(
        database,
        "sessions",
        session(T0, T0, retracted_at=T0),
        session(T0, T0 + MINUTE, version=2),
        session(T0, T0, user_id="u2"),
    )
    with read_only(database) as connection:
        live = list(session_rows(connection, SessionQuery()))
        every = list(session_rows(connection, SessionQuery(users=("u1",), retracted=True)))
        none = list(session_rows(connection, SessionQuery(start=T0 + MINUTE)))
    assert [(row["user_id"], row["version"]) for row in live] == [("u1", 2), ("u2", 1)]
    assert [row["state"] for row in every] == ["retracted", "open"]
    assert none == []


def test_stragglers_show_the_change_that_they_made_or_would_have_made(database: str) -> None:
    key = {"account": "a1", "model": "m1", "meter": "requests", "request_id": "r1", "window_start": T0}
    received_at = T0 + timedelta(seconds=400)
    late = {**key, "event_time": T0 + EPSILON, "received_at": received_at, "late_seconds": Decimal("340.25")}
    priced = {"unit_price": Decimal("0.5"), "price_version": 1, "currency": "EUR"}
    write(
        database,
        "stragglers",
        {**late, "usage_lsn": 2, "decision": "drop", "quantity": 1, **priced},
        {**late, "usage_lsn": 1, "decision": "correct", "quantity": -3},
    )
    with read_only(database) as connection:
        correct, drop = straggler_rows(connection, StragglerQuery())
        assert list(straggler_rows(connection, StragglerQuery(decision=Decision.DROP))) == [drop]
        assert list(straggler_rows(connection, StragglerQuery(end=T0))) == []
        assert list(straggler_rows(connection, StragglerQuery(accounts=("a2",)))) == []
    assert (correct["quantity"], correct["amount"], correct["late_seconds"]) == (-3, None, 340.25)
    assert (drop["decision"], drop["amount"], drop["event_time"]) == ("drop", Decimal("0.5"), T0 + EPSILON)


def test_corrections_show_old_and_new_values_in_order(database: str) -> None:
    window = {"window_start": T0, "account": "a1", "model": "m1", "meter": "requests", "currency": "EUR"}
    amounts = {"old_amount": None, "new_amount": Decimal("1.50")}
    first = {"usage_lsn": 7, "usage_lsns": [7, 9], "cause": "repriced", "old_quantity": 1, "new_quantity": 1}
    second = {"usage_lsn": 5, "usage_lsns": [5], "cause": "stream", "decision": "approve"}
    write(
        database,
        "corrections",
        {**window, **first, **amounts, "dimensions": Jsonb({"region": "eu"})},
        {**window, **second, "old_quantity": 1, "new_quantity": 2},
    )
    with read_only(database) as connection:
        repriced, straggler = correction_rows(connection, CorrectionQuery())
        assert list(correction_rows(connection, CorrectionQuery(cause=UsageCause.REPRICED))) == [repriced]
        assert list(correction_rows(connection, CorrectionQuery(end=T0))) == []
        assert list(correction_rows(connection, CorrectionQuery(accounts=("a2",)))) == []
    assert (straggler["usage_lsns"], straggler["decision"], straggler["old_amount"]) == ([5], "approve", None)
    printed = io.StringIO()
    print_rows([repriced], CORRECTIONS, Format.JSON, out=printed)
    told = json.loads(printed.getvalue())[0]
    assert (told["usage_lsns"], told["dimensions"], told["new_amount"]) == ([7, 9], {"region": "eu"}, "1.5")


def test_a_cause_of_an_earlier_release_is_listed_by_its_name_of_today(database: str) -> None:
    window = {"window_start": T0, "account": "a1", "model": "m1", "meter": "requests", "currency": "EUR"}
    quantities = {"old_quantity": 1, "new_quantity": 2}
    rows = [
        {**window, "usage_lsn": lsn, "usage_lsns": [lsn], "cause": cause, **quantities}
        for lsn, cause in enumerate(("contracted", "schema_added", "repriced"), start=1)
    ]
    write(database, "corrections", *rows)
    with read_only(database) as connection:
        causes = [row["cause"] for row in correction_rows(connection, CorrectionQuery())]
        assert sorted(causes) == ["repriced", "schema_added", "schema_added"]
        for cause in (UsageCause.CONTRACTED, UsageCause.SCHEMA_ADDED):
            found = correction_rows(connection, CorrectionQuery(cause=cause))
            assert [row["usage_lsns"] for row in found] == [[1], [2]]
    moments = {"event_time": T0, "received_at": T0, "late_seconds": 1}
    late = {**window, **moments, "decision": "drop", "request_id": "r", "quantity": 1}
    write(database, "stragglers", *({**late, "usage_lsn": row["usage_lsn"], "cause": row["cause"]} for row in rows))
    with read_only(database) as connection:
        causes = [row["cause"] for row in straggler_rows(connection, StragglerQuery())]
    assert causes == ["schema_added", "schema_added", "repriced"]


def test_a_listing_cannot_write(connection: Database) -> None:
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        connection.execute("DELETE FROM usage_windows")
