"""What happens to an account while a period runs, and after: each history is billed alike in any cut, and is proved.

Of each history usage stands as the bill has it, the audit finds nothing, a replay bills the same, and what is folded at
once and row by row is equal in days, members and corrections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.billing.pipeline import JOB
from jobs.runtime.clock import MachineClock
from jobs.runtime.job import Context
from jobs.runtime.kafka.denied_topics import Denials
from jobs.runtime.postgres.meters_table import declare
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.sink import PostgresSink
from tests.conftest import fresh_database
from tests.database_rows import write
from tests.pipelines.hand_made import DAY, HOUR, MINUTE, START, HandMade
from tests.pipelines.test_audit_members import (
    FEBRUARY,
    Bill,
    Event,
    Report,
    Reversal,
    audited,
    billed,
    replays,
    stands,
    world_of,
)
from tests.pipelines.test_members_billed import CONFIG, bill, faults, fold, stored
from tests.streaming.journals import environment

CHANGED_ON = (START + 40 * DAY).date()
EVENTS: list[Event] = [
    Report("a", 35 * DAY, "x", 10, 5),
    Report("b", 36 * DAY, "y", 30, 7),
    Report("c", 45 * DAY, "x", 3, 9),
    Reversal("b"),
]


@pytest.fixture
def another_database(postgres_url: str) -> Iterator[str]:
    with fresh_database(postgres_url) as url:
        yield url


def nothing(_: HandMade) -> None:
    """The account stays as it was."""


def another_plan(world: HandMade) -> None:
    world.account(40 * DAY, plan="another")


def another_currency(world: HandMade) -> None:
    world.account(40 * DAY, currency="USD")


def another_zone(world: HandMade) -> None:
    world.account(40 * DAY, timezone="America/New_York")


def another_name(world: HandMade) -> None:
    world.account(40 * DAY, tags='{"name":"renamed"}')


def deleted_and_made_again(world: HandMade) -> None:
    world.account(38 * DAY, deleted=True)
    world.account(40 * DAY, plan="another")


def price_of_the_middle(world: HandMade) -> None:
    world.price(40 * DAY, "0.02", begins=40 * DAY, meter="users")


CHANGES: dict[str, Callable[[HandMade], None]] = {
    change.__name__: change
    for change in (
        nothing,
        another_plan,
        another_currency,
        another_zone,
        another_name,
        deleted_and_made_again,
        price_of_the_middle,
    )
}

WITHOUT_PRICES = (another_plan, another_currency, deleted_and_made_again)
"""What the account becomes has no prices."""


def of_events(change: Callable[[HandMade], None]) -> Bill:
    """What must stand: each day and month has the price of the account as it was when that began."""
    has_no_price = change in WITHOUT_PRICES
    return {
        (meter, begins, model, None if has_no_price and begins > CHANGED_ON else price): quantity
        for (meter, begins, model, price), quantity in billed(EVENTS).items()
    }


def happens(world: HandMade, change: Callable[[HandMade], None], *, is_late: bool) -> HandMade:
    """The account changes, and events of February are received, an hour apart: in time, or when it had closed."""
    change(world)
    world.joined(41 * DAY)
    first = 61 * DAY if is_late else 46 * DAY
    for number, event in enumerate(EVENTS):
        at = first + number * HOUR
        event.received(world, at)
        world.joined(at + MINUTE)
        audited(world, at + MINUTE)
    world.joined(63 * DAY)
    audited(world, 63 * DAY)
    return world


def is_proved(world: HandMade, database: str, another_database: str) -> None:
    assert audited(world, 80 * DAY) == 0
    assert replays(world) == stands(world)
    for folded, cuts in ((database, range(1, 100)), (another_database, ())):
        fold(folded, world, cuts=cuts)
        assert bill(folded) == stands(world)
        assert faults(world, folded) == {}
    for table in ("usage_days", "usage_members"):
        assert stored(database, table) == stored(another_database, table), table
    assert corrections(database) == corrections(another_database)
    assert stored(database, "late_members") == stored(another_database, "late_members") == []


def corrections(database: str) -> list[dict[str, Any]]:
    """Those of periods."""
    return [row for row in stored(database, "corrections") if row["period"] is not None]


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("is_late", [False, True], ids=["in time", "when it had closed"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_period_is_billed_as_it_began_whatever_the_account_becomes(
    tmp_path: Path, database: str, another_database: str, change: Callable[[HandMade], None], *, is_late: bool
) -> None:
    world = happens(world_of(tmp_path), change, is_late=is_late)
    assert stands(world) == of_events(change)
    is_proved(world, database, another_database)
    causes = [row["cause"] for row in corrections(database) if row["meter"] == "users"]
    assert sorted(causes) == (["reversed", "stream", "stream"] if is_late else [])


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("prices", [["0.03"], ["0.03", "0.04", "0.01"]], ids=["once", "three times"])
def test_a_price_that_comes_after_the_close_moves_the_whole_period_each_time(
    tmp_path: Path, database: str, another_database: str, prices: list[str]
) -> None:
    world = happens(world_of(tmp_path), another_plan, is_late=True)
    for number, price in enumerate(prices, 1):
        at = 63 * DAY + number * HOUR
        world.price(at, price, begins=31 * DAY, meter="users")
        world.joined(at + MINUTE)
        audited(world, at + MINUTE)
    users = {key: found for key, found in stands(world).items() if key[0] == "users"}
    assert users == {("users", FEBRUARY, "m", prices[-1]): 1}
    is_proved(world, database, another_database)


def test_a_zone_that_changes_in_a_month_moves_the_next_one(
    tmp_path: Path, database: str, another_database: str
) -> None:
    """March begins at midnight of New York, so an event of the night before is of February, in its calendar."""
    world = world_of(tmp_path)
    another_zone(world)
    world.joined(41 * DAY)
    for name, at in (("a", 35 * DAY), ("b", 59 * DAY + 2 * HOUR), ("c", 59 * DAY + 6 * HOUR)):
        Report(name, at, name).received(world, at + MINUTE)
        world.joined(at + HOUR)
    world.joined(63 * DAY)
    users = {key[1]: found for key, found in stands(world).items() if key[0] == "users"}
    assert sum(users.values()) == 3
    is_proved(world, database, another_database)


def test_a_straggler_that_is_ahead_of_the_frontier_changes_nothing_that_was_not_shown_closed(
    tmp_path: Path, database: str, another_database: str
) -> None:
    """It is received after the close and written before; what was on time follows it."""
    world = world_of(tmp_path)
    Report("a", 35 * DAY, "x", 10).received(world, 36 * DAY + 16 * MINUTE)
    world.joined(36 * DAY + 5 * MINUTE)
    Report("b", 35 * DAY, "y", 30).received(world, 36 * DAY + 10 * MINUTE)
    world.joined(37 * DAY)
    is_proved(world, database, another_database)
    assert {row["meter"] for row in corrections(database)} == {"least"}, "a peak of 10 changes nothing of 30"


def test_corrections_of_a_period_are_proved_where_the_account_was_made_after_its_first_usage(
    tmp_path: Path, database: str, another_database: str
) -> None:
    """Usage of before has the days of UTC and gets its price late; what follows has the days of the account's zone."""
    world = world_of(tmp_path)
    world.accounts.clear()
    Report("a", 35 * DAY, "x", 10).received(world, 35 * DAY + MINUTE)
    world.joined(36 * DAY)
    world.account(40 * DAY, timezone="Asia/Tokyo")
    Report("b", 45 * DAY, "y", 30).received(world, 45 * DAY + MINUTE)
    world.joined(46 * DAY)
    Report("c", 35 * DAY, "z", 50).received(world, 61 * DAY)
    world.joined(62 * DAY)
    assert audited(world, 63 * DAY) == 2
    for url in (database, another_database):
        write(url, "catalog.account_zones", {"account": "a", "holds_from": "-infinity", "timezone": "Asia/Tokyo"})
    is_proved(world, database, another_database)
    peaks = [row for row in corrections(database) if row["meter"] == "peak" and row["currency"] == "EUR"]
    assert {f"{row['window_start']:%d %H:%M}" for row in peaks} == {"04 15:00"}


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("audited_after", [14 * HOUR, 16 * HOUR, 20 * HOUR, 26 * HOUR, 31 * HOUR])
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_usage_of_before_the_account_was_known_closes_with_what_follows(
    tmp_path: Path, database: str, another_database: str, zone: str, audited_after: timedelta
) -> None:
    """February ends at 15:00 of its last day in Tokyo, and at 5:00 of the next one in New York. The audit gives earlier
    usage its price between them, or after both; on-time usage and stragglers of either zone come around it.
    """
    world = world_of(tmp_path)
    world.accounts.clear()
    Report("a", 35 * DAY, "x", 10, 5).received(world, 35 * DAY + MINUTE)
    world.joined(36 * DAY)
    world.account(40 * DAY, timezone=zone)
    last_day = 58 * DAY
    Report("b", 45 * DAY, "y", 30, 7).received(world, 45 * DAY + MINUTE)
    received = {hour * HOUR + 20 * MINUTE: number for number, hour in enumerate((14, 15, 18, 23, 24, 27, 28, 29))}
    for at in sorted([*received, audited_after]):
        if at in received:
            number = received[at]
            report = Report(f"r{number}", 45 * DAY + number * MINUTE, f"u{number}", 40 + number, number)
            report.received(world, last_day + at)
        world.joined(last_day + at + MINUTE)
        if at == audited_after:
            assert audited(world, last_day + at + MINUTE) == 2
    world.joined(63 * DAY)
    audited(world, 63 * DAY)
    for url in (database, another_database):
        write(url, "catalog.account_zones", {"account": "a", "holds_from": "-infinity", "timezone": zone})
    is_proved(world, database, another_database)
    users = [row for row in corrections(database) if row["meter"] == "users" and row["currency"] == "EUR"]
    assert users, "stragglers add users to February"
    assert len({row["window_start"] for row in users}) == 1, "one period, one start"


@pytest.mark.few_in_ci(1)
@pytest.mark.parametrize("has_looked", [False, True], ids=["catching up", "its look is old"])
def test_a_driver_that_reads_an_audit_in_two_batches_corrects_once_what_the_audit_replaced(
    tmp_path: Path, database: str, another_database: str, *, has_looked: bool
) -> None:
    """The period has closed; the driver catches up, or read further than it knew the table to go."""
    world = happens(world_of(tmp_path), nothing, is_late=False)
    world.price(63 * DAY + HOUR, "0.03", begins=31 * DAY, meter="users")
    world.joined(64 * DAY)

    def usage() -> pa.Table:
        table = DeltaTable(f"{world.tables}/usage").to_pyarrow_table().sort_by("lsn")
        return table.select(JOB.columns(CONFIG))

    with driver(world, database) as sink:
        sink.advance()
        sink.process(usage())
        sink.advance()
        assert sink.frontier() == START + 64 * DAY
        known = sink.position()
    with driver(world, database) as sink:
        if has_looked:
            sink.advance()
        assert audited(world, 65 * DAY) > 1
        news = usage().slice(known - 1)
        sink.process(news.slice(0, 1))
        sink.process(news.slice(1))
        sink.advance()
    fold(another_database, world)
    assert corrections(database) == corrections(another_database) != []


@contextmanager
def driver(world: HandMade, database: str) -> Iterator[PostgresSink]:
    """What a driver of billing folds into, as it starts."""
    where, spark = environment(database, Path(world.tables)), cast("SparkSession", None)
    ownership = Ownership.take(JOB.name, database, CONFIG.model_dump(mode="json"))
    declare(ownership.connection, CONFIG.declared)
    # So many rows are added up here, whether Spark has executors or not.
    config = CONFIG.model_copy(update={"driver_rows": 50_000})
    yield PostgresSink(JOB, Context(config, where, spark, ownership, MachineClock(), Denials()))
    ownership.close()
