"""Sets of members in the database: what they come to on the bill, whatever usage came in which batch, and its proof."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg.types.json import Jsonb

from cli.explain.printing import _lines
from cli.reading import read_only
from jobs.audit.recompute.basis import EVERYTHING, Scope
from jobs.billing.config import BillingConfig
from jobs.billing.pipeline import JOB
from jobs.billing.sums import COLUMNS, sums
from jobs.explain.database import Stored
from jobs.explain.explanation import Sources, explain_found
from jobs.explain.files import Files
from jobs.explain.line import LineSelection, explain_line
from jobs.explain.records import Period, Tables
from jobs.queries.periods import Window
from jobs.queries.usage import UsageQuery
from jobs.runtime.delta.table import FRONTIER, instant_of
from jobs.runtime.effective_rules import EffectiveRules
from jobs.runtime.postgres.meters_table import declare
from jobs.streams import Table
from metering.instants import rfc3339
from tests.conftest import fresh_database
from tests.database_rows import write
from tests.pipelines.as_billed import Stack, by_meter, listed
from tests.pipelines.as_billed import billed as billed_once
from tests.pipelines.folding import fold_table, rows_of
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.pipelines.ingestion import Record
from tests.pipelines.test_audit_members import (
    HISTORIES,
    METERS,
    Bill,
    Event,
    Report,
    Reversal,
    audited,
    billed,
    happened,
    world_of,
)
from tests.simulation.audits import proved

CONFIG = BillingConfig.model_validate({"meters": METERS, "grace_seconds": 900})
RULES = EffectiveRules(1, CONFIG.deciding)


def fold(database: str, world: HandMade, cuts: Sequence[int] = ()) -> None:
    """Usage is billed in batches that end before the rows of these numbers.

    F is that of the last commit which is folded with all its rows, and in the end that of the table.
    """
    table = DeltaTable(f"{world.tables}/usage")
    usage = table.to_pyarrow_table().sort_by("lsn")
    bounds = [0, *sorted(cut for cut in cuts if 0 < cut < len(usage)), len(usage)]
    commits = [(row["logged_at"], row["cause"] == "stream") for row in usage.select(["logged_at", "cause"]).to_pylist()]
    frontier = None
    with psycopg.connect(database, autocommit=True) as connection:
        declare(connection, CONFIG.declared)
        for first, end in pairwise(bounds):
            rows = usage.slice(first, end - first).select([name for name in COLUMNS if name in usage.column_names])
            is_whole = end == len(usage) or commits[end] != commits[end - 1]
            if end == len(usage):
                frontier = instant_of(table.transaction_version(FRONTIER))
            elif is_whole:
                # What is made by hand has F as the time of its commit.
                frontier = usage["frontier"][end - 1].as_py() or usage["logged_at"][end - 1].as_py()
            staged = sums(rows, RULES)
            fold_table(connection, JOB, staged, CONFIG, frontier=frontier, next_position=end + 1, is_whole=is_whole)
        connection.execute(
            "INSERT INTO rules (job, first_position, rules) VALUES ('billing', 1, %s)", [Jsonb(CONFIG.deciding)]
        )
        connection.execute(
            "INSERT INTO positions (job, input, next_position, frontier) VALUES ('billing', 'usage', %s, %s)",
            [len(usage) + 1, frontier],
        )


def bill(database: str) -> Bill:
    with psycopg.connect(database) as connection:
        rows = rows_of(
            connection,
            "SELECT meter, day, model, trim_scale(unit_price)::text AS unit_price, quantity FROM usage_days"
            " WHERE quantity <> 0 AND meter <> 'requests'",
        )
    return {(row["meter"], row["day"], row["model"], row["unit_price"]): row["quantity"] for row in rows}


def faults(world: HandMade, database: str, asked: Scope = EVERYTHING) -> dict[str, str]:
    return {check: wrong.first for check, wrong in proved(world.tables, database, asked).items() if wrong.found}


def stored(database: str, table: str) -> list[dict[str, Any]]:
    volatile = {"updated_at", "corrected_at", "number", "corrected", "next_position"}
    with psycopg.connect(database) as connection:
        rows = rows_of(connection, f"SELECT * FROM {table}")
    kept = [{name: value for name, value in row.items() if name not in volatile} for row in rows]
    return sorted(kept, key=lambda row: repr(sorted(row.items(), key=lambda item: item[0])))


@pytest.fixture
def another_database(postgres_url: str) -> Iterator[str]:
    with fresh_database(postgres_url) as url:
        yield url


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("events", HISTORIES.values(), ids=HISTORIES)
def test_the_bill_equals_the_value_of_the_set_and_the_audit_proves_it(
    events: list[Event], tmp_path: Path, database: str, another_database: str
) -> None:
    world = happened(world_of(tmp_path), events[::-1], is_audited_each_time=True)
    fold(database, world, cuts=range(1, 100))
    assert bill(database) == billed(events)
    assert faults(world, database) == {}
    fold(another_database, world)
    assert bill(another_database) == billed(events)
    for table in ("usage_days", "usage_members"):
        assert stored(database, table) == stored(another_database, table)


def drawn(random: Random) -> Event:
    if random.random() < 0.25:
        return Reversal(random.choice("abcd"), random.choice([None, "users", "peak", "last"]))
    return Report(
        random.choice("abcd"),
        random.choice([29, 30, 36, 39]) * DAY + HOUR,
        random.choice("xyz"),
        random.choice([None, 0, 7, 30]),
        random.choice([None, 0, 7, 30]),
        random.choice(["completed", "completed", "cancelled", "error"]),
        random.choice("mmn"),
    )


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("seed", range(12))
def test_late_members_and_batch_cuts_do_not_change_the_bill(
    tmp_path: Path, database: str, another_database: str, seed: int
) -> None:
    random = Random(seed)
    events = list(dict.fromkeys(drawn(random) for _ in range(7)))
    apart = random.choice([HOUR, 6 * HOUR])
    world = happened(world_of(tmp_path), events, is_audited_each_time=random.random() < 0.7, apart=apart)
    if random.random() < 0.5:
        world.price(46 * DAY, "0.03", begins=30 * DAY, meter="users")
        world.joined(47 * DAY)
        audited(world, 47 * DAY)
    for number, folded in enumerate((database, another_database)):
        fold(folded, world, cuts=[random.randrange(1, 40) for _ in range(5)] if number else ())
        found = bill(folded)
        assert {key[:3]: quantity for key, quantity in found.items()} == {
            key[:3]: quantity for key, quantity in billed(events).items()
        }
        assert faults(world, folded) == {}
    for table in ("usage_days", "usage_members"):
        assert stored(database, table) == stored(another_database, table)


def test_a_set_has_no_minutes_and_no_dimensions(tmp_path: Path, database: str) -> None:
    world = happened(world_of(tmp_path), HISTORIES["three of two users"])
    fold(database, world)
    with psycopg.connect(database) as connection:
        assert rows_of(connection, "SELECT DISTINCT meter FROM usage_windows") == [{"meter": "requests"}]
        days = rows_of(connection, "SELECT meter, dimensions, amount FROM usage_days WHERE meter = 'users'")
        assert days == [{"meter": "users", "dimensions": None, "amount": Decimal("0.02")}]


LATE = [
    Report("a", 35 * DAY, "x", tokens=10),
    Report("b", 35 * DAY + HOUR, "y", tokens=30),
    Report("c", 35 * DAY + 2 * HOUR, "y", tokens=20),
]


def corrections(database: str, meter: str) -> list[tuple[Any, ...]]:
    """(first minute, period, cause, old and new quantity, old and new amount), in the order of usage."""
    with psycopg.connect(database) as connection:
        rows = rows_of(connection, f"SELECT * FROM corrections WHERE meter = '{meter}' ORDER BY usage_lsn")
    names = ("period", "cause", "old_quantity", "new_quantity", "old_amount", "new_amount")
    return [((row["window_start"] - START) // DAY, *(row[name] for name in names)) for row in rows]


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("cuts", [(), (1,), range(1, 100)], ids=["at once", "in two", "one by one"])
def test_a_closed_period_that_changes_is_corrected_by_the_difference(
    tmp_path: Path, database: str, cuts: Sequence[int]
) -> None:
    """All of it is received five days after the day had ended, and the month had not."""
    world = world_of(tmp_path)
    events: list[Event] = [*LATE, Reversal("b")]
    for number, one in enumerate(events):
        one.received(world, 40 * DAY + number * HOUR)
        world.joined(40 * DAY + number * HOUR + MINUTE)
        audited(world, 40 * DAY + number * HOUR + MINUTE)
    fold(database, world, cuts)
    cent = Decimal("0.01")
    assert corrections(database, "peak") == [
        (35, "day", "stream", 0, 10, 0, 10 * cent),
        (35, "day", "stream", 10, 30, 10 * cent, 30 * cent),
        (35, "day", "reversed", 30, 20, 30 * cent, 20 * cent),
    ], "what the third reports changes nothing"
    assert corrections(database, "users") == []
    assert faults(world, database) == {}
    with psycopg.connect(database) as connection:
        found = rows_of(connection, "SELECT corrected FROM usage_days WHERE meter IN ('peak', 'users') ORDER BY meter")
    assert found == [{"corrected": True}, {"corrected": False}]


def test_a_late_member_corrects_an_ended_month(tmp_path: Path, database: str) -> None:
    world = world_of(tmp_path)
    events: list[Event] = [*LATE, Reversal("a")]
    for number, one in enumerate(events):
        one.received(world, 60 * DAY + number * HOUR)
        world.joined(60 * DAY + number * HOUR + MINUTE)
        audited(world, 60 * DAY + number * HOUR + MINUTE)
    fold(database, world)
    cent = Decimal("0.01")
    assert corrections(database, "users") == [
        (31, "month", "stream", 0, 1, 0, cent),
        (31, "month", "stream", 1, 2, cent, 2 * cent),
        (31, "month", "reversed", 2, 1, 2 * cent, cent),
    ]
    assert faults(world, database) == {}


def test_a_price_that_comes_late_corrects_a_closed_period_once_for_each_row(tmp_path: Path, database: str) -> None:
    world = world_of(tmp_path)
    for one in LATE[:2]:
        one.received(world, 36 * DAY)
    world.joined(37 * DAY)
    world.price(50 * DAY, "0.03", begins=30 * DAY, meter="users")
    world.joined(61 * DAY)
    audited(world, 61 * DAY)
    fold(database, world)
    amounts = [(old, new) for *_, old, new in corrections(database, "users")]
    assert amounts == [(Decimal("0.02"), Decimal("0.04")), (Decimal("0.04"), Decimal("0.06"))]
    assert [found[2:5] for found in corrections(database, "users")] == [("repriced", 2, 2), ("repriced", 2, 2)]
    assert faults(world, database) == {}
    assert bill(database)["users", (START + 31 * DAY).date(), "m", "0.03"] == 2


WRONG = {
    "a member that nobody put": "UPDATE usage_members SET member_rows = 5 WHERE meter = 'users' AND member = 'x'",
    "a member that is lost": "DELETE FROM usage_members WHERE meter = 'users' AND member = 'x'",
    "another quantity": "UPDATE usage_days SET quantity = 7 WHERE meter = 'users'",
    "a number that is lost": "DELETE FROM usage_members WHERE meter = 'peak'",
    "a correction that is lost": "DELETE FROM corrections WHERE number = 1",
    "a correction to another quantity": "UPDATE corrections SET new_quantity = new_quantity + 1 WHERE number = 1",
    "a correction of another cause": "UPDATE corrections SET cause = 'repriced', decision = NULL WHERE number = 1",
    "a correction of nothing": "UPDATE corrections SET usage_lsn = 77, usage_lsns = ARRAY[77] WHERE number = 1",
}


@pytest.mark.few_in_ci(2)
@pytest.mark.parametrize("name", WRONG)
def test_the_audit_finds(tmp_path: Path, database: str, name: str) -> None:
    """Also where only what was received since some day is audited, or `weir retain` has removed earlier ones."""
    world = happened(world_of(tmp_path), LATE)
    fold(database, world)
    recent = Scope(since=START + 27 * DAY)
    assert faults(world, database) == faults(world, database, recent) == {}
    with psycopg.connect(database) as connection:
        assert connection.execute(WRONG[name]).rowcount
    check = "I8" if name.startswith("a correction") else "I6"
    assert set(faults(world, database)) == set(faults(world, database, recent)) == {check}
    assert faults(world, database, Scope(since=START + 38 * DAY)) == {}, "no whole period is in it"


def usage_listed(database: str, query: UsageQuery) -> dict[tuple[Any, Any], Any]:
    """What `weir usage` lists of sets, by meter and the day on which its window begins."""
    rows: list[Any] = list(listed(database, query))
    return {
        (row["meter"], (row["window_start"] - START) // DAY): row["quantity"]
        for row in rows
        if row["meter"] != "requests"
    }


def test_weir_usage_lists_a_set_where_days_and_months_are_those_of_the_account(tmp_path: Path, database: str) -> None:
    events = [*LATE, Report("d", 36 * DAY, "z", tokens=7, stored=9)]
    world = happened(world_of(tmp_path), events)
    fold(database, world)
    of_months = {
        ("users", 31): Decimal(3),
        ("least", 31): Decimal(17),
        ("peak", 31): Decimal(37),
        ("last", 31): Decimal(9),
    }
    of_days = {
        ("least", 35): Decimal(10),
        ("least", 36): Decimal(7),
        ("peak", 35): Decimal(30),
        ("peak", 36): Decimal(7),
    }
    assert usage_listed(database, UsageQuery(window=Window.MONTH)) == of_months
    assert usage_listed(database, UsageQuery(window=Window.DAY)) == of_days
    assert usage_listed(database, UsageQuery(window=Window.MONTH, dimensions=("api_key_id",))) == of_months
    assert usage_listed(database, UsageQuery(window=Window.DAY, dimensions=("api_key_id",))) == of_days
    for window in Window:
        elsewhere = UsageQuery(window=window, zone=ZoneInfo("Asia/Kathmandu"))
        assert usage_listed(database, elsewhere) == {}, "its months are others"
    [requests] = [row for row in listed(database, UsageQuery(window=Window.MONTH)) if row["meter"] == "requests"]
    assert requests["quantity"] == 4


def test_an_explanation_lists_the_members_that_a_row_adds_and_removes(tmp_path: Path, database: str) -> None:
    world = happened(world_of(tmp_path), [LATE[0], LATE[1], Reversal("b")])
    fold(database, world)
    journal, usage, prices = (DeltaTable(f"{world.tables}/{name}") for name in ("journal", "usage", "prices"))
    with read_only(database) as connection:
        tables = Tables(Files.of(journal, Table.JOURNAL), Files.of(usage, Table.USAGE), None, 100)
        sources = Sources(Stored(connection), tables, Files.of(prices, Table.PRICES), usage)
        document = explain_found(sources, tables.of_id("b", Period(START)))
        line = explain_line(sources, LineSelection("a", (START + 31 * DAY).date()))
    assert document["differences"] == []
    put, taken = document["usage"]
    assert [(each["meter"], each["member"], each["value"]) for each in put["members"]] == [
        ("least", None, "30"),
        ("peak", None, "30"),
        ("users", "y", None),
    ]
    assert taken["members"] == put["members"]
    printed = [text for _, text in _lines(document)]
    assert "    users: y is removed from the month from 2026-02-01, at 0.01 EUR" in printed
    assert line is not None
    assert line["adds_up"] is not False, line["differences"]
    assert ("users", 1) in {(row["meter"], row["quantity"]) for row in line["line"]}


SEATS: dict[str, Any] = {
    "$id": "com.example.seats",
    "x-weir-family": "quantity",
    "properties": {
        "data": {
            "required": ["model", "seats"],
            "properties": {
                "model": {"type": "string", "x-weir-column": "model"},
                "seats": {"type": "integer", "minimum": 0, "x-weir-column": "seats"},
                "gigabytes": {"type": "number", "minimum": 0, "x-weir-column": "gigabytes"},
                "team": {"type": "number", "minimum": 0, "x-weir-column": "team"},
            },
        }
    },
}
DECLARED: dict[str, Any] = {
    "active_users": {"unit": "user", "unique": "user_id", "period": "month"},
    "teams": {"unit": "team", "unique": "team", "period": "month"},
    "idle_seats": {"unit": "seat", "min": "seats", "period": "day"},
    "seats": {"unit": "seat", "max": "seats", "period": "day"},
    "storage_gb": {"unit": "gigabyte", "latest": "gigabytes", "period": "month"},
    "requests": {"unit": "request", "count": "outcomes"},
}


def sent(kind: str, number: int, day: int, **data: Any) -> Record:
    """An event of a day of March 2026, received a second after it occurred."""
    at = datetime(2026, 3, day, 12, 0, number, tzinfo=UTC)
    envelope = {"specversion": "1.0", "type": kind, "source": "s", "id": f"{number}", "subject": "acme"}
    said = {"model": "m", **data}
    return json.dumps({**envelope, "time": rfc3339(at), "data": said}).encode(), at + timedelta(seconds=1)


def test_events_are_validated_joined_priced_and_billed_by_their_members(database: str) -> None:
    usage, seats = "ai.inference.usage.v1", "com.example.seats"
    users = [
        sent(usage, number, number, request_id=f"r{number}", user_id=user, status="completed")
        for number, user in enumerate(("x", "y", "x", None), 1)
    ]
    numbers = [
        sent(seats, 11, 5, seats=7, gigabytes=12.5, team=1.5),
        sent(seats, 12, 6, seats=3, gigabytes=10, team=2),
        sent(seats, 13, 5, seats=9, team=2.0),
    ]
    account = {"account": "acme", "plan": "p", "currency": "EUR", "timezone": "Europe/Berlin"}
    prices = {("m", meter): "0.5" for meter in DECLARED if meter != "teams"}
    stack = Stack(meters=DECLARED, contracts=(SEATS,))
    since = datetime(2026, 1, 1, tzinfo=UTC)
    write(
        database, "catalog.account_zones", {"account": "acme", "holds_from": "-infinity", "timezone": "Europe/Berlin"}
    )
    billed_once(database, stack, [*users, *numbers], account=account, unit_prices=prices, since=since)
    with psycopg.connect(database) as connection:
        declare(connection, stack.config(BillingConfig).declared)
        rows = rows_of(connection, "SELECT meter, day, quantity, amount FROM usage_days WHERE meter <> 'requests'")
    first, half = date(2026, 3, 1), Decimal("0.5")
    assert {(row["meter"], row["day"]): (row["quantity"], row["amount"]) for row in rows} == {
        ("active_users", first): (2, 2 * half),
        ("teams", first): (2, None),
        ("idle_seats", date(2026, 3, 5)): (7, 7 * half),
        ("idle_seats", date(2026, 3, 6)): (3, 3 * half),
        ("seats", date(2026, 3, 5)): (9, 9 * half),
        ("seats", date(2026, 3, 6)): (3, 3 * half),
        ("storage_gb", first): (10, 10 * half),
    }
    march = UsageQuery(window=Window.MONTH, zone=ZoneInfo("Europe/Berlin"))
    assert by_meter(listed(database, march))["seats"] == (12, 12 * half, 0)


def test_weir_usage_lists_a_month_that_begins_at_the_first_of_two_midnights(database: str) -> None:
    """In Havana the clock goes back from 1:00 to 0:00 on November 1, 2026."""
    at = datetime(2026, 11, 1, 12, tzinfo=UTC)
    envelope = {"specversion": "1.0", "type": "com.example.seats", "source": "s", "id": "1", "subject": "acme"}
    data = {"model": "m", "seats": 7, "gigabytes": 12}
    event = json.dumps({**envelope, "time": rfc3339(at), "data": data}).encode(), at + timedelta(seconds=1)
    account = {"account": "acme", "plan": "p", "currency": "EUR", "timezone": "America/Havana"}
    prices = {("m", meter): "0.5" for meter in DECLARED}
    stack = Stack(meters=DECLARED, contracts=(SEATS,))
    write(
        database, "catalog.account_zones", {"account": "acme", "holds_from": "-infinity", "timezone": "America/Havana"}
    )
    billed_once(database, stack, [event], account=account, unit_prices=prices, since=datetime(2026, 1, 1, tzinfo=UTC))
    with psycopg.connect(database) as connection:
        declare(connection, stack.config(BillingConfig).declared)
    november = UsageQuery(window=Window.MONTH, zone=ZoneInfo("America/Havana"))
    found = by_meter(listed(database, november))
    assert {meter: found[meter][0] for meter in ("seats", "storage_gb")} == {"seats": 7, "storage_gb": 12}


def test_weir_usage_leaves_out_a_set_whose_days_or_months_end_at_another_time_in_the_zone(database: str) -> None:
    """In London the clock goes forward on March 29, 2026: the days until then begin as those of UTC, and March ends
    an hour before UTC's."""
    events = [
        sent("com.example.seats", day, day, seats=seats, gigabytes=5) for day, seats in ((5, 7), (29, 4), (30, 2))
    ]
    account = {"account": "acme", "plan": "p", "currency": "EUR", "timezone": "Europe/London"}
    prices = {("m", meter): "0.5" for meter in DECLARED}
    stack = Stack(meters=DECLARED, contracts=(SEATS,))
    write(
        database, "catalog.account_zones", {"account": "acme", "holds_from": "-infinity", "timezone": "Europe/London"}
    )
    billed_once(database, stack, events, account=account, unit_prices=prices, since=datetime(2026, 1, 1, tzinfo=UTC))
    with psycopg.connect(database) as connection:
        declare(connection, stack.config(BillingConfig).declared)

    def sets(window: Window, zone: str) -> dict[tuple[Any, date], Any]:
        rows: list[Any] = list(listed(database, UsageQuery(window=window, zone=ZoneInfo(zone))))
        return {
            (row["meter"], row["window_start"].astimezone(ZoneInfo(zone)).date()): row["quantity"]
            for row in rows
            if row["meter"] in ("seats", "storage_gb")
        }

    first, fifth, last_two = date(2026, 3, 1), date(2026, 3, 5), (date(2026, 3, 29), date(2026, 3, 30))
    assert sets(Window.MONTH, "Europe/London") == {("seats", first): 13, ("storage_gb", first): 5}
    assert sets(Window.MONTH, "UTC") == {}
    assert sets(Window.DAY, "Europe/London") == {
        ("seats", fifth): 7,
        ("seats", last_two[0]): 4,
        ("seats", last_two[1]): 2,
    }
    assert sets(Window.DAY, "UTC") == {("seats", fifth): 7}
