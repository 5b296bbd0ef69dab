"""`weir usage` by days: the same, to the last digit, as the minutes summed one by one; and by dimensions.

Days are made as joins and billing make them, of accounts that move to another zone or that the catalog learns of late.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial, reduce
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
import typer
from alembic import command
from psycopg.types.json import Jsonb

from cli.output import Row
from cli.reading import read_only
from cli.usage_keys import refuse_unknown
from dashboard.backend import Backend
from dashboard.queries.bill_values import read_values
from dashboard.queries.bills import read_bills
from dashboard.settings import Settings
from jobs.billing import days, fold
from jobs.explain.database import Stored
from jobs.joins.billing_days import month_zones
from jobs.queries.periods import Window, first_start_from
from jobs.queries.usage import UsageQuery, usage_rows
from jobs.queries.usage_keys import Key, dimensions_of, keys_of, words_of
from jobs.runtime.errors import Fenced
from jobs.runtime.postgres.ownership import Ownership
from jobs.runtime.postgres.schema import migrate, migrator
from metering.digits import EXACT
from metering.meters import Meter
from metering.months import zone_changes, zone_of
from metering.pricing import Version
from tests.database_rows import progress, window, write
from tests.pipelines.billing import NOON, Price, bill, usage_row

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, LAST = datetime(2026, 2, 20, tzinfo=UTC), datetime(2026, 4, 10, tzinfo=UTC)
MOVED = datetime(2026, 3, 12, tzinfo=UTC)
LEARNT_LSN = 400
HISTORIES: dict[str, list[Version[str]]] = {
    "berlin": [Version(-1, BEGINNING, "Europe/Berlin")],
    "kolkata": [Version(-1, BEGINNING, "Asia/Kolkata")],
    "moved-west": [Version(-2, BEGINNING, "Pacific/Kiritimati"), Version(-1, MOVED, "America/New_York")],
    "moved-east": [Version(-2, BEGINNING, "America/New_York"), Version(-1, MOVED, "Europe/Berlin")],
    "learnt-late": [Version(LEARNT_LSN, BEGINNING, "America/Havana")],
    "moved-late": [Version(-1, BEGINNING, "Pacific/Kiritimati"), Version(LEARNT_LSN, FIRST, "Etc/GMT+12")],
    "made-again": [
        Version(-3, BEGINNING, "America/New_York"),
        Version(-2, datetime(2026, 2, 27, tzinfo=UTC), None),
        Version(-1, datetime(2026, 3, 2, tzinfo=UTC), "America/New_York"),
    ],
    "unknown": [],
}
PRICES = [None, Price(8, Decimal(0)), Price(7, Decimal("0.000003141593")), Price(9, Decimal("12345678.000000000001"))]


def day_of(account: str, at: datetime, lsn: int) -> date:
    zones = month_zones(HISTORIES[account], lsn)
    zone, first_day = next((name, first) for start, name, first in reversed(zones) if start <= at)
    return max(at.astimezone(zone_of(zone)).date(), first_day or date.min)


def random_instant(chance: random.Random) -> datetime:
    """Often beside a midnight somewhere, at the end of a month."""
    if chance.random() < 0.5:
        return FIRST + (LAST - FIRST) * chance.random()
    month = datetime(2026, chance.choice([3, 4]), 1, tzinfo=UTC)
    return month + timedelta(hours=chance.randint(-30, 30), minutes=-chance.randint(0, 1))


def random_usage(seed: int, rows: int = 900) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    written = []
    for lsn in range(1, rows + 1):
        at, account = random_instant(chance), chance.choice(list(HISTORIES))
        named = {"api_key_id": chance.choice(["a", "b", "other", None]), "user_id": chance.choice(["u", None])}
        said = {name: value for name, value in named.items() if value is not None}
        written.append(
            usage_row(
                lsn,
                at,
                chance.choice([timedelta(seconds=1), timedelta(seconds=1), timedelta(hours=1)]),
                account=account,
                day=day_of(account, at, lsn),
                model=chance.choice(["sonnet", None]),
                price=chance.choice(PRICES),
                sign=chance.choice([1, 1, 1, -1]),
                quantities={Meter.REQUESTS: 1, Meter.INPUT_TOKENS: Decimal(chance.randint(0, 10**12)) / 10**6},
                dimensions=json.dumps(said) if said else None,
            )
        )
    return written


@pytest.fixture(params=range(3))
def usage(request: pytest.FixtureRequest, database: str) -> list[dict[str, Any]]:
    """Rows of usage that were billed; all of their windows are closed."""
    rows = random_usage(request.param)
    with psycopg.connect(database) as connection:
        for start in range(0, len(rows), 250):
            bill(connection, rows[start : start + 250])
    write_zones(database)
    progress(database, "billing", LAST + timedelta(days=60))
    return rows


def write_zones(database: str) -> None:
    for account, history in HISTORIES.items():
        for change in zone_changes((each.effective_from, each.value) for each in history if each.value is not None):
            values = {"account": account, "holds_from": change.holds_from or "-infinity", "timezone": change.timezone}
            write(database, "catalog.account_zones", values)


def listed(database: str, query: UsageQuery) -> list[Row]:
    with read_only(database) as connection:
        return list(usage_rows(connection, query))


def listed_rows(database: str, query: UsageQuery) -> list[dict[str, Any]]:
    return [dict(row) for row in listed(database, query)]


def summed_minutes(database: str, query: UsageQuery) -> dict[tuple[Any, ...], list[Any]]:
    """The oracle: each minute by itself, its window found in Python, summed exactly."""
    with read_only(database) as connection:
        minutes = connection.execute("SELECT * FROM usage_windows").fetchall()
    start, end = (
        None if at is None else first_start_from(query.window, at, query.zone) for at in (query.start, query.end)
    )
    sums: dict[tuple[Any, ...], list[Any]] = defaultdict(lambda: [Decimal(0), Decimal(0), Decimal(0), 0, 0, False])
    for row in minutes:
        at = row["window_start"]
        if (start and at < start) or (end and at >= end) or (query.accounts and row["account"] not in query.accounts):
            continue
        day = at.astimezone(query.zone).date()
        cell = sums[(day if query.window is Window.DAY else day.replace(day=1), *(row[key] for key in query.keys))]
        cell[0] += row["quantity"]
        cell[1] = EXACT.add(cell[1], row["amount"] or Decimal(0))
        cell[2] += row["quantity"] if row["price_version"] is None else 0
        cell[3] += row["quantity"] if row["price_version"] is not None and row["unit_price"] == 0 else 0
        cell[4] += row["unmetered_rows"] if row["meter"] != Meter.CACHED_TOKENS else 0
        cell[5] |= row["corrected"]
    return {key: cell for key, cell in sums.items() if cell[0] != 0 or cell[1] != 0 or cell[4] != 0}


def by_key(rows: list[Row], query: UsageQuery) -> dict[tuple[Any, ...], list[Any]]:
    found = {}
    for row in rows:
        start = row["window_start"]
        assert isinstance(start, datetime)
        key = (start.astimezone(query.zone).date(), *(row[key] for key in query.keys))
        assert key not in found
        corrected = row["state"] == "corrected"
        amounts = [row[name] for name in ("quantity", "amount", "unpriced_quantity", "free_quantity")]
        found[key] = [*amounts, row["unmetered_requests"], corrected]
    return found


RANGES = [
    (None, None),
    (datetime(2026, 2, 28, 21, tzinfo=UTC), None),
    (FIRST, datetime(2026, 3, 31, 5, tzinfo=UTC)),
]


@pytest.mark.few_in_ci(1)
def test_oracle_days_and_months_are_the_minutes_to_the_last_digit(database: str, usage: list[dict[str, Any]]) -> None:
    chance = random.Random(usage[0]["account"])
    for size in (Window.DAY, Window.MONTH):
        for zone in ("UTC", "Europe/Berlin", "America/Havana", "Asia/Kolkata", "Pacific/Kiritimati"):
            for start, end in RANGES:
                keys = tuple(key for key in Key if chance.random() < 0.7)
                accounts = tuple(chance.sample(list(HISTORIES), 3)) if chance.random() < 0.5 else ()
                query = UsageQuery(start, end, size, keys, accounts=accounts, zone=ZoneInfo(zone))
                expected = summed_minutes(database, query)
                assert expected
                assert by_key(listed(database, query), query) == expected


def test_minutes_are_read_only_of_days_that_two_windows_share(database: str) -> None:
    """Those in the middle of the month, which are taken away here, are not missed."""
    starts = [datetime(2026, 2, 28, 22, 30, tzinfo=UTC) + timedelta(hours=hour) for hour in range(0, 24 * 31, 5)]
    rows = [usage_row(lsn, at, account="berlin", day=day_of("berlin", at, lsn)) for lsn, at in enumerate(starts, 1)]
    with psycopg.connect(database) as connection:
        bill(connection, rows)
        connection.execute("DELETE FROM usage_windows WHERE window_start BETWEEN '2026-03-02Z' AND '2026-03-31Z'")
    rows_listed = listed(database, UsageQuery(window=Window.MONTH))
    # Which requests did not report a meter, minutes alone say.
    found = [(row["window_start"], row["quantity"]) for row in rows_listed if row["quantity"]]
    assert found == [(datetime(2026, 2, 1, tzinfo=UTC), 1), (datetime(2026, 3, 1, tzinfo=UTC), len(starts) - 1)]


def test_oracle_dimensions_are_summed_by_each_accounts_own_days(database: str, usage: list[dict[str, Any]]) -> None:
    zones = {"berlin": "Europe/Berlin", "kolkata": "Asia/Kolkata", "unknown": "UTC"}
    for size, names in ((Window.DAY, ("api_key_id",)), (Window.MONTH, ("user_id", "api_key_id"))):
        query = UsageQuery(window=size, group_by=(Key.METER,), dimensions=names, accounts=tuple(zones))
        expected: dict[tuple[Any, ...], list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0)])
        for row in usage:
            if row["account"] in zones:
                first = row["day"] if size is Window.DAY else row["day"].replace(day=1)
                start = datetime(first.year, first.month, first.day, tzinfo=ZoneInfo(zones[row["account"]]))
                said = json.loads(row["dimensions"] or "{}")
                for meter in (Meter.REQUESTS, Meter.INPUT_TOKENS):
                    sums = expected[start, meter.value, *map(said.get, names)]
                    sums[0] += row["sign"] * row[meter]
                    sums[1] = EXACT.add(sums[1], EXACT.multiply(row.get(f"{meter}_amount") or Decimal(0), row["sign"]))
        rows = listed(database, query)
        assert [list(row) for row in rows] == [query.columns] * len(rows)
        assert query.columns[2:-8] == ["meter", *names, "is_other", "currency"]
        found = {
            (row["window_start"], row["meter"], *(row[name] for name in names)): [row["quantity"], row["amount"]]
            for row in rows
        }
        assert len(found) == len(rows)
        assert found == {key: sums for key, sums in expected.items() if any(sums)}
        assert not any(row["is_other"] for row in rows)
        assert {row["state"] for row in rows} == {"closed", "corrected"}


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("account", ["moved-west", "moved-east"])
def test_days_and_months_by_dimensions_sum_the_usage_between_their_ends(
    database: str, usage: list[dict[str, Any]], account: str
) -> None:
    of_account = [row for row in usage if row["account"] == account]
    for size in (Window.DAY, Window.MONTH):
        query = UsageQuery(window=size, group_by=(), dimensions=("user_id",), accounts=(account,))
        rows = listed_rows(database, query)
        ends = sorted({(row["window_start"], row["window_end"]) for row in rows})
        assert all(start < end for start, end in ends)
        assert all(one[1] <= other[0] for one, other in pairwise(ends))
        for start, end in ends:
            inside = [row for row in of_account if start <= row["event_time"] < end]
            expected = sum(row["sign"] * (1 + row[Meter.INPUT_TOKENS]) for row in inside)
            assert sum(row["quantity"] for row in rows if row["window_start"] == start) == expected, (start, end)
        outside = [row for row in of_account if not any(start <= row["event_time"] < end for start, end in ends)]
        assert sum(row["sign"] * (1 + row[Meter.INPUT_TOKENS]) for row in outside) == 0


@pytest.mark.few_in_ci(1)
@pytest.mark.usefixtures("usage")
def test_every_reader_puts_the_same_money_into_the_same_month(database: str) -> None:
    """Also of accounts that were learnt or moved late, or deleted over a month's end and made again."""
    backend = Backend(Settings(postgres_url=database))
    for account in HISTORIES:
        query = UsageQuery(window=Window.MONTH, group_by=(), dimensions=("api_key_id",), accounts=(account,))
        listed: dict[date, list[Decimal | None]] = defaultdict(list)
        for row in listed_rows(database, query):
            # A month begins at most 26 hours from that of UTC, on either side.
            listed[(row["window_start"] + timedelta(days=2)).date().replace(day=1)].append(row["amount"])
        for month in (date(2026, 2, 1), date(2026, 3, 1), date(2026, 4, 1)):
            with read_only(database) as connection:
                explained = [row["amount"] for row in Stored(connection).lines(account, month)]
            lines = [line.amount for line in read_bills(backend, month).lines if line.account == account]
            keys = [one.amount for one in read_values(backend, account, month, "api_key_id").values]
            readers = (lines, keys, explained, listed[month])
            sums = {reduce(EXACT.add, filter(None, amounts), Decimal(0)) for amounts in readers}
            assert len(sums) == 1, (account, month, sums)


def test_an_upgrade_names_days_by_the_zone_that_held(database: str) -> None:
    changes = {"-infinity": "America/New_York", "2026-03-12T00:00:00Z": "Asia/Tokyo"}
    for holds_from, zone in changes.items():
        write(database, "catalog.account_zones", {"account": "acme", "holds_from": holds_from, "timezone": zone})
    with migrator(database) as config:
        command.downgrade(config, "0021")
    write(database, "usage_windows", window(datetime(2026, 4, 30, 16, tzinfo=UTC), account="acme"))
    migrate(database)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT day FROM usage_days").fetchall() == [(date(2026, 5, 1),)]


def test_a_day_of_an_account_is_that_of_its_zone_and_is_selected_by_its_start(database: str) -> None:
    write_zones(database)
    at = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)
    accounts = ("berlin", "unknown")
    rows = [usage_row(lsn, at, account=name, day=day_of(name, at, lsn)) for lsn, name in enumerate(accounts, 1)]
    with psycopg.connect(database) as connection:
        bill(connection, rows)
    query = UsageQuery(window=Window.DAY, group_by=(Key.METER,), dimensions=("api_key_id",))
    utc, berlin = listed(database, query)
    assert (utc["window_start"], utc["window_end"]) == (
        datetime(2026, 3, 28, tzinfo=UTC),
        datetime(2026, 3, 29, tzinfo=UTC),
    )
    assert (berlin["window_start"], berlin["window_end"]) == (
        datetime(2026, 3, 28, 23, tzinfo=UTC),
        datetime(2026, 3, 29, 22, tzinfo=UTC),
    )
    assert listed(database, replace(query, start=datetime(2026, 3, 28, 0, 1, tzinfo=UTC))) == [berlin]
    assert listed(database, replace(query, end=datetime(2026, 3, 28, 23, tzinfo=UTC))) == [utc]
    assert listed(database, replace(query, window=Window.MONTH, start=datetime(2026, 3, 1, tzinfo=UTC)))[0][
        "window_start"
    ] == datetime(2026, 3, 1, tzinfo=UTC)


def test_values_beyond_the_cap_are_other_and_not_a_key_named_other(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "add_days", partial(days.add_days, max_combinations=2))
    keys = ["a", "other", "c", "d", None]
    named = [None if key is None else json.dumps({"api_key_id": key}) for key in keys]
    with psycopg.connect(database) as connection:
        bill(connection, [usage_row(lsn, day=NOON.date(), dimensions=text) for lsn, text in enumerate(named, 1)])
    rows = listed(database, UsageQuery(window=Window.DAY, dimensions=("api_key_id",)))
    assert [(row["api_key_id"], row["is_other"], row["quantity"]) for row in rows if row["meter"] == "requests"] == [
        ("a", False, 1),
        ("other", False, 1),
        ("other", True, 2),
        (None, False, 1),
    ]


def test_dimensions_are_those_that_are_configured_or_were(database: str) -> None:
    with psycopg.connect(database) as connection:
        bill(connection, [usage_row(1, day=NOON.date(), dimensions='{"team": "t"}')])
        progress(database, "billing", None)
        connection.execute("UPDATE jobs SET config = config || %s", [Jsonb({"dimensions": ["api_key_id"]})])
    with read_only(database) as connection:
        refuse_unknown(connection, ("api_key_id", "team"))
        with pytest.raises(typer.BadParameter, match="user_id: can only be any of account, model, meter, api_key_id"):
            refuse_unknown(connection, ("team", "user_id"))


def test_account_columns_are_listed_under_any_tag_name(database: str) -> None:
    """Names longer than a column's that begin alike, and all signs that a name may have; usage of before has none."""
    long = "account.tags." + "t" * 62
    names = (f"{long}.a", f"{long}.b", "account.tags.cost:center/x@y-z", "account.plan")
    said = [None, '{"api_key_id":"k"}', *(json.dumps({**dict.fromkeys(names, "x"), names[1]: team}) for team in "ab")]
    with psycopg.connect(database) as connection:
        bill(connection, [usage_row(lsn, day=NOON.date(), dimensions=text) for lsn, text in enumerate(said, 1)])
        progress(database, "billing", None)
        connection.execute("UPDATE jobs SET config = config || %s", [Jsonb({"dimensions": names})])
    words = words_of(f"account,meter,{','.join(names)}")
    with read_only(database) as connection:
        refuse_unknown(connection, dimensions_of(words))
        with pytest.raises(typer.BadParameter, match=r"account\.name: can only be any of .*, account\.plan"):
            refuse_unknown(connection, ("account.name",))
    for rolls_up in (False, True):
        query = UsageQuery(
            window=Window.DAY, group_by=keys_of(words), dimensions=dimensions_of(words), rolls_up=rolls_up
        )
        rows = [row for row in listed(database, query) if row["meter"] == "requests"]
        assert [list(row) for row in rows] == [query.columns] * len(rows)
        assert {(*(row[name] for name in names), row["quantity"]) for row in rows} == {
            (None, None, None, None, 2),
            ("x", "a", "x", "x", 1),
            ("x", "b", "x", "x", 1),
        }
        assert len(rows) == 3


@pytest.mark.few_in_ci(1)
def test_the_migration_makes_the_days_of_what_was_billed_before(database: str, usage: list[dict[str, Any]]) -> None:
    """Of the zones that are known now; a zone that nobody knows names the days of UTC."""
    account = {"account": "berlin", "holds_from": LAST, "timezone": "No/Where"}
    write(database, "catalog.account_zones", account, {**account, "account": "nowhere", "holds_from": "-infinity"})
    with migrator(database) as config:
        command.downgrade(config, "0021")
    write(database, "usage_windows", window(FIRST, account="nowhere", corrected=True))
    migrate(database)
    for size, zone in ((Window.DAY, "UTC"), (Window.MONTH, "America/Havana")):
        query = UsageQuery(window=size, zone=ZoneInfo(zone))
        assert by_key(listed(database, query), query) == summed_minutes(database, query)
    nowhere = UsageQuery(window=Window.DAY, dimensions=("api_key_id",), accounts=("nowhere",))
    assert [(row["window_start"], row["state"]) for row in listed(database, nowhere)] == [(FIRST, "corrected")]


def test_a_billing_of_the_release_before_commits_nothing_beside_the_migration(database: str) -> None:
    """Its minutes would have no days, for ever: it is fenced, as by a driver that has taken its place."""
    with migrator(database) as config:
        command.downgrade(config, "0021")
    older = Ownership.take("billing", database, {})
    try:
        migrate(database)
        with pytest.raises(Fenced), older.transaction():
            pass
    finally:
        older.close()
