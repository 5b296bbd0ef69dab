"""Periods in `weir what-if` and `weir explain --line`: what other prices bill, and the members behind a line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cli.explain.printing import _lines
from cli.reading import read_only
from jobs.explain.database import Stored
from jobs.explain.explanation import Sources
from jobs.explain.files import Files
from jobs.explain.line import LineSelection, explain_line
from jobs.explain.records import Tables
from jobs.replay.assumptions import Assumptions
from jobs.replay.run import Compared, Replay
from jobs.streams import PRICES, Table
from tests.database_rows import write
from tests.pipelines.hand_made import DAY, HOUR, START, HandMade
from tests.pipelines.test_audit_members import FEBRUARY, Event, Report, Reversal, happened, world_of
from tests.pipelines.test_members_billed import fold

EVENTS: list[Event] = [
    Report("a", 35 * DAY, "x", tokens=10, stored=4),
    Report("b", 35 * DAY + HOUR, "y", tokens=30, stored=9),
    Report("c", 36 * DAY, "x", tokens=20),
    Report("d", 36 * DAY + HOUR, "z", tokens=20),
    Reversal("d"),
]


def supposed(unit_price: str, meter: str = "users") -> Assumptions:
    key = {"plan": "pro", "model": "m", "meter": meter, "currency": "EUR", "effective_from": START}
    row = {**key, "unit_price": Decimal(unit_price), "lsn": 0, "deleted": False}
    return Assumptions(prices=pa.Table.from_pylist([row], schema=PRICES))


def compared(world: HandMade, database: str, assumed: Assumptions, first: int, last: int) -> Compared:
    replay = Replay(world.tables, database, START + first * DAY, START + last * DAY, "what_if", assumed, replaces=True)
    return replay.run()


def test_what_if_compares_a_period_that_lies_in_the_time_that_is_asked_for(tmp_path: Path, database: str) -> None:
    world = happened(world_of(tmp_path), EVENTS)
    fold(database, world)
    found = compared(world, database, supposed("0.05"), 31, 59)
    assert found.windows == [
        {
            "window_start": START + 31 * DAY,
            "account": "a",
            "model": "m",
            "meter": "users",
            "currency": "EUR",
            "live_quantity": 2,
            "replayed_quantity": 2,
            "difference_quantity": 0,
            "live_amount": Decimal("0.02"),
            "replayed_amount": Decimal("0.1"),
            "difference_amount": Decimal("0.08"),
            "period": "month",
        }
    ]
    assert found.periods_left_out == 0
    [total] = found.totals
    cent = Decimal("0.01")
    # Three requests, two users, the peaks 30 and 20, the least numbers 10 and 20, and the last number 9.
    assert total["live_amount"] == (3 + 2 + 30 + 20 + 10 + 20 + 9) * cent
    assert total["difference_amount"] == 8 * cent


@pytest.mark.long
def test_what_if_leaves_out_a_period_of_which_it_is_asked_only_for_a_part(tmp_path: Path, database: str) -> None:
    world = happened(world_of(tmp_path), EVENTS)
    fold(database, world)
    for first, last in ((32, 59), (31, 58)):
        found = compared(world, database, supposed("0.05"), first, last)
        assert (found.windows, found.periods_left_out) == ([], 2), "of two meters of a month"
        assert found.totals[0]["difference_amount"] == 0
    [row] = compared(world, database, supposed("0.05", "peak"), 36, 37).windows
    assert (row["period"], row["live_quantity"], row["difference_amount"]) == ("day", 20, Decimal("0.8"))


def test_what_if_without_anything_supposed_finds_no_difference_in_periods(tmp_path: Path, database: str) -> None:
    world = happened(world_of(tmp_path), EVENTS, is_audited_each_time=True)
    fold(database, world)
    found = compared(world, database, Assumptions(), 0, 90)
    assert (found.windows, found.periods_left_out) == ([], 0)


@pytest.mark.long
def test_what_if_has_the_calendar_of_the_account(tmp_path: Path, database: str) -> None:
    world = world_of(tmp_path)
    world.account(timedelta(), timezone="Asia/Tokyo")
    happened(world, EVENTS)
    write(database, "catalog.account_zones", {"account": "a", "holds_from": "-infinity", "timezone": "Asia/Tokyo"})
    fold(database, world)
    assert compared(world, database, supposed("0.05"), 31, 59).periods_left_out == 2
    early = Replay(
        world.tables, database, START + 31 * DAY - 9 * HOUR, START + 59 * DAY - 9 * HOUR, "tokyo", supposed("0.05")
    ).run()
    assert [(row["meter"], row["difference_amount"]) for row in early.windows] == [("users", Decimal("0.08"))]


@contextmanager
def sources(world: HandMade, database: str, limit: int = 100) -> Iterator[Sources]:
    journal, usage, prices = (DeltaTable(f"{world.tables}/{name}") for name in ("journal", "usage", "prices"))
    with read_only(database) as connection:
        tables = Tables(Files.of(journal, Table.JOURNAL), Files.of(usage, Table.USAGE), None, limit)
        yield Sources(Stored(connection), tables, Files.of(prices, Table.PRICES), usage)


def line_of(world: HandMade, database: str, meter: str | None, limit: int = 100) -> dict[str, Any]:
    with sources(world, database, limit) as found:
        document = explain_line(found, LineSelection("a", FEBRUARY, meter=meter))
    assert document is not None
    return document


def listed(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("first_day", "member", "value", "is_billed", "member_rows", "request_id")
    return [tuple(row[name] for name in names) for row in document["members"]]


def test_a_line_of_users_lists_each_of_them_with_the_first_event_that_counts(tmp_path: Path, database: str) -> None:
    world = happened(world_of(tmp_path), EVENTS)
    fold(database, world)
    document = line_of(world, database, "users")
    assert document["adds_up"] is True, document["differences"]
    assert [(row["quantity"], row["contribution"]) for row in document["line"]] == [(2, None)]
    assert listed(document) == [(FEBRUARY, "x", None, True, 2, "a"), (FEBRUARY, "y", None, True, 1, "b")]
    assert [row["request_id"] for row in document["usage"]] == ["a", "b"]
    assert len(document["records"]) == 2
    printed = [text for _, text in _lines(document)]
    assert any("1 of 2: x, by 2 rows of usage, first a (lsn 1), occurred 2026-02-05" in line for line in printed)


def test_a_line_of_numbers_lists_the_one_that_is_billed_first(tmp_path: Path, database: str) -> None:
    world = happened(world_of(tmp_path), EVENTS)
    fold(database, world)
    fifth, sixth = FEBRUARY.replace(day=5), FEBRUARY.replace(day=6)
    assert listed(line_of(world, database, "peak")) == [
        (fifth, None, 30, True, 1, "b"),
        (fifth, None, 10, False, 1, "a"),
        (sixth, None, 20, True, 1, "c"),
    ]
    assert listed(line_of(world, database, "last")) == [
        (FEBRUARY, None, 9, True, 1, "b"),
        (FEBRUARY, None, 4, False, 1, "a"),
    ]


def test_a_line_lists_as_many_members_as_are_asked_for_and_says_how_many_there_are(
    tmp_path: Path, database: str
) -> None:
    world = happened(world_of(tmp_path), EVENTS)
    fold(database, world)
    document = line_of(world, database, "users", limit=1)
    assert len(document["members"]) == 1
    assert document["cut"]["members"] == 2
    every = line_of(world, database, None)
    assert {row["meter"] for row in every["members"]} == {"users", "peak", "least", "last"}
    assert every["adds_up"] is True, every["differences"]


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("meter", ["users", "peak"])
def test_a_line_that_is_not_what_its_members_make_does_not_add_up(tmp_path: Path, database: str, meter: str) -> None:
    world = happened(world_of(tmp_path), EVENTS)
    fold(database, world)
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE usage_days SET quantity = quantity + 1 WHERE meter = %s", [meter])
    document = line_of(world, database, meter)
    assert document["adds_up"] is False
    assert "the members make" in document["differences"][0]
