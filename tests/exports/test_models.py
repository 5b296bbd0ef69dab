"""`weir models` and `weir forecast` on a real Postgres and a Delta table.

Method: `oracle`. Random minutes, added up in Python.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from cli.main import app
from cli.reading import read_only
from jobs.queries.forecasts import forecast_rows
from jobs.queries.models import (
    COLUMNS,
    Measure,
    ModelQuery,
    UserLimits,
    _users,
    change_percent,
    model_rows,
    rows_to_read,
    users_by_model,
)
from jobs.streams import USAGE, Table
from tests.database_rows import progress, window, write, write_windows

START = datetime(2026, 10, 12, tzinfo=UTC)
END = START + timedelta(days=2)
METERS = {"requests": "request", "input_tokens": "token", "output_tokens": "token"}


@pytest.fixture
def minutes(database: str) -> list[dict[str, Any]]:
    """Minutes of two spans and around them, in a database that has the meters."""
    chance = random.Random(3)
    rows: dict[Any, dict[str, Any]] = {}
    for _ in range(500):
        start = START + timedelta(minutes=chance.randrange(-3 * 1440, 3 * 1440, 120))
        model, currency = chance.choice(["m1", "m2", "m3", None]), chance.choice(["EUR", "USD"])
        key = {
            "account": chance.choice("ab"),
            "model": model,
            "meter": chance.choice(list(METERS)),
            "currency": currency,
        }
        price = Decimal(chance.randint(0, 10**6)).scaleb(-12)
        rows[start, *key.values()] = window(start, chance.randint(1, 9), **key, unit_price=price)
    write_windows(database, *rows.values())
    return list(rows.values())


def expected(rows: list[dict[str, Any]], start: datetime, end: datetime, accounts: str) -> dict[Any, list[Decimal]]:
    found: defaultdict[Any, list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)
    for row in rows:
        if start <= row["window_start"] < end and row["account"] in accounts:
            sums, quantity = found[row["model"], row["currency"]], Decimal(row["quantity"])
            sums[METERS[row["meter"]] == "token"] += quantity
            sums[2] += quantity * row["unit_price"]
    return found


@pytest.mark.few_in_ci(3)
@pytest.mark.parametrize("accounts", ["ab", "a"])
@pytest.mark.parametrize("by", [Measure.REQUESTS, Measure.TOKENS, Measure.AMOUNT])
def test_oracle_models_are_ranked_beside_the_span_before(
    database: str, minutes: list[dict[str, Any]], by: Measure, accounts: str
) -> None:
    with read_only(database) as connection:
        asked = ModelQuery(START, END, by, () if accounts == "ab" else ("a",))
        rows = list(model_rows(connection, None, asked))
    now = expected(minutes, START, END, accounts)
    before = expected(minutes, START - (END - START), START, accounts)
    assert {(row["model"], row["currency"]): [row["requests"], row["tokens"], row["amount"]] for row in rows} == now
    for row in rows:
        assert row.keys() == set(COLUMNS)
        key, ranked = (row["model"], row["currency"]), [row["requests"], row["tokens"], row["amount"]]
        changes = [row[f"{name}_change"] for name in ("requests", "tokens", "amount")]
        assert changes == [
            round((value - old) * 100 / old, 1) if old else None for value, old in zip(ranked, before[key], strict=True)
        ]
        per_minute: Counter[datetime] = Counter()
        for minute in minutes:
            is_used = START <= minute["window_start"] < END and minute["account"] in accounts
            if is_used and (minute["model"], minute["currency"], minute["meter"]) == (*key, "requests"):
                per_minute[minute["window_start"]] += minute["quantity"]
        if per_minute:
            most = max(per_minute.values())
            peak = min(minute for minute, count in per_minute.items() if count == most)
            assert (row["peak_minute"], row["peak_requests"]) == (peak, most)
    groups = defaultdict(list)
    for row in rows:
        groups[row["currency"] if by is Measure.AMOUNT else None].append(row)
    for group in groups.values():
        assert [row["rank"] for row in group] == list(range(1, len(group) + 1))
        assert [row[by] for row in group] == sorted((row[by] for row in group), reverse=True)


def test_a_model_with_tiers_has_no_amount_and_no_rank_by_it_rather_than_the_last_one_at_0(database: str) -> None:
    tiered = {"model": "dear", "unit_price": None, "price_version": 5}
    cheap, free = ({"model": model, "unit_price": price} for model, price in (("cheap", 1), ("free", 0)))
    rows = [window(START, 9, **tiered), window(START, 2, meter="input_tokens", **{**cheap, "model": "dear"})]
    write_windows(database, *rows, window(START, 1, **cheap), window(START, 1, **free))
    with read_only(database) as connection:
        by_amount, by_requests = (
            [(row["rank"], row["model"], row["amount"]) for row in model_rows(connection, None, asked)]
            for asked in (ModelQuery(START, END, by) for by in (Measure.AMOUNT, Measure.REQUESTS))
        )
    assert by_amount == [(1, "cheap", 1), (2, "free", 0), (None, "dear", None)]
    assert by_requests == [(1, "dear", None), (2, "cheap", 1), (3, "free", 0)]


def test_a_model_of_whose_units_a_plan_includes_some_has_no_amount_rather_than_that_of_all_units(
    database: str,
) -> None:
    for account, plan in (("a", "with"), ("b", "without")):
        write(database, "catalog.plans", {"plan": plan, "name": plan})
        begins = {"effective_from": datetime(2026, 1, 1, tzinfo=UTC), "currency": "EUR", "plan": plan}
        write(database, "catalog.accounts", {"account": account, "name": account, "timezone": "Asia/Tokyo", **begins})
    terms = json.dumps({"kind": "plan", "included": {"input_tokens": "5"}})
    of_plan = {"plan": "with", "model": 'plan{"+":"month"}', "meter": "requests", "currency": "EUR"}
    november = datetime(2026, 10, 31, 15, tzinfo=UTC)
    write(database, "catalog.prices", {**of_plan, "effective_from": november, "terms": terms})
    for version, plan in ((5, "with"), (6, "without")):
        rung: dict[str, Any] = {"plan": plan, "model": "m", "meter": "input_tokens", "currency": "EUR", "terms": None}
        rung |= {"price_version": version, "effective_from": datetime(2026, 1, 1, tzinfo=UTC), "unit_price": 1}
        write(database, "price_ladders", rung)
    progress(database, "billing", datetime(2026, 12, 1, tzinfo=UTC))
    tokens: dict[str, Any] = {"meter": "input_tokens", "currency": "EUR", "unit_price": Decimal(1)}
    of_model = {"with": {"account": "a", "price_version": 5}, "without": {"account": "b", "price_version": 6}}
    windows = [
        window(at, 9, **tokens, model=model, **other)
        for model, other in of_model.items()
        for at in (november, november - timedelta(minutes=1))
    ]
    write_windows(database, *windows)
    with read_only(database) as connection:

        def amounts(start: datetime, end: datetime) -> list[tuple[Any, ...]]:
            rows = model_rows(connection, None, ModelQuery(start, end, Measure.AMOUNT))
            return [(row["rank"], row["model"], row["amount"]) for row in rows]

        before = november - timedelta(days=1)
        assert amounts(before, november) == [(1, "with", 9), (2, "without", 9)]
        assert amounts(november, november + timedelta(days=1)) == [(1, "without", 9), (None, "with", None)]


def used(lsn: int, user: str | None, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"account": "a", "model": "m1", "currency": "EUR", "sign": 1, "cause": "stream", **values}
    at = row.pop("at", START)
    row |= {"lsn": lsn, "log_date": at.date(), "logged_at": at, "event_time": at, "received_at": at}
    return row | {"request_id": f"r{lsn}", "outcome": "matched", "user_id": user}


def test_a_user_counts_once_for_each_account_and_not_when_all_usage_was_taken_back(tmp_path: Path) -> None:
    rows = [
        used(1, "anna"),
        used(2, "anna"),
        used(3, "anna", account="b"),
        used(4, "ben"),
        used(5, "ben", sign=-1, cause="reversed"),
        used(6, None),
        used(7, "cleo", at=END),
        used(8, "cleo", at=START - timedelta(microseconds=1)),
        used(9, "dora", cause="decided"),
        used(10, "emil", model=None, currency="USD"),
    ]
    table = pa.Table.from_pylist(rows, pa.schema([USAGE.field(name) for name in rows[0]]))
    write_deltalake(tmp_path / Table.USAGE, table, partition_by=["log_date"])
    usage = DeltaTable(tmp_path / Table.USAGE)
    assert users_by_model(usage, (START, END), ()) == {("m1", "EUR"): 2, (None, "USD"): 1}
    assert users_by_model(usage, (START, END), ("b",)) == {("m1", "EUR"): 1}
    assert rows_to_read(usage, ModelQuery(START, END)) == len(rows) - 1, "of the span before, too"
    assert rows_to_read(usage, ModelQuery(END + timedelta(days=2), END + timedelta(days=3))) == 0


@pytest.mark.parametrize("seed", range(4))
def test_users_are_counted_alike_however_often_they_are_merged_and_not_beyond_the_limits(
    tmp_path: Path, seed: int
) -> None:
    drawn, lsn, expected = random.Random(seed), 0, Counter[tuple[str, str, str]]()
    schema = pa.schema([USAGE.field(name) for name in used(1, "anna")])
    for _ in range(6):
        rows = []
        for _ in range(drawn.randrange(1, 9)):
            lsn += 1
            user, account, model = drawn.choice("abcdef"), drawn.choice("xy"), drawn.choice(["m1", "m2"])
            sign = drawn.choice([1, 1, -1])
            expected[account, user, model] += sign
            rows.append(used(lsn, user, account=account, model=model, sign=sign))
        table = pa.Table.from_pylist(rows, schema)
        write_deltalake(tmp_path / Table.USAGE, table, partition_by=["log_date"], mode="append")
    usage = DeltaTable(tmp_path / Table.USAGE)
    must = Counter((model, "EUR") for (_, _, model), count in expected.items() if count > 0)
    for merged_rows in (0, 3, 10**6):
        assert users_by_model(usage, (START, END), (), len(expected), merged_rows) == must
        assert users_by_model(usage, (START, END), (), len(expected) - 1, merged_rows) is None
    query = ModelQuery(START, END)
    assert _users(usage, query, UserLimits(lsn, len(expected))) == [must, Counter()]
    assert _users(usage, query, UserLimits(lsn - 1, len(expected))) == [None, None]
    assert _users(usage, query, UserLimits(lsn, len(expected) - 1)) == [None, None]


class CountedReads:
    """A table that counts how often its rows are read."""

    def __init__(self, table: DeltaTable) -> None:
        self._table, self.reads = table, 0

    def to_pyarrow_dataset(self) -> Any:
        self.reads += 1
        return self._table.to_pyarrow_dataset()

    def get_add_actions(self, *, flatten: bool) -> Any:
        return self._table.get_add_actions(flatten=flatten)


@pytest.mark.parametrize(
    ("max_rows", "max_users", "reads"), [(4, 2, 2), (4, 1, 1), (3, 2, 0)], ids=["counted", "many users", "many rows"]
)
def test_users_that_the_answer_does_not_have_are_not_counted_on(
    tmp_path: Path, max_rows: int, max_users: int, reads: int
) -> None:
    """Where this span has too many, the one before is not read."""
    before = START - timedelta(days=1)
    rows = [used(1, "anna"), used(2, "ben"), *({**used(lsn, "anna"), "event_time": before} for lsn in (3, 4))]
    table = pa.Table.from_pylist(rows, pa.schema([USAGE.field(name) for name in rows[0]]))
    write_deltalake(tmp_path / Table.USAGE, table, partition_by=["log_date"])
    usage = CountedReads(DeltaTable(tmp_path / Table.USAGE))
    found = _users(usage, ModelQuery(START, END), UserLimits(max_rows, max_users))  # type: ignore[arg-type]
    assert (None in found) is (reads < 2)
    assert usage.reads == reads


def test_the_command_ranks_and_refuses_half_minutes(
    database: str, minutes: list[dict[str, Any]], tmp_path: Path
) -> None:
    places = {"WEIR_TABLES": str(tmp_path), "WEIR_KAFKA_BOOTSTRAP": "none:9092", "WEIR_POSTGRES_URL": database}
    command = ["models", "--from", "2026-10-12T00:00:00Z", "--to", "2026-10-14T00:00:00Z", "--format", "json"]
    done = CliRunner().invoke(app, command, env=places)
    assert done.exit_code == 0, done.output
    listed = json.loads(done.stdout)
    assert [list(row) for row in listed] == [list(COLUMNS)] * len(expected(minutes, START, END, "ab"))
    assert {row["users"] for row in listed} == {None}
    half = CliRunner().invoke(app, ["models", "--from", "2026-10-12T00:00:30Z"], env=places)
    assert "must be whole minutes" in half.stderr


def day(at: date, quantity: int, **values: Any) -> dict[str, Any]:
    first = datetime(at.year, at.month, at.day, tzinfo=UTC)
    row = {"account": "a", "day": at, "model": "m", "meter": "requests", "currency": "EUR", "price_version": 7}
    row |= {"unit_price": Decimal(1), "is_other": False, "corrected": False}
    return {**row, "quantity": quantity, "first_window": first, "last_window_end": first + timedelta(days=1), **values}


def test_a_forecast_comes_with_the_error_of_the_same_forecast_in_the_months_before(database: str) -> None:
    write(
        database,
        "meters",
        {"meter": "seats", "unit": "seat", "is_declared": True, "sums": "user_id"}
        | {"aggregation": "unique", "period": "month"},
    )
    dates = [date(2026, 8, 1) + timedelta(days=number) for number in range(31 + 30 + 10)]
    # 2 a day; in September 4 a day from the 11th on.
    steady = [day(at, 4 if at.month == 9 and at.day > 10 else 2) for at in dates]
    seats = [day(date(2026, 10, 1), 7, meter="seats"), day(date(2026, 9, 1), 5, meter="seats")]
    new = [day(date(2026, 10, 10), 3, account="new")]
    old = [day(date(2026, 8, 10), 3, account="gone")]
    write(database, "usage_days", *steady, *seats, *new, *old)
    progress(database, "billing", datetime(2026, 10, 11, tzinfo=UTC))
    with read_only(database) as connection:
        rows = {row["account"]: row for row in forecast_rows(connection, date(2026, 10, 1), (), END)}
    assert rows.keys() == {"a", "new"}
    found = rows["a"]
    assert found["so_far"] == 10 * 2 + 7
    # 13 days of rate, from the 28th of September on: 3 of 4 and 10 of 2. Then 21 days are left.
    assert found["forecast"] == 27 + round(Decimal(32 * 21) / 13, 2)
    # August began with the usage: 2 a day, exact. September: expected 60, was 10 × 2 + 20 × 4 = 100.
    assert (found["months_measured"], found["error_percent"]) == (2, Decimal("20.0"))
    assert rows["new"]["forecast"] == 3 + 3 * 21
    assert (rows["new"]["months_measured"], rows["new"]["error_percent"]) == (0, None)
    with read_only(database) as connection:
        [over] = forecast_rows(connection, date(2026, 9, 1), ("a",), END)
    assert over["forecast"] == over["so_far"] == 105


def test_a_forecast_is_in_cents_also_beside_a_month_that_is_billed_as_a_whole(database: str) -> None:
    write(
        database,
        "meters",
        {"meter": "seats", "unit": "seat", "is_declared": True, "sums": "user_id"}
        | {"aggregation": "unique", "period": "month"},
    )
    seats = day(date(2026, 10, 1), 7, meter="seats", unit_price=Decimal("0.123456789"))
    write(database, "usage_days", seats, *(day(date(2026, 10, number), 2) for number in range(1, 11)))
    progress(database, "billing", datetime(2026, 10, 11, tzinfo=UTC))
    with read_only(database) as connection:
        [found] = forecast_rows(connection, date(2026, 10, 1), (), END)
    assert found["so_far"] == 20 + 7 * Decimal("0.123456789")
    assert str(found["forecast"]) == "62.86"


def test_what_tiers_cost_is_in_the_cost_so_far_and_no_rate_forecasts_it(database: str) -> None:
    tiers = '{"kind":"graduated","tiers":[{"up_to":"10","unit_price":"3"},{"unit_price":"1"}]}'
    key = {"plan": "p", "model": "m*", "meter": "tokens", "currency": "EUR"}
    rung = {"price_version": 8, **key, "effective_from": datetime(2026, 1, 1, tzinfo=UTC), "terms": tiers}
    write(database, "price_ladders", rung)
    dates = [date(2026, 9, 1) + timedelta(days=number) for number in range(40)]
    tiered = {"meter": "tokens", "price_version": 8, "unit_price": None}
    write(database, "usage_days", *(day(at, 2) for at in dates), *(day(at, 4, **tiered) for at in dates))
    write(database, "usage_days", day(date(2026, 10, 1), 12, account="only", **tiered))
    progress(database, "billing", datetime(2026, 10, 11, tzinfo=UTC))
    with read_only(database) as connection:
        rows = {row["account"]: row for row in forecast_rows(connection, date(2026, 10, 1), (), END)}
        [over] = forecast_rows(connection, date(2026, 9, 1), ("a",), END)
    # 10 units at 3, and 30 and 2 units at 1.
    assert (rows["a"]["so_far"], rows["a"]["forecast"], rows["a"]["error_percent"]) == (20 + 60, None, None)
    assert (rows["only"]["so_far"], rows["only"]["forecast"]) == (32, None)
    assert over["forecast"] == over["so_far"] == 60 + 30 + 110


def test_growth_from_next_to_nothing_has_a_percentage_of_any_size() -> None:
    assert change_percent(Decimal(10) ** 12, Decimal("1e-18")) == Decimal(99999999999999999999999999999900)
    assert change_percent(Decimal(3), Decimal(0)) is None
