"""Days are the sums of minutes, by dimensions, however usage was cut into batches; and old minutes get their days."""

from __future__ import annotations

import json
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from string import ascii_letters, digits
from typing import Any

import psycopg
import pytest

from jobs.billing import days, fold
from jobs.billing.config import BillingConfig
from jobs.runtime.postgres.schema import MIGRATIONS
from metering.limits import MAX_NAME_BYTES
from metering.meters import Meter
from metering.vocabulary import LatePolicy
from tests.pipelines.billing import CHEAP, NOON, Price, bill, usage_row
from tests.pipelines.folding import rows_of

MONEY = "account, model, meter, currency, price_version, sum(quantity) AS quantity, sum(amount) AS amount"
BY_MONEY = "GROUP BY account, model, meter, currency, price_version HAVING sum(quantity) <> 0"
TODAY = NOON.date()
DEAR = Price(9, Decimal("0.25"))


def of_day(lsn: int, key: str | None, day: date = TODAY, **other: Any) -> dict[str, Any]:
    named = None if key is None else json.dumps({"api_key_id": key})
    return usage_row(lsn, **{"day": day, "dimensions": named, **other})


def shown(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    columns = "account, day, model, meter, currency, price_version, dimensions, is_other, quantity, amount, usage_rows"
    rows = rows_of(connection, f"SELECT {columns} FROM usage_days")
    return sorted(rows, key=lambda row: json.dumps(row, default=str))


def keys(connection: psycopg.Connection[Any]) -> dict[str, Decimal]:
    return {
        "other" if row["is_other"] else row["dimensions"]["api_key_id"]: row["quantity"]
        for row in shown(connection)
        if row["meter"] == "requests"
    }


@pytest.fixture
def three_combinations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "add_days", partial(days.add_days, max_combinations=3))


def test_days_sum_up_to_windows_without_dropped_usage(connection: psycopg.Connection[Any]) -> None:
    chance = random.Random(7)
    config = BillingConfig(late_policy={Meter.INPUT_TOKENS: LatePolicy.DROP})
    rows = [
        of_day(
            lsn,
            chance.choice(["a", "b", None]),
            NOON.date() + timedelta(days=chance.randint(-1, 1)),
            delay=chance.choice([timedelta(seconds=1), timedelta(minutes=5), timedelta(hours=1)]),
            price=chance.choice([CHEAP, DEAR, None]),
            quantities={Meter.REQUESTS: 1, Meter.INPUT_TOKENS: Decimal(chance.randint(0, 10**9)) / 10**6},
            sign=chance.choice([1, 1, -1]),
        )
        for lsn in range(1, 301)
    ]
    for start in range(0, 300, 77):
        bill(connection, rows[start : start + 77], config)
    windows = rows_of(connection, f"SELECT {MONEY} FROM usage_windows {BY_MONEY} ORDER BY 1, 2, 3, 4, 5")
    assert windows
    assert rows_of(connection, f"SELECT {MONEY} FROM usage_days {BY_MONEY} ORDER BY 1, 2, 3, 4, 5") == windows
    assert rows_of(connection, "SELECT 1 AS one FROM stragglers WHERE decision = 'drop' LIMIT 1")


def test_any_cut_gives_the_same_days_and_the_same_first_combinations(
    connection: psycopg.Connection[Any], three_combinations: None
) -> None:
    chance = random.Random(3)
    rows = [of_day(lsn, f"key-{chance.randint(1, 6)}") for lsn in range(1, 61)]
    bill(connection, rows)
    whole = shown(connection)
    first = list(dict.fromkeys(json.loads(row["dimensions"])["api_key_id"] for row in rows))[:3]
    assert set(keys(connection)) == {*first, "other"}
    for width in (1, 7, 59):
        with connection.transaction():
            connection.execute("TRUNCATE usage_days, usage_day_dimensions, usage_windows, stragglers")
        for start in range(0, 60, width):
            bill(connection, rows[start : start + width])
        assert shown(connection) == whole, width


def test_each_day_and_account_has_its_own_cap_on_dimension_values(
    connection: psycopg.Connection[Any], three_combinations: None
) -> None:
    tomorrow = NOON.date() + timedelta(days=1)
    for lsn, key in enumerate("abcde", start=1):
        bill(connection, [of_day(lsn, key)])
    assert keys(connection) == {"a": 1, "b": 1, "c": 1, "other": 2}
    bill(connection, [of_day(6, "e"), of_day(7, "e", tomorrow), of_day(8, "e", account="bolt"), of_day(9, "a")])
    other = {(row["account"], row["day"]) for row in shown(connection) if row["is_other"]}
    assert other == {("acme", NOON.date())}
    assert [row["quantity"] for row in shown(connection) if row["is_other"] and row["meter"] == "requests"] == [3]


def test_what_a_late_policy_drops_takes_no_place(connection: psycopg.Connection[Any], three_combinations: None) -> None:
    drop = BillingConfig(late_policy=dict.fromkeys(Meter, LatePolicy.DROP))
    bill(connection, [of_day(lsn, f"late-{lsn}", delay=timedelta(hours=2)) for lsn in range(1, 4)], drop)
    bill(connection, [of_day(4, "a"), of_day(5, "b"), of_day(6, "c")], drop)
    assert keys(connection) == {"a": 1, "b": 1, "c": 1}


def test_a_row_with_quantity_zero_does_not_use_up_the_cap(
    connection: psycopg.Connection[Any], three_combinations: None
) -> None:
    def send(lsn: int, key: str, quantity: int) -> dict[str, Any]:
        return of_day(lsn, key, quantities={Meter.REQUESTS: quantity})

    rows = [send(1, "a", 0), send(2, "b", 1), send(3, "c", 1), send(4, "d", 1), send(5, "a", 1)]
    bill(connection, rows)
    whole = shown(connection)
    assert keys(connection) == {"b": 1, "c": 1, "d": 1, "other": 1}
    with connection.transaction():
        connection.execute("TRUNCATE usage_days, usage_day_dimensions, usage_windows, stragglers")
    for row in rows:
        bill(connection, [row])
    assert shown(connection) == whole


def test_the_longest_names_in_four_dimensions_are_kept_apart(connection: psycopg.Connection[Any]) -> None:
    """A key of Postgres has at most 2,704 bytes, which random texts cannot be pressed into."""
    chance = random.Random(5)

    def text() -> str:
        return "".join(chance.choices(ascii_letters + digits, k=MAX_NAME_BYTES))

    long: dict[str, Any] = {"account": text(), "model": text(), "currency": "EUR"}
    named = [{f"{n}{'x' * 62}": text() for n in "abcd"} for _ in range(2)]
    rows = [of_day(lsn, None, **{**long, "dimensions": json.dumps(named[lsn % 2])}) for lsn in range(1, 6)]
    for row in rows:
        bill(connection, [row])
    counted = [row for row in shown(connection) if row["meter"] == "requests"]
    assert sorted((row["quantity"], row["dimensions"] == named[1]) for row in counted) == [(2, False), (3, True)]


def test_usage_without_a_day_has_that_of_utc(connection: psycopg.Connection[Any]) -> None:
    bill(connection, [usage_row(1, NOON)])
    assert {row["day"] for row in shown(connection)} == {NOON.date()}


def test_a_months_days_are_named_by_the_zone_that_held_at_its_start() -> None:
    """As `BillingDays` names those of usage: the migration names what was billed before."""
    spec = spec_from_file_location("usage_days", MIGRATIONS / "versions/0022_usage_days.py")
    assert spec is not None
    assert spec.loader is not None
    migration = module_from_spec(spec)
    spec.loader.exec_module(migration)
    first, last = datetime(2026, 1, 10, tzinfo=UTC), datetime(2026, 4, 2, tzinfo=UTC)
    assert migration.stretches([(None, "Europe/Berlin")], first, last) == [(first, last, "Europe/Berlin", None)]
    moved = [(None, "Europe/Berlin"), (datetime(2026, 2, 10, tzinfo=UTC), "America/New_York")]
    found = migration.stretches(moved, first, last)
    february, march, april, may = (
        *(datetime(2026, 1, 31, 23, tzinfo=UTC), datetime(2026, 2, 28, 23, tzinfo=UTC)),
        *(datetime(2026, 4, 1, 4, tzinfo=UTC), datetime(2026, 5, 1, 4, tzinfo=UTC)),
    )
    # March begins on the last of February in New York, and is called March all the same.
    assert found[-3:] == [
        (february, march, "Europe/Berlin", date(2026, 2, 1)),
        (march, april, "America/New_York", date(2026, 3, 1)),
        (april, may, "America/New_York", date(2026, 4, 1)),
    ]
    assert found[0][0] <= first
