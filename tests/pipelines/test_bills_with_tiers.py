"""The bill of a month with tiers: what Postgres and `read_month` make of days of usage, against an oracle in fractions.

The oracle walks a ladder unit of measure by unit of measure as the definition says, from the rows that the test wrote:
it reads neither the statement nor `metering.price_tiers`.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from jobs.queries.bills import PAGE_KEY, Month, read_month, read_periods, read_totals
from jobs.queries.pages import Page
from metering.price_tiers import PriceTerms
from tests.database_rows import write
from tests.rules.test_price_tiers import oracle

MONTH = date(2026, 3, 1)
START = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
GRADUATED = {
    "kind": "graduated",
    "tiers": [
        {"up_to": "1000", "unit_price": "2", "flat_price": "0"},
        {"up_to": "5000", "unit_price": "1", "flat_price": "10"},
        {"unit_price": "0.5", "flat_price": "0"},
    ],
}
VOLUME = {**GRADUATED, "kind": "volume"}
PACKAGE = {"kind": "package", "package_size": "300", "package_price": "7"}


def rung(version: int, terms: Mapping[str, Any] | str, **other: Any) -> dict[str, Any]:
    """A version of a price on a ladder; a text is its unit price."""
    is_unit = isinstance(terms, str)
    return {
        "price_version": version,
        "plan": "p",
        "model": "m*",
        "meter": "tokens",
        "currency": "EUR",
        "effective_from": START + timedelta(days=version),
        "unit_price": terms if is_unit else None,
        "terms": None if is_unit else PriceTerms.of(terms).text,
        **other,
    }


def day(number: int, quantity: int | str, version: int | None, **other: Any) -> dict[str, Any]:
    """What an account used of a price version on a day."""
    begins = START + timedelta(days=number - 1)
    return {
        "account": "a",
        "day": begins.date(),
        "model": "m1",
        "meter": "tokens",
        "currency": "EUR",
        "price_version": version,
        "quantity": quantity,
        "first_window": begins,
        "last_window_end": begins + MINUTE,
        **other,
    }


def bill(database: str, page: Page | None = None) -> Month:
    with psycopg.connect(database, row_factory=dict_row) as connection:
        return read_month(connection, MONTH, page=page)


def totals(database: str, *accounts: str) -> list[dict[str, Any]]:
    with psycopg.connect(database, row_factory=dict_row) as connection:
        return read_totals(connection, MONTH, accounts)


def shown(month: Month) -> list[tuple[Any, ...]]:
    return [(row["model"], row["tier"], row["quantity"], row["unit_price"], row["amount"]) for row in month.lines]


def test_graduated_tiers_are_of_the_months_total_over_all_models_of_the_price(database: str) -> None:
    write(database, "price_ladders", rung(1, GRADUATED))
    write(database, "usage_days", day(1, 900, 1), day(2, 5000, 1, model="m2"), day(3, 100, 1))
    assert shown(bill(database)) == [
        ("m*", "1: up to 1000", 1000, 2, 2000),
        ("m*", "2: up to 5000", 4000, 1, 4010),
        ("m*", "3: above 5000", 1000, Decimal("0.5"), 500),
    ]
    assert {row["kind"] for row in bill(database).lines} == {"graduated"}
    assert totals(database, "a") == [
        {"account": "a", "currency": "EUR", "amount": 6510, "unpriced_lines": 0, "corrected": False}
    ]


def test_the_tier_of_the_total_prices_all_units_by_volume(database: str) -> None:
    write(database, "price_ladders", rung(1, VOLUME))
    write(database, "usage_days", day(1, 900, 1), day(2, 101, 1))
    assert shown(bill(database)) == [("m*", "2: up to 5000", 1001, 1, 1011)]


def test_packages_are_counted_of_the_months_total(database: str) -> None:
    write(database, "price_ladders", rung(1, PACKAGE))
    write(database, "usage_days", day(1, 200, 1), day(2, 200, 1), day(3, 200, 1))
    assert shown(bill(database)) == [("m*", "packages of 300", 600, None, 14)]


def test_versions_stand_on_one_ladder_and_those_with_a_unit_price_take_their_part(database: str) -> None:
    write(database, "price_ladders", rung(1, "3"), rung(2, GRADUATED), rung(3, PACKAGE))
    used = day(1, 800, 1, unit_price=3), day(2, 300, 2), day(3, 100, 3)
    write(database, "usage_days", *used)
    # 800 at 3; of the next 300 the first 200 are below 1000; 1100 to 1200 lies in the fourth package of 300.
    assert shown(bill(database)) == [
        ("m*", "1: up to 1000", 200, 2, 400),
        ("m*", "2: up to 5000", 100, 1, 110),
        ("m*", "packages of 300", 100, None, 0),
        ("m1", None, 800, 3, 2400),
    ]


def test_another_plan_currency_meter_account_or_month_is_another_ladder(database: str) -> None:
    other = [rung(2, GRADUATED, plan="q"), rung(3, GRADUATED, currency="USD"), rung(4, GRADUATED, meter="calls")]
    write(database, "price_ladders", rung(1, GRADUATED), *other)
    write(
        database,
        "usage_days",
        *(day(1, 600, 1), day(1, 600, 2), day(1, 600, 3, currency="USD"), day(1, 600, 4, meter="calls")),
        *(day(1, 600, 1, account="b"), day(1, 600, 1, day=date(2026, 2, 1))),
    )
    assert [row["amount"] for row in bill(database).lines] == [1200] * 5


def test_what_has_no_price_and_what_no_ladder_knows_is_shown_as_unpriced_and_never_as_0(database: str) -> None:
    write(database, "usage_days", day(1, 10, None), day(1, 10, 9))
    assert [(row["kind"], row["amount"]) for row in bill(database).lines] == [(None, None), (None, None)]
    (total,) = totals(database, "a")
    assert (total["amount"], total["unpriced_lines"]) == (None, 2)


def test_a_version_with_less_than_nothing_takes_units_back_by_its_own_tiers(database: str) -> None:
    """A meter may report negative values; a month that never got an amount could never be closed."""
    write(database, "price_ladders", rung(1, GRADUATED), rung(2, GRADUATED))
    write(database, "usage_days", day(1, 1_030, 1), day(2, -50, 2))
    assert shown(bill(database)) == [
        ("m*", "1: up to 1000", 1000, 2, 2000),
        ("m*", "2: up to 5000", 30, 1, 40),
        ("m*", "1: up to 1000", -20, 2, -40),
        ("m*", "2: up to 5000", -30, 1, -40),
    ]
    (total,) = totals(database, "a")
    assert (total["amount"], total["unpriced_lines"]) == (1_960, 0)


def test_the_flat_price_by_volume_is_charged_once_where_the_total_is_reached_twice(database: str) -> None:
    write(database, "price_ladders", rung(1, VOLUME), rung(2, VOLUME), rung(3, VOLUME))
    write(database, "usage_days", day(1, 1_101, 1), day(2, -50, 2), day(3, 50, 3))
    assert totals(database, "a")[0]["amount"] == 1_101 + 10


def test_a_version_whose_models_add_up_to_nothing_has_no_line_and_stops_no_bill(database: str) -> None:
    write(database, "price_ladders", rung(1, VOLUME), rung(2, GRADUATED))
    write(database, "usage_days", day(1, 10, 1), day(1, -10, 1, model="m2"), day(2, 30, 2))
    assert shown(bill(database)) == [("m*", "1: up to 1000", 30, 2, 60)]
    assert totals(database, "a")[0]["amount"] == 60


def test_the_month_so_far_names_the_price_of_the_next_unit(database: str) -> None:
    write(database, "price_ladders", rung(1, GRADUATED))
    write(database, "usage_days", day(1, 1000, 1))
    assert [row["next_unit_price"] for row in bill(database).lines] == [1]


def test_pages_have_every_line_once_and_all_tiers_of_a_price_together(database: str) -> None:
    write(database, "price_ladders", rung(1, GRADUATED), rung(2, VOLUME, model="x"))
    write(database, "usage_days", day(1, 9000, 1), day(1, 10, 2, model="x"), day(1, 5, 7, model="y", unit_price=1))
    whole, found = bill(database).lines, list[Any]()
    after: tuple[Any, ...] = ()
    while rows := bill(database, Page(1, after)).lines:
        assert len({tuple(row[name] for name in PAGE_KEY) for row in rows}) == 1
        found += rows
        after = tuple(rows[-1][name] for name in PAGE_KEY)
    assert sorted(found, key=str) == sorted(whole, key=str)
    assert len(found) == 5


@pytest.mark.parametrize("seed", range(3))
def test_any_catalog_order_and_split_of_usage_bills_what_the_definition_says(database: str, seed: int) -> None:
    chance = random.Random(seed)
    prices: list[dict[str, Any] | str] = [GRADUATED, VOLUME, PACKAGE, "0.25"]
    write_many, expected = list[dict[str, Any]](), Fraction(0)
    rungs: list[dict[str, Any]] = []
    version = 0
    for plan in (f"p{number}" for number in range(40)):
        quantities: dict[int, Fraction] = defaultdict(Fraction)
        ladder: list[tuple[int, datetime, Any]] = []
        for _ in range(chance.randint(1, 4)):
            version += 1
            terms, since = chance.choice(prices), START + timedelta(days=chance.randint(0, 3))
            ladder.append((version, since, terms))
            rungs.append(rung(version, terms, plan=plan, effective_from=since))
            for _ in range(chance.randint(0, 5)):
                quantity = Decimal(chance.randint(1, 3000)) + Decimal(chance.randint(0, 10**6)).scaleb(-6)
                quantity *= chance.choice([1, 1, 1, -1])
                quantities[version] += Fraction(quantity)
                more = {"unit_price": terms} if isinstance(terms, str) else {}
                where = {"model": f"m{chance.randint(1, 3)}", "dimensions": f'{{"n": "{len(write_many)}"}}'}
                write_many.append(day(chance.randint(1, 31), f"{quantity}", version, **more, **where))
        expected += _ladder(ladder, quantities)
    if all(isinstance(row["terms"], str) for row in rungs):
        return
    write(database, "price_ladders", *rungs)
    write(database, "usage_days", *chance.sample(write_many, len(write_many)))
    found = bill(database).lines
    assert sum((Fraction(row["amount"]) for row in found), Fraction(0)) == expected
    assert sum((Fraction(row["quantity"]) for row in found), Fraction(0)) == sum(
        (Fraction(row["quantity"]) for row in write_many), Fraction(0)
    )
    assert Fraction(totals(database, "a")[0]["amount"]) == expected


def _ladder(ladder: Sequence[tuple[int, datetime, Any]], quantities: Mapping[int, Fraction]) -> Fraction:
    """What a ladder costs: versions by their beginning, then by their number."""
    total, start, costs = sum(quantities.values(), Fraction(0)), Fraction(0), Fraction(0)
    used = [rung for rung in sorted(ladder, key=lambda rung: (rung[1], rung[0])) if quantities[rung[0]]]
    for version, _, terms in used:
        end = start + quantities[version]
        is_unit, is_last = isinstance(terms, str), version == used[-1][0]
        costs += (end - start) * Fraction(terms) if is_unit else oracle(terms, start, end, total, is_last)
        start = end
    return costs


def test_bills_of_a_month_are_planned_for_their_accounts_each_time(database: str) -> None:
    """A prepared statement gets a plan for any accounts, which took ten times as long for 500 of them."""
    write(database, "price_ladders", rung(1, GRADUATED))
    write(database, "usage_days", day(1, 900, 1))
    with psycopg.connect(database, row_factory=dict_row) as connection:
        for _ in range(12):
            read_month(connection, MONTH, ["a"])
            read_totals(connection, MONTH, ["a"])
        kept = connection.execute("SELECT statement FROM pg_prepared_statements").fetchall()
    assert kept, "psycopg prepares other statements"
    assert [row for row in kept if "usage_months" in row["statement"]] == []


def test_the_months_of_some_accounts_are_those_of_all_and_name_whoever_is_above_them(database: str) -> None:
    write(database, "catalog.plans", {"plan": "p", "name": "P"})
    parents = {"top": None, "other": None, "middle": "top", "low": "middle", "alone": None}
    for account, parent in parents.items():
        zone = "Asia/Kolkata" if account == "top" else "UTC"
        row = {"account": account, "name": account, "plan": "p", "currency": "EUR", "parent": parent, "timezone": zone}
        write(database, "catalog.accounts", row | {"effective_from": START - timedelta(days=90)})
    with psycopg.connect(database, row_factory=dict_row) as connection:
        moved = "UPDATE catalog.accounts SET parent = 'other', effective_from = %s WHERE account = 'low'"
        connection.execute(moved, [START + timedelta(days=40)])
        every = read_periods(connection, MONTH)
        found = read_periods(connection, MONTH, ["low"])
        later = date(2026, 5, 1)
        assert read_periods(connection, later, ["low"])["low"] == read_periods(connection, later)["low"]
    assert found == {account: every[account] for account in ("low", "middle", "top", "other")}
    assert every["low"].parent == "middle"
